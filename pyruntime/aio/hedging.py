"""Schedules the calls of one operator that are hedged: of a row whose call is slow another one begins.

Confined to the mailbox thread. `HedgePolicy` decides after which time and how many, the runner carries a
hedge as any call. For everything else a row with its hedges is one call, whose present attempt they share.
"""

# A hedge is a call of its own, with a slot, an endpoint and times of its own, that stands in no queue and in
# no snapshot. So the runner, the gate and the limiter need not know of it: they are asked for it as for any
# call. What it brings is settled for its row's call.
#
# Which of several calls a row's `execution` is: the one that began first of those that run. So whatever
# takes a row away finds it running, as long as any call of it runs.
#
# A hedge has no place among the rows that wait: it would be looked up in the ledger, marked when a budget is
# used up, and put behind rows that are tried again. Its row waits in `due`, and is asked for before others,
# as it holds up those behind it.

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.aio.calls import Call
from pillarbox.aio.deadlines import CallDeadlines
from pillarbox.aio.errors import CallFailed, CallTimeout
from pillarbox.aio.gate import Gate
from pillarbox.aio.meter import Meter
from pillarbox.aio.options import Options
from pillarbox.aio.policies.hedge import HedgePolicy
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policy import CallSuperseded, HookFailed
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.lacks import lack_in

_SHARED = (
    *("attempt", "error", "identity", "input", "key", "ordinal", "refusals", "refused_since", "repeats"),
    *("source", "started", "uncharged", "units"),
)
"""Slots that a hedge has from its row's call, where they are set there."""


class HedgingCall(Call):
    """A further call of the present attempt of `hedges`, a row's call. `began` and `endpoint` are its own.

    avoided: the endpoints of the calls of the row that ran when it began.
    """

    __slots__ = ("avoided", "hedges")

    avoided: tuple[Any, ...]
    hedges: Call

    def __init__(self, call: Call, avoided: tuple[Any, ...]) -> None:
        super().__init__(call.row, 0)
        self.hedges = call
        self.avoided = avoided
        for name in _SHARED:
            if hasattr(call, name):
                setattr(self, name, getattr(call, name))

    def elapsed(self, now: float) -> float:
        """Seconds that the attempts and pauses of its row have taken."""
        return self.hedges.elapsed(now)

    def attempt_elapsed(self, now: float) -> float:
        """Seconds that the present attempt of its row has taken."""
        return self.hedges.attempt_elapsed(now)


class Watched(Protocol):
    """The thing that may be hedged: a row's call, or the calls of an attempt of a batch."""

    began: float

    def __hash__(self) -> int: ...


Key = TypeVar("Key", bound=Watched)


class RowsInFlight(Generic[Key]):
    """The rows that are called now, by their calls, and what is known of each for its hedges.

    policy: the decisions. deadlines: of rows that are watched, by the handles in `watched`, -1 for those that
    began before it was known what calls take, which is_learning says that it is not yet. due: rows that wait
    for a hedge, in order. begun: the hedges of each row's present attempt; one that has ended has no
    execution.
    """

    __slots__ = ("begun", "deadlines", "due", "is_learning", "policy", "watched")

    def __init__(self, policy: HedgePolicy, deadlines: CallDeadlines[Key]) -> None:
        self.policy = policy
        self.deadlines = deadlines
        self.watched: dict[Key, int] = {}
        self.due: dict[Key, None] = {}
        self.begun: dict[Key, list[HedgingCall]] = {}
        self.is_learning = policy.after is None

    def watch(self, call: Key, since: float = 0.0) -> None:
        """Have `call` be due when it is slow. since: seconds that it has run."""
        after, deadlines = self.policy.after, self.deadlines
        if after is None:
            self.watched[call] = -1
            return
        deadlines.seconds = after
        self.watched[call] = deadlines.arm_rest(call, since) if since else deadlines.arm(call)

    def watch_all(self, now: float) -> None:
        """Watch those that began before it was known what calls take."""
        self.is_learning = False
        for call in [call for call, handle in self.watched.items() if handle < 0]:
            self.watch(call, now - call.began)

    def end(self, call: Key) -> list[HedgingCall]:
        """Forget a row whose attempt is over; returns its hedges that still run."""
        if (handle := self.watched.pop(call, -1)) >= 0:
            self.deadlines.cancel(handle)
        self.due.pop(call, None)
        return [hedge for hedge in self.begun.pop(call, ()) if hedge.execution is not None]

    def close(self) -> None:
        """Forget all rows."""
        self.deadlines.close()
        self.due.clear()
        for call in [*self.begun]:
            for hedge in self.end(call):
                hedge.execution = None
        self.watched.clear()


def rows_in_flight(scheduler: CallScheduler) -> RowsInFlight[Any]:
    """The rows in flight of a scheduler with hedges, which are due when their calls have run for too long."""

    def is_slow(call: Any) -> None:
        # spec: Hedge!Due
        del rows.watched[call]
        rows.due[call] = None
        scheduler.runner.dispatch()

    policy = scheduler.policies.brought["hedge"]
    assert isinstance(policy, HedgePolicy)
    deadlines: CallDeadlines[Any] = CallDeadlines(
        scheduler.loop, policy.after or 0.0, partial(scheduler.guarded, is_slow)
    )
    rows: RowsInFlight[Any] = RowsInFlight(policy, deadlines)
    return rows


def hedges_now(rows: RowsInFlight[Any], gate: Gate | None, load: LoadPolicy, starting: int = 0) -> int:
    """Return the number of hedges that may begin as soon as there are slots, beside those that start."""
    due = rows.due
    if not due:
        return 0
    if gate is not None:
        breaker = load.breaker
        is_away = breaker is not None and breaker.is_outage
        if gate.holds or is_away or gate.exhausted is not None:
            return 0
    return min(len(due), rows.policy.affordable - starting)


class HedgingScheduler(CallScheduler):
    """Follows the calls of one operator, and those that hedge them."""

    # Besides those of a scheduler without hedges.
    __slots__ = ("_rows",)

    def __init__(
        self, options: Options, meter: Meter, loop: asyncio.AbstractEventLoop, **others: Any
    ) -> None:
        super().__init__(options, meter, loop, **others)
        self._rows: RowsInFlight[Call] = rows_in_flight(self)

    def close(self) -> None:
        """Forget every call, and all hedges."""
        # spec: Hedge!Close
        super().close()
        self._rows.close()

    # -- which call is next -------------------------------------------------------------------

    def _hedges_now(self) -> int:
        return hedges_now(self._rows, self.gate, self.policies.load)

    def may_start(self, starting: int, running: int) -> bool:
        """Return True if a worker is to start, for a hedge or a row that waits."""
        hedges = self._hedges_now()
        if not hedges:
            return super().may_start(starting, running)
        if starting >= len(self.waiting) + hedges:
            return False
        return starting < max(1, running) if self.gate is None else not starting

    def take(self, execution: Any) -> Call | None:
        """Begin a hedge in `execution`, or an attempt of the next call; None if none may begin."""
        rows = self._rows
        if rows.due and (hedge := self._take_hedge(execution)) is not None:
            return hedge
        call = super().take(execution)
        if call is None or call in rows.watched or call.hedges is not None:
            return call
        # spec: Hedge!Begin
        rows.watch(call)
        if rows.due and self._hedges_now():
            # This call has paid for it.
            self.runner.dispatch()
        return call

    def _take_hedge(self, execution: Any) -> HedgingCall | None:
        """Begin a hedge of the row that has waited longest for it; None if none may begin."""
        # spec: Hedge!Hedge
        rows, session = self._rows, self.sharing.session
        if not self._hedges_now() or (session is not None and not session.look_first(0)):
            return None
        while self._hedges_now():
            call = next(iter(rows.due))
            hedge = HedgingCall(call, self._endpoints(call))
            try:
                if self.gate is not None and not self.gate.admit((hedge,)):
                    return None
            except HookFailed as failed:
                self.fail_call(hedge, CallFailed(hedge.attempt, failed.cause))
                continue
            del rows.due[call]
            hedge.execution = execution
            hedge.began = self.clock()
            if self.begin_policies((hedge,)):
                self.meter.calls += 1
                begun = rows.begun.setdefault(call, [])
                begun.append(hedge)
                if 1 + len(begun) < rows.policy.calls:
                    rows.watch(call)
                return hedge
        return None

    def _endpoints(self, call: Call) -> tuple[Any, ...]:
        """The endpoints of the calls of a row that run."""
        return tuple([each.endpoint for each in (call, *self._running(call)) if hasattr(each, "endpoint")])

    def _running(self, call: Call) -> list[HedgingCall]:
        """The hedges of a row that run."""
        return [hedge for hedge in self._rows.begun.get(call, ()) if hedge.execution is not None]

    # -- what the runners say -----------------------------------------------------------------

    def ended(self, call: Call, execution: Any, result: Any, error: BaseException | None = None) -> None:
        """Settle a call that ended, for its row."""
        if isinstance(call, HedgingCall):
            self._hedge_ended(call, execution, result, error)
        else:
            super().ended(call, execution, result, error)
        rows = self._rows
        if rows.is_learning and rows.policy.after is not None:
            rows.watch_all(self.clock())

    def _hedge_ended(
        self, hedge: HedgingCall, execution: Any, result: Any, error: BaseException | None
    ) -> None:
        if hedge.execution is not execution:
            # spec: Hedge!LateAnswer
            self.late(hedge, result, error)
            return
        call = hedge.hedges
        hedge.execution = None
        if call.execution is execution:
            # Those that began before it have failed.
            call.execution = None
        ended = self.clock()
        if self.times.attempt is not None:
            self.times.attempt.cancel(call.attempt_deadline)
        if error is not None:
            self.bill_error([hedge], error)
            if lack_in(error) is None:
                self.observe((hedge,), error, ended - hedge.began)
            self.row_failed(call, error)
            return
        # spec: Hedge!Answer
        if hasattr(hedge, "endpoint"):
            # What it has used is of the limits of its endpoint.
            call.endpoint = hedge.endpoint
        rejected = self.row_succeeded(call, result, ended)
        self._rows.policy.won += rejected is None
        self.observe((hedge,), rejected, ended - hedge.began)

    def _row_ended(self, call: Call, result: Any, ended: float) -> None:
        # spec: Hedge!Answer
        self._end_calls(call)
        super()._row_ended(call, result, ended)

    def _finish(self, call: Call, result: Any) -> None:
        # A hook may have failed the row while a call of it ran.
        self._end_calls(call)
        super()._finish(call, result)

    def _end_calls(self, call: Call) -> None:
        """Cancel the calls of a row that still run."""
        running: list[Call] = [*self._rows.end(call)]
        if call.execution is not None:
            if all(each.execution is not call.execution for each in running):
                running.append(call)
            else:
                call.execution = None
        self._supersede(running)

    def _supersede(self, calls: Sequence[Call]) -> None:
        """Cancel calls that their row needs no longer."""
        now = self.clock()
        for call in calls:
            execution, call.execution = call.execution, None
            self.runner.revoke(execution, call)
            self.observe((call,), CallSuperseded(), now - call.began)

    def row_failed(self, call: Call, error: BaseException, timed_out: CallTimeout | None = None) -> None:
        """A call of a row failed; if others of it run the row goes on, otherwise its attempt has failed."""
        # spec: Hedge!Fail
        if call.execution is None and (running := self._running(call)):
            # The row is where that one is, whatever takes it away.
            call.execution = running[0].execution
            if hasattr(running[0], "endpoint"):
                call.endpoint = running[0].endpoint
        if call.execution is None:
            self._rows.end(call)
            super().row_failed(call, error, timed_out)
            return
        if lack_in(error) is not None:
            # It has not come to its end.
            self.policies.load.give_back([call])
        if self.times.attempt is not None:
            # The time of an attempt is that of all its calls.
            call.attempt_deadline = self.times.attempt.arm_rest(call, self.clock() - call.began)

    def fail_call(self, call: Call, error: CallFailed | CallTimeout) -> None:
        """A row has failed for good, perhaps by a policy that raised when its hedge was to begin."""
        first = call.hedges
        if first is None:
            super().fail_call(call, error)
            return
        if self.times.attempt is not None:
            self.times.attempt.cancel(first.attempt_deadline)
        self.revoke(first)
        self.fail_call(first, error)

    def revoke(self, call: Call) -> None:
        """Take `call` from what runs it, with its hedges; what they still bring is late."""
        # spec: Hedge!TimeOut
        hedges = self._rows.end(call)
        self._supersede([hedge for hedge in hedges if hedge.execution is not call.execution])
        for hedge in hedges:
            # Of the call where the row is, the end is reported as the row's.
            hedge.execution = None
        super().revoke(call)
