"""Deletes what is committed, and what nobody will ask for again. Any thread, any process, several at a time.

An attempt that still writes into what has expired, a zombie, fails with its next commit; one that begins
later makes the folder anew, and what it writes expires with the next call.
"""

from __future__ import annotations

import warnings
from contextlib import suppress

from pillarbox.ledger.errors import LedgerBusyError, LedgerError, LedgerWarning, printable
from pillarbox.ledger.folder import ROWS_NAME, SUFFIX
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.reader import is_own
from pillarbox.ledger.scope import Scope

PATIENCE = 5.0
"""Seconds for a commit that is at work to end."""
MAX_NAMES = 5
"""Names that a warning quotes."""


def expire(ledger: Ledger, scope: Scope, patience: float = PATIENCE) -> int:
    """Delete what a scope has; returns the bytes that were freed.

    For what is committed, and nobody asks for again. An attempt that still writes there fails with its next
    commit, and so should it. patience: seconds for a commit that is at work.

    What the ledger has not written for this scope stays, and is said with a `LedgerWarning`: other files, and
    segments of other scopes that somebody has copied there.
    Raises LedgerBusyError if a process has held the scope's lock for longer, LedgerError and OSError.
    """
    # spec: Ledger!Expire
    folder = ledger.folder(scope)
    try:
        if not folder.exists():
            return 0
        freed, left = folder.remove_folder(
            patience, lambda name, size: is_own(folder, scope.about, name, size)
        )
    finally:
        folder.close()
    if left:
        names = ", ".join(printable(name) for name in left[:MAX_NAMES]) + ", ..." * (len(left) > MAX_NAMES)
        warnings.warn(
            LedgerWarning(f"{folder.path}: not deleted, since the ledger has not written it there: {names}"),
            stacklevel=2,
        )
    return freed


def expire_batches(
    ledger: Ledger, run: str, through: int, *, uid: str | None = None, config: str | None = None
) -> list[Scope]:
    """Delete what a query kept for its micro-batches up to and with `through`; returns their scopes.

    uid, config: of this operator, with this configuration only; None for all.

    For batches that Spark has committed: while micro-batch N runs, those up to N - 2. All tasks of N may call
    it, at any time and all at once: where there is nothing to do, that is a look into the run's folder. What
    a commit of a zombie has locked is left to a later call.
    Raises ValueError for a run that is no stream, LedgerFormatError and OSError.
    """
    gone = []
    of_run = list(ledger.scopes(run))
    if of_run and all(scope.batch is None for scope in of_run):
        raise ValueError(f"run={run!r}: has no micro-batches; expire it as a whole")
    for scope in of_run:
        if scope.batch is None or scope.batch > through:
            continue
        if uid in (None, scope.uid) and config in (None, scope.config):
            with suppress(LedgerBusyError):
                expire(ledger, scope, 0.0)
                gone.append(scope)
    return gone


def last_change(ledger: Ledger, scope: Scope) -> float:
    """When a file with results or rows changed last: seconds since 1970, 0 without any.

    Raises LedgerError.
    """
    folder = ledger.folder(scope)
    latest = 0.0
    try:
        for name in folder.names():
            if not name.endswith(SUFFIX) and not ROWS_NAME.fullmatch(name):
                continue
            try:
                latest = max(latest, folder.changed(name))
            except FileNotFoundError:
                # Merged in the meantime, or expired.
                continue
    except OSError as error:
        raise LedgerError(f"{folder.path} cannot be read: {error}") from error
    return latest
