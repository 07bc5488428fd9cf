"""Rows that nearly look alike come once each through restarts, also from files with such names."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from pyarrow import parquet as pq

from pillarbox.sources.enumerator import ReadLimit
from pillarbox.testing import SourceHarness
from pillarbox.testing.identity import identity
from pillarbox.testing.unclean import UncleanTable, unclean_tables
from tests.search import examples
from tests.sources.unit.settled import SettledFiles
from tests.spark.unit.unclean_arrow import arrow_batch

NAMES = ["a", "A", "a ", "a%20", "\u00e4", "a\u0308", "a+", "deep/a", "deep/ a", "dee/pa"]
"""Of files, which some systems take for one another."""
TIMEOUT_S = 3600.0
"""Seconds beyond the time-out of every test, which alone ends a wait for what never comes."""


def written(rows: Any) -> Counter[Any]:
    return Counter(identity(row, nan_bits=True) for row in rows)


@st.composite
def folders(draw: st.DrawFn) -> tuple[UncleanTable, dict[str, tuple[int, int]]]:
    """Rows, and files of them: the places of the first one and behind the last."""
    table = draw(unclean_tables(min_rows=1))
    places = st.integers(0, len(table.rows))
    files = draw(st.dictionaries(st.sampled_from(NAMES), st.tuples(places, places), min_size=1, max_size=9))
    # None is empty: one that is taken for another one must show.
    end = len(table.rows)
    return table, {name: (min(*ends, end - 1), max(*ends, min(ends) + 1)) for name, ends in files.items()}


@pytest.mark.contract(
    "Rows of files that are equal, or nearly, come once each, whatever is restarted, from files whose names "
    "nearly are the same too."
)
@settings(max_examples=examples(100), deadline=None)
@given(
    folders(),
    st.lists(st.sampled_from(["step", "step", "restart a reader", "snapshot", "crash"]), max_size=12),
    st.data(),
)
def test_equal_rows_come_once_each_through_restarts(folder: Any, actions: list[str], data: Any) -> None:
    table, files = folder
    rows = pa.Table.from_batches([arrow_batch(table)])
    with tempfile.TemporaryDirectory() as place:
        for name, (begin, end) in files.items():
            path = Path(place) / f"{name}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(rows.slice(begin, end - begin), path, row_group_size=2)
        given = [row for begin, end in files.values() for row in _rows_of(rows.slice(begin, end - begin))]
        source = SettledFiles(place, split_bytes=1, batch_bytes=1)
        # Of the newest snapshot: it, and the rows up to it.
        saved: tuple[Any, list[Any]] = None, []
        before, harness = [], SourceHarness(source, timeout=TIMEOUT_S)
        for action in actions:
            if action == "step":
                harness.read(1)
            elif action == "restart a reader":
                harness.restart_reader(0)
            else:
                if action == "snapshot":
                    saved = harness.snapshot(), [*before, *harness.rows]
                # Or all that has come since the newest snapshot comes again.
                harness.close()
                snapshot, before = saved
                readers = data.draw(st.integers(1, 3))
                harness = SourceHarness(source, readers=readers, snapshot=snapshot, timeout=TIMEOUT_S)
        with harness:
            harness.read_all()
            assert written([*before, *harness.rows]) == written(given)
        with SourceHarness(source, timeout=TIMEOUT_S) as batches:
            found: list[Any] = []
            while pieces := batches.plan(ReadLimit(rows=data.draw(st.integers(1, 4)))):
                for piece in pieces:
                    part = batches.read_split(piece)
                    # A replay has the same rows, in the same order.
                    assert [*map(identity, part)] == [*map(identity, batches.read_split(piece))]
                    found += part
            assert written(found) == written(given)


def _rows_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    return [*zip(*(column.to_pylist() for column in rows.columns), strict=True)]
