"""One job at a time holds a run in an object store, by times that no user chooses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pillarbox import async_map
from pillarbox.ledger import Ledger
from pillarbox.ledger.cli import main
from pillarbox.ledger.errors import LedgerHeldError
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.objects import holding
from pillarbox.ledger.objects.conditional import conditional_store
from pillarbox.ledger.objects.holder import HOLDER, HolderTimes
from pillarbox.ledger.upkeep import compact
from tests.ledger.test_two_jobs import ROWS, rows
from tests.servers.s3_server import SECRET

ROOT = Path(__file__).resolve().parents[3]
LONG = 300.0
IN_BUCKET = pytest.param("bucket", marks=pytest.mark.server)
TIMES = "HolderTimes(renewal={}, belief=0.4, expiry=0.6, rest=0.5, watch=0.01, planned=0.2)"
"""For jobs of which one is stopped while the other waits."""


def record_in(ledger: Ledger) -> dict[str, Any]:
    (scope,) = ledger.scopes()
    version = conditional_store(ledger.filesystem, ledger.folder(scope).path).read(HOLDER)
    assert version is not None
    found: dict[str, Any] = json.loads(version.content)
    return found


@pytest.mark.contract(convicts=["run_not_freed"])
@pytest.mark.parametrize("place", ["folder", IN_BUCKET], indirect=True)
def test_of_two_jobs_of_one_run_one_calls_and_the_other_is_told_who_does(place: tuple[Ledger, str]) -> None:
    ledger, _ = place
    calls = Counter[int]()
    begun, told = threading.Event(), threading.Event()

    async def call(row: dict[str, int]) -> list[str]:
        calls[row["id"]] += 1
        begun.set()
        await asyncio.to_thread(told.wait)
        return [f"answer {calls[row['id']]}"]

    results: list[list[str]] = []
    first = threading.Thread(
        target=lambda: results.extend(async_map(rows(), call, ledger=ledger, capacity=50))
    )
    first.start()
    assert begun.wait(LONG)
    with pytest.raises(LedgerHeldError) as caught:
        list(async_map(rows(), call, ledger=ledger, capacity=50))
    record = record_in(ledger)
    told.set()
    first.join()
    text = str(caught.value)
    assert text.startswith("run='run', uid='uid' in ")
    assert f"on {record['host']} (process {os.getpid()}), since {record['since']}, last renewed 20" in text
    assert SECRET not in text
    assert calls == Counter(dict.fromkeys(range(ROWS), 1))
    assert list(async_map(rows(), call, ledger=ledger)) == results == [["answer 1"]] * ROWS
    assert calls.total() == ROWS
    assert record_in(ledger)["phase"] == "free"


@contextmanager
def other_job(
    place: tuple[Ledger, str], calls: Path, renewal: float = 0.05
) -> Iterator[subprocess.Popen[str]]:
    """A job in a process: its first 8 rows have answers, each later one says so and waits for a line."""
    ledger, filesystem = place
    program = f"""
import asyncio, os, sys
from pyarrow import fs
from pillarbox import Ledger, async_map
from pillarbox.ledger.objects import holding
from pillarbox.ledger.objects.holder import HolderTimes

holding.TIMES = {TIMES.format(renewal)}
calls = os.open({str(calls)!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

async def call(row):
    os.write(calls, b"%d\\n" % row["id"])
    if row["id"] >= 8:
        os.write(1, b"waits\\n")
        await asyncio.to_thread(sys.stdin.readline)
    return row["id"]

ledger = Ledger({ledger.location!r}, filesystem={filesystem}, uid="uid", run="run", key=["id"])
for result in async_map([{{"id": number}} for number in range({ROWS})], call, ledger=ledger, capacity=2):
    os.write(1, b"%d\\n" % result)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines: list[str] = []
        # Both slots wait, and all that has an answer has left: it is in the ledger.
        while lines.count("waits\n") < 2 or len(lines) < 10:
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read() if process.stderr else ""
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.mark.contract
@pytest.mark.parametrize("place", ["folder", IN_BUCKET], indirect=True)
def test_the_run_of_a_job_that_was_killed_is_taken_over_and_nothing_is_lost(
    place: tuple[Ledger, str], tmp_path: Path
) -> None:
    ledger, _ = place
    calls: list[int] = []

    async def call(row: dict[str, int]) -> int:
        calls.append(row["id"])
        return row["id"]

    with other_job(place, tmp_path / "log") as process:
        with pytest.raises(LedgerHeldError, match=rf"\(process {process.pid}\), since 20"):
            list(async_map(rows(), call, ledger=ledger))
        process.kill()
        process.wait(LONG)
        assert list(async_map(rows(), call, ledger=ledger)) == list(range(ROWS))
    assert sorted(calls) == list(range(8, ROWS))


@pytest.mark.contract(convicts=["session_asks_nobody"])
@pytest.mark.parametrize("place", ["folder", IN_BUCKET], indirect=True)
@pytest.mark.parametrize("learns", ["before a call", "by a renewal"])
def test_a_job_that_was_stopped_and_comes_back_calls_no_more(
    place: tuple[Ledger, str], learns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, _ = place
    times = eval(TIMES.format(0.05), {"HolderTimes": HolderTimes})
    monkeypatch.setattr(holding, "TIMES", times)

    async def call(row: dict[str, int]) -> int:
        return row["id"]

    # Of the two ways only one is open: nothing is renewed any more, or no call ends.
    before = learns == "before a call"
    with other_job(place, tmp_path / "log", LONG if before else 0.05) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert list(async_map(rows(), call, ledger=ledger)) == list(range(ROWS))
        called = (tmp_path / "log").read_text()
        process.send_signal(signal.SIGCONT)
        assert process.stderr is not None
        if before:
            _, errors = process.communicate("\n" * ROWS, timeout=LONG)
        else:
            # It waits for the threads of its calls when it has said this.
            lines: list[str] = []
            while not (lines and "LedgerHeldError" in lines[-1]):
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            errors = "".join(lines)
    assert "LedgerHeldError: run='run', uid='uid'" in errors
    assert "is not this job's any more; another job has taken it over, and has ended" in errors
    assert (tmp_path / "log").read_text() == called
    assert called.split() == [str(number) for number in range(10)]


@pytest.mark.contract
@pytest.mark.parametrize("place", ["folder", IN_BUCKET], indirect=True)
def test_commands_and_merges_pass_over_the_record_of_a_run(
    place: tuple[Ledger, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, _ = place

    async def call(row: dict[str, int]) -> int:
        return row["id"]

    for count in (3, 6, 9):
        list(async_map(rows(count), call, ledger=ledger))
    (scope,) = ledger.scopes()
    assert compact(ledger, scope).records == 9
    assert [name for name in ledger.folder(scope).names() if name.startswith(HOLDER)]
    assert list(async_map(rows(9), call, ledger=ledger)) == list(range(9))
    if ledger.location == "calls":
        # For the command line it is a folder like any other.
        for command in ("ls", "verify", "show"):
            assert main([command, str(tmp_path / "calls")]) == 0
        assert "run" in capsys.readouterr().out
        assert main(["expire", str(tmp_path / "calls"), "--all"]) == 0
        assert "not deleted" not in capsys.readouterr().out
    else:
        expire(ledger, scope)
    assert not list(ledger.scopes())
