"""Event-time alignment in the coordinator: how far may be read, and that somebody can always be."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pillarbox.sources import Split
from pillarbox.sources.enumerator import EventTimeLimit
from tests.search import examples
from tests.sources.unit.assigned import Run

NAMES = "abcdef"


class Aligned:
    """A coordinator without a thread, and one reader, which has the splits `a` to `f`."""

    def __init__(self, max_drift: float) -> None:
        run = Run(1, max_drift=max_drift)
        run.world.make = lambda number: Split(NAMES[number], 0, 3)
        run.find(len(NAMES))
        self.reader = run.open(0)
        for _ in NAMES:
            run.coordinator.request(0)
        self.coordinator = run.coordinator
        self.times: dict[str, float] = {}

    def report(self, **watermarks: float | None) -> None:
        """The reader says this of its splits."""
        for split_id, watermark in watermarks.items():
            self.times.pop(split_id, None)
            if watermark is not None:
                self.times[split_id] = watermark
        self.coordinator.report(0, watermarks)

    def finish(self, split_id: str) -> None:
        self.times.pop(split_id, None)
        self.coordinator.finished(0, [split_id])

    @property
    def limit(self) -> float:
        """The limit that the reader was told last."""
        told = [each.seconds for each in self.reader.under_way if isinstance(each, EventTimeLimit)]
        return told[-1] if told else math.inf

    @property
    def held(self) -> set[str]:
        """The splits that are beyond it."""
        return {split_id for split_id, time in self.times.items() if time > self.limit}


@pytest.mark.contract
def test_a_split_that_is_ahead_by_more_than_the_drift_is_held_until_the_slowest_has_come_up() -> None:
    aligned = Aligned(10.0)
    aligned.report(a=100.0, b=110.0, c=110.1)
    assert aligned.held == {"c"}
    assert aligned.limit == 110.0
    aligned.report(a=101.0)
    assert aligned.held == set()
    assert aligned.limit == 111.0


def test_without_drift_only_the_slowest_are_read() -> None:
    aligned = Aligned(0.0)
    aligned.report(a=1.0, b=1.0, c=2.0)
    assert aligned.held == {"c"}


def test_a_split_that_nobody_has_begun_holds_nobody() -> None:
    aligned = Aligned(10.0)
    aligned.report(a=1000.0)
    assert aligned.held == set()
    # As soon as it is read it counts.
    aligned.report(b=1.0)
    assert aligned.held == {"a"}


@pytest.mark.contract
def test_an_idle_split_holds_nobody_and_counts_again_when_it_wakes() -> None:
    aligned = Aligned(10.0)
    aligned.report(a=0.0, b=100.0)
    assert aligned.held == {"b"}
    aligned.report(a=None)
    assert aligned.held == set()
    aligned.report(a=1.0)
    assert aligned.held == {"b"}


@pytest.mark.contract
def test_when_all_are_idle_or_none_is_left_nobody_is_held() -> None:
    aligned = Aligned(10.0)
    aligned.report(a=0.0, b=100.0, c=200.0)
    assert aligned.held == {"b", "c"}
    aligned.report(a=None, b=None, c=None)
    assert aligned.limit == math.inf
    aligned.report(a=0.0)
    for split_id in "abc":
        aligned.finish(split_id)
    assert aligned.limit == math.inf


def test_a_split_that_has_finished_holds_nobody_and_what_is_still_said_of_it_is_not_heard() -> None:
    aligned = Aligned(10.0)
    aligned.report(a=0.0, b=100.0)
    assert aligned.held == {"b"}
    aligned.finish("a")
    assert aligned.held == set()
    aligned.report(a=1.0)
    assert aligned.limit == 110.0


def test_a_watermark_of_the_end_of_time_holds_nobody() -> None:
    aligned = Aligned(10.0)
    aligned.report(a=math.inf)
    assert aligned.held == set()
    aligned.report(b=5.0)
    assert aligned.held == {"a"}


def test_the_limit_is_told_when_it_has_changed_only() -> None:
    aligned = Aligned(10.0)
    aligned.report(a=1.0)
    aligned.report(b=5.0)
    aligned.report(c=None)
    aligned.report(a=2.0)
    told = [each for each in aligned.reader.under_way if isinstance(each, EventTimeLimit)]
    assert told == [EventTimeLimit(11.0), EventTimeLimit(12.0)]


class Splits(RuleBasedStateMachine):
    """Splits that keep to the limit: read when they may, become idle, wake, finish."""

    def __init__(self) -> None:
        super().__init__()
        self.aligned = Aligned(5.0)
        self.at = dict.fromkeys(NAMES, 0.0)

    @rule(split=st.sampled_from(NAMES), ahead=st.sampled_from([0.0, 1.0, 5.0, 7.0, 100.0]))
    def read(self, split: str, ahead: float) -> None:
        if split in self.at and split not in self.aligned.held:
            self.at[split] += ahead
            self.aligned.report(**{split: self.at[split]})

    @rule(split=st.sampled_from(NAMES))
    def go_idle(self, split: str) -> None:
        if split in self.at and split not in self.aligned.held:
            self.aligned.report(**{split: None})

    @rule(split=st.sampled_from(NAMES))
    def finish(self, split: str) -> None:
        if split not in self.aligned.held and self.at.pop(split, None) is not None:
            self.aligned.finish(split)

    @invariant()
    def who_is_held_waits_for_somebody_who_is_read(self) -> None:
        times, held = self.aligned.times, self.aligned.held
        for split in held:
            assert any(time + 5.0 < times[split] and each not in held for each, time in times.items())

    @invariant()
    def the_slowest_is_never_held_and_who_is_far_ahead_is(self) -> None:
        times, held = self.aligned.times, self.aligned.held
        slowest = min(times.values(), default=math.inf)
        assert held == {split for split, time in times.items() if time > slowest + 5.0}


TestSplits = Splits.TestCase
TestSplits.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
