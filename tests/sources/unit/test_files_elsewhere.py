"""Files that others wrote, at places that others named: old times, finer times, links, secrets, odd names."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs
from pyarrow import parquet as pq

from pillarbox.redaction import reason_of
from pillarbox.sources.connectors import file_listing as listing
from pillarbox.sources.connectors import files as files_source
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.fetching import ReadFailed
from pillarbox.testing import SourceHarness
from tests.sources.unit.settled import SettledFiles

ID = pa.schema([("id", pa.int64())])
VALUE = pa.schema([("value", pa.string())])
SECRETS = ("c2VjcmV0Y29kZQ", "c2VjcmV0Y29kZQ%3D", "wordpass")


def read(source: FileSource) -> list[Any]:
    with SourceHarness(source, timeout=60) as harness:
        return harness.read_all()


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


# -- Parquet ---------------------------------------------------------------------------------------------


def test_old_timestamps_are_read_whatever_their_year(tmp_path: Path) -> None:
    times = [datetime(9999, 12, 31), datetime(1, 1, 1), datetime(2020, 1, 1, 5, 6, 7, 8)]
    table = pa.table({"at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    given = pa.schema([("at", pa.timestamp("us"))])
    assert SettledFiles(tmp_path).arrow_schema().field("at").type == pa.timestamp("us", "UTC")
    assert read(SettledFiles(tmp_path)) == [(time.replace(tzinfo=timezone.utc),) for time in times]
    assert read(SettledFiles(tmp_path, schema=given)) == [(time,) for time in times]


@pytest.mark.parametrize("zone", [None, "Asia/Kolkata"])
@pytest.mark.parametrize("unit", ["us", "ms", "s"])
def test_finer_timestamps_are_floored_to_the_unit_wanted(tmp_path: Path, zone: str | None, unit: str) -> None:
    second = 10**9
    times = pa.array([3 * second + 1, -1, -second, None, 0], pa.timestamp("ns", zone))
    pq.write_table(pa.table({"at": times}), tmp_path / "a.parquet")
    schema = pa.schema([("at", pa.timestamp(unit, "UTC"))])
    a_second = {"us": 10**6, "ms": 1000, "s": 1}[unit]
    with SourceHarness(SettledFiles(tmp_path, schema=schema)) as harness:
        rows = harness.read_all()
    found = pa.array([row[0] for row in rows], schema.field(0).type).cast(pa.int64()).to_pylist()
    assert found == [3 * a_second, -1, -a_second, None, 0]


def test_what_else_would_lose_data_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "a.parquet")
    with pytest.raises(ReadFailed, match=r"row 0: column 'x': 1\.5 cannot be read as int64"):
        read(SettledFiles(tmp_path, schema=pa.schema([("x", pa.int64())])))


@pytest.mark.parametrize("schema", [ID, None])
def test_a_column_that_a_file_has_twice_is_refused(tmp_path: Path, schema: pa.Schema | None) -> None:
    twice = pa.table([[1], [2], [3]], names=["id", "id", "x"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises((ReadFailed, ValueError), match=r"a\.parquet'.*\['id'\] more than once"):
        read(SettledFiles(tmp_path, schema=schema))
    # Nobody asked for it.
    assert read(SettledFiles(tmp_path, schema=pa.schema([("x", pa.int64())]))) == [(3,)]


# -- columns -----------------------------------------------------------------------------------------------


def test_a_file_with_none_of_the_columns_wanted_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ID": [1], "other": [2]}), tmp_path / "a.parquet")
    with pytest.raises(ReadFailed, match=r"a\.parquet'.*none of the columns \['id'\] but \['ID', 'other'\]"):
        read(SettledFiles(tmp_path, "parquet", ID))
    more = ID.append(pa.field("other", pa.int64()))
    assert read(SettledFiles(tmp_path, "parquet", more)) == [(None, 2)]


def test_a_file_whose_columns_cannot_be_looked_up_is_named(tmp_path: Path) -> None:
    text(tmp_path / "a.parquet", "PAR1 is not enough")
    with pytest.raises(ValueError, match=r"a\.parquet': its columns cannot be looked up: .*Parquet magic"):
        SettledFiles(tmp_path).arrow_schema()


@pytest.mark.parametrize("name", ["split_bytes", "batch_bytes"])
@pytest.mark.parametrize("value", ["3", 2.5, True, 0])
def test_a_size_that_is_none_is_named(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name}={value!r}: must be (an int|at least 1)"):
        SettledFiles(tmp_path, **{name: value})


def test_several_paths_are_refused_with_the_way_to_name_them() -> None:
    with pytest.raises(ValueError, match="option 'paths' .*one path.*pattern"):
        FileSource.from_options({"paths": '["a", "b"]'}, None)


# -- names, links, places ------------------------------------------------------------------------------------


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    text(root / "a" / "1.json", '{"id": 1}\n')
    text(root / "b" / "2.json", '{"id": 2}\n')
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "top").symlink_to("/")
    (root / "a" / "across").symlink_to(root / "b")
    (root / "b" / "back").symlink_to(root / "a")
    (root / "dangling.json").symlink_to(tmp_path / "nowhere")
    (root / "itself.json").symlink_to("itself.json")
    # A file is there once for each way to it that does not go round.
    expected = [(1,), (1,), (2,), (2,)]
    assert sorted(read(SettledFiles(root, "json", ID))) == expected
    assert sorted(read(SettledFiles(str(root) + "/**/*.json", "json", ID))) == expected


def test_links_to_other_folders_and_files_are_followed(tmp_path: Path) -> None:
    text(tmp_path / "other" / "1.json", '{"id": 1}\n')
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(tmp_path / "other")
    (root / "file.json").symlink_to(tmp_path / "other" / "1.json")
    (root / "_hidden").symlink_to(tmp_path / "other")
    assert read(SettledFiles(root, "json", ID)) == [(1,), (1,)]
    assert read(SettledFiles(root, "json", ID, recursive=False)) == [(1,)]


def test_what_vanishes_while_a_folder_is_listed_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text(tmp_path / "a.json", '{"id": 1}\n')
    gone = text(tmp_path / "gone.json", '{"id": 2}\n')
    folder = text(tmp_path / "folder" / "b.json", '{"id": 3}\n').parent
    listdir = os.listdir

    def list_names(path: str) -> list[str]:
        if path == str(folder):
            shutil.rmtree(folder)
        found = listdir(path)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(listing.os, "listdir", list_names)
    found = listing.list_files(fs.LocalFileSystem(), str(tmp_path), recursive=True)
    assert [file.path for file in found] == [str(tmp_path / "a.json")]
    assert not folder.exists()
    with pytest.raises(FileNotFoundError):
        listing.list_files(fs.LocalFileSystem(), str(folder), recursive=True)


def test_a_name_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    text(tmp_path / "good.json", '{"id": 1}\n')
    bad = os.fsencode(str(tmp_path)) + b"/\xff.json"
    Path(os.fsdecode(bad)).write_text('{"id": 2}\n')
    with pytest.raises(ValueError, match=r"udcff\.json'.*not UTF-8.*rename it"):
        read(SettledFiles(tmp_path, "json", ID))
    assert read(SettledFiles(tmp_path / "g*.json", "json", ID)) == [(1,)]
    os.rename(bad, os.fsencode(str(tmp_path)) + b"/_\xff.json")
    assert read(SettledFiles(tmp_path, "json", ID)) == [(1,)]


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file:{}/*.json"])
def test_a_local_uri_is_read_as_spark_writes_it(tmp_path: Path, form: str) -> None:
    text(tmp_path / "a b" / "1.json", '{"id": 1}\n')
    path = str(tmp_path / "a b")
    if "//" in form:
        path = path.replace(" ", "%20")
    assert read(SettledFiles(form.format(path), "json", ID)) == [(1,)]


@pytest.mark.parametrize("ending", ["gz", "GZ", "bz2", "Zst", "lz4", "br"])
def test_compressed_files_are_read_whatever_the_case_of_their_names(tmp_path: Path, ending: str) -> None:
    names = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4", "br": "brotli"}
    with pa.CompressedOutputStream(str(tmp_path / f"a.json.{ending}"), names[ending.lower()]) as stream:
        stream.write(b'{"id": 1}\n{"id": 2}\n')
    assert read(SettledFiles(tmp_path, "json", ID)) == [(1,), (2,)]


# -- secrets -------------------------------------------------------------------------------------------------


class Telling(fs.FileSystemHandler):
    """A file system whose errors name the address that was asked, as those of clouds do."""

    def __init__(self, lists: bool) -> None:
        self.lists = lists

    def fail(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError(
            "Check on 'https://me:wordpass@acc.blob.example/c?sig=c2VjcmV0Y29kZQ%3D&x=1' failed: "
            "signature c2VjcmV0Y29kZQ= is bad, wordpass too"
        )

    def get_type_name(self) -> str:
        return "telling"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        if not self.lists:
            self.fail()
        return [fs.FileInfo(path, fs.FileType.File, size=5, mtime=1.0) for path in paths]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    normalize_path = lambda self, path: path  # noqa: E731
    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = fail
    delete_root_dir_contents = delete_file = move = copy_file = fail
    open_input_stream = open_input_file = open_output_stream = open_append_stream = fail


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize(("kind", "schema"), [("json", ID), ("parquet", ID), ("parquet", None)])
@pytest.mark.parametrize("on_data_loss", ["fail", "ignore"])
def test_errors_of_a_file_system_do_not_show_the_secrets_of_its_uri(
    lists: bool,
    schema: pa.Schema | None,
    kind: str,
    on_data_loss: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = (fs.PyFileSystem(Telling(lists)), "c/x")
    monkeypatch.setattr(files_source, "open_file_system", lambda path, filesystem: opened)
    uri = "s3://me:wordpass@c/x?sig=c2VjcmV0Y29kZQ%3D&x=1"
    source = SettledFiles(uri, kind, schema, on_data_loss=on_data_loss)
    caplog.set_level(logging.DEBUG, "pillarbox")
    written = ""
    try:
        read(source)
    except Exception as error:
        written = "".join(traceback.format_exception(error)) + repr(error)
    written += caplog.text
    assert "c/x" in written
    assert "OSError" in written
    assert "acc.blob.example" not in written
    # Lines of the code that raised it are in the traceback too, and this file's code has them.
    lines = [line for line in written.splitlines() if not line.startswith("    ")]
    assert not [line for line in lines for secret in SECRETS if secret in line]


@pytest.mark.contract("What a source itself says of a file is told, whatever its address holds.")
def test_a_file_that_was_rewritten_is_told_where_the_address_holds_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = (fs.LocalFileSystem(), str(tmp_path))
    monkeypatch.setattr(files_source, "open_file_system", lambda path, filesystem: opened)
    file = text(tmp_path / "a.txt", "one\n")
    with SourceHarness(SettledFiles("s3://me:wordpass@c/x", "text"), timeout=60) as harness:
        [split] = harness.discover()
        text(file, "two, and longer\n")
        with pytest.raises(ReadFailed, match="a.txt' was rewritten after it had been found") as caught:
            harness.read_split(split)
    assert "wordpass" not in str(caught.value)


def test_an_error_that_may_pass_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = (fs.PyFileSystem(Telling(lists=True)), "c/x")
    monkeypatch.setattr(files_source, "open_file_system", lambda path, filesystem: opened)
    with pytest.raises(ReadFailed, match="Check on"):
        read(SettledFiles("s3://c/x", "json", ID, on_data_loss="ignore"))


def test_a_broken_compressed_file_is_passed_over_on_demand(tmp_path: Path) -> None:
    content = gzip.compress(os.urandom(1000).hex().encode() + b"\n")
    (tmp_path / "a.txt.gz").write_bytes(content[:-20])
    assert read(SettledFiles(tmp_path, "text", VALUE, on_data_loss="ignore")) == []


@pytest.mark.contract
@pytest.mark.parametrize(
    "path",
    [
        "s3://me:S3cr/et99@c/x",
        "s3://me:1/S3cret99@c/x?region=x",
        # Arrow asks a network for the region of such a bucket, again and again.
        pytest.param("s3://me:1/S3cret99@c/x", marks=pytest.mark.slow),
        "nosuch://me:S3cr?et99@c/x",
        b"s3://me:S3cret99@c/x",
    ],
)
def test_no_error_of_a_file_source_shows_a_secret_of_its_address(path: Any) -> None:
    with pytest.raises(ValueError, match="path=") as caught:
        SettledFiles(path, "json", ID)
    assert not [part for part in ("me:", "S3cr", "et99") if part in str(caught.value)]
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_text_about_an_address_without_secrets_is_quoted() -> None:
    error = OSError("cannot open 'c/x.json': 1")
    assert reason_of(error, "s3://c/x.json") == str(error)
    assert reason_of(error, "s3://c/x.json?x=1") == "OSError"
    assert (
        reason_of(PermissionError(13, "wordpass"), "s3://me:wordpass@c")
        == "PermissionError, Permission denied"
    )
