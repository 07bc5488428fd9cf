"""The limits that a coordinator tells its tasks for their statistics, as they change: in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.aio.limits.coordinator import TELL_INTERVAL_S, LimitService
from pillarbox.aio.limits.headers import LimitReading
from pillarbox.aio.limits.lease import LeasedLimiter
from pillarbox.aio.limits.rate import Limits, LocalLimiter, Rate
from tests.limits.unit.virtual_coordinator import SECRET, VirtualCoordinator, limiter
from tests.rpc.unit.virtual_network import NetLoop, on_net
from tests.search import examples

LEARNS = Limits(learn=True)
SOON_S = 0.1
"""Seconds in which what is said reaches a coordinator, and from it all tasks."""


def reading(limit: float, left: float, reset: float = 30.0) -> LimitReading:
    return LimitReading("requests", limit, left, reset)


def started(limits: Limits = LEARNS, **how: object) -> LeasedLimiter:
    found = limiter(limits, **how)
    found.start(asyncio.get_running_loop(), lambda: None)
    return found


def known(task: LeasedLimiter) -> dict[str, float]:
    """The calls and tokens that are left of each limit, as the task knows it."""
    learned = task.learned
    return {} if learned is None else {str(kind): left for kind, (_, left) in learned.named().items()}


async def close(*tasks: LeasedLimiter) -> None:
    for task in tasks:
        await task.close()


@pytest.mark.contract(
    "A task that is cut off from its coordinator shows no limit of the job until it is told again.",
    convicts=["lost_limits_are_shown", "learned_limits_are_not_told"],
)
def test_a_task_that_is_cut_off_shows_no_limit() -> None:
    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        tasks = [started(), started()]
        async with VirtualCoordinator():
            await asyncio.sleep(SOON_S)
            assert [known(task) for task in tasks] == [{}, {}]
            tasks[0].learn([reading(60.0, 20.0)], 0.0)
            await asyncio.sleep(SOON_S)
            assert known(tasks[0]) == known(tasks[1]) != {}
            await loop.cut()
            await asyncio.sleep(0.0)
            assert [known(task) for task in tasks] == [{}, {}]
            await asyncio.sleep(2.0)
            assert known(tasks[0]) == known(tasks[1]) != {}
        await asyncio.sleep(SOON_S)
        assert [known(task) for task in tasks] == [{}, {}]
        # Another coordinator, which knows nothing of them.
        async with VirtualCoordinator():
            await asyncio.sleep(5.0)
            assert [known(task) for task in tasks] == [{}, {}]
            await close(*tasks)

    on_net(script)


@pytest.mark.contract(
    "Limits that contradict themselves are unknown to all tasks, also where they were known before.",
    convicts=["unknown_limits_are_not_told"],
)
def test_limits_that_contradict_themselves_are_unknown() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            tasks = [started(), started()]
            await asyncio.sleep(SOON_S)
            for limit in (60.0, 90.0, 60.0, 90.0, 60.0, 90.0):
                tasks[0].learn([reading(limit, 20.0)], 0.0)
                await asyncio.sleep(SOON_S)
            await asyncio.sleep(2 * TELL_INTERVAL_S)
            assert [known(task) for task in tasks] == [{}, {}]
            await close(*tasks)

    on_net(script)


@pytest.mark.contract(
    "What comes back of a limit is shown by tasks that make no call.",
    convicts=["limits_told_until_they_stand"],
)
def test_what_comes_back_of_a_limit_is_shown_without_a_call() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            tasks = [started(), started()]
            await asyncio.sleep(SOON_S)
            tasks[0].learn([reading(60.0, 0.0, 30.0)], 0.0)
            await asyncio.sleep(10.0)
            assert [known(task) for task in tasks] == [{"requests": 0.0}] * 2
            # A tenth of the window that has turned, until an answer tells more.
            await asyncio.sleep(25.0)
            first, second = (known(task) for task in tasks)
            assert 0.0 < first["requests"] <= 6.0 and first == second
            await close(*tasks)

    on_net(script)


@pytest.mark.contract(
    "A task that comes later shows the limits of its job at once, and the same as the others from then on.",
    convicts=["a_task_that_comes_is_not_told", "register_is_as_told"],
)
def test_a_task_that_comes_later_shows_the_limits_of_its_job() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            first = started()
            await asyncio.sleep(SOON_S)
            first.learn([reading(60.0, 20.0)], 0.0)
            await asyncio.sleep(SOON_S)
            told = known(first)
            first.learn([reading(60.0, 30.0)], 0.0)
            await asyncio.sleep(SOON_S)
            second = started()
            await asyncio.sleep(SOON_S)
            assert known(second)["requests"] == told["requests"] + 10.0
            # As when the first one was told.
            first.learn([reading(60.0, 20.0)], 0.0)
            await asyncio.sleep(2 * TELL_INTERVAL_S)
            assert known(first) == known(second) == told
            await close(first, second)

    on_net(script)


@pytest.mark.contract("Limits are told to each task once a second at most, however many answers name them.")
def test_limits_are_told_once_a_second_at_most() -> None:
    async def script() -> None:
        async with VirtualCoordinator() as coordinator:
            said: list[str] = []
            send = coordinator.service._say

            def spied(connection: object, message: object) -> None:
                said.append(type(message).__name__)
                send(connection, message)  # type: ignore[arg-type]

            coordinator.service._say = spied  # type: ignore[method-assign, assignment]
            task = started()
            await asyncio.sleep(SOON_S)
            for left in range(100):
                task.learn([reading(600.0, 500.0 - left)], 0.0)
                await asyncio.sleep(0.1)
            assert 10 <= said.count("Learned") <= 11
            await close(task)

    on_net(script)


def test_a_task_that_has_left_shows_what_it_knew_last() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            task = started()
            await asyncio.sleep(SOON_S)
            task.learn([reading(60.0, 20.0)], 0.0)
            await asyncio.sleep(SOON_S)
            last = known(task)
            await task.close()
            assert known(task) == last != {}

    on_net(script)


def test_where_the_budget_alone_is_shared_a_task_shows_its_own_limits() -> None:
    async def script() -> None:
        async with VirtualCoordinator():
            own = LocalLimiter(Rate(learn=True), None, None, asyncio.get_running_loop().time)
            task = started(Limits(max_calls=5), own=own)
            task.learn([reading(60.0, 20.0)], 0.0)
            assert task.learned is own.learned is not None
            await task.close()

    on_net(script)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**6), number=st.integers(1, 3))
def test_all_tasks_show_in_the_end_what_their_coordinator_knows(seed: int, number: int) -> None:
    """As `ShownInTheEnd` of spec/ToldLimits.tla, with coordinators that start again."""
    draw = random.Random(seed)

    async def script() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NetLoop)
        async with VirtualCoordinator() as coordinator:
            tasks = [started() for _ in range(number)]
            for _ in range(10):
                await asyncio.sleep(draw.choice([0.01, 0.3, 1.1, 40.0]))
                kind = draw.random()
                if kind < 0.15:
                    await loop.cut()
                elif kind < 0.25:
                    coordinator.service._accounts.clear()
                    assert (
                        isinstance(coordinator.service, LimitService)
                        and coordinator.service._secret == SECRET
                    )
                    await loop.cut()
                else:
                    limit = draw.choice([60.0, 60.0, 60.0, 90.0])
                    draw.choice(tasks).learn([reading(limit, draw.choice([0.0, 20.0, limit]))], 0.0)
            await asyncio.sleep(5.0)
            (account,) = coordinator.service._accounts.values()
            expected = account.allocator.known_limits().named()
            for task in tasks:
                shown = {} if task.learned is None else task.learned.named()
                assert shown.keys() == expected.keys()
                for kind, (limit, left) in expected.items():
                    assert (
                        shown[kind][0] == limit
                        and abs(shown[kind][1] - left) <= 2.1 * TELL_INTERVAL_S * limit / 30.0
                    )
            await close(*tasks)

    on_net(script)
