"""The judge convicts made-up histories in which a promise is broken, and no history in which none is.

A history for each of the faults that were planted and not seen: nothing synced, rows that leave too early, a
lease for everybody, results and calls of others that are not taken over. And what no allowance may excuse.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from fuzz.chaos.calls import Call
from fuzz.chaos.check import (
    BUSY_SERVICE_S,
    SLACK,
    Verdict,
    check_calls,
    check_departures,
    check_durable,
    check_given_up,
)
from fuzz.chaos.committed import Departure
from fuzz.chaos.durable import DurableLog
from fuzz.chaos.faults import JOB_END, Fired
from fuzz.chaos.job import input_ids
from fuzz.chaos.planted import DEFECTS, JOBS, planted
from pillarbox.ledger import KeyMaker, Ledger, Scope
from spec.defects import read

WINDOW = 0.2
CALL_TIMEOUT_S = 1.0
KILL = Fired("worker", 10.0, 10.1, "40", True, pids={40})
POWER_LOSS = Fired("power loss", 10.0, 12.0, "", True, pids={40, 50})


def judged(*calls: Call, faults: tuple[Fired, ...] = (), equal_keys: bool = False) -> Verdict:
    verdict = Verdict()
    check_calls(verdict, calls, list(faults), WINDOW, CALL_TIMEOUT_S, equal_keys=equal_keys)
    return verdict


# -- nothing is synced ------------------------------------------------------------------------


class Machine:
    """A ledger, and the syncs of those who write it, as the processes of the harness write them down."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.synced = folder / "ledger", folder / "synced.log"
        self.log = DurableLog(self.synced, self.ledger)
        self.clock = 0.0

    def write(self, *calls: int, pid: int = 1) -> Path:
        """Keep the results of calls in a segment of their own; returns it."""
        scope = Scope("run", "uid")
        ledger = Ledger(str(self.ledger))
        before = set(self.ledger.rglob("*.arrow"))
        make_key = KeyMaker()
        with ledger.writer(scope) as writer:
            for call in calls:
                writer.append(make_key(call), {"answer": 1, "call": call})
        (segment,) = set(self.ledger.rglob("*.arrow")) - before
        return segment

    def sync(self, path: Path, size: int | None = None, pid: int = 1) -> None:
        """A process has synced a file or folder, one second after what was before."""
        self.clock += 1.0
        line = {
            "began": self.clock - 0.5,
            "path": str(path),
            "size": path.stat().st_size if size is None else size,
            "names": os.listdir(path) if path.is_dir() else None,
            "at": self.clock,
            "pid": pid,
        }
        with open(self.synced, "a") as file:
            file.write(json.dumps(line) + "\n")

    def sync_folders(self, segment: Path) -> None:
        """All folders that lead to a segment."""
        for folder in segment.parents:
            self.sync(folder)
            if folder == self.ledger:
                return

    def begin_sync(self, pid: int) -> None:
        """A process waits for the disk from now on."""
        self.clock += 1.0
        with open(self.synced, "a") as file:
            file.write(json.dumps({"pid": pid, "began": self.clock}) + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_log_of_syncs_says_how_long_each_process_waited_for_the_disk(machine: Machine) -> None:
    machine.begin_sync(1)
    began = machine.clock
    machine.sync(machine.synced.parent, pid=2)
    other = machine.clock
    machine.log.read()
    # One that was killed meanwhile waits for ever.
    assert machine.log.waits() == {1: [(began, math.inf)], 2: [(other - 0.5, other)]}


def test_a_power_loss_leaves_what_was_synced(machine: Machine) -> None:
    segment = machine.write(3, 4)
    machine.sync_folders(segment)
    machine.sync(segment)
    assert machine.log.cut() == 0
    assert machine.log.durable() == dict.fromkeys((3, 4), machine.clock)


def test_a_power_loss_takes_what_was_not_synced(machine: Machine) -> None:
    kept, lost = machine.write(3), machine.write(4)
    machine.sync_folders(kept)
    machine.sync(kept)
    size = lost.stat().st_size
    assert machine.log.cut() == size
    assert set(machine.log.durable()) == {3}
    # Its name was synced, and nothing in it.
    assert lost.stat().st_size == 0


def test_a_power_loss_takes_a_segment_whose_name_was_not_synced(machine: Machine) -> None:
    segment = machine.write(3)
    machine.sync(segment)
    machine.log.read()
    assert machine.log.written() == {3}
    size = segment.stat().st_size
    assert machine.log.cut() == size
    assert not segment.exists()
    assert machine.log.durable() == {}


def test_a_result_is_durable_with_the_first_sync_that_reaches_its_end(machine: Machine) -> None:
    segment = machine.write(3)
    machine.sync_folders(segment)
    machine.sync(segment, size=segment.stat().st_size - 1)
    assert machine.log.durable() == {}
    machine.sync(segment)
    machine.sync(segment)
    machine.log.read()
    assert machine.log.durable() == {3: machine.clock - 1.0}


def test_of_copies_it_is_not_known_since_when_they_are_durable(machine: Machine) -> None:
    machine.log.compacting(77)
    original, copy = machine.write(3), machine.write(4)
    machine.sync(original)
    machine.sync(copy, pid=77)
    machine.log.read()
    assert machine.log.copied() == {4}


def test_where_nothing_was_synced_each_row_that_left_is_found(machine: Machine) -> None:
    machine.write(3, 4)
    machine.log.read()
    verdict = Verdict()
    rows = [Departure(7, 3, 5.0), Departure(8, 4, 5.0)]
    check_departures(verdict, rows, machine.log.durable(), written=machine.log.written(), expires=True)
    assert verdict.wrong == [f"2 rows left whose results were on no disk, such as {rows[0]}"]


def test_where_nothing_was_synced_all_is_paid_again_after_a_power_loss() -> None:
    first, again = Call(1, 7, 5.0, 5.1, "ok", "40-a"), Call(2, 7, 13.0, 13.1, "ok", "60-b")
    assert judged(first, again, faults=(POWER_LOSS,)).paid_again == 1
    young = Call(1, 7, 9.8, 9.9, "ok", "40-a")
    assert judged(young, again, faults=(POWER_LOSS,)).wrong == []


def test_what_was_on_the_disk_before_a_power_loss_must_not_be_called_after_it() -> None:
    # Within the loss window, but it was synced.
    calls = {1: Call(1, 7, 9.8, 9.9, "ok", "40-a"), 2: Call(2, 7, 13.0, 13.1, "ok", "60-b")}
    verdict = Verdict()
    check_durable(verdict, calls, [Fired("power loss", 10.0, 12.0, "", True, {1}, {40})])
    assert len(verdict.wrong) == 1


@pytest.mark.parametrize(
    ("caller", "answers", "wrong"), [("60-b", False, 0), ("60-b", True, 1), ("40-a", False, 1)]
)
def test_of_equal_keys_a_task_may_call_what_another_one_has_kept_until_it_has_looked(
    caller: str, answers: bool, wrong: int
) -> None:
    calls = {1: Call(1, 7, 9.0, 9.1, "ok", "40-a"), 2: Call(2, 7, 13.0, 13.1, "reset", caller)}
    if answers:
        # It has kept an answer of its own meanwhile, and seen what others had kept.
        calls[3] = Call(3, 8, 11.0, 11.1, "ok", caller)
    verdict = Verdict()
    resets = Fired("service resets", 10.0, 10.8, "", False, {1})
    check_durable(verdict, calls, [resets], WINDOW, equal_keys=True)
    assert len(verdict.wrong) == wrong


# -- rows that leave before they are durable ---------------------------------------------------


@pytest.mark.parametrize(("since", "wrong"), [(4.999, 0), (5.0, 0), (5.001, 1)])
def test_a_row_leaves_when_its_result_is_on_the_disk_and_not_before(since: float, wrong: int) -> None:
    verdict = Verdict()
    check_departures(verdict, [Departure(7, 3, 5.0)], {3: since}, written={3})
    assert len(verdict.wrong) == wrong
    assert verdict.departed == 1


def test_a_row_whose_result_was_in_no_ledger_is_found_unless_that_forgets() -> None:
    for expires, wrong, not_timed in (False, 1, 0), (True, 0, 1):
        verdict = Verdict()
        check_departures(verdict, [Departure(7, 3, 5.0)], {}, expires=expires)
        assert (len(verdict.wrong), verdict.not_timed) == (wrong, not_timed)


def test_rows_are_not_timed_by_copies_of_their_results() -> None:
    verdict = Verdict()
    check_departures(verdict, [Departure(7, 3, 5.0)], {3: 9.0}, written={3}, copied={3})
    assert (verdict.wrong, verdict.not_timed) == ([], 1)


# -- a lease that is always granted ------------------------------------------------------------


def test_two_tasks_that_call_a_row_at_a_time_are_found() -> None:
    first, second = Call(1, 7, 5.0, 5.1, "ok", "40-a"), Call(2, 7, 5.05, 5.2, "ok", "50-b")
    assert judged(first, second).wrong
    # A kill of somebody else, or long before, or after, is not a reason.
    other, before = (
        Fired("worker", 5.02, 5.3, "", True, pids={60}),
        Fired("worker", 1.0, 1.1, "", True, pids={40}),
    )
    assert judged(first, second, faults=(other, before, KILL)).wrong


def test_a_call_that_is_answered_when_its_caller_is_dead_may_be_made_again() -> None:
    # Killing all processes of a job takes a while, in which those that still live go on calling.
    first, second = Call(1, 7, 11.5, 12.1, "ok", "50-a"), Call(2, 7, 20.0, 20.1, "ok", "60-b")
    verdict = judged(first, second, faults=(POWER_LOSS,))
    assert (verdict.wrong, verdict.excused) == ([], {"power loss: in flight": [1]})
    # The service had not looked into its connection before.
    first.begin = 12.05
    assert judged(first, second, faults=(POWER_LOSS,)).excused == {"power loss: in flight": [1]}
    first.begin, first.end = 12.0 + BUSY_SERVICE_S + 0.01, 13.2
    assert judged(first, second, faults=(POWER_LOSS,)).wrong


def test_a_row_may_be_called_while_the_holder_of_the_lease_is_stopped() -> None:
    stopped = Fired("stopped worker", 5.05, 14.05, "", True, pids={40})
    first, second = Call(1, 7, 5.0, 5.1, "ok", "40-a"), Call(2, 7, 10.2, 10.3, "ok", "50-b")
    verdict = judged(first, second, faults=(stopped,))
    assert (verdict.wrong, verdict.excused) == ([], {"stopped worker: in flight": [1]})


def test_rows_of_one_key_in_two_tasks_may_be_called_at_a_time_and_no_later() -> None:
    first, second = Call(1, 7, 5.0, 5.1, "ok", "40-a"), Call(2, 7, 5.05, 5.2, "ok", "50-b")
    verdict = judged(first, second, equal_keys=True)
    assert (verdict.wrong, verdict.excused) == ([], {"equal keys in two tasks": [1]})
    second.caller = "40-a"
    assert judged(first, second, equal_keys=True).wrong
    late = Call(3, 7, 7.0, 7.1, "ok", "50-b")
    assert judged(first, late, equal_keys=True).wrong == []
    # With an answer of its own to keep, the second task has seen what the first one has kept.
    own = Call(2, 8, 5.8, 5.9, "ok", "50-b")
    assert judged(first, own, late, equal_keys=True).wrong


# -- what is adopted is ignored ----------------------------------------------------------------


def test_a_row_that_leaves_with_the_answers_of_two_calls_is_found() -> None:
    durable = {3: 1.0, 4: 1.0}
    for calls, wrong in ((3, 3), 0), ((3, 4), 1):
        verdict = Verdict()
        check_departures(verdict, [Departure(7, call, 5.0) for call in calls], durable)
        assert len(verdict.wrong) == wrong


def given_up(
    call: Call, *faults: Fired, second_attempts: bool = False, beside: tuple[Call, ...] = ()
) -> Verdict:
    verdict = Verdict()
    check_given_up(
        verdict, [call, *beside], list(faults), WINDOW, CALL_TIMEOUT_S, second_attempts=second_attempts
    )
    return verdict


def test_a_call_that_is_given_up_by_a_caller_that_lives_on_is_found() -> None:
    call = Call(1, 7, 9.9, 10.02, "gone", "40-a")
    assert given_up(call).given_up == 1
    assert given_up(call, Fired("worker", 10.0, 10.1, "", True, pids={50})).wrong
    assert given_up(call, Fired("service fails", 10.0, 10.1, "", False)).wrong
    killed = given_up(call, KILL)
    assert (killed.wrong, killed.excused) == ([], {"worker: in flight": [1]})
    assert given_up(Call(1, 7, 9.6, 9.9, "gone", "40-a"), KILL).wrong
    # The service took the connection of a process that was dead by then.
    assert given_up(Call(1, 7, 10.6, 10.7, "gone", "40-a"), KILL).wrong == []
    stop = Fired("stopped worker", 10.0, 10.1, "40 for 0.1 s", True, pids={40})
    assert given_up(Call(1, 7, 10.6, 10.7, "gone", "40-a"), stop).wrong
    apart = given_up(call, second_attempts=True)
    assert (apart.wrong, apart.excused) == ([], {"given up with a second attempt": [1]})


@pytest.mark.parametrize(
    "call", [Call(1, 7, 8.9, 9.9, "gone"), Call(1, 7, 9.8, 9.9, "reset"), Call(1, 7, 9.8, 9.9, "fail")]
)
def test_a_call_that_timed_out_or_was_thrown_out_is_not_given_up(call: Call) -> None:
    assert given_up(call).wrong == []


# -- allowances --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "allowance"),
    [(0.1, "worker: loss window"), (0.4, "worker: slack"), (WINDOW + SLACK + 0.01, None)],
)
def test_the_window_excuses_the_calls_of_whom_was_killed_and_says_which(
    age: float, allowance: str | None
) -> None:
    end = KILL.at - age
    mine, again = Call(1, 7, end - 0.1, end, "ok", "40-a"), Call(3, 7, 10.5, 10.6, "ok", "60-b")
    verdict = judged(mine, again, faults=(KILL,))
    assert verdict.excused == ({} if allowance is None else {allowance: [1]})
    assert bool(verdict.wrong) == (allowance is None)
    # Another process went on, and has lost nothing.
    mine.caller = "50-c"
    assert judged(mine, again, faults=(KILL,)).wrong


FAILED = Fired(JOB_END, 9.5, 16.0, "", True)
"""A job of which Spark said at 10.0 that it had failed: half a second before, six seconds after."""


def test_the_end_of_a_job_excuses_what_a_caller_had_just_before_its_own_end() -> None:
    last = Call(2, 8, 12.9, 13.0, "gone", "40-a")
    again = Call(3, 7, 14.0, 14.1, "ok", "60-b")
    near, far = Call(1, 7, 12.8, 12.9, "ok", "40-a"), Call(1, 7, 11.0, 11.1, "ok", "40-a")
    verdict = judged(near, last, again, faults=(FAILED,))
    assert (verdict.wrong, verdict.excused) == ([], {"the job's end: loss window": [1]})
    # It went on for two seconds: that is durable, in whatever time around the failed job it came.
    assert judged(far, last, again, faults=(FAILED,)).wrong


def test_the_end_of_a_job_does_not_excuse_a_caller_that_calls_on() -> None:
    near, again = Call(1, 7, 12.8, 12.9, "ok", "40-a"), Call(3, 7, 13.0, 13.1, "ok", "60-b")
    on = Call(4, 9, 16.5, 16.6, "ok", "40-a")
    assert judged(near, again, faults=(FAILED,)).wrong == []
    assert judged(near, again, on, faults=(FAILED,)).wrong
    again.caller = "40-a"
    assert judged(near, again, faults=(FAILED,)).wrong


# -- what is planted ---------------------------------------------------------------------------


def test_each_planted_defect_has_its_place_and_a_job(tmp_path: Path) -> None:
    defects = read(DEFECTS)
    assert [defect.name for defect in defects] == list(JOBS)
    assert len({defect.about for defect in defects}) == len(defects)
    for defect in defects:
        package = planted(defect, tmp_path / defect.name) / "pillarbox"
        for file in defect.copied:
            original = DEFECTS.parents[2] / file
            text = (package / Path(file).relative_to("pyruntime")).read_text()
            compile(text, file, "exec")
            assert text != original.read_text()
        assert (package / "kernel" / "__init__.py").exists()


def test_inputs_have_the_rows_that_their_jobs_speak_of() -> None:
    repeated = input_ids("repeated", 960, 4)
    parts = [repeated[place : place + 240] for place in range(0, 960, 240)]
    named = [[row for row in part if row < 10**6] for part in parts]
    assert all(part == named[0] for part in named)
    assert len(named[0]) == 2 * len(set(named[0]))
    assert len(set(repeated)) == len(set(named[0])) + 96
    changed = input_ids("changed", 960, 4)
    assert sum(row >= 10**6 for row in changed) == 96
    assert [row % 10**6 for row in changed] == list(range(960))
