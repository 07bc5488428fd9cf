"""The capacity that is found: against a model of a service whose knee is known, on a clock of its own."""

from __future__ import annotations

import asyncio
import pickle
import re
import statistics
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Adaptive, Batch, Buffer, Collector, Retry, Timeout
from pillarbox.testing import FakeClock
from tests.aio.virtual import HOUR, Job, play
from tests.limits.service_model import Caller, Service
from tests.search import examples


class TooManyRequests(Exception):
    status = 429


def slow(*sizes: int) -> list[Any]:
    """Sizes of services that `make test-all` tries."""
    return [pytest.param(size, marks=pytest.mark.slow) for size in sizes]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"start": 0}, ValueError, "start=0: must be at least 1"),
        ({"most": 2.5}, TypeError, "most=2.5: must be an int"),
        ({"start": 5, "least": 6}, ValueError, "start=5: must be between least=6 and most=1024"),
    ],
)
def test_a_bad_option_is_refused_by_name(given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        Adaptive(**given)


def test_it_pickles_and_opens_with_its_start() -> None:
    adaptive = pickle.loads(pickle.dumps(Adaptive(start=3, most=9)))
    assert adaptive == Adaptive(start=3, most=9)
    assert adaptive.open().limit == 3


@pytest.mark.contract
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("serves", [8, 32, *slow(64, 256)])
def test_the_limit_settles_around_the_knee_and_the_service_is_kept_busy(serves: int, sigma: float) -> None:
    caller = Caller(Adaptive(), Service(serves, sigma=sigma))
    caller.run(15.0)
    served = caller.served
    caller.run(10.0)
    limits = caller.last(10.0)
    assert 0.8 * serves <= statistics.median(limits) <= 4.5 * serves
    assert max(limits) <= 5.5 * serves
    assert caller.served - served >= 0.88 * 10.0 * serves / 0.02


@pytest.mark.contract(
    "The capacity that is found follows a service that becomes twice as large, and one that shrinks again."
)
def test_it_recovers_when_the_service_becomes_twice_as_large_and_when_it_shrinks_again() -> None:
    service = Service(16, sigma=0.5)
    caller = Caller(Adaptive(), service)
    caller.run(10.0)
    service.serves = 32
    caller.run(15.0)
    served = caller.served
    caller.run(5.0)
    assert caller.served - served >= 0.9 * 5.0 * 32 / 0.02
    service.serves = 16
    caller.run(40.0)
    assert max(caller.last(15.0)) <= 4 * 16
    assert statistics.median(caller.last(15.0)) >= 0.8 * 16


@pytest.mark.contract("A service that is slower from now on does not make the capacity collapse.")
def test_a_service_that_is_slower_from_now_on_does_not_make_it_collapse() -> None:
    service = Service(64, sigma=0.5)
    caller = Caller(Adaptive(), service)
    caller.run(10.0)
    service.mean = 0.2
    caller.run(60.0)
    served = caller.served
    caller.run(30.0)
    assert caller.served - served >= 0.85 * 30.0 * 64 / 0.2
    assert statistics.median(caller.last(30.0)) >= 0.8 * 64


def test_noise_alone_does_not_make_it_fall() -> None:
    # As large as anybody may ask for: there is no knee, so whatever brings the limit down is noise.
    caller = Caller(Adaptive(start=256, most=256), Service(10_000, sigma=0.5))
    # Before the first probe, which comes after 250 round trips.
    caller.run(3.0)
    assert min(caller.last(2.5)) == 256


@pytest.mark.contract(
    "A full server brings the capacity down at most once in a window.", convicts=["refusals_of_before_cut"]
)
def test_refusals_bring_it_down_at_most_once_for_calls_that_began_behind_the_last_cut() -> None:
    clock = FakeClock(50.0)
    controller = Adaptive(start=100).open(clock)
    clock.advance(0.1)
    # Of a hundred calls in flight, more than a tenth and than chance: each began after the controller.
    for _ in range(40):
        controller.failed(True, 0.05)
    assert controller.limit == 95
    clock.advance(0.02)
    # These were in flight at the cut.
    for _ in range(60):
        controller.failed(True, 0.1)
    assert controller.limit == 95
    clock.advance(0.1)
    for _ in range(10):
        controller.failed(True, 0.01)
    assert controller.limit == 95
    for _ in range(30):
        controller.failed(True, 0.01)
    assert controller.limit == 85


@pytest.mark.contract(convicts=["cuts_stay_deep"])
def test_a_cut_after_a_good_window_is_a_small_one_again() -> None:
    clock = FakeClock(50.0)
    controller = Adaptive(start=100).open(clock)
    limits = []
    for _ in range(3):
        clock.advance(0.1)
        before = controller.limit
        while controller.limit == before:
            controller.failed(True, 0.05)
        limits.append(controller.limit)
        # Answers, though too few at a time for the limit to grow.
        for _ in range(200):
            clock.advance(0.01)
            controller.succeeded(0.005)
    assert limits == [95, 90, 85]


@pytest.mark.contract(
    "Fewer than five refusals lower no capacity, however small it is.", convicts=["two_refusals_cut"]
)
@pytest.mark.parametrize("start", [2, 4, 8])
def test_fewer_than_five_refusals_lower_no_capacity(start: int) -> None:
    clock = FakeClock(50.0)
    controller = Adaptive(start=start).open(clock)
    clock.advance(0.1)
    for _ in range(4):
        controller.failed(True, 0.05)
    assert controller.limit == start
    controller.failed(True, 0.05)
    assert controller.limit == start - 1


@pytest.mark.contract("Few refusals leave the capacity as it is.")
@pytest.mark.parametrize("share", [0.001, 0.005, 0.01, 0.03])
def test_sporadic_refusals_leave_it_as_it_is(share: float) -> None:
    limits = []
    for refuses in (0.0, share):
        caller = Caller(Adaptive(), Service(50, mean=0.05, sigma=0.3, refuses=refuses))
        caller.run(20.0)
        limits.append(statistics.median(caller.last(15.0)))
    assert limits[1] >= 0.85 * limits[0]


@pytest.mark.contract("The capacity that is found is near the knee, however long calls take.")
@pytest.mark.parametrize("serves", [4, 16, 50])
@pytest.mark.parametrize("seconds", [0.1, 20.0])
def test_it_is_near_the_knee_however_long_calls_take(serves: int, seconds: float) -> None:
    caller = Caller(Adaptive(), Service(serves, mean=seconds, sigma=0.3))
    caller.run(100 * seconds)
    served = caller.served
    caller.run(300 * seconds)
    assert caller.served - served >= 0.95 * 300 * serves
    limits = caller.last(300 * seconds)
    assert statistics.median(limits) <= max(1.5 * serves, serves + 1)


@pytest.mark.contract(
    "A service with a quarter of the calls that the capacity begins with is soon rid of the others.",
    convicts=["first_latency_is_believed"],
)
@pytest.mark.parametrize("seed", range(8))
def test_a_service_that_is_smaller_than_the_start_has_too_many_calls_for_ten_round_trips_at_most(
    seed: int,
) -> None:
    caller = Caller(Adaptive(), Service(4, mean=1.0, sigma=0.5, random=Random(seed)))
    caller.run(60.0)
    # Six calls, and one that is there to see whether more are answered.
    assert caller.longest_above(6) <= 10.0
    assert caller.served >= 0.8 * 60 * 4


@pytest.mark.contract(
    "Latencies that are long by chance do not keep the capacity small.",
    convicts=["doubling_ends_with_a_look"],
)
@pytest.mark.parametrize("start", [8, 10, 16])
@pytest.mark.parametrize("share", [0.0, 0.01])
def test_latencies_that_are_long_by_chance_do_not_keep_the_limit_small(share: float, start: int) -> None:
    # Of a few calls the mean is often a third longer than that of others.
    for seed in range(6):
        service = Service(256, mean=1.0, sigma=0.5, refuses=share, random=Random(seed))
        caller = Caller(Adaptive(start=start), service)
        caller.run(40.0)
        assert max(caller.last(40.0)) >= 256


@pytest.mark.contract(
    "A capacity of few calls is not measured for longer than one of many.",
    convicts=["two_slow_answers_begin_it_anew"],
)
def test_a_small_service_is_kept_busy_whatever_its_calls_take() -> None:
    served = 0
    for seed in range(12):
        caller = Caller(Adaptive(start=8), Service(4, mean=1.0, sigma=0.5, random=Random(seed)))
        caller.run(50.0)
        served -= caller.served
        caller.run(200.0)
        served += caller.served
    assert served >= 0.95 * 12 * 200 * 4


def test_it_stays_below_what_the_service_refuses_and_most_calls_succeed() -> None:
    caller = Caller(Adaptive(), Service(64, sigma=0.5, refuses_above=40))
    caller.run(10.0)
    served = caller.served
    caller.run(10.0)
    assert max(caller.last(10.0)) <= 1.15 * 40
    assert 24 <= statistics.mean(caller.last(10.0)) <= 40
    assert caller.served - served >= 0.6 * 10.0 * 40 / 0.02


@pytest.mark.contract(
    "A limit that was refused again and again is tried less and less often.",
    convicts=["refused_limit_tried_in_each_window"],
)
def test_a_limit_that_was_refused_is_tried_less_often_each_time() -> None:
    caller = Caller(Adaptive(), Service(1000, refuses_above=20))
    caller.run(5.0)
    before = caller.refused, caller.served
    caller.run(40.0)
    # A refusal takes a tenth of the time of an answer; tried in each window it came more often than one.
    assert caller.refused - before[0] <= 0.85 * (caller.served - before[1])


@pytest.mark.contract
@pytest.mark.parametrize("serves", [16, 64, *slow(256)])
@pytest.mark.parametrize("seconds", [0.02, 2.0, 10.0])
def test_a_service_is_kept_busy_however_long_its_calls_take(seconds: float, serves: int) -> None:
    caller = Caller(Adaptive(), Service(serves, mean=seconds, sigma=0.5))
    # From the first call on: fifty round trips are eight minutes where a call takes ten seconds.
    caller.run(50 * seconds)
    assert caller.served >= 0.8 * 50 * serves
    served = caller.served
    caller.run(300 * seconds)
    assert caller.served - served >= 0.9 * 300 * serves


def test_the_latency_without_a_queue_is_measured_after_round_trips_and_not_after_seconds() -> None:
    limits = []
    for seconds in (0.02, 10.0):
        caller = Caller(Adaptive(), Service(16, mean=seconds, sigma=0.5))
        caller.run(400 * seconds)
        limits.append([limit for _, limit in caller.limits])
    # A time is rounded otherwise where it is another, which moves a change by a call at most.
    assert statistics.mean(limits[0]) == pytest.approx(statistics.mean(limits[1]), rel=0.03)
    assert len(limits[0]) == pytest.approx(len(limits[1]), rel=0.03)


@pytest.mark.contract
@pytest.mark.parametrize("serves", [16, 50, *slow(256)])
@pytest.mark.parametrize("seconds", [0.02, 2.0, 10.0])
@pytest.mark.parametrize("share", [0.001, 0.01])
def test_sporadic_overloads_cost_little_of_what_a_fixed_capacity_gets(
    share: float, seconds: float, serves: int
) -> None:
    served = []
    for adaptive in (Adaptive(), Adaptive(start=serves, least=serves, most=serves)):
        caller = Caller(adaptive, Service(serves, mean=seconds, sigma=0.5, refuses=share))
        caller.run(100 * seconds)
        served.append(caller.served)
    assert served[0] >= 0.85 * served[1]


@pytest.mark.parametrize("seconds", [0.02, 2.0, 10.0])
def test_an_operator_keeps_a_service_busy_that_answers_429_now_and_then(seconds: float) -> None:
    async def script() -> float:
        loop = asyncio.get_running_loop()
        random = Random(3)
        served = asyncio.Semaphore(50)

        async def call(row: int) -> int:
            if random.random() < 0.01:
                raise TooManyRequests
            async with served:
                await asyncio.sleep(seconds)
            return row

        job = Job(call, capacity="auto", retry=Retry(6), buffer=Buffer(2000))
        job.push(*range(5000))
        await job.end()
        assert job.results == [*range(5000)]
        return 5000 / (50 / seconds) / loop.time()

    assert play(script) >= 0.85


def test_errors_that_begin_bring_it_down_and_errors_that_stay_do_not_hold_it_there() -> None:
    service = Service(32, sigma=0.5)
    caller = Caller(Adaptive(), service)
    caller.run(5.0)
    before = caller.controller.limit
    service.fails = 0.5
    caller.run(0.5)
    assert min(caller.last(0.5)) <= 0.75 * before
    caller.run(20.0)
    assert statistics.median(caller.last(10.0)) >= 0.8 * 32


@pytest.mark.contract(
    "Whatever ends how, the capacity stays in its bounds, and no cut is made by fewer than five calls."
)
@settings(max_examples=examples(60), deadline=None)
@given(
    start=st.integers(1, 20),
    ends=st.lists(
        st.tuples(st.sampled_from(["answer", "refusal"]), st.floats(0.001, 5.0), st.floats(0.0, 1.0)),
        max_size=400,
    ),
)
def test_it_stays_in_its_bounds_and_few_refusals_do_not_cut_it(
    start: int, ends: list[tuple[str, float, float]]
) -> None:
    clock = FakeClock(100.0)
    controller = Adaptive(start=start, least=1, most=20).open(clock)
    refusals = 0
    for kind, seconds, passed in ends:
        before = controller.limit
        clock.advance(passed)
        if kind == "answer":
            controller.succeeded(seconds)
        else:
            refusals += 1
            controller.failed(True, seconds)
            assert controller.limit == before or refusals >= 5
        if controller.limit != before:
            refusals = 0
        assert 1 <= controller.limit <= 20


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    caller = Caller(Adaptive(start=16), Service(1000), offered=10)
    caller.run(60.0)
    assert caller.controller.limit <= 32


@pytest.mark.contract
def test_the_limit_stays_between_least_and_most() -> None:
    caller = Caller(Adaptive(start=8, least=6, most=20), Service(1000, sigma=0.5))
    caller.run(20.0)
    assert caller.controller.limit == 20
    clock = FakeClock()
    controller = Adaptive(start=8, least=6).open(clock)
    for _ in range(1000):
        controller.failed(True)
        clock.advance(1.0)
    assert controller.limit == 6


@pytest.mark.contract(
    "A measurement with fewer calls leaves those that never end their slots.",
    convicts=["look_takes_slots_beside"],
)
def test_a_measurement_with_fewer_calls_leaves_those_that_hang_their_slots() -> None:
    clock = FakeClock(50.0)
    controller = Adaptive(start=8).open(clock)
    most, seconds = 8, 1.0
    while controller.limit >= most and most < 1024:
        most = controller.limit
        # The service works on 16 calls at once.
        seconds = max(1.0, most / 16)
        for _ in range(most):
            clock.advance(seconds / most)
            controller.succeeded(seconds)
    assert controller.limit < most
    assert controller.slots(most) == controller.limit + most


@pytest.mark.contract(convicts=["stuck_calls_keep_their_slots"])
@pytest.mark.parametrize("kind", ["coroutines", "batches", "collectors"])
def test_calls_that_never_end_do_not_keep_others_from_being_made(kind: str) -> None:
    # The service works on one call at a time: two are in flight at most, and these two never end.
    stuck = {60, 61}

    async def script() -> None:
        place = asyncio.Semaphore(1)

        async def row(number: int) -> int:
            if number in stuck:
                await asyncio.Event().wait()
            async with place:
                await asyncio.sleep(0.01)
            return number

        async def batch(numbers: list[int]) -> list[int]:
            return [await row(number) for number in numbers]

        def collect(number: int, collector: Collector[int]) -> None:
            async def answer() -> None:
                collector.complete(await row(number))

            if number not in stuck:
                kept.append(asyncio.ensure_future(answer()))

        kept: list[Any] = []
        fn = {"coroutines": row, "batches": batch, "collectors": collect}[kind]
        more = {"batch": Batch(1)} if kind == "batches" else {}
        limits = Adaptive(start=1, least=1, most=16)
        job = Job(fn, capacity=limits, ordered=False, timeout=Timeout(HOUR, fallback="late"), **more)
        job.push(*range(200))
        await asyncio.sleep(60.0)
        assert sorted(job.results) == [each for each in range(200) if each not in stuck]
        await job.end()
        assert job.results[-2:] == ["late"] * 2

    play(script)
