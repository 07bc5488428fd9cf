"""How many calls may be in flight now: the number given, or what is found, and none while all are held back.

Confined to the mailbox thread.
"""

from __future__ import annotations

from pillarbox.aio.calls import Runner
from pillarbox.aio.options import Options


class ConcurrencyLimit:
    """Sets the limit of what runs the calls of one operator, which is `runner` once it is there.

    `limit` is the number without regard to what holds calls back.
    """

    __slots__ = ("_adaptive", "_allowed", "_held", "_most", "runner")

    runner: Runner

    def __init__(self, options: Options) -> None:
        self._most = options.max_capacity
        self._adaptive = None if options.adaptive is None else options.adaptive.open()
        self._held = False
        self._allowed: int | None = None

    @property
    def adapts(self) -> bool:
        """Whether the number is found while calls are made."""
        return self._adaptive is not None

    @property
    def limit(self) -> int:
        """Calls in flight, at most, unless all are held back."""
        return self._most if self._adaptive is None else self._adaptive.limit

    def hold(self, held: bool) -> None:
        """Whether no call may begin for now; those in flight go on."""
        # spec: Feeding!Hold, Feeding!Release
        self._held = held
        self._set()

    def allow(self, calls: int | None) -> None:
        """So many calls may be in flight for their results to find room; None where that is no limit."""
        if calls != self._allowed:
            self._allowed = calls
            self._set()

    def succeeded(self, seconds: float) -> None:
        """A call, of one row or of a batch, succeeded."""
        if self._adaptive is not None:
            self._adaptive.succeeded(seconds)
            self._set()

    def failed(self, overload: bool) -> None:
        """A call failed; whether the service said that it has too much to do."""
        if self._adaptive is not None:
            self._adaptive.failed(overload)
            self._set()

    def _set(self) -> None:
        # spec: Feeding!Found
        runner = self.runner
        limit = 0 if self._held else self.limit
        if self._allowed is not None:
            limit = min(limit, self._allowed)
        grown = limit > runner.limit
        runner.limit = limit
        if grown:
            runner.dispatch()
