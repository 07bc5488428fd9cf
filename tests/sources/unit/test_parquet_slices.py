"""Slices within a row group of Parquet have their rows, whatever their types, and cost their own pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from pillarbox.sources import Split  # noqa: E402
from pillarbox.sources.connectors.files import FileSource  # noqa: E402
from pillarbox.sources.enumerator import ReadLimit  # noqa: E402
from pillarbox.sources.fetching import ReadFailed  # noqa: E402
from pillarbox.testing import SourceHarness  # noqa: E402

ROWS = 3000
EDGES = [(1, 2), (0, 700), (699, 1501), (1000, 2000), (1500, 1500 + 999), (2999, 3000), (1, 3000)]
"""Slices of two row groups of 2,000 rows and 1,000."""


def gaps(values: list[Any]) -> list[Any]:
    return [None if at % 7 == 3 else value for at, value in enumerate(values)]


COLUMNS: dict[str, Callable[[], Any]] = {
    "whole numbers with nulls": lambda: pa.array(gaps([*range(ROWS)]), pa.int64()),
    "numbers without a sign": lambda: pa.array(range(ROWS), pa.uint32()),
    "text of few values": lambda: pa.array(gaps([f"value {at % 9}" for at in range(ROWS)])),
    "text of many values": lambda: pa.array([f"value {at}" for at in range(ROWS)], pa.large_string()),
    "a dictionary": lambda: pa.array([f"value {at % 9}" for at in range(ROWS)]).dictionary_encode(),
    "booleans": lambda: pa.array(gaps([at % 3 == 0 for at in range(ROWS)])),
    "instants": lambda: pa.array(
        gaps([datetime(2024, 1, 1, at % 24, tzinfo=timezone.utc) for at in range(ROWS)]),
        pa.timestamp("us", "Europe/Berlin"),
    ),
    "decimals": lambda: pa.array([Decimal(at) / 100 for at in range(ROWS)], pa.decimal128(12, 2)),
    "bytes": lambda: pa.array([bytes([at % 256]) * (at % 5) for at in range(ROWS)]),
    "nulls": lambda: pa.nulls(ROWS, pa.int32()),
    "lists": lambda: pa.array([[at] * (at % 3) for at in range(ROWS)]),
    "lists of lists": lambda: pa.array(gaps([[[at], [], [None, at]][: at % 4] for at in range(ROWS)])),
    "lists of text": lambda: pa.array(gaps([[f"value {at % 9}"] * (at % 3) for at in range(ROWS)])),
    "vectors": lambda: pa.array(gaps([[at / 2] * 3 for at in range(ROWS)]), pa.list_(pa.float32(), 3)),
    "structs of one field": lambda: pa.array(gaps([{"a": at} for at in range(ROWS)])),
    "lists of structs of one field": lambda: pa.array([[{"a": at}] * (at % 3) for at in range(ROWS)]),
    "maps": lambda: pa.array(
        [[(at, "a")] * (at % 3) for at in range(ROWS)], pa.map_(pa.int64(), pa.string())
    ),
    "structs": lambda: pa.array([{"a": at, "b": [at] * (at % 3)} for at in range(ROWS)]),
}
if int(pa.__version__.split(".")[0]) < 26:
    # Whose reader refuses lists of one length with nulls among them.
    COLUMNS["vectors"] = lambda: pa.array([[at / 2] * 3 for at in range(ROWS)], pa.list_(pa.float32(), 3))
SMALL = {"data_page_size": 500, "write_batch_size": 100}
WRITERS: dict[str, dict[str, Any]] = {
    "small pages": {**SMALL},
    "an offset index": {**SMALL, "write_page_index": True},
    "pages of version 2": {**SMALL, "data_page_version": "2.0"},
    "no dictionaries": {**SMALL, "use_dictionary": False, "compression": "zstd"},
    "one page": {"compression": "none"},
    "old timestamps": {**SMALL, "use_deprecated_int96_timestamps": True},
    "no schema of Arrow": {**SMALL, "store_schema": False},
}


def written(folder: Path, columns: dict[str, Any], **how: Any) -> FileSource:
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=2000, **how)
    return FileSource(str(path), settle=0.0)


def split_of(harness: SourceHarness[Any, Any]) -> Split:
    (split,) = harness.discover()
    return split


@pytest.mark.contract("A slice of a row group of Parquet has its rows, whatever their types and the writer.")
@pytest.mark.parametrize("how", WRITERS.values(), ids=WRITERS)
def test_a_slice_has_the_rows_of_the_whole(tmp_path: Path, how: dict[str, Any]) -> None:
    source = written(tmp_path, {name: make() for name, make in COLUMNS.items()}, **how)
    with SourceHarness(source) as harness:
        split = split_of(harness)
        whole = harness.read_split(split)
        assert len(whole) == ROWS
        for start, stop in EDGES:
            assert harness.read_split(split.starting_at(start).up_to(stop)) == whole[start:stop]


def digest(at: int) -> str:
    return sha256(str(at).encode()).hexdigest()


SHAPES: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "plain": (pa.string(), digest),
    "lists": (pa.list_(pa.string()), lambda at: [digest(at)] * (at % 3)),
    "maps": (pa.map_(pa.string(), pa.string()), lambda at: [(digest(at), digest(-at))] * (at % 3)),
    "structs": (
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.string())), ("c", pa.struct([("d", pa.string())]))]),
        lambda at: {"a": digest(at), "b": [digest(-at)] * (at % 3), "c": {"d": str(at)} if at % 7 else None},
    ),
}
WITH_ROWS = [{"write_page_index": True}, {"write_page_index": False, "data_page_version": "2.0"}]
"""Writers whose pages say how many rows they hold."""


@pytest.mark.contract(
    "A slice of a row group of Parquet costs its own pages, and not those in front of it.",
    convicts=["pages_in_front_read"],
)
@pytest.mark.parametrize(
    ("shape", "how"),
    [("plain", {"write_page_index": False}), *((shape, how) for how in WITH_ROWS for shape in SHAPES)],
)
def test_a_slice_is_decoded_though_the_pages_in_front_of_it_and_behind_it_are_broken(
    tmp_path: Path, shape: str, how: dict[str, Any]
) -> None:
    kind, make = SHAPES[shape]
    values = [make(at) for at in range(ROWS)]
    how = {"use_dictionary": False, "compression": "zstd", **how}
    column = {"text": pa.array(values, kind)}
    source = written(tmp_path, column, data_page_size=1000, write_batch_size=100, **how)
    path = tmp_path / "a.parquet"
    group = pq.read_metadata(path).row_group(0)
    for leaf in range(group.num_columns):
        chunk = group.column(leaf)
        # In the first page, behind its header, and at the end of the last one.
        last = chunk.data_page_offset + chunk.total_compressed_size - 9
        overwrite(path, [chunk.data_page_offset + 200, last])
    with SourceHarness(source) as harness:
        split = split_of(harness)
        middle = harness.read_split(split.starting_at(900).up_to(1100))
        assert middle == [(value,) for value in column["text"][900:1100].to_pylist()]
        with pytest.raises(ReadFailed, match="from row 0 on"):
            harness.read_split(split)


def overwrite(path: Path, places: list[int]) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place : place + 8] = b"\xff" * 8
    path.write_bytes(content)


@pytest.mark.contract(
    "A slice of a row group of Parquet does not cost a dictionary that its pages do not use."
)
def test_a_slice_behind_the_pages_with_a_dictionary_is_decoded_though_that_is_broken(tmp_path: Path) -> None:
    texts = [digest(at) for at in range(ROWS)]
    how = {"dictionary_pagesize_limit": 1000, "write_page_index": True, "compression": "zstd"}
    source = written(tmp_path, {"text": texts}, **SMALL, **how)
    path = tmp_path / "a.parquet"
    chunk = pq.read_metadata(path).row_group(0).column(0)
    overwrite(path, [chunk.dictionary_page_offset])
    with SourceHarness(source) as harness:
        split = split_of(harness)
        assert harness.read_split(split.starting_at(1500).up_to(1600)) == [(t,) for t in texts[1500:1600]]
        with pytest.raises(ReadFailed, match="from row 0 on"):
            harness.read_split(split)


@pytest.mark.contract("A micro-batch of Parquet has `max_rows` rows, wherever in a row group they end.")
@pytest.mark.parametrize("split_bytes", [1, 2**20])
def test_micro_batches_have_so_many_rows(tmp_path: Path, split_bytes: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(ROWS)}), path, row_group_size=2000)
    source = FileSource(str(path), settle=0.0, split_bytes=split_bytes)
    found: list[Any] = []
    with SourceHarness(source) as harness:
        while rows := harness.micro_batch(ReadLimit(rows=700)):
            assert len(rows) == min(700, ROWS - len(found))
            found += rows
    assert sorted(found) == [(n,) for n in range(ROWS)]


def test_a_file_that_cannot_be_reached_is_not_planned_without_its_limit(tmp_path: Path) -> None:
    path, aside = tmp_path / "a.parquet", tmp_path / ".aside"
    pq.write_table(pa.table({"n": range(ROWS)}), path)
    with SourceHarness(FileSource(str(tmp_path), settle=0.0)) as harness:
        split = split_of(harness)
        path.write_bytes(b"PAR0" * 8)
        # The task that reads it says what is wrong.
        assert harness.enumerator.advance(split, ReadLimit(rows=5)) == split
        path.rename(aside)
        assert harness.enumerator.advance(split, ReadLimit(rows=5)) == split
