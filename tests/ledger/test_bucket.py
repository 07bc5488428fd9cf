"""A ledger in a bucket, over HTTP, with a real server: what a job and a job after it see there.

The server is versitygw, which `make s3-server` builds; without it these tests are skipped, and say so.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox import async_map
from pillarbox.ledger import Ledger, LedgerError
from tests.servers import fixtures
from tests.servers.s3_server import SECRET, S3Server

ROOT = Path(__file__).resolve().parents[2]


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
