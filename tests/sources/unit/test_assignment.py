"""Assignment of splits: nothing lost and nothing twice, whoever dies, whatever is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pillarbox.sources import Split
from pillarbox.sources.enumerating import Checkpoint, PendingSplits, Waiting
from pillarbox.sources.enumerator import AddSplits, NoMoreSplits, ReaderInfo, ReaderState
from tests.search import examples
from tests.sources.unit.assigned import LENGTH, Reader, Run, given, shows
from tests.sources.unit.found import Finder, NoContext, World

READERS = 3


class Assigning(RuleBasedStateMachine):
    """Readers ask, read, take part in checkpoints, die and come back; the driver dies too."""

    def __init__(self) -> None:
        super().__init__()
        self.run = Run(READERS)
        self.committed: list[tuple[str, int]] = []
        # Output that waits for a checkpoint: by reader, what its part has put behind it.
        self.parts: dict[int, tuple[ReaderState[Split], int]] = {}
        self.staged: tuple[Checkpoint[Split, Any], dict[int, list[tuple[str, int]]]] | None = None
        self.last: Checkpoint[Split, Any] = Checkpoint(0)
        self.total = 0
        for subtask in range(READERS):
            self.run.open(subtask)

    def reader(self, subtask: int) -> Reader | None:
        return self.run.readers.get(subtask)

    @rule(count=st.integers(1, 3))
    def find(self, count: int) -> None:
        if not self.run.exhausted:
            self.run.find(count)
            self.total = max(self.total, self.run.finder.checkpoint)

    @rule()
    def find_the_end(self) -> None:
        if not self.run.exhausted and self.run.finder.checkpoint == self.total:
            self.run.exhausted = True
            self.run.coordinator.serve()

    @rule(subtask=st.integers(0, READERS - 1))
    def ask(self, subtask: int) -> None:
        reader = self.reader(subtask)
        if reader is not None and not reader.ended:
            self.run.coordinator.request(subtask)

    @rule(subtask=st.integers(0, READERS - 1))
    def hear(self, subtask: int) -> None:
        reader = self.reader(subtask)
        if reader is not None and reader.under_way:
            reader.hear()

    @rule(subtask=st.integers(0, READERS - 1))
    def read(self, subtask: int) -> None:
        reader = self.reader(subtask)
        if reader is not None and reader.splits:
            finished = reader.read()
            if finished is not None:
                self.run.coordinator.finished(subtask, [finished])

    @rule(subtask=st.integers(0, READERS - 1), records=st.integers(1, 2 * LENGTH))
    def work(self, subtask: int, records: int) -> None:
        """All at once, so that runs get further."""
        reader = self.reader(subtask)
        for _ in range(records):
            self.ask(subtask)
            while reader is not None and reader.under_way:
                reader.hear()
            self.read(subtask)

    @rule(complete=st.booleans())
    def checkpoint_now(self, complete: bool) -> None:
        self.parts, self.staged = {}, None
        for subtask in self.run.readers:
            self.take_part(subtask)
        self.checkpoint()
        if complete:
            self.complete()

    @rule(subtask=st.integers(0, READERS - 1))
    def take_part(self, subtask: int) -> None:
        reader = self.reader(subtask)
        if reader is not None and not reader.left and self.staged is None and subtask not in self.parts:
            self.parts[subtask] = reader.part(), len(reader.out)

    @precondition(lambda self: self.staged is None)
    @rule()
    def checkpoint(self) -> None:
        readers = self.run.readers
        if not all(each.left or at in self.parts for at, each in readers.items()):
            return
        taken = self.run.coordinator.snapshot({at: part for at, (part, _) in self.parts.items()})
        # Who has left gives all that is not in an earlier part.
        self.staged = (
            taken,
            {
                at: each.out[: self.parts[at][1]] if at in self.parts else [*each.out]
                for at, each in readers.items()
            },
        )
        self.parts = {}

    @precondition(lambda self: self.staged is not None)
    @rule()
    def complete(self) -> None:
        assert self.staged is not None
        taken, out = self.staged
        self.run.coordinator.complete(taken.number)
        for at, records in out.items():
            self.committed += records
            reader = self.run.readers[at]
            reader.out = reader.out[len(records) :]
        self.last, self.staged = taken, None

    @rule(subtask=st.integers(0, READERS - 1), comes_back_first=st.booleans())
    def dies(self, subtask: int, comes_back_first: bool) -> None:
        reader = self.reader(subtask)
        if reader is None:
            return
        staged = self.staged
        # Its output since the last checkpoint is undone with it, and the checkpoint that is being taken.
        self.parts, self.staged = {}, None
        del self.run.readers[subtask]
        if comes_back_first or reader.left:
            self.run.open(subtask)
        else:
            self.run.coordinator.leave(subtask, False)
        if staged is not None:
            with pytest.raises(ValueError, match="was given up"):
                self.run.coordinator.complete(staged[0].number)

    @rule(subtask=st.integers(0, READERS - 1))
    def comes_back(self, subtask: int) -> None:
        if self.reader(subtask) is None and subtask < self.run.coordinator.parallelism:
            self.run.open(subtask)

    @rule(subtask=st.integers(0, READERS - 1))
    def leaves(self, subtask: int) -> None:
        """It has read everything; its output waits for a checkpoint, and its part of one may be given."""
        reader = self.reader(subtask)
        if reader is not None and reader.ended and not reader.splits and not reader.left:
            self.run.coordinator.leave(subtask, True)
            reader.left = True

    @rule(early=st.sets(st.integers(0, READERS - 1)), complete=st.booleans())
    def all_leave(self, early: set[int], complete: bool) -> None:
        """Everybody reads to the end, some when they have given their parts of a checkpoint."""
        self.parts, self.staged = {}, None
        for subtask in early:
            self.take_part(subtask)
        self.find_the_end()
        for _ in range(self.total + 2):
            for subtask in self.run.readers:
                self.work(subtask, LENGTH)
        for subtask in self.run.readers:
            self.leaves(subtask)
            self.take_part(subtask)
        self.checkpoint()
        if complete:
            self.complete()

    @rule(parallelism=st.integers(1, READERS))
    def driver_dies(self, parallelism: int) -> None:
        self.parts, self.staged = {}, None
        self.run = Run(parallelism, self.last.checkpoint, self.last.unread())
        for subtask in range(parallelism):
            self.run.open(subtask)

    def unread(self) -> list[tuple[str, int]]:
        """The rows to be read after the last complete checkpoint, were everybody to die now."""
        known = [
            (each.split.split_id, at)
            for each in self.last.unread()
            for at in range(each.split.start, each.split.stop)
        ]
        return known + [
            (f"s{n}", at) for n in range(self.last.checkpoint, self.total) for at in range(LENGTH)
        ]

    @invariant()
    def each_record_is_committed_or_still_to_be_read_once(self) -> None:
        every = sorted((f"s{number}", at) for number in range(self.total) for at in range(LENGTH))
        assert sorted(self.committed + self.unread()) == every

    @invariant()
    def when_all_have_ended_all_was_read(self) -> None:
        readers = self.run.readers
        if len(readers) == self.run.coordinator.parallelism and all(each.ended for each in readers.values()):
            out = [record for each in readers.values() for record in each.out]
            every = sorted((f"s{number}", at) for number in range(self.total) for at in range(LENGTH))
            assert sorted(self.committed + out) == every


TestAssigning = Assigning.TestCase
TestAssigning.settings = settings(max_examples=examples(80), stateful_step_count=50, deadline=None)


def test_a_request_is_kept_until_there_is_an_answer_and_two_are_as_one() -> None:
    run = Run(1)
    reader = run.open(0)
    run.coordinator.request(0)
    run.coordinator.request(0)
    assert reader.under_way == []
    run.find(3)
    assert given(reader) == [["s0"]]
    assert run.world.heard("request") == [0, 0]


def test_what_the_source_rules_is_given_without_being_asked_for() -> None:
    run = Run(2)
    run.world.rule = lambda split: int(split.split_id[1:]) % 2
    first = run.open(0)
    run.find(5)
    assert given(first) == [["s0", "s2", "s4"]]
    second = run.open(1)
    assert given(second) == [["s1", "s3"]]


@pytest.mark.contract
def test_nobody_is_told_that_no_more_come_while_another_could_die_and_leave_something() -> None:
    run = Run(2)
    first, second = run.open(0), run.open(1)
    run.find(1)
    run.coordinator.request(0)
    first.hear()
    run.exhausted = True
    run.coordinator.request(1)
    assert second.under_way == []
    run.coordinator.leave(0, False)
    assert given(second) == [["s0"]]
    assert run.world.heard("back") == [(0, ["s0"])]
    run.coordinator.finished(1, ["s0"])
    run.coordinator.request(1)
    assert second.under_way[-1] == NoMoreSplits()
    # Who was told, dies and comes back has it to read again.
    run.coordinator.leave(1, done=True)
    second = run.open(1)
    run.coordinator.request(1)
    assert given(second) == [["s0"]]


def test_what_a_complete_checkpoint_counts_in_waits_for_the_reader_itself() -> None:
    run = Run(2)
    first, second = run.open(0), run.open(1)
    run.find(2)
    run.coordinator.request(0)
    first.hear()
    first.read()
    taken = run.coordinator.snapshot({0: first.part()})
    assert taken.waiting == [Waiting(Split("s1", 0, LENGTH))]
    run.coordinator.complete(taken.number)
    run.coordinator.request(0)
    run.coordinator.leave(0, False)
    run.coordinator.request(1)
    # The one that it was given since is anybody's, the other one is kept for it, from where it stood.
    assert given(second) == [["s1"]]
    again = run.open(0)
    assert again.under_way == [AddSplits((Split("s0", 1, LENGTH),), 3)]


@pytest.mark.contract
def test_what_was_finished_before_a_complete_checkpoint_does_not_come_back() -> None:
    run = Run(1)
    reader = run.open(0)
    run.find(2)
    run.coordinator.request(0)
    reader.hear()
    while reader.splits:
        reader.read()
    run.coordinator.finished(0, ["s0"])
    run.coordinator.complete(run.coordinator.snapshot({0: reader.part()}).number)
    run.coordinator.leave(0, False)
    assert [each.split.split_id for each in run.pending.waiting()] == ["s1"]
    assert run.open(0).under_way == []


def test_a_checkpoint_during_which_a_reader_dies_is_given_up() -> None:
    run = Run(2)
    reader = run.open(0)
    run.find(1)
    run.coordinator.request(0)
    reader.hear()
    taken = run.coordinator.snapshot({0: reader.part()})
    run.coordinator.leave(0, False)
    # Its splits wait again from where they were: they would be read again although it counts them in.
    with pytest.raises(ValueError, match=f"checkpoint {taken.number} does not exist, or was given up"):
        run.coordinator.complete(taken.number)


@pytest.mark.contract
def test_a_reader_that_dies_twice_gets_what_it_had_once_each_time() -> None:
    run = Run(1)
    reader = run.open(0)
    run.find(1)
    run.coordinator.request(0)
    reader.hear()
    run.coordinator.complete(run.coordinator.snapshot({0: reader.part()}).number)
    for number in (2, 3):
        run.coordinator.leave(0, False)
        assert len(run.pending) == 0
        assert run.open(0).under_way == [AddSplits((Split("s0", 0, LENGTH),), number)]


def test_records_that_were_emitted_go_with_their_split() -> None:
    run = Run(1, waiting=[Waiting(Split("a", 0, 9), 4)])
    reader = run.open(0)
    run.coordinator.request(0)
    assert reader.under_way == [AddSplits((Split("a", 0, 9),), 1, {"a": 4})]
    state = ReaderState(1, (Split("a", 5, 9),), {"a": 2})
    taken = run.coordinator.snapshot({0: state})
    assert taken.unread() == [Waiting(Split("a", 5, 9), 2)]


@pytest.mark.parametrize(
    "state", [None, ReaderState(0, (Split("s0", 0, 3),)), ReaderState(1), ReaderState(9)]
)
def test_a_state_that_is_missing_or_of_another_life_is_refused(state: Any) -> None:
    run = Run(1)
    run.open(0)
    run.find(2)
    run.coordinator.request(0)
    run.coordinator.leave(0, False)
    run.open(0)
    # Nothing was given in this life: there is nothing to say.
    assert len(run.coordinator.snapshot({}).waiting) == 2
    run.coordinator.request(0)
    with pytest.raises(ValueError, match="reader 0"):
        run.coordinator.snapshot({} if state is None else {0: state})


def test_a_reader_that_was_restored_needs_a_coordinator_that_was() -> None:
    run = Run(1)
    assert "both must begin anew" in str(run.coordinator.refuses(shows(), 0))
    assert run.coordinator.refuses(None, 0) is None
    run.open(0)
    run.coordinator.leave(0, False)
    assert run.coordinator.refuses(shows(), 0) is None


def test_the_enumerator_may_give_to_whom_it_wants_and_end_a_reader() -> None:
    run = Run(2)
    run.find(2)
    reader = run.open(1)
    run.coordinator.assign([Split("s1", 0, LENGTH), Split("mine", 0, LENGTH)], 1)
    assert given(reader) == [["s1", "mine"]]
    run.coordinator.assign([Split("later", 0, LENGTH)], 0)
    assert given(run.open(0)) == [["later"]]
    run.coordinator.no_more_splits(1)
    assert reader.under_way[-1] == NoMoreSplits()
    with pytest.raises(ValueError, match="reader 1 was told that it gets no more"):
        run.coordinator.assign([Split("s0", 0, LENGTH)], 1)
    with pytest.raises(ValueError, match="subtask=2"):
        run.coordinator.assign([Split("s0", 0, LENGTH)], 2)


def test_a_rule_or_a_choice_that_names_nothing_is_refused() -> None:
    run = Run(2)
    run.world.rule = lambda split: 2
    with pytest.raises(ValueError, match=r"assigned_to\('s0'\) is 2: must be None or from 0 to 1"):
        run.find(1)

    class Odd(Finder):
        def choose(self, pending: Any, reader: ReaderInfo) -> int:
            return len(pending)

    pool: PendingSplits[Split] = PendingSplits(Odd(NoContext(1), 0, World()))
    pool.add([Waiting(Split("a"))])
    with pytest.raises(ValueError, match=r"choose\(...\) is 1"):
        pool.take(ReaderInfo(0, "h"))


def test_a_source_may_choose_and_without_it_the_nearest_is_taken() -> None:
    class Near(Split):
        @property
        def hosts(self) -> tuple[str, ...]:
            return (f"h{self.split_id[1:]}",)

    class Last(Finder):
        def choose(self, pending: Any, reader: ReaderInfo) -> int:
            return len(pending) - 1

    def taken(kind: Callable[..., Finder], host: str) -> str:
        pool: PendingSplits[Split] = PendingSplits(kind(NoContext(1), 0, World()))
        pool.add(Waiting(Near(f"s{number}")) for number in range(4))
        found = pool.take(ReaderInfo(0, host))
        assert found is not None and len(pool) == 3
        return found.split.split_id

    assert taken(Last, "h1") == "s3"
    assert taken(Finder, "h1") == "s1"
    assert taken(Finder, "elsewhere") == "s0"
