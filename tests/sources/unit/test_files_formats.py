"""Values in files: those that cannot be read cost their row, arbitrary JSON, slices of row groups."""

from __future__ import annotations

import gzip
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs
from pyarrow import parquet as pq

from pillarbox.sources.connectors.file_formats import JsonFormat
from pillarbox.sources.connectors.file_listing import FileSplit
from pillarbox.sources.connectors.files import FileSource, read_split
from pillarbox.sources.fetching import ReadFailed
from pillarbox.testing import SourceHarness
from tests.search import examples
from tests.sources.unit.settled import SettledFiles

JSON = JsonFormat(fs.LocalFileSystem())
X = pa.schema([("x", pa.int64())])
BAD = pa.field("_corrupt_record", pa.string())


def read(source: FileSource) -> list[Any]:
    with SourceHarness(source, timeout=60) as harness:
        return harness.read_all()


def lines(path: Path, *texts: str) -> Path:
    path.write_text("".join(text + "\n" for text in texts))
    return path


def batches(source: FileSource, splits: list[FileSplit]) -> Iterator[pa.RecordBatch]:
    """All batches of splits, read in this thread."""
    for split in splits:
        yield from (batch for batch, _ in read_split(source, None, split))


# -- bad values ------------------------------------------------------------------------------------------


@pytest.mark.contract("A bad value in a file costs its own row, and is not a data loss.")
@pytest.mark.parametrize("on_data_loss", ["fail", "ignore"])
def test_one_bad_value_in_100_000_rows_leaves_the_others(tmp_path: Path, on_data_loss: str) -> None:
    texts = [f'{{"x": {number}}}' for number in range(100_000)]
    texts[70_000] = '{"x": "seventy"}'
    path = lines(tmp_path / "a.json", *texts)
    words = r"a\.json'.*line 70001: column 'x': 'seventy' cannot be read as int64.*on_bad_row='null'"
    with pytest.raises(ReadFailed, match=words):
        read(SettledFiles(path, "json", X, on_data_loss=on_data_loss))
    found = read(SettledFiles(path, "json", X, on_data_loss=on_data_loss, on_bad_row="null"))
    assert found == [(None if number == 70_000 else number,) for number in range(100_000)]
    source = SettledFiles(path, "json", X.append(BAD), on_data_loss=on_data_loss, on_bad_row="column")
    assert [row for row in read(source) if row[1] is not None] == [(None, '{"x": "seventy"}')]


@pytest.mark.contract("A bad value fails the read with file, line and value, cut to a bounded length.")
def test_a_bad_value_is_named_with_its_line_in_whatever_split_it_stands(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.json", '{"x": 1}', "", '{"x": 2}', '{"x": "' + "y" * 10_000 + '"}')
    for nbytes in (1, 7, 1000, 2**20):
        with pytest.raises(ReadFailed, match=r"a\.json'.*line 4: column 'x': 'yyy") as caught:
            read(SettledFiles(path, "json", X, split_bytes=nbytes, batch_bytes=nbytes))
        assert len(str(caught.value)) < 1000
    lines(path, '{"x": 1}', '[{"x": 2}]')
    with pytest.raises(ReadFailed, match=r"""line 2: b'\[\{"x": 2\}\]' is not a JSON object"""):
        read(SettledFiles(path, "json", X))
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + b'{"x": 1}\r\n' * 3 + b"no"))
    with pytest.raises(ReadFailed, match="line 4: b'no' is not a JSON object"):
        read(SettledFiles(packed, "json", X))


def test_bad_values_of_every_kind_of_line_are_null_or_stand_in_the_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    path.write_bytes(
        b'{"x":1,"y":"a"}\r\n{"x":1.5,"y":"b"}\n\nnull\n{"x":2,"y":"\\ud800"}\n{"x":9} {"x":8}\n\xff'
    )
    schema = pa.schema([("x", pa.int64()), BAD, ("y", pa.string())])
    with caplog.at_level(logging.WARNING, "pillarbox"):
        found = read(SettledFiles(path, "json", schema, on_bad_row="column"))
    assert found == [
        (1, None, "a"),
        (None, '{"x":1.5,"y":"b"}', "b"),
        (None, "null", None),
        (2, '{"x":2,"y":"\\ud800"}', None),
        (None, '{"x":9} {"x":8}', None),
        (None, "\N{REPLACEMENT CHARACTER}", None),
    ]
    without_column = read(SettledFiles(path, "json", schema.remove(1), on_bad_row="null"))
    assert without_column == [(x, y) for x, _, y in found]
    assert "5 rows have values that cannot be read" in caplog.text
    path.write_bytes(b"one\n\xff\xfe\nthree\n")
    with pytest.raises(ReadFailed, match=r"line 2: column 'value': b'\\xff\\xfe' cannot be read as string"):
        read(SettledFiles(path, "text"))
    assert read(SettledFiles(path, "text", on_bad_row="null")) == [("one",), (None,), ("three",)]
    assert read(SettledFiles(path, "text", on_bad_row="column")) == [
        ("one", None),
        (None, "\N{REPLACEMENT CHARACTER}" * 2),
        ("three", None),
    ]
    assert read(SettledFiles(path, "text", pa.schema([("value", pa.binary())])))[1] == (b"\xff\xfe",)


def test_a_value_of_parquet_that_no_cast_can_give_is_null_on_demand(tmp_path: Path) -> None:
    values = [1, 2**40, 3, -(2**40), None]
    pq.write_table(pa.table({"x": values, "word": list("abcde")}), tmp_path / "a.parquet", row_group_size=2)
    schema = pa.schema([("word", pa.string()), ("x", pa.int32())])
    found = read(SettledFiles(tmp_path, schema=schema, on_bad_row="null"))
    assert found == [("a", 1), ("b", None), ("c", 3), ("d", None), ("e", None)]
    with pytest.raises(ReadFailed, match="column 'x' is int64 and cannot be read as date32"):
        read(SettledFiles(tmp_path, schema=pa.schema([("x", pa.date32())]), on_bad_row="null"))


def test_files_that_do_not_suit_the_schema_are_no_data_loss(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ReadFailed, match="none of the columns"):
        read(SettledFiles(tmp_path, schema=X, on_data_loss="ignore", on_bad_row="null"))


# -- JSON --------------------------------------------------------------------------------------------------

KINDS = [
    pa.int8(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
]
TYPES = st.sampled_from(KINDS)
SCALARS = st.sampled_from(
    [
        "null",
        "1",
        "-0",
        "1.5",
        "1e999",
        "NaN",
        "9223372036854775808",
        "true",
        '"x"',
        '"\\ud800"',
        '"2024-01-01"',
        '"2024-01-01T00:00:00+02:00"',
        '"eA=="',
        "1" * 5000,
        "[" * 100_000,
        "0.123456789012345678901234567890",
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda values: (
        st.lists(values, max_size=3).map(lambda given: f"[{','.join(given)}]")
        | st.lists(st.tuples(st.sampled_from("abc"), values), max_size=3).map(
            lambda given: "{" + ",".join(f'"{name}":{value}' for name, value in given) + "}"
        )
    ),
    max_leaves=6,
)
ROWS = st.lists(st.tuples(st.sampled_from("abc"), VALUES), max_size=3).map(
    lambda given: "{" + ",".join(f'"{name}": {value}' for name, value in given) + "}"
)
LINES = st.lists(
    ROWS | VALUES | st.text(max_size=5).map(lambda text: text.replace("\n", "")), min_size=1, max_size=6
)


@pytest.mark.contract("No line of JSON ends the process: it is read, or is a bad row.")
@settings(deadline=None, max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(st.lists(TYPES, min_size=1, max_size=3), LINES, st.binary(max_size=3))
def test_any_line_of_json_is_a_row_or_a_bad_one(
    kinds: list[pa.DataType], texts: list[str], noise: bytes
) -> None:
    schema = pa.schema([("abc"[at], kind) for at, kind in enumerate(kinds)])
    JSON.check_schema(schema)
    block = "\n".join(texts).encode(errors="surrogatepass") + noise.replace(b"\n", b"")
    all_lines = block.split(b"\n")
    batch, bad = JSON.parse(block, schema)
    batch.validate(full=True)
    assert batch.schema == schema
    assert batch.num_rows == sum(bool(line.strip()) for line in all_lines)
    full = [number for number, line in enumerate(all_lines) if line.strip()]
    for row, number, problem in bad:
        assert full[row] == number and len(problem) < 1500
    # A line alone is read as it is among others: no value depends on how a file is cut.
    singles = [JSON.parse(line, schema)[0] for line in all_lines if line.strip()]
    if singles:
        whole = pa.Table.from_batches(singles).combine_chunks().to_pylist()
        assert repr(whole) == repr(batch.to_pylist())


def test_json_in_which_a_column_is_an_object_here_and_a_list_there_ends_no_process(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.json", "null", '{"x": true}', '{"x": {"y": -1.5, "z": []}}', '{"x": [1]}')
    code = (
        "import pyarrow as pa; from pillarbox.testing import SourceHarness\n"
        "from pillarbox.sources.connectors.files import FileSource\n"
        "schema = pa.schema([('x', pa.bool_())])\n"
        f"source = FileSource({str(path)!r}, 'json', schema, settle=0.0, on_bad_row='null')\n"
        "with SourceHarness(source) as harness: print(harness.read_all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[(None,), (True,), (None,), (None,)]\n"), done.stderr


HARMFUL = [
    "null",
    '{"x": 1} null',
    '{"x": 1}\t\r null null {}',
    '{"y": {"z": {}}null}',
    '{"y":\n{"z": 1}} null {}',
    '{"y": [{}\n{"x": 1}]}\n{"x": 2} {"x": 3}',
    '{"x": 1}\0}',
    '{"x": 1}{"x": 2}\n{"x": 3}\0}\n{"x": 4}',
    '{"y": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}",
]


def test_what_would_end_another_parser_or_lead_it_astray_is_a_bad_line(tmp_path: Path) -> None:
    for number, text in enumerate(HARMFUL):
        (tmp_path / f"{number}.json").write_text(f'{{"x": 7}}\n{text}\n{{"x": 8}}\n')
    code = (
        "import sys, pyarrow as pa; from pillarbox.testing import SourceHarness\n"
        "from pillarbox.sources.connectors.files import FileSource\n"
        "schema = pa.schema([('x', pa.int64())])\n"
        f"for number in range({len(HARMFUL)}):\n"
        f"    path = {str(tmp_path)!r} + f'/{{number}}.json'\n"
        "    source = FileSource(path, 'json', schema, settle=0.0, on_bad_row='null')\n"
        "    with SourceHarness(source) as harness: print([row[0] for row in harness.read_all()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read_values = [json.loads(line.replace("None", "null")) for line in done.stdout.splitlines()]
    bad = [[None] * (text.count("\n") + 1) for text in HARMFUL]
    bad[7][2] = 4
    assert read_values == [[7, *values, 8] for values in bad]


def test_values_of_json_have_the_types_of_the_schema(tmp_path: Path) -> None:
    row = {
        "i": 7,
        "f": 1,
        "t": "x",
        "b": True,
        "d": "2024-02-29",
        "more": {"a": [1, None]},
    }
    # Of equal names the last one counts.
    text = json.dumps(row)[:-1] + ', "i": 8}'
    bad = '{"i": true, "f": true, "t": 1, "b": 1, "d": "29.2.2024"}'
    path = lines(tmp_path / "a.json", text, "{}", bad)
    schema = pa.schema(
        [
            ("i", pa.int32()),
            ("f", pa.float64()),
            ("t", pa.string()),
            ("b", pa.bool_()),
            ("d", pa.date32()),
        ]
    )
    first, *others = read(SettledFiles(path, "json", schema, on_bad_row="null"))
    assert first == (
        8,
        1.0,
        "x",
        True,
        date(2024, 2, 29),
    )
    assert others == [(None,) * 5] * 2


# -- Parquet -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(st.integers(1, 80), st.integers(1, 40), st.lists(st.integers(1, 50), min_size=1), st.integers(50, 900))
def test_slices_in_any_order_have_their_rows(
    tmp_path: Path, rows: int, group: int, steps: list[int], batch: int
) -> None:
    pq.write_table(pa.table({"x": range(rows)}), tmp_path / "a.parquet", row_group_size=group)
    source = SettledFiles(tmp_path / "a.parquet", batch_bytes=batch)
    with SourceHarness(source) as harness:
        (split,) = harness.discover()
    edges, at = [0], 0
    while at < rows:
        at = min(rows, at + steps[len(edges) % len(steps)])
        edges.append(at)
    pieces = list(pairwise(edges))
    # Each twice, and backwards too: as attempts of a task do, and speculative ones.
    for start, stop in [*pieces, *pieces, *reversed(pieces)]:
        found = batches(source, [split.starting_at(start).up_to(stop)])
        assert [x for records in found for x in records.column(0).to_pylist()] == list(range(start, stop))


def test_a_file_that_is_out_of_reach_while_it_is_divided_is_read_whole(tmp_path: Path) -> None:
    path, aside = tmp_path / "numbers.parquet", tmp_path / ".aside"
    pq.write_table(pa.table({"n": range(40)}), path, row_group_size=10)
    with SourceHarness(SettledFiles(tmp_path, split_bytes=1)) as harness:
        assert len(harness.discover(1)) == 1
        path.rename(aside)
        while harness.discover(1):
            continue
        aside.rename(path)
        assert sorted(harness.read_all()) == [(n,) for n in range(40)]
