"""Recorded runs of the async operator are behaviours of the specification, and corrupted ones are not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import cache
from http.client import RemoteDisconnected
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pillarbox import Buffer, Retry, async_map
from pillarbox.aio import async_wait
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import Call, CallState
from pillarbox.aio.emission import ResultEmitter
from pillarbox.aio.scheduler import CallScheduler
from pillarbox.aio.states import AsyncWaitState, FinishedRow
from pillarbox.ledger import Ledger
from pillarbox.testing.operator_trace import SavedRow, TraceStep, read_life, read_trace, recording
from spec.operator_runs import Run, accepted_by_tlc, are_behaviours, make_run, rows_of
from tests.aio.unit.test_wait_snapshots import Closing, Life, Service

SEEDS = 6
"""Runs that TLC judges in the tests that are not slow, beside the corrupted ones."""


@cache
def run_of(seed: int) -> tuple[TraceStep, ...]:
    with TemporaryDirectory() as folder:
        return tuple(make_run(seed, Path(folder)))


def runs_with(wanted: Callable[[Run], bool]) -> Run:
    """The first run of which something is to be had."""
    return next(run for run in (list(run_of(seed)) for seed in range(1, 200)) if wanted(run))


def test_a_seed_gives_the_same_run_again(tmp_path: Path) -> None:
    assert make_run(4, tmp_path) == list(run_of(4))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tlc_accepts_what_the_async_operator_does() -> None:
    runs = [list(run_of(seed)) for seed in range(1, 201)]
    assert all(rows_of(run) > 50 for run in runs)
    assert sum(any(step.name == "restore" for step in run) for run in runs) > 50
    names = {step.name for run in runs for step in run}
    assert names >= {
        "time_out",
        "again",
        "give_up",
        "join",
        "find",
        "withdraw",
        "emit_mark",
        "finish",
        "close",
    }
    assert are_behaviours(*runs)


# -- corrupted runs --------------------------------------------------------------------------------


def places(run: Run, *names: str) -> list[int]:
    return [place for place, step in enumerate(run) if step.name in names]


def swapped_emissions() -> Run:
    """Two results in order change places."""
    run = runs_with(lambda run: run[0].words[0] == 1 and len(places(run, "create")) == 1)
    first, second = places(run, "emit")[:2]
    run[first], run[second] = run[second], run[first]
    return run


def a_lost_row() -> Run:
    """A result is never emitted, and the operator comes to its end."""
    run = runs_with(lambda run: run[0].words[0] == 0 and run[-2].name == "finish")
    del run[places(run, "emit")[-1]]
    return run


def a_row_emitted_twice() -> Run:
    run = runs_with(lambda run: run[0].words[0] == 0)
    first = places(run, "emit")[0]
    return [*run[: first + 1], run[first], *run[first + 1 :]]


def a_row_past_a_watermark() -> Run:
    """The last result before a mark is emitted behind it."""

    def after_a_row(run: Run) -> list[int]:
        return [place for place in places(run, "emit_mark") if place and run[place - 1].name == "emit"]

    run = runs_with(lambda run: run[0].words[0] == 0 and bool(after_a_row(run)))
    mark = after_a_row(run)[0]
    run[mark - 1], run[mark] = run[mark], run[mark - 1]
    return run


def an_emission_after_close() -> Run:
    """The last result comes out when the operator has been closed."""
    run = runs_with(lambda run: run[-2].name == "finish")
    close, last = len(run) - 1, places(run, "emit")[-1]
    emitted = run[last]
    return [*run[:last], *run[last + 1 : close], run[close], emitted._replace(at=run[close].at)]


def a_call_of_a_row_that_had_a_result() -> Run:
    """A restored row is called, although the snapshot has its result."""

    def restored(run: Run) -> list[tuple[int, int]]:
        """For each restored row with a result: the place behind its admission, and its number."""
        found = []
        for place in places(run, "restore"):
            admitted = [other for other in places(run, "readmit") if other > place]
            for entry, behind in zip(run[place].words[1], admitted, strict=False):
                if isinstance(entry, SavedRow) and entry.kind == "done":
                    found.append((behind, entry.id))
        return found

    run = runs_with(lambda run: bool(restored(run)))
    behind, number = restored(run)[0]
    return [*run[: behind + 1], TraceStep(run[behind].at, "start", (number, 1)), *run[behind + 1 :]]


def a_result_without_a_call() -> Run:
    """Of a row that is called once the call is not there, nor its answer."""
    run = runs_with(lambda run: bool(places(run, "answer")))
    answer = places(run, "answer")[0]
    number = run[answer].words[0]
    return [step for step in run[:answer] if step.name != "start" or step.words[0] != number] + run[
        answer + 1 :
    ]


def a_time_out_after_the_result() -> Run:
    run = runs_with(lambda run: run[0].words[4] > 0 and bool(places(run, "complete")))
    done = places(run, "complete")[0]
    late = TraceStep(run[done].at + run[0].words[4], "time_out", run[done].words)
    return [*run[: done + 1], late, *run[done + 1 :]]


def a_snapshot_without_an_entry() -> Run:
    run = runs_with(lambda run: any(run[place].words[1] for place in places(run, "snapshot")))
    place = next(place for place in places(run, "snapshot") if run[place].words[1])
    gone, entries = run[place].words
    run[place] = run[place]._replace(words=(gone, entries[1:]))
    return run


def a_restore_of_another_snapshot() -> Run:
    """An attempt that has failed is forgotten between snapshot and restore."""

    def failed(run: Run, place: int) -> list[int]:
        entries = run[place].words[1]
        return [at for at, entry in enumerate(entries) if isinstance(entry, SavedRow) and entry.attempts]

    run = runs_with(lambda run: any(failed(run, place) for place in places(run, "restore")))
    place = next(place for place in places(run, "restore") if failed(run, place))
    gone, entries = run[place].words
    at = failed(run, place)[0]
    changed = [*entries]
    changed[at] = changed[at]._replace(attempts=0)
    run[place] = run[place]._replace(words=(gone, tuple(changed)))
    return run


CORRUPTED = [
    swapped_emissions,
    a_lost_row,
    a_row_emitted_twice,
    a_row_past_a_watermark,
    an_emission_after_close,
    a_call_of_a_row_that_had_a_result,
    a_result_without_a_call,
    a_time_out_after_the_result,
    a_snapshot_without_an_entry,
    a_restore_of_another_snapshot,
]


@pytest.mark.contract(
    "What the async operator does is a behaviour of the specification, and a corrupted run of it is refused."
)
@pytest.mark.parametrize(
    ("seeds", "corruptions"),
    [(1, CORRUPTED[:1]), pytest.param(SEEDS, CORRUPTED, marks=pytest.mark.thorough)],
    ids=["few", "all"],
)
def test_what_the_async_operator_does_is_a_behaviour_and_a_corrupted_run_is_not(
    seeds: int, corruptions: list[Callable[[], Run]]
) -> None:
    runs = [list(run_of(seed)) for seed in range(1, seeds + 1)]
    assert all(rows_of(run) > 50 for run in runs)
    corrupted = {each.__name__: each() for each in corruptions}
    accepted, _ = accepted_by_tlc([*runs, *corrupted.values()])
    assert accepted[:seeds] == [True] * seeds
    assert dict(zip(corrupted, accepted[seeds:], strict=True)) == dict.fromkeys(corrupted, False)


# -- defective operators ---------------------------------------------------------------------------


def forgotten_time(patch: pytest.MonkeyPatch) -> None:
    """A restored row has all of its time again."""
    original = CallScheduler.restore_call

    def restore_call(attempts: CallScheduler, call: Call, state: CallState) -> None:
        original(attempts, call, state._replace(spent=0.0))

    patch.setattr(CallScheduler, "restore_call", restore_call)


def forgotten_attempts(patch: pytest.MonkeyPatch) -> None:
    """A restored row has all of its attempts again."""
    original = CallScheduler.restore_call

    def restore_call(attempts: CallScheduler, call: Call, state: CallState) -> None:
        original(attempts, call, state._replace(attempts=0, error=None))

    patch.setattr(CallScheduler, "restore_call", restore_call)


def dropped_results(patch: pytest.MonkeyPatch) -> None:
    """A snapshot has no results: their rows are called again."""
    original = AsyncWaitOperator.snapshot_state

    def snapshot_state(operator: AsyncWaitOperator, barrier: Any) -> AsyncWaitState:
        state = original(operator, barrier)
        entries = [CallState(each.row) if isinstance(each, FinishedRow) else each for each in state.entries]
        return state._replace(entries=tuple(entries))

    patch.setattr(AsyncWaitOperator, "snapshot_state", snapshot_state)


def lost_emission(patch: pytest.MonkeyPatch) -> None:
    """The last of the results that go together goes nowhere."""
    original = ResultEmitter._emit_rows

    def emit_rows(emitter: ResultEmitter, results: list[Any]) -> None:
        original(emitter, results[:-1] if len(results) > 3 else results)

    patch.setattr(ResultEmitter, "_emit_rows", emit_rows)


def short_pauses(patch: pytest.MonkeyPatch) -> None:
    """A retry comes in half of its pause, where the pause is over in another life."""
    original = CallScheduler.restore_call

    def restore_call(attempts: CallScheduler, call: Call, state: CallState) -> None:
        original(attempts, call, state if state.pause is None else state._replace(pause=state.pause / 2))

    patch.setattr(CallScheduler, "restore_call", restore_call)


@pytest.mark.slow
@pytest.mark.parametrize(
    "defect", [forgotten_time, forgotten_attempts, dropped_results, lost_emission, short_pauses]
)
def test_runs_of_a_defective_operator_are_refused(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    defect(monkeypatch)
    # Not every run meets the defect.
    assert not are_behaviours(*(make_run(seed, tmp_path / str(seed)) for seed in range(1, 16)))


# -- other loops -----------------------------------------------------------------------------------


def blocking(row: int) -> int:
    if row % 7 == 0:
        raise ValueError(row)
    return row


@pytest.mark.slow
@pytest.mark.parametrize("with_ledger", [False, True])
def test_a_run_in_threads_and_one_with_a_ledger_are_behaviours_of_the_specification(
    tmp_path: Path, with_ledger: bool
) -> None:
    options: dict[str, Any] = {"retry": Retry(2, initial=0.001), "errors": "null", "capacity": 8}
    if with_ledger:
        options |= {"ledger": Ledger(str(tmp_path / "ledger"), uid="blocking", run="r")}
    with recording(tmp_path / "trace") as folder:
        for _ in range(2):
            assert len(list(async_map(list(range(60)), blocking, **options))) == 60
    first, second = (read_life(path) for path in sorted(folder.glob("*.trace")))
    assert are_behaviours(first, second)
    assert (first[-2].name, second[-2].name) == ("finish", "finish")
    found = sum(step.name == "find" for step in second)
    assert found == (51 if with_ledger else 0)


async def looked_up(row: int) -> dict[str, int]:
    await asyncio.sleep(0)
    if row % 5 == 0:
        raise ValueError(row)
    return {"id": row}


async def embedded(row: Any) -> int:
    await asyncio.sleep(0)
    return int(row["id"])


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
def test_each_operator_of_a_chain_does_what_the_specification_allows(tmp_path: Path, ordered: bool) -> None:
    with recording(tmp_path) as folder:
        results = async_map(
            list(range(60)), [looked_up, embedded], capacity=4, ordered=ordered, errors="null"
        )
        assert len(list(results)) == 60
    lives = [read_life(path) for path in sorted(folder.glob("*.trace"))]
    assert are_behaviours(*lives)
    # Rows that have failed in front come to the second operator, and are not called there.
    assert [sum(step.name == "start" for step in life) for life in lives] == [60, 48]
    assert [sum(step.name == "emit" for step in life) for life in lives] == [60, 60]


@pytest.mark.parametrize("losses", [1, 2])
def test_a_request_that_nothing_was_read_of_is_repeated_once_and_then_tried_again(
    tmp_path: Path, losses: int
) -> None:
    lost: Counter[int] = Counter()

    async def call(row: int) -> int:
        await asyncio.sleep(0)
        lost[row] += 1
        if lost[row] <= losses:
            raise RemoteDisconnected("the kept connection was closed")
        return row

    with recording(tmp_path) as folder:
        assert list(async_map([1, 2], call, retry=Retry(2, initial=0.001))) == [1, 2]
    (steps,) = (read_life(path) for path in folder.glob("*.trace"))
    names = [step.name for step in steps]
    assert (names.count("ask_again"), names.count("again")) == (2, 2 * (losses - 1))
    place = names.index("ask_again")
    row, most = steps[place].words
    unasked = [*steps]
    unasked[place] = steps[place]._replace(words=(row, 0))
    assert most == 1
    accepted, _ = accepted_by_tlc([steps, unasked])
    assert accepted == [True, False]


@pytest.mark.parametrize("fails", [False, True])
def test_calls_that_end_behind_the_close_of_their_operator_are_recorded_and_allowed(
    tmp_path: Path, fails: bool
) -> None:
    service = Closing(fails)
    with recording(tmp_path) as folder:
        life = service.life = Life([0, 1], service, None, errors="null")
        assert not life.run([], 10.0)
    (steps,) = (read_life(path) for path in folder.glob("*.trace"))
    close = steps.index(next(step for step in steps if step.name == "close"))
    late = [step.name for step in steps[close + 1 :]]
    assert late == (["fail", "give_up"] * 2 if fails else ["answer"] * 2)
    last = steps[-1]
    emitted, ended_twice = [*steps, last._replace(name="emit")], [*steps, last]
    accepted, _ = accepted_by_tlc([steps, emitted, ended_twice])
    # Of what a row ends with, no second one is known.
    assert accepted == [True, False, False]


# -- the recorder ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_restored_row_that_had_run_for_less_than_a_millisecond_has_begun(tmp_path: Path) -> None:
    # Row 1 stands behind row 0 in its second life; its time runs meanwhile.
    options: dict[str, Any] = {"timeout": 1.5, "errors": "column", "buffer": Buffer(2)}
    service = Service([1.0, 50.0], [0])
    with recording(tmp_path) as folder:
        first = Life([0, 1], service, None, capacity=2, **options)
        assert not first.run([0.0002], 0.001)
        second = Life([0, 1], service, first.snapshot, capacity=1, **options)
        assert second.run([], None)
    steps = [step for path in sorted(folder.glob("*.trace")) for step in read_life(path)]
    assert are_behaviours(steps)
    assert [step.at for step in steps if step.name == "time_out"] == [1500]


def test_nothing_of_the_recorder_is_there_while_it_is_off(tmp_path: Path) -> None:
    before = dict(vars(AsyncWaitOperator))
    module: Any = async_wait
    with recording(tmp_path):
        assert module.CallScheduler is not CallScheduler
        with pytest.raises(RuntimeError, match="recorded already"), recording(tmp_path):
            pass
    assert dict(vars(AsyncWaitOperator)) == before
    assert module.CallScheduler is CallScheduler


def test_the_line_that_a_killed_process_has_not_finished_is_no_step() -> None:
    assert read_trace('[0, "create", 1, 2, 0, 1, 0, 2, 0]\n[5, "admit", 1, 7]\n[9, "comp') == [
        TraceStep(0, "create", (1, 2, 0, 1, 0, 2, 0)),
        TraceStep(5, "admit", (1, 7)),
    ]
