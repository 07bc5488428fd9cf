"""The parts of a checkpoint: whose they are, and of which life; and who may not be started from one yet."""

from __future__ import annotations

import pytest

from pillarbox.sources import Split
from pillarbox.sources.enumerating import Waiting
from pillarbox.sources.enumerator import AddSplits, NoMoreSplits, ReaderState
from tests.sources.unit.assigned import LENGTH, Reader, Run, given, shows


def began(readers: int = 1, splits: int = 1) -> tuple[Run, Reader]:
    """The first reader has read one record of its first split."""
    run = Run(readers)
    reader = run.open(0)
    run.find(splits)
    run.coordinator.request(0)
    reader.hear()
    reader.read()
    return run, reader


def test_the_part_of_a_reader_that_has_left_since_is_what_it_said() -> None:
    run, reader = began()
    part = reader.part()
    assert part.splits == (Split("s0", 1, LENGTH),)
    while reader.splits:
        reader.read()
    run.coordinator.finished(0, ["s0"])
    run.coordinator.leave(0, done=True)
    # What it read after its part is in the output of the next checkpoint, or of nobody.
    taken = run.coordinator.snapshot({0: part})
    assert taken.unread() == [Waiting(Split("s0", 1, LENGTH))]
    run.coordinator.complete(taken.number)
    # Now its last output is lost with it: it is read again, by the same reader.
    assert run.open(0).under_way == [AddSplits((Split("s0", 1, LENGTH),), 2)]


def test_who_has_left_has_read_all_that_no_part_of_it_says_otherwise() -> None:
    run, reader = began()
    while reader.splits:
        reader.read()
    run.coordinator.finished(0, ["s0"])
    run.coordinator.leave(0, done=True)
    assert run.coordinator.snapshot({}).unread() == []
    assert run.coordinator.snapshot({0: reader.part()}).unread() == []


def test_a_part_whose_reader_has_died_since_makes_no_checkpoint() -> None:
    run, reader = began()
    part = reader.part()
    run.coordinator.leave(0, done=False)
    with pytest.raises(ValueError, match="state of reader 0, which is not there"):
        run.coordinator.snapshot({0: part})
    # Without it there is one: nobody has the split, and it waits from its beginning.
    taken = run.coordinator.snapshot({})
    assert taken.unread() == [Waiting(Split("s0", 0, LENGTH))]
    # One that had begun nothing has put nothing out either.
    assert run.coordinator.snapshot({0: ReaderState()}).unread() == taken.unread()


def test_a_part_of_nobody_makes_no_checkpoint() -> None:
    run, reader = began()
    with pytest.raises(ValueError, match="subtask=1: must be from 0 to 0"):
        run.coordinator.snapshot({0: reader.part(), 1: ReaderState()})


def test_a_reader_restored_from_a_checkpoint_that_is_not_known_to_be_complete_is_refused() -> None:
    run, reader = began()
    there = reader.part().splits[0]
    taken = run.coordinator.snapshot({0: reader.part()})
    # It would be given all of the split once more.
    assert "`complete` was not called" in str(run.coordinator.refuses(shows(there), 0))
    run.coordinator.complete(taken.number)
    assert run.coordinator.refuses(shows(there), 0) is None
    # And here it would go on behind rows that are undone: that checkpoint is an earlier one.
    assert "another checkpoint" in str(run.coordinator.refuses(shows(Split("s0", 0, LENGTH)), 0))
    assert "another checkpoint" in str(run.coordinator.refuses(shows(), 0))
    # One that shows nothing takes what it is given.
    assert run.coordinator.refuses(None, 0) is None


def test_after_a_restore_readers_show_what_any_of_them_had_until_a_checkpoint_is_complete() -> None:
    had = Split("a", 1, LENGTH)
    run = Run(2, waiting=[Waiting(had)], restored=[ReaderState(3, (had,))])
    for subtask in range(2):
        assert run.coordinator.refuses(shows(had), subtask) is None
        assert run.coordinator.refuses(shows(), subtask) is None
        assert "another checkpoint" in str(run.coordinator.refuses(shows(Split("a", 2, LENGTH)), subtask))
    reader = run.open(0)
    run.coordinator.request(0)
    reader.hear()
    run.coordinator.leave(0, False)
    assert run.coordinator.refuses(shows(had), 0) is None
    reader = run.open(0)
    run.coordinator.request(0)
    reader.hear()
    reader.read()
    run.coordinator.complete(run.coordinator.snapshot({0: reader.part()}).number)
    assert "another checkpoint" in str(run.coordinator.refuses(shows(had), 0))
    assert run.coordinator.refuses(shows(*reader.part().splits), 0) is None
    # Who comes for the first time has it from the restore.
    assert run.coordinator.refuses(shows(had), 1) is None


def test_the_last_reader_is_not_told_that_no_more_come_while_some_wait_or_may_be_found() -> None:
    run = Run(2)
    first, second = run.open(0), run.open(1)
    run.find(1)
    run.coordinator.no_more_splits(0)
    assert first.under_way == [NoMoreSplits()]
    with pytest.raises(RuntimeError, match="reader 1 is the last .* 1 splits wait"):
        run.coordinator.no_more_splits(1)
    run.coordinator.request(1)
    assert given(second) == [["s0"]]
    with pytest.raises(RuntimeError, match="reader 1 is the last .* others may be found"):
        run.coordinator.no_more_splits(1)
    run.exhausted = True
    run.coordinator.no_more_splits(1)
    assert second.under_way[-1] == NoMoreSplits()


def test_a_reader_that_the_rule_names_is_not_told_that_no_more_come_nor_named_after_it() -> None:
    run = Run(2)
    run.world.rule = lambda split: 1
    run.open(0)
    run.find(1)
    # It waits for a reader that is still to come, which will be given it.
    reader = run.open(1)
    assert given(reader) == [["s0"]]
    run.coordinator.no_more_splits(1)
    with pytest.raises(
        RuntimeError, match="reader 1 was told that it gets no more splits, and 1 wait for it"
    ):
        run.find(1)
