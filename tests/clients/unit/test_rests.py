"""The health of the addresses of a service, and the pauses of an operator over them, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Adaptive, Batch, Endpoints, Retry, Timeout, current_call
from pillarbox.aio.endpoint_health import FIRST_REST_S, MAX_REST_S, WELL
from pillarbox.aio.endpoint_pool import EndpointPool, pool_of
from pillarbox.aio.errors import ServiceResting
from pillarbox.clients.addresses import Addresses, addresses_of
from tests.aio.replies import Refused, Reply, hangs, is_dead, refuses
from tests.aio.virtual import Job, infos, lost, now, play, run
from tests.search import examples

URLS = ("http://one/v1", "http://two/v1", "http://three/v1")


class Service:
    """A service with several addresses; `replies` says how each answers, else it does so after `seconds`."""

    def __init__(self, urls: tuple[str, ...] = URLS, seconds: float = 0.1) -> None:
        self.addresses: Addresses = addresses_of(urls, urls)
        self.pool: EndpointPool
        self.replies: dict[str, Reply] = {}
        self.seconds = seconds
        self.requests: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {url: [] for url in urls}
        self.in_flight: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, row: Any) -> Any:
        self.pool = self.addresses.pool()
        await self.addresses.call(self._asked)
        return row

    async def _asked(self, url: str) -> None:
        self.requests[url] += 1
        self.times[url].append(round(now(), 6))
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


# -- one of several ----------------------------------------------------------------------------------------


@pytest.mark.contract("One address of three that fails costs the job its share, and no row.")
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(refuses(503), id="503"),
        pytest.param(refuses(429, 2.0), id="429-with-time"),
        pytest.param(is_dead(), id="dead"),
        pytest.param(refuses(401), id="wrong-key"),
        pytest.param(refuses(404, None, b'{"error": {"code": "model_not_found"}}'), id="no-model"),
        pytest.param(refuses(402), id="out-of-quota"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"retry": 3}, {"capacity": Adaptive(start=12, most=12)}])
def test_one_address_that_fails_costs_its_share(reply: Reply, options: dict[str, Any]) -> None:
    service = Service()
    service.replies[URLS[0]] = reply
    job, seconds = run(service, 1200, **{"capacity": 12, **options})
    assert job.error is None and lost(job, 1200) == 0
    # 12 in flight at two addresses, which take as many as they get, at 0.1 s a call.
    assert seconds < 1.05 * 1200 / 120
    # Those that were in flight at once, and then one for each rest.
    assert service.requests[URLS[0]] <= 12 + 2 * seconds / FIRST_REST_S


def test_one_address_that_answers_500_is_left_out_with_few_attempts() -> None:
    service = Service()
    service.replies[URLS[0]] = refuses(500)
    job, _ = run(service, 600, capacity=12, retry=Retry(2, initial=0.0))
    assert lost(job, 600) == 0
    assert service.requests[URLS[0]] < 30
    assert job.statistics().calls < 600 + 20


@pytest.mark.contract(
    "An address that rests gets one request after each rest, and rests twice as long each time.",
    convicts=["addresses_probed_by_all"],
)
def test_an_address_that_rests_gets_one_request_after_each_rest_which_doubles() -> None:
    service = Service(URLS[:2])
    service.replies[URLS[0]] = is_dead()
    run(service, 2000, capacity=4)
    at = service.times[URLS[0]]
    # One at a time, but for those that began before the first had failed.
    probes = [each for each in at if each > 0.1]
    assert service.most[URLS[0]] <= 2
    pauses = [later - before for before, later in pairwise(probes)]
    assert len(pauses) >= 5
    assert all(pause <= MAX_REST_S + 0.2 for pause in pauses)
    assert all(2.5 > later / before > 1.5 for before, later in pairwise(pauses) if later < MAX_REST_S)


def test_rests_have_a_bound() -> None:
    service = Service(URLS[:2], seconds=10.0)
    service.replies[URLS[0]] = is_dead()
    run(service, 60, capacity=1)
    probes = service.times[URLS[0]][-3:]
    assert probes[2] - probes[1] <= MAX_REST_S + 10.0


@pytest.mark.contract("A time to come back that one address names holds for it alone.")
def test_the_time_that_an_address_names_holds_for_it_alone() -> None:
    service = Service()
    service.replies[URLS[0]] = refuses(503, 20.0)
    job, seconds = run(service, 600, capacity=12)
    assert lost(job, 600) == 0 and seconds < 20.0
    assert set(service.times[URLS[0]]) == {0.0}


@pytest.mark.contract("An address that is well again is used again after one request that probes.")
@pytest.mark.parametrize("reply", [is_dead(until=3.0), refuses(503, until=3.0), refuses(401, until=3.0)])
def test_an_address_that_is_well_again_is_used_again(reply: Reply) -> None:
    service = Service()
    service.replies[URLS[0]] = reply
    job, _ = run(service, 3000, capacity=12)
    assert lost(job, 3000) == 0
    after = [at for at in service.times[URLS[0]] if at > 3.0]
    # It answers at once, and so is the one with the fewest in flight: it gets nearly all.
    assert len(after) > 1000
    # The rest which it was in has been no longer than it was ill.
    assert after[0] < 6.5


def test_a_slow_address_gets_as_few_requests_as_it_answers() -> None:
    service = Service(seconds=0.1)

    async def slowly() -> None:
        await asyncio.sleep(1.0)

    service.replies[URLS[0]] = slowly
    job, _ = run(service, 1200, capacity=12)
    assert lost(job, 1200) == 0
    # Its share while nothing was known; from then on a tenth of that of the others.
    assert service.most[URLS[0]] <= 8
    assert 0 < service.requests[URLS[0]] < 1200 / 10


@pytest.mark.contract("A call whose time ran out at an address that answers nothing is made at another one.")
def test_an_address_that_hangs_costs_no_row() -> None:
    service = Service()
    service.replies[URLS[0]] = hangs
    job, _ = run(service, 600, capacity=12, retry=Retry(2, initial=0.0), timeout=Timeout(attempt=2.0))
    assert lost(job, 600) == 0
    assert service.requests[URLS[0]] <= 4 + 5


def test_an_address_that_hangs_for_a_while_is_used_again() -> None:
    service = Service()

    async def hangs_at_first() -> None:
        await asyncio.sleep(1000.0 if now() < 8.0 else 0.1)

    service.replies[URLS[0]] = hangs_at_first
    job, _ = run(service, 3000, capacity=12, retry=Retry(2, initial=0.0), timeout=Timeout(attempt=1.0))
    assert lost(job, 3000) == 0
    assert len([at for at in service.times[URLS[0]] if at > 20.0]) > 100


@pytest.mark.contract(
    "An address whose probe was cancelled is probed again.", convicts=["cancelled_probe_stays"]
)
def test_an_address_whose_probe_was_cancelled_is_probed_again() -> None:
    async def script() -> None:
        service = Service(URLS[:2])
        service.replies[URLS[0]] = refuses(503, 5.0)
        await asyncio.gather(service(1), service(2))
        await asyncio.sleep(6.0)
        service.replies[URLS[0]] = hangs
        probes = [asyncio.ensure_future(service(row)) for row in range(4)]
        await asyncio.sleep(1.0)
        assert service.in_flight == {URLS[0]: 1, URLS[1]: 0}
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        del service.replies[URLS[0]]
        for row in range(4):
            await service(row)
        assert service.requests[URLS[0]] > 1 + 1

    play(script)


@pytest.mark.contract(
    "What was begun before an address rested neither ends the rest nor begins another one.",
    convicts=["answer_of_before_ends_rest", "refusal_of_before_begins_rest"],
)
def test_requests_of_before_a_rest_say_nothing_of_it() -> None:
    service = Service(URLS[:2], seconds=1.0)
    # The first request is answered late, the second one says how long it wants to rest, the third fails late.
    kinds = iter(["answered late", "refused", "failed late"])

    async def reply() -> None:
        kind = next(kinds, "")
        await asyncio.sleep({"answered late": 5.0, "failed late": 12.0}.get(kind, 0.01))
        if kind == "refused":
            raise Refused(503, 10.0)
        if kind == "failed late":
            raise ConnectionRefusedError(111, "refused")

    service.replies[URLS[0]] = reply
    job, seconds = run(service, 600, capacity=6, ordered=False)
    assert lost(job, 600) == 0 and seconds > 12.2
    at = service.times[URLS[0]]
    assert [each for each in at if 0.1 < each < 10.0] == []
    assert [each for each in at if 12.0 < each < 12.2] != []


def test_a_row_that_is_refused_everywhere_makes_no_address_rest() -> None:
    service = Service()
    asked: Counter[int] = Counter()

    async def function(row: int) -> int:
        service.pool = service.addresses.pool()

        async def ask(url: str) -> int:
            asked[row] += 1
            await asyncio.sleep(0.1)
            if row % 10 == 0:
                raise Refused(403)
            return row

        return await service.addresses.call(ask)

    async def script() -> Job:
        job = Job(function, capacity=3, errors="null", retry=3)
        job.push(*range(100))
        await job.end()
        return job

    job = play(script)
    assert lost(job, 100) == 10
    # Each address may have another key, so each is asked once.
    assert sum(asked.values()) == 90 + 10 * 3
    assert not any(each.health.is_open for each in service.pool.all)


@pytest.mark.contract(convicts=["failed_row_stays_in_flight"])
def test_a_row_that_fails_by_itself_leaves_no_call_in_flight() -> None:
    async def script() -> None:
        addresses = addresses_of(URLS, URLS)

        async def ask(url: str) -> None:
            raise ValueError("an answer that is none")

        for _ in range(5):
            with pytest.raises(ValueError, match="that is none"):
                await addresses.call(ask)
        assert [each.in_flight for each in addresses.pool().all] == [0, 0, 0]

    play(script)


@pytest.mark.contract("A key that all addresses refuse costs each row one request, once that is known.")
def test_a_key_that_all_addresses_refuse_costs_a_request_a_row() -> None:
    service = Service()
    service.replies = dict.fromkeys(URLS, refuses(401))
    job, _ = run(service, 90, capacity=4, errors="column", retry=3)
    assert lost(job, 90) == 90
    assert sum(service.requests.values()) <= 90 + 2 * (4 + 1)


# -- all of them -------------------------------------------------------------------------------------------


@pytest.mark.contract(
    "Where all addresses rest the operator pauses until the first one comes back.",
    convicts=["rest_counts_as_attempt", "paused_for_one_address"],
)
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize(
    "replies",
    [
        pytest.param([refuses(503, 8.0, until=8.0), refuses(503, 40.0), refuses(503, 40.0)], id="503"),
        pytest.param([refuses(503, 8.0, until=8.0), is_dead(), is_dead()], id="dead"),
    ],
)
def test_where_all_addresses_rest_the_operator_pauses(replies: list[Reply], attempts: int) -> None:
    service = Service()
    service.replies = dict(zip(URLS, replies, strict=True))
    job, _ = run(service, 200, capacity=12, retry=attempts)
    assert lost(job, 200) == 0
    began = [at for times in service.times.values() for at in times]
    assert min(at for at in service.times[URLS[0]] if at > 1.0) >= 8.0
    # The other two are dead, or rest: one request for each of their rests, which double.
    assert len([at for at in began if 1.0 < at < 8.0]) <= 2 * 6


def finds_well(pool: EndpointPool, place: int = 0) -> None:
    """Another task of the job has found an address well."""
    pool.told(place, "channel", 1, WELL)


@pytest.mark.contract(
    "An operator that waits since all addresses rest goes on when another task has found one well.",
    convicts=["return_waits_for_the_rest", "refused_row_waits_for_the_rest"],
)
@pytest.mark.parametrize("batch", [None, Batch(8)])
@pytest.mark.parametrize("errors", ["fail", "column"])
def test_an_operator_that_waits_goes_on_when_another_task_has_found_an_address_well(
    batch: Batch | None, errors: Any
) -> None:
    async def script() -> Service:
        service = Service(URLS[:2])
        service.replies = {URLS[0]: refuses(503, 40.0, until=5.0), URLS[1]: refuses(503, 60.0)}
        job = Job(service, capacity=8, retry=3, batch=batch, errors=errors)
        job.push(*range(100))
        await asyncio.sleep(6.0)
        assert max(at for times in service.times.values() for at in times) < 1.0
        finds_well(service.pool)
        await job.end()
        assert lost(job, 100) == 0
        # The last one has ended before the rest that the operator has found itself.
        assert now() < 40.0
        return service

    service = play(script)
    # At once, and one by one until one is answered.
    assert min(at for at in service.times[URLS[0]] if at > 1.0) == 6.0
    assert [at for at in service.times[URLS[1]] if at > 1.0] == []


@pytest.mark.contract("An operator whose functions have endpoints goes on in the same way.")
def test_functions_with_endpoints_go_on_when_another_task_has_found_one_well() -> None:
    began: list[tuple[str, float]] = []

    async def function(row: int) -> int:
        endpoint = current_call().endpoint
        began.append((endpoint.url, now()))
        await asyncio.sleep(0.01)
        if now() < 5.0:
            raise Refused(503, 40.0)
        return row

    async def script() -> None:
        service = Endpoints([*URLS[:2]])
        job = Job(function, capacity=4, retry=3, endpoints=service)
        job.push(*range(20))
        await asyncio.sleep(6.0)
        finds_well(pool_of(service.spread, asyncio.get_running_loop()))
        await job.end()
        assert lost(job, 20) == 0 and now() < 40.0

    play(script)
    assert min(at for _, at in began if at > 1.0) == 6.0
    assert {url for url, at in began if at > 1.0} == {URLS[0]}


def test_an_operator_that_has_ended_is_woken_by_none() -> None:
    async def script() -> None:
        service = Service(URLS[:2])
        job = Job(service, capacity=4, retry=3)
        job.push(*range(20))
        await job.end()
        assert service.pool._awaiting == ()

    play(script)


def test_a_pause_says_which_address_said_what_and_until_when(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox")
    service = Service(URLS[:2])
    service.replies = {URLS[0]: refuses(503, 30.0, until=29.0), URLS[1]: refuses(429, 60.0, until=29.0)}
    run(service, 20, capacity=4, retry=3)
    waited = [record.getMessage() for record in caplog.records if "has waited for" in record.getMessage()]
    assert "none of 2 addresses takes calls" in waited[0]
    assert "http://one/v1 rests until" in waited[0] and "Refused: HTTP 503" in waited[0]
    assert "http://two/v1 rests until" in waited[0] and "Refused: HTTP 429" in waited[0]


@pytest.mark.contract("The log says once that an address rests, and that it takes calls again.")
def test_the_log_says_once_that_an_address_rests(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pillarbox")
    service = Service()
    service.replies[URLS[0]] = refuses(503, until=5.0)
    run(service, 1200, capacity=12)
    told = [record.getMessage() for record in caplog.records if "http://one" in record.getMessage()]
    assert len(told) == 2
    assert "rests until" in told[0] and "HTTP 503" in told[0] and "3 in all" in told[0]
    assert "takes calls again" in told[1]


def test_a_service_that_is_never_reached_is_given_up_as_one_address_is() -> None:
    service = Service()
    service.replies = dict.fromkeys(URLS, is_dead())
    job, seconds = run(service, 20, capacity=4, retry=2, errors="column")
    assert lost(job, 20) == 20
    # 30 s, for a service that this task has never reached, and the rest in which they end.
    assert 29.0 < seconds <= 30.0 + MAX_REST_S
    assert any("the service was never reached, for 30 s" in info.message for info in infos(job).values())


@pytest.mark.contract("A call without retry is sent to an address that rests, where no other one takes it.")
def test_without_retry_a_call_goes_to_an_address_that_rests() -> None:
    async def script() -> None:
        addresses = addresses_of(URLS[:2], URLS[:2])
        sent = 0

        async def ask(url: str) -> str:
            nonlocal sent
            sent += 1
            if sent <= 2:
                raise Refused(503, 50.0)
            return url

        with pytest.raises(Refused):
            await addresses.call(ask)
        # The request is sent, and the address that answers it is used from then on.
        assert [await addresses.call(ask) for _ in range(3)] == [URLS[0]] * 3

    play(script)


def test_an_error_of_the_service_is_a_value_that_pickles() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(ServiceResting("none takes calls", 2.5)))
    assert (str(error), error.seconds, error.headers) == ("none takes calls", 2.5, {"Retry-After": "2.500"})


# -- at random ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 4),
    capacity=st.integers(1, 16),
    adaptive=st.booleans(),
    retry_after=st.sampled_from([None, 0.0, 0.5, 3.0]),
)
def test_no_row_is_lost_while_addresses_come_and_go(
    seed: int, count: int, capacity: int, adaptive: bool, retry_after: float | None
) -> None:
    """Each address is ill now and then; all may be at a time, but not for ever."""
    draw = random.Random(seed)
    urls = tuple(f"http://host-{number}/v1" for number in range(count))
    service = Service(urls)
    ill = {url: sorted(draw.uniform(0.0, 30.0) for _ in range(2 * draw.randrange(4))) for url in urls}
    kinds = {url: draw.choice(["503", "dead", "401"]) for url in urls}

    def reply_of(url: str) -> Reply:
        async def reply() -> None:
            await asyncio.sleep(draw.uniform(0.0, 0.2))
            if sum(at <= now() for at in ill[url]) % 2:
                if kinds[url] == "dead":
                    raise ConnectionRefusedError(111, "refused")
                raise Refused(int(kinds[url]), retry_after if kinds[url] == "503" else None)

        return reply

    service.replies = {url: reply_of(url) for url in urls[1:]}
    if kinds[urls[0]] != "401":
        service.replies[urls[0]] = reply_of(urls[0])
    options: dict[str, Any] = {"capacity": Adaptive(start=4, most=capacity + 4) if adaptive else capacity}
    job, _ = run(service, 300, retry=Retry(4, initial=0.05), **options)
    assert job.error is None
    assert lost(job, 300) == 0
    assert all(each.in_flight == 0 for each in service.pool.all)
