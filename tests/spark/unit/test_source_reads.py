"""A read of a driver that gives out splits by need: its life, over all actions on its DataFrame."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.rpc.client import RemoteError
from pillarbox.rpc.server import Peer
from pillarbox.sources import SourceChannel
from pillarbox.sources.link import SourceEvent
from pillarbox.spark.source.driver import DriverRead, DriverReads, PeerEnd
from pillarbox.spark.source.options import schema_to_text
from tests.sources.unit.found import Findable, Finder, World
from tests.spark.unit.source_logs import LogSplit, RangeEnumerator, RangeSource
from tests.threads import begun

LONG = 20.0
END: Any = PeerEnd(object.__new__(Peer))


def ask(read: DriverRead, partition: int, index: int) -> list[str]:
    """Ask for the next splits of the partition: their names, "" for the end."""
    answer = read.ask(partition, index, "here").result(LONG)
    return [each[1]["split_id"] if each else "" for each in answer]


def all_of(read: DriverRead, partition: int) -> list[str]:
    """All that a partition reads, as an attempt asks for it."""
    found: list[str] = []
    while not found or found[-1]:
        found += ask(read, partition, len(found))
    return found[:-1]


def test_a_read_that_rests_goes_on_where_it_was_and_remembers_what_it_gave() -> None:
    read = DriverRead(RangeSource(6, 1), 2)
    first = ask(read, 0, 0)
    read.coordinator.attach(0, END)
    read.suspend()
    assert read.running, "it rests while a task reads"
    read.coordinator.detach(0, END)
    read.suspend()
    assert not read.running and not begun("pillarbox-enum")
    rest = all_of(read, 1)
    assert all_of(read, 0)[:1] == first
    assert sorted(all_of(read, 0) + rest) == [f"r{n}" for n in range(6)]
    read.suspend()
    # A later action on the same plan.
    assert all_of(read, 1) == rest
    read.close()
    assert not begun("pillarbox-enum")


class Away(RangeEnumerator):
    is_away = True

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[LogSplit], int]:
        if Away.is_away:
            raise OSError("service not there")
        return super().discover(checkpoint, most)


class AwaySource(RangeSource):
    def create_enumerator(self, context: Any) -> RangeEnumerator:
        return Away(context, self, 0)


def test_a_service_that_was_away_at_the_first_action_is_read_by_the_next() -> None:
    Away.is_away = True
    read = DriverRead(AwaySource(3, 1), 1)
    with pytest.raises(OSError, match="service not there"):
        ask(read, 0, 0)
    Away.is_away = False
    assert all_of(read, 0) == ["r0", "r1", "r2"]
    read.close()


class Hung(RangeSource):
    answers = threading.Event()

    def create_enumerator(self, context: Any) -> RangeEnumerator:
        assert Hung.answers.wait(LONG)
        return super().create_enumerator(context)


def test_a_source_whose_service_does_not_answer_holds_up_nobody_else() -> None:
    hung, ready = DriverRead(Hung(1, 1), 1), DriverRead(RangeSource(1, 1), 1)
    waiting: Future[Any] = hung.ask(0, 0, "here")
    assert all_of(ready, 0) == ["r0"]
    assert not waiting.done()
    Hung.answers.set()
    assert waiting.result(LONG)
    hung.close()
    ready.close()


def test_a_channel_that_is_closed_and_started_again_serves_its_reads() -> None:
    channel, reads = SourceChannel().start(), DriverReads()
    handle = channel.serve("reads", reads)
    reads.registered["one"] = RangeSource(2, 1)
    channel.close()
    channel.start()
    schema = schema_to_text(RangeSource(2, 1).arrow_schema())
    about = {"open": "read", "of": "one", "partitions": 1, "options": {}, "schema": schema}
    try:
        with handle.connect() as planner:
            planner.request(about)
            with pytest.raises(RemoteError, match="ValueError: partitions=0: must be from 1 to"):
                planner.request(about | {"open": "other", "partitions": 0})
        with handle.connect({"read": "read", "subtask": 0, "host": "here"}) as task:
            assert task.request({"next": 0})[0][1]["split_id"] == "r0"
    finally:
        channel.close()


def test_an_event_before_the_first_split_and_after_the_last_one_reaches_the_enumerator() -> None:
    read = DriverRead(RangeSource(1, 1, talks=True), 1)
    answers: list[Any] = []

    class Attempt:
        def push(self, body: Any) -> None:
            answers.append(body)

    peer: Any = Attempt()
    attempt = PeerEnd(peer)
    read.coordinator.attach(0, attempt)
    read.submit(read.coordinator.hear, 0, SourceEvent("hello", 0)).result(LONG)
    assert len(answers) == 1
    assert all_of(read, 0) == ["r0"]
    read.coordinator.detach(0, attempt)
    read.suspend()
    read.coordinator.attach(0, attempt)
    read.submit(read.coordinator.hear, 0, SourceEvent("hello", 0)).result(LONG)
    assert len(answers) == 2
    read.coordinator.detach(0, attempt)
    read.close()


def test_events_are_heard_in_order_also_while_the_enumerator_begins() -> None:
    begins = threading.Event()

    class Late(Findable):
        def create_enumerator(self, context: Any) -> Finder:
            assert begins.wait(LONG)
            return super().create_enumerator(context)

    world = World(0)
    read = DriverRead(Late(world), 1)
    said = [SourceEvent("count", number) for number in range(100)]
    heard = [read.submit(read.coordinator.hear, 0, event) for event in said[:50]]
    begins.set()
    heard += [read.submit(read.coordinator.hear, 0, event) for event in said[50:]]
    for future in heard:
        future.result(LONG)
    assert world.heard("event") == [(0, event) for event in said]
    read.close()


def test_a_source_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="has no end"):
        DriverRead(Findable(World(), 1.0), 2)
