"""What must hold after a run, whatever was done to it. Pure functions over what was seen; any thread.

The output: the rows of the fault-free run, each once, in order where that was asked for, and each with an
answer that the service really gave. The calls: one that was answered and is made again has to be explained.
Nobody can save a call that was in flight at a kill. One that had finished may be lost if that was within the
loss window of a fault that kills; if the ledger had it, never.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fuzz.chaos.calls import Call, CallLog
from fuzz.chaos.committed import Row
from fuzz.chaos.faults import Fired

SLACK = 0.3
"""Seconds that a finished call may be older than the loss window and lost all the same: one wait for the
disk, and two cores that many processes share."""

RECENT = 0.5
"""Seconds before a fault in which a task has made a call if it works at all."""


@dataclass
class Verdict:
    """What was found. `wrong` is empty when all holds.

    lost, doubled: rows of the output. answered: calls that were answered. at_stake: those that were answered
    within the loss window before a kill, which by promise may be lost. in_flight: calls that ended with
    whoever had made them. in_window: answered, within the loss window of a fault, and made again.
    concurrent: made twice at a time, by two attempts. paid_again: answered, and made again without such a
    reason. oldest: seconds between the answer of a lost call and the fault, at most.
    """

    lost: int = 0
    doubled: int = 0
    answered: int = 0
    at_stake: int = 0
    in_flight: int = 0
    in_window: int = 0
    concurrent: int = 0
    paid_again: int = 0
    oldest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """Answered calls that were made again, for whatever reason."""
        return self.in_window + self.concurrent + self.paid_again


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
    verdict.lost = (expected - found).total()
    verdict.doubled = (found - expected).total()
    if verdict.lost or verdict.doubled:
        verdict.wrong.append(
            f"the output misses {verdict.lost} rows, such as {_some(expected - found)}, and has "
            f"{verdict.doubled} that are too many, such as {_some(found - expected)}"
        )
    for row in rows:
        call = calls.get(row.call)
        if call is None or call.key != row.id or call.outcome != "ok":
            verdict.wrong.append(f"{row} says that it is of {call}")
            break
    last: dict[int, int] = {}
    for row in rows if in_order_with is not None else ():
        assert in_order_with is not None
        part = in_order_with(row.id)
        if last.get(part, -1) >= row.id:
            verdict.wrong.append(f"row {row.id} comes after row {last[part]} of the same input")
            return
        last[part] = row.id


def check_calls(
    verdict: Verdict, calls: Iterable[Call], faults: list[Fired], loss_window: float, patience: float
) -> None:
    """Explain each call that was made although the service had answered the row.

    loss_window: seconds. patience: seconds that the job waits for an answer; one that took longer has
    reached nobody.
    """
    harming = [fault for fault in faults if fault.harms]
    by_key: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
        verdict.answered += call.outcome == "ok"
        if call.outcome == "ok" and any(
            fault.at - loss_window <= call.end <= fault.until for fault in harming
        ):
            verdict.at_stake += 1
        if call.outcome != "ok" and any(_ended(fault, call) for fault in harming):
            verdict.in_flight += 1
    for key, made in by_key.items():
        answered = [call for call in made if call.outcome == "ok" and call.end - call.begin < patience]
        for call in answered:
            later = [other for other in answered if other.number > call.number]
            if not later:
                continue
            again = later[0]
            if any(call.peer in fault.peers and call.begin <= fault.at <= call.end for fault in harming):
                # Answered to a process that had been killed by then.
                verdict.in_flight += 1
                continue
            if again.begin <= call.end:
                verdict.concurrent += 1
                if not any(_touches(fault, call, loss_window) for fault in harming):
                    verdict.wrong.append(f"row {key} was called twice at a time: {call}, {again}")
                continue
            ages = [
                fault.at - call.end
                for fault in harming
                if fault.at <= again.begin and _touches(fault, call, loss_window)
            ]
            if ages:
                verdict.in_window += 1
                verdict.oldest = max(verdict.oldest, min(ages))
            else:
                verdict.paid_again += 1
                if verdict.paid_again <= 3:
                    verdict.wrong.append(f"row {key} was answered and paid again: {call}, {again}")


def check_durable(verdict: Verdict, calls: dict[int, Call], faults: list[Fired]) -> None:
    """No row is called after a fault whose result the ledger had before."""
    begins: dict[int, float] = {}
    for call in calls.values():
        begins[call.key] = max(begins.get(call.key, 0.0), call.begin)
    for fault in faults:
        again = [
            number for number in fault.durable if number in calls and begins[calls[number].key] > fault.until
        ]
        if again:
            verdict.wrong.append(
                f"{len(again)} rows were called after {fault.kind} although the ledger had their results, "
                f"such as {calls[again[0]]}"
            )


def check_reason(verdict: Verdict, failures: list[str]) -> None:
    """A full disk, if it ends the job, is given as the reason."""
    if failures and not any("LedgerFullError" in failure for failure in failures):
        verdict.wrong.append(f"the disk was full, and the job failed with {failures[0][:2000]}")


def recovery(fault: Fired, log: CallLog, part_of: Callable[[int], int]) -> float | None:
    """Seconds from a kill until a row of the same task was answered that had not been before.

    None where the fault met no call, or all rows of the task had been answered.
    """
    harmed = {
        part_of(call.key)
        for call in log.calls.values()
        if call.peer in fault.peers and fault.at - RECENT <= call.end and call.begin <= fault.until
    }
    new = (
        call.end
        for call in log.calls.values()
        if call.begin > fault.at
        and call.peer not in fault.peers
        and part_of(call.key) in harmed
        and log.answered.get(call.key) == call.end
    )
    first = min(new, default=None)
    return None if first is None or not fault.harms else first - fault.at


def _ended(fault: Fired, call: Call) -> bool:
    return call.peer in fault.peers and call.end >= fault.at and call.begin <= fault.until


def _touches(fault: Fired, call: Call, loss_window: float) -> bool:
    return fault.at - loss_window - SLACK <= call.end <= fault.until + SLACK


def _some(counted: Counter[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(counted)[:3]
