"""Limits that a service enforces, learned from its answers: how many calls and tokens are left, for whom.

A `LearnedLimits` has neither a clock nor a lock: one thread at a time uses it, that of a task or of a
coordinator. All times are seconds of one monotonic clock.
"""

# A quota is a mirror of the service's own account. Each answer says what was left when it was made; what has
# begun since is taken off, by estimate, and given back when the usage is known. The next answer corrects
# whatever was wrong. So an estimate need not be good, and nobody counts what the service counts: a pace that
# is computed from the limit alone drifts from the service's account by all that others use of it.
#
# Services count in two ways, and their headers do not say in which. In a *bucket* calls come back one by one,
# and the time that is said is the one until all are back: (limit - remaining) / rate. In a *window* all come
# back at once, at the time that is said. The times of two answers tell them apart: as time passes that of a
# window falls as fast; that of a bucket follows what is left. Taking one for the other either starves calls
# for the rest of a window or has a window's calls refused.
#
# Others use the same account: other tasks of the job without a coordinator, other jobs. Each task sees what
# all have used, by what is left, and knows what it has used itself: so it knows its share, and takes that
# part of what is left and of what comes back. The shares add up to 1 as all measure the same sum. A small
# addition to each draws unequal shares together.
#
# A reserve stays: answers are on their way while others begin. In a bucket that costs nothing, since the rate
# at which calls come back is the same at any level; in a window it is lost, and so is small.

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pillarbox.aio.limits.headers import FINE_S, LimitKind, LimitReading

ROUNDING_S = 1e-6
"""Seconds added to a wait, so that rounding never brings a caller back too early."""

BUCKET_RESERVE = 0.05
"""The part of a bucket that is left alone."""
WINDOW_RESERVE = 0.015
"""The part of a window's calls that is left alone."""
FIRST_SHARE = 0.25
"""The share of a task of which nothing is measured, where others may use the same account."""
LEAST_SHARE = 0.01
"""No task has less: it could not learn that there is more."""
EVEN_OUT = 0.08
"""The part of a measured share that is given up; what all get alike draws unequal shares together."""
EVEN_SHARE = 0.013
"""The share that all get alike."""
SHARE_PERIOD_S = 2.0
"""Seconds over which a share is measured, at least."""
SAMPLE_S = 3.0
"""Seconds between two answers whose times are compared, at least: many times are whole seconds."""
WINDOW_PACE = 3.0
"""The pace in a window, as a multiple of the one that would use it up at its end: all at once is not polite,
and much is on its way when little is left."""
PACE_BURST_S = 0.1
"""Seconds of that pace that may begin at once."""
TURN_SHARE = 0.1
"""The part of a new window that may begin before an answer says that it is one."""
UNSEEN_ESTIMATE = 0.01
"""The part of a limit that a call of unknown weight is reserved."""
MEAN_CALLS = 512
"""Calls over which the mean weight is taken, about."""
CERTAIN = 2.0
"""The standard deviations by which what runs may be heavier than its estimate."""
MAX_CHANGES = 4
"""Limits that a service may name in turn within `CHANGES_S`: more are those of several services."""
CHANGES_S = 120.0
UNPROVEN_HOLD_S = 60.0
"""Seconds for which calls are held back because of headers alone; then one finds out."""
MARKS = 1024
"""Times at which it is known how much had begun by then."""
MARK_S = 0.005
"""Seconds between two of them, at least."""
MAX_QUOTAS = 16
"""Limits of one service that are followed."""


class _Begun:
    """Calls and tokens that have begun since the beginning, and how many had by a time."""

    __slots__ = ("_at", "_sums", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self._at: deque[float] = deque(maxlen=MARKS)
        self._sums: deque[float] = deque(maxlen=MARKS)

    def add(self, amount: float, now: float) -> None:
        self.total += amount
        if self._at and now - self._at[-1] < MARK_S:
            self._sums[-1] = self.total
        else:
            self._at.append(now)
            self._sums.append(self.total)

    def correct(self, amount: float, began: float) -> None:
        """Correct by `amount` the estimate of calls that began at a time."""
        self.total += amount
        for place in range(len(self._at) - 1, -1, -1):
            if self._at[place] < began - MARK_S:
                break
            self._sums[place] += amount

    def by(self, then: float) -> float:
        """The sum at a time, at most; that of the oldest known time for one before it."""
        place = bisect_right(self._at, then + 1e-9)
        return self._sums[place - 1] if place else self._sums[0] if len(self._at) == MARKS else 0.0


class Quota:
    """One limit of a service: what this user of the account may still begin of it.

    share: of the account, at first. `is_unsteady`: what is said of it contradicts itself; it is not followed.
    """

    __slots__ = (
        *("_answered_from", "_bucket", "_changed_at", "_changes", "_level", "_level_at", "_longest_reset"),
        *("_next_at", "_period", "_sample", "begun", "is_unsteady", "is_used_up", "kind", "limit", "rate"),
        *("share", "total_rate", "turn_at"),
    )

    def __init__(self, reading: LimitReading, share: float, now: float) -> None:
        self.kind: LimitKind = reading.kind
        self.limit = reading.limit
        self.share = share
        self.begun = _Begun()
        self.is_unsteady = self.is_used_up = False
        self.rate: float | None = None
        """Calls or tokens that come back each second, of a bucket; None while that is not known."""
        self.turn_at = math.inf
        """The time at which a window's calls come back."""
        self.total_rate = 0.0
        """Calls or tokens a second of all users of the account, as measured last."""
        # From -1, a window, to 1, a bucket.
        self._bucket = 0.0
        self._level = 0.0
        self._level_at = now
        # The longest time until a turn that was said, which is about that of a window; what begins next.
        self._longest_reset = 0.0
        self._next_at = -math.inf
        self._answered_from = -math.inf
        self._changes, self._changed_at = 0, now
        # An answer to compare the next ones with: time, remaining, reset.
        self._sample: tuple[float, float, float] | None = None
        # The beginning of the period of a share: time, remaining, begun by then.
        self._period: tuple[float, float, float] | None = None

    @property
    def is_bucket(self) -> bool:
        """True if calls come back one by one."""
        return self._bucket > 0.0 and self.rate is not None

    @property
    def kept_back(self) -> float:
        """The part of the limit that is left alone."""
        return self.limit * BUCKET_RESERVE if self.is_bucket else math.floor(self.limit * WINDOW_RESERVE)

    @property
    def _most(self) -> float:
        return self.share * (self.limit - self.kept_back)

    def level(self, now: float) -> float:
        """The amount that may begin now; below 0 where more has begun than should have."""
        if self.is_bucket and self.rate is not None:
            back = (now - self._level_at) * self.rate * self.share
            return min(self._level + back, max(self._most, self._level))
        if now >= self.turn_at:
            self._level = max(self._level, self._most * TURN_SHARE, 1.0 if self.kind == "requests" else 0.0)
            self._level_at = now
            self.turn_at = math.inf
        return self._level

    def ready_in(self, amount: float, now: float) -> float:
        """0.0 if `amount` may begin now, otherwise the seconds after which to ask again."""
        level = self.level(now)
        if self._next_at > now and not self.is_bucket:
            return self._next_at - now + ROUNDING_S
        # What is heavier than all of it may begin when nothing else does.
        lacking = min(amount, max(self._most, 0.0)) - level
        if lacking <= 1e-9:
            return 0.0
        if self.is_bucket and self.rate is not None:
            return lacking / (self.rate * self.share) + ROUNDING_S
        return max(self.turn_at - now, 0.0) + ROUNDING_S if self.turn_at < math.inf else math.inf

    @property
    def left(self) -> float:
        """The amount that may begin, as known when it was last asked for. Any thread, as an estimate."""
        return max(0.0, self._level)

    def reserve(self, amount: float, now: float) -> None:
        """`amount` is to begin soon, or, below 0, is not to begin after all."""
        level = self.level(now)
        self._level, self._level_at = level - amount, now
        if self._longest_reset > 0.0 and amount > 0.0:
            pace = WINDOW_PACE * self.share * self.limit / self._longest_reset
            self._next_at = max(self._next_at, now - PACE_BURST_S) + amount / pace

    def correct(self, amount: float, began: float, now: float) -> None:
        """Correct by `amount` the estimate of calls that began at a time."""
        if began > self._answered_from:
            # No answer has told it yet.
            self._level, self._level_at = self.level(now) - amount, now
        self.begun.correct(amount, began)

    def observe(
        self, reading: LimitReading, began: float, now: float, *, held: float, mean: float, spread: float
    ) -> None:
        """Take what an answer says to a call that began at `began`.

        held: the amount that is reserved for calls that have not begun. mean, spread: of what calls use, and
        its standard deviation.
        """
        if reading.limit != self.limit:
            self._change(reading, now)
        if self.is_unsteady or began < self._answered_from:
            return
        self._answered_from = began
        left, reset = reading.remaining, reading.reset
        self.is_used_up = left < 1.0
        if reset is None:
            # What comes back in a window of so many seconds, at the latest.
            assert reading.window is not None
            self._bucket, self.rate = 1.0, self.limit / reading.window
        else:
            self._compare(left, reset, now)
            self._longest_reset = max(self._longest_reset, reset)
            self.turn_at = now + reset + max(reading.resolution, FINE_S)
        self._measure(left, began, now)
        since = max(0.0, self.begun.total - self.begun.by(began)) + held
        unsure = 0.0
        if mean > 0.0:
            # What others have begun since is known by this user's share alone.
            others = self.share * mean**2 if self.share < 1.0 else 0.0
            unsure = CERTAIN * math.sqrt((spread**2 + others) * since / mean)
        self._level = self.share * (left - self.kept_back) - since - unsure
        self._level_at = now

    def _change(self, reading: LimitReading, now: float) -> None:
        """Another limit is said: of a raised one all is new; limits in turn are those of several services."""
        if now - self._changed_at > CHANGES_S:
            self._changes = 0
        self._changes += 1
        self._changed_at = now
        self.is_unsteady = self._changes > MAX_CHANGES
        self.limit = reading.limit
        self.rate, self._sample, self._period = None, None, None
        self._longest_reset = 0.0
        self._bucket = 0.0

    def _compare(self, left: float, reset: float, now: float) -> None:
        """Find out whether this is a bucket or a window, and how fast the bucket fills."""
        used = self.limit - left
        if used > 0.01 * self.limit and reset > 0.0:
            rate = used / reset
            # Times in whole seconds are rough, above all short ones.
            weight = min(0.2, used / self.limit)
            self.rate = rate if self.rate is None else self.rate + weight * (rate - self.rate)
        if self._sample is None:
            self._sample = now, left, reset
            return
        then, left_then, reset_then = self._sample
        passed = now - then
        if passed < SAMPLE_S:
            return
        self._sample = now, left, reset
        used_then = self.limit - left_then
        if used_then <= 0.01 * self.limit:
            return
        of_window = abs(reset - (reset_then - passed))
        of_bucket = abs(reset - used * reset_then / used_then)
        if abs(of_window - of_bucket) > 0.25 * min(passed, 2.0):
            self._bucket += 0.25 * ((1.0 if of_bucket < of_window else -1.0) - self._bucket)

    def _measure(self, left: float, began: float, now: float) -> None:
        """Measure the share of this user in all that was used of the account."""
        begun = self.begun.by(began)
        if self._period is None:
            self._period = now, left, begun
            return
        then, left_then, begun_then = self._period
        passed = now - then
        total = left_then - left
        if self.is_bucket and self.rate is not None:
            if left >= 0.999 * self.limit:
                # It runs over, and nobody knows by how much.
                self._period = now, left, begun
                return
            total += self.rate * passed
        elif total < 0.0:
            # A window has turned.
            self._period = now, left, begun
            return
        own = begun - begun_then
        if passed < SHARE_PERIOD_S or max(total, own) < 0.003 * self.limit:
            return
        self._period = now, left, begun
        self.total_rate = max(total, own) / passed
        measured = min(1.0, max(own, 0.0) / max(total, own, 1e-9))
        measured = measured * (1.0 - EVEN_OUT) + EVEN_SHARE
        self.share = max(LEAST_SHARE, self.share + 0.5 * (measured - self.share))


class NamedLimits(Protocol):
    """The limits that a service has named, as far as is known. Any thread."""

    def named(self) -> dict[LimitKind, tuple[float, float]]:
        """Each kind of limit with its amount and what is left of it; without those that are not known."""


class LearnedLimits:
    """The limits of one service, as its answers have said them so far; none at first.

    is_alone: True where nobody else uses the account, as far as is known: for a coordinator.

        >>> from pillarbox.aio.limits.headers import LimitReading
        >>> from pillarbox.aio.limits.learned import LearnedLimits
        >>> limits = LearnedLimits(is_alone=True)
        >>> limits.ready_in(1.0, now=0.0)
        0.0
        >>> limits.begin(1.0, now=0.0)
        >>> limits.observe([LimitReading("requests", 60.0, 0.0, 30.0)], began=0.0, now=1.0)
        >>> round(limits.ready_in(1.0, now=1.0))
        31
    """

    __slots__ = ("_begun_at", "_calls", "_first_share", "_held", "_means", "_quotas", "_squares", "_units")

    def __init__(self, *, is_alone: bool = False) -> None:
        self._first_share = 1.0 if is_alone else FIRST_SHARE
        self._quotas: dict[tuple[LimitKind, str], Quota] = {}
        # Tokens of a unit, in the mean; by kind, where usage was reported.
        self._means: dict[LimitKind, float] = {}
        # The squares of how far calls are from it, for a unit, in the mean.
        self._squares: dict[LimitKind, float] = {}
        self._calls = 0.0
        self._units = 1.0
        # Calls for which there is a reservation and that have not begun, and their units.
        self._held: tuple[int, float] = 0, 0.0
        self._begun_at = -math.inf

    @property
    def quotas(self) -> list[Quota]:
        """The limits that are followed."""
        return [quota for quota in self._quotas.values() if not quota.is_unsteady]

    def ready_in(self, units: float, now: float) -> float:
        """0.0 if a call of so many units may begin now, otherwise the seconds after which to ask again."""
        wait = 0.0
        for quota in self._quotas.values():
            if not quota.is_unsteady:
                wait = max(wait, quota.ready_in(self.estimate(quota, units), now))
        if wait == 0.0:
            return 0.0
        # Headers may be wrong, or another service's: a call finds out.
        return min(wait, max(0.0, self._begun_at + UNPROVEN_HOLD_S - now))

    def room(self, units: float, now: float) -> float:
        """Calls of so many units that may begin now; infinite where nothing limits them."""
        rooms = [
            max(0.0, quota.level(now)) / max(self.estimate(quota, units), 1e-9)
            for quota in self._quotas.values()
            if not quota.is_unsteady
        ]
        return min(rooms, default=math.inf)

    def reserve(self, units: float, now: float, calls: int = 1) -> None:
        """Calls of so many units each are to begin soon: what they will use is reserved, by estimate."""
        self._begun_at = now
        self._hold(calls, calls * units)
        self._units += (units - self._units) / MEAN_CALLS
        for quota in self._quotas.values():
            quota.reserve(calls * self.estimate(quota, units), now)

    def note_begun(self, units: float, now: float, calls: int = 1) -> None:
        """Calls for which there was a reservation begin."""
        self._hold(-calls, -calls * units)
        for quota in self._quotas.values():
            quota.begun.add(calls * self.estimate(quota, units), now)

    def _hold(self, calls: int, units: float) -> None:
        held = self._held
        self._held = max(0, held[0] + calls), max(0.0, held[1] + units)

    def begin(self, units: float, now: float) -> None:
        """A call begins now."""
        self.reserve(units, now)
        self.note_begun(units, now)

    def give_back(self, units: float, now: float, calls: int = 1) -> None:
        """Calls for which there was a reservation do not begin."""
        self._hold(-calls, -calls * units)
        for quota in self._quotas.values():
            quota.reserve(-calls * self.estimate(quota, units), now)

    def use(
        self, units: float, usage: tuple[float, float, float], began: float, now: float, calls: int = 1
    ) -> None:
        """Calls of so many units in all have used tokens; what was reserved beyond them is given back.

        usage: tokens of input, of output, and in all. began: when the calls began, about.
        """
        input_tokens, output_tokens, tokens = usage
        tokens = tokens or input_tokens + output_tokens
        if tokens <= 0.0 or units <= 0.0:
            return
        used = {"tokens": tokens, "input-tokens": input_tokens, "output-tokens": output_tokens}
        for quota in self._quotas.values():
            if quota.kind in used:
                quota.correct(used[quota.kind] - calls * self.estimate(quota, units / calls), began, now)
        self._calls = min(self._calls + calls, MEAN_CALLS)
        for kind, amount in used.items():
            weight, each = min(1.0, calls / self._calls), amount / units
            mean = self._means.get(kind, each)
            self._means[kind] = mean + (each - mean) * weight
            # The mean of several differs less than each of them.
            square, before = (each - mean) ** 2 * calls, self._squares.get(kind, 0.0)
            self._squares[kind] = before + (square - before) * weight

    def observe(self, readings: Sequence[LimitReading], began: float, now: float) -> None:
        """Take the limits that an answer names to a call that began at `began`."""
        for reading in readings:
            key = reading.kind, reading.partition
            quota = self._quotas.get(key)
            if quota is None:
                if len(self._quotas) == MAX_QUOTAS:
                    continue
                quota = self._quotas[key] = Quota(reading, self._first_share, now)
                # Calls of before, of which nobody has kept a count.
                quota.begun.add(0.0, began)
            mean = self.estimate(quota, self._units)
            spread = math.sqrt(self._squares.get(quota.kind, 0.0)) * self._units
            held = self._held[0] if quota.kind == "requests" else self.estimate(quota, self._held[1])
            quota.observe(reading, began, now, held=held, mean=mean, spread=spread)
        self._begun_at = max(self._begun_at, began)

    def estimate(self, quota: Quota, units: float) -> float:
        """The amount of a limit that a call of so many units will use."""
        if quota.kind == "requests":
            return 1.0
        mean = self._means.get(quota.kind)
        if mean is None:
            calls = self._quotas.get(("requests", ""))
            if quota.total_rate > 0.0 and calls is not None and calls.total_rate > 0.0:
                # By what the service counts of all.
                mean = quota.total_rate / calls.total_rate / max(self._units, 1e-9)
            else:
                return quota.limit * UNSEEN_ESTIMATE
        return mean * units

    def named(self, now: float | None = None) -> dict[LimitKind, tuple[float, float]]:
        """See `NamedLimits`; of several of a kind the scarcest.

        now: None in another thread, for an estimate.
        """
        found: dict[LimitKind, tuple[float, float]] = {}
        for quota in [*self._quotas.values()]:
            left = quota.left if now is None else max(0.0, quota.level(now))
            known = found.get(quota.kind)
            if not quota.is_unsteady and (known is None or left < known[1]):
                found[quota.kind] = quota.limit, left
        return found

    def gone_for(self, now: float) -> float:
        """Seconds until calls come back of a limit of which nothing is left; 0.0 where some is left."""
        # Of a bucket some come back long before it is full.
        gone = [quota for quota in self.quotas if quota.is_used_up and not quota.is_bucket]
        return max([quota.turn_at - now for quota in gone if quota.turn_at < math.inf], default=0.0)
