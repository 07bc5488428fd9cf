"""When a failed attempt is made again, and after which pause. A value without state: safe in any thread."""

from __future__ import annotations

import math
import random
from dataclasses import KW_ONLY, dataclass

from pillarbox.aio.check import check_positive_int


@dataclass(frozen=True)
class Retry:
    """Try a failed call again, with pauses that grow exponentially, under full jitter.

    Before attempt n + 1 the pause is drawn between 0 and `initial * multiplier ** (n - 1)` seconds,
    at most `maximum` seconds; without jitter it is that bound. A call that waits holds no slot.

    attempts: calls of one row in all, the first one included (1 or more).
    initial, maximum: seconds. multiplier: 1 or more.
    on: exception types that are tried again. An attempt that met `attempt_timeout` counts as
        `CallTimeout`, a `TimeoutError`; `timeout` over all attempts is final.
    jitter: draw the pause at random, so that rows that failed together do not come back together.

    Full jitter: M. Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
    Raises TypeError or ValueError for a bad argument.
    """

    attempts: int = 3
    _: KW_ONLY
    initial: float = 0.1
    maximum: float = 30.0
    multiplier: float = 2.0
    on: tuple[type[BaseException], ...] = (Exception,)
    jitter: bool = True

    def __post_init__(self) -> None:
        check_positive_int("attempts", self.attempts)
        for name, least in (("initial", 0.0), ("maximum", 0.0), ("multiplier", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name}={value!r}: must be a number")
            if not math.isfinite(value) or value < least:
                raise ValueError(f"{name}={value!r}: must be finite and at least {least:g}")
        on = self.on if isinstance(self.on, tuple | list) else (self.on,)
        for kind in on:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"on={self.on!r}: must be an exception type or several, {kind!r} is none")
        object.__setattr__(self, "on", tuple(on))
        if not isinstance(self.jitter, bool):
            raise TypeError(f"jitter={self.jitter!r}: must be True or False")

    def applies(self, attempt: int, error: BaseException) -> bool:
        """Whether another attempt follows after attempt number `attempt` (from 1) ended with `error`."""
        return attempt < self.attempts and isinstance(error, self.on)

    def bound(self, attempt: int) -> float:
        """The longest pause after attempt number `attempt` (from 1), in seconds."""
        try:
            return min(self.maximum, self.initial * self.multiplier ** (attempt - 1))
        except OverflowError:
            return self.maximum if self.initial else 0.0

    def pause(self, attempt: int) -> float:
        """The pause after attempt number `attempt` (from 1), in seconds; drawn anew at each call."""
        bound = self.bound(attempt)
        return random.uniform(0.0, bound) if self.jitter else bound
