"""The coordinator as its readers see it."""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.sources import SourceCoordinator, Split, WatermarkStrategy
from pillarbox.sources.enumerator import (
    AddSplits,
    EventTimeLimit,
    Failed,
    NoMoreSplits,
    OperatorEvent,
    ReaderState,
    SourceEvent,
    state_from_json,
    state_to_json,
)
from pillarbox.sources.split_coordinator import CoordinatorLink
from tests.sources.unit.found import LONG, Findable, World

Links = Callable[[SourceCoordinator[Split], int], "Reader"]


class Reader:
    """A reader that a test moves by hand: its link, and what it was told."""

    def __init__(self, link: CoordinatorLink[Split]) -> None:
        self.link = link
        self.changed = threading.Condition()
        self.messages: list[Any] = []

    def open(self, state: ReaderState[Split] | None = None) -> Reader:
        self.link.open(self._receive, state)
        return self

    def _receive(self, message: Any) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def all(self, kind: type[Any]) -> list[Any]:
        with self.changed:
            return [each for each in self.messages if isinstance(each, kind)]

    def until(self, message: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: message in self.messages, LONG), self.messages

    def wait(self, kind: type[Any], count: int = 1) -> Any:
        """The message of this kind, the `count`th one."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.all(kind)) >= count, LONG), self.messages
            return self.all(kind)[count - 1]

    @property
    def ids(self) -> list[str]:
        return [split.split_id for message in self.all(AddSplits) for split in message.splits]


@pytest.fixture
def reader() -> Iterator[Links]:
    made: list[Reader] = []

    def make(coordinator: SourceCoordinator[Split], subtask: int) -> Reader:
        made.append(Reader(coordinator.link(subtask)))
        return made[-1]

    yield make
    for each in made:
        each.link.close()


def two_with_splits(coordinator: SourceCoordinator[Split], reader: Links) -> tuple[Reader, Reader]:
    """Two readers that have been given splits."""
    readers = reader(coordinator, 0).open(), reader(coordinator, 1).open()
    for each in readers:
        each.link.request_split()
        each.wait(AddSplits)
    return readers


def test_each_request_has_a_split_until_there_are_none(reader: Links) -> None:
    with SourceCoordinator(Findable(World(3)), 2) as coordinator:
        first, second = reader(coordinator, 0).open(), reader(coordinator, 1).open()
        first.link.request_split()
        first.wait(AddSplits)
        second.link.request_split()
        second.wait(AddSplits)
        first.link.request_split()
        assert first.wait(AddSplits, 2).splits == (Split("s2", 0, 10),)
        second.link.finished(["s1"])
        second.link.request_split()
        first.link.finished(["s0", "s2"])
        second.wait(NoMoreSplits)
        assert (first.ids, second.ids) == (["s0", "s2"], ["s1"])
        first.link.request_split()
        first.wait(NoMoreSplits)


def test_10_000_splits_by_rule_come_in_one_message_whole(reader: Links) -> None:
    world = World(10_000)
    # So long that a message of them comes in pieces.
    world.make = lambda number: Split(f"s{number}-{'x' * 300}", 0, 10)
    world.rule = lambda split: 0
    with SourceCoordinator(Findable(world), 1) as coordinator:
        one = reader(coordinator, 0).open()
        with one.changed:
            assert one.changed.wait_for(lambda: len(one.ids) == 10_000, LONG)
        assert [name.partition("-")[0] for name in one.ids] == [f"s{number}" for number in range(10_000)]
        numbers = [each.number for each in one.all(AddSplits)]
        assert numbers == sorted(set(numbers))


def test_events_go_both_ways_in_order(reader: Links) -> None:
    world = World(0)
    with SourceCoordinator(Findable(world), 1) as coordinator:
        one = reader(coordinator, 0).open()
        said = [SourceEvent("echo", {"number": number, "text": "é"}) for number in range(50)]
        for event in said:
            one.link.send(event)
        one.wait(SourceEvent, 50)
        assert one.all(SourceEvent) == said
        assert world.heard("event") == [(0, event) for event in said]


@pytest.mark.contract
def test_what_the_enumerator_raises_fails_every_reader_and_who_comes_later(reader: Links) -> None:
    failed: list[BaseException] = []
    with SourceCoordinator(Findable(World(1)), 3, failed=failed.append) as coordinator:
        first, second = reader(coordinator, 0).open(), reader(coordinator, 1).open()
        second.link.request_split()
        second.wait(AddSplits)
        first.link.send(SourceEvent("bad"))
        for each in (first, second):
            assert "the enumerator is broken" in str(each.wait(Failed).error)
        assert "the enumerator is broken" in str(reader(coordinator, 2).open().wait(Failed).error)
        assert [str(error) for error in failed] == ["the enumerator is broken"]
        assert coordinator.failure is failed[0]
        with pytest.raises(OSError, match="the enumerator is broken"):
            coordinator.snapshot({})


def test_a_reader_that_comes_while_the_coordinator_fails_is_told(reader: Links) -> None:
    world, goes_on = World(1), threading.Event()
    with SourceCoordinator(Findable(world), 2) as coordinator:
        first, second = reader(coordinator, 0).open(), reader(coordinator, 1)
        world.until(lambda: world.heard("reader") == [0])
        coordinator._thread.execute(goes_on.wait, LONG)
        first.link.send(SourceEvent("bad"))
        second.open()
        goes_on.set()
        for each in (first, second):
            assert "the enumerator is broken" in str(each.wait(Failed).error)


def test_the_end_of_the_coordinator_fails_its_readers(reader: Links) -> None:
    with SourceCoordinator(Findable(World(1)), 1) as coordinator:
        one = reader(coordinator, 0).open()
        one.link.request_split()
        one.wait(AddSplits)
    assert isinstance(one.wait(Failed).error, RuntimeError)
    assert one.messages[-1] == one.all(Failed)[0]


def test_who_takes_the_place_of_another_has_what_that_one_had_and_it_is_heard_no_more(reader: Links) -> None:
    world = World(2)
    with SourceCoordinator(Findable(world), 1) as coordinator:
        former = reader(coordinator, 0).open()
        former.link.request_split()
        former.wait(AddSplits)
        one = reader(coordinator, 0).open()
        assert "reader 0 was replaced" in str(former.wait(Failed).error)
        former.link.request_split()
        former.link.finished(["s0"])
        former.link.send(SourceEvent("bad"))
        for count in (1, 2):
            one.link.request_split()
            one.wait(AddSplits, count)
        assert sorted(one.ids) == ["s0", "s1"]
        assert former.ids == ["s0"]
        assert world.heard("back") == [(0, ["s0"])]
        assert coordinator.failure is None


def test_a_reader_that_leaves_gives_back_what_it_had_unless_it_is_done(reader: Links) -> None:
    world = World(2)
    with SourceCoordinator(Findable(world), 2) as coordinator:
        first, second = two_with_splits(coordinator, reader)
        first.link.finished(first.ids)
        first.link.close(done=True)
        second.link.finished(second.ids)
        second.link.request_split()
        second.wait(NoMoreSplits)
        second.link.close(done=False)
        world.until(lambda: bool(world.heard("back")))
        assert world.heard("back") == [(1, second.ids)]


def test_splits_without_an_end_are_dealt_out_evenly_and_a_dead_ones_to_the_living(reader: Links) -> None:
    world = World(6)
    world.make = lambda number: Split(f"s{number}")
    with SourceCoordinator(Findable(world, 1000.0), 3) as coordinator:
        readers = [reader(coordinator, subtask).open() for subtask in range(3)]
        for each in readers:
            each.wait(AddSplits)
            assert len(each.ids) == 2
        readers[0].link.close()
        with readers[1].changed:
            assert readers[1].changed.wait_for(lambda: len(readers[1].ids) == 3, LONG)
        with readers[2].changed:
            assert readers[2].changed.wait_for(lambda: len(readers[2].ids) == 3, LONG)


def test_no_split_without_an_end_is_dealt_out_to_a_reader_that_ends() -> None:
    world = World()
    world.make = lambda number: Split(f"s{number}")
    with SourceCoordinator(Findable(world, 0.01), 2) as coordinator:
        ends, stays = (Reader(coordinator.link(subtask)).open() for subtask in range(2))
        ends.link.send(SourceEvent("enough"))
        ends.wait(NoMoreSplits)
        world.add(2)
        with stays.changed:
            assert stays.changed.wait_for(lambda: len(stays.ids) == 2, LONG)
        assert coordinator.failure is None


def test_event_times_are_kept_together(reader: Links) -> None:
    world = World(2)
    strategy = WatermarkStrategy(max_drift=10.0)
    with SourceCoordinator(Findable(world), 2, watermarks=strategy) as coordinator:
        slow, fast = two_with_splits(coordinator, reader)

        def told(*limits: float) -> None:
            for each in (slow, fast):
                each.wait(EventTimeLimit, len(limits))
                assert each.all(EventTimeLimit) == [EventTimeLimit(limit) for limit in limits]

        fast.link.report({fast.ids[0]: 100.0, slow.ids[0]: -1000.0, "nobody's": -1000.0})
        told(110.0)
        slow.link.report({slow.ids[0]: 0.0})
        told(110.0, 10.0)
        # Idle, awake, at the end of time, finished.
        slow.link.report({slow.ids[0]: None})
        told(110.0, 10.0, 110.0)
        slow.link.report({slow.ids[0]: 1.0})
        told(110.0, 10.0, 110.0, 11.0)
        slow.link.report({slow.ids[0]: math.inf})
        told(110.0, 10.0, 110.0, 11.0, 110.0)
        fast.link.finished(fast.ids)
        told(110.0, 10.0, 110.0, 11.0, 110.0, math.inf)


def test_who_comes_late_is_told_the_limit_before_its_splits(reader: Links) -> None:
    strategy = WatermarkStrategy(max_drift=10.0)
    with SourceCoordinator(Findable(World(2)), 2, watermarks=strategy) as coordinator:
        first = reader(coordinator, 0).open()
        first.link.request_split()
        first.wait(AddSplits)
        first.link.report({first.ids[0]: 7.0})
        first.wait(EventTimeLimit)
        late = reader(coordinator, 1).open()
        late.link.request_split()
        late.wait(AddSplits)
        assert late.messages[0] == EventTimeLimit(17.0)


def test_a_reader_that_dies_holds_nobody(reader: Links) -> None:
    strategy = WatermarkStrategy(max_drift=10.0)
    with SourceCoordinator(Findable(World(2)), 2, watermarks=strategy) as coordinator:
        slow, fast = two_with_splits(coordinator, reader)
        slow.link.report({slow.ids[0]: 0.0})
        fast.link.report({fast.ids[0]: 100.0})
        fast.until(EventTimeLimit(10.0))
        slow.link.close()
        fast.until(EventTimeLimit(110.0))


@pytest.mark.contract
def test_a_checkpoint_is_json_and_another_parallelism_goes_on_from_it(reader: Links) -> None:
    world = World(4)
    source = Findable(world)
    with SourceCoordinator(source, 2) as coordinator:
        two_with_splits(coordinator, reader)
        half = ReaderState(1, (Split("s0", 7, 10),), {"s0": 2})
        # The second has its split still under way, as far as its part says.
        parts = {
            0: state_to_json(half, source.split_serializer),
            1: state_to_json(ReaderState[Split](), source.split_serializer),
        }
        checkpoint = json.loads(json.dumps(coordinator.snapshot(parts)))
        coordinator.complete(checkpoint)
        with pytest.raises(ValueError, match="does not exist, or was given up"):
            coordinator.complete(checkpoint)
    world.add(1)
    with SourceCoordinator(source, 1, checkpoint=checkpoint) as coordinator:
        one = reader(coordinator, 0).open(half)
        for count in range(1, 6):
            one.link.request_split()
            one.wait(AddSplits, count)
        rest = {split.split_id: split.start for each in one.all(AddSplits) for split in each.splits}
        assert rest == {"s0": 7, "s1": 0, "s2": 0, "s3": 0, "s4": 0}
        assert [each.skip for each in one.all(AddSplits) if each.skip] == [{"s0": 2}]


def test_a_reader_that_was_restored_is_refused_where_the_coordinator_was_not(reader: Links) -> None:
    with SourceCoordinator(Findable(World(1)), 1) as coordinator:
        one = reader(coordinator, 0).open(ReaderState(3, (Split("s0", 5, 10),)))
        assert "both must begin anew" in str(one.wait(Failed).error)


def test_a_reader_that_was_restored_from_a_checkpoint_is_refused_until_that_is_known_to_be_complete(
    reader: Links,
) -> None:
    with SourceCoordinator(Findable(World(2)), 1) as coordinator:
        one = reader(coordinator, 0).open()
        one.link.request_split()
        one.wait(AddSplits)
        state = ReaderState(1, (Split("s0", 5, 10),), {"s0": 2})
        written = state_to_json(state, Findable(World()).split_serializer)
        checkpoint = coordinator.snapshot({0: written})
        early = reader(coordinator, 0).open(state)
        assert "`complete` was not called" in str(early.wait(Failed).error)
        # The one that was there is there still, and so is the checkpoint.
        assert one.all(Failed) == []
        coordinator.complete(checkpoint)
        unlike = ReaderState(1, state.splits, {"s0": 3})
        assert "another checkpoint" in str(reader(coordinator, 0).open(unlike).wait(Failed).error)
        again = reader(coordinator, 0).open(state)
        assert again.wait(AddSplits) == AddSplits(state.splits, 2, {"s0": 2})
        assert again.all(Failed) == []


def test_what_the_service_says_to_a_commit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World(0)
    with caplog.at_level(logging.ERROR), SourceCoordinator(Findable(world), 1) as coordinator:
        coordinator.notify_committed({"s0": 5})
        coordinator.notify_committed({"bad": 5})
        coordinator.notify_committed({"s0": 6})
        world.until(lambda: len(world.heard("committed")) == 3)
        coordinator.snapshot({})
    assert world.heard("committed") == [{"s0": 5}, {"bad": 5}, {"s0": 6}]
    assert "the service is broken" in caplog.text


def test_the_enumerator_knows_its_readers_and_their_machines(reader: Links) -> None:
    world = World(0)
    with SourceCoordinator(Findable(world), 2) as coordinator:
        reader(coordinator, 1).open()
        world.until(lambda: world.heard("reader") == [1])
        readers = coordinator._thread.submit(lambda: dict(coordinator._coordinator.readers)).result(LONG)
        assert [(info.subtask, info.host) for info in readers.values()] == [(1, socket.gethostname())]


@pytest.mark.parametrize(
    ("source", "parallelism", "more", "error", "text"),
    [
        ("x", 1, {}, TypeError, "source='x': must be a Source"),
        (Findable(World()), 0, {}, ValueError, "parallelism=0"),
        (Findable(World()), True, {}, TypeError, "parallelism=True"),
        (Findable(World()), 1, {"checkpoint": {"version": 2}}, ValueError, "version 1"),
    ],
)
def test_a_bad_argument_is_named(
    source: Any, parallelism: Any, more: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        SourceCoordinator(source, parallelism, **more)


def test_places_of_readers_are_checked() -> None:
    with (
        SourceCoordinator(Findable(World()), 2) as coordinator,
        pytest.raises(ValueError, match="subtask=2: must be from 0 to 1"),
    ):
        coordinator.link(2)


def test_a_state_that_nobody_has_written_is_refused() -> None:
    serializer = Findable(World()).split_serializer
    state = ReaderState(4, (Split("a", 1, 2),), {"a": 3})
    assert state_from_json(json.loads(json.dumps(state_to_json(state, serializer))), serializer) == state
    with pytest.raises(ValueError, match="must be the state of a reader"):
        state_from_json({"version": 7}, serializer)


def test_every_message_to_a_reader_is_an_operator_event() -> None:
    event = SourceEvent("echo")
    messages = [
        AddSplits((), 1), NoMoreSplits(), EventTimeLimit(1.0), Failed(OSError()), event,
    ]  # fmt: skip
    assert all(isinstance(each, OperatorEvent) for each in messages)
