"""A cache as a task uses it: what it may ask for, and by what it knows a row."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pillarbox.aio.function import configuration_of
from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.cache import PIN_RENEWAL_S
from pillarbox.ledger.cache_upkeep import join_execution
from pillarbox.ledger.keys import ContentIdentity, content_of_fields, content_of_values

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

    def keep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say it again now and then."""
        self._timer = loop.call_later(PIN_RENEWAL_S, self._again, loop)

    def let_go(self) -> None:
        """Say it no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_in_executor(None, self._renew)
        self.keep(loop)

    def _renew(self) -> None:
        try:
            self.join()
        except (OSError, LedgerError) as error:
            log.warning("what this job may ask for was not said again: %s: %s", type(error).__name__, error)


def fields_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the columns that a client reads; none where it does not say them."""
    return () if configuration_of(fn) is None else tuple(getattr(fn, "fields", ()))


def content_of(ledger: Ledger, fn: Callable[..., Any]) -> ContentIdentity:
    """The identity of rows of Python in a cache: by its inputs, the fields of a client, or the whole row."""
    fields = fields_of(fn)
    return content_of_fields(fields) if fields and ledger.inputs is None else content_of_values(ledger.inputs)
