"""The pin of a cache: what says that an execution may ask for records, as long as one of its tasks runs.

`join` is for any thread and blocks, the other methods are for the thread of the loop.
"""

from __future__ import annotations

import asyncio
import logging

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.upkeep import PIN_RENEWAL_S, join_execution

log = logging.getLogger("pillarbox")


class CachePin:
    """Says what an execution may ask for, as long as one of its tasks runs. Picklable before `keep`.

    owner: the execution, in 16 hexadecimal digits. cut: the time before which records are too old for it;
    None where each task has one of its own, by age. `join` is for any thread and blocks, the others are for
    the thread of the loop.
    """

    def __init__(self, ledger: Ledger, scope: Scope, owner: str, cut: int | None) -> None:
        self._ledger = ledger
        self._scope = scope
        self._owner = owner
        self._cut = cut
        self._timer: asyncio.TimerHandle | None = None

    def join(self) -> int:
        """Say it now; returns the cut. Raises LedgerError and OSError."""
        self._cut = join_execution(self._ledger, self._scope, self._owner, self._cut)
        return self._cut

    def keep(self, loop: asyncio.AbstractEventLoop, interval: float = PIN_RENEWAL_S) -> None:
        """Say it again after each `interval`, in seconds."""
        self._timer = loop.call_later(interval, self._again, loop, interval)

    def let_go(self) -> None:
        """Say it no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        loop.run_in_executor(None, self._renew)
        self.keep(loop, interval)

    def _renew(self) -> None:
        try:
            self.join()
        except (OSError, LedgerError) as error:
            log.warning("what this job may ask for was not said again: %s: %s", type(error).__name__, error)
