"""Snapshots of a chain of functions, and the rows that go through it as its operators see them."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import (
    Buffer,
    Options,
    Retry,
)
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.aio.calls import Call
from pillarbox.aio.chained import ChainedRow, ChainPlace, ResultRecord, as_record, chained_call, chained_row
from pillarbox.aio.errors import Failed
from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.aio.states import FinishedRow, OutputState
from pillarbox.task import StreamTask
from pillarbox.task.checkpoint import CheckpointBarrier, TaskSnapshot
from pillarbox.task.protocols import RowBatch, Watermark
from pillarbox.testing import VirtualTimeLoop
from pillarbox.testing.test_io import ReplayedInput, RestingOutput
from tests.aio.test_chains import SECONDS, Function, results_of
from tests.aio.unit.test_wait_snapshots import UNALIGNED
from tests.aio.virtual import LONG
from tests.search import examples


def test_a_record_is_copied_pickled_and_compared_as_its_values() -> None:
    record = as_record({"id": 1, "count": "x", "_fields": 2, "index": 3})
    for other in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert other == record and (other.id, other.count, other["_fields"], other.index) == (1, "x", 2, 3)
    assert record == (1, "x", 2, 3) and hash(record) == hash((1, "x", 2, 3))
    with pytest.raises(AttributeError, match="no column 'text': the columns are id, count"):
        _ = record.text
    with pytest.raises(KeyError, match="'text': the columns are"):
        record["text"]


@pytest.mark.parametrize("given", [1, "text", None, (1, 2), {1: 2}, 2.5], ids=repr)
def test_a_value_without_names_reaches_the_next_function_as_it_is(given: Any) -> None:
    seen: list[Any] = []

    async def second(row: Any) -> None:
        seen.append(row)

    assert results_of([Function(lambda row: given), second], [0]) == [None]
    assert seen == [given] and not isinstance(seen[0], ResultRecord)


class Sources(RestingOutput):
    """Keeps of each result the row of the input that it comes from."""

    def collect(self, batch: RowBatch) -> None:
        super().collect(RowBatch([(call.source, call.ordinal, result) for call, result in batch.rows]))


CODEC = SnapshotCodec()


class ChainLife:
    """One life of a task with two functions, on a loop of its own."""

    def __init__(
        self, elements: list[Any], functions: Any, snapshot: TaskSnapshot | None, limits: Any
    ) -> None:
        self.loop = VirtualTimeLoop(longest=LONG)
        self.snapshot = snapshot
        self.committed = 0
        self.number = 0 if snapshot is None else snapshot.barrier.id
        self.output = Sources(self.loop, 2)
        operators = [
            AsyncWaitOperator(
                fn,
                Options(errors="column", retry=Retry(4, initial=1.0, maximum=2.0), **limit),
                loop=self.loop,
                context=contextvars.copy_context(),
                uid=uid,
                place=ChainPlace(uid, uid == "a", uid == "b", False),
            )
            for uid, fn, limit in zip("ab", functions, limits, strict=True)
        ]
        self.task = StreamTask(ReplayedInput(elements, 3), operators, self.output, latency_interval=None)

    def take(self) -> None:
        self.number += 1
        number = self.number

        def taken(future: Any) -> None:
            if future.exception() is None:
                # By way of its bytes, as it comes to another process.
                self.snapshot = CODEC.decode(CODEC.encode(future.result()))
                self.committed = self.output.committed[number]

        self.task.trigger_checkpoint_async(number, UNALIGNED).add_done_callback(taken)

    def run(self, snapshots_at: list[float], killed_at: float | None) -> bool:
        async def main() -> bool:
            if self.snapshot is not None:
                self.task.restore(self.snapshot)
            for at in snapshots_at:
                self.loop.call_later(at, self.take)
            running = asyncio.ensure_future(self.task.run_async())
            await (running if killed_at is None else asyncio.wait([running], timeout=killed_at))
            if running.done():
                running.result()
                self.committed = len(self.output.elements)
            return running.done()

        try:
            return self.loop.run_until_complete(main())
        finally:
            for each in asyncio.all_tasks(self.loop):
                each._log_destroy_pending = False  # type: ignore[attr-defined]
                LEFT.append(each)
            self.loop.close()


LEFT: list[asyncio.Task[Any]] = []
"""Coroutines of lives that were killed; collecting one would run what it has to do at its end."""

KILLS = st.integers(1, 60).map(lambda tenths: tenths / 10 + 0.05)


@pytest.mark.contract
@settings(max_examples=examples(150))
@given(
    elements=st.lists(st.sampled_from([True, True, True, False]), max_size=25),
    width=st.integers(0, 3),
    failing=st.integers(0, 4),
    seconds=st.lists(SECONDS, min_size=2, max_size=2),
    ordered=st.tuples(st.booleans(), st.booleans()),
    lives=st.lists(
        st.tuples(st.lists(KILLS, min_size=1, max_size=2), KILLS, st.integers(1, 5), st.integers(1, 5)),
        max_size=3,
    ),
)
def test_a_chain_restored_from_a_snapshot_of_any_moment_loses_doubles_and_repeats_nothing(
    elements: list[bool],
    width: int,
    failing: int,
    seconds: list[list[float]],
    ordered: tuple[bool, bool],
    lives: list[tuple[list[float], float, int, int]],
) -> None:
    given_in = [place if is_row else Watermark(float(place)) for place, is_row in enumerate(elements)]

    def first(row: int) -> list[dict[str, int]]:
        if failing and row % 5 == failing:
            raise ValueError(row)
        return [{"row": row, "place": place} for place in range(width)]

    functions = [
        Function(first, lambda row: seconds[0][row % len(seconds[0])]),
        Function(lambda record: tuple(record), lambda record: seconds[1][sum(record) % len(seconds[1])]),
    ]
    committed: list[Any] = []
    snapshot: TaskSnapshot | None = None
    for snapshots_at, killed_at, one, other in (*lives, ([], None, 2, 3)):
        done = [set(), set()] if snapshot is None else [finished_in(snapshot, uid) for uid in "ab"]
        before = [len(fn.calls) for fn in functions]
        limits = [
            {"capacity": capacity, "buffer": Buffer(capacity), "ordered": order}
            for capacity, order in zip((one, other), ordered, strict=True)
        ]
        life = ChainLife(given_in, functions, snapshot, limits)
        ended = life.run(snapshots_at, killed_at)
        for fn, count, finished in zip(functions, before, done, strict=True):
            assert not finished & set(fn.rows[count:]), "a row with a result in the snapshot is called"
        committed += life.output.elements[: life.committed]
        snapshot = life.snapshot
        if ended:
            break
    expected = []
    for row in (each for each in given_in if not isinstance(each, Watermark)):
        if failing and row % 5 == failing:
            expected.append((row, (), "a"))
        else:
            expected += [(row, (place,), (row, place)) for place in range(width)]
    found = [
        (source, ordinal, result.info.uid if type(result) is Failed else result)
        for source, ordinal, result in (each for each in committed if not isinstance(each, Watermark))
    ]
    assert Counter(found) == Counter(expected)
    assert found == expected or not all(ordered)
    seen: set[int] = set()
    for each in committed:
        if isinstance(each, Watermark):
            rows = {row for row, _, _ in expected if row < each.timestamp}
            assert seen == rows, "no row passes a watermark"
        else:
            seen.add(each[0])


def test_results_of_a_chain_that_nobody_has_taken_keep_what_they_belong_to_in_a_snapshot() -> None:
    call = chained_call(Call, ChainedRow(as_record({"n": 1}), "source", (0, 2), b"identity"), 5)
    output = OutputState(3, ((call, ["result"]),), False)
    barrier = CheckpointBarrier(1, 0.0, UNALIGNED)
    restored = CODEC.decode(CODEC.encode(TaskSnapshot(barrier, 0, {}, output, False))).output
    ((again, result),) = restored.rows
    assert (chained_row(again), again.held, result) == (chained_row(call), 5, ["result"])
    assert again.row.n == 1


def finished_in(snapshot: TaskSnapshot, uid: str) -> set[Any]:
    """The rows of an operator that have their result in a snapshot, as its function gets them."""
    entries = [each for each in snapshot.operators[uid].state.entries if isinstance(each, FinishedRow)]
    rows = [each.row.row if isinstance(each.row, ChainedRow) else each.row for each in entries]
    return {row for row in rows if type(row) is not Failed}
