"""Limits of time of many calls: which is over when, by the time of the event loop. Time is virtual."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from pillarbox import CallTimeout, Retry, Timeout
from tests.aio.virtual import HOUR, Job, again, loop_of, now, play


async def hangs(row: Any) -> None:
    await asyncio.sleep(HOUR)


def test_calls_time_out_in_the_order_in_which_they_began() -> None:
    async def script() -> None:
        job = Job(hangs, timeout=10.0, errors="column")
        for at, row in ((0.0, "a"), (1.0, "b"), (5.0, "c")):
            await asyncio.sleep(at - now())
            job.push(row)
        await job.end()
        assert job.times == {"a": 10.0, "b": 11.0, "c": 15.0}

    play(script)


def test_a_call_that_has_ended_does_not_time_out_and_leaves_no_timer() -> None:
    async def call(row: str) -> str:
        await asyncio.sleep(HOUR if row == "b" else 9.0)
        return row

    async def script() -> None:
        job = Job(call, timeout=10.0, errors="column")
        job.push("a", "b")
        await asyncio.sleep(20.0)
        assert (job.results[0], job.results[1].type) == ("a", "CallTimeout")
        assert job.times == {"a": 9.0, "b": 10.0}
        await job.end()
        assert loop_of().armed_timers == 0
        assert job.statistics().timeouts == 1

    play(script)


@pytest.mark.contract(
    "A row that times out in the pause before its retry waits no longer.", convicts=["timed_out_row_waits_on"]
)
def test_a_row_that_times_out_in_its_pause_waits_no_longer() -> None:
    async def script() -> None:
        began: list[float] = []

        async def fails(row: str) -> None:
            began.append(now())
            raise OSError("away")

        job = Job(fails, timeout=10.0, retry=Retry(2, initial=60.0, jitter=False), errors="column")
        job.push("a")
        await asyncio.sleep(5.0)
        assert job.statistics().waiting == 1
        await asyncio.sleep(6.0)
        assert (job.results[0].type, job.came, began) == ("CallTimeout", [10.0], [0.0])
        assert job.statistics().waiting == 0
        await job.end()
        assert began == [0.0] and loop_of().armed_timers == 0

    play(script)


@pytest.mark.contract(
    "A row whose time is over meets no limit of an attempt afterwards.",
    convicts=["ended_row_times_out_again"],
)
def test_a_row_whose_time_is_over_meets_no_limit_of_its_attempt_afterwards() -> None:
    async def script() -> None:
        async def call(row: str) -> str:
            await asyncio.sleep(5.0 if row == "b" else HOUR if now() else 4.0)
            if row == "a":
                raise OSError("away")
            return row

        limits = Timeout(10.0, attempt=9.0)
        job = Job(call, timeout=limits, retry=Retry(3, initial=0.0), errors="column", capacity=1)
        job.push("a")
        # Its second attempt begins at 4 s, and has until 13 s.
        await asyncio.sleep(12.0)
        job.push("b")
        await job.end()
        assert (job.results[0].type, job.results[1], job.came) == ("CallTimeout", "b", [10.0, 17.0])
        assert job.error is None and job.statistics().timeouts == 1

    play(script)


def test_a_thousand_limits_of_time_arm_a_few_timers() -> None:
    async def waits(row: int) -> None:
        await asyncio.get_running_loop().create_future()

    async def script() -> None:
        job = Job(waits, timeout=Timeout(100.0, attempt=50.0), capacity=1000)
        job.push(*range(1000))
        await asyncio.sleep(10.0)
        assert job.statistics().in_flight == 1000
        assert loop_of().armed_timers < 10
        await job.stop()

    play(script)


def test_a_call_that_is_made_again_by_its_time_out_has_all_of_its_time_again() -> None:
    began: list[float] = []

    async def call(row: str) -> None:
        began.append(now())
        await asyncio.sleep(HOUR)

    async def script() -> None:
        job = Job(call, timeout=Timeout(attempt=10.0), retry=again(3, 0.0), errors="column")
        job.push("a")
        await job.end()
        assert (began, job.times) == ([0.0, 10.0, 20.0], {"a": 30.0})

    play(script)


def test_a_time_out_that_ends_the_job_takes_those_that_are_due_with_it_along() -> None:
    late: list[str] = []

    def fallback(row: str) -> str:
        late.append(row)
        raise LookupError(row)

    async def script() -> None:
        job = Job(hangs, timeout=Timeout(10.0, fallback=fallback))
        job.push("a", "b", "c")
        await job.ended()
        assert now() == 10.0
        assert "for row 'a': LookupError: a" in str(job.error)
        assert late[0] == "a"
        await asyncio.sleep(100.0)
        assert loop_of().armed_timers == 0

    play(script)


def test_between_the_time_outs_of_a_row_others_have_their_turns() -> None:
    async def script() -> None:
        seen: list[int] = []
        ticks = 0

        def when(error: BaseException) -> bool:
            # Longer than the next attempt may take.
            loop_of().advance(20.0)
            seen.append(ticks)
            return isinstance(error, CallTimeout)

        job = Job(hangs, timeout=Timeout(attempt=10.0), retry=again(5, 0.0, when=when), errors="column")
        job.push("a")
        while not job.results:
            await asyncio.sleep(1.0)
            ticks += 1
        await job.end()
        assert len(seen) == 4
        assert all(later > earlier for earlier, later in pairwise(seen))

    play(script)
