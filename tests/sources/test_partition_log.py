"""The log of each partition of a bounded read: every attempt sees the same, and each split is in one log."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pillarbox.sources import EnumeratorContext, SourceEvent, Split, SplitEnumerator
from pillarbox.sources.partition_log import Entry, PartitionLog
from pillarbox.sources.shared_read import SharedRead
from tests.search import examples
from tests.sources.found import LONG, Findable, Finder, World

PARTITIONS = 3


class Attempts(RuleBasedStateMachine):
    """Attempts of partitions that ask, die, are speculated and commit, while splits are found."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Split] = []
        self.found = 0
        self.over = False
        self.attempts: dict[int, tuple[int, list[str]]] = {}
        self.committed: dict[int, list[str]] = {}
        self.log: PartitionLog[Split] = PartitionLog(PARTITIONS, self.take, lambda partition: self.over)

    def take(self, partition: int, host: str) -> Split | None:
        return self.waiting.pop(0) if self.waiting else None

    @rule(count=st.integers(0, 3))
    def find(self, count: int) -> None:
        if not self.over:
            self.waiting += [Split(f"s{self.found + number}") for number in range(count)]
            self.found += count

    @rule()
    def find_all(self) -> None:
        self.over = True

    @rule(attempt=st.integers(0, 4), partition=st.integers(0, PARTITIONS - 1))
    def begin(self, attempt: int, partition: int) -> None:
        """Also where one runs: it has died, or another job begins."""
        self.attempts[attempt] = partition, []

    @rule(attempt=st.integers(0, 4), lost=st.booleans())
    def ask(self, attempt: int, lost: bool) -> None:
        if attempt not in self.attempts:
            return
        partition, read = self.attempts[attempt]
        entry = self.log.next(partition, len(read), "host")
        if entry is None:
            assert not self.over and not self.waiting
        elif lost:
            # The answer does not arrive: the same question has the same answer.
            assert self.log.next(partition, len(read), "host") == entry
        elif entry.split is not None:
            read.append(entry.split.split_id)
        else:
            before = self.committed.setdefault(partition, read)
            assert before == read
            del self.attempts[attempt]

    @invariant()
    def each_split_is_in_one_log_or_waits(self) -> None:
        logged = [split.split_id for p in range(PARTITIONS) for split in self.log.splits(p)]
        waiting = [split.split_id for split in self.waiting]
        assert sorted(logged + waiting) == sorted(f"s{number}" for number in range(self.found))

    @invariant()
    def what_is_committed_is_all(self) -> None:
        if len(self.committed) == PARTITIONS:
            read = [name for names in self.committed.values() for name in names]
            assert sorted(read) == sorted(f"s{number}" for number in range(self.found))


TestAttempts = Attempts.TestCase
TestAttempts.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)


def test_a_place_that_does_not_exist_is_named() -> None:
    log: PartitionLog[Split] = PartitionLog(2, lambda p, host: None, lambda p: False)
    with pytest.raises(ValueError, match="partition=2: must be from 0 to 1"):
        log.next(2, 0, "h")
    with pytest.raises(ValueError, match="index=1: must be from 0 to 0 in partition 1"):
        log.next(1, 1, "h")
    with pytest.raises(ValueError, match="index=-1"):
        log.next(0, -1, "h")
    with pytest.raises(ValueError, match="partitions=0"):
        PartitionLog(0, lambda p, host: None, lambda p: False)


def test_nothing_is_appended_to_a_partition_that_has_ended() -> None:
    splits = [Split("late")]
    over = [False]
    log: PartitionLog[Split] = PartitionLog(
        2, lambda p, host: splits.pop() if over[0] else None, lambda p: True
    )
    assert log.next(0, 0, "h") == Entry(None)
    assert log.is_closed(0) and not log.is_closed(1)
    # Even if there is something after all: an attempt has ended without it.
    over[0] = True
    assert log.next(0, 0, "h") == Entry(None)
    with pytest.raises(RuntimeError, match="split 'late' cannot be given to partition 0, which is closed"):
        log.append(0, splits[0])
    assert log.next(1, 0, "h") == Entry(Split("late"))
    assert log.splits(1) == (Split("late"),)


def read_all(read: SharedRead[Split], partition: int, stop_after: int | None = None) -> list[str]:
    found: list[str] = []
    while stop_after is None or len(found) < stop_after:
        (entry,) = read.next(partition, len(found), "h").result(LONG)
        if entry.split is None:
            break
        found.append(entry.split.split_id)
    return found


@pytest.mark.contract
def test_partitions_share_by_need_and_a_retry_reads_the_same() -> None:
    with SharedRead(Findable(World(2500)), 4) as read:
        first = read_all(read, 0, 700)
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(lambda partition: read_all(read, partition), range(4)))
        assert results[0][:700] == first
        assert sorted(name for names in results for name in names) == sorted(f"s{n}" for n in range(2500))
        # A later action over the same plan.
        assert [read_all(read, partition) for partition in range(4)] == results


class Plain(Findable):
    """Its enumerator leaves requests to the framework."""

    def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
        return PlainFinder(context, checkpoint, self.world)


class PlainFinder(Finder):
    handle_split_request = SplitEnumerator.handle_split_request


def names(entries: list[Entry[Split]]) -> list[str | None]:
    return [None if each.split is None else each.split.split_id for each in entries]


def test_while_many_wait_a_partition_is_given_several_at_once_and_near_the_end_one() -> None:
    with SharedRead(Plain(World(100)), 2) as read:
        read._thread.caught_up().result(LONG)
        given: list[list[str | None]] = []
        flat: list[str | None] = []
        while None not in flat:
            given.append(names(read.next(0, len(flat), "h", 64).result(LONG)))
            flat += given[-1]
        # A share of what waits: so the other one, were it to come, would find some.
        assert [len(each) for each in given[:4]] == [6, 5, 5, 5]
        assert all(len(each) == 1 for each in given[-16:])
        assert flat == [*(f"s{number}" for number in range(100)), None]
        # Another attempt finds them in the log, wherever its answers begin, and no more than it asks for.
        assert names(read.next(0, 0, "h", 64).result(LONG)) == flat[:64]
        assert names(read.next(0, 0, "h", 1000).result(LONG)) == flat[:64]
        assert names(read.next(0, 64, "h", 3).result(LONG)) == flat[64:67]
        assert names(read.next(0, 64, "h", 64).result(LONG)) == flat[64:]
        assert names(read.next(1, 0, "h", 64).result(LONG)) == [None]


def test_an_answer_that_begins_in_the_log_goes_on_behind_it() -> None:
    with SharedRead(Plain(World(1000)), 1) as read:
        read._thread.caught_up().result(LONG)
        assert names(read.next(0, 0, "h", 2).result(LONG)) == ["s0", "s1"]
        again = names(read.next(0, 0, "h", 10).result(LONG))
        assert again == [f"s{number}" for number in range(10)]
        assert names(read.next(0, 2, "h", 10).result(LONG)) == [f"s{number}" for number in range(2, 12)]


def test_a_source_that_handles_requests_is_asked_for_each_split() -> None:
    world = World(100)
    with SharedRead(Findable(world), 1) as read:
        read._thread.caught_up().result(LONG)
        assert names(read.next(0, 0, "h", 64).result(LONG)) == ["s0"]
        assert names(read.next(0, 1, "h", 64).result(LONG)) == ["s1"]
        assert world.heard("request") == [0, 0]


def test_who_asks_too_early_for_several_gets_several() -> None:
    world = World(100)
    world.blocked = True
    with SharedRead(Plain(world), 1) as read:
        waiting = read.next(0, 0, "h", 64)
        world.until(lambda: world.calls == 1)
        world.unblock()
        assert names(waiting.result(LONG)) == [f"s{number}" for number in range(12)]


def test_a_partition_that_asks_too_early_waits_for_what_is_found() -> None:
    world = World(1)
    world.blocked = True
    with SharedRead(Findable(world), 2) as read:
        both: list[Future[list[Entry[Split]]]] = [
            read.next(0, 0, "h"),
            read.next(0, 0, "other"),
            read.next(1, 0, "h"),
        ]
        world.until(lambda: world.calls == 1)
        assert not any(each.done() for each in both)
        world.unblock()
        (first,), (speculated,), (other,) = (each.result(LONG) for each in both)
        assert first == speculated
        assert [first.split, other.split] == [Split("s0", 0, 10), None]


def test_splits_near_to_a_partition_and_splits_by_rule_go_there() -> None:
    class Near(Split):
        @property
        def hosts(self) -> tuple[str, ...]:
            return ("near",) if self.split_id == "s3" else ()

    world = World(5)
    world.make = lambda number: Near(f"s{number}", 0, 10)
    world.rule = lambda split: 1 if split.split_id == "s4" else None
    with SharedRead(Findable(world), 2) as read:
        assert read.next(0, 0, "near").result(LONG) == [Entry(Near("s3", 0, 10))]
        assert read.next(0, 1, "near").result(LONG) == [Entry(Near("s0", 0, 10))]
        assert read.next(1, 0, "far").result(LONG) == [Entry(Near("s4", 0, 10))]
        assert read_all(read, 0)[2:] == ["s1", "s2"]


def test_what_goes_wrong_reaches_who_waits() -> None:
    world = World(1)
    world.blocked = True
    world.failures[1] = OSError("no such bucket")
    with SharedRead(Findable(world), 1) as read:
        waiting = read.next(0, 0, "h")
        with pytest.raises(ValueError, match="partition=7"):
            read.next(7, 0, "h").result(LONG)
        world.unblock()
        with pytest.raises(OSError, match="no such bucket"):
            waiting.result(LONG)
        with pytest.raises(OSError, match="no such bucket"):
            read.next(0, 0, "h").result(LONG)


def test_what_the_source_raises_when_it_chooses_reaches_all_who_wait() -> None:
    class Odd(Findable):
        def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
            return OddFinder(context, checkpoint, self.world)

    class OddFinder(Finder):
        def choose(self, pending: object, reader: object) -> int:
            return -1

    world = World(3)
    world.blocked = True
    with SharedRead(Odd(world), 3) as read:
        waiting = [read.next(partition, 0, "h") for partition in range(3)]
        world.until(lambda: world.calls == 1)
        world.unblock()
        for each in waiting:
            with pytest.raises(ValueError, match=r"choose\(...\) is -1"):
                each.result(LONG)


def test_who_waits_when_it_is_closed_is_told() -> None:
    world = World(1)
    world.blocked = True
    read = SharedRead(Findable(world), 1).start()
    waiting = read.next(0, 0, "h")
    world.until(lambda: world.calls == 1)
    threading.Timer(0.05, world.unblock).start()
    read.close()
    outcome = waiting.exception(LONG)
    assert outcome is None or "closed" in str(outcome)
    assert "closed" in str(read.next(0, 1, "h").exception(LONG))


def test_events_go_both_ways_and_the_enumerator_may_give_and_end() -> None:
    world = World(0)
    said: list[tuple[int, SourceEvent]] = []
    with SharedRead(
        Findable(world), 2, send=lambda partition, event: said.append((partition, event))
    ) as read:
        echo = SourceEvent("echo", {"a": 1})
        read.hear(1, echo).result(LONG)
        assert said == [(1, echo)]
    world = World(3)
    with SharedRead(Findable(world), 2) as read:
        with pytest.raises(TypeError, match="no way to say something"):
            read.hear(1, echo).result(LONG)
        read.hear(0, SourceEvent("give", "mine")).result(LONG)
        read.hear(0, SourceEvent("enough")).result(LONG)
        assert read_all(read, 0) == ["mine"]
        assert read_all(read, 1) == ["s0", "s1", "s2"]
        assert set(world.heard("reader")) == {0, 1}


def test_the_last_partition_is_not_ended_while_splits_wait_or_may_be_found() -> None:
    enough = SourceEvent("enough")
    world = World(1)
    with SharedRead(Findable(world), 2) as read:
        assert read_all(read, 0, 1) == ["s0"]
        read._thread.caught_up().result(LONG)
        read.hear(0, enough).result(LONG)
        # All is found: the last one may be ended, as it would be anyway.
        read.hear(1, enough).result(LONG)
        assert read_all(read, 1) == []
    world = World(1)
    world.blocked = True
    with SharedRead(Findable(world), 2) as read:
        world.until(lambda: world.calls == 1)
        read.hear(0, enough).result(LONG)
        with pytest.raises(RuntimeError, match="partition 1 is the last .* others may be found"):
            read.hear(1, enough).result(LONG)
        world.unblock()
        read._thread.caught_up().result(LONG)
        with pytest.raises(RuntimeError, match="partition 1 is the last .* 1 splits wait"):
            read.hear(1, enough).result(LONG)
        assert [read_all(read, 0), read_all(read, 1)] == [[], ["s0"]]


def test_splits_that_the_rule_gives_to_a_partition_that_was_ended_fail_the_read() -> None:
    world = World(1)
    world.rule = lambda split: 0
    world.blocked = True
    with SharedRead(Findable(world), 2) as read:
        world.until(lambda: world.calls == 1)
        read.hear(0, SourceEvent("enough")).result(LONG)
        waiting = read.next(1, 0, "h")
        world.unblock()
        with pytest.raises(RuntimeError, match="partition 0 has ended, and 1 splits wait for it"):
            waiting.result(LONG)
    world = World(1)
    world.rule = lambda split: 0
    with SharedRead(Findable(world), 2) as read:
        read._thread.caught_up().result(LONG)
        with pytest.raises(RuntimeError, match="partition 0 cannot end: 1 splits wait for it"):
            read.hear(0, SourceEvent("enough")).result(LONG)
        assert [read_all(read, 0), read_all(read, 1)] == [["s0"], []]


def test_a_source_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="has no end"):
        SharedRead(Findable(World(), 1.0), 2)
