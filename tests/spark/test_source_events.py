"""Events between a task and its enumerator on the driver: in a batch read, and in a stream."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa

from pillarbox.sources import EnumeratorContext, SourceEvent, Split
from pillarbox.sources.channel import ChannelError, ChannelHandle, SourceChannel
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.spark.source.driver import DriverReads
from pillarbox.spark.source.driver_read import DriverRead
from pillarbox.spark.source.link import TaskLink
from pillarbox.spark.source.offsets import OffsetCodec
from pillarbox.spark.source.options import parse_options
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.stream_driver import StreamDriver
from tests.sources.found import Findable, Finder, World

LONG = 20.0
MOST = 64 * 1024


class Talkative(Finder):
    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        if event.kind == "ask for much":
            self.context.send(subtask, SourceEvent("much", "x" * MOST))
        super().handle_source_event(subtask, event)


class Talking(Findable):
    def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
        return Talkative(context, checkpoint, self.world)


def batch() -> Iterator[ChannelHandle]:
    reads = DriverReads()
    with SourceChannel() as channel, closing(DriverRead(Talking(World(0)), 1)) as read:
        reads._reads["r"] = read
        yield channel.serve("driver", reads)


def stream() -> Iterator[ChannelHandle]:
    read = Read(Talking(World(0), interval=60.0), parse_options({"partitions": "1"}), pa.schema([]))
    with closing(StreamDriver(read, OffsetCodec(read.source))) as driver:
        # Before there are tasks, something has been planned.
        driver.plan({"version": 1, "number": 0}, ReadLimit())
        yield driver.handle()


@pytest.fixture(params=[batch, stream])
def handle(request: pytest.FixtureRequest) -> Iterator[ChannelHandle]:
    yield from request.param()


class Task(TaskLink):
    """A task's end, and what comes out of it."""

    def __init__(self, handle: ChannelHandle) -> None:
        super().__init__(handle, 0, "r")
        self.heard: queue.Queue[Any] = queue.Queue()
        self.receive = self.failed = self.heard.put

    def hears(self) -> Any:
        return self.heard.get(timeout=LONG)


def test_an_event_is_heard_as_it_was_said(handle: ChannelHandle) -> None:
    # The longest that there may be, with its quotes.
    said = [SourceEvent("echo", payload) for payload in ({"a": [1, None, "é"]}, None, "x" * (MOST - 2))]
    with closing(Task(handle)) as task:
        for event in said:
            task.send(event)
        assert [task.hears() for _ in said] == said


def test_an_event_that_is_too_long_is_refused_where_it_is_sent(handle: ChannelHandle) -> None:
    with closing(Task(handle)) as task:
        with pytest.raises(ValueError, match="event 'echo' is too long: at most 65,536 bytes"):
            task.send(SourceEvent("echo", "x" * (MOST - 1)))
        task.send(SourceEvent("echo", "short"))
        assert task.hears() == SourceEvent("echo", "short")


@pytest.mark.parametrize(
    ("kind", "why"),
    [("bad", "the enumerator is broken"), ("ask for much", "the payload of event 'much' is too long")],
)
def test_what_the_enumerator_raises_about_an_event_ends_the_task(
    handle: ChannelHandle, kind: str, why: str
) -> None:
    with closing(Task(handle)) as task:
        task.send(SourceEvent(kind))
        error = task.hears()
        assert isinstance(error, ChannelError)
        assert f"the enumerator could not take event {kind!r}: {why}" in str(error)
        with pytest.raises(ChannelError, match="could not take event"):
            task.check()
