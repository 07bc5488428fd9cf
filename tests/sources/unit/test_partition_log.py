"""The log of each partition of a bounded read: every attempt sees the same, and each split is in one log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pillarbox.sources import Split
from pillarbox.sources.enumerator import EnumeratorContext
from pillarbox.sources.link import Event, SourceEvent
from pillarbox.sources.split_coordinator import Delivery, SplitCoordinator
from tests.search import examples
from tests.sources.unit.assigned import Reader, Run
from tests.sources.unit.found import LONG, Findable, Finder, Plain, World

PARTITIONS = 3


class Attempts(RuleBasedStateMachine):
    """Attempts of partitions that ask, die, are speculated and commit, while splits are found."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run(PARTITIONS, delivery=Delivery.REPLAYED)
        self.found = 0
        self.attempts: dict[int, tuple[int, list[str]]] = {}
        self.committed: dict[int, list[str]] = {}

    def next(self, partition: int, index: int) -> list[Split | None] | None:
        waits = self.run.coordinator.next(partition, index, "host") is not None
        return None if waits else self.run.coordinator.logged(partition, index)[:1]

    @rule(count=st.integers(0, 3))
    def find(self, count: int) -> None:
        if not self.run.exhausted:
            self.run.find(count)
            self.found += count

    @rule()
    def find_all(self) -> None:
        self.run.exhausted = True

    @rule(attempt=st.integers(0, 4), partition=st.integers(0, PARTITIONS - 1))
    def begin(self, attempt: int, partition: int) -> None:
        """Also where one runs: it has died, or another job begins."""
        self.attempts[attempt] = partition, []

    @rule(attempt=st.integers(0, 4), lost=st.booleans())
    def ask(self, attempt: int, lost: bool) -> None:
        if attempt not in self.attempts:
            return
        partition, read = self.attempts[attempt]
        entries = self.next(partition, len(read))
        if entries is None:
            assert not self.run.exhausted and not len(self.run.pending)
            return
        (split,) = entries
        if lost:
            # The answer does not arrive: the same question has the same answer.
            assert self.next(partition, len(read)) == entries
        elif split is not None:
            read.append(split.split_id)
        else:
            before = self.committed.setdefault(partition, read)
            assert before == read
            del self.attempts[attempt]

    @invariant()
    def each_split_is_in_one_log_or_waits(self) -> None:
        logs = [self.run.coordinator.logged(partition, 0) for partition in range(PARTITIONS)]
        logged = [split.split_id for log in logs for split in log if split is not None]
        waiting = [each.split.split_id for each in self.run.pending.waiting()]
        assert sorted(logged + waiting) == sorted(f"s{number}" for number in range(self.found))

    @invariant()
    def what_is_committed_is_all(self) -> None:
        if len(self.committed) == PARTITIONS:
            read = [name for names in self.committed.values() for name in names]
            assert sorted(read) == sorted(f"s{number}" for number in range(self.found))


TestAttempts = Attempts.TestCase
TestAttempts.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)


def test_a_place_that_does_not_exist_is_named() -> None:
    with reading(World(), 2) as read:
        for partition, index, why in (
            (2, 0, "subtask=2: must be from 0 to 1"),
            (1, 1, "index=1: must be from 0 to 0 in partition 1"),
            (0, -1, "index=-1"),
        ):
            with pytest.raises(ValueError, match=why):
                read.next(partition, index)
    with pytest.raises(ValueError, match="parallelism=0"):
        SplitCoordinator(0, Delivery.REPLAYED)


def test_nothing_is_appended_to_a_partition_that_has_ended() -> None:
    run = Run(2, delivery=Delivery.REPLAYED)

    def first(partition: int) -> Split | None:
        assert run.coordinator.next(partition, 0, "h") is None
        return run.coordinator.logged(partition, 0)[0]

    run.exhausted = True
    assert first(0) is None
    # Even if there is something after all: an attempt has ended without it.
    run.find(1)
    assert first(0) is None
    with pytest.raises(ValueError, match="reader 0 was told that it gets no more splits"):
        run.coordinator.assign([Split("s0", 0, 3)], 0)
    assert first(1) == Split("s0", 0, 3)


class Reading:
    """A batch read by need: partitions of it are asked for."""

    def __init__(self, source: Findable, partitions: int) -> None:
        self.coordinator: SplitCoordinator[Split] = SplitCoordinator(partitions, Delivery.REPLAYED)
        self.thread = self.coordinator.thread(source)

    def ask(self, partition: int, index: int, host: str) -> Future[None]:
        return self.thread.submit(self.coordinator.next, partition, index, host)

    def next(self, partition: int, index: int, host: str = "h") -> list[Split | None]:
        self.ask(partition, index, host).result(LONG)
        return self.coordinator.logged(partition, index)

    def hear(self, partition: int, event: SourceEvent) -> None:
        self.thread.call(self.coordinator.hear, partition, event)

    def all(self, partition: int, stop_after: int | None = None) -> list[str]:
        found: list[str] = []
        while stop_after is None or len(found) < stop_after:
            split = self.next(partition, len(found))[0]
            if split is None:
                break
            found.append(split.split_id)
        return found


@contextmanager
def reading(given: World | Findable, partitions: int) -> Iterator[Reading]:
    read = Reading(given if isinstance(given, Findable) else Findable(given), partitions)
    with closing(read.thread.start()):
        yield read


@pytest.mark.contract
def test_partitions_share_by_need_and_a_retry_reads_the_same() -> None:
    with reading(World(2500), 4) as read:
        first = read.all(0, 700)
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(lambda partition: read.all(partition), range(4)))
        assert results[0][:700] == first
        assert sorted(name for names in results for name in names) == sorted(f"s{n}" for n in range(2500))
        # A later action over the same plan.
        assert [read.all(partition) for partition in range(4)] == results


def names(entries: list[Split | None]) -> list[str | None]:
    return [None if each is None else each.split_id for each in entries]


def test_while_many_wait_a_partition_is_given_several_at_once_and_near_the_end_one() -> None:
    with reading(Plain(World(100)), 2) as read:
        read.thread.caught_up().result(LONG)
        given: list[list[str | None]] = []
        flat: list[str | None] = []
        while None not in flat:
            given.append(names(read.next(0, len(flat))))
            flat += given[-1]
        # A share of what waits: so the other one, were it to come, would find some.
        assert [len(each) for each in given[:4]] == [6, 5, 5, 5]
        assert all(len(each) == 1 for each in given[-16:])
        assert flat == [*(f"s{number}" for number in range(100)), None]
        # Another attempt finds them in the log, wherever its answers begin.
        assert names(read.next(0, 0)) == flat[:64]
        assert names(read.next(0, 64)) == flat[64:]
        assert names(read.next(1, 0)) == [None]


def test_a_source_that_handles_requests_is_asked_for_each_split() -> None:
    world = World(100)
    with reading(world, 1) as read:
        read.thread.caught_up().result(LONG)
        assert names(read.next(0, 0)) == ["s0"]
        assert names(read.next(0, 1)) == ["s1"]
        assert world.heard("request") == [0, 0]


def test_who_asks_too_early_for_several_gets_several() -> None:
    world = World(100)
    world.blocked = True
    with reading(Plain(world), 1) as read:
        waiting = read.ask(0, 0, "h")
        world.until(lambda: world.calls == 1)
        world.unblock()
        waiting.result(LONG)
        assert names(read.coordinator.logged(0, 0)) == [f"s{number}" for number in range(12)]


def test_a_partition_that_asks_too_early_waits_for_what_is_found() -> None:
    world = World(1)
    world.blocked = True
    with reading(world, 2) as read:
        both = [read.ask(0, 0, "h"), read.ask(0, 0, "other"), read.ask(1, 0, "h")]
        world.until(lambda: world.calls == 1)
        assert not any(each.done() for each in both)
        world.unblock()
        for each in both:
            each.result(LONG)
        # One log, whichever attempt asks.
        assert read.coordinator.logged(0, 0) == [Split("s0", 0, 10)]
        assert read.coordinator.logged(1, 0) == [None]


def test_splits_near_to_a_partition_and_splits_by_rule_go_there() -> None:
    class Near(Split):
        @property
        def hosts(self) -> tuple[str, ...]:
            return ("near",) if self.split_id == "s3" else ()

    world = World(5)
    world.make = lambda number: Near(f"s{number}", 0, 10)
    world.rule = lambda split: 1 if split.split_id == "s4" else None
    with reading(world, 2) as read:
        assert read.next(0, 0, "near") == [Near("s3", 0, 10)]
        assert read.next(0, 1, "near") == [Near("s0", 0, 10)]
        assert read.next(1, 0, "far") == [Near("s4", 0, 10)]
        assert read.all(0)[2:] == ["s1", "s2"]


def test_what_goes_wrong_reaches_who_waits() -> None:
    world = World(1)
    world.blocked = True
    world.failures[1] = OSError("no such bucket")
    with reading(world, 1) as read:
        waiting = read.ask(0, 0, "h")
        with pytest.raises(ValueError, match="subtask=7"):
            read.next(7, 0, "h")
        world.unblock()
        with pytest.raises(OSError, match="no such bucket"):
            waiting.result(LONG)
        with pytest.raises(OSError, match="no such bucket"):
            read.next(0, 0, "h")


def test_what_the_source_raises_when_it_chooses_reaches_all_who_wait() -> None:
    class Odd(Findable):
        def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
            return OddFinder(context, checkpoint, self.world)

    class OddFinder(Finder):
        def choose(self, pending: object, reader: object) -> int:
            return -1

    world = World(3)
    world.blocked = True
    with reading(Odd(world), 3) as read:
        waiting = [read.ask(partition, 0, "h") for partition in range(3)]
        world.until(lambda: world.calls == 1)
        world.unblock()
        for each in waiting:
            with pytest.raises(ValueError, match=r"choose\(...\) is -1"):
                each.result(LONG)


def test_who_waits_when_it_is_closed_is_told() -> None:
    world = World(1)
    world.blocked = True
    read = Reading(Findable(world), 1)
    read.thread.start()
    waiting = read.ask(0, 0, "h")
    world.until(lambda: world.calls == 1)
    threading.Timer(0.05, world.unblock).start()
    read.thread.close()
    read.coordinator.fail(RuntimeError("the read has been closed"))
    outcome = waiting.exception(LONG)
    assert outcome is None or "closed" in str(outcome)
    assert "closed" in str(read.ask(0, 1, "h").exception(LONG))


def test_events_go_both_ways_and_the_enumerator_may_give_and_end() -> None:
    world = World(0)
    with reading(world, 2) as read:
        echo = SourceEvent("echo", {"a": 1})
        # One that is not there does not hear it, all attempts that are there do.
        read.hear(1, echo)
        attempts = [Reader(), Reader()]
        for attempt in attempts:
            read.coordinator.attach(1, attempt)
        read.hear(1, echo)
        assert [attempt.under_way for attempt in attempts] == [[Event(echo)], [Event(echo)]]
    world = World(3)
    with reading(world, 2) as read:
        read.hear(0, SourceEvent("give", "mine"))
        read.hear(0, SourceEvent("enough"))
        assert read.all(0) == ["mine"]
        assert read.all(1) == ["s0", "s1", "s2"]
        assert set(world.heard("reader")) == {0, 1}


def test_the_last_partition_is_not_ended_while_splits_wait_or_may_be_found() -> None:
    enough = SourceEvent("enough")
    world = World(1)
    with reading(world, 2) as read:
        assert read.all(0, 1) == ["s0"]
        read.thread.caught_up().result(LONG)
        read.hear(0, enough)
        # All is found: the last one may be ended, as it would be anyway.
        read.hear(1, enough)
        assert read.all(1) == []
    world = World(1)
    world.blocked = True
    with reading(world, 2) as read:
        world.until(lambda: world.calls == 1)
        read.hear(0, enough)
        with pytest.raises(RuntimeError, match="reader 1 is the last .* others may be found"):
            read.hear(1, enough)
        world.unblock()
        read.thread.caught_up().result(LONG)
        with pytest.raises(RuntimeError, match="reader 1 is the last .* 1 splits wait"):
            read.hear(1, enough)
        assert [read.all(0), read.all(1)] == [[], ["s0"]]


def test_splits_that_the_rule_gives_to_a_partition_that_was_ended_fail_the_read() -> None:
    world = World(1)
    world.rule = lambda split: 0
    world.blocked = True
    with reading(world, 2) as read:
        world.until(lambda: world.calls == 1)
        read.hear(0, SourceEvent("enough"))
        waiting = read.ask(1, 0, "h")
        world.unblock()
        with pytest.raises(
            RuntimeError, match="reader 0 was told that it gets no more splits, and 1 wait for it"
        ):
            waiting.result(LONG)
    world = World(1)
    world.rule = lambda split: 0
    with reading(world, 2) as read:
        read.thread.caught_up().result(LONG)
        # It is in the log already, and is read before the end.
        read.hear(0, SourceEvent("enough"))
        assert [read.all(0), read.all(1)] == [["s0"], []]
