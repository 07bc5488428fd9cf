"""Equal rows are those that a service would get alike, and none of them can change the result of another."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import fractions
import math
import struct
import tempfile
import threading
import zoneinfo
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Dedupe, Ledger, Options, async_map
from pillarbox.testing.identity import identity
from pillarbox.testing.unclean import unclean_rows
from tests.search import examples

pd = pytest.importorskip("pandas", reason="pandas is not installed")
pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
Row = pytest.importorskip("pyspark.sql", reason="pyspark is not installed").Row


class Open(pydantic.BaseModel, frozen=True, extra="allow"):
    """A row with more than its fields."""

    name: str


@dataclass(frozen=True)
class Ours:
    """A row that its class compares by more than its fields."""

    name: str
    noted: int = field(default=0, compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ours) and (self.name, self.noted) == (other.name, other.noted)

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Place:
    name: str
    height: float = 0.0
    noted: int = field(default=0, compare=False)


class Level(IntEnum):
    LOW = 1


class Word(str):
    """A text of a library."""


A = namedtuple("A", "x")
B = namedtuple("B", "x")
UTC = datetime.timezone.utc
CET = datetime.timezone(datetime.timedelta(hours=1))
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=UTC)
PARIS, BERLIN = zoneinfo.ZoneInfo("Europe/Paris"), zoneinfo.ZoneInfo("Europe/Berlin")
TWICE = datetime.datetime(2026, 10, 25, 2, 30)


def shown(row: Any) -> str:
    """A row as a service gets it: a text in which rows differ that are not alike."""
    if isinstance(row, float):
        return f"{type(row).__name__} {struct.pack('<d', row).hex()}"
    if isinstance(row, tuple | frozenset):
        return f"{type(row).__name__} {getattr(row, '__fields__', '')} {[*map(shown, row)]}"
    noted = getattr(row, "noted", "") if isinstance(row, Ours) else ""
    return f"{type(row).__module__}.{type(row).__name__} {row!r} {getattr(row, 'fold', noted)}"


def calls_for(rows: list[Any], dedupe: Dedupe | None = None) -> list[Any]:
    called = []

    async def note(row: Any) -> str:
        called.append(row)
        return shown(row)

    given = Options(dedupe=dedupe or Dedupe(memo=1000))
    assert [*async_map(rows, note, options=given)] == [shown(row) for row in rows]
    return called


@pytest.mark.contract
@pytest.mark.parametrize(
    "rows",
    [
        [1, True, 1.0, decimal.Decimal(1), 1 + 0j, fractions.Fraction(1), np.int64(1), Level.LOW],
        [0.0, -0.0, 0, False, decimal.Decimal(0), decimal.Decimal("-0")],
        [decimal.Decimal("1.5"), decimal.Decimal("1.50"), 1.5],
        [(1,), (True,), (1.0,), (-0.0,), (0.0,)],
        [(("a", 1),), (("a", True),), (("a", 1.0),), ("a", 1)],
        [(0.0, (0.0,)), (0.0, (-0.0,)), (-0.0, (0.0,))],
        [frozenset([1]), frozenset([True]), frozenset([1.0])],
        [complex(0.0, 0.0), complex(0.0, -0.0), complex(-0.0, 0.0)],
        [np.float32(1), np.float64(1), np.int32(1), np.int64(1), np.bool_(True), np.str_("1"), "1", 1],
        [np.float64(0.0), np.float64(-0.0), 0.0],
        [NOON, NOON.astimezone(CET), NOON.replace(tzinfo=None), pd.Timestamp(NOON)],
        [NOON.astimezone(PARIS), NOON.astimezone(BERLIN)],
        [TWICE.replace(tzinfo=PARIS), TWICE.replace(tzinfo=PARIS, fold=1)],
        [pd.Timestamp("2026-11-21"), pd.Timestamp("2026-11-21") + pd.Timedelta(1, "ns")],
        [datetime.time(12, tzinfo=UTC), datetime.time(13, tzinfo=CET), datetime.time(12)],
        [datetime.date(2026, 11, 21), datetime.datetime(2026, 11, 21)],
        ["a", "A", "a ", "\u00e4", "a\u0308", Word("a"), b"a"],
        [A(1), B(1), (1,), A(1.0), A(True)],
        [Row(a=1), Row(b=1), Row(a=1.0), (1,)],
        [Place("a", 1.0), Place("a", 1), Place("a", True), Place("a", -0.0), Place("a", 0.0)],
        [Open(name="a"), Open(name="a", more=1), Open(name="a", more=1.0), Open(name="a", more=True)],
        [Ours("a", 1), Ours("a", 2), Ours("b", 1)],
        [pa.scalar(0.0), pa.scalar(-0.0), pa.scalar(0), pa.scalar([0.0]), pa.scalar([-0.0]), 0.0],
        [pa.scalar({"a": None, "b": "1"}), pa.scalar({"a": "1", "b": None}), pa.scalar({"b": "1"})],
        [pd.Interval(0.0, 1.0), pd.Interval(-0.0, 1.0), pd.Interval(0, 1), pd.Interval(0.0, 1.0, "left")],
        [range(0), range(1, 1), range(3), range(0, 4, 2), range(0, 3, 2)],
        [PureWindowsPath("a"), PureWindowsPath("A")],
    ],
    ids=lambda rows: type(rows[0]).__name__,
)
def test_rows_that_a_service_gets_as_different_texts_are_called_each_for_itself(rows: list[Any]) -> None:
    assert [*map(shown, calls_for(rows))] == [*map(shown, rows)]
    # In flight as well as of what is kept, and of what a function says is compared.
    assert [*map(shown, calls_for(rows, Dedupe()))] == [*map(shown, rows)]
    assert [*map(shown, calls_for(rows, Dedupe(lambda row: (0, row))))] == [*map(shown, rows)]


def again(row: Any) -> Any:
    """An equal row that is another object."""
    if isinstance(row, tuple) and type(row) is tuple:
        return tuple(map(again, row))
    return float(str(row)) if type(row) is float else row


@pytest.mark.contract
@pytest.mark.parametrize(
    "row",
    [
        *("a", 1, 1.5, True, None, b"a", math.nan, ("a", 1), ("a", 1.5, math.nan), ("a", (None, -0.0))),
        *(NOON.astimezone(PARIS), decimal.Decimal("1.50"), np.float32(1), A(1), Row(a=1.0), Place("a")),
        *(Open(name="a", more=1.5), Ours("a", 1), pa.scalar(-0.0), pa.scalar([1.5, None]), pd.Interval(0, 1)),
        *(frozenset([1, 2]), Level.LOW, pd.NaT, pd.NA, pd.Timestamp("2026-11-21", tz="Europe/Paris")),
    ],
    ids=lambda row: type(row).__name__,
)
def test_rows_that_are_alike_share_a_call(row: Any) -> None:
    assert len(calls_for([row, again(row), row])) == 1


def test_what_a_dataclass_does_not_compare_is_not_compared() -> None:
    called = []

    async def note(row: Place) -> int:
        called.append(row)
        return len(called)

    rows = [Place("a", 1.0, noted=1), Place("a", 1.0, noted=2)]
    assert [*async_map(rows, note, options=Options(dedupe=True))] == [1, 1]


@pytest.mark.contract(
    "With dedupe each row has the result of its own, and calls are one for each row that a service gets "
    "otherwise, also over the tasks of a job.",
    convicts=["zeros_compared_alike", "types_not_compared"],
)
@settings(max_examples=examples(250))
@given(unclean_rows(), st.booleans())
def test_each_row_has_the_result_of_its_own_and_equal_ones_are_called_once(
    rows: list[Any], across_tasks: bool
) -> None:
    called = []

    async def note(row: Any) -> str:
        called.append(written(row))
        await asyncio.sleep(0)
        return written(row)

    def written(row: Any) -> str:
        # Tasks share rows by a ledger, in which every NaN is one.
        return repr(identity(row, nan_bits=not across_tasks))

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder, uid="uid", run="run") if across_tasks else None
        given = Options(
            ledger=ledger, dedupe=Dedupe(across_tasks=across_tasks, memo=0 if across_tasks else 99)
        )
        assert [*async_map(rows, note, options=given)] == [*map(written, rows)]
    assert sorted(called) == sorted({*map(written, rows)})


# -- results -----------------------------------------------------------------------------------------------


class Note:
    """An object of a user, which can be changed."""

    def __init__(self) -> None:
        self.tags: list[str] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note) and other.tags == self.tags

    __hash__ = None  # type: ignore[assignment]


def changed(result: Any) -> None:
    if isinstance(result, Note):
        result.tags.append("changed")
    elif isinstance(result, tuple):
        changed(result[0])
    elif isinstance(result, dict):
        changed(result["tags"])
        result["more"] = 1
    elif isinstance(result, np.ndarray):
        result[0] = 7
    else:
        result.append(1)


MAKERS: list[Callable[[], Any]] = [
    lambda: {"tags": []},
    lambda: {"tags": [[1], {"a": 2}]},
    lambda: ([1, 2], "a"),
    lambda: [1.5, None, "a"],
    lambda: bytearray(b"ab"),
    lambda: np.zeros(4),
    Note,
    lambda: {"tags": Note()},
]


@pytest.mark.contract
@pytest.mark.parametrize("make", MAKERS, ids=range(len(MAKERS)))
def test_a_row_that_changes_its_result_changes_that_of_no_equal_row(make: Callable[[], Any]) -> None:
    calls = []

    async def call(row: str) -> Any:
        calls.append(row)
        await asyncio.sleep(0)
        return make()

    expected = make()
    # The first three are in flight together, the others come later.
    rows = (row for row in ["a"] * 3 + ["b"] * 600 + ["a"] * 3)
    results = async_map(rows, call, capacity=1, options=Options(dedupe=Dedupe(memo=10)))
    for number, result in enumerate(results):
        np.testing.assert_equal(result, expected, err_msg=f"row {number}")
        changed(result)
    assert calls == ["a", "b"]


def test_results_that_nobody_can_change_are_shared_as_they_are() -> None:
    made = [("a", 1, None), pa.array([1, 2]), "text" * 100, datetime.datetime(2026, 11, 21), (("a",), 1.5)]
    kept = made[0]

    async def call(row: int) -> Any:
        return made[row]

    for row, expected in enumerate(made):
        results = [*async_map([row] * 3, call, options=Options(dedupe=True))]
        assert results == [expected] * 3
    results = [*async_map([0] * 3, call, options=Options(dedupe=True))]
    assert all(result is kept for result in results)


def test_a_result_that_holds_itself_is_copied_and_one_that_cannot_be_copied_is_given_as_it_is() -> None:
    circle: list[Any] = []
    circle.append(circle)
    lock = threading.Lock()

    async def call(row: str) -> Any:
        return circle if row == "circle" else {"lock": lock}

    first, second = async_map(["circle"] * 2, call, options=Options(dedupe=True))
    assert first is not second
    assert second[0] is second
    first, second = async_map(["lock"] * 2, call, options=Options(dedupe=True))
    assert first["lock"] is second["lock"] is lock


@pytest.mark.contract
@pytest.mark.parametrize("across_tasks", [True, False])
def test_equal_rows_that_a_ledger_knows_share_no_result(across_tasks: bool, tmp_path: Path) -> None:
    async def call(row: str) -> Any:
        return {"tags": []}

    ledger = Ledger(str(tmp_path), uid="tag", run="1")
    given = Options(ledger=ledger, dedupe=Dedupe(across_tasks=across_tasks))
    for _ in range(2):
        for result in async_map(["a"] * 5, call, options=given):
            assert result == {"tags": []}
            result["tags"].append(1)


class Kind(Enum):
    GOOD = "good"


def test_members_of_an_enumeration_stay_the_members_that_they_are() -> None:
    async def call(row: str) -> Any:
        return [Kind.GOOD]

    for result in async_map(["a"] * 3, call, options=Options(dedupe=True)):
        assert result[0] is Kind.GOOD
