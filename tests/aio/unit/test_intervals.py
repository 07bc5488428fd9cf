"""Consequences of times that no user chooses, which these tests make short."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from pillarbox import CallTimeout, Dedupe, Errors, Options, Redact, Retry, Timeout, async_map
from pillarbox.aio.dedupe.claims import claims_of
from pillarbox.aio.intervals import Intervals
from pillarbox.ledger import KeyMaker, Ledger
from tests.aio.unit.intervals import choose
from tests.threads import begun


class Session:
    """A resource; says whether it is closed."""

    is_closed = False

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_closed = True

    async def __call__(self, row: int) -> int:
        return row


def test_a_reader_that_hangs_in_its_input_keeps_no_resource_open(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, Intervals(close_timeout=0.2))
    options = Options()
    queue: SimpleQueue[int | None] = SimpleQueue()
    session = Session()
    queue.put(1)
    results = async_map(iter(queue.get, None), session, options=options)
    with caplog.at_level(logging.WARNING, "pillarbox"), results:
        assert next(results) == 1
    assert session.is_closed
    assert "still waits for input" in caplog.text
    queue.put(None)


@pytest.mark.contract
def test_threads_left_behind_by_time_outs_end_the_job_before_they_are_many(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, Intervals(cancel_timeout=0.01, abandoned_threads=6))
    options = Options(errors="null")
    release = threading.Event()

    def hang(row: int) -> int:
        release.wait(60)
        return row

    results = async_map(range(10_000), hang, capacity=2, timeout=Timeout(attempt=0.01), options=options)
    with pytest.raises(
        RuntimeError, match=r"^6 calls of .*hang still run in their threads .* at most 6 may:"
    ):
        list(results)
    release.set()
    calls = begun("pillarbox-call-")
    assert len(calls) <= 6 + 2
    for thread in calls:
        thread.join()
    assert caplog.text.count("did not return within") == 1


@pytest.mark.contract
@pytest.mark.parametrize(
    ("limits", "met"),
    [
        ({"timeout": 0.1}, ("timeout", 0.1)),
        ({"timeout": Timeout(3600.0, attempt=0.1)}, ("timeout.attempt", 0.1)),
    ],
    ids=["timeout", "timeout.attempt"],
)
def test_a_coroutine_that_blocks_the_loop_is_found_and_named_with_the_limit_that_was_met(
    limits: dict[str, Any], met: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, Intervals(stall_timeout=0.05, close_timeout=0.05))
    options = Options(**limits)
    release = threading.Event()

    async def blocks(row: int) -> int:
        release.wait(30)
        return row

    with pytest.raises(CallTimeout) as caught:
        list(async_map([1], blocks, options=options))
    release.set()
    assert (caught.value.limit, caught.value.seconds) == met
    assert f"no result within {met[0]}=0.1 s, in attempt 1 for row 1" in str(caught.value)
    assert "release.wait(30)" in str(caught.value)


PERSON = {"name": "Ada Lovelace", "address": "12 St James's Square, London"}


def test_with_rows_withheld_a_call_that_blocks_the_loop_shows_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    withheld = Errors(redact=Redact(rows=True))
    choose(monkeypatch, Intervals(stall_timeout=0.05, close_timeout=0.05))
    options = Options(errors=withheld)
    release = threading.Event()

    async def blocks(row: Any) -> None:
        release.wait(30)

    with pytest.raises(CallTimeout) as caught:
        list(async_map([PERSON], blocks, timeout=0.1, options=options))
    release.set()
    late = caught.value
    assert "release.wait(30)" in str(late)
    assert late.row is None
    assert not [part for part in PERSON.values() if part in str(late)]


@pytest.mark.contract
def test_a_task_that_hangs_with_a_claim_costs_a_call_and_holds_up_nobody_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(str(tmp_path), uid="u", run="r")
    choose(monkeypatch, Intervals(hung_after=0.1))
    options = Options(ledger=ledger, dedupe=Dedupe(across_tasks=True))
    list(async_map(["before"], str.upper, options=options))
    (scope,) = ledger.scopes()
    claims = claims_of(ledger, scope)
    assert claims.claim(KeyMaker()("a"))
    assert list(async_map(["a"], str.upper, options=options)) == ["A"]
    assert "1 rows have waited for the calls of other tasks for 0.1 s" in caplog.text
    # It was the hung task's all the time.
    assert not claims_of(ledger, scope).claim(KeyMaker()("a"))


@pytest.mark.contract(convicts=["claim_overdue_at_once"])
def test_a_row_that_waits_for_another_tasks_call_has_its_whole_time(
    tmp_path: Path,
) -> None:
    ledger, across = Ledger(str(tmp_path), uid="u", run="r"), Dedupe(across_tasks=True)
    list(async_map(["before"], str.upper, options=Options(ledger=ledger, dedupe=across)))
    (scope,) = ledger.scopes()
    claims = claims_of(ledger, scope)
    assert claims.claim(KeyMaker()("a"))
    options = Options(ledger=ledger, dedupe=across, timeout=0.3, retry=Retry(attempts=2))
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: list(async_map(["a"], str.upper, options=options)))
        # Longer than its calls may take.
        with pytest.raises(TimeoutError):
            job.result(0.4)
        claims.close()
        assert job.result() == ["A"]
