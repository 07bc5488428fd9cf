"""An overloaded service is waited for: its refusals are not attempts, and hold back all calls of the task."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Batch, Buffer, CallFailed, Errors, Rate, Retry, RetryBudget, Timeout, async_map
from tests.aio.overloaded import Limited, Overloaded
from tests.aio.virtual import HOUR, Job, answers, infos, lost, now, play, run
from tests.search import examples


@pytest.mark.contract("A service that refuses calls beyond its rate loses no row and little time.")
@pytest.mark.parametrize("latency", [0.005, 0.05])
@pytest.mark.parametrize(
    ("burst", "retry_after", "window"),
    [
        (100, 1, None),
        (10, 1, None),
        (1, 0.1, None),
        (100, None, None),
        (100, 1, 0.0),
        (100, 1, -0.3),
        (100, None, 0.0),
        (100, None, -0.7),
        (100, 0.1, 0.0),
        (100, 0.1, -0.7),
    ],
)
def test_a_limited_service_loses_no_row_and_little_time(
    burst: int, retry_after: float | None, window: float | None, latency: float
) -> None:
    random.seed(1)
    service = Limited(100, burst, retry_after, latency, window)
    job, seconds = run(service, 1500, retry=Retry(4), capacity=100, errors="null", ordered=False)
    assert lost(job, 1500) == 0
    assert seconds <= 1.3 * ((1500 - burst) / 100 + (window or 0.0) + latency)
    assert service.refused <= 1500 / 4


def refused() -> Exception:
    return ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")


class Down:
    """Refuses every call between two points in time; keeps when it was called."""

    def __init__(self, begin: float, end: float, error: Exception) -> None:
        self.begin, self.end, self.error = begin, end, error
        self.refused: list[float] = []

    async def __call__(self, row: int) -> int:
        if self.begin <= now() < self.end:
            self.refused.append(now())
            raise self.error
        await asyncio.sleep(0.01)
        return row


@pytest.mark.contract("An outage shorter than max_outage loses no row.")
@pytest.mark.parametrize(
    "error",
    [Overloaded(None, 503), Overloaded(1, 503), refused(), ConnectionResetError(), Overloaded(None, 502)],
    ids=["silent", "asking", "refused", "reset", "gateway"],
)
def test_an_outage_loses_no_row(error: Exception) -> None:
    service = Down(0.2, 3.2, error)
    job, seconds = run(service, 5000, retry=Retry(4), capacity=100, errors="null", ordered=False)
    assert lost(job, 5000) == 0
    # Those in flight when it began, and some that try whether it is well again.
    assert len(service.refused) < 2 * 100 + 20
    assert seconds < 3.2 + 5000 / 100 * 0.01 + 5.0


@pytest.mark.contract("A single refused connection is an attempt.")
def test_a_single_refused_connection_is_an_attempt_of_its_row() -> None:
    calls: list[int] = []

    async def service(row: int) -> int:
        calls.append(row)
        await asyncio.sleep(0.01)
        if row % 100 == 50:
            raise refused()
        return row

    job, seconds = run(service, 2000, retry=Retry(3), capacity=10, errors="null", ordered=False)
    assert lost(job, 2000) == 20
    assert {calls.count(row) for row in range(50, 2000, 100)} == {3}
    assert seconds < 2000 / 10 * 0.01 + 1.0


def test_of_many_hosts_half_may_refuse() -> None:
    chance = random.Random(3)

    async def service(row: int) -> int:
        await asyncio.sleep(0.01)
        if row % 2:
            raise refused()
        return row

    rows = [*range(2000)]
    chance.shuffle(rows)

    async def script() -> tuple[Job, float]:
        job = Job(service, retry=Retry(3), capacity=50, errors="null", ordered=False)
        job.push(*rows)
        await job.end()
        return job, now()

    random.seed(1)
    job, seconds = play(script)
    assert lost(job, 2000) == 1000
    assert seconds < 2.0 * 2000 * 2 / 50 * 0.01


def test_calls_that_broke_in_an_outage_are_no_attempts() -> None:
    async def service(row: int) -> int:
        if 1.0 <= now() < 6.0:
            raise ConnectionResetError() if row % 2 else refused()
        await asyncio.sleep(0.01)
        return row

    job, _ = run(service, 3000, retry=Retry(3), capacity=20, errors="null")
    assert lost(job, 3000) == 0


@pytest.mark.contract("A service that was never reached is not waited for as long as an outage.")
def test_a_service_that_was_never_reached_is_waited_for_half_a_minute() -> None:
    service = Down(0.0, HOUR, refused())
    job, seconds = run(service, 200, retry=Retry(3), capacity=20, errors=Errors("column", floor=None))
    messages = [info.message for info in infos(job).values()]
    assert len(messages) == 200
    assert any("the service was never reached, for 30 s: look at its address" in each for each in messages)
    assert 30 <= seconds < 60
    # Not one that begins to answer meanwhile.
    job, _ = run(
        Down(0.0, 20.0, refused()), 200, retry=Retry(3), capacity=20, errors=Errors("null", floor=None)
    )
    assert lost(job, 200) == 0


def test_a_closed_port_longer_than_its_limit_fails_rows_and_the_error_says_so() -> None:
    service = Down(1.0, HOUR, refused())
    job, seconds = run(service, 2000, retry=Retry(3, max_outage=60), capacity=10, errors="column")
    messages = {info.message for info in infos(job).values()}
    assert any("the service was not reached for max_outage=60 s of Retry" in each for each in messages)
    assert 61 <= seconds < 130
    job, _ = run(Down(0.2, 3.2, refused()), 2000, retry=Retry(3, max_outage=0), capacity=10, errors="column")
    assert lost(job, 2000) > 0


def test_batches_wait_out_a_closed_port() -> None:
    async def service(rows: list[int]) -> list[Any]:
        if 1.0 <= now() < 4.0:
            raise refused()
        await asyncio.sleep(0.01)
        return answers(*rows)

    job, _ = run(service, 8000, batch=Batch(8), retry=Retry(3), capacity=4, errors="null")
    assert job.results == answers(*range(8000))


@settings(max_examples=examples(40), deadline=None)
@given(
    begin=st.floats(0.3, 0.6),
    seconds=st.floats(0.0, 20.0),
    capacity=st.integers(4, 50),
    attempts=st.integers(3, 5),
    ordered=st.booleans(),
    chance=st.integers(0, 2**32),
)
def test_a_closed_port_loses_no_row_of_a_service_that_has_answered(
    begin: float, seconds: float, capacity: int, attempts: int, ordered: bool, chance: int
) -> None:
    random.seed(chance)
    service = Down(begin, begin + seconds, refused())
    rows = 70 * capacity
    job, _ = run(service, rows, retry=Retry(attempts), capacity=capacity, errors="null", ordered=ordered)
    assert lost(job, rows) == 0


class Answering(asyncio.Protocol):
    """An HTTP service that answers everything, and keeps its connections."""

    def __init__(self, open_ones: set[asyncio.Transport]) -> None:
        self.open_ones = open_ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.open_ones.add(transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" * data.count(b"\r\n\r\n"))

    def connection_lost(self, error: Exception | None) -> None:
        self.open_ones.discard(self.transport)


@pytest.mark.slow
@pytest.mark.server
def test_a_real_service_whose_port_is_closed_for_three_seconds_loses_no_row() -> None:
    aiohttp = pytest.importorskip("aiohttp")

    async def job() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        open_ones: set[asyncio.Transport] = set()
        server = await loop.create_server(lambda: Answering(open_ones), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        unreached = 0
        done: list[int] = []

        async def call(row: int) -> int:
            nonlocal unreached
            try:
                async with session.get(f"http://127.0.0.1:{port}/") as response:
                    await response.read()
            except aiohttp.ClientConnectionError:
                unreached += 1
                raise
            return row

        async def restart() -> None:
            nonlocal server
            server.close()
            for transport in [*open_ones]:
                transport.abort()
            await asyncio.sleep(3.0)
            server = await loop.create_server(lambda: Answering(open_ones), "127.0.0.1", port)

        outage: asyncio.Task[None] | None = None
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            mapped = async_map(
                range(20_000), call, retry=Retry(4), capacity=100, errors="null", ordered=False
            )
            async for row in mapped:
                done.append(row)
                if len(done) == 5000:
                    outage = asyncio.ensure_future(restart())
        assert outage is not None
        await outage
        server.close()
        return done, unreached

    done, unreached = asyncio.run(job())
    assert sorted(done) == [*range(20_000)]
    assert 0 < unreached < 400


@pytest.mark.contract("A refusal with Retry-After holds back its own row, and no other.")
def test_a_sporadic_refusal_holds_back_its_own_row_for_as_long_as_the_service_asks() -> None:
    begun: list[tuple[int, float]] = []

    async def service(row: int) -> int:
        begun.append((row, now()))
        if row == 1 and now() == 0.0:
            raise Overloaded(7)
        await asyncio.sleep(1.0)
        return row

    job, _ = run(service, 10, retry=Retry(1), capacity=2, ordered=False)
    assert sorted(job.results) == [*range(10)]
    assert job.statistics().cool_downs == 0
    times = [at for row, at in begun if row == 1]
    assert len(times) == 2 and times[1] >= 7.0
    assert max(at for row, at in begun if row != 1) <= 5.0


@pytest.mark.contract("Refusals that are a share of the calls hold back every call of the task.")
@pytest.mark.parametrize("capacity", [1, 2, 50])
def test_many_refusals_hold_back_every_call_for_as_long_as_the_service_asks(capacity: int) -> None:
    begun: list[float] = []

    async def service(row: int) -> int:
        begun.append(now())
        await asyncio.sleep(0.1)
        if now() < 7.0:
            raise Overloaded(7)
        return row

    job, _ = run(service, 100, retry=Retry(1), capacity=capacity, ordered=False)
    assert lost(job, 100) == 0
    early = [at for at in begun if at < 7.0]
    # Those in flight, and as many as are more than chance.
    assert len(early) <= 2 * capacity + 5 and max(early) <= 0.5


@pytest.mark.contract("Refusals now and then, with Retry-After or without, cost a job little.")
@pytest.mark.parametrize("capacity", [50, "auto"])
@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_three_of_a_hundred_refusals_cost_little(capacity: Any, retry_after: float | None) -> None:
    def rate(share: float) -> float:
        chance = random.Random(7)
        places = asyncio.Semaphore(50)

        async def service(row: int) -> int:
            if chance.random() < share:
                raise Overloaded(retry_after)
            async with places:
                await asyncio.sleep(0.05)
            return row

        random.seed(1)
        job, _ = run(
            service, 6000, retry=Retry(), capacity=capacity, errors="null", ordered=False, buffer=Buffer(9000)
        )
        assert lost(job, 6000) == 0
        # The last rows may wait for the pause that the service has asked for, with no others behind them.
        return 5400 / job.came[5399]

    assert rate(0.03) >= 0.95 * rate(0.0)


def test_calls_come_back_one_by_one_after_a_cool_down() -> None:
    service = Down(0.0, 5.0, Overloaded(5.5))
    begun: list[float] = []

    async def call(row: int) -> int:
        begun.append(now())
        return await service(row)

    run(call, 300, retry=Retry(), capacity=100)
    assert len([at for at in begun if 5.5 <= at < 5.6]) <= 3


@pytest.mark.contract("An outage longer than max_outage fails rows, and the error says so.")
def test_an_outage_longer_than_its_limit_fails_rows_and_the_error_says_so() -> None:
    service = Down(0.0, HOUR, Overloaded(1, 503))
    job, seconds = run(
        service, 200, retry=Retry(3, max_outage=60), capacity=10, errors=Errors("column", floor=None)
    )
    messages = {info.message for info in infos(job).values()}
    assert messages == {"status 503 (the service was overloaded for longer than max_outage=60 s of Retry)"}
    assert len(infos(job)) == 200
    # Whoever comes later does not wait as long again.
    assert 60 <= seconds < 80
    assert {info.status for info in infos(job).values()} == {503}
    job, _ = run(service, 1, retry=Retry(3, max_outage=60))
    assert isinstance(job.error, CallFailed)
    assert "max_outage=60 s" in str(job.error)


def test_after_the_limit_a_service_that_is_well_again_gets_its_calls() -> None:
    service = Down(0.0, 100.0, Overloaded(30, 503))

    async def script() -> list[Any]:
        job = Job(service, retry=Retry(3, max_outage=50), errors="null")
        job.push(0)
        await asyncio.sleep(99.0)
        assert lost(job, 1) == 1
        await asyncio.sleep(2.0)
        job.push(*range(1, 100))
        await job.end()
        return job.results

    assert play(script)[1:] == [*range(1, 100)]


def test_without_a_limit_of_time_a_refusal_is_an_attempt() -> None:
    service = Down(0.0, HOUR, Overloaded(None, 503))
    job, _ = run(service, 10, retry=Retry(3, max_outage=0), errors="column")
    assert [info.attempts for info in infos(job).values()] == [3] * 10
    assert len(service.refused) == 30


@pytest.mark.contract("A row that is always refused fails in the end and holds back no other.")
def test_a_row_that_is_always_refused_fails_in_the_end_and_holds_back_no_other() -> None:
    calls: list[int] = []

    async def service(row: int) -> int:
        calls.append(row)
        await asyncio.sleep(0.01)
        if row == 500:
            raise Overloaded(None, 503)
        return row

    job, seconds = run(service, 5000, retry=Retry(), capacity=10, errors="null", ordered=False)
    assert lost(job, 5000) == 1 and job.results.count(None) == 1
    assert max(at for result, at in zip(job.results, job.came, strict=True) if result is not None) < 6.0
    assert 600 <= seconds <= 640
    assert calls.count(500) < 80


@pytest.mark.parametrize("retry_after", [None, 1])
def test_sporadic_refusals_cost_little(retry_after: float | None) -> None:
    chance = random.Random(7)

    async def service(row: int) -> int:
        await asyncio.sleep(0.02)
        if chance.random() < 0.01:
            raise Overloaded(retry_after)
        return row

    random.seed(1)
    job, seconds = run(service, 20_000, retry=Retry(), capacity=50, errors="null", ordered=False)
    assert lost(job, 20_000) == 0
    assert seconds <= 2.0 * 20_000 / 50 * 0.02


@pytest.mark.contract(
    "Refusals now and then, which ask for no pause, do not close a rate that does not bind."
)
@pytest.mark.parametrize("retry", [Retry(), Retry(max_outage=0), None], ids=["waits", "attempts", "none"])
def test_sporadic_refusals_do_not_close_a_rate(retry: Retry | None) -> None:
    chance = random.Random(7)

    async def service(row: int) -> int:
        await asyncio.sleep(0.05)
        if chance.random() < 0.005:
            raise Overloaded()
        return row

    options = {"capacity": 100, "errors": "null", "ordered": False, "rate": Rate(1e9), "retry": retry}
    job, _ = run(service, 10_000, **options)
    assert job.statistics().cool_downs == 0


def test_refusals_that_are_many_close_a_rate_without_retries_too_and_a_single_one_does_not() -> None:
    for refusals, retry_after in (
        (40, None),
        (40, 0.0),
        (1, 0.0),
        (1, None),
    ):
        left = [refusals]

        async def service(row: int, left: list[int] = left, retry_after: float | None = retry_after) -> int:
            await asyncio.sleep(0.05)
            left[0] -= 1
            if left[0] >= 0:
                raise Overloaded(retry_after)
            return row

        job, _ = run(service, 200, capacity=100, errors="null", rate=Rate(1e9, cool_down=0.001))
        assert (job.statistics().cool_downs > 0) is (refusals > 1)


@pytest.mark.contract("Refusals of an overloaded service are not attempts; other errors are.")
def test_what_is_no_overload_uses_up_attempts() -> None:
    calls: list[float] = []

    async def service(row: int) -> int:
        calls.append(now())
        # An overload first and between: of the other errors there are as many as attempts.
        raise Overloaded(1) if len(calls) % 2 else OSError("broken")

    job, _ = run(service, 1, retry=Retry(3), errors="column")
    assert [info.attempts for info in infos(job).values()] == [6]
    assert job.statistics().calls == len(calls) == 6


@pytest.mark.contract(convicts=["cancelled_call_still_answers"])
def test_a_service_that_hangs_after_a_refusal_is_probed_and_no_more() -> None:
    begun: list[float] = []

    async def service(row: int) -> int:
        begun.append(now())
        if now() < 1.0:
            raise Overloaded(1)
        if now() < 6.0:
            await asyncio.sleep(HOUR)
        return row

    job, _ = run(service, 500, retry=Retry(50), capacity=500, timeout=Timeout(attempt=0.5), errors="null")
    assert lost(job, 500) == 0
    assert len([at for at in begun if 1.0 <= at < 6.0]) <= 5 * 10 + 1


def test_refusals_need_no_budget_and_an_unwanted_one_is_final() -> None:
    down = Down(0.0, 3.0, Overloaded(1))
    job, _ = run(down, 50, retry=Retry(2, budget=RetryBudget(0.0, 0)), errors="column")
    assert lost(job, 50) == 0
    down = Down(0.0, 3.0, Overloaded(1))
    job, _ = run(down, 1, retry=Retry(4, when=lambda error: False), errors="column")
    assert [info.message for info in infos(job).values()] == ["status 429"]


def test_batches_wait_for_the_service_too() -> None:
    began: list[float] = []

    async def service(rows: list[int]) -> list[Any]:
        began.append(now())
        if now() < 3.0:
            raise Overloaded(1, 503)
        return answers(*rows)

    job, _ = run(service, 1000, batch=Batch(8), retry=Retry(1), capacity=4, errors="null")
    assert job.results == answers(*range(1000))
    assert len([at for at in began if at < 3.0]) < 12


@settings(max_examples=examples(60), deadline=None)
@given(
    latencies=st.lists(st.sampled_from([0.0, 0.01, 0.4, 3.0, 20.0]), min_size=1, max_size=8),
    refused=st.sets(st.integers(0, 39), max_size=12) | st.builds(set, st.builds(range, st.integers(7, 30))),
    asked=st.sampled_from([0.5, 2.0, 10.0]),
    capacity=st.integers(1, 12),
    in_batches=st.booleans(),
)
def test_no_call_begins_while_the_service_wants_none_and_every_row_is_served(
    latencies: list[float], refused: set[int], asked: float, capacity: int, in_batches: bool
) -> None:
    begun: list[float] = []
    wanted_none: list[tuple[float, float]] = []

    async def call(row: int) -> int:
        begun.append(now())
        number = len(begun) - 1
        if number in refused:
            wanted_none.append((now(), now() + asked))
            raise Overloaded(asked)
        await asyncio.sleep(latencies[row % len(latencies)])
        return row

    async def call_all(rows: list[int]) -> list[int]:
        await call(rows[0])
        return rows

    options: dict[str, Any] = {"batch": Batch(3)} if in_batches else {}
    fn = call_all if in_batches else call
    job, _ = run(fn, 60, retry=Retry(1), capacity=capacity, errors="null", ordered=False, **options)
    assert lost(job, 60) == 0
    # A single one is its row's own matter; all calls wait for more than a few that come one after the other.
    many = sorted(wanted_none)
    if refused >= {*range(capacity + 6)} and not in_batches:
        begin, end = many[capacity + 5]
        assert not [at for at in begun if begin < at < end - asked * 0.01]
