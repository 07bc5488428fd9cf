"""Files as a source: what is found, what is late, rewritten, gone or broken, columns, options."""

from __future__ import annotations

import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs
from pyarrow import parquet as pq

from pillarbox.sources.connectors.file_discovery import Known
from pillarbox.sources.connectors.file_listing import FileSplit
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.fetching import ReadFailed
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.sources.source import Boundedness
from pillarbox.testing import SourceHarness
from tests.sources.unit.settled import SettledFiles

VALUE = pa.schema([("value", pa.string())])


def put(path: Path, text: str, modified: int) -> Path:
    """A file that was modified so many seconds after 1970, there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name("." + path.name)
    written.write_text(text)
    os.utime(written, (modified, modified))
    written.rename(path)
    return path


def read(source: FileSource) -> list[Any]:
    with SourceHarness(source, timeout=60) as harness:
        while harness.discover():
            continue
        return harness.read_all()


def new(harness: SourceHarness[FileSplit, Known]) -> list[Any]:
    """The rows of the files that are new now."""
    return [row for split in harness.discover() for row in harness.read_split(split)]


# -- what is found -----------------------------------------------------------------------------------


@pytest.mark.contract
def test_a_folder_is_read_in_the_order_in_which_files_were_modified(tmp_path: Path) -> None:
    put(tmp_path / "b.txt", "second", 200)
    put(tmp_path / "a.txt", "third", 300)
    put(tmp_path / "deep" / "c.txt", "first", 100)
    put(tmp_path / "_SUCCESS", "no", 1)
    put(tmp_path / "_temporary" / "x.txt", "no", 1)
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "empty.txt").touch()
    assert read(SettledFiles(tmp_path, "text")) == [("first",), ("second",), ("third",)]
    assert read(SettledFiles(tmp_path, "text", recursive=False)) == [("second",), ("third",)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["a"]),
        ("**/*.txt", ["a", "b", "c"]),
        ("x/*.txt", ["b"]),
        ("x/**", ["b", "c", "d"]),
        ("?.txt", ["a"]),
        ("[!a].txt", []),
        ("[a-c].txt", ["a"]),
        ("x/y/[cd].*", ["c", "d"]),
        ("nowhere/*.txt", []),
    ],
)
def test_a_pattern_finds_its_files(tmp_path: Path, pattern: str, found: list[str]) -> None:
    for name in ("a.txt", "x/b.txt", "x/y/c.txt", "x/y/d.json"):
        put(tmp_path / name, Path(name).stem, 100)
    assert sorted(read(SettledFiles(tmp_path / pattern, "text", VALUE))) == [(name,) for name in found]


def test_a_name_that_looks_like_a_pattern_is_a_name(tmp_path: Path) -> None:
    put(tmp_path / "a[1]*.txt", "this", 100)
    assert read(SettledFiles(tmp_path / "a[1]*.txt", "text")) == [("this",)]


def test_other_file_systems_are_read(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.txt", "this", 100)
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    assert read(SettledFiles("in", "text", filesystem=below)) == [("this",)]
    assert read(SettledFiles((tmp_path / "in").as_uri(), "text")) == [("this",)]
    assert read(SettledFiles((tmp_path / "in").as_uri() + "/*.txt", "text")) == [("this",)]


def test_many_splits_come_so_many_at_a_time(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "x\n" * 10_000, 100)
    put(tmp_path / "b.txt", "y", 200)
    source = SettledFiles(tmp_path, "text", split_bytes=1)
    with SourceHarness(source) as harness:
        first = harness.discover(most=7)
        assert [(split.start, split.stop) for split in first] == [(at, at + 1) for at in range(7)]
        serializer = source.checkpoint_serializer
        known = serializer.from_json(3, serializer.to_json(harness.enumerator.snapshot()))
        assert [split.start for split in harness.enumerator.discover(known, 2)[0]] == [7, 8]
        rest, _ = harness.enumerator.discover(known, 50_000)
        assert len(rest) == 20_000 - 7 + 1
        # What was given is what counts, not what this enumerator has said before.
        assert [split.start for split in harness.enumerator.discover(known, 2)[0]] == [7, 8]


@pytest.mark.contract(
    "Without an interval a source of files looks once at each start, and sees what came since."
)
def test_a_bounded_source_looks_once_at_each_start(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "a", 100)
    put(tmp_path / "b.txt", "b", 200)
    with SourceHarness(SettledFiles(tmp_path, "text")) as harness:
        assert len(harness.discover(most=1)) == 1
        put(tmp_path / "c.txt", "c", 300)
        snapshot = harness.snapshot()
        assert sorted(harness.read_all()) == [("a",), ("b",)]
    with SourceHarness(SettledFiles(tmp_path, "text"), snapshot=snapshot) as harness:
        assert sorted(harness.read_all()) == [("a",), ("b",), ("c",)]


# -- new, late and rewritten files ----------------------------------------------------------------------


@pytest.mark.contract("New files are found while a source of files runs.")
def test_new_files_are_found_while_it_runs(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "a", 100)
    source = SettledFiles(tmp_path, "text", discovery_interval=0.01)
    assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
    with SourceHarness(source) as harness:
        assert harness.read(1) == [("a",)]
        put(tmp_path / "b.txt", "b", 200)
        assert harness.read(1) == [("b",)]
        snapshot = harness.snapshot()
    put(tmp_path / "c.txt", "c", 300)
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.read(1) == [("c",)]
        assert harness.discover() == []


# -- files that cannot be read ---------------------------------------------------------------------------


def broken(tmp_path: Path, what: str, **options: Any) -> tuple[FileSource, FileSplit]:
    """A source of three files, the second of which is not what it was when it was found; and its split."""
    for number, name in enumerate("abc"):
        put(tmp_path / f"{name}.txt", f"{number}\n", 100 + number)
    source = SettledFiles(tmp_path, "text", VALUE, **options)
    with SourceHarness(source) as harness:
        split = harness.discover()[1]
    if what == "gone":
        (tmp_path / "b.txt").unlink()
    elif what == "rewritten":
        put(tmp_path / "b.txt", "7\n", 500)
    elif what == "longer":
        put(tmp_path / "b.txt", "1\n2\n", 101)
    return source, split


KINDS = {
    "gone": (FileNotFoundError, "b.txt"),
    "rewritten": (ValueError, "b.txt' was rewritten after it had been found"),
    "longer": (ValueError, "it had 2 bytes then and has 4 now"),
}


@pytest.mark.contract
@pytest.mark.parametrize("what", KINDS)
def test_a_file_that_cannot_be_read_fails_the_read_and_is_named(tmp_path: Path, what: str) -> None:
    source, split = broken(tmp_path, what)
    kind, text = KINDS[what]
    with pytest.raises(ReadFailed, match=text) as caught:
        list(read_splits(source.create_reader(ReaderContext()), [split]))
    assert isinstance(caught.value.__cause__, kind)
    with SourceHarness(source) as harness:
        # In micro-batches too: whoever plans leaves it to the reader.
        assert harness.enumerator.advance(split, ReadLimit(nbytes=5)) is not None


@pytest.mark.parametrize("what", KINDS)
def test_a_file_that_cannot_be_read_is_passed_over_on_demand(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, split = broken(tmp_path, what, on_data_loss="ignore")
    with caplog.at_level(logging.WARNING, "pillarbox"):
        fetched = list(read_splits(source.create_reader(ReaderContext()), [split]))
    assert [(len(each.records), each.finished) for each in fetched] == [(0, True)]
    assert any("b.txt" in each.getMessage() for each in caplog.records)


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    put(tmp_path / "a.txt", "a", 100).chmod(0)
    with pytest.raises(ReadFailed, match="a.txt"):
        read(SettledFiles(tmp_path, "text", VALUE))


def test_a_broken_parquet_file_is_named_by_its_reader(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", "PAR1 is not enough", 100)
    schema = pa.schema([("x", pa.int64())])
    for split_bytes in (1, 2**20):
        with pytest.raises(ReadFailed, match=r"a.parquet', from row 0 on"):
            read(SettledFiles(tmp_path, schema=schema, split_bytes=split_bytes))


def test_a_truncated_compressed_file_is_named(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(os.urandom(1000).hex().encode() + b"\n")[:-20])
    with pytest.raises(ReadFailed, match=r"a.txt.gz', from byte"):
        read(SettledFiles(tmp_path, "text", VALUE))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(SettledFiles(tmp_path / "nowhere", "text", VALUE))


# -- columns -----------------------------------------------------------------------------------------------


def fetch(source: FileSource, wanted: pa.Schema | None = None) -> pa.Table:
    with SourceHarness(source) as harness:
        splits = harness.discover()
    reader = source.create_reader(ReaderContext(schema=wanted))
    batches = [each.records for each in read_splits(reader, splits) if len(each.records)]
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_only_the_columns_that_are_wanted_come_and_fit_the_schema(tmp_path: Path, kind: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
    if kind == "parquet":
        pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.5]}), tmp_path / "1.parquet")
    else:
        put(tmp_path / "1.json", '{"a":1,"b":"x","c":0.5}\n{"a":2,"b":"y","c":1.5}\n', 100)
    source = SettledFiles(tmp_path, kind, schema if kind == "json" else None)
    assert source.arrow_schema() == schema
    wanted = pa.schema([("c", pa.float32()), ("gone", pa.date32()), ("a", pa.int32())])
    found = fetch(source, wanted)
    assert found.schema == wanted
    assert found.to_pylist() == [{"c": 0.5, "gone": None, "a": 1}, {"c": 1.5, "gone": None, "a": 2}]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    for kind, text in (("json", '{"value":"1"}\n'), ("text", "1\n")):
        put(tmp_path / kind / "1", "\ufeff" + text + text, 100)
        for nbytes in (1, 2**20):
            source = SettledFiles(tmp_path / kind, kind, VALUE, split_bytes=nbytes, batch_bytes=nbytes)
            assert read(source) == [("1",), ("1",)]


def test_times_without_an_offset_are_utc(tmp_path: Path) -> None:
    put(tmp_path / "1.json", '{"t":"2024-05-01 12:00:00"}\n{"t":"2024-05-01T14:00:00+02:00"}\n', 100)
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    first, second = fetch(SettledFiles(tmp_path, "json", schema)).column("t").to_pylist()
    assert first == second and first.hour == 12


def test_dictionaries_and_columns_of_nulls_are_plain_to_others(tmp_path: Path) -> None:
    columns = {"d": pa.array(["x", "y"]).dictionary_encode(), "n": pa.nulls(2)}
    pq.write_table(pa.table(columns), tmp_path / "1.parquet")
    source = SettledFiles(tmp_path)
    assert source.arrow_schema() == pa.schema([("d", pa.string()), ("n", pa.string())])
    assert fetch(source).to_pylist() == [{"d": "x", "n": None}, {"d": "y", "n": None}]


@pytest.mark.contract("A value in a file that does not fit its column is named.")
def test_a_value_that_does_not_fit_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2**40]}), tmp_path / "1.parquet")
    with pytest.raises(
        ReadFailed,
        match="1.parquet', from row 0 on: row 1: column 'a': 1099511627776 cannot be read as int32",
    ):
        fetch(SettledFiles(tmp_path), pa.schema([("a", pa.int32())]))


# -- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"path": ""}, "path=''"),
        ({"format": "orc"}, "format='orc': must be one of 'parquet', 'json', 'text'"),
        ({"split_bytes": 0}, "split_bytes=0: must be at least 1"),
        ({"discovery_interval": -1}, "discovery_interval=-1"),
        ({"recursive": "false"}, "recursive='false': must be True or False"),
        ({"on_data_loss": "hope"}, "on_data_loss='hope': must be one of 'fail', 'ignore'"),
        ({"format": "csv"}, r"format='csv': .*spark\.read\.csv"),
        ({"format": "json"}, "format='json': needs schema="),
        ({"format": "json", "schema": pa.schema([("a", pa.time64("us"))])}, "column 'a' is time64"),
        ({"format": "json", "schema": pa.schema([("a", pa.binary())])}, "column 'a' is binary.*from_json"),
        ({"bad_row_column": 5}, "bad_row_column=5: must be a str"),
        ({"on_bad_row": "drop"}, "on_bad_row='drop': must be one of 'fail', 'null', 'column'"),
        ({"on_bad_row": "column"}, "on_bad_row='column': is of lines"),
        (
            {"format": "json", "on_bad_row": "column", "schema": pa.schema([("a", pa.int64())])},
            r"bad_row_column='_corrupt_record': the schema must have .*\['a'\]",
        ),
        ({"format": "text", "schema": pa.schema([("a", pa.int64())])}, "text has one column"),
        ({"schema": pa.schema([("a", pa.int64()), ("a", pa.int64())])}, "each name once"),
        ({"path": "nosuch://user:secret@host/x?key=secret"}, r"path='nosuch://\*\*\*@host/x'"),
    ],
)
def test_bad_arguments_are_refused_at_once_and_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text) as caught:
        SettledFiles(**{"path": "x", **arguments})
    assert "secret" not in str(caught.value)


def test_the_columns_of_no_file_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file with rows, so its columns are unknown"):
        SettledFiles(tmp_path).arrow_schema()


def test_options_make_the_same_source() -> None:
    options = {
        "path": "x",
        "format": "text",
        "on_bad_row": "column",
        "bad_row_column": "bad",
        "discovery_interval": "2.5",
        "split_bytes": "1000",
        "settle": "7",
        "on_data_loss": "ignore",
    }
    schema = VALUE.append(pa.field("bad", pa.string()))
    assert FileSource.from_options(options, schema) == FileSource(
        "x",
        "text",
        schema,
        on_bad_row="column",
        bad_row_column="bad",
        discovery_interval=2.5,
        split_bytes=1000,
        settle=7.0,
        on_data_loss="ignore",
    )
    for option, value in (("nosuch", "1"), ("recursive", "perhaps"), ("split_bytes", "many")):
        with pytest.raises(ValueError, match=option):
            FileSource.from_options({"path": "x", option: value}, None)
    with pytest.raises(ValueError, match="path"):
        FileSource.from_options({}, None)


def test_a_source_travels_and_shows_no_secret(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "a", 100)
    source = SettledFiles(tmp_path, "text")
    assert read(pickle.loads(pickle.dumps(source))) == [("a",)]


@pytest.mark.contract
def test_secrets_of_a_uri_are_not_shown() -> None:
    source = SettledFiles("s3://key:secret@bucket/a/*.txt?region=eu-west-1", "text", VALUE)
    assert repr(source) == "FileSource('s3://***@bucket/a/*.txt', format='text')"
    assert source.place.path == "bucket/a/*.txt"
    moved = SettledFiles("x", "text", moved_from="s3://key:secret@bucket/a")
    with pytest.raises(ValueError, match=r"now moved_from='s3://\*\*\*@bucket/a'"):
        moved.place.check_root("s3://bucket/other")


def test_a_micro_batch_has_whole_parts_of_parquet_within_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"a": range(10_000)}), path, row_group_size=1000)
    group = path.stat().st_size // 10 + 1
    with SourceHarness(SettledFiles(tmp_path, split_bytes=group)) as harness:
        pieces = harness.plan(ReadLimit(nbytes=3 * group))
        assert 1 <= len(pieces) <= 4 and sum(piece.nbytes or 0 for piece in pieces) <= 3 * group
        read_rows = sum(piece.stop - piece.start for piece in pieces)
        assert read_rows % 1000 == 0
        assert len(harness.micro_batch()) == 10_000 - read_rows


@pytest.mark.contract("Micro-batches of a small Parquet file end with its last row.")
@pytest.mark.parametrize(("limit", "sizes"), [(ReadLimit(rows=4), [4, 4, 2]), (None, [5, 5])])
def test_a_small_parquet_file_that_is_cut_ends_with_its_last_row(
    tmp_path: Path, limit: ReadLimit | None, sizes: list[int]
) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"a": range(10)}), path)
    nbytes = path.stat().st_size
    with SourceHarness(SettledFiles(tmp_path)) as harness:
        found = [harness.plan(limit or ReadLimit(nbytes=-(-nbytes // 2))) for _ in range(len(sizes) + 1)]
    assert [[piece.rows for piece in pieces] for pieces in found] == [[size] for size in sizes] + [[]]
    assert sum(piece.nbytes or 0 for pieces in found for piece in pieces) == pytest.approx(nbytes, abs=3)


def test_a_parquet_file_without_rows_takes_none_of_the_limit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": range(10)}), tmp_path / "2.parquet")
    with SourceHarness(SettledFiles(tmp_path)) as harness:
        assert len(harness.micro_batch(ReadLimit(rows=10))) == 10


def test_a_limit_of_rows_does_not_hold_for_text_as_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SourceHarness(SettledFiles("x", "text")) as harness:
        for _ in range(2):
            split = FileSplit("a+0", 0, 9)
            assert harness.enumerator.advance(split, ReadLimit(rows=5)) == split
    assert caplog.text.count("max_rows: files of text do not say how many rows they have: use max_bytes") == 1


def test_a_micro_batch_has_so_many_files(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / f"{number}.txt", f"{number}\n" * 3, 100 + number)
    with SourceHarness(SettledFiles(tmp_path, "text", split_bytes=2)) as harness:
        rows = harness.micro_batch(ReadLimit(files=2))
        assert sorted(set(rows)) == [("0",), ("1",)]
