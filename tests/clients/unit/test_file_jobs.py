"""The commands `pillarbox embed` and `pillarbox ask`: files in, files out, by a real service on loopback."""

from __future__ import annotations

import datetime
import json
import math
import os
import signal
import subprocess
import sys
from csv import writer as write_csv
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

import pyarrow as pa
from pyarrow import csv, parquet

from pillarbox import __main__ as command
from pillarbox import file_jobs
from pillarbox.testing import serve
from pillarbox.testing.stand_in_service import StandInService
from tests.clients.pictures import PNG, png, said
from tests.waiting import wait_until

ROWS = 40
TEXTS = [f"text {number}" for number in range(ROWS)]
TABLE = pa.table({"id": [*range(ROWS)], "text": TEXTS})
COMPLETE, INCOMPLETE, FAILED, INTERRUPTED = 0, 1, 2, 130


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    parquet.write_table(TABLE, "in.parquet")
    csv.write_csv(TABLE, "in.csv")
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()), "utf-8")
    return tmp_path


def client_of(service: StandInService) -> list[str]:
    return ["--client", f"{service.url}#any-model"]


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]


@pytest.mark.contract("`pillarbox embed` adds a column of vectors to a file, and ends with 0.")
@pytest.mark.parametrize("given", ["in.parquet", "in.csv", "in.jsonl"])
def test_a_file_gets_vectors_beside_its_columns(folder: Path, given: str) -> None:
    with serve(dimensions=4) as service:
        ended = command.main(["embed", given, "out.parquet", "--column", "text", *client_of(service)])
    made = parquet.read_table("out.parquet")
    assert ended == COMPLETE
    assert made.schema.names == ["id", "text", "vector", "_error"]
    # A file of CSV has texts.
    of_file: type[int | str] = str if given.endswith(".csv") else int
    assert made["id"].to_pylist() == [*map(of_file, range(ROWS))] and made["_error"].null_count == ROWS
    assert {len(vector) for vector in made["vector"].to_pylist()} == {4}
    assert sorted(os.listdir()) == ["in.csv", "in.jsonl", "in.parquet", "out.parquet"]


@pytest.mark.contract("`pillarbox ask` adds the answers of a model to a file.")
def test_a_file_gets_answers_beside_its_columns(folder: Path) -> None:
    schema = {"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}
    Path("answer.json").write_text(json.dumps(schema), "utf-8")
    asked = ["ask", "in.parquet", "out.jsonl", "--prompt", "Good? {text}"]
    with serve() as service:
        assert command.main([*asked, *client_of(service), "--keep", "id"]) == COMPLETE
        assert [*lines_of("out.jsonl")[0]] == ["id", "answer", "_error"]
        assert command.main([*asked, *client_of(service), "--schema", "answer.json"]) == COMPLETE
    assert {type(row["good"]) for row in lines_of("out.jsonl")} == {bool}


@pytest.mark.parametrize(("piece_bytes", "pieces"), [(2**28, 1), (1, ROWS)])
def test_a_file_of_large_rows_is_read_in_pieces_of_few(
    folder: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, pieces: int
) -> None:
    monkeypatch.setattr(file_jobs, "PIECE_BYTES", piece_bytes)
    rows, found = file_jobs._pieces(Path("in.parquet"))
    tables = [*found]
    assert rows == ROWS and len(tables) == pieces
    assert pa.concat_tables(tables).equals(TABLE)


@pytest.mark.contract("`pillarbox ask --image` asks about a column of images of a file.")
def test_the_command_asks_about_images(folder: Path) -> None:
    parquet.write_table(pa.table({"id": [1, 2], "photo": [png(1), None]}), "photos.parquet")
    words = [
        "ask",
        "photos.parquet",
        "out.parquet",
        "--prompt",
        "What is it?",
        "--image",
        "photo",
        "--keep",
        "id",
    ]
    with serve() as service:
        assert command.main([*words, *client_of(service)]) == COMPLETE
    assert parquet.read_table("out.parquet")["answer"].to_pylist() == [said(PNG, png(1)), None]


@pytest.mark.contract("A command whose budget ends says so by 1, and the same command pays for the rest.")
def test_a_budget_that_ends_leaves_the_rest_to_the_next_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ask", "in.parquet", "out.parquet", "--prompt", "Good? {text}", "--ledger", "kept"]
    with serve() as service:
        words += client_of(service)
        assert command.main([*words, "--max-calls", "10"]) == INCOMPLETE
        first = parquet.read_table("out.parquet")
        assert service.statistics().inputs == 10 == first["_error"].null_count
        assert "30 were not called" in capsys.readouterr().err
        assert command.main(words) == COMPLETE
        assert parquet.read_table("out.parquet")["_error"].null_count == ROWS
        counts = service.statistics()
    assert (counts.inputs, counts.repeated_inputs) == (ROWS, 0)


def test_rows_that_fail_have_their_error_and_end_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet.write_table(TABLE.set_column(1, "text", pa.array(["", *TEXTS[1:]])), "in.parquet")
    with serve(dimensions=4) as service:
        words = ["embed", "in.parquet", "out.jsonl", "--column", "text", "--into", "v"]
        assert command.main([*words, *client_of(service)]) == INCOMPLETE
    rows = lines_of("out.jsonl")
    assert rows[0]["_error"]["type"] == "EmptyText" and rows[0]["v"] is None
    assert all(len(row["v"]) == 4 and row["_error"] is None for row in rows[1:])
    assert "of 40 rows 1 failed, 0 were not called" in capsys.readouterr().err


@pytest.mark.contract("Ctrl-C leaves no file, and with a ledger the same command pays for nothing twice.")
def test_an_interrupted_command_goes_on_where_it_was(folder: Path) -> None:
    words = ["ask", "in.parquet", "out.parquet", "--prompt", "Good? {text}", "--ledger", "kept"]
    with serve(slow=0.02) as service:
        words = [sys.executable, "-m", "pillarbox", *words, *client_of(service), "--capacity", "1"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as running:
            wait_until(lambda: service.statistics().answered > 5)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate()
        assert running.returncode == INTERRUPTED, said
        assert "run it again to continue" in said and not Path("out.parquet").exists()
        assert service.statistics().inputs < ROWS
        assert subprocess.run(words, check=False).returncode == COMPLETE
        # The call that was in flight.
        assert service.statistics().repeated_inputs <= 1
    assert parquet.read_table("out.parquet").num_rows == ROWS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["in.parquet", "out.csv"], "must end with .parquet or .jsonl"),
        (["in.parquet", "in.parquet"], "is the input"),
        (["no.parquet", "out.parquet"], "no.parquet"),
        (["in.txt", "out.parquet"], "must end with .parquet, .csv or .jsonl"),
        (["in.parquet", "out.parquet", "--client", "nonsense:model"], "must be PRESET:MODEL"),
        (["in.parquet", "out.parquet", "--client", "http://127.0.0.1:1/v1"], "the model is missing"),
        (["in.parquet", "out.parquet", "--column", "words"], "'words' is not a column"),
        (["in.parquet", "out.parquet", "--max-cost", "1"], "price"),
        (["in.parquet", "."], "is a folder"),
        (["empty.csv", "out.parquet"], "empty.csv: "),
    ],
)
def test_what_cannot_be_ends_with_2_before_the_first_call(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in.txt").write_text("text\n", "utf-8")
    Path("empty.csv").touch()
    with serve(dimensions=4) as service:
        given = ["embed", "--column", "text", *client_of(service), *words]
        assert command.main(given) == FAILED
        assert service.statistics().requests == 0
    assert said in capsys.readouterr().err
    assert not Path("out.parquet").exists()


@pytest.mark.spark
def test_the_same_command_runs_in_spark(spark: Any, folder: Path) -> None:
    with serve(dimensions=4) as service:
        words = ["embed", str(folder / "in.parquet"), str(folder / "out.parquet"), "--column", "text"]
        assert command.main([*words, *client_of(service), "--spark"]) == COMPLETE
    made = spark.read.parquet(str(folder / "out.parquet"))
    assert made.count() == ROWS and made.columns == ["id", "text", "vector", "_error"]


CELLS = [("007", 'two\nlines, "quoted"'), ("008", None), ("009", "NA"), ("1e400", "12")]


@pytest.mark.contract(
    "A file of CSV has texts, with lines in quotes, and nulls where a cell is empty, in Spark too.",
    convicts=["lines_of_csv_end_in_quotes", "cells_of_csv_are_numbers"],
)
@pytest.mark.parametrize("in_spark", [False, pytest.param(True, marks=pytest.mark.spark)])
def test_cells_of_csv_are_texts(
    folder: Path, in_spark: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_spark:
        request.getfixturevalue("spark")
    # More than is read at once.
    monkeypatch.setattr(file_jobs, "ROW_BYTES", 2**16)
    filling = [("1", f"line one of {number},\nline two") for number in range(0 if in_spark else 8_000)]
    with open("cells.csv", "w", encoding="utf-8", newline="") as file:
        written = write_csv(file)
        written.writerows([("zip", "text"), *CELLS, *filling])
    words = ["embed", str(folder / "cells.csv"), str(folder / "cells.parquet"), "--column", "text"]
    with serve(dimensions=1) as service:
        given = [*words, *client_of(service), *(["--spark"] if in_spark else [])]
        assert command.main(given) == COMPLETE
    made = parquet.read_table("cells.parquet")
    rows = [*zip(made["zip"].to_pylist(), made["text"].to_pylist(), strict=True)]
    assert rows == [*CELLS, *filling]
    assert [each is None for each in made["vector"].to_pylist()[:4]] == [False, True, False, False]


@pytest.mark.parametrize("name", ["long.csv", "long.jsonl"])
def test_a_row_may_have_megabytes(folder: Path, name: str) -> None:
    text = "word " * 500_000
    content = f"text\n{text}\n" if name.endswith(".csv") else json.dumps({"text": text}) + "\n"
    Path(name).write_text(content, "utf-8")
    rows, (table,) = file_jobs._pieces(Path(name))
    assert rows == 1 and table["text"].to_pylist() == [text]


@pytest.mark.contract(
    "Texts of a file of JSON that look like times stay texts.", convicts=["texts_of_lines_are_times"]
)
def test_texts_of_json_lines_stay_texts(folder: Path) -> None:
    rows = [
        {"day": "2024-05-01", "text": "2024-05-02T14:00:00+02:00", "in": {"at": ["2024-05-03"]}},
        {"day": None, "text": None, "in": {"at": []}},
    ]
    Path("times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with serve(dimensions=1) as service:
        words = ["embed", "times.jsonl", "out.jsonl", "--column", "text", *client_of(service)]
        assert command.main(words) == COMPLETE
    assert [{name: row[name] for name in rows[0]} for row in lines_of("out.jsonl")] == rows


@pytest.mark.contract(
    "What JSON has no form for is null where it is a number, and refused where it is bytes.",
    convicts=["numbers_of_no_json", "bytes_as_python_shows_them"],
)
@pytest.mark.parametrize("image", [[b"\x00"], [{"bytes": b"\x00"}], [[b"\x00"]]])
def test_lines_of_json_can_be_read(
    folder: Path, image: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    at = datetime.datetime(2024, 1, 1, 1, 2, 3, tzinfo=datetime.timezone.utc)
    odd = {"text": ["a"], "n": [math.nan], "parts": [[math.inf, 1.0]], "at": [at]}
    parquet.write_table(pa.table(odd), "odd.parquet")
    parquet.write_table(pa.table({"text": ["a"], "image": image}), "bytes.parquet")
    with serve(dimensions=1) as service:
        asked = ["embed", "odd.parquet", "out.jsonl", "--column", "text", *client_of(service)]
        assert command.main(asked) == COMPLETE
        (row,) = lines_of("out.jsonl")
        assert (row["n"], row["parts"], row["at"]) == (None, [None, 1.0], "2024-01-01T01:02:03+00:00")
        paid = service.statistics().requests
        asked[1:3] = ["bytes.parquet", "bytes.jsonl"]
        assert command.main(asked) == FAILED
        assert service.statistics().requests == paid
        assert "column 'image' has bytes" in capsys.readouterr().err
        assert command.main([*asked, "--keep", "text"]) == COMPLETE
