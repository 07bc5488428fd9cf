"""Limits that tasks share: the base of `Coordinator` and of what wraps one. Values, safe in any thread."""

# Limits are plain numbers and compare as such: tasks that share a name must have the same, or the first of
# them would decide for all. They travel as fields of a message, not as pickles: a coordinator never
# unpickles anything that another process has sent.
#
# `RunBudget` and `SharedBudget` wrap another `SharedLimits` instead of being options of it, since a
# coordinator and limits of one task alone need them in the same way.

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pillarbox.aio.limits.rate import COOL_DOWN_S, LocalLimiter, TaskRateLimiter
from pillarbox.kernel import PillarboxError
from pillarbox.rpc.codec import Codec, Positive

if TYPE_CHECKING:
    from pillarbox.aio.limits.rate import Rate, RateLimiter


class CoordinatorError(PillarboxError):
    """The server of the shared limits cannot be reached, or will not have this task. Ends the job."""


class Limits(NamedTuple):
    """Limits that are shared: plain numbers, the same for all who share them. None for no limit."""

    per_second: Positive | None = None
    units_per_second: Positive | None = None
    burst: Positive = 1.0
    cool_down: Positive = COOL_DOWN_S
    max_calls: Annotated[int, "more than 0", lambda value: value > 0] | None = None
    max_cost: Positive | None = None

    @classmethod
    def of(cls, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> Limits:
        """The limits that the options of an operator give."""
        if rate is None:
            return cls(max_calls=max_calls, max_cost=max_cost)
        units = None if rate.units_per_minute is None else rate.units_per_minute / 60.0
        return cls(rate.per_second, units, rate.burst, rate.cool_down, max_calls, max_cost)

    @property
    def life(self) -> float:
        """Seconds for which a task may use what it was granted."""
        return min(max(self.burst / 4, 0.05), 0.25)

    def capacity(self, rate: float, least: float) -> float:
        """The size of a shared bucket. Tasks hold the rest of the burst: both are no more than it."""
        return max(least, rate * (self.burst - self.life))

    def differences(self, other: Limits) -> str:
        """The fields in which `other` differs, as in "per_second=5.0 (not 7.0)"."""
        return ", ".join(
            f"{name}={mine!r} (not {its!r})"
            for name, mine, its in zip(self._fields, self, other, strict=True)
            if mine != its
        )

    @classmethod
    def from_json(cls, value: Any) -> Limits:
        """The limits that another process sent. Raises ValueError for what are none."""
        limits: Limits = LIMITS.from_json([cls.__name__, *value])
        return limits


LIMITS = Codec(Limits)


class SharedLimits(ABC):
    """Makes the limiters of tasks that share their limits. Pickles, so that it can travel to them."""

    @abstractmethod
    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> RateLimiter:
        """A limiter for one task with these options. Any thread; connects when it is started."""

    @abstractmethod
    def named(self, name: str | None = None) -> SharedLimits:
        """The same with the limits called `name`: who shares a name shares the limits.

        None gives a new name that is nobody else's, unless there is one already. Any thread.
        """


@dataclass(frozen=True)
class RunBudget(SharedLimits):
    """Counts against the budget what a run has spent before, as its ledger says. Any thread; pickles.

    shared: the limits that are shared, None for those of one task. run: its name.
    """

    shared: SharedLimits | None
    run: str
    calls: int
    cost: float

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> RateLimiter:
        """See `SharedLimits`."""
        limiter = _opened(self.shared, rate, max_calls, max_cost)
        limiter.count_before(self.run, self.calls, self.cost)
        return limiter

    def named(self, name: str | None = None) -> RunBudget:
        """See `SharedLimits`."""
        return self if self.shared is None else replace(self, shared=self.shared.named(name))


@dataclass(frozen=True)
class SharedBudget(SharedLimits):
    """Shares the budget through `shared`; the rate and the cool-downs stay those of each task.

    So a budget does not change what a rate means where nobody asked for a coordinator. Any thread; pickles.
    """

    shared: SharedLimits

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> RateLimiter:
        """See `SharedLimits`."""
        return TaskRateLimiter(rate, self.shared.open_for(None, max_calls, max_cost))

    def named(self, name: str | None = None) -> SharedBudget:
        """See `SharedLimits`."""
        return SharedBudget(self.shared.named(name))


def check_name(name: object) -> str:
    """`name` if it can be the name of limits; otherwise TypeError or ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"name={name!r}: must be a str, not {type(name).__name__}")
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise ValueError(f"name={name!r}: must be 1 to 200 printable characters")
    return name


def open_limiter(
    rate: Rate | None,
    max_calls: int | None,
    max_cost: float | None,
    coordinator: SharedLimits | None,
    cools: bool = False,
) -> RateLimiter | None:
    """The limiter of one task: shared with others by a coordinator if given; None where nothing is bounded.

    cools: whether cool-downs are to be shared, too, where there is a coordinator and nothing is bounded.

    Any thread; it belongs to the mailbox thread from its `start` on.
    """
    if rate is None and max_calls is None and max_cost is None and not (cools and coordinator is not None):
        return None
    return _opened(coordinator, rate, max_calls, max_cost)


def _opened(
    shared: SharedLimits | None, rate: Rate | None, max_calls: int | None, max_cost: float | None
) -> RateLimiter:
    if shared is None:
        return LocalLimiter(rate, max_calls, max_cost)
    return shared.open_for(rate, max_calls, max_cost)
