"""Each line once: any file, any split size, any batch size, any limit, any ends."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from pillarbox.sources.connectors.file_formats import blocks, line_start
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.testing import SourceHarness
from tests.search import examples
from tests.sources.unit.settled import SettledFiles

PROPERTY = settings(
    deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PURE = settings(PROPERTY, max_examples=examples(200))
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"), max_size=12)
NEWLINES = st.sampled_from(["\n", "\r\n"])
SIZES = st.integers(1, 200)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read_in_splits(source: FileSource, readers: int = 2) -> list[Any]:
    with SourceHarness(source, readers=readers, timeout=60) as harness:
        # All of them first: so the harness knows that there are no others when the last has been read.
        while harness.discover():
            continue
        return harness.read_all()


def read_in_micro_batches(source: FileSource, limit: ReadLimit) -> list[list[Any]]:
    with SourceHarness(source) as harness:
        batches = []
        while True:
            pieces = harness.plan(limit)
            if not pieces:
                return batches
            batches.append([row for piece in pieces for row in harness.read_split(piece)])


bytes_with_lines = st.lists(st.sampled_from([b"\n", b"a", b"bc", b'"', b"\r", b"\r\n", b"x" * 70])).map(
    b"".join
)


@pytest.mark.contract
@PURE
@given(bytes_with_lines, st.lists(st.integers(0, 300)), SIZES)
def test_ranges_that_meet_anywhere_have_each_line_once(data: bytes, cuts: list[int], nbytes: int) -> None:
    stream, found = io.BytesIO(data), []
    for start, stop in pairwise(sorted({0, len(data), *(min(each, len(data)) for each in cuts)})):
        begin = line_start(stream, start)
        found += [block for block, _ in blocks(stream, begin, stop, len(data), nbytes)]
    assert b"".join(found) == data
    for block in found[:-1]:
        assert block.endswith(b"\n")


@PURE
@given(bytes_with_lines, SIZES)
def test_blocks_are_whole_lines_and_all_of_the_file(data: bytes, nbytes: int) -> None:
    found = list(blocks(io.BytesIO(data), 0, len(data), len(data), nbytes))
    assert b"".join(block for block, _ in found) == data
    assert [position for _, position in found] == [
        sum(len(block) for block, _ in found[: at + 1]) for at in range(len(found))
    ]
    for block, _ in found[:-1]:
        assert block.endswith(b"\n")


@PROPERTY
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.integers(1, 100))
def test_a_limit_of_bytes_is_kept_but_for_the_line_that_passes_it(
    tmp_path: Path, lengths: list[int], limit: int
) -> None:
    path = written(tmp_path / "a.txt", b"".join(b"x" * length + b"\n" for length in lengths))
    with SourceHarness(SettledFiles(path, "text")) as harness:
        rows: list[Any] = []
        while pieces := harness.plan(ReadLimit(nbytes=limit)):
            found = [row for piece in pieces for row in harness.read_split(piece)]
            # Lines that begin within so many bytes.
            assert sum(len(row[0]) + 1 for row in found[:-1]) < limit
            rows += found
    assert [len(row[0]) for row in rows] == lengths


@PROPERTY
@given(
    st.lists(TEXT.map(lambda text: text.replace("\n", "")), max_size=12),
    NEWLINES,
    st.booleans(),
    SIZES,
    SIZES,
    st.integers(1, 7),
)
def test_text_has_each_line_once(
    tmp_path: Path, lines: list[str], newline: str, ended: bool, split: int, batch: int, nbytes: int
) -> None:
    content = newline.join(lines) + newline * ended
    path = written(tmp_path / "a.txt", content.encode())
    expected = [line.removesuffix("\r") for line in content.split("\n")[:-1]]
    last = content.split("\n")[-1]
    expected += [last] if last else []
    source = SettledFiles(
        path, "text", schema=pa.schema([("value", pa.string())]), split_bytes=split, batch_bytes=batch
    )
    assert sorted(read_in_splits(source)) == sorted((line,) for line in expected)
    batches = read_in_micro_batches(source, ReadLimit(nbytes=nbytes))
    assert Counter(chain(*batches)) == Counter([(line,) for line in expected])


@PROPERTY
@given(
    st.lists(
        st.fixed_dictionaries({"a": TEXT}, optional={"b": st.none() | st.integers(-99, 99), "c": TEXT}),
        max_size=8,
    ),
    NEWLINES,
    st.booleans(),
    st.booleans(),
    SIZES,
    SIZES,
    st.integers(1, 5),
)
def test_json_lines_have_each_row_once(
    tmp_path: Path,
    rows: list[dict[str, Any]],
    newline: str,
    ended: bool,
    ascii_only: bool,
    split: int,
    batch: int,
    limit: int,
) -> None:
    text = newline.join(json.dumps(row, ensure_ascii=ascii_only) for row in rows) + newline * ended
    path = written(tmp_path / "a.json", text.encode())
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    source = SettledFiles(path, "json", schema=schema, split_bytes=split, batch_bytes=batch)
    expected = [(row["a"], row.get("b")) for row in rows]
    assert read_in_splits(source, readers=1) == expected
    batches = read_in_micro_batches(source, ReadLimit(nbytes=limit))
    assert Counter(chain(*batches)) == Counter(expected)


@pytest.mark.contract
@PROPERTY
@given(st.integers(0, 80), st.integers(1, 30), st.integers(1, 4000), st.integers(1, 900), st.integers(7, 50))
def test_parquet_has_each_row_once(
    tmp_path: Path, rows: int, group: int, split: int, batch: int, limit: int
) -> None:
    ids = pa.array(range(rows), pa.int64())
    pq.write_table(
        pa.table({"id": ids, "text": ids.cast(pa.string())}), tmp_path / "a.parquet", row_group_size=group
    )
    source = SettledFiles(tmp_path / "a.parquet", split_bytes=split, batch_bytes=batch)
    expected = [(number, str(number)) for number in range(rows)]
    assert sorted(read_in_splits(source)) == expected
    batches = read_in_micro_batches(source, ReadLimit(nbytes=limit))
    assert Counter(chain(*batches)) == Counter(expected)


@PROPERTY
@given(st.data())
def test_a_snapshot_anywhere_loses_no_line_and_repeats_none(tmp_path: Path, data: st.DataObject) -> None:
    lines = data.draw(
        st.lists(TEXT.map(lambda text: text.replace("\n", "")).filter(bool), min_size=1, max_size=15)
    )
    path = written(tmp_path / "a.txt", "".join(line + "\n" for line in lines).encode())
    source = SettledFiles(
        path,
        "text",
        schema=pa.schema([("value", pa.string())]),
        split_bytes=data.draw(SIZES),
        batch_bytes=data.draw(st.integers(1, 20)),
    )
    rows: list[Any] = []
    snapshot = None
    for most in data.draw(st.lists(st.integers(0, 5), max_size=4)):
        with SourceHarness(source, readers=data.draw(st.integers(1, 3)), snapshot=snapshot) as harness:
            rows += harness.read(most)
            snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot) as harness:
        rows += harness.read_all()
    assert sorted(rows) == sorted((line.removesuffix("\r"),) for line in lines)


def test_lines_of_many_splits_and_batches_are_read(tmp_path: Path) -> None:
    huge = ["x" * 300_000, "", "é" * 200_000, "end"]
    path = written(tmp_path / "a.txt", "\n".join(huge).encode())
    source = SettledFiles(path, "text", split_bytes=1000, batch_bytes=100)
    with SourceHarness(source, timeout=60) as harness:
        assert harness.read_all() == [(line,) for line in huge]


@pytest.mark.parametrize("compression", ["gz", "bz2", "zst", "lz4"])
def test_a_compressed_file_is_one_split_and_goes_on_in_its_middle(tmp_path: Path, compression: str) -> None:
    path = tmp_path / f"a.txt.{compression}"
    with pa.output_stream(path, compression="detect") as file:
        file.write(b"".join(b"%d\n" % number for number in range(5000)))
    source = SettledFiles(path, "text", split_bytes=100, batch_bytes=4000)
    with SourceHarness(source) as harness:
        rows = harness.read(1500)
        snapshot = harness.snapshot()
    assert 0 < len(rows) < 5000
    with SourceHarness(source, snapshot=snapshot) as harness:
        rows += harness.read_all()
    assert rows == [(str(number),) for number in range(5000)]


def test_members_of_a_gzip_file_are_all_read(tmp_path: Path) -> None:
    import gzip

    path = written(tmp_path / "a.txt.gz", gzip.compress(b"one\n") + gzip.compress(b"two\nthree"))
    assert rows_in(SettledFiles(path, "text")) == [("one",), ("two",), ("three",)]


def rows_in(source: FileSource) -> list[Any]:
    return read_in_splits(source, readers=1)
