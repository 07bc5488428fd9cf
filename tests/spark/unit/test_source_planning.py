"""Micro-batches planned without Spark: limits, discovery, restarts; packing and cutting."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.sources import Split
from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.spark.data_source import AllowedSources, Read
from pillarbox.spark.micro_batches import OffsetCodec, cut, pack
from tests.sources.unit.found import NoContext
from tests.spark.unit.plans import Stream, all_are_closed, look
from tests.spark.unit.source_logs import LogEnumerator, LogSource, LogSplit, RangeSource, append

__all__ = ["all_are_closed"]


class Plans(Stream):
    """And the rows that its slices stand for."""

    def plan(self, *, waits: bool = True, **limit: int | None) -> list[LogSplit] | None:
        slices = super().plan(waits=waits, **limit)
        for each in slices or ():
            self.read += [(each.split_id, n) for n in range(each.start, each.stop)]
        return slices


@pytest.mark.contract("Whenever a stream of a source is restarted, every row is read once.")
def test_whenever_it_is_restarted_every_row_is_read_once(tmp_path: Path) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        plans = Plans(LogSource(str(folder)))
        written: list[tuple[str, int]] = []
        lengths: dict[str, int] = {}
        for _ in range(40):
            if chance.random() < 0.5:
                file, rows = chance.choice("abcdef"), chance.randrange(1, 9)
                have = lengths.get(file, 0)
                append(folder, file, range(have, have + rows))
                written += [(file, n) for n in range(have, have + rows)]
                lengths[file] = have + rows
            if chance.random() < 0.3:
                plans.start()
            plans.plan(rows=chance.randrange(1, 12))
        plans.start()
        while plans.plan(rows=5) is not None:
            pass
        assert sorted(plans.read) == sorted(written), seed


@pytest.mark.contract
def test_a_limit_is_kept_and_shared_and_what_some_leave_others_get(tmp_path: Path) -> None:
    append(tmp_path / "log", "a", range(100))
    append(tmp_path / "log", "b", range(3))
    append(tmp_path / "log", "c", range(100))
    plans = Plans(LogSource(str(tmp_path / "log")))
    slices = plans.plan(rows=30)
    assert slices is not None
    sizes = {each.split_id: each.rows for each in slices}
    assert sizes["b"] == 3
    assert sum(size or 0 for size in sizes.values()) == 30
    assert abs((sizes["a"] or 0) - (sizes["c"] or 0)) <= 7


def test_with_a_limit_below_the_number_of_splits_each_gets_its_turn(tmp_path: Path) -> None:
    for file in "abcdef":
        append(tmp_path / "log", file, range(10))
    plans = Plans(LogSource(str(tmp_path / "log")))
    turns = [sorted(each.split_id for each in plans.plan(rows=2) or ()) for _ in range(3)]
    assert sorted(name for turn in turns for name in turn) == list("abcdef")


def test_a_split_that_cannot_be_cut_is_read_whole_and_only_if_it_fits_or_is_the_first() -> None:
    plans = Plans(RangeSource(5, 10))
    assert [each.split_id for each in plans.plan(rows=25) or ()] == ["r0", "r1"]
    assert [each.split_id for each in plans.plan(rows=3) or ()] == ["r2"]
    assert [each.split_id for each in plans.plan() or ()] == ["r3", "r4"]
    assert plans.plan() is None
    assert plans.offset["splits"] == []


def test_no_more_splits_are_discovered_than_the_limit_needs() -> None:
    plans = Plans(RangeSource(5_000, 10))
    plans.plan(rows=20)
    assert plans.offset["enumerator"]["checkpoint"] < 1_000


class Growing(RangeSource):
    """Finds some more splits at each look, faster than they are read."""

    def create_enumerator(self, context: Any) -> Any:
        enumerator = super().create_enumerator(context)
        enumerator.discovery_interval = 0.0
        return enumerator


def test_offsets_do_not_grow_while_splits_come_faster_than_they_are_read() -> None:
    plans = Plans(Growing(5_000, 10))
    for _ in range(20):
        plans.plan(rows=20)
    assert len(plans.offset["splits"]) <= 512
    plans.plan(rows=5_000)
    assert len({split_id for split_id, _ in plans.read}) > 500


class Flaky(LogEnumerator):
    fails = False

    def discover(self, checkpoint: list[str], most: int) -> tuple[Sequence[LogSplit], list[str]]:
        if type(self).fails:
            # On 3.11 and later that of `Future.result`, too.
            raise TimeoutError("no list")
        return super().discover(checkpoint, most)


class FlakySource(LogSource):
    def create_enumerator(self, context: Any) -> LogEnumerator:
        return Flaky(context, self, [])


def test_a_discovery_that_fails_ends_the_stream_at_its_beginning_only(tmp_path: Path) -> None:
    append(tmp_path / "log", "a", range(3))
    Flaky.fails = True
    plans = Plans(FlakySource(str(tmp_path / "log")))
    with pytest.raises(TimeoutError, match="no list"):
        plans.plan()
    Flaky.fails = False
    plans.start()
    assert plans.plan() is not None
    Flaky.fails = True
    append(tmp_path / "log", "a", [3])
    look(plans.batches, anew=True)
    assert [each.start for each in plans.plan() or ()] == [3]
    Flaky.fails = False
    append(tmp_path / "log", "b", [3])
    look(plans.batches, anew=True)
    assert [each.split_id for each in plans.plan() or ()] == ["b"]


class Twice(LogEnumerator):
    def discover(self, checkpoint: list[str], most: int) -> tuple[Sequence[LogSplit], list[str]]:
        return [LogSplit("a", 0)], [*checkpoint, "a"]


class TwiceSource(LogSource):
    def create_enumerator(self, context: Any) -> LogEnumerator:
        return Twice(context, self, [])


def test_a_split_that_is_discovered_twice_is_an_error(tmp_path: Path) -> None:
    append(tmp_path / "log", "a", range(3))
    with pytest.raises(ValueError, match=r"Twice.discover found split_id='a' twice"):
        Plans(TwiceSource(str(tmp_path / "log"))).plan()


@pytest.mark.parametrize("at_a_time", [1, 100])
def test_with_available_now_what_comes_later_is_left_to_the_next_trigger(
    at_a_time: int, tmp_path: Path
) -> None:
    folder = tmp_path / "log"
    for file in "abc":
        append(folder, file, range(4))
    plans = Plans(LogSource(str(folder)), max_splits=at_a_time)
    plans.batches.only_what_is_there(ReadLimit(rows=5))
    plans.plan(rows=2)
    append(folder, "a", range(4, 12))
    append(folder, "new", range(8))
    while plans.plan(rows=5) is not None:
        pass
    assert sorted(plans.read) == [(file, row) for file in "abc" for row in range(4)]
    plans.batches.only_what_is_there(ReadLimit(rows=5))
    while plans.plan(rows=5) is not None:
        pass
    assert len(plans.read) == len(set(plans.read)) == 28


def test_offsets_of_others_are_refused() -> None:
    codec = OffsetCodec(RangeSource(1, 1))
    with pytest.raises(ValueError, match="not one of Pillarbox"):
        codec.from_json({"n": 3})
    with pytest.raises(ValueError, match="version 2: this Pillarbox reads version 1"):
        codec.from_json({"version": 2, "number": 0})
    with pytest.raises(ValueError, match="from offset 0 to 2"):
        codec.slices({"version": 1, "number": 0}, {"version": 1, "number": 2})
    assert codec.slices({"version": 1, "number": 2}, {"version": 1, "number": 2}) == ()


def test_packing_is_by_rule_then_by_load_and_loses_nothing() -> None:
    splits = [LogSplit(f"s{n}", 0, size) for n, size in enumerate([100, 1, 1, 1, 50, 49, 98])]
    parts = pack(splits, 3, lambda split: None)
    assert sorted(each.split_id for part in parts for each in part) == sorted(s.split_id for s in splits)
    loads = sorted(sum(each.rows or 0 for each in part) for part in parts)
    assert loads[-1] <= 101
    ruled = pack(splits, 3, lambda split: 1 if split.split_id in ("s1", "s2") else None)
    assert any({"s1", "s2"} <= {each.split_id for each in part} for part in ruled)
    assert pack(splits[:2], 5, lambda split: None) == [[splits[0]], [splits[1]]]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 12), st.integers(1, 8))
def test_pieces_of_a_split_never_meet_in_one_partition(sizes: list[int], least: int, most: int) -> None:
    splits = [LogSplit(f"s{n}", 0, size) for n, size in enumerate(sizes)]
    pieces = cut(splits, least, lambda split, limit: split.up_to(min(split.stop, split.start + limit.rows)))
    parts = pack(pieces, max(most, least), lambda split: None)
    assert all(len({each.split_id for each in part}) == len(part) for part in parts)
    rows = [(each.split_id, n) for part in parts for each in part for n in range(each.start, each.stop)]
    assert sorted(rows) == [(f"s{n}", row) for n, size in enumerate(sizes) for row in range(size)]


def test_cutting_keeps_every_row_and_leaves_what_cannot_be_cut(tmp_path: Path) -> None:
    append(tmp_path / "log", "a", range(100))
    enumerator = LogSource(str(tmp_path / "log")).create_enumerator(NoContext(1))
    pieces = cut([LogSplit("a", 10, 90)], 4, enumerator.advance)
    assert [(each.start, each.stop) for each in pieces] == [(10, 30), (30, 50), (50, 70), (70, 90)]
    whole = RangeSource(1, 1).create_enumerator(NoContext(1))
    assert cut([LogSplit("a", 10, 90)], 4, whole.advance) == [LogSplit("a", 10, 90)]
    assert cut([Split("a", 0, 1)], 4, whole.advance) == [Split("a", 0, 1)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_rows", "0"),
        ("max_files", "many"),
        ("partitions", "-1"),
    ],
)
def test_bad_options_are_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"option '{name}' is '{value}': must be"):
        Read.of(RangeSource(1, 1), {name: value})


def test_options_are_told_apart() -> None:
    given = {"Source": "generator", "Rows": "7", "max_rows": "3"}
    read = Read.of(AllowedSources(["generator"]), given)
    assert read.source == GeneratorSource(rows=7)
    assert read.limit == ReadLimit(rows=3, files=10_000)
    with pytest.raises(ValueError, match="option 'rows': this source was made already"):
        Read.of(RangeSource(1, 1), {"rows": "3"})
