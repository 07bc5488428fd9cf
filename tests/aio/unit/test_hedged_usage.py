"""Usage that a hedge reports while it runs: it is of the limits of the endpoint that answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import Batch, Endpoints, Hedge, Usage, current_call
from pillarbox.clients.addresses import addresses_of
from tests.aio.virtual import Job, now, play

URLS = ("http://one", "http://two")
USED = 5000
NAMED = {
    "x-ratelimit-limit-tokens": "100000",
    "x-ratelimit-remaining-tokens": "90000",
    "x-ratelimit-reset-tokens": "600s",
}


class Service:
    """Two endpoints that have named their limits: the first call of row 2 hangs, its hedge waits to answer.

    The hedge says what it has used before it answers. reply: gets the URL that a row is asked of.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False

    async def reply(self, url: str, row: Any) -> Any:
        if row in (2, [2]):
            self.asked.append(url)
            if len(self.asked) == 1:
                await asyncio.sleep(3600.0)
            usage = Usage(input_tokens=USED)
            if not self.fails:
                current_call().bill_request(usage, 0.1, knows_cost=False)
            await asyncio.sleep(5.0)
            if self.fails:
                raise Failed(usage)
            return row
        await asyncio.sleep(0.01)
        current_call().report_limits(NAMED)
        return row

    async def of_function(self, row: Any) -> Any:
        return await self.reply(current_call().endpoint.url, row)


class OfClient(Service):
    """The same as a client that chooses among its addresses by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses = addresses_of(URLS, URLS)

    async def of_function(self, row: Any) -> Any:
        return await self.addresses.call(self.reply, row)


class Failed(Exception):
    """An error that says what its call used."""

    def __init__(self, usage: Usage) -> None:
        super().__init__("failed")
        self.usage = usage


def left(job: Job) -> dict[str, float]:
    return {key.partition(" ")[0]: amount for key, amount in job.statistics().limits_left.items()}


async def hedged(service: Service, batch: Batch | None) -> Job:
    """A job whose third row is hedged, and both of whose endpoints have named limits."""
    options: dict[str, Any] = {} if isinstance(service, OfClient) else {"endpoints": Endpoints([*URLS])}
    hedge = Hedge(after=1.0, budget=1.0, idempotent=True)
    job = Job(service.of_function, capacity=2, hedge=hedge, batch=batch, **options)
    for row in range(2):
        job.push(row)
        await asyncio.sleep(0.5)
    assert left(job).keys() == {"one", "two"}
    return job


@pytest.mark.contract(
    "The usage that a hedge reports is of the limits of the endpoint that answered it.",
    convicts=["usage_of_hedge_at_first_endpoint"],
)
@pytest.mark.parametrize("batch", [None, Batch(1)])
@pytest.mark.parametrize("kind", [Service, OfClient])
def test_usage_that_a_hedge_reports_is_of_its_endpoint(kind: type[Service], batch: Batch | None) -> None:
    async def script() -> None:
        service = kind()
        job = await hedged(service, batch)
        before = left(job)
        job.push(2)
        await asyncio.sleep(2.0)
        first, second = (url.rpartition("/")[2] for url in service.asked)
        assert first != second
        # The first call is reserved by estimate, and the hedge has said what it has used.
        assert before[first] - left(job)[first] < USED <= before[second] - left(job)[second] + 1e-6
        counts = job.statistics()
        assert (counts.tokens, counts.hedged) == (USED, 1)
        await job.end()
        assert job.error is None and len(job.results) == 3 and now() < 10.0

    play(script)


@pytest.mark.contract(
    "The usage that the error of a hedge says is of the limits of the endpoint that the hedge went to.",
    convicts=["usage_of_failed_hedge_at_first_endpoint"],
)
@pytest.mark.parametrize("batch", [None, Batch(1)])
def test_usage_of_a_hedge_that_fails_is_of_its_endpoint(batch: Batch | None) -> None:
    async def script() -> None:
        service = Service()
        service.fails = True
        job = await hedged(service, batch)
        before = left(job)
        job.push(2)
        await asyncio.sleep(7.0)
        first, second = (url.rpartition("/")[2] for url in service.asked[:2])
        assert first != second
        assert before[first] - left(job)[first] < USED <= before[second] - left(job)[second] + 1e-6
        await job.stop()

    play(script)
