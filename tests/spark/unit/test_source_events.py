"""Events between a task and its enumerator on the driver: in a batch read, and in a stream."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pillarbox.rpc.client import RpcError, RpcHandle
from pillarbox.sources import SourceChannel, Split
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.link import SourceEvent
from pillarbox.spark.source.driver import DriverRead, DriverReads
from pillarbox.spark.source.options import Read
from pillarbox.spark.source.tasks import TaskLink
from tests.sources.unit.found import Findable, Finder, World

LONG = 20.0
MAX_EVENT_BYTES = 64 * 1024


class Talkative(Finder):
    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        if event.kind == "ask for much":
            self.context.send(subtask, SourceEvent("much", "x" * MAX_EVENT_BYTES))
        super().handle_source_event(subtask, event)


class Talking(Findable):
    def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
        return Talkative(context, checkpoint, self.world)


def batch() -> Iterator[RpcHandle]:
    reads = DriverReads()
    with SourceChannel() as channel, closing(DriverRead(Talking(World(0)), 1)) as read:
        reads._reads["r"] = read
        yield channel.serve("driver", reads)


def stream() -> Iterator[RpcHandle]:
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark has no such streams")
    from pillarbox.spark.source.stream import StreamReader

    reader = StreamReader(Read.of(Talking(World(0), interval=60.0), {"partitions": "1"}))
    # Before there are tasks, something has been planned.
    reader.latestOffset(reader.initialOffset(), limits.ReadAllAvailable())
    yield reader._handle
    reader.stop()


@pytest.fixture(params=[batch, stream])
def handle(request: pytest.FixtureRequest) -> Iterator[RpcHandle]:
    yield from request.param()


class Task(TaskLink):
    """A task's end, and what comes out of it."""

    def hears(self) -> list[SourceEvent]:
        heard: list[SourceEvent] = []
        while not heard:
            theirs: Future[None] = Future()
            either = self.either(theirs)
            if either is not None:
                either.result(LONG)
            self.hand_over(heard.append)
        return heard


def test_an_event_is_heard_as_it_was_said(handle: RpcHandle) -> None:
    # The longest that there may be, with its quotes.
    said = [
        SourceEvent("echo", payload) for payload in ({"a": [1, None, "é"]}, None, "x" * (MAX_EVENT_BYTES - 2))
    ]
    with closing(Task(handle, 0, "r")) as task:
        for event in said:
            task.send(event)
        heard: list[SourceEvent] = []
        while len(heard) < len(said):
            heard += task.hears()
        assert heard == said


def test_an_event_that_is_too_long_is_refused_where_it_is_sent(handle: RpcHandle) -> None:
    with closing(Task(handle, 0, "r")) as task:
        with pytest.raises(ValueError, match="event 'echo' is too long: at most 65,536 bytes"):
            task.send(SourceEvent("echo", "x" * (MAX_EVENT_BYTES - 1)))
        task.send(SourceEvent("echo", "short"))
        assert task.hears() == [SourceEvent("echo", "short")]


@pytest.mark.parametrize(
    ("kind", "why"),
    [("bad", "the enumerator is broken"), ("ask for much", "the payload of event 'much' is too long")],
)
def test_what_the_enumerator_raises_about_an_event_ends_the_task(
    handle: RpcHandle, kind: str, why: str
) -> None:
    with closing(Task(handle, 0, "r")) as task:
        task.send(SourceEvent(kind))
        with pytest.raises(RpcError, match=f"the enumerator could not take event {kind!r}: {why}"):
            task.hears()
        with pytest.raises(RpcError, match="could not take event"):
            task.send(SourceEvent("echo"))
