"""Calls in flight, where their number is not given: the controller that finds it for an `Adaptive`.

A controller belongs to one operator and its mailbox thread.
"""

# The controller looks for the knee of a service: the calls in flight above which more of them only wait. A
# service shows it in one of two ways. One with a queue becomes slower: latency x limit / latency without a
# queue is the knee, as by Little's law the calls that do not wait are those that the service works on. One
# without refuses (503), and the limit stays just below what was refused.
#
# The latency without a queue is the difficulty: it changes, and the calls of a full service do not show it.
# So a latency that is too long is never believed at once. The limit is lowered for a window (a "look"): where
# the latency falls, calls have waited; where it does not, the service is slower, and the limit is put back.
# A limit that was lowered by each long latency would go to nothing once the measured one is too short.
#
# At the start there is no such latency: of a service with fewer places than the limit begins with, calls wait
# from the first on, and their latency is taken for one without a queue. So the first look is a deep one, to a
# quarter of the calls, while the limit is at most twice the start. Each look ends as soon as it is sure that
# those that are left may wait as well, and the next has fewer.
#
# A refusal that is about a rate (429) says nothing about calls in flight: one call after the other may be too
# many a second. It does not come here where calls have a pace (`pillarbox.aio.policies.pace`).

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from pillarbox.aio.adaptive import Adaptive

MIN_SAMPLES = 8
"""Latencies that a mean is made of, at least."""
MAX_SAMPLES = 64
"""Latencies, and as many as calls may be in flight, after which a mean is taken however they vary."""
KNOWN_WITHIN = 0.05
"""Standard error of a mean, as a share of it, that needs no more latencies."""
FULL_SHARE = 0.75
"""Share of the limit that must have been in flight for the limit to be raised."""
TARGET = 1.1
"""Times the knee at which the limit is kept: a short queue, so that the service is never without work."""
TRIGGER = 1.3
"""Times the knee above which the limit is looked at."""
LOOK_SHARE = 0.7
"""Share of the calls that are in flight while the latency without a queue is measured, at most."""
LEAST_LOOK_SHARE = 0.25
"""The same at least: as many are meant to be in flight as do not wait."""
UNSURE_TIMES = 2
"""Times the start up to which the latencies while the limit doubles may be of calls that waited already."""
NEXT_LOOK_SHARE = 0.5
"""The same of those that are left, where they may wait as well."""
SHOWS_SHARE = 0.76
"""The same above which a latency that falls shows nothing about those that are left."""
LONG = 1.6
"""Times the latency of the calls before, above which those are of another time."""
LOOK_SAMPLES = 32
"""Latencies, and as many as are in flight then, after which their mean is taken however they vary."""
NOT_FULL = 0.9
"""Share of a limit that calls without a wait must fill for it to go on doubling after a look."""
WAITS_CERTAIN = 2.0
"""Standard errors by which a latency must be short for a look to need no more latencies."""
WAITS_STILL = 0.25
"""Of the way from a latency that falls as the calls do to one that does not: up to it the others may wait."""
MAX_WINDOW = 256
"""Latencies after which a window is over in which nothing has changed."""
CERTAIN = 3.0
"""Standard errors beyond which a latency is another."""
LOOK_AFTER_TRIPS = 250.0
"""Round trips after which it is measured again, whatever the latency is."""
FIRST_LOOK_TRIPS = 16.0
"""The same after the latency was found to be another; then for twice as long each time."""
MAX_SHARE = 0.1
"""Share of the calls of a window that may fail beyond what usually fails, or be refused by a full server."""
MIN_REFUSALS = 5
"""Refusals in a window, at least: fewer may be chance, whatever share they are."""
CUTS = (0.95, 0.9, 0.8, 0.7)
"""Shares of the limit that are left by the first cut, and by those behind it without a round trip between."""
ERROR_CUT = 0.7
"""Share of the limit that more errors than usual leave."""
MAX_HELD_WINDOWS = 4
"""Windows for which the limit stays below what was refused, at most; doubled when it is refused again."""
FAR_SHARE = 0.75
"""Share of a limit that was refused below which no latency but a long one holds back the limit."""
HELD_CALLS = 32.0
"""Calls of such a window, at least: smaller ones are counted together."""
MIN_BESIDE = 4
"""Slots beside the limit for calls that seem never to end, at most; as many as the limit, if that is more."""
SMALL_STEP = 0.2
"""Share by which a limit may change without a round trip that is not measured."""
SAME_KNEE = 0.05
"""Share by which two refused limits differ, at most, to be of one knee."""
SAME_MOMENT_S = 1e-6
"""Seconds after a change within which a call that begins, as is computed, may have begun before it."""


class Ended(NamedTuple):
    """Attempts that ended together, as far as is known, in one way.

    at: the time at which the last of them ended. seconds, squares: sums of their seconds, and of the squares.
    """

    calls: int
    at: float
    seconds: float
    squares: float

    @property
    def began(self) -> float:
        """The time at which they began, in the mean of those that ended last."""
        return self.at - self.seconds / self.calls


class _Failures:
    """The errors of the last outcomes, beside those that are usual."""

    __slots__ = ("_errors", "_outcomes", "_usual")

    def __init__(self) -> None:
        self._outcomes = self._errors = 0
        self._usual = 0.0

    def ended(self, limit: int, calls: int, failed: bool) -> bool:
        """Count attempts that have ended; True if more failed than usually do. limit: calls in flight."""
        self._outcomes += calls
        self._errors += calls if failed else 0
        if self._outcomes < max(MAX_SAMPLES, limit):
            return False
        share = self._errors / self._outcomes
        # Twice what chance makes of so few.
        chance = 2 * math.sqrt(share * (1 - share) / self._outcomes)
        is_sign = share > self._usual + MAX_SHARE + chance
        self._usual += (share - self._usual) / 4
        self._outcomes = self._errors = 0
        return is_sign


class _Window:
    """The calls that ended since `since`, which is put off until `too_many` have ended.

    A latency is had by Little's law, of the calls that may be in flight: those that ended are the short ones
    of those that began. Refusals count of calls only that began behind the change of the limit. Seconds.
    """

    __slots__ = (
        "_changed",
        "_marked",
        "_squares",
        "_sum",
        "_too_many",
        "answered",
        "due",
        "last",
        "refused",
        "since",
    )

    def __init__(self, now: float, limit: int, too_many: int = 0) -> None:
        self.since = self.last = self._changed = now
        self._too_many = too_many
        self.answered = self.refused = 0
        self._sum = self._squares = 0.0
        self._marked = 0, now
        self.due = limit
        """Answers after which it is judged."""

    def has(self, began: float) -> bool:
        """Return True if a call that began then began behind the change of the limit."""
        return began > self._changed + SAME_MOMENT_S

    def add(self, ended: Ended) -> None:
        """Count answers."""
        calls, at, seconds, squares = ended
        if self._too_many > 0:
            if at >= self.since:
                self._too_many -= calls
                self.since = at
        elif at > self.since + SAME_MOMENT_S:
            self.answered += calls
            self.last = max(self.last, at)
            self._sum += seconds
            self._squares += squares

    def is_used(self, limit: int) -> bool:
        """Return True if so many calls were in flight, or nearly."""
        return self._sum >= FULL_SHARE * limit * (self.last - self.since)

    def latency(self, limit: int) -> tuple[float, float]:
        """Seconds of a call, and their standard error."""
        count = self.answered
        mean = self._sum / count
        error = math.sqrt(max(0.0, self._squares / count - mean * mean) / count)
        by_law = limit * (self.last - self.since) / count if self.is_used(limit) else mean
        # While more are in flight than may be, as after a cut, more of them end.
        return (by_law if by_law >= mean - CERTAIN * error else mean), error

    def mark(self, limit: int) -> None:
        """Note that it was judged, and goes on until as many more have ended."""
        self._marked = self.answered, self.last
        # Of two calls at a time, two latencies that are long by chance would begin the window anew and anew.
        self.due = self.answered + max(limit, MIN_SAMPLES)

    def is_slower(self, limit: int, error: float) -> bool:
        """Return True if the calls since the last mark were slower than those before, beyond chance.

        error: the standard error of the latency of the whole window, in seconds.
        """
        count, at = self._marked
        if count == 0 or not self.is_used(limit):
            return False
        before = (at - self.since) / count
        later = self.answered - count
        chance = CERTAIN * error * math.sqrt(self.answered / later) / limit
        return (self.last - at) / later > max(LONG * before, before + chance)

    def is_refused(self, limit: int) -> bool:
        """Return True if more are refused than is borne, of those that ended and that are in flight."""
        calls = self.answered + self.refused + limit
        borne = MAX_SHARE * calls
        return self.refused >= MIN_REFUSALS and self.refused > borne + 2 * math.sqrt(borne * (1 - MAX_SHARE))


class _Look(NamedTuple):
    """A measurement with fewer calls: the limit and seconds of a call before it, and before its last step.

    was_doubling: True if the limit doubled until then.
    """

    limit: int
    seconds: float
    limit_before: int
    seconds_before: float
    was_doubling: bool


class _Ceiling:
    """The limit that the service has refused, and for how long none so high is tried."""

    __slots__ = ("_held", "_last", "_step", "_windows", "limit")

    def __init__(self) -> None:
        self.limit = self._last = math.inf
        self._windows = 1
        self._held = 0
        self._step = 1.0

    def refused(self, limit: int) -> None:
        """Note that a limit was refused; a second time, it is not tried again for twice as long."""
        is_same = abs(limit - self._last) <= max(1.0, SAME_KNEE * self._last)
        self._windows = min(2 * self._windows, MAX_HELD_WINDOWS) if is_same else 1
        self.lower(limit)
        self._last = float(limit)

    def lower(self, limit: int) -> None:
        """Have the limit grow slowly near `limit`."""
        self.limit = float(limit)
        self._held = 0
        self._step = 1.0

    def is_far(self, limit: float) -> bool:
        """Return True if nothing near the limit was refused."""
        return limit < self.limit - 1.0

    def next(self, limit: float) -> float:
        """Return the limit that follows one that was answered for a window."""
        room = self.limit - 1.0
        if limit < room:
            # Half of the way: quick where it is far, and one by one near what was refused.
            return limit if room == math.inf else min(room, limit + max(1.0, (room - limit) / 2))
        self._held += 1
        # Each try is refused some times: of a small service, whose windows have few calls, one call in five.
        if self._held < self._windows * HELD_CALLS / max(MIN_SAMPLES, limit):
            return limit
        self.limit = math.inf
        return limit + 1.0

    def beyond(self, limit: float) -> float:
        """Return the limit that follows one above what was refused: in steps that double."""
        self._step *= 2.0
        return limit + self._step


class AdaptiveController:
    """Finds one limit by the attempts that have ended. On the mailbox thread.

    How many calls were in flight it knows by Little's law: the latencies that ended in some time, summed,
    divided by that time.
    """

    def __init__(self, options: Adaptive, clock: Callable[[], float]) -> None:
        self.limit = options.start
        """Calls that may be in flight now."""
        self.round_trip = math.inf
        """Seconds of a call, as far as known."""
        self._options = options
        self._clock = clock
        self._exact = float(options.start)
        self._doubling = True
        self._failures = _Failures()
        self._window = _Window(clock(), options.start, options.start)
        self._ceiling = _Ceiling()
        # Seconds of a call that does not wait.
        self._base = math.inf
        self._based_on = 0
        # While it is measured.
        self._look: _Look | None = None
        self._look_at = math.inf
        self._look_trips = LOOK_AFTER_TRIPS
        # Cuts without a round trip between.
        self._cuts = 0

    def slots(self, stuck: int) -> int:
        """Calls that may be in flight, where so many of them seem never to end: these have slots beside."""
        # spec: Adaptive!Find
        # A look does not take theirs: it would never end where all calls that are left hang.
        found = self.limit if self._look is None else self._look.limit
        return min(self.limit + min(stuck, max(MIN_BESIDE, found)), self._options.most)

    def succeeded(self, seconds: float) -> None:
        """Note that an attempt succeeded after so many seconds."""
        self.answered(Ended(1, self._clock(), seconds, seconds * seconds))

    def answered(self, ended: Ended) -> None:
        """Note that attempts succeeded, which ended now or some time ago, one after the other."""
        window = self._window
        # At a later moment: of calls that end at once, all count or none.
        if window.answered >= window.due and ended.at > window.last + SAME_MOMENT_S:
            self._judge(window, self._clock())
            window = self._window
        window.add(ended)
        if window.has(ended.began) and self._failures.ended(self.limit, ended.calls, False):
            self._cut(self._clock(), ERROR_CUT)

    def failed(self, overloaded: bool, seconds: float | None = None) -> None:
        """Note that an attempt failed; `overloaded` if the service said that it is full.

        seconds: how long it was in flight; None where that is not known, then as long as others.
        """
        if seconds is None:
            seconds = 0.0 if self.round_trip == math.inf else self.round_trip
        self.unanswered(overloaded, Ended(1, self._clock(), seconds, seconds * seconds))

    def unanswered(self, overloaded: bool, ended: Ended) -> None:
        """Note that attempts failed, which ended now or some time ago: see `failed`."""
        window = self._window
        # A call that began before the last change says nothing about the limit that is now.
        if not window.has(ended.began):
            return
        if not overloaded:
            window.add(ended)
            if self._failures.ended(self.limit, ended.calls, True):
                self._cut(self._clock(), ERROR_CUT)
            return
        # spec: Adaptive!Refuse
        window.refused += ended.calls
        if window.is_refused(self.limit):
            self._refused(self._clock())

    # -- a window is over ------------------------------------------------------------------------

    def _judge(self, window: _Window, now: float) -> None:
        count = window.answered
        seconds, error = window.latency(self.limit)
        if window.is_slower(self.limit, error):
            # What was before it would hide it.
            self._window = _Window(now, self.limit)
            return
        window.mark(self.limit)
        is_known = count >= MIN_SAMPLES and error <= KNOWN_WITHIN * seconds
        self.round_trip = seconds
        self._cuts = 0
        if self._look is not None:
            # That those that are left may wait too is shown by less than how long they take.
            waits = count >= MIN_SAMPLES and self._may_wait(self._look, seconds + WAITS_CERTAIN * error)
            if is_known or waits or count >= LOOK_SAMPLES:
                self._end_look(self._look, seconds, error, count, now)
            return
        used = window.is_used(self.limit)
        if not (is_known or count >= MAX_SAMPLES or self._doubling):
            # As many as may be in flight: enough to grow by, if the latency is as long as chance allows.
            if count >= MIN_SAMPLES and self._ceiling.is_far(self._exact):
                self._set(self._grown(seconds + error, used), now, goes_on=True)
            return
        if self._look_at == math.inf:
            self._look_at = now + self._look_trips * seconds
            self._learn(seconds, count)
        elif seconds + CERTAIN * error < self._base:
            # Half of the way: the least of many means is lower than any is meant to be.
            self._base += (seconds - self._base) / 2
        # Calls that do not wait, were the latency as short as chance allows.
        free = self.limit * min(1.0, self._base / max(self._base, seconds - CERTAIN * error))
        is_long = count >= MIN_SAMPLES and self.limit > max(TRIGGER * free, free + 1.5)
        if (is_long or (used and now >= self._look_at)) and self.limit > self._options.least:
            calm = max(self._base, seconds - error)
            self._begin_look(_Look(self.limit, calm, self.limit, seconds, self._doubling), now)
        else:
            if self._doubling:
                self._learn(seconds, count)
            self._set(self._grown(seconds - error, used), now, goes_on=count < MAX_WINDOW)

    def _grown(self, mean: float, used: bool) -> float:
        """The limit behind a window in which nothing was wrong: never a lower one, which a look must show."""
        # spec: Adaptive!Grow
        if not used:
            return self._exact
        if self._doubling:
            return self._exact * 2
        free = self.limit * min(1.0, self._base / mean)
        is_bounded = self._ceiling.limit < math.inf
        limit = self._ceiling.next(self._exact) if is_bounded else self._ceiling.beyond(self._exact)
        if is_bounded and self._exact < FAR_SHARE * self._ceiling.limit:
            # So far below what was refused it is not full: a latency that is measured too short would hold it
            # down, wherever cuts have left it.
            return max(self._exact, min(limit, max(TRIGGER * free, free + 1.5)))
        return max(self._exact, min(limit, max(TARGET * free, free + 1.0)))

    # -- the latency without a queue -------------------------------------------------------------

    def _begin_look(self, look: _Look, now: float) -> None:
        # spec: Adaptive!Look
        self._doubling = False
        self._look = look
        if look.limit_before < look.limit:
            share = NEXT_LOOK_SHARE
        elif look.was_doubling and self.limit <= UNSURE_TIMES * self._options.start:
            # A service smaller than the start has shown no latency without a queue yet.
            share = LEAST_LOOK_SHARE
        else:
            share = min(LOOK_SHARE, max(LEAST_LOOK_SHARE, self._base / look.seconds))
        # One less at least: of four calls half would not be needed.
        self._set(math.ceil(min(self.limit * share, self.limit - 1.0)), now)

    def _end_look(self, look: _Look, mean: float, error: float, count: int, now: float) -> None:
        # spec: Adaptive!LookEnds
        # Latencies that hardly vary have no error, and are as before all the same.
        is_other = abs(mean - self._base) > max(CERTAIN * error, KNOWN_WITHIN * self._base)
        self._look_trips = FIRST_LOOK_TRIPS if is_other else min(2 * self._look_trips, LOOK_AFTER_TRIPS)
        if is_other:
            self._based_on = 0
        self._learn(mean, count)
        if self._may_wait(look, mean):
            self._begin_look(look._replace(limit_before=self.limit, seconds_before=mean), now)
            return
        self._look = None
        self._look_at = now + self._look_trips * mean
        free = max(self.limit, look.limit * min(1.0, max(self._base, mean + error) / look.seconds))
        # The latency was long by chance: a limit that no longer doubled would need long to grow.
        self._doubling = look.was_doubling and free >= NOT_FULL * look.limit
        kept = float(look.limit)
        self._set(kept if self._doubling else min(kept, max(TARGET * free, free + 1.0)), now)

    def _may_wait(self, look: _Look, mean: float) -> bool:
        """Return True if those that are left may wait as well: they are nearly as much faster as fewer."""
        share = self.limit / look.limit_before
        waits = mean <= look.seconds_before * (share + WAITS_STILL * (1.0 - share))
        return waits and share <= SHOWS_SHARE and self.limit > self._options.least

    def _learn(self, seconds: float, count: int) -> None:
        """Add a mean of so many latencies to that of calls that do not wait."""
        before = 0.0 if self._based_on == 0 else self._base
        self._base = before + (seconds - before) * count / (self._based_on + count)
        self._based_on = min(self._based_on + count, MAX_WINDOW)

    # -- cuts --------------------------------------------------------------------------------------

    def _refused(self, now: float) -> None:
        # spec: Adaptive!Cut
        if self._cuts == 0:
            self._ceiling.refused(self.limit)
        else:
            self._ceiling.lower(self.limit)
        self._cut(now, CUTS[min(self._cuts, len(CUTS) - 1)])
        self._cuts += 1

    def _cut(self, now: float, share: float) -> None:
        if share == ERROR_CUT:
            self._ceiling.lower(self.limit)
        self._doubling = False
        self._look = None
        self._set(min(self._exact * share, self.limit - 1.0), now)

    def _set(self, limit: float, now: float, goes_on: bool = False) -> None:
        """Begin a window with a limit. goes_on: where it is the one before, that window goes on."""
        before = self.limit
        self._exact = min(max(limit, float(self._options.least)), float(self._options.most))
        self.limit = int(self._exact)
        if self.limit != before or not goes_on:
            # Calls that begin all at once, or are left when others have ended, end at another rate at first.
            is_step = abs(self.limit - before) > SMALL_STEP * before
            self._window = _Window(now, self.limit, before if is_step else 0)
