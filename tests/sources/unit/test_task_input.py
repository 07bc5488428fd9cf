"""A source as the input of a task: rows, checkpoints amid a batch, what the coordinator says, event time."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.sources import Fetched, SourceInput, WatermarkStrategy
from pillarbox.sources.enumerator import (
    AddSplits,
    Failed,
    ReaderState,
    SourceEvent,
    state_from_json,
)
from pillarbox.sources.fetching import ReadFailed, Threading
from pillarbox.sources.reader import ReaderContext
from pillarbox.task import InputStatus
from pillarbox.task.protocols import TaskState
from pillarbox.testing.test_io import CollectedOutput
from tests.search import examples
from tests.sources.unit.linked import Batches, Link, Running, With
from tests.sources.unit.number_source import Numbers, Range, Script, by_split, expected, ranges
from tests.threads import begun


@pytest.mark.parametrize("model", list(Threading))
def test_a_bounded_source_is_read_to_its_end(model: Threading) -> None:
    splits = ranges(4, 35)
    link = Link(splits)
    running = Running(SourceInput(link, Numbers(splits, threading=model)))
    running.task.run()
    assert by_split(running.output.records) == expected(splits)
    assert link.ended == ["s0", "s1", "s2", "s3"]
    assert link.requests == 5
    assert link.closed == [True]
    assert begun() == []


def test_a_source_without_an_end_takes_all_splits_that_there_are() -> None:
    splits = [Range("a"), Range("b"), Range("c")]
    link = Link(splits, answer=False)
    running = Running(SourceInput(link, Numbers(splits, threading=Threading.MANY_SPLITS)))
    running.until(lambda: len(by_split(running.output.records)) == 3)
    assert link.requests == 4
    running.task.close()
    assert link.closed == [False]


def test_an_arrow_batch_is_one_element_and_a_row_of_a_sequence_is_one() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    reader = Batches(Fetched("s", batch, 3), Fetched("s", [(4,), (5,)], 5), Fetched("s", [], 5))
    running = Running(SourceInput(Link([Range("s")]), With(reader)))
    assert running.rows(3) == [batch, (4,), (5,)]
    running.task.close()


@pytest.mark.contract
@pytest.mark.parametrize("out", [0, 1, 7, 20, 23])
def test_a_checkpoint_amid_a_batch_holds_how_much_of_it_is_out(out: int) -> None:
    splits = [Range("a", 0, 45)]
    script = Script(batch=20)
    if not out:
        script.block()
    running = Running(SourceInput(Link(splits), Numbers(splits, script=script), rows_per_call=1))
    running.task.run_step()
    running.rows(out)
    written = running.input.snapshot_state()
    running.task.close()
    source = Numbers(splits)
    state = state_from_json(json.loads(json.dumps(written)), source.split_serializer)
    assert state.taken_up == 1
    (split,) = state.splits
    assert split.start + state.skip.get("a", 0) == out
    assert split.start in (0, 20)
    # Batches have another size then: the rows are passed over all the same.
    link = Link(answer=False)
    again = Running(SourceInput(link, Numbers(splits, script=Script(batch=4))))
    again.input.restore_state(json.loads(json.dumps(written)))
    again.task.run_step()
    assert link.state == state
    link.answer = True
    link.give(*state.splits, skip=state.skip)
    again.task.run()
    assert running.output.records + again.output.records == [("a", number) for number in range(45)]
    assert again.task.state is TaskState.FINISHED


def test_what_was_passed_over_counts_from_the_new_start_of_the_split() -> None:
    reader = Batches()
    link = Link(answer=False)
    running = Running(SourceInput(link, With(reader)))
    running.task.run_step()
    link.give(Range("s", 0, 100), skip={"s": 25})
    reader.put(Fetched("s", [*range(10)], 10))
    running.until(lambda: not reader.waiting and not running.task.run_step())
    state = state_from_json(running.input.snapshot_state(), Numbers([]).split_serializer)
    assert state == ReaderState(1, (Range("s", 10, 100),), {"s": 15})
    reader.put(Fetched("s", [*range(10, 20)], 20), Fetched("s", [*range(20, 30)], 30))
    assert running.rows(5) == [25, 26, 27, 28, 29]
    state = state_from_json(running.input.snapshot_state(), Numbers([]).split_serializer)
    assert state == ReaderState(1, (Range("s", 30, 100),), {})
    running.task.close()


def test_rows_of_an_arrow_batch_are_passed_over_too() -> None:
    reader, link = Batches(), Link(answer=False)
    running = Running(SourceInput(link, With(reader)))
    running.task.run_step()
    link.give(Range("s"), skip={"s": 2})
    reader.put(Fetched("s", pa.RecordBatch.from_pydict({"n": [1, 2, 3]}), 3))
    assert running.rows(1)[0].to_pydict() == {"n": [3]}
    running.task.close()


@pytest.mark.contract
@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.sampled_from(list(Threading)))
def test_each_row_is_behind_a_checkpoint_or_before_it_whenever_it_is_taken(
    stops: list[int], model: Threading
) -> None:
    splits = ranges(3, 40)
    rows: list[Any] = []
    waiting, state, skip = list(splits), (), {}  # type: ignore[var-annotated]
    for batch, stop in enumerate([*stops, 10_000], start=3):
        link = Link(waiting)
        source = Numbers(splits, threading=model, script=Script(batch=batch))
        running = Running(SourceInput(link, source))
        link.first, link.skip = state, skip
        running.task.run_step()
        wanted = min(stop, 120 - len(rows))
        running.until(lambda running=running, wanted=wanted: len(running.output.records) >= wanted)  # type: ignore[misc]
        written = state_from_json(running.input.snapshot_state(), source.split_serializer)
        rows += running.output.records
        running.task.close()
        held = {split.split_id for split in written.splits}
        assert held.isdisjoint(link.ended)
        # What was given and is not in the reader's state yet was under way.
        late = [message for message in link.messages if message.number > written.taken_up]
        state = (*written.splits, *(split for message in late for split in message.splits))
        skip = {**written.skip, **{each: out for message in late for each, out in message.skip.items()}}
        waiting = link.waiting
        if len(rows) == 120:
            break
    assert by_split(rows) == expected(splits)


def test_the_same_splits_said_twice_are_read_once() -> None:
    reader = Batches()
    link = Link(answer=False)
    running = Running(SourceInput(link, With(reader)))
    running.task.run_step()
    link.tell(AddSplits((Range("s"),), 1))
    link.tell(AddSplits((Range("s"),), 1))
    link.tell(AddSplits((Range("t"),), 2))
    running.until(lambda: len(reader.orders) == 2)
    assert reader.orders == [("add", ["s"]), ("add", ["t"])]
    running.task.close()


def test_events_go_both_ways() -> None:
    reader = Batches()
    source = With(reader)
    link = Link(answer=False)
    running = Running(SourceInput(link, source, context=ReaderContext(3, "here")))
    assert source.context is not None and source.context.send is not None
    assert (source.context.subtask, source.context.host) == (3, "here")
    source.context.send(SourceEvent("up", 1))
    running.task.run_step()
    link.tell(SourceEvent("down", 2))
    running.until(lambda: bool(reader.events))
    assert link.said == [SourceEvent("up", 1)]
    assert reader.events == [SourceEvent("down", 2)]
    running.task.close()


def test_a_failure_of_the_coordinator_or_of_the_reader_ends_the_task() -> None:
    link = Link(answer=False)
    running = Running(SourceInput(link, With(Batches())))
    running.task.run_step()
    link.tell(Failed(ConnectionError("the driver is gone")))
    with pytest.raises(ConnectionError, match="the driver is gone"):
        running.task.run()
    assert link.closed == [False]
    script = Script()
    script.fail_at["s0"] = 3
    link = Link(ranges(1, 10))
    running = Running(SourceInput(link, Numbers(ranges(1, 10), script=script)))
    with pytest.raises(ReadFailed, match="s0 cannot be read"):
        running.task.run()
    assert link.closed == [False]


# -- arguments ----------------------------------------------------------------------------------------


def test_bad_arguments_and_late_restores_are_refused() -> None:
    with pytest.raises(TypeError, match="source=None: must be a Source"):
        SourceInput(Link(), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out_of_order=-1"):
        SourceInput(Link(), Numbers([]), watermarks=WatermarkStrategy(out_of_order=-1))
    input: SourceInput[Range] = SourceInput(Link(), Numbers([]))
    with pytest.raises(ValueError, match="must be the state of a reader"):
        input.restore_state({"version": 99})
    state = input.snapshot_state()
    assert input.emit_next(CollectedOutput()) in InputStatus
    with pytest.raises(RuntimeError, match="runs already"):
        input.restore_state(state)
    input.close()
    input.close()
