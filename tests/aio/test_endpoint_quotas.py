"""Functions with `Options(endpoints=)` whose endpoints name quotas of their own, in virtual time."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bench.limits.endpoints import Regions
from bench.limits.learned import measure
from pillarbox import Batch, Endpoints, QuotaUsedUp, Rate, Retry, current_call
from tests.aio.quotas import URLS, Named, Refused, named
from tests.aio.virtual import infos, lost, now, run

SPAN = 60.0, 180.0
NO_CREDIT = Refused(code="insufficient_quota")
TOMORROW = Refused({**named(0, "86400s"), "Retry-After": "86400"})


def job(service: Any, rows: int, **options: Any) -> tuple[Any, float]:
    return run(service, rows, **{"capacity": 6, "endpoints": Endpoints(URLS), **options})


@pytest.mark.contract(
    "Without a number a job uses the calls and tokens a minute that each of its endpoints names.",
    convicts=["quota_of_endpoint_is_ignored"],
)
@pytest.mark.parametrize("form", ["bucket", "window"])
def test_the_limits_that_each_endpoint_names_are_used(form: Any) -> None:
    regions = Regions(form, calls=240.0, tokens=150_000.0)
    given = {"endpoints": Endpoints([*regions.services])}
    measure(regions, learns=True, shares=False, tasks=2, minutes=3, options=given)
    assert regions.used(*SPAN) >= 0.97
    assert regions.refused_share(*SPAN) <= 0.001


@pytest.mark.contract(
    "An endpoint whose calls are used up is passed over until they come back; the others are called on.",
    convicts=["held_for_one_quota"],
)
@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_an_endpoint_that_is_used_up_is_passed_over(batch: Any) -> None:
    service = Named({URLS[0]: named(0, "20s"), URLS[1]: named(500, "1s"), URLS[2]: named(500, "1s")})
    rows, size = 1200, 1 if batch is None else 2
    done, seconds = job(service, rows * size, batch=batch)
    assert lost(done, rows * size) == 0
    # Those of the beginning, before the first answer.
    assert service.requests[URLS[0]] <= 2 + 6
    assert not [at for at in service.times[URLS[0]] if 0.3 < at < 20.0]
    assert seconds < 1.1 * rows * 0.1 / 6


@pytest.mark.contract("Calls are held back only where the quotas of all endpoints are used up.")
@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_calls_are_held_back_where_all_are_used_up(batch: Any) -> None:
    service = Named({URLS[0]: named(0, "30s"), URLS[1]: named(0, "20s"), URLS[2]: named(0, "40s")})
    done, _ = job(service, 40, batch=batch, ordered=False)
    assert lost(done, 40) == 0
    times = sorted(at for each in service.times.values() for at in each)
    assert not [at for at in times if 0.2 < at < 20.0]
    # The first of them that has calls again.
    after = min(at for at in times if at > 1.0)
    assert after in service.times[URLS[1]] and after < 22.5


def test_an_endpoint_that_rests_is_probed_while_the_quotas_of_the_others_are_used_up() -> None:
    service = Named(
        {URLS[0]: Refused({"Retry-After": "3"}), URLS[1]: named(0, "20s"), URLS[2]: named(0, "20s")}
    )
    done, _ = job(service, 40, retry=3)
    assert lost(done, 40) == 0
    assert [at for at in service.times[URLS[0]] if 3.0 <= at < 4.0]
    assert not [at for url in URLS[1:] for at in service.times[url] if 0.3 < at < 20.0]


def test_a_refusal_for_a_quota_goes_to_another_endpoint_and_is_no_fault() -> None:
    service = Named({URLS[0]: Refused({**named(0, "2s"), "Retry-After": "2"})})
    done, seconds = job(service, 600)
    assert lost(done, 600) == 0 and seconds < 600 * 0.1 / 6 * 1.1
    counts = done.statistics()
    assert counts.endpoint_resting == dict.fromkeys(("one", "two", "three"), 0)
    assert counts.cool_downs == 0
    # Two or so for each two seconds, which it asks for.
    assert counts.endpoint_errors["one"] <= 2 + 2 * seconds


@pytest.mark.contract(
    "An endpoint whose quota is gone for long rests, which the log says once; the others are called on.",
    convicts=["quota_of_one_ends_the_job"],
)
@pytest.mark.parametrize("said", [NO_CREDIT, TOMORROW], ids=["no-credit", "tomorrow"])
@pytest.mark.parametrize("options", [{}, {"retry": Retry(3)}, {"errors": "column"}])
def test_an_endpoint_whose_quota_is_gone_rests(
    said: Refused, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pillarbox")
    service = Named({URLS[0]: said})
    done, seconds = job(service, 600, **options)
    assert done.error is None and lost(done, 600) == 0
    assert seconds < 600 * 0.1 / 4 * 1.1
    # Those that were in flight.
    assert service.requests[URLS[0]] <= 6
    told = [each.getMessage() for each in caplog.records if "http://one" in each.getMessage()]
    assert len(told) == 1 and "rests until" in told[0] and "a quota of it is used up" in told[0]


@pytest.mark.contract(
    "Where the quotas of all endpoints are gone for long no row is called any more.",
)
@pytest.mark.parametrize("said", [NO_CREDIT, TOMORROW], ids=["no-credit", "tomorrow"])
@pytest.mark.parametrize("retry", [None, Retry(3)])
def test_no_row_is_called_where_all_quotas_are_gone(said: Refused, retry: Any) -> None:
    service = Named(dict.fromkeys(URLS, said))
    done, seconds = job(service, 100, errors="column", retry=retry)
    assert {info.type for info in infos(done).values()} == {"NotCalled"}
    assert done.statistics().not_called == 100
    assert "of each of 3 addresses" in infos(done)[99].message
    assert sum(service.requests.values()) <= 3 * 6 and seconds < 10.0


@pytest.mark.parametrize("mode", ["fail", "null", "drop"])
def test_a_job_that_shows_no_errors_ends_where_all_quotas_are_gone(mode: Any) -> None:
    service = Named(dict.fromkeys(URLS, TOMORROW))
    done, _ = job(service, 100, errors=mode, retry=Retry(3))
    assert isinstance(done.error, QuotaUsedUp)
    assert "the first of which is there again at" in str(done.error)


@pytest.mark.contract(
    "`Rate(learn=False)`, and a rate without `learn=True`, follow the quotas of no endpoint."
)
@pytest.mark.parametrize("rate", [Rate(learn=False), Rate(1000.0)])
def test_no_quota_of_an_endpoint_is_followed_where_that_is_not_wanted(rate: Rate) -> None:
    _, seconds = job(Named(dict.fromkeys(URLS, named(0, "20s"))), 60, rate=rate)
    assert seconds < 2.0


def test_a_second_job_of_the_process_knows_the_quotas_of_the_first() -> None:
    service = Named(dict.fromkeys(URLS, named(0, "20s")))
    began: list[float] = []

    async def second(row: Any) -> Any:
        began.append(now())
        return await service(row)

    async def first(row: Any) -> Any:
        await service(row)
        from pillarbox import async_map

        found = [each async for each in async_map(["again"], second, endpoints=Endpoints(URLS))]
        assert found == ["again"]
        return current_call().endpoint.url

    job(first, 3, capacity=3)
    # Of those that begin with the first answer one or two endpoints have not named anything.
    assert max(began) > 19.0


class Alone:
    """A service at one address, which names a limit."""

    async def __call__(self, row: int) -> int:
        current_call().report_limits(named(500, "1s"))
        return row


@pytest.mark.contract(
    "Statistics have the limits that a service, or each endpoint, has named, and what is left."
)
def test_statistics_have_the_limits_of_each_endpoint() -> None:
    service = Named({URLS[0]: named(0, "20s"), URLS[1]: named(500, "1s")})
    done, _ = job(service, 60)
    found = done.statistics()
    assert found.limits_named == {"one requests": 600, "two requests": 600}
    assert found.limits_left["one requests"] == 0.0 < found.limits_left["two requests"] <= 500
    alone, _ = run(Alone(), 2, capacity=1)
    assert alone.statistics().limits_named == {" requests": 600}
