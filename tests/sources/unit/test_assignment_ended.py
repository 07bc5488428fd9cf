"""The news to an enumerator that splits have been read to their end for good, so that it may forget them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from pillarbox.sources import SourceCoordinator, Split
from pillarbox.sources.enumerating import Waiting
from pillarbox.sources.enumerator import AddSplits, ReaderState
from tests.sources.unit.assigned import LENGTH, Reader, Run
from tests.sources.unit.found import Findable, Finder, World


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(kind: str) -> Any:
        def hear(finder: Finder, splits: Collection[Split]) -> None:
            finder.world.say(kind, sorted(split.split_id for split in splits))

        return hear

    for kind in ("finished", "restored"):
        monkeypatch.setattr(Finder, f"handle_{kind}", say(kind))


def began() -> tuple[Run, Reader]:
    """A reader has two splits, and has read one record of the first."""
    run = Run(2)
    reader = run.open(0)
    run.find(2)
    for _ in range(2):
        run.coordinator.request(0)
        reader.hear()
    reader.read()
    return run, reader


def ended(run: Run) -> list[list[str]]:
    return run.world.heard("finished")


def complete(run: Run, **parts: ReaderState[Split]) -> None:
    states = {int(name.removeprefix("reader")): part for name, part in parts.items()}
    run.coordinator.complete(run.coordinator.snapshot(states).number)


def test_it_hears_of_the_end_when_a_checkpoint_is_complete_that_has_the_split_no_more() -> None:
    run, reader = began()
    before = reader.part()
    while "s0" in reader.splits:
        reader.read()
    run.coordinator.finished(0, ["s0"])
    # The part is from before the end.
    complete(run, reader0=before)
    assert ended(run) == []
    taken = run.coordinator.snapshot({0: reader.part()})
    assert ended(run) == []
    run.coordinator.complete(taken.number)
    assert ended(run) == [["s0"]]
    complete(run, reader0=reader.part())
    assert ended(run) == [["s0"]]


def test_the_word_of_the_reader_may_come_later_or_be_lost_with_it() -> None:
    run, reader = began()
    while "s0" in reader.splits:
        reader.read()
    complete(run, reader0=reader.part())
    assert ended(run) == [["s0"]]
    run.coordinator.leave(0, done=False)
    assert run.open(0).under_way == [AddSplits((Split("s1", 0, LENGTH),), 3)]


def test_what_a_reader_that_has_come_back_has_not_heard_of_has_not_ended() -> None:
    run, reader = began()
    complete(run, reader0=reader.part())
    run.coordinator.leave(0, done=False)
    again = run.open(0)
    complete(run, reader0=again.part())
    assert ended(run) == []
    again.hear()
    while "s0" in again.splits:
        again.read()
    complete(run, reader0=again.part())
    assert ended(run) == [["s0"]]


def test_the_splits_of_a_reader_that_is_dead_have_not_ended_nor_those_that_went_back() -> None:
    run, reader = began()
    complete(run, reader0=reader.part())
    run.find(1)
    run.coordinator.request(0)
    run.coordinator.leave(0, done=False)
    complete(run)
    second = run.open(1)
    run.coordinator.request(1)
    second.hear()
    complete(run, reader1=second.part())
    assert sorted(second.splits) == ["s2"] and ended(run) == []


def test_a_checkpoint_that_is_given_up_ends_nothing() -> None:
    run, reader = began()
    complete(run, reader0=reader.part())
    while reader.splits:
        reader.read()
    taken = run.coordinator.snapshot({0: reader.part()})
    run.coordinator.leave(0, done=False)
    with pytest.raises(ValueError, match="given up"):
        run.coordinator.complete(taken.number)
    assert ended(run) == []


def test_after_a_restore_it_hears_once_and_first_what_is_still_to_be_read() -> None:
    world = World(3)
    source = Findable(world, interval=60.0)
    with SourceCoordinator(source, 1) as coordinator:
        world.until(lambda: world.calls >= 2)
        checkpoint = json.loads(json.dumps(coordinator.snapshot({})))
    assert world.heard("restored") == []
    # The reader was ahead: it had ended one.
    checkpoint["waiting"] = [each for each in checkpoint["waiting"] if each[0]["split_id"] != "s1"]
    before = len(world.told)
    with SourceCoordinator(source, 1, checkpoint=checkpoint) as coordinator:
        coordinator.snapshot({})
        assert world.told[before] == ("restored", ["s0", "s2"])
        assert len(world.heard("restored")) == 1


def test_a_word_of_the_end_that_comes_late_takes_no_split_from_another_reader() -> None:
    run, reader = began()
    other = run.open(1)
    while reader.splits:
        reader.read()
    complete(run, reader0=reader.part())
    assert ended(run) == [["s0", "s1"]]
    run.pending.add([Waiting(Split("s0", 0, LENGTH))])
    run.coordinator.request(1)
    other.hear()
    run.coordinator.finished(0, ["s0", "s1"])
    first, second = run.coordinator._readers
    assert (first.unfinished, second.unfinished) == (set(), {"s0"})
