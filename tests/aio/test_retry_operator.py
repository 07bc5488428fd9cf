"""Retries of the operator against a real service: what it asks for is given; what breaks fails one row."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from pillarbox import Buffer, Errors, Options, Rate

pytest.importorskip("aiohttp")

import aiohttp
import yarl
from multidict import CIMultiDict, CIMultiDictProxy

from pillarbox import CallFailed, Retry, RetryBudget, async_map
from tests.aio.answering import Reply, answering
from tests.aio.virtual import Job, play

ROUNDING = 0.002
"""Seconds: the timers of some event loops count in whole milliseconds."""
FAST = {"initial": 0.001, "maximum": 0.002}


class Service:
    """Sends the first call of each row away, and notes when it was called. By the machine's clock."""

    def __init__(self, refusal: Callable[[], Reply]) -> None:
        self.refusal = refusal
        self.calls: dict[str, list[float]] = {}

    def reply(self, path: str) -> Reply:
        times = self.calls.setdefault(path, [])
        times.append(time.monotonic())
        return self.refusal() if len(times) == 1 else Reply(body=path)

    @property
    def pauses(self) -> list[float]:
        return [second - first for first, second in self.calls.values()]


class Client:
    """Asks for the row's page with one session."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def __aenter__(self) -> Client:
        self.session = aiohttp.ClientSession(self.url, raise_for_status=True)
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self.session.close()

    async def __call__(self, row: int) -> str:
        async with self.session.get(f"/{row}") as response:
            return await response.text()


def by_seconds(seconds: int) -> Reply:
    return Reply(429, {"Retry-After": str(seconds)})


def by_date(seconds: int) -> Reply:
    now = 1_700_000_000
    later = formatdate(now + seconds, usegmt=True)
    return Reply(503, {"Date": formatdate(now, usegmt=True), "Retry-After": later})


def response_error(reply: Reply) -> aiohttp.ClientResponseError:
    """The error that aiohttp's client raises for the reply."""
    url = yarl.URL("http://service.example")
    headers = CIMultiDictProxy(CIMultiDict(reply.headers))
    info = aiohttp.RequestInfo(url, "GET", headers, url)
    return aiohttp.ClientResponseError(info, (), status=reply.status, headers=headers)


@pytest.mark.contract
@pytest.mark.parametrize("refusal", [by_seconds, by_date])
def test_no_row_comes_back_before_the_service_said(refusal: Callable[[int], Reply]) -> None:
    began: dict[int, list[float]] = {}

    async def call(row: int) -> str:
        times = began.setdefault(row, [])
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise response_error(refusal(60))
        return f"/{row}"

    async def script() -> None:
        job = Job(call, retry=Retry(2, **FAST))
        job.push(*range(20))
        await job.end()
        assert job.results == [f"/{row}" for row in range(20)]

    play(script)
    pauses = [second - first for first, second in began.values()]
    assert len(pauses) == 20
    assert min(pauses) >= 60.0
    # Spread, so that not all come at once.
    assert max(pauses) - min(pauses) > 0.6


def test_without_retry_after_the_drawn_pause_holds() -> None:
    service = Service(lambda: Reply(503))
    with answering(service.reply) as url:
        list(async_map(range(5), Client(url), retry=Retry(2, initial=0.05, jitter=False)))
    assert min(service.pauses) >= 0.05 - ROUNDING


def test_a_hook_says_when_the_service_may_be_called_again() -> None:
    service = Service(lambda: Reply(429, {"X-Reset": "0.05"}))

    def reset(error: BaseException) -> float | None:
        assert isinstance(error, aiohttp.ClientResponseError)
        assert error.headers is not None
        return float(error.headers["X-Reset"])

    with answering(service.reply) as url:
        list(async_map(range(5), Client(url), retry=Retry(2, **FAST, retry_after=reset)))
    assert min(service.pauses) >= 0.05 - ROUNDING


def test_a_plain_function_is_tried_again_as_a_coroutine_is() -> None:
    requests = pytest.importorskip("requests")
    service = Service(lambda: Reply(429, {"retry-after-ms": "50"}))
    with answering(service.reply) as url, requests.Session() as session:
        session.trust_env = False

        def fetch(row: int) -> str:
            response = session.get(f"{url}/{row}", timeout=30)
            response.raise_for_status()
            text: str = response.text
            return text

        assert list(async_map(range(3), fetch, retry=Retry(2, **FAST), capacity=1)) == ["/0", "/1", "/2"]
    assert min(service.pauses) >= 0.05 - ROUNDING


@pytest.mark.contract
def test_a_result_that_is_no_good_is_asked_for_again() -> None:
    asked: Counter[int] = Counter()

    async def poll(row: int) -> str | None:
        asked[row] += 1
        return None if asked[row] < 3 else "done"

    retry = Retry(3, **FAST, on=(), result=lambda result: result is None)
    assert list(async_map(range(4), poll, retry=retry)) == ["done"] * 4
    assert asked == {0: 3, 1: 3, 2: 3, 3: 3}


def test_a_result_that_stays_bad_fails_the_row_and_says_which() -> None:
    async def poll(row: int) -> str:
        return "pending" if row == 1 else "done"

    retry = Retry(2, **FAST, result=lambda result: result == "pending")
    with pytest.raises(CallFailed, match="after 2 attempts.*'pending' is not accepted") as caught:
        list(async_map(range(3), poll, retry=retry))
    assert type(caught.value.cause).__name__ == "ResultRejected"
    assert list(async_map(range(3), poll, retry=retry, errors="null")) == ["done", None, "done"]


class Fault(Exception):
    """A fault of a predicate."""


def broken(value: Any) -> Any:
    if value == "poison" or "poison" in str(value):
        raise Fault("a fault of the predicate")
    return False


@pytest.mark.contract
@pytest.mark.parametrize("name", ["when", "result", "retry_after"])
def test_a_predicate_that_raises_fails_that_row_with_its_error_and_no_other(name: str) -> None:
    asked: Counter[str] = Counter()

    async def call(row: str) -> str:
        asked[row] += 1
        if name != "result":
            raise OSError(row)
        return row

    rows = ["good", "poison", "good"]
    decide: Any = (lambda error: broken(error) or None) if name == "retry_after" else broken
    retry = Retry(3, initial=0.0, **{name: decide})  # type: ignore[arg-type]
    outcomes = list(async_map(rows, call, retry=retry, errors="column"))
    assert [each.error and each.error.type for each in outcomes] == (
        [None, "Fault", None] if name == "result" else ["OSError", "Fault", "OSError"]
    )
    assert asked["poison"] == 1


class Busy(Exception):
    status = 429


@pytest.mark.parametrize("limits", [{"rate": Rate(1000.0, cool_down=0.01)}, {"capacity": 1}])
def test_a_hook_that_raises_where_calls_are_held_back_fails_that_row_only(limits: dict[str, Any]) -> None:
    async def call(row: str) -> str:
        if row == "poison":
            raise Busy(row)
        return row

    retry = Retry(3, initial=0.0, retry_after=broken)
    outcomes = list(async_map(["good", "poison", "good"], call, retry=retry, errors="column", **limits))
    assert [each.error and each.error.type for each in outcomes] == [None, "Fault", None]


@pytest.mark.contract
def test_rows_share_no_state_and_waiting_ones_hold_no_slot() -> None:
    asked: Counter[int] = Counter()
    others = threading.Event()

    async def call(row: int) -> int:
        asked[row] += 1
        if row == 0 and not others.is_set():
            raise OSError("not yet")
        if row == 99:
            others.set()
        return row

    retry = Retry(10_000, initial=0.005, multiplier=1.0, jitter=False)
    results = list(async_map(range(100), call, retry=retry, capacity=1, options=Options(buffer=Buffer(100))))
    assert results == list(range(100))
    assert asked[0] >= 2
    assert all(asked[row] == 1 for row in range(1, 100))


def test_a_budget_bounds_the_retries_of_all_rows_together() -> None:
    asked: Counter[int] = Counter()

    async def down(row: int) -> int:
        asked[row] += 1
        raise OSError("down")

    retry = Retry(3, initial=0.0, budget=RetryBudget(0.1, 5, seconds=3600))
    assert list(async_map(range(200), down, retry=retry, errors=Errors("null", floor=None))) == [None] * 200
    assert sum(asked.values()) - 200 == 5 + 0.1 * 200


@pytest.mark.contract
def test_the_end_of_the_input_waits_for_retries_at_their_own_times() -> None:
    began: list[float] = []

    async def call(row: int) -> int:
        began.append(asyncio.get_running_loop().time())
        if len(began) == 1:
            raise OSError("once")
        return row

    async def script() -> None:
        job = Job(call, retry=Retry(2, initial=90.0, maximum=90.0, jitter=False))
        job.push(0)
        await job.end()
        assert job.results == [0]

    play(script)
    assert began == [0.0, pytest.approx(90.0)]
