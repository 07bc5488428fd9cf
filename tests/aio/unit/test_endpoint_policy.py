"""The policy of endpoints alone: a fake call, a fake clock, services made by hand."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from typing import Any

import pytest

from pillarbox import Endpoints, Options, Retry
from pillarbox.aio.endpoint_counts import EndpointCounts
from pillarbox.aio.endpoint_health import FIRST_REST_S
from pillarbox.aio.policies.endpoints import EndpointPolicy
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policies.retry import RetryPolicy
from pillarbox.aio.policies.service_limits import ServiceLimitsPolicy
from pillarbox.aio.policy import Again
from tests.aio.overloaded import Overloaded
from tests.aio.unit.test_policies_alone import Fake, call, calls

ONE, TWO, THREE = "http://one", "http://two", "http://three"
DEAD = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
RETRY = Retry(3, initial=1.0, jitter=False)


class Clock(Fake):
    """A fake operator whose loop is known by what it is: facts belong to its clock."""

    __hash__ = object.__hash__


def opened(fake: Clock, *urls: str, retry: Retry | None = RETRY, **more: Any) -> Any:
    """A policy of these endpoints, in front of the load policy, which it returns as `load`."""
    endpoints = Endpoints([*urls], **more)
    decides = None if retry is None else RetryPolicy(retry, fake.time)
    load = LoadPolicy(Options(retry=retry), decides, fake.time)
    limits = ServiceLimitsPolicy(Options(retry=retry), load)
    policy: Any = EndpointPolicy(endpoints, load, EndpointCounts(), limits)
    for each in (load, limits, policy):
        each.open(fake.services())
    policy.load, policy.counts = load, policy._counts
    return policy


def answer(policy: Any, row: Any, fake: Clock, seconds: float = 0.1) -> str:
    """Call a row that is answered; the address that it went to."""
    url: str = policy.choose([row]).url
    fake.now += seconds
    policy.finish(row, "result")
    policy.ended([row], None, seconds)
    return url


def refuse(policy: Any, row: Any, error: BaseException) -> tuple[str, Again | None]:
    """Call a row whose attempt fails: the address that it went to, and the decision."""
    url: str = policy.choose([row]).url
    policy.ended([row], error, 0.1)
    return url, policy.again([row], error)


def in_flight(policy: Any) -> dict[str, int]:
    return {each.url: each.in_flight for each in policy.pool.all}


def test_attempts_in_flight_go_to_the_endpoint_with_fewer() -> None:
    policy = opened(Clock(), ONE, TWO)
    rows = calls(10)
    for row in rows:
        policy.choose([row])
    assert in_flight(policy) == {ONE: 5, TWO: 5}


def test_a_weight_is_a_share_of_the_calls_in_flight_and_of_those_one_by_one() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO, weights={ONE: 3.0})
    for row in calls(12):
        policy.choose([row])
    assert in_flight(policy) == {ONE: 9, TWO: 3}
    policy.close()
    went = Counter(answer(policy, row, fake) for row in calls(40))
    assert went == {ONE: 30, TWO: 10}


@pytest.mark.contract(
    "A name with several addresses has the share of one URL, which its addresses divide.",
    convicts=["share_for_each_address_of_a_name"],
)
def test_the_addresses_of_a_name_divide_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        numbers = ["192.0.2.1", "192.0.2.2"] if host == "two" else ["192.0.2.3"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    policy = opened(Clock(), ONE, TWO, resolve=True, weights={TWO: 3.0})
    for row in calls(40):
        policy.choose([row])
    assert in_flight(policy) == {"http://192.0.2.3": 10, "http://192.0.2.1": 15, "http://192.0.2.2": 15}


def test_an_endpoint_that_is_ten_times_slower_has_a_tenth_of_the_calls_in_flight() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    for url, seconds in ((ONE, 1.0), (TWO, 0.1)):
        at = next(each for each in policy.pool.all if each.url == url)
        for _ in range(8):
            at.answered(fake.now, seconds, False)
    for row in calls(110):
        policy.choose([row])
    assert in_flight(policy) == {ONE: 10, TWO: 100}
    assert [each.latency for each in policy.pool.all] == pytest.approx([1.0, 0.1])


def test_a_latency_is_forgotten_after_ten_seconds_without_an_answer() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    for each, seconds in zip(policy.pool.all, (5.0, 0.1), strict=True):
        for _ in range(3):
            each.answered(fake.now, seconds, False)
    assert answer(policy, call(), fake) == answer(policy, call(), fake) == TWO
    fake.now += 10.0
    assert policy.pool.all[0].latency is None
    assert {answer(policy, row, fake) for row in calls(4)} == {ONE, TWO}


@pytest.mark.contract(
    "A latency that is forgotten is found out by one call, whatever comes meanwhile.",
    convicts=["forgotten_latency_found_by_all"],
)
def test_one_call_finds_out_a_latency_that_was_forgotten() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    for each, seconds in zip(policy.pool.all, (5.0, 0.1), strict=True):
        for _ in range(3):
            each.answered(fake.now, seconds, False)
    fake.now += 10.0
    for row in calls(10):
        policy.choose([row])
    assert in_flight(policy) == {ONE: 1, TWO: 9}


def test_the_weight_of_a_slower_endpoint_counts_too() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO, weights={ONE: 4.0, TWO: 4.0})
    for each, seconds in zip(policy.pool.all, (0.1, 0.4), strict=True):
        for _ in range(3):
            each.answered(fake.now, seconds, False)
    for row in calls(50):
        policy.choose([row])
    assert in_flight(policy) == {ONE: 40, TWO: 10}
    policy.close()


def test_a_call_that_hangs_counts_against_its_endpoint() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    at = policy.choose([call()])
    (other,) = [each for each in policy.pool.all if each is not at]
    for _ in range(3):
        other.answered(fake.now, 0.01, False)
    fake.now += 2.0
    rows = calls(20)
    for row in rows:
        policy.choose([row])
    # A quarter of the age is fifty times the latency of the other one.
    assert in_flight(policy) == {at.url: 1, other.url: 20}


def test_in_order_takes_the_first_that_takes_calls() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO, choose="in-order")
    assert [answer(policy, row, fake) for row in calls(3)] == [ONE] * 3
    row = call()
    assert refuse(policy, row, DEAD) == (ONE, Again(0.0, "refusal"))
    assert [answer(policy, row, fake, 0.01) for row in [row, *calls(3)]] == [TWO] * 4
    fake.now += FIRST_REST_S
    assert answer(policy, call(), fake) == ONE


@pytest.mark.contract(
    "Operators of one process that name endpoints in another order have each its own.",
    convicts=["first_order_for_all"],
)
def test_two_policies_in_another_order_take_each_its_first() -> None:
    fake = Clock()
    one = opened(fake, ONE, TWO, choose="in-order")
    two = opened(fake, TWO, ONE, choose="in-order")
    assert (answer(one, call(), fake), answer(two, call(), fake)) == (ONE, TWO)


@pytest.mark.contract(
    "In order, calls beyond the pace that the first endpoint takes go to the second.",
    convicts=["pace_ignored_in_order"],
)
def test_in_order_calls_beyond_the_pace_of_the_first_go_to_the_second() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO, choose="in-order")
    assert refuse(policy, call(), Overloaded(1.0))[0] == ONE
    fake.now += 1.0
    assert answer(policy, call(), fake, 0.0) == ONE
    # Ten a second begin at first, and its probe was the first of them.
    assert [answer(policy, row, fake, 0.0) for row in calls(5)] == [TWO] * 5
    fake.now += 0.2
    assert answer(policy, call(), fake, 0.0) == ONE


@pytest.mark.contract(
    "A row that failed at an endpoint goes to another one that may be probed, not to the same.",
    convicts=["failed_address_before_probe"],
)
def test_a_row_that_failed_at_an_endpoint_probes_another_one() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    ill, _ = refuse(policy, call(), DEAD)
    row = call()
    (well,) = {ONE, TWO} - {ill}
    error = Overloaded(None)
    error.status = 500
    assert refuse(policy, row, error) == (well, None)
    fake.now += FIRST_REST_S
    assert policy.choose([row]).url == ill


@pytest.mark.parametrize("error", [Overloaded(5.0), DEAD])
@pytest.mark.parametrize("retry", [None, RETRY])
def test_a_refused_attempt_is_made_again_at_another_endpoint_uncharged_and_hidden(
    error: BaseException, retry: Retry | None
) -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO, THREE, retry=retry)
    row = call()
    first, decision = refuse(policy, row, error)
    assert decision == Again(0.0, "refusal")
    # The operator's breaker has not seen it.
    assert policy.load.breaker is None and policy.may_begin([row]) == 0.0
    assert answer(policy, row, fake) != first
    states = {each.url: each.state for each in policy.pool.all}
    assert states == {**dict.fromkeys([ONE, TWO, THREE], "closed"), first: "open"}


def test_a_row_goes_to_each_endpoint_once_and_then_waits_for_the_service() -> None:
    fake = Clock(finished=1)
    policy = opened(fake, ONE, TWO, THREE)
    row, went = call(), set()
    for left in (2, 1, 0):
        url, decision = refuse(policy, row, Overloaded(4.0))
        went.add(url)
        if left:
            assert decision == Again(0.0, "refusal")
    assert went == {ONE, TWO, THREE}
    # Nothing is left: the operator holds back all calls, this one too, until the first endpoint has rested.
    assert decision == Again(0.0, "refusal")
    assert policy.load.breaker is not None and policy.load.breaker.is_cooling
    assert policy.may_begin([call()]) == pytest.approx(4.0)
    fake.now += 4.1
    assert policy.may_begin([call()]) == 0.0
    assert answer(policy, row, fake) in went


@pytest.mark.contract(
    "Where all endpoints rest, calls are held back until the first of them has rested.",
    convicts=["waits_for_the_last_address"],
)
def test_all_calls_wait_for_the_endpoint_that_comes_back_first() -> None:
    fake = Clock(finished=1)
    policy = opened(fake, ONE, TWO, choose="in-order")
    row = call()
    assert refuse(policy, row, Overloaded(40.0))[0] == ONE
    assert refuse(policy, row, Overloaded(4.0))[0] == TWO
    assert policy.pool.wait(fake.now) == pytest.approx(4.0)
    assert policy.may_begin([call()]) == pytest.approx(4.0)
    fake.now += 4.1
    assert answer(policy, row, fake) == TWO


def test_another_policy_of_the_process_knows_that_an_endpoint_is_dead() -> None:
    fake = Clock()
    one, two = opened(fake, ONE, TWO), opened(fake, TWO, ONE)
    dead, _ = refuse(one, call(), DEAD)
    assert one.pool is two.pool
    assert {answer(two, row, fake, 0.01) for row in calls(5)} == {ONE, TWO} - {dead}
    # One probe for both of them.
    fake.now += FIRST_REST_S
    probe = call()
    assert two.choose([probe]).url == dead
    assert {one.choose([row]).url for row in calls(3)} == {ONE, TWO} - {dead}


@pytest.mark.contract(
    "A task that ends with a probe out leaves the endpoint to be probed by others.",
    convicts=["closed_probe_stays"],
)
def test_a_policy_that_is_closed_frees_its_endpoints() -> None:
    fake = Clock()
    one, two = opened(fake, ONE, TWO), opened(fake, ONE, TWO)
    dead, _ = refuse(one, call(), DEAD)
    fake.now += FIRST_REST_S
    assert one.choose([call()]).url == dead
    one.close()
    assert in_flight(two) == {ONE: 0, TWO: 0}
    assert two.choose([call()]).url == dead


@pytest.mark.contract(
    "A row that an endpoint has refused does not probe another one, while a healthy one takes it.",
    convicts=["failed_request_probes"],
)
def test_a_refused_row_does_not_probe() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO, THREE)
    ill = {refuse(policy, row, Overloaded(0.2))[0] for row in [call()]}
    row = call()
    url, _ = refuse(policy, row, DEAD)
    ill.add(url)
    fake.now += 0.21
    # The first one has rested, and the row has failed at the second: it goes to the third.
    assert len(ill) == 2
    assert {answer(policy, row, fake, 0.0)} == {ONE, TWO, THREE} - ill


def test_a_fault_that_may_be_of_the_row_is_left_to_retry_which_goes_elsewhere() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    error = Overloaded(None)
    error.status = 500
    for _ in range(4):
        row = call()
        url, decision = refuse(policy, row, error)
        assert decision is None
        assert answer(policy, row, fake) != url


def test_a_probe_that_times_out_is_left_to_retry() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    dead, _ = refuse(policy, call(), DEAD)
    fake.now += FIRST_REST_S
    row = call()
    assert refuse(policy, row, TimeoutError()) == (dead, None)
    assert answer(policy, row, fake, 0.0) != dead


def test_one_endpoint_is_a_matter_of_the_operator() -> None:
    fake = Clock()
    policy = opened(fake, ONE)
    assert policy.skips == {"may_begin", "again"}
    for row in calls(3):
        assert policy.choose([row]).url == ONE
        policy.ended([row], Overloaded(7.0), 0.1)
    assert policy.load.breaker is not None and policy.load.breaker.is_cooling
    assert policy.pool.all[0].state == "closed"


def test_the_rows_of_a_batch_go_to_one_endpoint_and_its_parts_elsewhere() -> None:
    policy = opened(Clock(), ONE, TWO)
    rows = calls(4)
    first = policy.choose(rows).url
    policy.ended(rows, DEAD, 0.1)
    assert policy.again(rows, DEAD) == Again(0.0, "refusal")
    parts = [policy.choose(rows[:2]).url, policy.choose(rows[2:]).url]
    assert parts == [next(iter({ONE, TWO} - {first}))] * 2
    assert sum(in_flight(policy).values()) == 2
    for part in (rows[:2], rows[2:]):
        for row in part:
            policy.finish(row, "result")
        policy.ended(part, None, 0.1)
    assert sum(in_flight(policy).values()) == 0


def test_an_attempt_that_is_taken_back_or_cancelled_frees_its_endpoint() -> None:
    policy = opened(Clock(), ONE, TWO)
    row = call()
    policy.choose([row])
    policy.choose([row])
    assert sum(in_flight(policy).values()) == 1
    row.error = TimeoutError()
    policy.finish(row, None)
    assert sum(in_flight(policy).values()) == 0


@pytest.mark.contract(
    "A batch is in flight at its endpoint until the last of its rows has left it.",
    convicts=["batch_ends_with_its_first_row"],
)
def test_a_batch_is_in_flight_until_its_last_row_is_given_up() -> None:
    policy = opened(Clock(), ONE, TWO)
    rows = calls(3)
    policy.choose(rows)
    for left in (1, 1, 0):
        row = rows.pop()
        row.error = TimeoutError()
        policy.finish(row, None)
        assert sum(in_flight(policy).values()) == left


def test_counts_are_those_of_the_operator_by_endpoint() -> None:
    fake = Clock()
    policy, other = opened(fake, ONE, TWO), opened(fake, ONE, TWO)
    row = call()
    dead, _ = refuse(policy, row, DEAD)
    answer(policy, row, fake, 0.1)
    answer(other, call(), fake, 0.0)
    (name, well) = [url.removeprefix("http://") for url in (dead, *({ONE, TWO} - {dead}))]
    tables = policy.counts.tables()
    assert tables["endpoint_calls"] == {name: 1, well: 1}
    assert tables["endpoint_errors"] == {name: 1}
    assert tables["endpoint_seconds"][well] == pytest.approx(0.1)
    # The state is that of the process.
    assert tables["endpoint_resting"] == other.counts.tables()["endpoint_resting"] == {name: 1, well: 0}


def test_an_endpoint_that_refuses_beyond_its_quota_gets_a_pace() -> None:
    fake = Clock()
    policy = opened(fake, ONE, TWO)
    limited = policy.pool.all[0]
    # Ten answers in a second, then refusals.
    for _ in range(20):
        answer(policy, call(), fake, 0.05)
    assert limited.pace is None
    while limited.state == "closed":
        row = call()
        if policy.choose([row]) is limited:
            policy.ended([row], Overloaded(None), 0.0)
            assert policy.again([row], Overloaded(None)) is not None
            answer(policy, row, fake, 0.0)
        else:
            policy.finish(row, "result")
            policy.ended([row], None, 0.0)
    fake.now += FIRST_REST_S
    while limited.state != "closed":
        answer(policy, call(), fake, 0.0)
    assert limited.pace is not None and limited.pace >= 10.0
    rows = calls(100)
    for row in rows:
        policy.choose([row])
    # Calls beyond the pace go to the other one, though that has more of them.
    assert in_flight(policy)[ONE] < 10 < 80 < in_flight(policy)[TWO]
