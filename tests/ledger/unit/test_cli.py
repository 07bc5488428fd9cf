"""The command line shows, checks, merges, deletes and exports; it says what is wrong in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pillarbox.__main__ import main as command
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.cli import main
from tests.ledger.unit.segments import key

NIGHT = Scope("night", "embed")
QUERY = Scope("query", "score", batch=4)


@pytest.fixture
def place(tmp_path: Path) -> str:
    ledger = Ledger(str(tmp_path / "ledger"))
    for scope in (NIGHT, QUERY):
        for number in range(2):
            with ledger.writer(scope) as writer:
                writer.append(key(number), {"vector": [0.5] * 9, "n": number, "raw": b"\0"}, latency=0.25)
    with ledger.writer(NIGHT) as writer:
        writer.append(key(9), {"type": "TimeoutError"}, is_error=True, attempts=3)
    return ledger.location


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(list(words)) == status
    captured = capsys.readouterr()
    return captured.out if status < 2 else captured.err


def test_ls_has_a_line_for_each_operator_of_each_run(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    head, *lines = said(capsys, "ls", place).splitlines()
    assert head.split()[:6] == ["RUN", "BATCH", "OPERATOR", "CONFIG", "SEGMENTS", "RECORDS"]
    assert [line.split()[:2] for line in lines] == [["night", "embed"], ["query", "4"]]
    assert lines[0].split()[3:5] == ["3", "3"]
    assert said(capsys, "ls", place, "--run", "query").count("\n") == 2


def test_show_writes_records_as_json_lines(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in said(capsys, "show", place, "--run", "query").splitlines()]
    assert {line["value"]["n"] for line in lines} == {0, 1}
    assert lines[0]["value"] == {"vector": [0.5] * 9, "n": lines[0]["value"]["n"], "raw": "AA=="}
    assert (lines[0]["latency"], lines[0]["batch"], lines[0]["uid"]) == (0.25, 4, "score")
    night = [json.loads(line) for line in said(capsys, "show", place, "--run", "night").splitlines()]
    assert [line["value"] for line in night if line["kind"] == "error"] == [{"type": "TimeoutError"}]
    assert said(capsys, "show", place, "--limit", "1").count("\n") == 1


@pytest.mark.contract
def test_verify_finds_what_is_damaged_and_exits_with_1(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "night embed (0000000000000000): 3 records are whole" in said(capsys, "verify", place)
    folder = Ledger(place).folder(QUERY)
    path = Path(folder.path, folder.segments()[0][0])
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    text = said(capsys, "verify", place, status=1)
    assert "query batch 4 score (0000000000000000): 1 records are whole" in text
    assert f"{path.name}: " in text and "the checksum of the records is wrong" in text
    assert "1 damaged" in said(capsys, "ls", place) or "damaged" not in said(capsys, "ls", place)


def test_compact_merges_each_scope(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "compact", place)
    assert "3 segments of" in text and "with 3 records" in text and text.count("\n") == 2
    assert said(capsys, "compact", place).count("nothing to merge") == 2


@pytest.mark.contract
def test_expire_deletes_what_was_said_and_nothing_else(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "say what expires" in said(capsys, "expire", place, status=2)
    assert "--through needs --run" in said(capsys, "expire", place, "--through", "9", status=2)
    assert said(capsys, "expire", place, "--run", "query", "--through", "3") == ""
    assert "would be deleted" in said(
        capsys, "expire", place, "--run", "query", "--through", "4", "--dry-run"
    )
    assert said(capsys, "expire", place, "--older-than", "1") == ""
    assert list(Ledger(place).scopes()) == [NIGHT, QUERY]
    folder = Ledger(place).folder(NIGHT)
    for name, *_ in folder.segments():
        os.utime(os.path.join(folder.path, name), (time.time() - 3 * 86400,) * 2)
    assert "night embed" in said(capsys, "expire", place, "--older-than", "2")
    assert list(Ledger(place).scopes()) == [QUERY]
    assert "bytes deleted" in said(capsys, "expire", place, "--run", "query", "--all")
    assert list(Ledger(place).scopes()) == []


@pytest.mark.contract
def test_a_job_that_has_no_results_yet_is_as_old_as_its_folder(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = Scope("begun", "embed")
    folder = Path(place, "v2", begun.path)
    with Ledger(place).writer(begun) as writer:
        assert said(capsys, "expire", place, "--run", "begun", "--older-than", "30") == ""
        assert "1970" not in said(capsys, "ls", place, "--run", "begun")
        writer.append(key(1), 1)
    assert "begun" in said(capsys, "ls", place, "--run", "begun")
    for path in folder.glob("*.arrow"):
        path.unlink()
    os.utime(folder, (0, 0))
    assert "bytes deleted" in said(capsys, "expire", place, "--run", "begun", "--older-than", "30")
    assert not folder.exists()


def test_export_writes_a_file_that_others_read(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "calls.parquet"
    assert said(capsys, "export", place, str(target)) == f"5 records in {target}\n"
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(target).to_pylist()
    rows = [{**row, "value": json.loads(row["value"])} for row in rows]
    assert [row["run"] for row in rows] == ["night"] * 3 + ["query"] * 2
    assert sorted(row["value"].get("n", -1) for row in rows) == [-1, 0, 0, 1, 1]
    assert sorted(os.listdir(tmp_path)) == ["calls.parquet", "ledger"]


def test_show_and_export_take_texts_and_numbers_that_have_no_usual_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    with ledger.writer(NIGHT) as writer:
        for number, value in enumerate(["ü", "\ud800", 10**5_000]):
            writer.append(key(number), value)
    target = tmp_path / "calls.parquet"
    said(capsys, "export", ledger.location, str(target))
    exported = pytest.importorskip("pyarrow.parquet").read_table(target)["value"].to_pylist()
    lines = said(capsys, "show", ledger.location).splitlines()
    shown = [json.loads(line)["value"] for line in lines]
    assert shown[:2] == ["ü", "\ud800"] == [json.loads(text) for text in exported[:2]]
    assert exported[0] == '"ü"'
    assert "digits" in shown[2]["unreadable"]


@pytest.mark.contract("Errors of the command line are one line that says what to do.")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["ls", "{place}-not"],
            "no ledger at '{place}-not': give the location that the job's Ledger has\n",
        ),
        (["ls", "{place}", "--run", "nigth"], "there are the runs night, query"),
        (["show", "ftp://x/y"], "the scheme ftp:// is not one of"),
        (["export", "{place}", "calls.csv"], "must end with .parquet; `show` writes lines of JSON"),
        (["export", "{place}", "/no/such/folder/calls.parquet"], "cannot be written"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(
    place: str, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, *(word.replace("{place}", place) for word in words), status=2)
    assert (
        expected.replace("{place}", place) in text
        and text.startswith("pillarbox ledger: ")
        and text.count("\n") == 1
    )


def test_it_runs_as_a_module_with_help_that_has_examples(place: str) -> None:
    command = [sys.executable, "-m", "pillarbox", "ledger"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: pillarbox ledger ")
    assert "\n  pillarbox ledger verify s3://" in done.stdout
    done = subprocess.run([*command, "verify", place], capture_output=True, text=True, check=True)
    assert done.stdout.count("are whole") == 2
    done = subprocess.run(
        [*command, "expire", place, "--through", "x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "'x': must be a whole number" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (["ledger", "ls", "{place}"], 0, "night"),
        (["ledger", "show"], 2, "pillarbox ledger show: error: the following arguments"),
        (["--help"], 0, "the files in which finished calls are kept"),
        (["ls", "{place}"], 2, "invalid choice: 'ls'"),
        ([], 2, "the following arguments are required: COMMAND"),
    ],
)
def test_the_command_pillarbox_says_which_commands_it_has(
    place: str,
    words: list[str],
    status: int,
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As the script that an installation makes of the entry point.
    monkeypatch.setattr(sys, "argv", ["/bin/pillarbox", *(word.replace("{place}", place) for word in words)])
    try:
        ended: object = command()
    except SystemExit as exit:
        ended = exit.code
    captured = capsys.readouterr()
    assert ended == status
    assert expected in captured.out + captured.err


def test_a_reader_of_its_output_that_has_seen_enough_ends_it_without_a_complaint(place: str) -> None:
    with Ledger(place).writer(NIGHT) as writer:
        for number in range(100, 3000):
            writer.append(key(number), "x" * 100)
    command = [sys.executable, "-m", "pillarbox", "ledger", "show", place, "--limit", "9999"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
        assert shown.stdout is not None and shown.stderr is not None
        shown.stdout.readline()
        shown.stdout.close()
        assert shown.stderr.read() == b""
        assert shown.wait() == 0
