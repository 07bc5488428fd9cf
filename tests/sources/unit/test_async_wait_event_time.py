"""The async operator behind a source with event time: watermarks and idleness from reader to output."""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pillarbox import Buffer, Options
from pillarbox.aio.async_wait import AsyncWaitOperator
from pillarbox.sources import Fetched, Source, SourceCoordinator, SourceInput, WatermarkStrategy
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.task import Operator, StreamTask
from pillarbox.task.protocols import MAX_WATERMARK, Idleness, RowBatch, Watermark
from pillarbox.testing import FakeClock
from pillarbox.testing.test_io import CollectedOutput
from tests.sources.unit.linked import Batches, Link, With
from tests.sources.unit.number_source import Range
from tests.sources.unit.settled import SettledFiles

END = Watermark(MAX_WATERMARK)


class Rows(Operator):
    """Makes rows of Arrow batches; keeps what it emits, which the operator behind it has to keep apart."""

    uid = "rows"

    def __init__(self) -> None:
        self.emitted: list[Any] = []

    def process(self, record: Any) -> None:
        rows = [(row["id"], row["event_time"]) for row in record.to_pylist()]
        self.emitted += rows
        self.output.collect(RowBatch(rows))

    def process_watermark(self, timestamp: float) -> None:
        self.emitted.append(Watermark(timestamp))
        super().process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self.emitted.append(Idleness(idle))
        super().process_status(idle)


class Results(CollectedOutput):
    """Keeps the rows that the calls of a batch were made for."""

    def collect(self, record: Any) -> None:
        self.elements += [call.row for call, _ in record.rows]


def marks_before(elements: list[Any]) -> dict[Any, tuple[Any, Any]]:
    """The newest watermark and the newest status in front of each row."""
    newest: dict[type, Any] = {}
    found: dict[Any, tuple[Any, Any]] = {}
    for element in elements:
        if isinstance(element, (Watermark, Idleness)):
            newest[type(element)] = element
        else:
            assert element not in found, "no row comes twice"
            found[element] = (newest.get(Watermark), newest.get(Idleness))
    return found


def after_some_turns(seed: int) -> Callable[[Any], Any]:
    """Ends after any number of turns of the loop, so that rows end in any order."""
    draw = random.Random(seed)

    async def call(row: Any) -> Any:
        for _ in range(draw.randrange(30)):
            await asyncio.sleep(0)
        return row

    return call


def operator(call: Any, **options: Any) -> AsyncWaitOperator:
    loop = asyncio.get_running_loop()
    return AsyncWaitOperator(
        call, Options(**options), loop=loop, context=contextvars.copy_context(), uid="wait"
    )


def files(folder: Path) -> FileSource:
    """Three files, of which each is ahead of the one before, with rows that are late."""
    for number in range(3):
        rows = [
            {"id": 100 * number + row, "event_time": 1000.0 + 50.0 * number + row - 7.0 * (row % 5 == 3)}
            for row in range(60)
        ]
        (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    schema = pa.schema([("id", pa.int64()), ("event_time", pa.float64())])
    return SettledFiles(str(folder), "json", schema=schema, batch_bytes=300)


def generated(folder: Path) -> GeneratorSource:
    return GeneratorSource(rows=180, splits=3, batch_rows=7, interval=1.0, skew=5.0, disorder=4.0)


@pytest.mark.contract
@pytest.mark.parametrize(("capacity", "reorder"), [(1, 1), (3, 4), (16, 64)])
@pytest.mark.parametrize("make", [files, generated])
@pytest.mark.parametrize("ordered", [False, True])
def test_behind_a_source_no_row_passes_a_watermark_nor_the_word_that_nothing_comes(
    make: Callable[[Path], Source[Any, Any]], ordered: bool, capacity: int, reorder: int, tmp_path: Path
) -> None:
    source = make(tmp_path)
    strategy = WatermarkStrategy("event_time", out_of_order=2.0)
    rows, output = Rows(), Results()

    async def run() -> None:
        with SourceCoordinator(source, 1) as coordinator:
            input = SourceInput(coordinator.link(0), source, watermarks=strategy)
            waits = operator(after_some_turns(17), ordered=ordered, capacity=capacity, buffer=Buffer(reorder))
            await StreamTask(input, [rows, waits], output, latency_interval=None).run_async()

    asyncio.run(run())
    came, left = marks_before(rows.emitted), marks_before(output.elements)
    assert len(came) == 180 and left == came
    assert len(set(came.values())) > 5, "there are watermarks between the rows"
    assert output.elements[-1] == END
    # As they finish, rows have changed places all the same.
    assert (list(left) == list(came)) is (ordered or capacity == 1)


@pytest.mark.contract
def test_an_idle_split_lets_the_watermark_go_on_and_it_leaves_behind_the_rows_under_way() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    strategy = WatermarkStrategy(lambda row: row[1], idle_after=10.0)
    output = Results()
    left = output.elements

    async def until(condition: Callable[[], bool]) -> None:
        """Until it holds, and the reader has nothing left to look at."""
        while not condition():
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)

    async def run() -> None:
        gates = {5.0: asyncio.Event(), 7.0: asyncio.Event(), 6.0: asyncio.Event()}

        async def call(row: Any) -> Any:
            await gates[row[1]].wait()

        waits = operator(call, ordered=False)
        input = SourceInput(link, With(reader), watermarks=strategy, clock=clock)
        task = StreamTask(input, [waits], output, latency_interval=None)
        running = asyncio.ensure_future(task.run_async())

        def held() -> int:
            return len(waits._scheduler.queue)

        await until(lambda: link.requests > 0)
        reader.put(Fetched("a", [("a", 5.0)], 1))
        await until(lambda: held() == 1)
        # Neither split says more for ten seconds: first b is idle, then all are.
        clock.advance(9.0)
        reader.put(Fetched("a", [("a", 7.0)], 2))
        await until(lambda: held() == 2)
        clock.advance(1.0)
        await until(lambda: held() == 3)
        gates[7.0].set()
        await until(lambda: left == [("a", 7.0)])
        assert held() == 2, "the watermark of a is there, and waits for the row at 5"
        clock.advance(9.0)
        await until(lambda: [type(each) for each in marks(waits)] == [Watermark, Idleness])
        gates[5.0].set()
        await until(lambda: len(left) == 4)
        assert left[1:] == [("a", 5.0), Watermark(7.0), Idleness(True)]
        # It wakes up: the word comes in front of its row, which is late and leaves all the same.
        reader.put(Fetched("b", [("b", 6.0)], 1))
        await until(lambda: len(left) == 5)
        assert left[4] == Idleness(False) and held() == 1
        gates[6.0].set()
        await until(lambda: len(left) == 6)
        assert left[5] == ("b", 6.0)
        task.cancel()
        await asyncio.wait([running])

    def marks(waits: AsyncWaitOperator) -> list[Any]:
        """The marks that wait in the operator."""
        return list(waits._emitter.last_mark or ())

    asyncio.run(run())
