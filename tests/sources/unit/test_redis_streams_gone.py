"""Streams that are deleted while tasks read them, and made anew under their names, against a real Redis."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("redis", reason="the package redis is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa

from pillarbox.sources import SourceCoordinator, SourceInput
from pillarbox.sources.connectors.redis_streams import RedisStreamReader, RedisStreamSource, RedisStreamSplit
from pillarbox.sources.fetching import ReadFailed
from pillarbox.sources.reader import SplitsAdded
from pillarbox.sources.split import DataLossError
from pillarbox.task import Operator, StreamTask
from pillarbox.testing import SourceHarness
from pillarbox.testing.source_harness import rows_of
from pillarbox.testing.test_io import CollectedOutput
from tests.servers import fixtures
from tests.servers.redis_server import RedisServer

NUMBERS = pa.schema([("_stream", pa.string()), ("n", pa.int64())])
SOON = 0.02

pytestmark = pytest.mark.server

shared_redis, server = fixtures.shared_redis, fixtures.redis

Row = tuple[str, int]


def streams_of(server: RedisServer, **how: Any) -> RedisStreamSource:
    given = {"on_data_loss": "ignore", "discovery_interval": SOON, **how}
    if "streams" not in given:
        given.setdefault("pattern", "s:*")
    return RedisStreamSource(server.url, schema=NUMBERS, **given)


def add(server: RedisServer, stream: str, *numbers: int) -> list[Row]:
    """Entries whose ids are their numbers."""
    for number in numbers:
        server.command("XADD", stream, f"{number}-0", "n", str(number))
    return [(stream, number) for number in numbers]


class Rows(Operator):
    uid = "rows"

    def process(self, batch: pa.RecordBatch) -> None:
        for row in rows_of(batch):
            self.output.collect(row)


class Run:
    """One life of a driver and its tasks, which a test takes on step by step."""

    def __init__(self, source: RedisStreamSource, readers: int = 1, checkpoint: Any = None) -> None:
        self.source = source
        self.coordinator = SourceCoordinator(source, readers, checkpoint=checkpoint).start()
        self.tasks = [self.task(at) for at in range(readers)]
        self.states: dict[int, Any] = {}

    def task(self, subtask: int, state: Any = None) -> tuple[SourceInput[Any], StreamTask, CollectedOutput]:
        reading: SourceInput[Any] = SourceInput(self.coordinator.link(subtask), self.source)
        if state is not None:
            reading.restore_state(state)
        output = CollectedOutput()
        return reading, StreamTask(reading, [Rows()], output), output

    @property
    def rows(self) -> list[Row]:
        return sorted(row for _, _, output in self.tasks for row in output.records)

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.step()

    def step(self) -> None:
        worked = [task.run_step() for _, task, _ in self.tasks]
        if not any(worked):
            self.wait()

    def wait(self) -> None:
        woken = threading.Event()
        if all(task.processor.mailbox.arm_wakeup(woken.set) for _, task, _ in self.tasks):
            woken.wait(0.01)

    def positions(self) -> dict[str, Any]:
        states = [reading.snapshot_state() for reading, _, _ in self.tasks]
        return {split["split_id"]: split.get("start") for state in states for split in state["splits"]}

    def checkpoint(self, *, complete: bool = True) -> Any:
        self.states = {at: reading.snapshot_state() for at, (reading, _, _) in enumerate(self.tasks)}
        written = json.loads(json.dumps(self.coordinator.snapshot(self.states)))
        if complete:
            self.coordinator.complete(written)
        return written

    def reader_dies(self) -> list[Row]:
        """It comes back from the last complete checkpoint; the rows that it had given till then."""
        reading, _, output = self.tasks[0]
        reading.close()
        self.tasks[0] = self.task(0, self.states[0])
        return list(output.records)

    def end(self) -> None:
        for reading, _, _ in self.tasks:
            reading.close()
        self.coordinator.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *reason: object) -> None:
        self.end()


def known_of(checkpoint: Any) -> list[str]:
    return sorted(checkpoint["enumerator"]["checkpoint"]["known"])


def checkpoint_that_knows(run: Run, *streams: str) -> Any:
    """A checkpoint taken once no other is known: a stream that ended is forgotten between two discoveries."""
    run.until(lambda: known_of(run.checkpoint()) == list(streams))
    return run.checkpoint()


def is_new(run: Run, stream: str) -> bool:
    """True if its reader stands at the beginning of a stream of which nothing has been read."""
    return run.positions().get(stream, "").startswith("0-0")


# -- one life ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [1, 2])
def test_a_stream_that_is_deleted_leaves_the_checkpoints_and_is_read_from_its_beginning_when_it_comes_again(
    server: RedisServer, readers: int
) -> None:
    expected = add(server, "s:a", 100, 101) + add(server, "s:b", 1)
    with Run(streams_of(server), readers) as run:
        run.until(lambda: run.rows == expected)
        assert known_of(run.checkpoint()) == ["s:a", "s:b"]
        server.command("DEL", "s:a")
        run.until(lambda: list(run.positions()) == ["s:b"])
        # What is known is behind the reader by one checkpoint.
        run.checkpoint()
        assert "s:a" not in json.dumps(checkpoint_that_knows(run, "s:b"))
        # Below what was read of the one before.
        expected += add(server, "s:a", 5, 6) + add(server, "s:b", 2)
        run.until(lambda: run.rows == sorted(expected))
        expected += add(server, "s:a", 7)
        run.until(lambda: run.rows == sorted(expected))
        assert known_of(run.checkpoint()) == ["s:a", "s:b"]


def test_a_stream_that_is_named_and_was_missed_is_read_from_its_beginning_and_is_not_let_go_of(
    server: RedisServer,
) -> None:
    expected = add(server, "a", 100, 101)
    with Run(streams_of(server, streams=["a", "never"])) as run:
        run.until(lambda: run.rows == expected)
        server.command("DEL", "a")
        run.until(lambda: is_new(run, "a"))
        checkpoint = run.checkpoint()
        assert known_of(checkpoint) == ["a", "never"]
        expected += add(server, "a", 5, 6)
        run.until(lambda: run.rows == sorted(expected))
    with Run(streams_of(server, streams=["a", "never"]), checkpoint=checkpoint) as run:
        run.until(lambda: run.rows == [("a", 5), ("a", 6)])


def test_a_stream_that_comes_again_begins_where_all_begin(server: RedisServer) -> None:
    add(server, "s:a", 3, 100)
    with Run(streams_of(server, start="50")) as run:
        run.until(lambda: run.rows == [("s:a", 100)])
        server.command("DEL", "s:a")
        run.until(lambda: not run.positions())
        run.checkpoint()
        add(server, "s:a", 5, 60)
        run.until(lambda: run.rows == [("s:a", 60), ("s:a", 100)])


# -- restarts ------------------------------------------------------------------------------------------

MOMENTS = ["before", "missed", "ended", "complete", "made anew"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("readers", [1, 2])
def test_a_restart_from_any_checkpoint_reads_what_was_made_anew_once(
    server: RedisServer, moment: str, readers: int
) -> None:
    old = add(server, "s:a", 100, 101)
    # Where nobody has seen that it was gone, new ids must be above the old ones, as those of Redis are.
    new = [200, 201, 202] if moment == "before" else [5, 6, 200]
    source = streams_of(server)
    with Run(source) as run:
        run.until(lambda: run.rows == old)
        taken = run.checkpoint()
        server.command("DEL", "s:a")
        run.until(lambda: is_new(run, "s:a"))
        if moment == "missed":
            taken = run.checkpoint(complete=False)
        run.until(lambda: not run.positions())
        if moment in ("ended", "complete"):
            # The readers are ahead of what is known.
            taken = run.checkpoint()
            assert known_of(taken) == ["s:a"] and not taken["readers"] and not taken["waiting"]
        if moment == "complete":
            taken = checkpoint_that_knows(run)
        if moment == "made anew":
            run.checkpoint()
        expected = add(server, "s:a", *new)
        if moment == "made anew":
            run.until(lambda: run.rows == sorted(old + expected))
            taken = run.checkpoint()
            expected = add(server, "s:a", 300)
    with Run(source, readers, taken) as run:
        run.until(lambda: run.rows == expected)
        add(server, "s:b", 1)
        run.until(lambda: ("s:b", 1) in run.rows)
        assert run.rows == [*expected, ("s:b", 1)]


def test_a_reader_that_goes_back_behind_the_end_of_a_stream_has_it_again_and_nobody_else(
    server: RedisServer,
) -> None:
    old = add(server, "s:a", 100, 101)
    with Run(streams_of(server), 2) as run:
        run.until(lambda: run.rows == old)
        run.checkpoint()
        server.command("DEL", "s:a")
        run.until(lambda: not run.positions())
        # Put together without it, and given up as a reader dies.
        lacking = json.loads(json.dumps(run.coordinator.snapshot(
            {at: reading.snapshot_state() for at, (reading, _, _) in enumerate(run.tasks)}
        )))  # fmt: skip
        committed = run.reader_dies()
        with pytest.raises(ValueError, match="given up"):
            run.coordinator.complete(lacking)
        new = add(server, "s:a", 200, 201)
        add(server, "s:b", 1)
        run.until(lambda: ("s:b", 1) in run.rows and ("s:a", 201) in run.rows)
        assert sorted({*committed, *run.rows}) == sorted([*old, *new, ("s:b", 1)])
        assert [row for row in run.rows if row in new] == new
        for _ in range(2):
            assert known_of(run.checkpoint()) == ["s:a", "s:b"]


class Life:
    """Runs one after the other, and what of their rows is committed. Each number is added once, and rises."""

    def __init__(self, server: RedisServer, draw: random.Random) -> None:
        self.server, self.draw = server, draw
        self.source = streams_of(server)
        self.there: dict[str, list[Row]] = {"s:a": [], "s:b": []}
        self.added = 100
        self.committed: list[Row] = []
        # Of each task, how many of its rows are committed.
        self.behind: dict[int, int] = {}
        self.last: Any = None
        self.run = Run(self.source)

    def add(self) -> None:
        stream = self.draw.choice(sorted(self.there))
        numbers = range(self.added, self.added + self.draw.randrange(1, 4))
        self.added = numbers.stop
        self.there[stream] += add(self.server, stream, *numbers)

    def delete(self) -> None:
        stream = self.draw.choice(sorted(self.there))
        self.server.command("DEL", stream)
        self.there[stream] = []

    def go_on(self) -> None:
        for _ in range(self.draw.choice([1, 5, 25])):
            self.run.step()

    def checkpoint(self) -> None:
        counts = [len(self.rows(at)) for at in range(len(self.run.tasks))]
        states = {at: reading.snapshot_state() for at, (reading, _, _) in enumerate(self.run.tasks)}
        if self.draw.random() < 0.5:
            # They read on, and end what is gone, before the parts are put together.
            self.go_on()
        last = json.loads(json.dumps(self.run.coordinator.snapshot(states)))
        if self.draw.random() < 0.7:
            self.run.coordinator.complete(last)
            self.last, self.run.states = last, states
            for at, count in enumerate(counts):
                self.committed += self.rows(at)[self.behind.get(at, 0) : count]
            self.behind = dict(enumerate(counts))

    def reader_dies(self) -> None:
        at = self.draw.randrange(len(self.run.tasks))
        self.run.tasks[at][0].close()
        self.run.tasks[at] = self.run.task(at, self.run.states.get(at))
        self.behind[at] = 0
        # Not before it is there it has a part of its own.
        self.run.step()

    def driver_dies(self) -> None:
        self.run.end()
        self.run = Run(self.source, self.draw.choice([1, 2]), self.last)
        self.behind = {}
        self.run.step()

    def rows(self, at: int) -> list[Row]:
        return self.run.tasks[at][2].records

    def is_read(self) -> bool:
        given = [self.rows(at)[self.behind.get(at, 0) :] for at in range(len(self.run.tasks))]
        rows = [*self.committed, *chain(*given)]
        assert len(rows) == len(set(rows)), sorted(rows)
        return {row for rows in self.there.values() for row in rows} <= set(rows)


@pytest.mark.contract(needs="Redis, which keeps what is pending")
@pytest.mark.parametrize("seed", range(8))
def test_whoever_dies_and_whatever_is_deleted_no_entry_comes_twice_and_those_that_stay_come(
    server: RedisServer, seed: int
) -> None:
    draw = random.Random(seed)
    life = Life(server, draw)
    steps = [life.add, life.delete, life.go_on, life.checkpoint, life.reader_dies, life.driver_dies]
    try:
        for _ in range(50):
            draw.choices(steps, [4, 2, 8, 4, 1, 1])[0]()
            life.is_read()
        while not life.is_read():
            life.go_on()
            life.checkpoint()
    finally:
        life.run.end()


def test_a_harness_goes_on_as_a_run_does(server: RedisServer) -> None:
    add(server, "s:a", 100)
    source = streams_of(server)
    with SourceHarness(source) as harness:
        harness.read(1)
        server.command("DEL", "s:a")
        harness.read_until(lambda: bool(harness.fetched) and harness.fetched[-1].finished)
        snapshot = harness.snapshot()
    assert snapshot["waiting"] == []
    expected = add(server, "s:a", 5)
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.read(1) == expected


def test_streams_that_were_not_given_out_before_a_restart_are_found_once(server: RedisServer) -> None:
    expected = [row for name in ("s:a", "s:b", "s:c") for row in add(server, name, 1)]
    source = streams_of(server)
    with SourceHarness(source) as harness:
        harness.discover(1)
        snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot) as harness:
        found = [split.stream for _ in range(3) for split in harness.discover(1)]
        assert found == ["s:b", "s:c"]
        assert sorted(harness.read(3)) == expected


def range_whose_end_went_back(server: RedisServer, on_data_loss: str) -> list[Row]:
    """The rows of a range of three entries, the last of which Redis has lost, as in a crash."""
    add(server, "s:a", 1, 2, 3)
    with SourceHarness(streams_of(server, streams="s:a", on_data_loss=on_data_loss)) as harness:
        (piece,) = harness.plan()
        server.command("DEL", "s:a")
        add(server, "s:a", 1, 2)
        return harness.read_split(piece)


def test_a_range_whose_end_went_back_ends_with_what_is_there(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert range_whose_end_went_back(server, "ignore") == [("s:a", 1), ("s:a", 2)]
    assert "stream 's:a' ends at 2-0 now, and was to be read up to 3-1" in caplog.text


# -- where loss is an error ----------------------------------------------------------------------------


@pytest.fixture
def reader(server: RedisServer) -> Iterator[RedisStreamReader]:
    source = streams_of(server, on_data_loss="fail")
    reader = RedisStreamReader(source, source.arrow_schema())
    reader.handle_splits_changes(SplitsAdded((RedisStreamSplit("s:a", stream="s:a"),)))
    yield reader
    reader.close()


def fetch_on(reader: RedisStreamReader) -> None:
    while True:
        reader.fetch()


def test_a_stream_that_is_deleted_with_entries_that_were_seen_is_an_error(
    server: RedisServer, reader: RedisStreamReader
) -> None:
    many = "for i = 1, 500 do redis.call('XADD', KEYS[1], i .. '-0', 'n', i) end"
    server.command("EVAL", many, "1", "s:a")
    (fetched,) = reader.fetch()
    assert len(fetched.records) < 500
    server.command("DEL", "s:a")
    with pytest.raises(
        DataLossError, match=r"stream 's:a' is gone, with the entries from \d+-1 on\. on_data"
    ):
        reader.fetch()


def test_a_stream_that_was_read_is_waited_for_and_is_an_error_when_another_one_comes_below(
    server: RedisServer, reader: RedisStreamReader
) -> None:
    add(server, "s:a", 100, 101)
    (fetched,) = reader.fetch()
    server.command("DEL", "s:a")
    while reader.cursors["s:a"].missed is None:
        assert reader.fetch() == []
    assert str(reader.cursors["s:a"].position) == fetched.position
    add(server, "s:a", 5)
    says = "stream 's:a', from 101-1 on: the stream was deleted and made anew"
    with pytest.raises(DataLossError, match=says):
        fetch_on(reader)


def test_a_range_whose_end_went_back_is_an_error(server: RedisServer) -> None:
    with pytest.raises(ReadFailed, match="stream 's:a' ends at 2-0 now, and was to be read up to 3-1"):
        range_whose_end_went_back(server, "fail")


def test_a_task_fails_with_the_error(server: RedisServer) -> None:
    old = add(server, "s:a", 100, 101, 102)
    with Run(streams_of(server, on_data_loss="fail")) as run:
        run.until(lambda: run.rows == old)
        checkpoint = run.checkpoint()
        server.command("DEL", "s:a")
    add(server, "s:a", 200)
    with (
        Run(streams_of(server, on_data_loss="fail"), checkpoint=checkpoint) as run,
        pytest.raises(ReadFailed, match="the stream was deleted and made anew") as raised,
    ):
        run.until(lambda: False)
    assert isinstance(raised.value.__cause__, DataLossError)
