"""The breaker of one endpoint of a service: closed, open while it rests, half open for one call that probes.

Pure; not thread-safe: `pillarbox.aio.endpoints` has the lock.
"""

# Whose fault is it? An endpoint that says that it has too much to do, or that is not reached, says so of
# itself. A 401, a model that it does not know or a name that does not exist may be a mistake of the job: it
# is the endpoint's where the same request is answered by another one. A 500 may be of the row: it is the
# endpoint's where several requests in a row end so, while others are answered elsewhere. A request that met
# its time-out is the endpoint's where it has answered nothing meanwhile, and others have.
#
# Why an outcome counts only in the period in which its request began. Those that were in flight when an
# endpoint fell ill end at any time later, and would end its rest, or begin another one just after its return.
#
# The breaker is Nygard's ("Release It!", 2007), ejection by outcomes Envoy's.

from __future__ import annotations

from pillarbox.aio.endpoint_facts import Finding

FIRST_REST_S = 0.25
"""Seconds for which an endpoint rests at first, unless it asks for others; twice as many each time."""
MAX_REST_S = 30.0
"""Seconds for which an endpoint rests at most, unless it asks for more."""
LATE_REST = 2.0
"""The first rest after a request that met a limit of time, as a multiple of the time that it took."""
REFUSALS_IN_A_ROW = 3
"""Refusals in a row of an endpoint that names no time to come back, after which it rests."""
REFUSALS_WITH_TIME = 2
"""The same where it names one, and has answered again after a rest that a single refusal began."""
FAULTS_IN_A_ROW = 3
"""Faults in a row, such as 500, after which an endpoint rests, if another one has answered meanwhile."""

TOLD = "another task of the job has found it ill"
"""The reason of a rest that another task has reported."""
WELL = Finding(0.0, 0, False)


class Health:
    """The breaker of one endpoint: closed, open while it rests, then half open, for one request that probes.

    Not thread-safe. now: seconds, of a clock that never goes back. period: counts openings and
    closings. A request has the period in which it began, and says nothing of a later one.
    """

    __slots__ = (
        *("answered_at", "is_open", "period", "reason", "rests_until", "since", "unreached", "_closed_at"),
        *("_faults", "_faults_since", "_is_moody", "_probes", "_refusals", "_rest", "_rests"),
    )

    def __init__(self) -> None:
        self.is_open = False
        self.period = 0
        self.rests_until = self.since = 0.0
        self.answered_at = -1.0
        self.reason = ""
        """The error for which it rests, in words."""
        self.unreached = False
        """True if that is of a kind that says that it was not reached."""
        self._probes = -1
        # In a row.
        self._refusals = self._faults = self._rests = 0
        self._faults_since = self._closed_at = self._rest = 0.0
        # It has refused a request by chance, and named a time to come back.
        self._is_moody = False

    def takes(self, now: float) -> bool:
        """Return True if a request may go there: it is closed, or has rested, and no other request probes."""
        # spec: Addresses!CanTake
        return not self.is_open or (now >= self.rests_until and self._probes != self.period)

    def ready_in(self, now: float) -> float:
        """Seconds until a request may go there, as far as is known."""
        if not self.is_open:
            return 0.0
        return self.rests_until - now if now < self.rests_until else FIRST_REST_S

    def begin(self) -> int:
        """A request goes there; returns its period."""
        if self.is_open:
            self._probes = self.period
        return self.period

    def end(self, period: int) -> None:
        """A request of `period` has ended, in whatever way: another one may probe."""
        # spec: Addresses!Freed
        if self._probes == period:
            self._probes = -1

    def answered(self, period: int, now: float) -> bool:
        """An answer came. Returns True if it ends a rest."""
        self.answered_at = now
        if period != self.period:
            return False
        self._refusals = self._faults = 0
        if not self.is_open:
            return False
        self._closes(now)
        return True

    def refused(self, period: int, now: float, asked: float | None) -> bool:
        """It has too much to do, and asks to be left alone for so long, or not. True if a rest begins."""
        if period != self.period:
            if self.is_open and asked is not None:
                self.rests_until = max(self.rests_until, now + asked)
            return False
        self._refusals += 1
        needed = REFUSALS_IN_A_ROW if asked is None else REFUSALS_WITH_TIME if self._is_moody else 1
        if not self.is_open and self._refusals < needed:
            return False
        self._is_moody = asked is not None and self._refusals == 1 and not self.is_open
        return self.rest(period, now, asked)

    def failed(self, period: int, now: float, began: float, is_late: bool, others_at: float) -> bool:
        """A request that began at `began` ended with a fault. Returns True if a rest begins.

        is_late: it met a limit of time. others_at: when another endpoint has answered last.
        """
        if period != self.period:
            return False
        if self.is_open:
            return self._rest_late(period, now, began) if is_late else self.rest(period, now)
        if is_late:
            return self.answered_at < began < others_at and self._rest_late(period, now, began)
        self._faults_since = began if not self._faults else self._faults_since
        self._faults += 1
        if self._faults < FAULTS_IN_A_ROW or others_at < self._faults_since:
            return False
        return self.rest(period, now)

    def _rest_late(self, period: int, now: float, began: float) -> bool:
        """Begin a rest after a request that met a limit of time: each that probes may take as long."""
        return self.rest(period, now, least=min(MAX_REST_S, LATE_REST * (now - began)))

    def rest(self, period: int, now: float, asked: float | None = None, least: float = 0.0) -> bool:
        """Begin a rest, or the next one, of as many seconds as asked for. False in a later period.

        least: seconds of the first rest, which doubles each time.
        """
        if period != self.period:
            return False
        is_again = self.is_open or (self._rests > 0 and now - self._closed_at < 2 * self._rest)
        self._rests = self._rests + 1 if is_again else 1
        if not self.is_open:
            self.since = now
        longest = min(MAX_REST_S, max(FIRST_REST_S, least) * 2.0 ** min(self._rests - 1, 32))
        self._rest = longest if asked is None else asked
        self.rests_until = now + self._rest
        self._opens()
        return True

    def _opens(self) -> None:
        self.is_open = True
        self._refusals = self._faults = 0
        self.period += 1

    def _closes(self, now: float) -> None:
        self.is_open, self._closed_at = False, now
        self.period += 1

    # -- what tasks of other processes have found -----------------------------------------------------

    def told(self, now: float, finding: Finding) -> None:
        """Take what another task has found: requests that are out say nothing of the state that begins."""
        # spec: Addresses!Told
        if not finding.is_rest:
            if self.is_open:
                self._closes(now)
            return
        until = now + finding.seconds
        if self.is_open:
            until = max(until, self.rests_until)
        else:
            self.since = now
        self.rests_until, self._rest, self._rests = until, finding.seconds, finding.rests
        self.reason, self.unreached = TOLD, finding.unreached
        self._opens()

    def told_probe(self, now: float, seconds: float) -> None:
        """Rest so much longer, as another task probes now; a probe that is out goes on."""
        # spec: Addresses!ToldProbe
        if self.is_open and self._probes != self.period:
            self.rests_until = max(self.rests_until, now + seconds)

    def finding(self, now: float) -> Finding:
        """The state, for the other tasks."""
        if not self.is_open:
            return WELL
        return Finding(max(0.0, self.rests_until - now), self._rests, self.unreached)
