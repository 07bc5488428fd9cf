"""Claims of Flink's tests of sources that no other test here shows; `test_flink_claims.py` lists all.

The last one is of a fault that nothing else has found.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing

import pytest

from pillarbox.sources import Fetched, SourceCoordinator, Split, SplitReader
from pillarbox.sources.enumerator import EnumeratorContext, EventTimeLimit
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext, SplitsAdded
from pillarbox.task.protocols import TaskState
from pillarbox.testing import FakeClock
from tests.sources.unit.found import Findable, Finder, World
from tests.sources.unit.linked import Batches, Link
from tests.sources.unit.number_source import (
    LONG,
    NumbersReader,
    Range,
    Script,
    by_split,
    expected,
    next_batch,
    ranges,
)
from tests.sources.unit.test_coordinator import Reader
from tests.sources.unit.test_fetching import ALL, MANY, ONE, read_to_end, reading
from tests.sources.unit.test_task_event_time import timed, with_times
from tests.waiting import wait_until


class Watched(Findable):
    """Tells which readers its enumerator knows."""

    def restore_enumerator(self, context: EnumeratorContext[Split], checkpoint: int) -> Finder:
        self.context = context
        return super().restore_enumerator(context, checkpoint)

    def until_known(self, coordinator: SourceCoordinator[Split], subtasks: list[int]) -> None:
        wait_until(lambda: coordinator._thread.call(lambda: [*self.context.readers]) == subtasks)


@pytest.mark.contract
@pytest.mark.parametrize("done", [False, True])
def test_a_reader_that_has_left_is_not_known_to_the_enumerator_any_more(done: bool) -> None:
    source = Watched(World())
    with SourceCoordinator(source, 2) as coordinator:
        first, _ = Reader(coordinator.link(0)).open(), Reader(coordinator.link(1)).open()
        source.until_known(coordinator, [0, 1])
        first.link.close(done)
        source.until_known(coordinator, [1])


def test_a_coordinator_that_was_restored_knows_no_reader_until_one_comes() -> None:
    source = Watched(World(2))
    with SourceCoordinator(source, 2) as coordinator:
        Reader(coordinator.link(0)).open()
        source.until_known(coordinator, [0])
        checkpoint = coordinator.snapshot({})
    with SourceCoordinator(source, 2, checkpoint=checkpoint) as coordinator:
        source.until_known(coordinator, [])
        Reader(coordinator.link(1)).open()
        source.until_known(coordinator, [1])


class Separate(NumbersReader):
    """Says that a split is finished with no rows, after its last ones."""

    def fetch(self) -> Sequence[Fetched]:
        fetched = []
        for each in super().fetch():
            fetched.append(each._replace(finished=False))
            if each.finished:
                fetched.append(Fetched(each.split_id, (), None, finished=True))
        return fetched


@pytest.mark.contract
@ALL
@pytest.mark.parametrize("kind", [NumbersReader, Separate])
def test_a_split_may_be_finished_with_its_last_rows_or_after_them(
    model: Threading, kind: type[NumbersReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(batch=2)
    monkeypatch.setattr(script, "make", lambda: script.readers.append(kind(script)) or script.readers[-1])
    splits = [Range("s0", 0, 10), Range("s1", 0, 12)]
    with reading(script, model) as reader:
        reader.add_splits(splits)
        assert by_split(read_to_end(reader)) == expected(splits)
        assert reader.splits() == []


@pytest.mark.contract
@pytest.mark.parametrize("model", [ONE, MANY])
def test_a_fetcher_whose_splits_are_gone_fetches_nothing_and_takes_up_the_next_one(model: Threading) -> None:
    script = Script()
    with reading(script, model) as reader:
        reader.add_splits(ranges(2, 10))
        read_to_end(reader)
        (fetcher,) = reader._fetchers
        # It waits to be told something, if it does not fetch of no split.
        wait_until(lambda: fetcher._changed._waiters or () in script.told("fetch"))  # type: ignore[attr-defined]
        reader.add_splits([Range("next", 0, 30)])
        assert by_split(read_to_end(reader)) == {"next": [*range(30)]}
        assert () not in script.told("fetch")
        assert script.threads == {"pillarbox-fetch-7-0"}


def test_a_reader_that_never_had_a_split_has_no_thread_and_is_closed() -> None:
    script = Script()
    with reading(script, MANY) as reader:
        assert reader.poll() is None
        future = reader.available()
        assert future is not None and not future.done()
    assert script.calls == []


@ALL
def test_a_reader_all_of_whose_splits_are_paused_is_closed_at_once(model: Threading) -> None:
    script = Script()
    with reading(script, model, grace=LONG) as reader:
        reader.add_splits(ranges(2, 1000))
        script.wait_for(lambda: bool(script.told("fetch")))
        reader.pause_or_resume_splits(["s0", "s1"], [])
        # A close that waited for the grace would not end before the test's time-out.


def test_a_task_that_waits_for_the_limit_of_event_time_can_be_ended() -> None:
    reader, link, clock = Batches(), Link([Range("a"), Range("b")], answer=False), FakeClock()
    running = with_times(link, reader, clock, max_drift=60.0)
    link.tell(EventTimeLimit(10.0))
    reader.put(timed("a", 20.0), timed("a", 21.0))
    running.rows(1)
    running.settle()
    running.task.close()
    assert running.output.records == [("a", 20.0)]
    assert running.task.state is not TaskState.RUNNING
    assert link.closed == [False] and link.ended == []


class Silent(SplitReader[Range]):
    """Gives one row of its split when it is told to, and nothing before."""

    def __init__(self, told: threading.Condition, speak: set[str]) -> None:
        self.told, self.speak, self.woken = told, speak, False

    def handle_splits_changes(self, change: SplitsAdded[Range]) -> None:
        self.split_id = change.splits[0].split_id if isinstance(change, SplitsAdded) else ""

    def fetch(self) -> Sequence[Fetched]:
        with self.told:
            assert self.told.wait_for(lambda: self.woken or self.split_id in self.speak, LONG)
            self.woken = False
            speaks = self.split_id in self.speak
            self.speak.discard(self.split_id)
        return [Fetched(self.split_id, [(self.split_id, 0)], 1)] if speaks else []

    def wake_up(self) -> None:
        with self.told:
            self.woken = True
            self.told.notify_all()


@pytest.mark.contract
@pytest.mark.parametrize("speaks", ["s0", "s1", "s2"])
def test_rows_from_any_of_its_threads_wake_a_task_that_waits_for_all_of_them(speaks: str) -> None:
    told, speak = threading.Condition(), set[str]()
    reader: FetchingReader[Range] = FetchingReader(
        ReaderContext(), lambda: Silent(told, speak), threading=Threading.SPLIT_PER_THREAD
    )
    with closing(reader):
        reader.start()
        reader.add_splits([Range(f"s{number}") for number in range(3)])
        # Again and again, as each poll begins with another thread.
        for _ in range(4):
            while (future := reader.available()) is None:
                assert reader.poll() is None
            with told:
                speak.add(speaks)
                told.notify_all()
            future.result(timeout=LONG)
            assert next_batch(reader).records == [(speaks, 0)]
