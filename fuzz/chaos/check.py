"""The invariants of a run, whatever was done to it. Pure functions over what was seen; any thread.

The output: the rows of the fault-free run, each once, in order where that was asked for, and each with an
answer that the service really gave.

What leaves a task, whether or not Spark commits it: a row leaves with the answer of one call only, in all
attempts and all runs, and not before that answer is on the disk.

The calls: one that was answered and is made again has to be excused. Nobody can save a call that was in
flight at a kill. One that had finished may be lost if that was within the loss window of a fault that ended
its caller, not counting what that one waited for the disk; if the ledger had it, never. One that is given up
before its time is over needs a caller that was ended as well. Each excuse is an allowance with a name, and
`Verdict.excused` has the calls that it was used for.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from fuzz.chaos.calls import Call, CallLog
from fuzz.chaos.committed import Departure, Row
from fuzz.chaos.faults import JOB_END, KILLING, Fired
from fuzz.chaos.job import CHANGED

SLACK = 0.3
"""Seconds that a finished call may be older than the loss window and lost all the same, beside what its
caller waited for the disk: two cores are shared by many processes."""

Waits = Mapping[int, Sequence[tuple[float, float]]]
"""By process, from when and until when it waited for the disk."""

BUSY_SERVICE_S = 1.0
"""Seconds after which the service begins a call that a process has sent it, at most."""

RECENT = 0.5
"""Seconds before a fault in which a task has made a call if it works at all."""

EARLY = 0.5
"""A call that timed out was under way, as the service sees it, for this share of its time-out at least."""

IN_FLIGHT, LOSS_WINDOW, SLACK_OF, HELD = "in flight", "loss window", "slack", "while it held"
DISK = "the disk"
EQUAL_KEYS = "equal keys in two tasks"
SECOND_ATTEMPT = "given up with a second attempt"


@dataclass
class Verdict:
    """The findings. `wrong` is empty when all holds.

    lost, doubled: rows of the output. answered: calls that were answered. at_stake: those that were answered
    within the loss window before a kill, which by promise may be lost. in_flight: calls that ended with
    whoever had made them. in_window: answered, within the loss window of a fault, and made again.
    concurrent: made twice at a time, by two attempts. paid_again: answered, and made again without such a
    reason. given_up: ended by their callers before their time was over, without a reason. oldest: seconds
    between the answer of a lost call and the fault, at most. departed: rows with the answer of a call that
    were seen to leave a task. not_timed: those of which it is not known since when that answer was on the
    disk.
    excused: by allowance, the numbers of the calls that would be wrong without it.
    """

    lost: int = 0
    doubled: int = 0
    answered: int = 0
    at_stake: int = 0
    in_flight: int = 0
    in_window: int = 0
    concurrent: int = 0
    paid_again: int = 0
    given_up: int = 0
    oldest: float = 0.0
    departed: int = 0
    not_timed: int = 0
    excused: dict[str, list[int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """Answered calls that were made again, for whatever reason."""
        return self.in_window + self.concurrent + self.paid_again

    def excuse(self, allowance: str, call: Call) -> None:
        """Note that an allowance was used for a call."""
        self.excused.setdefault(allowance, []).append(call.number)


def check_output(
    verdict: Verdict,
    files: list[list[Row]],
    expected: Counter[tuple[int, int]],
    calls: dict[int, Call],
    in_order_with: Callable[[int], int] | None,
) -> None:
    """Compare the output with that of the fault-free run.

    files: in the order in which they were committed. in_order_with: gives for a row's id the number of what
    it must be in order with, where order was asked for.
    """
    rows = [row for file in files for row in file]
    found = Counter((row.id, row.answer) for row in rows)
    lost, doubled = (expected - found).total(), (found - expected).total()
    verdict.lost += lost
    verdict.doubled += doubled
    if lost or doubled:
        verdict.wrong.append(
            f"the output misses {lost} rows, such as {_some(expected - found)}, and has "
            f"{doubled} that are too many, such as {_some(found - expected)}"
        )
    for row in rows:
        call = calls.get(row.call)
        if call is None or call.key != row.id or call.outcome != "ok":
            verdict.wrong.append(f"{row} says that it is of {call}")
            break
    last: dict[int, int] = {}
    for row in rows if in_order_with is not None else ():
        assert in_order_with is not None
        part, place = in_order_with(row.id), row.id % CHANGED
        if last.get(part, -1) >= place:
            verdict.wrong.append(f"row {row.id} comes after row {last[part]} of the same input")
            return
        last[part] = place


def check_sinks(verdict: Verdict, first: Mapping[int, list[Row]], second: Mapping[int, list[Row]]) -> None:
    """Check that two sinks have the same rows of each micro-batch, whose executions they were written by."""
    other = sorted(batch for batch in {*first, *second} if first.get(batch) != second.get(batch))
    if other:
        rows = [{*sink.get(other[0], ())} for sink in (first, second)]
        verdict.wrong.append(
            f"the sinks differ in the micro-batches {other}; of {other[0]} one has {len(rows[0])} rows, the "
            f"other {len(rows[1])}, such as {sorted(rows[0] ^ rows[1])[:3]}"
        )


def check_departures(
    verdict: Verdict,
    departures: Collection[Departure],
    durable: Mapping[int, float],
    *,
    written: Collection[int] = (),
    copied: Collection[int] = (),
    expires: bool = False,
) -> None:
    """Check that each row leaves with the answer of one call, and not before that is on the disk.

    durable: the calls whose results were on the disk, with the time from which on. written: the calls that
    were seen in the ledger. copied: those of which only copies were seen, later. expires: the ledger forgets
    what is committed, so that a call may have been in it unseen.
    """
    verdict.departed += len(departures)
    calls_of: dict[int, dict[int, float]] = defaultdict(dict)
    early: list[tuple[float, Departure]] = []
    never: list[Departure] = []
    for row in departures:
        calls_of[row.id].setdefault(row.call, row.at)
        since = durable.get(row.call)
        if row.call in copied or (since is None and expires and row.call not in written):
            verdict.not_timed += 1
        elif since is None:
            never.append(row)
        elif since > row.at:
            early.append((since - row.at, row))
    several = {key: calls for key, calls in calls_of.items() if len(calls) > 1}
    if several:
        key, calls = next(iter(several.items()))
        verdict.wrong.append(
            f"{len(several)} rows left with the answers of several calls, such as row {key}: "
            f"{', '.join(f'call {call} at {at:.3f}' for call, at in calls.items())}"
        )
    if early:
        seconds, first = max(early)
        verdict.wrong.append(
            f"{len(early)} rows left before their results were on the disk, such as {first}, "
            f"{seconds:.3f} s before"
        )
    if never:
        verdict.wrong.append(f"{len(never)} rows left whose results were on no disk, such as {never[0]}")


class _Excuse(NamedTuple):
    allowance: str
    age: float
    """Seconds between the answer and what ended its caller."""


class _Faults:
    """The faults by which a finished call may be lost, and until when each caller lived."""

    def __init__(
        self, calls: Iterable[Call], faults: Iterable[Fired], loss_window: float, waits: Waits | None = None
    ) -> None:
        self.harming = [fault for fault in faults if fault.harms]
        self._waits = {} if waits is None else waits
        self._loss_window = loss_window
        # A call in flight ends with its caller, and all do sooner or later.
        self._last: dict[str, float] = {}
        self._answers: dict[str, list[float]] = defaultdict(list)
        for call in calls:
            if call.outcome == "ok":
                self._answers[call.caller].append(call.end)
            if call.outcome != "open":
                self._last[call.caller] = max(self._last.get(call.caller, 0.0), call.end)

    def excuse(self, call: Call, again: Call) -> _Excuse | None:
        """Return the allowance for a finished call that is made again, by the fault nearest in time."""
        found = [
            excuse
            for fault in self.harming
            if fault.at <= again.begin
            if (excuse := self._of(fault, call, again)) is not None
        ]
        return min(found, key=lambda excuse: excuse.age, default=None)

    def _of(self, fault: Fired, call: Call, again: Call) -> _Excuse | None:
        if fault.kind == JOB_END:
            # Spark ends the tasks of a failed job one after the other: each caller has an end of its own,
            # and what came before that end is as safe as before any other kill.
            end = self._last.get(call.caller, 0.0)
            if not fault.at <= end <= fault.until or again.caller == call.caller:
                return None
            return self._within(fault, end, call)
        if not fault.hits(call):
            return None
        if fault.at <= call.end <= fault.until:
            return _Excuse(f"{fault.kind}: {HELD}", max(0.0, fault.at - call.end))
        return self._within(fault, fault.at, call)

    def has_looked(self, again: Call, call: Call, seconds: float) -> bool:
        """Return True if the caller of `again` knew the result of `call` by then.

        A task sees what others have kept when it keeps an answer of its own, within so many seconds.
        """
        if again.caller == call.caller:
            return True
        ends = self._answers.get(again.caller, ())
        return any(call.end + seconds < end < again.begin - seconds for end in ends)

    def ended(self, call: Call) -> str | None:
        """Return the fault that has ended a call with its caller; None if there is none."""
        end = self._last.get(call.caller, 0.0)
        for fault in self.harming:
            if fault.kind == JOB_END:
                if fault.at <= end <= fault.until and end - call.end <= SLACK:
                    return fault.kind
                continue
            # The dead give nothing up: a service under load may take their last connections, and begin calls
            # for them, long after they are gone.
            until = math.inf if fault.kind in KILLING else fault.until + SLACK
            if fault.hits(call) and fault.at <= call.end <= until:
                return fault.kind
        return None

    def _within(self, fault: Fired, end: float, call: Call) -> _Excuse | None:
        age = end - call.end
        if 0 <= age <= self._loss_window:
            return _Excuse(f"{fault.kind}: {LOSS_WINDOW}", age)
        if 0 <= age <= self._loss_window + SLACK:
            return _Excuse(f"{fault.kind}: {SLACK_OF}", age)
        waited = sum(
            max(0.0, min(until, end) - max(since, call.end)) for since, until in self._waits.get(call.pid, ())
        )
        if 0 <= age <= self._loss_window + SLACK + waited:
            return _Excuse(f"{fault.kind}: {DISK}", age)
        return None

    def about(self, call: Call) -> str:
        """Describe the harm to the caller of a call, and its waits for the disk."""
        hits = [
            f"{fault.kind} from {fault.at:.3f} to {fault.until:.3f}"
            for fault in self.harming
            if fault.hits(call)
        ]
        waits = [f"{since:.3f} to {until:.3f}" for since, until in self._waits.get(call.pid, ())]
        return f"its caller had {hits}, and waited for the disk from {', '.join(waits) or 'never'}"


def check_calls(
    verdict: Verdict,
    calls: Iterable[Call],
    faults: list[Fired],
    loss_window: float,
    patience: float,
    *,
    equal_keys: bool = False,
    waits: Waits | None = None,
) -> None:
    """Explain each call that was made although the service had answered the row.

    loss_window: seconds. patience: seconds that the job waits for an answer; one that took longer has
    reached nobody. equal_keys: several tasks have rows with one key, which may be called at a time.
    """
    calls = list(calls)
    known = _Faults(calls, faults, loss_window, waits)
    by_key: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
        verdict.answered += call.outcome == "ok"
        if call.outcome == "ok" and any(
            fault.at - loss_window <= call.end <= fault.until for fault in known.harming
        ):
            verdict.at_stake += 1
        if call.outcome != "ok" and any(_ended(fault, call) for fault in known.harming):
            verdict.in_flight += 1
    for key, made in by_key.items():
        answered = [call for call in made if call.outcome == "ok" and call.end - call.begin < patience]
        for call, again in pairwise(answered):
            fault = next((each for each in known.harming if each.hits(call) and _met(each, call)), None)
            if fault is not None:
                # Answered to a process that had been killed by then.
                verdict.in_flight += 1
                verdict.excuse(f"{fault.kind}: {IN_FLIGHT}", call)
                continue
            excuse = known.excuse(call, again)
            if excuse is None and equal_keys and not known.has_looked(again, call, loss_window + SLACK):
                excuse = _Excuse(EQUAL_KEYS, 0.0)
            if excuse is not None:
                verdict.excuse(excuse.allowance, call)
            if again.begin <= call.end:
                verdict.concurrent += 1
                if excuse is None:
                    verdict.wrong.append(f"row {key} was called twice at a time: {call}, {again}")
            elif excuse is not None:
                verdict.in_window += 1
                verdict.oldest = max(verdict.oldest, excuse.age)
            else:
                verdict.paid_again += 1
                if verdict.paid_again <= 3:
                    verdict.wrong.append(
                        f"row {key} was answered and paid again: {call}, {again}; {known.about(call)}"
                    )


def check_given_up(
    verdict: Verdict,
    calls: Iterable[Call],
    faults: list[Fired],
    loss_window: float,
    patience: float,
    *,
    second_attempts: bool = False,
) -> None:
    """Explain each call whose caller left long before it had waited for `patience` seconds.

    Who takes over calls does not give them up to make them again. second_attempts: Spark ends one of two
    attempts when the other has finished, with its calls.
    """
    calls = list(calls)
    known = _Faults(calls, faults, loss_window)
    for call in calls:
        if call.outcome != "gone" or call.end - call.begin >= EARLY * patience:
            continue
        fault = known.ended(call)
        if fault is not None:
            verdict.excuse(f"{fault}: {IN_FLIGHT}", call)
        elif second_attempts:
            verdict.excuse(SECOND_ATTEMPT, call)
        else:
            verdict.given_up += 1
            if verdict.given_up <= 3:
                verdict.wrong.append(f"a call was given up by a caller that lived on: {call}")


def check_durable(
    verdict: Verdict,
    calls: dict[int, Call],
    faults: list[Fired],
    loss_window: float = 0.0,
    *,
    equal_keys: bool = False,
) -> None:
    """No row is called after a fault whose result the ledger had before.

    equal_keys: several tasks have rows with one key; then whoever has looked since must not call.
    """
    known = _Faults(calls.values(), faults, loss_window)
    by_key: dict[int, list[Call]] = defaultdict(list)
    for call in calls.values():
        by_key[call.key].append(call)

    def must_know(again: Call, call: Call) -> bool:
        return not equal_keys or known.has_looked(again, call, loss_window + SLACK)

    for fault in faults:
        durable = [calls[number] for number in fault.durable if number in calls]
        again = [
            call
            for call in durable
            if any(other.begin > fault.until and must_know(other, call) for other in by_key[call.key])
        ]
        if again:
            verdict.wrong.append(
                f"{len(again)} rows were called after {fault.kind} although the ledger had their results, "
                f"such as {again[0]}"
            )


def check_reason(verdict: Verdict, failures: list[str]) -> None:
    """A full disk, if it ends the job, is given as the reason."""
    if failures and not any("LedgerFullError" in failure for failure in failures):
        verdict.wrong.append(f"the disk was full, and the job failed with {failures[0][:2000]}")


def recovery(fault: Fired, log: CallLog, part_of: Callable[[int], int]) -> float | None:
    """Seconds from a kill until a row of the same task was answered that had not been before.

    None where the fault met no call, or all rows of the task had been answered.
    """
    if not fault.harms or fault.pids is None:
        return None
    harmed = {
        part_of(call.key)
        for call in log.calls.values()
        if fault.hits(call) and fault.at - RECENT <= call.end and call.begin <= fault.until
    }
    new = (
        call.end
        for call in log.calls.values()
        if call.begin > fault.at
        and not fault.hits(call)
        and part_of(call.key) in harmed
        and log.answered.get(call.key) == call.end
    )
    first = min(new, default=None)
    return None if first is None else first - fault.at


def _ended(fault: Fired, call: Call) -> bool:
    return fault.hits(call) and call.end >= fault.at and call.begin <= fault.until


def _met(fault: Fired, call: Call) -> bool:
    """Return True if a call was in flight when its caller ended, which a kill of many takes a while for."""
    # What the dead have sent before lies in front of a busy service, and so does the end of their connection.
    last = fault.until + (BUSY_SERVICE_S if fault.kind in KILLING else 0.0)
    return call.begin <= fault.at <= call.end or (
        fault.kind != JOB_END and call.begin <= last and fault.until <= call.end
    )


def _some(counted: Counter[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(counted)[:3]
