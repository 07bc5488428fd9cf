"""The checker finds what must not be: it is shown outputs and calls that are wrong, each in one way."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from fuzz.chaos.calls import Call, CallLog
from fuzz.chaos.check import (
    SLACK,
    Verdict,
    Waits,
    check_calls,
    check_durable,
    check_output,
    check_reason,
    check_sinks,
    recovery,
)
from fuzz.chaos.committed import Row
from fuzz.chaos.faults import Fired

WINDOW = 0.2
CALL_TIMEOUT_S = 1.0
EXPECTED = Counter({(row, 2 * row + 1): 1 for row in range(4)})
CALLS = {number: Call(number, number - 1, 0.0, 0.1, "ok") for number in range(1, 5)}


def row(number: int) -> Row:
    return Row(number, 2 * number + 1, number + 1)


def output(*files: list[Row], in_order: bool = False) -> Verdict:
    verdict = Verdict()
    check_output(verdict, list(files), EXPECTED, CALLS, (lambda number: 0) if in_order else None)
    return verdict


def killed(at: float, until: float | None = None, durable: set[int] | None = None, pid: int = 0) -> Fired:
    return Fired("worker", at, at if until is None else until, "", True, durable or set(), {pid})


def repeated(first: Call, second: Call, *faults: Fired, waits: Waits | None = None) -> Verdict:
    verdict = Verdict()
    check_calls(verdict, [first, second], list(faults), WINDOW, CALL_TIMEOUT_S, waits=waits)
    return verdict


def test_the_output_of_the_fault_free_run_is_right() -> None:
    assert output([row(0), row(1)], [row(2), row(3)], in_order=True) == Verdict()


def test_a_row_that_is_missing_or_too_many_is_found() -> None:
    missing = output([row(0), row(1), row(3)])
    assert (missing.lost, missing.doubled) == (1, 0)
    assert missing.wrong
    twice = output([row(0), row(1)], [row(1), row(2), row(3)])
    assert (twice.lost, twice.doubled) == (0, 1)
    assert twice.wrong


def test_an_answer_of_another_row_is_found() -> None:
    other = output([row(0), Row(1, 7, 2), row(2), row(3)])
    assert (other.lost, other.doubled) == (1, 1)


@pytest.mark.parametrize("call", [0, 1, 9], ids=["none", "of another row", "not made"])
def test_a_row_that_no_call_has_answered_is_found(call: int) -> None:
    made_up = output([row(0), Row(1, 3, call), row(2), row(3)])
    assert len(made_up.wrong) == 1
    assert (made_up.lost, made_up.doubled) == (0, 0)


def test_order_is_checked_where_it_was_asked_for() -> None:
    for files in ([row(1), row(0)], [row(2), row(3)]), ([row(1)], [row(0), row(2), row(3)]):
        assert output(*files).wrong == []
        assert "row 0 comes after row 1" in output(*files, in_order=True).wrong[0]


def test_sinks_that_differ_in_a_micro_batch_are_found() -> None:
    first = {0: [row(0), row(1)], 1: [], 2: [row(2)]}
    for other, wrong in (
        (first, []),
        ({**first, 0: [row(0)], 1: [row(1)]}, [0, 1]),
        ({0: first[0], 2: first[2]}, [1]),
        ({**first, 2: [Row(2, 5, 9)]}, [2]),
    ):
        verdict = Verdict()
        check_sinks(verdict, first, other)
        assert len(verdict.wrong) == bool(wrong)
        assert not wrong or f"in the micro-batches {wrong};" in verdict.wrong[0]


def test_a_call_within_the_loss_window_of_a_kill_may_be_repeated() -> None:
    verdict = repeated(Call(1, 7, 9.0, 9.9, "ok"), Call(2, 7, 10.5, 10.6, "ok"), killed(10.0))
    assert verdict.wrong == []
    assert (verdict.in_window, verdict.at_stake) == (1, 1)
    assert verdict.oldest == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("end", "again", "faults"),
    [
        (10.0 - WINDOW - SLACK - 0.01, 10.5, [killed(10.0)]),
        (9.9, 9.95, [killed(10.0)]),
        (9.9, 10.5, []),
        (9.9, 10.5, [Fired("service fails", 10.0, 10.0, "", False)]),
    ],
    ids=["older than the window", "before the kill", "no fault", "a fault that kills nobody"],
)
def test_a_call_that_is_repeated_for_no_reason_is_found(
    end: float, again: float, faults: list[Fired]
) -> None:
    verdict = repeated(Call(1, 7, end - 0.1, end, "ok"), Call(2, 7, again, again + 0.1, "ok"), *faults)
    assert verdict.paid_again == 1
    assert verdict.repeated == 1
    assert verdict.wrong


def test_what_its_caller_waited_for_the_disk_does_not_count_for_the_age_of_a_call() -> None:
    def lost(*waits: tuple[float, float], pid: int = 40) -> list[str]:
        first = Call(1, 7, 8.9, 9.0, "ok", "40-a")
        return repeated(
            first, Call(2, 7, 10.5, 10.6, "ok", "60-c"), killed(10.0, pid=40), waits={pid: [*waits]}
        ).wrong

    assert lost()
    assert lost((9.3, math.inf)) == []
    assert lost((9.1, 9.4), (9.5, 9.8)) == []
    # Too short, before the answer, after the fault, or another process's.
    assert lost((9.8, math.inf))
    assert lost((8.0, 9.0 + WINDOW))
    assert lost((10.0, 12.0))
    assert lost((9.3, math.inf), pid=50)


def test_a_call_that_the_job_did_not_wait_for_is_no_repeated_one() -> None:
    verdict = repeated(Call(1, 7, 8.0, 9.0 + CALL_TIMEOUT_S, "ok"), Call(2, 7, 10.5, 10.6, "ok"))
    assert (verdict.repeated, verdict.wrong) == (0, [])


def test_two_calls_of_a_row_at_a_time_need_two_attempts() -> None:
    first, second = Call(1, 7, 9.8, 10.1, "ok"), Call(2, 7, 10.0, 10.2, "ok")
    assert repeated(first, second).wrong
    stopped = killed(9.7, until=12.0, pid=40)
    first.caller, second.caller = "40-a", "50-b"
    beside = repeated(first, second, stopped)
    assert (beside.concurrent, beside.wrong) == (1, [])
    first.caller = "60-c"
    assert repeated(first, second, stopped).wrong


def test_a_call_that_ended_with_its_caller_is_counted_apart() -> None:
    fault = killed(10.0, pid=40)
    for caller, outcome, count in ("40-a", "gone", 1), ("50-b", "gone", 0), ("40-a", "ok", 1):
        first = Call(1, 7, 9.9, 10.01, outcome, caller)
        verdict = repeated(first, Call(2, 7, 10.5, 10.6, "ok", "60-c"), fault)
        assert (verdict.in_flight, verdict.repeated, verdict.wrong) == (count, 0, [])
    # The service had not looked into its connection before.
    dead = repeated(Call(1, 7, 10.2, 10.3, "ok", "40-a"), Call(2, 7, 10.5, 10.6, "ok", "60-c"), fault)
    assert (dead.in_flight, dead.repeated, dead.wrong) == (1, 0, [])
    stopped = Fired("stopped worker", 10.0, 10.1, "", True, set(), {40})
    assert repeated(Call(1, 7, 10.2, 10.3, "ok", "40-a"), Call(2, 7, 10.5, 10.6, "ok", "60-c"), stopped).wrong
    before = repeated(Call(1, 7, 9.8, 9.99, "ok", "40-a"), Call(2, 7, 10.5, 10.6, "ok", "60-c"), fault)
    assert (before.in_flight, before.repeated) == (0, 1)


def test_a_row_that_the_ledger_had_must_not_be_called_again() -> None:
    calls = {1: Call(1, 7, 9.0, 9.9, "ok"), 2: Call(2, 7, 10.5, 10.6, "ok")}
    kept, lost = Verdict(), Verdict()
    check_durable(kept, calls, [killed(10.0, durable={5})])
    check_durable(lost, calls, [killed(10.0, durable={1})])
    assert kept.wrong == []
    assert len(lost.wrong) == 1


def test_a_full_disk_has_to_be_given_as_the_reason() -> None:
    named, other, none = Verdict(), Verdict(), Verdict()
    check_reason(named, ["failed: pillarbox.ledger.errors.LedgerFullError: make room"])
    check_reason(other, ["failed: KeyError: 7"])
    check_reason(none, [])
    assert (named.wrong, len(other.wrong), none.wrong) == ([], 1, [])


def test_recovery_is_the_time_to_the_first_new_answer_of_the_task_that_was_harmed(tmp_path: Path) -> None:
    log = CallLog(tmp_path / "calls.log")
    log.calls = {
        1: Call(1, 0, 9.0, 9.9, "ok", "40-a"),
        2: Call(2, 1, 9.9, 10.0, "gone", "40-a"),
        3: Call(3, 100, 9.9, 10.0, "gone", "50-b"),
    }
    # Of another task, of a row that had been answered before, and the one that counts.
    log.calls[4] = Call(4, 101, 10.0, 10.1, "ok", "50-b")
    log.calls[5] = Call(5, 0, 10.1, 11.0, "ok", "60-c")
    log.calls[6] = Call(6, 1, 10.1, 12.0, "ok", "60-c")
    log.answered = {0: 9.9, 101: 10.1, 1: 12.0}
    part_of = lambda key: key // 100  # noqa: E731
    fault = killed(10.0)
    assert recovery(fault, log, part_of) is None
    fault.pids = {40}
    assert recovery(fault, log, part_of) == 2.0
    fault.at = fault.until = 20.0
    assert recovery(fault, log, part_of) is None
