"""A ledger in a bucket, with the session of a task of Spark."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pillarbox import Options, async_map
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.stages import Stage
from pillarbox.aio.task_run import ResultStream
from pillarbox.ledger import Ledger
from pillarbox.ledger.cli import main
from pillarbox.ledger.errors import LedgerConflictError
from pillarbox.ledger.keys import execution_id
from pillarbox.loop_thread import LoopThread
from tests.servers import fixtures
from tests.servers.s3_server import SECRET, S3Server

pytestmark = pytest.mark.server

server = fixtures.s3


@pytest.fixture
def ledger(server: S3Server) -> Ledger:
    return Ledger(f"{server.bucket()}/calls", filesystem=server.store())


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
