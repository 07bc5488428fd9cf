"""Expiry deletes scopes that nobody will ask for again, as those of micro-batches that are committed.

Any thread, any process. An attempt that still writes into what has expired, a zombie, fails with its next
commit; one that begins later makes the folder anew, and what it writes expires with the next call.
"""

from __future__ import annotations

import warnings
from contextlib import suppress

from pillarbox.ledger.errors import LedgerBusyError, LedgerWarning, printable
from pillarbox.ledger.keys import Scope
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.reader import is_own

EXPIRY_LOCK_TIMEOUT_S = 5.0
MAX_QUOTED_NAMES = 5
"""Names that a warning quotes."""


def expire(ledger: Ledger, scope: Scope, timeout: float = EXPIRY_LOCK_TIMEOUT_S) -> int:
    """Delete what a scope has; returns the bytes that were freed.

    For what is committed, and nobody asks for again. An attempt that still writes there fails with its next
    commit, and so should it. timeout: seconds for a commit that is at work.

    What the ledger has not written for this scope stays, and is said with a `LedgerWarning`: other files, and
    segments of other scopes that somebody has copied there.
    Raises LedgerBusyError if a process has held the scope's lock for longer, LedgerError and OSError.
    """
    # spec: Ledger!Expire
    folder = ledger.folder(scope)
    if not folder.exists():
        return 0
    freed, left = folder.remove_folder(timeout, lambda name, size: is_own(folder, scope.about, name, size))
    if left:
        names = ", ".join(map(printable, left[:MAX_QUOTED_NAMES]))
        if len(left) > MAX_QUOTED_NAMES:
            names += ", ..."
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
    Raises ValueError for a run that is not a stream's, LedgerFormatError and OSError.
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
