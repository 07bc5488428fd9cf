"""Waits that last: said within seconds, in the log and the totals, with what is waited for, until when."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Dedupe, Errors, Ledger, Options, Rate, Redact, Retry, async_map
from tests.aio.virtual import Job, play
from tests.waiting import wait_until

SAID_WITHIN_S = 5.0


class Refused(Exception):
    """An answer that says "overloaded"."""

    status = 429

    def __init__(self, retry_after: float) -> None:
        super().__init__("429")
        self.headers = {"Retry-After": f"{retry_after:g}"}


def now() -> float:
    return asyncio.get_running_loop().time()


async def until_it_is_up(row: int) -> int:
    if now() < 20.0:
        raise ConnectionRefusedError(111, "refused")
    return row


async def asked_to_wait(row: int) -> int:
    if now() < 20.0:
        raise Refused(20.0)
    return row


async def at_once(row: int) -> int:
    return row


async def first_is_slow(row: int) -> int:
    await asyncio.sleep(20.0 if row == 0 else 0.0)
    return row


async def first_is_very_slow(row: int) -> int:
    await asyncio.sleep(1200.0 if row == 0 else 0.0)
    return row


async def fails_once(row: int) -> int:
    if now() < 20.0:
        raise ValueError("not yet")
    return row


WAITS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an outage": (
        until_it_is_up,
        {"retry": Retry(4, maximum=5.0)},
        "the service is not reached, for .*max_outage",
    ),
    "an overload": (
        asked_to_wait,
        {"retry": Retry(4)},
        "the service says that it is overloaded, .*tried again at",
    ),
    "the rate": (at_once, {"rate": Rate(0.05, burst=1.0), "capacity": 1}, "the rate"),
    "a slow row": (first_is_slow, {"capacity": 4}, "row 0, and those behind it for their order"),
    "retries": (
        fails_once,
        {"retry": Retry(2, initial=20.0, jitter=False), "capacity": 100},
        r"50 rows wait for their retry, the first until \d\d:\d\d:\d\d \(in ",
    ),
}


@pytest.mark.contract("What an operator waits for is in the log and the totals within five seconds.")
@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_said_within_seconds(name: str, caplog: pytest.LogCaptureFixture) -> None:
    fn, options, said = WAITS[name]
    caplog.set_level(logging.INFO, "pillarbox")

    async def script() -> tuple[Any, str, Job]:
        job = Job(fn, **options)
        job.push(*range(50))
        await asyncio.sleep(SAID_WITHIN_S)
        totals, text = job.statistics(), caplog.text
        await job.end()
        return totals, text, job

    totals, text, job = play(script)
    assert job.results == [*range(50)]
    ((waits_for, operators),) = totals.waits.items()
    assert operators == 1
    for each in (waits_for, text):
        assert len(re.findall(said, each)) == 1, each
    assert "goes on, after" in caplog.text
    assert job.statistics().waits == {}  # type: ignore[union-attr]


def test_a_capacity_that_no_row_fills_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox")

    async def script() -> None:
        job = Job(at_once, capacity=7)
        job.push(1)
        await asyncio.sleep(SAID_WITHIN_S)
        totals = job.statistics()
        assert totals is not None
        assert totals.waits == {"no row comes, and 7 slots are free": 1}
        await job.end()

    play(script)
    assert caplog.text.count("no row comes") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            r"another run of run ask .+ makes these calls, and holds their lease, for \d+ s at most",
        ),
        (
            {"dedupe": Dedupe(across_tasks=True)},
            r"the calls that other tasks make for equal rows, for \d+ s at most",
        ),
    ],
    ids=["lease", "equal rows"],
)
def test_calls_that_others_make_are_said_to_be_waited_for(
    options: dict[str, Any],
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    go_on, began = threading.Event(), threading.Event()

    async def waits(row: int) -> int:
        began.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return row

    ledger = Ledger(str(tmp_path), uid="ask", run="run")
    given = Options(ledger=ledger, **options)
    first: list[int] = []
    one = threading.Thread(
        target=lambda: first.extend(async_map(range(20), waits, options=given)), daemon=True
    )
    one.start()
    wait_until(began.is_set)
    second: list[int] = []
    job = async_map(range(20), at_once, options=given)
    two = threading.Thread(target=lambda: second.extend(job), daemon=True)
    two.start()
    wait_until(lambda: re.search(f"at_once has waited for .*: {said}", caplog.text))
    totals = job.statistics()
    assert totals is not None and re.match(said, *totals.waits)
    go_on.set()
    one.join()
    two.join()
    assert first == second == [*range(20)]
    totals = job.statistics()
    assert totals is not None and totals.waits == {}


@pytest.mark.contract("A job that is resumed counts the rows that it found in the ledger.")
def test_a_job_that_is_resumed_counts_the_rows_that_it_found(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), uid="ask", run="run")
    for rows, found in ((30, 0), (50, 30)):
        job = async_map(range(rows), at_once, ledger=ledger)
        assert [*job] == [*range(rows)]
        totals = job.statistics()
        assert totals is not None
        assert (totals.results, totals.found, totals.calls) == (rows, found, rows - found)


def test_calls_that_take_long_and_short_pauses_are_no_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox")

    async def slow(row: int) -> int:
        await asyncio.sleep(30.0)
        return row

    async def script(fn: Any, **options: Any) -> None:
        job = Job(fn, **options)
        job.push(*range(8))
        await job.end()

    play(lambda: script(slow, capacity=4))
    play(lambda: script(fails_once, capacity=4, retry=Retry(20, initial=2.0, maximum=2.0)))
    assert "waited for" not in caplog.text


def test_a_long_wait_is_said_again_but_not_often(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        job = Job(first_is_very_slow, capacity=2)
        job.push(*range(50))
        await job.end()

    play(script)
    assert 3 <= caplog.text.count("has waited for") <= 15


def test_a_row_that_texts_may_not_show_is_in_no_wait(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        job = Job(first_is_slow, capacity=2, errors=Errors("null", redact=Redact(rows=True)))
        job.push(*range(50))
        await job.end()

    play(script)
    assert "one row, and those behind it" in caplog.text
    assert "row 0" not in caplog.text
