"""Tasks that ask for splits over the channel: several at once where they are small."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest

from pillarbox.rpc.client import RpcHandle
from pillarbox.sources import FetchingReader, SourceChannel, Split
from pillarbox.sources.reader import ReaderContext
from pillarbox.sources.reading import read_splits
from pillarbox.spark.source.driver import DriverRead, DriverReads
from pillarbox.spark.source.tasks import SplitRequests, TaskLink
from tests.sources.unit.found import LONG, Findable, Plain, World
from tests.sources.unit.number_source import Script

SERIALIZER = Findable(World()).split_serializer


def requested(link: TaskLink) -> Iterator[Split]:
    """The splits of a partition, each waited for."""
    ask = SplitRequests(link.submit, SERIALIZER)
    while (split := ask()) is not None:
        if isinstance(split, Future):
            split = split.result(LONG)
        if split is None:
            return
        yield split


class Driver:
    """A driver with a read, and how many requests it has had."""

    def __init__(self, channel: SourceChannel, world: World, partitions: int) -> None:
        self.reads = DriverReads()
        self.requests: list[Any] = []
        self.handle: RpcHandle = channel.serve("driver", self)
        self.read = DriverRead(Plain(world), partitions)
        self.reads._reads["r"] = self.read
        self.opened, self.pushed, self.gone = self.reads.opened, self.reads.pushed, self.reads.gone

    def request(self, peer: Any, body: Any) -> Any:
        self.requests.append(body)
        return self.reads.request(peer, body)

    def attempt(self, partition: int) -> list[str]:
        with closing(TaskLink(self.handle, partition, "r")) as link:
            return [split.split_id for split in requested(link)]


@pytest.fixture
def channel() -> Iterator[SourceChannel]:
    with SourceChannel() as channel:
        yield channel


def test_many_small_splits_take_few_requests_and_a_later_attempt_fewer(channel: SourceChannel) -> None:
    driver = Driver(channel, World(3000), 2)
    first = driver.attempt(0)
    assert first == [f"s{number}" for number in range(3000)]
    assert len(driver.requests) < 400
    driver.requests.clear()
    assert driver.attempt(0) == first
    assert len(driver.requests) == 3000 // 64 + 1
    assert driver.attempt(1) == []
    assert driver.attempt(0) == first
    driver.read.close()


def test_long_splits_come_in_answers_that_a_message_holds(channel: SourceChannel) -> None:
    world = World(100)
    world.make = lambda number: Split(f"s{number}-" + "x" * 30_000, 0, 10)
    driver = Driver(channel, world, 1)
    first = driver.attempt(0)
    assert [name.partition("-")[0] for name in first] == [f"s{number}" for number in range(100)]
    assert driver.attempt(0) == first
    driver.read.close()


def test_the_rows_of_a_split_come_while_the_next_one_is_still_looked_for(channel: SourceChannel) -> None:
    world = World(2)

    def make(number: int) -> Split:
        # Then the next discovery waits.
        world.blocked = number == 1
        return Split(f"s{number}", 0, 30)

    world.make = make
    driver = Driver(channel, world, 1)
    reader: FetchingReader[Any] = FetchingReader(ReaderContext(), Script().make)
    began = time.monotonic()
    with closing(TaskLink(driver.handle, 0, "r")) as link:
        rows = []
        for fetched in read_splits(reader, SplitRequests(link.submit, SERIALIZER)):
            rows += fetched.records
            if len(rows) == 60:
                assert time.monotonic() - began < LONG / 2
                world.unblock()
    assert rows == [(f"s{split}", number) for split in range(2) for number in range(30)]
    driver.read.close()


def test_a_read_that_was_ended_too_early_says_so(channel: SourceChannel) -> None:
    driver = Driver(channel, World(10), 1)
    with closing(TaskLink(driver.handle, 0, "r")) as link:
        splits = requested(link)
        assert next(splits) == Split("s0", 0, 10)
        driver.read.close()
        with pytest.raises(RuntimeError, match="planned too long ago"):
            next(splits)
    # It has not begun anew: splits would be given out twice.
    assert not driver.read.running
