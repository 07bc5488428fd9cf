"""Rows that `async_map` takes over an iterable, and what it refuses as it is not iterated by rows."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pillarbox import async_map

pd = pytest.importorskip("pandas", reason="pandas is not installed")

RECORDS = [{"text": "love", "n": 1}, {"text": "hate", "n": 2}]
FRAME = pd.DataFrame(RECORDS)
TABLE = pa.Table.from_pylist(RECORDS)


class OwnFrame(pd.DataFrame):
    """A subclass, as GeoPandas has one."""


class Exchanged:
    """A table of a library that nobody here knows, with the protocol of tables."""

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Any:
        return iter(["text", "n"])


async def fail_if_called(row: Any) -> Any:
    raise AssertionError(f"called with {row!r}")


@pytest.mark.contract
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (FRAME, r"a pandas.DataFrame is not iterated by rows .*write rows.to_dict\('records'\)"),
        (OwnFrame(RECORDS), r"OwnFrame is not .*write rows.to_dict\('records'\)"),
        (FRAME["text"], r"a pandas.Series is not .*write rows.tolist\(\)"),
        (FRAME.set_index(["text", "n"]).index, r"a pandas.MultiIndex is not .*write rows.tolist\(\)"),
        (TABLE, r"a pyarrow.Table is not .*write rows.to_pylist\(\)"),
        (TABLE.to_batches()[0], r"a pyarrow.RecordBatch is not .*write rows.to_pylist\(\)"),
        (TABLE.column("text"), r"a pyarrow.ChunkedArray is not .*write rows.to_pylist\(\)"),
        (pa.array([1, 2]), r"a pyarrow.Int64Array is not .*write rows.to_pylist\(\)"),
        (Exchanged(), r"Exchanged is not .*write an iterable of its rows"),
        ({"text": ["love"]}, r"a dict would be called key by key; write rows.values\(\)"),
        (collections.OrderedDict(a=1), r"a OrderedDict would be called key by key"),
        ("love", r"a str would be called characters one by one; write \[rows\]"),
        (b"love", r"a bytes would be called numbers one by one; write \[rows\]"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_is_not_iterated_by_rows_is_refused_at_the_call_with_what_to_write_instead(
    rows: Any, said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        async_map(rows, fail_if_called)
    if not isinstance(rows, pd.DataFrame | pa.Table | pa.RecordBatch):
        # Before what it says of an argument that is for tables.
        with pytest.raises(TypeError, match=said):
            async_map(rows, fail_if_called, schema="v string")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("DataFrame", r"write rows.iter_rows\(named=True\)"),
        ("LazyFrame", r"write rows.collect\(\).iter_rows\(named=True\)"),
        ("Series", r"write rows.to_list\(\)"),
    ],
)
def test_tables_of_polars_are_known_by_name_without_an_import(name: str, said: str) -> None:
    kind = types.new_class(name, exec_body=lambda body: body.update(__module__="polars.frame"))
    before = "polars" in sys.modules
    with pytest.raises(TypeError, match=said):
        async_map(kind(), fail_if_called)  # type: ignore[call-overload]
    assert ("polars" in sys.modules) is before


@pytest.mark.contract
@pytest.mark.parametrize(
    "written",
    [
        lambda: FRAME.to_dict("records"),
        lambda: FRAME.itertuples(index=False),
        lambda: TABLE.to_pylist(),
        lambda: dict(enumerate(RECORDS)).values(),
        lambda: np.array([[1, 2], [3, 4]]),
        lambda: {1, 2},
        lambda: (each for each in RECORDS),
    ],
)
def test_iterables_of_rows_are_called_row_by_row(written: Callable[[], Any]) -> None:
    called = []

    async def note(row: Any) -> int:
        called.append(row)
        return len(called)

    assert [*async_map(written(), note)] == [1, 2]
    assert len(called) == 2
