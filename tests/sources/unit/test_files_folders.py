"""Columns that stand in the names of folders: found, cast, null, wrong; for each format."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs
from pyarrow import parquet as pq

from pillarbox.sources.connectors.file_listing import FilePlace
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.fetching import ReadFailed
from pillarbox.testing import SourceHarness
from tests.sources.unit.settled import SettledFiles

WORDS = ["one", "two"]


def put(folder: Path, form: str, words: list[str] = WORDS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        pq.write_table(pa.table({"word": words}), folder / "data")
        return
    text = {"json": '{{"word": "{}"}}\n', "text": "{}\n"}[form]
    between = '"}\n{"word": "' if form == "json" else "\n"
    (folder / "data").write_text(text.format(between.join(words)))


def read(source: FileSource) -> list[Any]:
    with SourceHarness(source, timeout=60) as harness:
        while harness.discover():
            continue
        return sorted(harness.read_all(), key=str)


@pytest.mark.contract
@pytest.mark.parametrize("form", ["parquet", "text"])
def test_folders_give_columns_behind_those_of_the_files(tmp_path: Path, form: str) -> None:
    put(tmp_path / "day=2024-01-31" / "hour=07", form)
    put(tmp_path / "day=2024-02-01" / "hour=12", form, ["three"])
    source = SettledFiles(tmp_path, form)
    word = "value" if form == "text" else "word"
    assert source.arrow_schema() == pa.schema(
        [(word, pa.string()), ("day", pa.date32()), ("hour", pa.int64())]
    )
    first, second = dt.date(2024, 1, 31), dt.date(2024, 2, 1)
    assert read(source) == [("one", first, 7), ("three", second, 12), ("two", first, 7)]


def test_a_schema_says_which_and_as_what_and_in_which_order(tmp_path: Path) -> None:
    put(tmp_path / "hour=07" / "kind=x", "parquet")
    put(tmp_path / "hour=08", "parquet", ["three"])
    schema = pa.schema([("hour", pa.string()), ("word", pa.string()), ("kind", pa.string())])
    # A file that is not in such a folder has no value.
    assert read(SettledFiles(tmp_path, schema=schema)) == [
        ("07", "one", "x"),
        ("07", "two", "x"),
        ("08", "three", None),
    ]


def test_what_a_name_cannot_hold_is_escaped_and_null_has_a_name(tmp_path: Path) -> None:
    put(tmp_path / "at=10%3A30%2F1", "json", ["one"])
    put(tmp_path / "at=__HIVE_DEFAULT_PARTITION__", "json", ["two"])
    schema = pa.schema([("word", pa.string()), ("at", pa.string())])
    assert read(SettledFiles(tmp_path, "json", schema)) == [("one", "10:30/1"), ("two", None)]


def test_a_folder_stands_above_a_column_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "n=5").mkdir()
    pq.write_table(pa.table({"word": WORDS, "n": [1, 2]}), tmp_path / "n=5" / "data")
    assert read(SettledFiles(tmp_path)) == [("one", 5), ("two", 5)]


@pytest.mark.parametrize(
    ("path", "given", "found"),
    [
        ("/in/a=1/b=2/f", "/in", {"a": "1", "b": "2"}),
        ("/in/a=1/b=2/f", "/in/a=1", {"b": "2"}),
        ("/in/a=1/b=2/f", "/in/a=1/*/f", {"b": "2"}),
        ("/in/a=1/f", "/in/a=*/f", {"a": "1"}),
        ("/in/a[1]/b=2/f", "/in/a[1]", {"b": "2"}),
        ("/in/=1/x/f=1", "/in", {}),
    ],
)
def test_folders_above_the_path_are_none(path: str, given: str, found: dict[str, str]) -> None:
    assert FilePlace(given, fs.LocalFileSystem(), given).columns_in(path) == found


def test_a_pattern_leaves_the_files_of_other_folders_alone_and_its_folders_give_columns(
    tmp_path: Path,
) -> None:
    for day, hour in [("2024-01-30", 1), ("2024-01-31", 2), ("2024-02-01", 3)]:
        put(tmp_path / f"day={day}" / f"hour={hour}", "parquet", [day])
    for folder in ("day=2024-02-01/hour=3", "day=2024-01-31/hour=4"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "broken").write_text("no Parquet")
    first, second = dt.date(2024, 1, 30), dt.date(2024, 1, 31)
    assert read(SettledFiles(f"{tmp_path}/day=2024-01-30*/**")) == [("2024-01-30", first, 1)]
    assert read(SettledFiles(f"{tmp_path}/day=2024-01-*/hour=[12]/*")) == [
        ("2024-01-30", first, 1),
        ("2024-01-31", second, 2),
    ]
    with pytest.raises(ReadFailed, match="hour=4/broken"):
        read(SettledFiles(f"{tmp_path}/day=2024-01-*/**"))


@pytest.mark.contract("A column of folders has a type that all of their values fit, or else text.")
@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["2024-02-29", "2024-02-30"], ["2024-02-29", "2024-02-30"]),
        (["2023-02-29"], ["2023-02-29"]),
        (["2024-04-31", "2024-04-30"], ["2024-04-31", "2024-04-30"]),
        (["2024-02-29", "1900-02-28"], [dt.date(2024, 2, 29), dt.date(1900, 2, 28)]),
        (["0001-01-01", "9999-12-31"], [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        # Python has no year 0, and a day has no 13th month.
        (["0000-01-01", "2024-01-01"], ["0000-01-01", "2024-01-01"]),
        (["2024-13-01"], ["2024-13-01"]),
        (["2024-1-01"], ["2024-1-01"]),
        (["20240101"], [20240101]),
        (["2024-W01-1"], ["2024-W01-1"]),
        (["007", "7", "-0", "0" * 17 + "1"], [7, 7, 0, 1]),
        (["-" + "9" * 18, "9" * 18], [-(10**18 - 1), 10**18 - 1]),
        (["9" * 19, "1"], ["9" * 19, "1"]),
        (["+1"], ["+1"]),
        (["1", "2024-01-01"], ["1", "2024-01-01"]),
        (["1", "1.5"], ["1", "1.5"]),
        # Arrow does not read digits of another script.
        (["٣", "3"], ["٣", "3"]),
        (["٢٠٢٤-01-01"], ["٢٠٢٤-01-01"]),
        (["2024-01-31 10:00:00"], ["2024-01-31 10:00:00"]),
        (["__HIVE_DEFAULT_PARTITION__", "2024-02-30"], [None, "2024-02-30"]),
        (["__HIVE_DEFAULT_PARTITION__", "2024-02-29"], [None, dt.date(2024, 2, 29)]),
        (["__HIVE_DEFAULT_PARTITION__", "08"], [None, 8]),
        (["__HIVE_DEFAULT_PARTITION__"], [None]),
    ],
)
def test_a_column_of_folders_has_a_type_that_all_their_values_fit(
    tmp_path: Path, texts: list[str], values: list[Any]
) -> None:
    for at, text in enumerate(texts):
        put(tmp_path / f"{at}" / f"at={text}", "parquet", [str(at)])
    assert read(SettledFiles(tmp_path)) == [(str(at), value) for at, value in enumerate(values)]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (
            pa.timestamp("us", "UTC"),
            "2024-01-31 10:00:00",
            dt.datetime(2024, 1, 31, 10, tzinfo=dt.timezone.utc),
        ),
        (pa.timestamp("us", "UTC"), "2024-01-31", dt.datetime(2024, 1, 31, tzinfo=dt.timezone.utc)),
        (pa.timestamp("us"), "2024-01-31 10:00:00", dt.datetime(2024, 1, 31, 10)),
        (pa.decimal128(10, 2), "1.50", Decimal("1.50")),
        (pa.float64(), "007", 7.0),
        (pa.bool_(), "true", True),
    ],
    ids=str,
)
def test_a_schema_gives_columns_of_folders_types_that_are_not_guessed(
    tmp_path: Path, kind: pa.DataType, text: str, value: Any
) -> None:
    put(tmp_path / f"at={text}", "parquet", ["one"])
    schema = pa.schema([("word", pa.string()), ("at", kind)])
    assert read(SettledFiles(tmp_path, schema=schema)) == [("one", value)]


@pytest.mark.contract("A folder whose value does not fit its column is an error, or null with a warning.")
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_a_folder_whose_value_does_not_fit_is_an_error_or_null(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "at=2024-02-29", form, ["one"])
    put(tmp_path / "at=2024-02-30", form, ["two"])
    schema = pa.schema([("word", pa.string()), ("at", pa.date32())])
    with pytest.raises(ReadFailed, match=r"at=2024-02-30/data.*at=2024-02-30.*date32.*on_bad_row='null'"):
        read(SettledFiles(tmp_path, form, schema))
    assert read(SettledFiles(tmp_path, form, schema, on_bad_row="null")) == [
        ("one", dt.date(2024, 2, 29)),
        ("two", None),
    ]
    assert caplog.text.count("says at=2024-02-30, which cannot be read as date32[day]: it is null") == 1


def test_places_of_files_and_of_their_state_may_be_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    put(tmp_path / "home" / "in", "json")
    source = SettledFiles("~/in", "json", pa.schema([("word", pa.string())]), state="~/state")
    monkeypatch.setenv("HOME", "/nowhere")
    with SourceHarness(source, timeout=60) as harness:
        assert harness.read_all() == [("one",), ("two",)]
        harness.snapshot()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["home", "in", "state"]
    with pytest.raises(ValueError, match=r"state='~nobody-here/x': there is no home folder of a user"):
        SettledFiles("in", state="~nobody-here/x")


def test_what_cannot_be_is_named(tmp_path: Path) -> None:
    put(tmp_path / "hour=late", "parquet")
    word, hour = pa.field("word", pa.string()), pa.field("hour", pa.int64())
    with pytest.raises(ReadFailed, match=r"hour=late/data.*its folder says hour=late.*int64"):
        read(SettledFiles(tmp_path, schema=pa.schema([word, hour])))
    with pytest.raises(ReadFailed, match="all stand in its folders"):
        read(SettledFiles(tmp_path, schema=pa.schema([hour.with_type(pa.string())])))
    with pytest.raises(ReadFailed, match="text has one column"):
        read(SettledFiles(tmp_path, "text", pa.schema([word, pa.field("other", pa.string())])))
