"""Functions with `Options(endpoints=)`: endpoints that are ill now and then, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import pickle
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Adaptive, Batch, Endpoints, Hedge, Options, Retry, Timeout, async_map, current_call
from tests.aio.replies import Refused, Reply, hangs, is_dead, refuses
from tests.aio.virtual import lost, now, play, run
from tests.search import examples

URLS = ("http://one:80", "http://two:80", "http://three:80")
FIRST_REST_S = 0.25
"""Seconds for which an endpoint rests at first."""


class Service:
    """A function of the endpoint of each attempt; `replies` says how one answers, else after `seconds`."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds = seconds
        self.replies: dict[str, Reply] = {}
        self.requests: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.times: list[tuple[str, float]] = []

    async def __call__(self, row: Any) -> Any:
        url = current_call().endpoint.url
        self.requests[url] += 1
        self.times.append((url, now()))
        self.in_flight[url] += 1
        self.most[url] = max(self.most[url], self.in_flight[url])
        try:
            reply = self.replies.get(url)
            if reply is not None:
                await reply()
            else:
                await asyncio.sleep(self.seconds)
        finally:
            self.in_flight[url] -= 1
        return row


def takes(seconds: float) -> Reply:
    async def reply() -> None:
        await asyncio.sleep(seconds)

    return reply


slowly = takes(1.0)


def job(service: Service, rows: int, **options: Any) -> tuple[Any, float]:
    return run(service, rows, **{"capacity": 12, "endpoints": Endpoints(URLS), **options})


@pytest.mark.contract(
    "One endpoint of three that fails costs a function its share, and no row.",
    convicts=["wrong_key_never_rests"],
)
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(refuses(503), id="503"),
        pytest.param(refuses(429, 2.0), id="429-with-time"),
        pytest.param(is_dead(), id="dead"),
        pytest.param(refuses(401), id="wrong-key"),
        pytest.param(refuses(402), id="out-of-quota"),
        pytest.param(slowly, id="slow"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"retry": 3}, {"capacity": Adaptive(start=12, most=12)}])
def test_one_endpoint_that_fails_costs_its_share(reply: Reply, options: dict[str, Any]) -> None:
    service = Service()
    service.replies[URLS[0]] = reply
    done, seconds = job(service, 3600, ordered=False, **options)
    assert done.error is None and lost(done, 3600) == 0
    # An adaptive capacity has a pace of its own.
    _, of_two = job(Service(), 3600, ordered=False, **{**options, "endpoints": Endpoints(URLS[1:])})
    # The last row may be at the slow endpoint, for a second.
    assert seconds < of_two / 0.95 + (1.0 if reply is slowly else 0.0)
    # Those that were in flight at once, and then one for each rest.
    assert reply is slowly or service.requests[URLS[0]] <= 12 + 2 * seconds / FIRST_REST_S
    assert sum(service.requests.values()) == done.statistics().calls


class NoCredit(Exception):
    """An account without credit, as OpenAI says it."""

    status = 429
    code = "insufficient_quota"


async def has_no_credit() -> None:
    await asyncio.sleep(0.001)
    raise NoCredit


@pytest.mark.contract(
    "A quota that is used up at one endpoint of several ends no calls of a function.",
    convicts=["quota_of_one_ends_the_job"],
)
@pytest.mark.parametrize("retry", [None, 3])
@pytest.mark.parametrize("errors", ["column", "null", "fail"])
def test_a_quota_that_is_used_up_at_one_endpoint_ends_nothing(retry: int | None, errors: str) -> None:
    service = Service()
    service.replies[URLS[0]] = has_no_credit
    done, _ = job(service, 300, errors=errors, retry=retry)
    assert done.error is None and lost(done, 300) == 0
    assert done.statistics().not_called == 0


@pytest.mark.contract(
    "Where the quota of each endpoint is used up no row is called any more.",
)
def test_where_the_quota_of_each_endpoint_is_used_up_no_row_is_called_any_more() -> None:
    service = Service()
    service.replies = dict.fromkeys(URLS, has_no_credit)
    done, seconds = job(service, 300, errors="column", retry=3)
    assert done.statistics().not_called > 280 and seconds < 1.0
    assert sum(service.requests.values()) <= 6 * 12


def test_while_an_endpoint_rests_for_seconds_the_quota_of_the_others_ends_no_calls() -> None:
    service = Service()
    service.replies = {
        URLS[0]: refuses(503, 3.0, until=3.0),
        URLS[1]: has_no_credit,
        URLS[2]: has_no_credit,
    }
    done, _ = job(service, 100, errors="column", retry=3)
    # Rows that had their attempts before it came back may fail.
    assert done.statistics().not_called == 0 and lost(done, 100) <= 12


@pytest.mark.contract("A function's call that ran out of time at an endpoint is made again at another one.")
def test_an_endpoint_that_hangs_costs_no_row() -> None:
    service = Service()
    service.replies[URLS[0]] = hangs
    options = {"retry": Retry(2, initial=0.0), "timeout": Timeout(attempt=2.0), "ordered": False}
    done, seconds = job(service, 3600, **options)
    assert lost(done, 3600) == 0
    assert service.requests[URLS[0]] <= 5 + 4
    assert seconds < 3600 / 120 / 0.9


def test_an_endpoint_that_is_well_again_is_used_again() -> None:
    service = Service()
    service.replies[URLS[0]] = is_dead(until=3.0)
    done, _ = job(service, 3000)
    assert lost(done, 3000) == 0
    after = [at for url, at in service.times if url == URLS[0] and at > 3.0]
    assert len(after) > 500 and after[0] < 6.5


@pytest.mark.contract("A function is not called while all its endpoints rest, until the first comes back.")
@pytest.mark.parametrize("attempts", [1, 3])
def test_where_all_endpoints_rest_the_operator_pauses(attempts: int) -> None:
    service = Service()
    service.replies = {
        URLS[0]: refuses(503, 8.0, until=8.0),
        URLS[1]: refuses(503, 40.0),
        URLS[2]: refuses(503, 40.0),
    }
    done, _ = job(service, 200, retry=attempts)
    assert lost(done, 200) == 0
    assert [at for _, at in service.times if 0.1 < at < 8.0] == []
    assert min(at for _, at in service.times if at >= 8.0) < 8.5


def test_endpoints_that_are_never_reached_are_given_up_as_one_is() -> None:
    service = Service()
    service.replies = dict.fromkeys(URLS, is_dead())
    done, seconds = job(service, 20, retry=2, errors="column", capacity=4)
    assert lost(done, 20) == 20 and 29.0 < seconds <= 90.0


def test_without_retry_a_row_that_all_refuse_fails_after_one_call_to_each() -> None:
    service = Service()
    service.replies = dict.fromkeys(URLS, refuses(503))
    done, _ = job(service, 1, errors="column")
    assert lost(done, 1) == 1 and service.requests == dict.fromkeys(URLS, 1)


@pytest.mark.contract("A second operator of a process knows the endpoints that are dead.")
def test_a_second_operator_knows_which_endpoint_is_dead() -> None:
    requests: list[Counter[str]] = []

    async def both() -> None:
        for _ in range(2):
            service = Service()
            service.replies[URLS[0]] = refuses(503, 3000.0)
            options = Options(endpoints=Endpoints(URLS), capacity=12)
            assert [each async for each in async_map(range(60), service, options=options)] == [*range(60)]
            requests.append(service.requests)

    play(both)
    assert requests[0][URLS[0]] > 0 == requests[1][URLS[0]]


def test_a_batch_goes_to_one_endpoint_at_a_time() -> None:
    went: list[tuple[str, int]] = []

    async def embed(rows: list[int]) -> list[int]:
        url = current_call().endpoint.url
        went.append((url, len(rows)))
        await asyncio.sleep(0.05)
        if url == URLS[0]:
            raise Refused(503, 100.0)
        return rows

    done, _ = run(embed, 64, batch=Batch(8), endpoints=Endpoints(URLS), capacity=4)
    assert lost(done, 64) == 0
    assert sum(size for url, size in went if url != URLS[0]) == 64


@pytest.mark.contract("Statistics have the calls, errors and time of each endpoint, and which of them rest.")
def test_statistics_tell_endpoints_apart() -> None:
    service = Service()
    service.replies[URLS[0]] = refuses(503, 3000.0)
    done, _ = job(service, 100)
    found = done.statistics()
    assert found.endpoint_calls == {url.removeprefix("http://"): n for url, n in service.requests.items()}
    assert found.endpoint_errors == {"one:80": service.requests[URLS[0]]}
    assert found.endpoint_resting == {"one:80": 1, "two:80": 0, "three:80": 0}
    assert found.endpoint_seconds["two:80"] == pytest.approx(0.1 * found.endpoint_calls["two:80"])
    assert found.calls == sum(found.endpoint_calls.values())


@pytest.mark.contract(
    "Endpoints of one host, which differ by their paths, have a line each in the statistics.",
    convicts=["endpoints_of_one_host_counted_together"],
)
def test_statistics_tell_endpoints_of_one_host_apart() -> None:
    urls = ["http://one/a", "http://one/b", "http://two/a"]
    done, _ = run(Service(), 30, capacity=3, endpoints=Endpoints(urls))
    assert done.statistics().endpoint_calls.keys() == {"http://one/a", "http://one/b", "two"}


@pytest.mark.contract("The log says once that an endpoint of a function rests, and that it is back.")
def test_the_log_says_once_that_an_endpoint_rests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox")
    service = Service()
    service.replies[URLS[0]] = refuses(503, until=5.0)
    job(service, 1200)
    told = [record.getMessage() for record in caplog.records if "http://one" in record.getMessage()]
    assert len(told) == 2 and "rests until" in told[0] and "takes calls again" in told[1]


# -- the value ---------------------------------------------------------------------------------------


def test_endpoints_are_a_value_that_travels() -> None:
    endpoints = Endpoints([*URLS], weights={URLS[0]: 2.0}, choose="in-order")
    assert pickle.loads(pickle.dumps(endpoints)) == endpoints == Endpoints(URLS, {URLS[0]: 2.0}, "in-order")
    assert hash(endpoints) == hash(pickle.loads(pickle.dumps(endpoints)))
    assert endpoints != Endpoints(URLS)


@pytest.mark.contract("Endpoints that are none, or twice there, or hold a secret are refused when given.")
@pytest.mark.parametrize(
    ("args", "more", "message"),
    [
        ([[]], {}, r"urls=\[\]: must be a list of addresses, with one or more"),
        ([[7]], {}, "urls: each address must be a str, not int"),
        ([["http://a", "http://a"]], {}, "urls: 'http://a' is there twice; give weights="),
        ([["http://me:secret@a"]], {}, "must not hold a user, a password or a query"),
        ([["http://a?key=secret"]], {}, "must not hold a user, a password or a query"),
        ([["http://a b"]], {}, "must be an address such as"),
        ([["http://a"]], {"weights": {"http://b": 1.0}}, "'http://b' is not one of the addresses"),
        ([["http://a"]], {"weights": {"http://a": 0.0}}, "weights.*must be"),
        ([["http://a"]], {"choose": "best"}, "choose='best'"),
        ([["http://a"]], {"resolve": 1}, "resolve=1"),
    ],
)
def test_bad_endpoints_are_refused(args: Any, more: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        Endpoints(*args, **more)
    assert "secret" not in str(raised.value)


def test_options_refuse_what_are_not_endpoints() -> None:
    given: Any = ["http://a"]
    with pytest.raises(TypeError, match="endpoints=.*must be a pillarbox.Endpoints or None"):
        Options(endpoints=given)


# -- at random ---------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 4),
    capacity=st.integers(1, 16),
    batch=st.sampled_from([None, Batch(3)]),
    choose=st.sampled_from(["least-loaded", "in-order"]),
    retry_after=st.sampled_from([None, 0.0, 0.5, 3.0]),
    timeout=st.sampled_from([None, Timeout(attempt=0.5), Timeout(600.0)]),
)
def test_no_row_is_lost_while_endpoints_come_and_go(
    seed: int, count: int, capacity: int, batch: Any, choose: Any, retry_after: float | None, timeout: Any
) -> None:
    """Each endpoint is ill now and then; all may be at a time, but not for ever."""
    draw = random.Random(seed)
    urls = [f"http://host-{number}" for number in range(count)]
    ill = {url: sorted(draw.uniform(0.0, 30.0) for _ in range(2 * draw.randrange(4))) for url in urls}
    kinds = {url: draw.choice(["503", "dead"]) for url in urls}
    out: Counter[str] = Counter()
    chosen: list[Any] = []

    async def function(rows: Any) -> Any:
        endpoint = current_call().endpoint
        chosen.append(endpoint)
        out[endpoint.url] += 1
        try:
            await asyncio.sleep(draw.uniform(0.0, 0.2))
            if sum(at <= now() for at in ill[endpoint.url]) % 2:
                if kinds[endpoint.url] == "dead":
                    raise ConnectionRefusedError(111, "refused")
                raise Refused(503, retry_after)
            return rows
        finally:
            out[endpoint.url] -= 1

    done, _ = run(
        function,
        200,
        retry=Retry(4, initial=0.05),
        capacity=capacity,
        batch=batch,
        timeout=timeout,
        endpoints=Endpoints(urls, choose=choose),
    )
    assert done.error is None and lost(done, 200) == 0
    # What the process knows is what there was: nothing is in flight.
    assert {each.in_flight for each in chosen} == {0}
    assert sum(done.statistics().endpoint_calls.values()) >= 1


# -- hedges -------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_a_hedge_goes_to_another_endpoint_than_the_slow_call_of_its_row(ordered: bool) -> None:
    service = Service()
    service.replies[URLS[0]] = hangs
    pairs: dict[Any, list[str]] = {}

    async def fn(row: Any) -> Any:
        pairs.setdefault(row, []).append(current_call().endpoint.url)
        return await service(row)

    job, _ = run(
        fn,
        200,
        endpoints=Endpoints(URLS),
        hedge=Hedge(1.0, budget=1.0, calls=2, idempotent=True),
        ordered=ordered,
        capacity=20,
    )
    assert sorted(job.results) == [*range(200)]
    assert URLS[0] in service.requests
    # Of each row that was hedged one call hung, and its hedge was elsewhere.
    hedged = [urls for urls in pairs.values() if len(urls) > 1]
    assert hedged and all(urls[0] == URLS[0] and urls[1] != URLS[0] for urls in hedged)
    assert not +service.in_flight


@settings(max_examples=examples(60))
@given(
    seconds=st.lists(st.sampled_from([0.05, 0.1, 1.0, 5.0]), min_size=3, max_size=3),
    failing=st.sampled_from([None, *URLS]),
    after=st.sampled_from([0.08, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_whatever_hedged_calls_do_no_endpoint_keeps_a_call(
    seconds: list[float], failing: str | None, after: float, seed: int
) -> None:
    random.seed(seed)
    service = Service()
    for url, each in zip(URLS, seconds, strict=True):
        service.replies[url] = takes(each)
    if failing is not None:
        service.replies[failing] = refuses(503)
    seen: list[Any] = []

    async def fn(row: Any) -> Any:
        seen.append(current_call().endpoint)
        return await service(row)

    job, _ = run(
        fn,
        30,
        endpoints=Endpoints(URLS),
        hedge=Hedge(after, budget=1.0, idempotent=True),
        capacity=5,
        retry=Retry(3, initial=0.1),
        timeout=Timeout(attempt=4.0),
        errors="column",
    )
    assert len(job.results) == 30
    assert {each.url: each.in_flight for each in seen} == dict.fromkeys({each.url for each in seen}, 0)
