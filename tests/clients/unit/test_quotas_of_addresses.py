"""Clients of several addresses that name quotas of their own, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from bench.limits.learned import measure
from bench.limits.metered import Service
from pillarbox import Endpoints, Hedge, QuotaUsedUp, Result, Retry, current_call
from pillarbox.clients.addresses import addresses_of
from tests.aio.quotas import URLS, Named, Refused, named
from tests.aio.virtual import infos, lost, run

SPAN = 60.0, 180.0
NO_CREDIT = Refused(code="insufficient_quota")
TOMORROW = Refused({**named(0, "86400s"), "Retry-After": "86400"})


class Client(Named):
    """The same endpoints, among which the client chooses within a call."""

    def __init__(self, headers: dict[str, Any], seconds: float = 0.1) -> None:
        super().__init__(headers, seconds)
        self.addresses = addresses_of(URLS, URLS)

    async def __call__(self, row: Any) -> Any:
        return await self.addresses.call(self.ask, row)


class Metered:
    """A client of three services with calls and tokens a minute each."""

    def __init__(self, form: Any) -> None:
        self.services = {url: Service(240.0, 150_000.0, form, seed=place) for place, url in enumerate(URLS)}
        self.addresses = addresses_of(URLS, URLS)

    async def __call__(self, row: int) -> Result:
        return await self.addresses.call(self._asked, row)

    async def _asked(self, url: str, row: int) -> Result:
        return await self.services[url](row)


@pytest.mark.contract("Clients use the calls and tokens a minute that each of their addresses names.")
@pytest.mark.parametrize("form", ["bucket", "window"])
def test_the_limits_that_each_address_names_are_used(form: Any) -> None:
    client = Metered(form)
    measure(client, learns=True, shares=False, tasks=2, minutes=3)
    services = client.services.values()
    assert sum(each.used(*SPAN) for each in services) / 3 >= 0.97
    assert max(each.refused_share(*SPAN) for each in services) <= 0.001


def test_an_address_that_is_used_up_is_passed_over() -> None:
    client = Client({URLS[0]: named(0, "20s"), URLS[1]: named(500, "1s"), URLS[2]: named(500, "1s")})
    done, seconds = run(client, 1200, capacity=6)
    assert lost(done, 1200) == 0 and seconds < 1.1 * 1200 * 0.1 / 6
    assert not [at for at in client.times[URLS[0]] if 0.3 < at < 20.0]


@pytest.mark.parametrize("retry", [None, Retry(3)])
def test_calls_are_held_back_where_all_are_used_up(retry: Any) -> None:
    client = Client({URLS[0]: named(0, "30s"), URLS[1]: named(0, "20s"), URLS[2]: named(0, "40s")})
    done, _ = run(client, 40, capacity=6, ordered=False, retry=retry)
    assert lost(done, 40) == 0
    times = sorted(at for each in client.times.values() for at in each)
    assert not [at for at in times if 0.2 < at < 20.0]
    # Nothing was refused, and no breaker of the operator waited.
    assert done.statistics().cool_downs == 0


@pytest.mark.parametrize("said", [NO_CREDIT, TOMORROW], ids=["no-credit", "tomorrow"])
def test_an_address_whose_quota_is_gone_costs_no_row(said: Refused) -> None:
    client = Client({URLS[0]: said})
    done, _ = run(client, 600, capacity=6, retry=Retry(3))
    assert done.error is None and lost(done, 600) == 0 and client.requests[URLS[0]] <= 6


@pytest.mark.parametrize("said", [NO_CREDIT, TOMORROW], ids=["no-credit", "tomorrow"])
@pytest.mark.parametrize("retry", [None, Retry(3)])
def test_no_row_is_called_where_all_quotas_are_gone(said: Refused, retry: Any) -> None:
    client = Client(dict.fromkeys(URLS, said))
    done, seconds = run(client, 100, capacity=6, errors="column", retry=retry)
    assert {info.type for info in infos(done).values()} <= {"NotCalled", "Refused"}
    assert done.statistics().not_called >= 94 and seconds < 10.0


def test_a_job_that_shows_no_errors_ends_where_all_quotas_are_gone() -> None:
    done, _ = run(Client(dict.fromkeys(URLS, TOMORROW)), 100, capacity=6, retry=Retry(3))
    assert isinstance(done.error, QuotaUsedUp)


@pytest.mark.contract(
    "A hedge of a client with several addresses goes to another address than the call that it hedges.",
    convicts=["hedge_of_client_goes_anywhere"],
)
@pytest.mark.parametrize("ordered", [True, False])
def test_a_hedge_goes_to_another_address(ordered: bool) -> None:
    client = Client({})
    # All would go to the first one, which hangs.
    client.addresses = addresses_of(Endpoints([*URLS], choose="in-order"), URLS)
    pairs: dict[Any, list[str]] = {}
    first = URLS[0]

    async def asked(url: str, row: Any) -> Any:
        pairs.setdefault(row, []).append(url)
        assert current_call().endpoint.url == url
        client.seconds = 1000.0 if url == first else 0.1
        return await client.ask(url, row)

    async def call(row: Any) -> Any:
        return await client.addresses.call(asked, row)

    hedge = Hedge(1.0, budget=1.0, calls=2, idempotent=True)
    # There are slots for the hedges of all.
    done, _ = run(call, 8, capacity=16, hedge=hedge, ordered=ordered)
    assert lost(done, 8) == 0
    assert [*pairs.values()] == [[first, URLS[1]]] * 8
