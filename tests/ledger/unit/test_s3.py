"""A ledger in a bucket, over HTTP, with a real server: what a job and a job after it see there.

The server is versitygw, which `make s3-server` builds; without it these tests are skipped, and say so.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pillarbox import Options, async_map
from pillarbox.aio.chained import Stage
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.task_run import ResultStream
from pillarbox.ledger import Ledger, LedgerError
from pillarbox.ledger.cli import main
from pillarbox.ledger.errors import LedgerConflictError
from pillarbox.ledger.keys import execution_id
from pillarbox.rpc.loop_thread import LoopThread
from tests.servers import fixtures
from tests.servers.s3_server import SECRET, S3Server

ROOT = Path(__file__).resolve().parents[3]


pytestmark = pytest.mark.server

server = fixtures.s3


@pytest.fixture
def ledger(server: S3Server) -> Ledger:
    return Ledger(f"{server.bucket()}/calls", filesystem=server.store())


def test_a_bucket_is_known_by_its_mark(ledger: Ledger, server: S3Server) -> None:
    identity = ledger.identity()
    again = Ledger(ledger.location, filesystem=server.store())
    assert again.identity() == identity
    again.check_identity(identity)
    other = Ledger(f"{server.bucket()}/calls", filesystem=server.store())
    with pytest.raises(LedgerError, match="not the place that the driver saw"):
        other.check_identity(identity)


@pytest.mark.contract(needs="S3, which has no lock")
def test_two_tasks_in_flight_with_one_key_and_different_inputs_do_not_both_end_well_in_a_bucket(
    ledger: Ledger,
) -> None:
    execution = execution_id("action")
    both = threading.Barrier(2)

    def task(text: str, calls: bool = True) -> bool:
        """Run a task; True if it ends well. Each calls before the other has anything in the bucket."""

        def call(row: dict[str, str]) -> str:
            if calls:
                both.wait()
            return row["text"]

        options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run", key=["id"]))
        loop_thread = LoopThread("loop")
        job = ResultStream(
            [Stage(call, options, ledger_session=LedgerSession(options, "run", execution=execution))],
            [{"id": "one", "text": text}],
            loop_thread=loop_thread,
        )
        try:
            while job.take() is not None:
                pass
            return True
        except LedgerConflictError:
            return False
        finally:
            job.close()
            loop_thread.close(60)
            loop_thread.loop.close()

    with ThreadPoolExecutor(2) as threads:
        well = dict(zip("ab", threads.map(task, "ab"), strict=True))
    assert not all(well.values())
    # To try it again does not help.
    assert not any(task(text, calls=False) for text, ended in well.items() if not ended)


@pytest.mark.contract(needs="S3, whose objects are whole or not there")
def test_a_process_that_is_killed_leaves_whole_objects_only(ledger: Ledger, server: S3Server) -> None:
    program = f"""
import asyncio, os
from pyarrow import fs
from pillarbox import Ledger, async_map

async def call(row):
    await asyncio.sleep(0.002)
    return row

store = fs.S3FileSystem(access_key="pillarbox", secret_key={SECRET!r}, scheme="http", region="us-east-1",
                        endpoint_override="127.0.0.1:{server.port}")
ledger = Ledger({ledger.location!r}, filesystem=store, uid="uid", run="run")
for row in async_map(range(100_000), call, ledger=ledger, capacity=10):
    os.write(1, f"{{row}}\\n".encode())
"""
    command = [sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 300:
            pass
        process.kill()
        taken = [int(line) for line in process.stdout if line.endswith("\n")]
    calls: list[int] = []

    async def call(row: int) -> int:
        calls.append(row)
        return row

    most = taken[-1] + 1 if taken else 301
    results = async_map(range(most), call, ledger=dataclasses.replace(ledger, uid="uid", run="run"))
    assert list(results) == [*range(most)]
    assert not calls
    (scope,) = ledger.scopes()
    assert not ledger.reader(scope).damage


def test_a_bucket_that_is_not_there_is_said_at_the_call_without_the_secret(ledger: Ledger) -> None:
    async def call(row: int) -> int:
        return row

    elsewhere = Ledger("no-such-bucket/calls", filesystem=ledger.filesystem)
    with pytest.raises((LedgerError, OSError)) as caught:
        async_map([1], call, ledger=dataclasses.replace(elsewhere, uid="uid", run="run"))
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(elsewhere)


def test_the_command_line_reads_a_bucket_by_its_url(
    ledger: Ledger, server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def call(row: int) -> int:
        return row

    list(async_map(range(3), call, ledger=dataclasses.replace(ledger, uid="embed", run="nightly")))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "pillarbox")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert main(["ls", server.url(ledger.location)]) == 0
    assert "nightly" in capsys.readouterr().out
