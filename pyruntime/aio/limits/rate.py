"""A rate of calls: the option `Rate`, token buckets, the limits of one task, and what tasks share theirs by.

`Rate` is a value without state: safe in any thread. A `TokenBucket` and `SlidingCounts` have neither a clock
nor a lock: they are used by one thread at a time, that of a task or of a coordinator. The limiters are
confined to the mailbox thread; their `admit` is on the way of every attempt: constant time, one reading of
the clock, nothing is allocated.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, Protocol

from pillarbox.aio.adaptive import Adaptive
from pillarbox.aio.limits.shared import SharedSlots
from pillarbox.aio.totals import clock_time
from pillarbox.kernel import PillarboxError
from pillarbox.providers import LEARNED_LIMITS, check_provided, provided
from pillarbox.validate import (
    Positive,
    check_bool,
    check_function_or_none,
    check_positive_number,
    naming_arguments,
)

# A bucket keeps its level and the time at which it was so, and computes what has come since when it is
# asked: a timer that adds tokens would wake each task up many times a second, and be late under load. A
# window of calls ("at most 50 in any second") needs the time of each of them, and lets twice the rate
# through around the border of a fixed window. Rounding errors add up if the level is changed by each look;
# so only a look that takes something moves the level and its time.

WAIT_MARGIN_S = 1e-6
"""Seconds added to every wait, so that rounding never brings a caller back too early."""

COOL_DOWN_S = 1.0
"""Seconds that calls are held back where no rate says how long."""

MAX_NAMES = 10_000
"""Names that a coordinator keeps what is shared under, at most, of each kind."""

SLOTS = 10
"""Parts of the time over which `SlidingCounts` counts."""


@naming_arguments
@dataclass(frozen=True)
class Rate:
    """Limit the calls per second, the units per minute, or both. A call begins when both have room for it.

    per_second: calls per second, retries included. None for no limit.
    units_per_minute: units per minute, such as the tokens of a language model (needs `weight`). None for no
        limit.
    weight: a function of the row that returns its units, 0 or more. It is called on the operator's thread.
    burst: seconds of the rate that may be used at once after a pause. One call may always begin; a call that
        weighs more than a whole burst begins when nothing is used, and the next calls wait for it.
    cool_down: seconds in which no call begins after an answer that means "overloaded" and gives no time.
    learn: True to learn the limits of the service from its answers, besides the limits given here; then none
        need be given. False to learn nothing. None, the default: False beside a limit. Without any `Rate`
        limits are learned where the function reports them, as the clients of `pillarbox.clients` do.

        >>> from pillarbox import Rate, async_map
        >>> async def call(text):
        ...     return text.upper()
        >>> list(async_map(["a", "b"], call, rate=Rate(100, units_per_minute=90_000, weight=len)))
        ['A', 'B']

    In any t seconds, at most (burst + t) x rate begins, or a single heavier call. Retries count as calls. The
    rate applies to each task, or with a `Coordinator` to all tasks together. The idea is the token bucket
    (Turner, "New directions in communications", 1986).

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    per_second: float | None = None
    units_per_minute: float | None = None
    weight: Callable[[Any], float] | None = None
    burst: float = 1.0
    cool_down: float = 1.0
    learn: bool | None = None

    def __post_init__(self) -> None:
        if self.learn is not None and check_bool("learn", self.learn):
            check_provided(LEARNED_LIMITS, "learn")
        if self.per_second is None and self.units_per_minute is None and self.learn is None:
            raise ValueError(
                "per_second=None, units_per_minute=None: at least one of the two must be given, or learn=True"
            )
        for name in ("per_second", "units_per_minute"):
            if getattr(self, name) is not None:
                check_positive_number(name, getattr(self, name))
        check_positive_number("burst", self.burst)
        check_positive_number("cool_down", self.cool_down)
        check_function_or_none("weight", self.weight)
        if (self.weight is None) != (self.units_per_minute is None) and not (self.weight and self.learn):
            raise ValueError(
                f"units_per_minute={self.units_per_minute!r}, weight={self.weight!r}: give both or neither: "
                "weight says how many units a row needs"
            )

    @property
    def has_limit(self) -> bool:
        """True if a limit is given here."""
        return self.per_second is not None or self.units_per_minute is not None

    def units_of(self, row: object) -> float:
        """The units of a row; 1.0 where nothing weighs rows.

        Raises what `weight` raises, and TypeError or ValueError where it gives no finite number of 0 or more.
        """
        if self.weight is None:
            return 1.0
        units = self.weight(row)
        if type(units) is not float and type(units) is not int:
            try:
                units = float(units)
            except (TypeError, ValueError):
                raise TypeError(f"weight gave {units!r}: must give a number of units, 0 or more") from None
        # Also false for what is not a number.
        if not 0.0 <= units < math.inf:
            raise ValueError(f"weight gave {units!r}: must give a finite number of units, 0 or more")
        return units


class TokenBucket:
    """Holds up to `capacity` tokens and gets `rate` of them a second. `now` is seconds of a monotonic clock.

    The level is kept, and the time at which it was so: differences of a clock add up without an error,
    so the rate is exact in the long run. What is heavier than the bucket may go when the bucket is full, and
    leaves a debt. So over t seconds at most max(capacity, heaviest) + rate x t is taken.
    """

    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float, level: float | None = None) -> None:
        self.rate = rate
        self.capacity = capacity
        self._level = capacity if level is None else level
        self._at = now

    def ready_in(self, amount: float, now: float) -> float:
        """0.0 if `amount` may be taken now, otherwise the seconds until then."""
        level = self._level + (now - self._at) * self.rate
        if level >= amount and amount <= self.capacity:
            return 0.0
        lacking = min(amount, self.capacity) - level
        return lacking / self.rate + WAIT_MARGIN_S if lacking > 0.0 else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, whether it is there or not."""
        level = self._level + (now - self._at) * self.rate
        self._level = (level if level < self.capacity else self.capacity) - amount  # noqa: FURB136 - min is slow
        self._at = now

    def give_back(self, amount: float, now: float) -> None:
        """As if `amount` had not been taken."""
        self.take(-amount, now)
        self._level = min(self._level, self.capacity)

    def keep(self, amount: float, now: float) -> None:
        """Let no more than `amount` be there."""
        self._level = min(self.level(now), amount)
        self._at = now

    def level(self, now: float) -> float:
        """Tokens that are there; below 0 for a debt."""
        return min(self._level + (now - self._at) * self.rate, self.capacity)


class SlidingCounts:
    """Counts of several kinds of events over the last `seconds`, to a tenth of it; `now` as in `TokenBucket`.

    A time for each event would be exact, and would need memory for each.
    """

    __slots__ = ("_per_second", "_rings", "_slot")

    def __init__(self, kinds: int, seconds: float, now: float) -> None:
        self._per_second = SLOTS / seconds
        self._rings = [[0] * SLOTS for _ in range(kinds)]
        self._slot = math.floor(now * self._per_second)

    def add(self, kind: int, now: float, count: int = 1) -> None:
        """Count so many events of a kind."""
        self._rings[kind][self._turn(now)] += count

    def totals(self, now: float) -> list[int]:
        """The events of each kind."""
        self._turn(now)
        return [sum(ring) for ring in self._rings]

    def snapshot(self, now: float) -> list[tuple[int, ...]]:
        """The events of all kinds in each slot, the present one last."""
        place = self._turn(now)
        order = [(place + 1 + step) % SLOTS for step in range(SLOTS)]
        return [tuple(ring[each] for ring in self._rings) for each in order]

    def restore(self, counts: list[tuple[int, ...]], now: float) -> None:
        """Count on from a snapshot, as if no time had passed."""
        place = self._turn(now)
        for step, slot in enumerate(counts):
            for ring, count in zip(self._rings, slot, strict=True):
                ring[(place + 1 + step) % SLOTS] += count

    def _turn(self, now: float) -> int:
        slot = math.floor(now * self._per_second)
        for passed in range(max(self._slot + 1, slot - SLOTS + 1), slot + 1):
            for ring in self._rings:
                ring[passed % SLOTS] = 0
        self._slot = slot
        return slot % SLOTS


# One protocol for limits of one task, of a coordinator and of a Redis, so that whoever makes calls does not
# know which it has. It never waits and allocates nothing: `admit` is on the way of every attempt. An
# `async` method would cost a coroutine for each call, most of which may begin at once; instead it gives the
# seconds to wait.


class LimiterStatistics(NamedTuple):
    """Counts of one limiter so far."""

    granted: int = 0
    """Calls let through."""
    units: float = 0.0
    """Units let through."""
    cost: float = 0.0
    """Cost reported by this task."""
    cool_downs: int = 0
    """Times that all calls were held back since the service asked for it."""


class RateLimiter(Protocol):
    """Lets calls begin. All methods are for the mailbox thread, and none of them waits."""

    @property
    def exhausted(self) -> str | None:
        """The limit that lets no call through any more, such as "max_calls=100"; None while some may."""

    @property
    def learned(self) -> Any:
        """The limits that the service has named, of this task or of the job; None for none. Any thread.

        A `NamedLimits`, of the ring that knows services.
        """

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Begin; `wake` is called on the loop's thread when `admit` is worth another call."""

    def admit(self, units: float = 1.0) -> float:
        """0.0 if a call of so many units may begin now, and counts; otherwise seconds until one asks again.

        `math.inf` where that is not known: `wake` will be called. Also `math.inf` when exhausted.
        Raises CoordinatorError if the server of the shared limits is lost for good: the job cannot go on.
        """

    def give_back(self, units: float) -> None:
        """A call of so many units was let through, and was not made: it counts for no `max_calls`."""

    def spend(self, cost: float) -> None:
        """A call has cost so much."""

    def learn(self, readings: Sequence[Any], age: float) -> None:
        """The service has named its limits in its answer to a call that began `age` seconds ago."""

    def use(self, units: float, usage: tuple[float, float, float], age: float) -> None:
        """A call of so many units that began `age` seconds ago has used tokens.

        usage: those of input, of output, and in all.
        """

    def cool_down(self, seconds: float | None) -> None:
        """The service is overloaded: nothing is let through for so long (None: for the default time)."""

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """So many calls, at that cost, were made before and count. Before `start`.

        name: what made them. Who shares the limits counts each name once, the first time.
        """

    def explain_now(self) -> str | None:
        """Say what holds calls back besides the rate, and until when; None for nothing."""

    def statistics(self) -> LimiterStatistics:
        """Counts so far. Any thread, as an estimate."""

    async def close(self) -> None:
        """End what runs; what was granted and not used is given back. Nothing is woken any more."""


def explain_cool_down(until: float | None, now: float) -> str | None:
    """Say that a cool-down holds calls back until then; None if it does not."""
    if until is None or until <= now:
        return None
    return f'a cool-down, after an answer that said "overloaded", until {clock_time(until - now)}'


class LocalLimiter:
    """A `RateLimiter` whose limits hold for one task. `clock` gives seconds and never goes back."""

    def __init__(
        self,
        rate: Rate | None,
        max_calls: int | None,
        max_cost: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.exhausted: str | None = None
        self._clock = clock
        self._max_calls = math.inf if max_calls is None else max_calls
        self._max_cost = math.inf if max_cost is None else max_cost
        self._default_cool_down = COOL_DOWN_S if rate is None else rate.cool_down
        self._requests: TokenBucket | None = None
        self._weights: TokenBucket | None = None
        now = clock()
        if rate is not None and rate.per_second is not None:
            self._requests = TokenBucket(rate.per_second, max(1.0, rate.per_second * rate.burst), now)
        if rate is not None and rate.units_per_minute is not None:
            per_second = rate.units_per_minute / 60.0
            self._weights = TokenBucket(per_second, per_second * rate.burst, now)
        # Past, unless a cool-down runs.
        self._cool_until: float | None = None
        self._granted = 0
        self._before = 0
        self._cost_before = 0.0
        self._units = 0.0
        self._cost = 0.0
        self._cool_downs = 0
        self._learned: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], None] = lambda: None
        # Whether a call was held back by what was learned: the next answer may say otherwise.
        self._is_held = False

    @property
    def learned(self) -> Any:
        """The `LearnedLimits` that the service has named; None before it has named one."""
        return self._learned

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `RateLimiter.start`. It wakes for what an answer says: its other waits are known beforehand."""
        self._loop, self._wake = loop, wake

    def admit(self, units: float = 1.0) -> float:
        """See `RateLimiter.admit`."""
        if self.exhausted is not None:
            return math.inf
        now = self._clock()
        if self._cool_until is not None:
            left = self._cool_until - now
            if left > 0.0:
                return left + WAIT_MARGIN_S
            self._end_cool_down(units, now)
        requests, weights, learned = self._requests, self._weights, self._learned
        if learned is not None:
            wait: float = learned.ready_in(units, now)
            if wait > 0.0:
                self._is_held = True
                return wait
        if weights is not None:
            wait = weights.ready_in(units, now)
            if wait > 0.0:
                return wait
        if requests is not None:
            wait = requests.ready_in(1.0, now)
            if wait > 0.0:
                return wait
            requests.take(1.0, now)
        if weights is not None:
            weights.take(units, now)
        if learned is not None:
            learned.begin(units, now)
        self._granted += 1
        self._units += units
        if self._granted + self._before >= self._max_calls:
            self.exhausted = f"max_calls={self._max_calls}"
        return 0.0

    def give_back(self, units: float) -> None:
        """See `RateLimiter.give_back`. What it took of the rate stays taken."""
        self._granted -= 1
        self._units -= units
        if self._learned is not None:
            self._learned.give_back(units, self._clock())
        if self._cost + self._cost_before < self._max_cost:
            self.exhausted = None

    def spend(self, cost: float) -> None:
        """See `RateLimiter.spend`."""
        self._cost += cost
        if self._cost + self._cost_before >= self._max_cost and self.exhausted is None:
            self.exhausted = f"max_cost={self._max_cost}"

    def learn(self, readings: Sequence[Any], age: float) -> None:
        """See `RateLimiter.learn`."""
        now = self._clock()
        if self._learned is None:
            self._learned = provided(LEARNED_LIMITS, "learn")()
        self._learned.observe(readings, now - age, now)
        if self._is_held and self._loop is not None:
            self._is_held = False
            # Not within the call that has just reported it.
            self._loop.call_soon(self._wake)

    def use(self, units: float, usage: tuple[float, float, float], age: float) -> None:
        """See `RateLimiter.use`."""
        if self._learned is not None:
            now = self._clock()
            self._learned.use(units, usage, now - age, now)

    def count_before(self, name: str, calls: int, cost: float) -> None:
        """See `RateLimiter.count_before`."""
        self._before, self._cost_before = calls, cost
        if calls >= self._max_calls:
            self.exhausted = f"max_calls={self._max_calls}"
        elif cost >= self._max_cost:
            self.exhausted = f"max_cost={self._max_cost}"

    def cool_down(self, seconds: float | None) -> None:
        """See `RateLimiter.cool_down`."""
        end = self._clock() + (self._default_cool_down if seconds is None else seconds)
        if self._cool_until is None or end > self._cool_until:
            self._cool_until = end
        self._cool_downs += 1

    def explain_now(self) -> str | None:
        """See `RateLimiter.explain_now`."""
        return explain_cool_down(self._cool_until, self._clock())

    def statistics(self) -> LimiterStatistics:
        """See `RateLimiter.statistics`."""
        return LimiterStatistics(self._granted, self._units, self._cost, self._cool_downs)

    async def close(self) -> None:
        """See `RateLimiter.close`. Nothing runs here."""

    def _end_cool_down(self, units: float, now: float) -> None:
        # spec: Feeding!CoolEnds
        self._cool_until = None
        # One call tries whether the service is well again. What has gathered meanwhile would be a burst.
        if self._requests is not None:
            self._requests.keep(1.0, now)
        if self._weights is not None:
            self._weights.keep(min(units, self._weights.capacity), now)


# -- limits that tasks share ---------------------------------------------------------------------

# Limits are plain numbers and compare as such: tasks that share a name must have the same, or the first of
# them would decide for all. They travel as fields of a message, not as pickles: a coordinator never
# unpickles anything that another process has sent.
#
# `RunBudget` wraps another `SharedLimits` instead of being an option of it, since a coordinator and limits of
# one task alone need it in the same way.


class CoordinatorError(PillarboxError):
    """Error of a job whose coordinator rejects it, or is unreachable for `patience` seconds.

        >>> import os
        >>> from pillarbox import Coordinator, Rate, async_map
        >>> from pillarbox.aio.limits.rate import CoordinatorError
        >>> async def call(row):
        ...     return row
        >>> os.environ["COORDINATOR_SECRET"] = "one of at least 32 characters: 0123456789"
        >>> absent = Coordinator.at("127.0.0.1", 1, secret_env="COORDINATOR_SECRET", patience=0.1)
        >>> try:
        ...     list(async_map([1], call, rate=Rate(5), limits=absent))
        ... except CoordinatorError as lost:
        ...     print(lost)
        no coordinator for patience=0.1 s at 127.0.0.1:1 ([Errno 111] Connection refused)

    Any thread.
    """


class Limits(NamedTuple):
    """Limits that are shared: plain numbers, the same for all who share them. None for no limit."""

    per_second: Positive | None = None
    units_per_second: Positive | None = None
    burst: Positive = 1.0
    cool_down: Positive = COOL_DOWN_S
    max_calls: Annotated[int, "more than 0", lambda value: value > 0] | None = None
    max_cost: Positive | None = None
    learn: bool = False

    @classmethod
    def of(cls, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> Limits:
        """The limits that the options of an operator give."""
        if rate is None:
            return cls(max_calls=max_calls, max_cost=max_cost, learn=True)
        units = None if rate.units_per_minute is None else rate.units_per_minute / 60.0
        learns = bool(rate.learn)
        return cls(rate.per_second, units, rate.burst, rate.cool_down, max_calls, max_cost, learns)

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


class AgreedNumber(Protocol):
    """The place where the tasks of a job agree on a number: the first one that is said holds. Picklable."""

    @property
    def name(self) -> str:
        """The name of the number."""

    async def agree(self, value: int) -> int:
        """Say `value`; returns the one that was said first. Raises ConnectionError."""


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

    def open_slots(self, calls: int | Adaptive) -> SharedSlots:
        """The slots of one task, of so many for all of them. Any thread; connects when it is started.

        Raises ValueError where only rates and budgets are shared.
        """
        raise ValueError(
            f"capacity=Shared({calls}): {type(self).__name__} shares no slots; give a Coordinator"
        )

    def open_facts(self) -> Any:
        """The way of a task's findings about endpoints to the others, a `SharedFacts`; None for none.

        Any thread.
        """
        return None

    def agreement(self, name: str) -> AgreedNumber | None:
        """The place where tasks agree on a number under `name`; None where there is none. Any thread."""
        return None


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

    def open_slots(self, calls: int | Adaptive) -> SharedSlots:
        """See `SharedLimits`. Raises ValueError where nothing is shared."""
        if self.shared is None:
            raise ValueError(f"capacity=Shared({calls}): needs limits, such as a Coordinator")
        return self.shared.open_slots(calls)

    def open_facts(self) -> Any:
        """See `SharedLimits`."""
        return None if self.shared is None else self.shared.open_facts()

    def named(self, name: str | None = None) -> RunBudget:
        """See `SharedLimits`."""
        return self if self.shared is None else replace(self, shared=self.shared.named(name))

    def agreement(self, name: str) -> AgreedNumber | None:
        """See `SharedLimits`."""
        return None if self.shared is None else self.shared.agreement(name)


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
    clock: Callable[[], float] = time.monotonic,
) -> RateLimiter | None:
    """The limiter of one task: shared with others by a coordinator if given; None where nothing is bounded.

    cools: whether cool-downs are to be shared, too, where there is a coordinator and nothing is bounded.
    clock: the seconds by which limits of this task alone go.

    Any thread; it belongs to the mailbox thread from its `start` on.
    """
    learns = rate is None or bool(rate.learn)
    is_shared = coordinator is not None and (cools or learns)
    has_limit = rate is not None and rate.has_limit
    if not has_limit and max_calls is None and max_cost is None and not is_shared:
        return None
    return _opened(coordinator, rate, max_calls, max_cost, clock)


def _opened(
    shared: SharedLimits | None,
    rate: Rate | None,
    max_calls: int | None,
    max_cost: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> RateLimiter:
    if shared is None:
        return LocalLimiter(rate, max_calls, max_cost, clock)
    return shared.open_for(rate, max_calls, max_cost)


def learning_limiter(
    clock: Callable[[], float], loop: asyncio.AbstractEventLoop, wake: Callable[[], None]
) -> RateLimiter:
    """Return a limiter of one task, started, that has no limits but those it learns: see `open_limiter`."""
    limiter = LocalLimiter(None, None, None, clock)
    limiter.start(loop, wake)
    return limiter
