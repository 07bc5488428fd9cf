"""Splits that are held: nothing of them is given out, nothing is lost, and what was put aside comes first."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pillarbox.sources import Fetched, FetchingReader, SplitReader, WatermarkStrategy
from pillarbox.sources import event_time as event_time_module
from pillarbox.sources.event_time import EventTimeReader
from pillarbox.sources.fetching import Threading
from pillarbox.sources.reader import ReaderContext, SourceReader, SplitsAdded, SplitsChange
from tests.search import examples
from tests.sources.unit.linked import Batches
from tests.sources.unit.number_source import LONG, Range
from tests.threads import begun

SPLITS = "abc"


def batch(split_id: str, at: float, finished: bool = False) -> Fetched:
    return Fetched(split_id, [at], at, finished)


STRATEGY = WatermarkStrategy(max_drift=60.0)


def limited_to(limit: float, reader: SourceReader[Range], splits: Sequence[str] = "ab") -> EventTimeReader:
    limited = EventTimeReader(reader, STRATEGY)
    limited.add(splits)
    limited.limit(limit)
    return limited


def test_a_split_is_paused_when_it_is_beyond_and_resumed_behind_what_was_put_aside() -> None:
    reader = Batches()
    limited = limited_to(10.0, reader)
    reader.put(batch("a", 11.0), batch("a", 12.0), batch("a", 13.0))
    assert limited.poll() == batch("a", 11.0)
    limited.seen("a", 11.0)
    assert limited.poll() is None
    limited.limit(math.inf)
    assert limited.poll() == batch("a", 12.0)
    assert reader.orders == [(["a"], [])]
    assert limited.poll() == batch("a", 13.0)
    assert reader.orders == [(["a"], []), ([], ["a"])]


@pytest.mark.contract
def test_a_limit_that_falls_holds_what_is_beyond_it_already() -> None:
    reader = Batches(batch("a", 5.0), batch("b", 50.0))
    limited = limited_to(math.inf, reader)
    for split_id, at in (("a", 5.0), ("b", 50.0)):
        assert limited.poll() == batch(split_id, at)
        limited.seen(split_id, at)
    limited.limit(20.0)
    reader.put(batch("b", 51.0), batch("a", 6.0))
    assert limited.poll() == batch("a", 6.0)
    assert limited.poll() is None


def test_a_split_that_is_held_again_before_it_could_go_on_gives_nothing() -> None:
    reader = Batches(batch("a", 11.0), batch("a", 12.0))
    limited = limited_to(10.0, reader)
    assert limited.poll() == batch("a", 11.0)
    limited.seen("a", 11.0)
    assert limited.poll() is None
    limited.limit(20.0)
    limited.limit(10.0)
    assert limited.poll() is None
    limited.limit(20.0)
    assert limited.poll() == batch("a", 12.0)


def test_a_split_that_is_at_the_limit_goes_on() -> None:
    reader = Batches(batch("a", 10.0), batch("a", 11.0), batch("a", 12.0))
    limited = limited_to(10.0, reader)
    for at in (10.0, 11.0):
        assert limited.poll() == batch("a", at)
        limited.seen("a", at)
    assert limited.poll() is None
    limited.limit(11.0)
    assert limited.poll() == batch("a", 12.0)


def test_what_is_too_much_to_be_put_aside_is_given_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.RecordBatch.from_pydict({"n": [*range(100)]})
    monkeypatch.setattr(event_time_module, "MAX_BUFFERED_NBYTES", 3 * table.nbytes)
    reader = Batches(*(Fetched(split_id, table, at) for at in range(10) for split_id in "ab"))
    limited = limited_to(-1.0, reader)
    given = []
    while (fetched := limited.poll()) is not None:
        given.append(fetched)
        limited.seen(fetched.split_id, 0.0)
    assert len(given) == 20 - 3
    limited.limit(0.0)
    while (fetched := limited.poll()) is not None:
        given.append(fetched)
    for split_id in "ab":
        assert [each.position for each in given if each.split_id == split_id] == [*range(10)]
    # There is room again.
    limited.limit(-1.0)
    reader.put(Fetched("a", table, 10))
    assert limited.poll() is None


def test_one_at_a_time_a_held_split_that_has_nothing_lets_the_slower_ones_be_read() -> None:
    reader = FetchingReader(ReaderContext(), Known, threading=Threading.ONE_SPLIT_AT_A_TIME)
    limited = limited_to(10.0, reader, ["ahead", "slow"])
    reader.start()
    reader.add_splits([Range("ahead"), Range("slow")])
    given = []
    while len(given) < 4:
        fetched = limited.poll()
        if fetched is None:
            future = reader.available()
            if future is not None:
                future.result(LONG)
            continue
        given.append((fetched.split_id, fetched.position))
        limited.seen(fetched.split_id, fetched.position)
    assert given == [("ahead", 50), ("slow", 1), ("slow", 2), ("slow", 3)]
    reader.close()
    assert begun() == []


class Known(SplitReader[Range]):
    """Gives batches of two splits, and waits for more that never come."""

    def __init__(self) -> None:
        self.left = {"ahead": [50], "slow": [1, 2, 3]}
        self.at: list[str] = []
        self.woken = threading.Event()

    def fetch(self) -> Sequence[Fetched]:
        for split_id in self.at:
            if self.left[split_id]:
                at = self.left[split_id].pop(0)
                return (Fetched(split_id, [at], at),)
        self.woken.wait(LONG)
        self.woken.clear()
        return ()

    def wake_up(self) -> None:
        self.woken.set()

    def handle_splits_changes(self, change: SplitsChange[Range]) -> None:
        if isinstance(change, SplitsAdded):
            self.at.extend(split.split_id for split in change.splits)
        else:
            self.at = [each for each in self.at if each not in change.split_ids]


class Paused(Batches):
    """Is told once to pause a split, and once to resume it."""

    def __init__(self, paused: set[str]) -> None:
        super().__init__()
        self.paused = paused

    def pause_or_resume_splits(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        assert not self.paused & set(pause) and set(resume) <= self.paused
        self.paused.update(pause)
        self.paused.difference_update(resume)


class Held(RuleBasedStateMachine):
    """A reader that heeds a pause late, limits that rise and fall, and splits that finish."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: set[str] = set()
        self.reader = Paused(self.paused)
        self.limited = limited_to(math.inf, self.reader, SPLITS)
        self.to = math.inf
        self.fetched: dict[str, list[Fetched]] = defaultdict(list)
        self.given: dict[str, list[Fetched]] = defaultdict(list)
        self.time: dict[str, float] = dict.fromkeys(SPLITS, 0.0)
        self.over: set[str] = set()

    @rule(
        split=st.sampled_from(SPLITS),
        ahead=st.sampled_from([0.0, 1.0, 10.0]),
        finished=st.sampled_from([False] * 7 + [True]),
        late=st.integers(0, 3),
    )
    def fetch(self, split: str, ahead: float, finished: bool, late: int) -> None:
        # What is paused has had some fetched before.
        if split in self.over or (split in self.paused and late):
            return
        self.time[split] += ahead
        fetched = batch(split, self.time[split], finished)
        if finished:
            self.over.add(split)
        self.fetched[split].append(fetched)
        self.reader.put(fetched)

    @rule(to=st.sampled_from([0.0, 1.0, 5.0, 10.0, 20.0, 40.0, math.inf]))
    def limit(self, to: float) -> None:
        self.to = to
        self.limited.limit(to)

    @rule()
    def poll(self) -> None:
        fetched = self.limited.poll()
        if fetched is None:
            left = [each for each in SPLITS if len(self.given[each]) < len(self.fetched[each])]
            assert all(self.reached(each) > self.to for each in left), left
            assert self.paused >= set(left)
            return
        split_id = fetched.split_id
        assert self.reached(split_id) <= self.to
        self.given[split_id].append(fetched)
        if fetched.finished:
            self.limited.remove(split_id)
        else:
            self.limited.seen(split_id, fetched.position)

    def reached(self, split_id: str) -> float:
        given = self.given[split_id]
        return given[-1].position if given else -math.inf

    @invariant()
    def each_comes_once_and_in_order(self) -> None:
        assert all(self.given[each] == self.fetched[each][: len(self.given[each])] for each in SPLITS)

    @precondition(lambda self: self.to < math.inf)
    @rule()
    def let_all_go(self) -> None:
        self.limit(math.inf)
        for _ in range(1 + sum(map(len, self.fetched.values()))):
            self.poll()
        assert self.given == self.fetched
        assert self.paused <= self.over


TestHeld = Held.TestCase
TestHeld.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
