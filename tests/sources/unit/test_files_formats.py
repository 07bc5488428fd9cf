"""Values in files: those that cannot be read cost their row, arbitrary JSON, slices of row groups."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs
from pyarrow import parquet as pq

from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.connectors.files import lines as json_format
from pillarbox.sources.connectors.files import parquet as parquet_format
from pillarbox.sources.connectors.files.lines import JsonFormat
from pillarbox.sources.connectors.files.reading import FileReader
from pillarbox.sources.connectors.files.split import FileSplit
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.fetching import ReadFailed
from pillarbox.sources.reader import SplitsAdded
from pillarbox.testing import SourceHarness
from tests.search import examples

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
    reader = FileReader(source, source.arrow_schema)
    for split in splits:
        reader.handle_splits_changes(SplitsAdded((split,)))
        while fetched := reader.fetch():
            yield from (each.records for each in fetched if isinstance(each.records, pa.RecordBatch))


# -- bad values ------------------------------------------------------------------------------------------


@pytest.mark.contract("A bad value in a file costs its own row, and is not a data loss.")
@pytest.mark.parametrize("on_data_loss", ["fail", "ignore"])
def test_one_bad_value_in_100_000_rows_leaves_the_others(tmp_path: Path, on_data_loss: str) -> None:
    texts = [f'{{"x": {number}}}' for number in range(100_000)]
    texts[70_000] = '{"x": "seventy"}'
    path = lines(tmp_path / "a.json", *texts)
    words = r"a\.json'.*line 70001: column 'x': 'seventy' cannot be read as int64.*on_bad_row='null'"
    with pytest.raises(ReadFailed, match=words):
        read(FileSource(path, "json", X, on_data_loss=on_data_loss))
    found = read(FileSource(path, "json", X, on_data_loss=on_data_loss, on_bad_row="null"))
    assert found == [(None if number == 70_000 else number,) for number in range(100_000)]
    source = FileSource(path, "json", X.append(BAD), on_data_loss=on_data_loss, on_bad_row="column")
    assert [row for row in read(source) if row[1] is not None] == [(None, '{"x": "seventy"}')]


@pytest.mark.contract("A bad value fails the read with file, line and value, cut to a bounded length.")
def test_a_bad_value_is_named_with_its_line_in_whatever_split_it_stands(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.json", '{"x": 1}', "", '{"x": 2}', '{"x": "' + "y" * 10_000 + '"}')
    for nbytes in (1, 7, 1000, 2**20):
        with pytest.raises(ReadFailed, match=r"a\.json'.*line 4: column 'x': 'yyy") as caught:
            read(FileSource(path, "json", X, split_bytes=nbytes, batch_bytes=nbytes))
        assert len(str(caught.value)) < 1000
    lines(path, '{"x": 1}', '[{"x": 2}]')
    with pytest.raises(ReadFailed, match=r"""line 2: b'\[\{"x": 2\}\]' is not a JSON object"""):
        read(FileSource(path, "json", X))


def test_bad_values_of_every_kind_of_line_are_null_or_stand_in_the_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'{"x":1,"y":"a"}\r\n{"x":1.5,"y":"b"}\n\nnull\n{"x":2,"y":"\xff"}\n{"x":9} {"x":8}\n')
    schema = pa.schema([("x", pa.int64()), BAD, ("y", pa.string())])
    with caplog.at_level(logging.WARNING, "pillarbox"):
        found = read(FileSource(path, "json", schema, on_bad_row="column"))
    assert found == [
        (1, None, "a"),
        (None, '{"x":1.5,"y":"b"}', "b"),
        (None, "null", None),
        (2, '{"x":2,"y":"\N{REPLACEMENT CHARACTER}"}', None),
        (None, '{"x":9} {"x":8}', None),
    ]
    assert "4 rows have values that cannot be read" in caplog.text
    path.write_bytes(b"one\n\xff\xfe\nthree\n")
    with pytest.raises(ReadFailed, match=r"line 2: column 'value': b'\\xff\\xfe' cannot be read as string"):
        read(FileSource(path, "text"))
    assert read(FileSource(path, "text", on_bad_row="null")) == [("one",), (None,), ("three",)]
    assert read(FileSource(path, "text", on_bad_row="column")) == [
        ("one", None),
        (None, "\N{REPLACEMENT CHARACTER}" * 2),
        ("three", None),
    ]
    assert read(FileSource(path, "text", pa.schema([("value", pa.binary())])))[1] == (b"\xff\xfe",)


def test_a_value_of_parquet_that_no_cast_can_give_is_null_on_demand(tmp_path: Path) -> None:
    values = [1, 2**40, 3, -(2**40), None]
    pq.write_table(pa.table({"x": values, "word": list("abcde")}), tmp_path / "a.parquet", row_group_size=2)
    schema = pa.schema([("word", pa.string()), ("x", pa.int32())])
    found = read(FileSource(tmp_path, schema=schema, on_bad_row="null"))
    assert found == [("a", 1), ("b", None), ("c", 3), ("d", None), ("e", None)]
    with pytest.raises(ReadFailed, match="column 'x' is int64 and cannot be read as date32"):
        read(FileSource(tmp_path, schema=pa.schema([("x", pa.date32())]), on_bad_row="null"))


def test_files_that_do_not_suit_the_schema_are_no_data_loss(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ReadFailed, match="none of the columns"):
        read(FileSource(tmp_path, schema=X, on_data_loss="ignore", on_bad_row="null"))


# -- JSON --------------------------------------------------------------------------------------------------

KINDS = [
    pa.int8(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.decimal128(10, 2),
]
TYPES = st.recursive(
    st.sampled_from(KINDS),
    lambda kinds: (
        kinds.map(pa.list_)
        | kinds.map(lambda kind: pa.map_(pa.string(), kind))
        | st.lists(kinds, min_size=1, max_size=3).map(
            lambda given: pa.struct([("abc"[at], kind) for at, kind in enumerate(given)])
        )
    ),
    max_leaves=4,
)
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
    batch, bad = JSON.parse(block, schema)
    batch.validate(full=True)
    assert batch.schema == schema
    assert batch.num_rows == sum(bool(line.strip(b" \t\r")) for line in block.split(b"\n"))
    assert [each.row for each in bad] == sorted({each.row for each in bad})
    for each in bad:
        assert block[each.at :].startswith(each.line) and b"\n" not in each.line
        assert len(each.problem) < 1500
    # A line alone is read as it is among others: no value depends on how a file is cut.
    singles = [JSON.parse(line, schema)[0] for line in block.split(b"\n") if line.strip(b" \t\r")]
    if singles:
        whole = pa.Table.from_batches(singles).combine_chunks().to_pylist()
        assert repr(whole) == repr(batch.to_pylist())


def test_json_in_which_a_column_is_an_object_here_and_a_list_there_ends_no_process(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.json", "null", '{"x": true}', '{"x": {"y": -1.5, "z": []}}', '{"x": [1]}')
    code = (
        "import pyarrow as pa; from pillarbox.testing import SourceHarness\n"
        "from pillarbox.sources.connectors.files import FileSource\n"
        f"source = FileSource({str(path)!r}, 'json', pa.schema([('x', pa.bool_())]), on_bad_row='null')\n"
        "with SourceHarness(source) as harness: print(harness.read_all())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
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


def test_what_would_end_arrows_parser_or_lead_it_astray_is_a_bad_line(tmp_path: Path) -> None:
    for number, text in enumerate(HARMFUL):
        (tmp_path / f"{number}.json").write_text(f'{{"x": 7}}\n{text}\n{{"x": 8}}\n')
    code = (
        "import sys, pyarrow as pa; from pillarbox.testing import SourceHarness\n"
        "from pillarbox.sources.connectors.files import FileSource\n"
        f"for number in range({len(HARMFUL)}):\n"
        f"    path = {str(tmp_path)!r} + f'/{{number}}.json'\n"
        "    source = FileSource(path, 'json', pa.schema([('x', pa.int64())]), on_bad_row='null')\n"
        "    with SourceHarness(source) as harness: print([row[0] for row in harness.read_all()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    read_values = [json.loads(line.replace("None", "null")) for line in done.stdout.splitlines()]
    bad = [[None] * (text.count("\n") + 1) for text in HARMFUL]
    bad[7][2] = 4
    assert read_values == [[7, *values, 8] for values in bad]


def test_good_lines_of_flat_columns_are_read_by_arrows_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(json_format, "_by_python")
    row = {
        "i": 7,
        "f": 0.5,
        "b": True,
        "t": "\N{SNOWMAN}} x",
        "d": "2024-02-29",
        "at": "2024-02-29T10:00:00Z",
    }
    kinds = [pa.int16(), pa.float32(), pa.bool_(), pa.string(), pa.date32(), pa.timestamp("s", "UTC")]
    path = tmp_path / "a.json"
    for newline in ("\n", "\r\n"):
        path.write_bytes(newline.join([json.dumps({**row, "more": [{}]}), "{}", '{"i":null}']).encode())
        first, *others = read(FileSource(path, "json", pa.schema(zip(row, kinds, strict=True))))
        assert first[:5] == (7, 0.5, True, "\N{SNOWMAN}} x", date(2024, 2, 29)) and first[5].hour == 10
        assert others == [(None,) * 6] * 2


def test_values_of_json_have_the_types_of_the_schema(tmp_path: Path) -> None:
    row = {
        "i": 7,
        "f": 1,
        "t": "x",
        "bytes": "eA==",
        "d": "2024-02-29",
        "s": {"a": [1, None], "more": 1},
        "l": [{"b": True}, None],
        "m": {"k": 2.5},
    }
    text = json.dumps(row)[:-1] + ', "n": 1.50, "i": 8}'
    path = lines(tmp_path / "a.json", text, "{}", '{"d": "29.2.2024", "m": {"k": "x"}, "n": 1.234}')
    schema = pa.schema(
        [
            ("i", pa.int32()),
            ("f", pa.float64()),
            ("t", pa.string()),
            ("bytes", pa.binary()),
            ("d", pa.date32()),
            ("s", pa.struct([("a", pa.list_(pa.int64()))])),
            ("l", pa.list_(pa.struct([("b", pa.bool_())]))),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("n", pa.decimal128(10, 2)),
        ]
    )
    first, *others = read(FileSource(path, "json", schema, on_bad_row="null"))
    assert first == (
        8,
        1.0,
        "x",
        b"x",
        date(2024, 2, 29),
        {"a": [1, None]},
        [{"b": True}, None],
        [("k", 2.5)],
        Decimal("1.50"),
    )
    assert others == [(None,) * 9] * 2


# -- Parquet -----------------------------------------------------------------------------------------------


@pytest.mark.contract("A slice of a row group costs its own rows where the one before it was read.")
def test_a_row_group_that_is_read_in_slices_is_decoded_once(tmp_path: Path) -> None:
    rows, step = 1_000_000, 10_000
    pq.write_table(pa.table({"x": range(rows)}), tmp_path / "a.parquet", row_group_size=rows)
    source = FileSource(tmp_path)
    with SourceHarness(source) as harness:
        (split,) = harness.discover()
    pieces = [split.starting_at(at).up_to(at + step) for at in range(0, rows, step)]
    began = time.thread_time()
    found = [records.column(0) for records in batches(source, pieces)]
    spent = time.thread_time() - began
    assert pa.chunked_array(found).to_pylist() == list(range(rows))
    began = time.thread_time()
    assert sum(records.num_rows for records in batches(source, [split])) == rows
    whole = time.thread_time() - began
    # From the front of the group each time, a hundred slices cost fifty times the whole.
    assert spent < 15 * whole + 0.2


@settings(deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(st.integers(1, 80), st.integers(1, 40), st.lists(st.integers(1, 50), min_size=1), st.integers(50, 900))
def test_slices_in_any_order_have_their_rows(
    tmp_path: Path, rows: int, group: int, steps: list[int], batch: int
) -> None:
    pq.write_table(pa.table({"x": range(rows)}), tmp_path / "a.parquet", row_group_size=group)
    source = FileSource(tmp_path / "a.parquet", batch_bytes=batch)
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
    with SourceHarness(FileSource(tmp_path, split_bytes=1)) as harness:
        assert len(harness.discover(1)) == 1
        path.rename(aside)
        while harness.discover(1):
            continue
        aside.rename(path)
        assert sorted(harness.read_all()) == [(n,) for n in range(40)]


def test_readings_that_wait_within_a_row_group_are_few_and_of_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(1000)}), path)
    source = FileSource(path)
    for _ in range(2):
        with SourceHarness(source) as harness:
            (split,) = harness.discover()
            for at in range(10):
                list(batches(source, [split.starting_at(at).up_to(at + 100)]))
        assert len(parquet_format._suspended) == parquet_format.MAX_SUSPENDED
    with SourceHarness(source) as harness:
        (split,) = harness.discover()
        assert len(list(batches(source, [split.up_to(500)]))) == 1
        pq.write_table(pa.table({"x": range(1000, 3000)}), path)
        with pytest.raises(ValueError, match="was rewritten after it had been found"):
            list(batches(source, [split.starting_at(500).up_to(600)]))
        harness.plan(ReadLimit(rows=1))


def test_columns_name_what_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({name: [name] for name in "abc"}), tmp_path / "1.parquet")
    source = FileSource(tmp_path, columns=["c", "a"])
    assert source.arrow_schema().names == ["c", "a"]
    assert read(source) == [("c", "a")]
    assert read(FileSource.from_options({"path": str(tmp_path), "columns": "c, a"}, None)) == [("c", "a")]
    with pytest.raises(ValueError, match=r"option 'columns' is 'c', and the schema names \['x'\]"):
        FileSource.from_options({"path": "x", "columns": "c"}, X)
    with pytest.raises(
        ValueError, match=r"columns=\['d'\]: must be names of columns; there are \['a', 'b', 'c'\]"
    ):
        FileSource(tmp_path, columns=["d"]).arrow_schema()
