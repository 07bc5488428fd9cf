"""Which waiting call may begin: order of waiting, rate, budget. Confined to the mailbox thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox.aio.errors import CallFailed
from pillarbox.aio.limits.limiter import RateLimiter

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import Call, CallScheduler

FOREVER = 3600.0
"""Seconds after which a gate that does not know how long to wait is asked again, wake-up or not."""


class Throttle:
    """Lets waiting calls begin, the first one first, as the gate allows. Only for operators with a gate.

    units: what a row weighs at the gate, or None. A call that is held back stays at the front of those that
    wait and holds no slot; the runners are fed when it is worth asking again.
    """

    __slots__ = ("_loop", "_scheduler", "_timer", "_units", "gate")

    def __init__(
        self,
        scheduler: CallScheduler,
        gate: RateLimiter,
        units: Callable[[Any], float] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.gate = gate
        self._scheduler = scheduler
        self._units = units
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @property
    def holds(self) -> bool:
        """Whether calls are held back now."""
        return self._timer is not None

    @property
    def weighs(self) -> bool:
        """Whether rows have weights, which a user's function gives."""
        return self._units is not None

    def next(self) -> Call | None:
        """The next call that may begin, taken out of those that wait; None if none may now."""
        waiting = self._scheduler.waiting
        while waiting and self._timer is None:
            call = waiting[0]
            try:
                units = self.weigh(call)
            except BaseException as error:
                waiting.popleft()
                self._scheduler.fail_call(call, CallFailed(call.attempt, error))
                continue
            if self.admit(units):
                return waiting.popleft()
            break
        return None

    def weigh(self, call: Call) -> float:
        """What the row of `call` weighs at the gate. Raises what the user's function raises."""
        if self._units is None:
            return 1.0
        if call.units is None:
            call.units = self._units(call.row)
        return call.units

    def admit(self, units: float) -> bool:
        """Whether a call of so many units may begin now; if not, runners are fed when it may be."""
        if self._timer is not None:
            return False
        wait = self.gate.admit(units)
        if wait == 0.0:
            return True
        if self.gate.exhausted is not None:
            self._scheduler.call_no_more(self.gate.exhausted)
            return False
        if self._timer is None:
            # Where nobody knows how long, the gate wakes; the timer then only marks that calls are held.
            self._timer = self._loop.call_later(min(wait, FOREVER), self._over)
        return False

    def cool_down(self, seconds: float | None) -> None:
        """The service is overloaded and asked for so long a pause, or for none in particular."""
        self.gate.cool_down(seconds)

    def wake(self) -> None:
        """It is worth asking again."""
        if self._timer is not None:
            self._timer.cancel()
            self._over()

    def _over(self) -> None:
        # spec: Feeding!GateOpens
        self._timer = None
        # Asking the gate may raise, and who would see it here?
        self._scheduler.guarded(self._scheduler.runner.dispatch)

    def close(self) -> None:
        """Nothing is fed any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
