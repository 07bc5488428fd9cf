"""Event-time alignment as a state: how far may be read, and that somebody can always be."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pillarbox.sources.alignment import Alignment
from tests.search import examples


def held(alignment: Alignment) -> set[str]:
    """The splits that are beyond what may be read now."""
    limit = alignment.may_read_to()
    return {split_id for split_id, time in alignment.watermarks().items() if time > limit}


@pytest.mark.contract
def test_a_split_that_is_ahead_by_more_than_the_drift_is_held_until_the_slowest_has_come_up() -> None:
    alignment = Alignment(10.0)
    alignment.report({"a": 100.0, "b": 110.0, "c": 110.1})
    assert held(alignment) == {"c"}
    assert alignment.may_read_to() == 110.0
    alignment.report({"a": 101.0})
    assert held(alignment) == set()
    assert alignment.may_read_to() == 111.0


def test_without_drift_only_the_slowest_are_read() -> None:
    alignment = Alignment(0.0)
    alignment.report({"a": 1.0, "b": 1.0, "c": 2.0})
    assert held(alignment) == {"c"}


def test_a_split_that_nobody_has_begun_holds_nobody() -> None:
    alignment = Alignment(10.0)
    alignment.report({"a": 1000.0})
    assert held(alignment) == set()
    # As soon as it is read it counts.
    alignment.report({"b": 1.0})
    assert held(alignment) == {"a"}


@pytest.mark.contract
def test_an_idle_split_holds_nobody_and_counts_again_when_it_wakes() -> None:
    alignment = Alignment(10.0)
    alignment.report({"slow": 0.0, "fast": 100.0})
    assert held(alignment) == {"fast"}
    alignment.report({"slow": None})
    assert held(alignment) == set()
    alignment.report({"slow": 1.0})
    assert held(alignment) == {"fast"}


def test_an_idle_split_that_is_far_ahead_stays_held() -> None:
    alignment = Alignment(10.0)
    alignment.report({"slow": 0.0, "fast": 100.0})
    assert held(alignment) == {"fast"}
    alignment.report({"fast": None})
    assert held(alignment) == {"fast"}
    alignment.report({"slow": 95.0})
    assert held(alignment) == set()


@pytest.mark.contract
def test_when_all_are_idle_or_none_is_left_nobody_is_held() -> None:
    alignment = Alignment(10.0)
    alignment.report({"a": 0.0, "b": 100.0, "c": 200.0})
    assert held(alignment) == {"b", "c"}
    alignment.report({"a": None, "b": None, "c": None})
    assert held(alignment) == set()
    assert alignment.may_read_to() == math.inf
    alignment.forget(["a", "b", "c"])
    assert alignment.slowest() is None
    assert alignment.may_read_to() == math.inf


def test_a_split_that_has_finished_or_moved_holds_nobody_and_is_unknown() -> None:
    alignment = Alignment(10.0)
    alignment.report({"slow": 0.0, "fast": 100.0})
    assert held(alignment) == {"fast"}
    alignment.forget(["slow", "unknown"])
    assert held(alignment) == set()
    # One that is held and moves begins anew where it is.
    alignment.report({"slow": 0.0})
    assert held(alignment) == {"fast"}
    alignment.forget(["fast"])
    assert alignment.watermarks() == {"slow": 0.0}


def test_the_watermarks_go_into_a_checkpoint_and_come_back() -> None:
    alignment = Alignment(10.0)
    alignment.report({"slow": 0.0, "fast": 100.0, "quiet": None})
    again = Alignment(10.0)
    again.report(alignment.watermarks())
    assert held(again) == {"fast"}


def test_a_watermark_of_the_end_of_time_holds_nobody() -> None:
    alignment = Alignment(10.0)
    alignment.report({"done": math.inf})
    assert held(alignment) == set()
    alignment.report({"a": 5.0})
    assert held(alignment) == {"done"}


@pytest.mark.parametrize("drift", [-1.0, math.nan])
def test_a_drift_that_makes_no_sense_is_named(drift: float) -> None:
    with pytest.raises(ValueError, match="max_drift="):
        Alignment(drift)


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="split 'a'"):
        Alignment(1.0).report({"a": math.nan})


class Splits(RuleBasedStateMachine):
    """Splits that keep to the limit: read when they may, become idle, wake, finish, are found, move."""

    def __init__(self) -> None:
        super().__init__()
        self.alignment = Alignment(5.0)
        self.times: dict[str, float] = {}
        self.idle: set[str] = set()

    @property
    def paused(self) -> set[str]:
        return {split for split, time in self.times.items() if time > self.alignment.may_read_to()}

    @rule(split=st.sampled_from("abcdef"), ahead=st.sampled_from([0.0, 1.0, 5.0, 7.0, 100.0]))
    def read(self, split: str, ahead: float) -> None:
        if split in self.paused:
            return
        self.times[split] = self.times.get(split, 0.0) + ahead
        self.idle.discard(split)
        self.alignment.report({split: self.times[split]})

    @rule(split=st.sampled_from("abcdef"))
    def go_idle(self, split: str) -> None:
        if split in self.times:
            self.idle.add(split)
            self.alignment.report({split: None})

    @rule(split=st.sampled_from("abcdef"))
    def leave(self, split: str) -> None:
        self.times.pop(split, None)
        self.idle.discard(split)
        self.alignment.forget([split])

    @invariant()
    def who_is_held_waits_for_somebody_who_is_read(self) -> None:
        read = {split: time for split, time in self.times.items() if split not in self.idle}
        for split in self.paused:
            assert any(
                time + 5.0 < self.times[split] and each not in self.paused for each, time in read.items()
            )

    @invariant()
    def the_slowest_is_never_held_and_who_is_far_ahead_is(self) -> None:
        read = {split: time for split, time in self.times.items() if split not in self.idle}
        if not read:
            assert not self.paused
            return
        slowest = min(read.values())
        assert all(split not in self.paused for split, time in read.items() if time == slowest)
        assert self.paused == {split for split, time in self.times.items() if time > slowest + 5.0}


TestSplits = Splits.TestCase
TestSplits.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
