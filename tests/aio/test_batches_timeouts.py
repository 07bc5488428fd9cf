"""Batches: time-outs of rows, of calls, and calls that do not end. Time is virtual."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pillarbox import Batch, CallTimeout, Timeout
from tests.aio.virtual import HOUR, Job, Scripted, Service, again, answers, infos, loop_of, now, play, poison


def test_attempt_timeout_cancels_the_call_of_a_batch_which_is_then_tried_again_whole() -> None:
    async def script() -> None:
        class SlowOnce(Service):
            async def answer(self, rows: list[Any]) -> list[Any]:
                if len(self.calls) == 1:
                    await asyncio.sleep(HOUR)
                return answers(*rows)

        service = SlowOnce()
        job = Job(service, batch=Batch(3), timeout=Timeout(attempt=5), retry=again(2, 10))
        job.push(1, 2, 3)
        await job.end()
        assert service.calls == [(0, [1, 2, 3]), (15, [1, 2, 3])]
        assert service.cancelled == 1
        assert job.results == answers(1, 2, 3)
        counts = job.statistics()
        assert (counts.timeouts, counts.late, counts.retries_by_reason) == (
            3,
            0,
            {"timeout.attempt": 3},
        )

    play(script)


@pytest.mark.contract(convicts=["late_batch_answers"])
def test_a_row_that_makes_every_batch_too_slow_is_found_and_times_out_alone() -> None:
    async def script() -> None:
        class Slow(Service):
            async def answer(self, rows: list[Any]) -> list[Any]:
                if 2 in rows:
                    await asyncio.sleep(HOUR)
                return answers(*rows)

        service = Slow()
        job = Job(service, batch=Batch(4), timeout=Timeout(attempt=5, fallback=lambda row: f"slow {row}"))
        job.push(0, 1, 2, 3)
        await job.end()
        assert [rows for _, rows in service.calls] == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
        assert job.results == [*answers(0, 1), "slow 2", *answers(3)]
        assert service.running == 0

    play(script)


def test_the_attempt_timeout_of_a_batch_is_said_as_such() -> None:
    async def script() -> None:
        job = Job(Service(seconds=HOUR), batch=Batch(1), timeout=Timeout(attempt=5))
        job.push(7)
        await job.end()
        assert isinstance(job.error, CallTimeout)
        assert str(job.error) == "no result within timeout.attempt=5 s, in attempt 1 for row 7"

    play(script)


@pytest.mark.contract
def test_a_row_that_times_out_leaves_its_batch_which_goes_on_for_the_others() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        return [OSError("busy") if number == 1 else ("answer", row) for row in rows]

    async def script() -> None:
        service = Scripted(reply, seconds=4)
        # Row 1 began at 0, and again at 5 with row 2, in a batch that ends at 9: too late for row 1 alone.
        job = Job(service, batch=Batch(2, linger=1), timeout=8, errors="column", retry=again(2, 1))
        job.push(1)
        await asyncio.sleep(5.3)
        job.push(2)
        await job.end()
        assert service.batches == [[1], [1, 2]]
        assert (infos(job)[1].type, infos(job)[1].attempts) == ("CallTimeout", 2)
        assert job.results[1] == ("answer", 2)
        assert (job.times[1], service.cancelled) == (9.0, 0)
        assert job.statistics().late == 1

    play(script)


@pytest.mark.contract
def test_a_batch_is_cancelled_when_its_last_row_has_timed_out() -> None:
    async def script() -> None:
        service = Service(seconds=HOUR)
        job = Job(service, batch=Batch(3), timeout=5, errors="column")
        job.push(1, 2, 3)
        await asyncio.sleep(60)
        assert {info.type for info in infos(job).values()} == {"CallTimeout"}
        assert (service.cancelled, job.times) == (1, {1: 5, 2: 5, 3: 5})
        counts = job.statistics()
        # It ended when it was asked to: the grace period has nothing to say.
        assert (counts.timeouts, counts.late, counts.abandoned, counts.in_flight) == (3, 0, 0, 0)
        await job.end()

    play(script)


def test_rows_that_time_out_in_the_pause_of_their_batch_are_not_called_again() -> None:
    async def script() -> None:
        service = Scripted(poison(1))
        job = Job(service, batch=Batch(2), timeout=5, errors="column", retry=again(3, HOUR))
        job.push(1, 2)
        await asyncio.sleep(4)
        assert job.statistics().waiting == 2
        await asyncio.sleep(2)
        assert {info.type for info in infos(job).values()} == {"CallTimeout"}
        assert job.statistics().waiting == 0
        await job.end()
        assert service.batches == [[1, 2]]
        assert now() < 7

    play(script)


@pytest.mark.contract
def test_a_row_that_times_out_while_its_batch_waits_for_a_slot_leaves_the_others_in_it() -> None:
    def reply(number: int, rows: list[int]) -> list[Any]:
        if number == 1:
            return [OSError("busy")]
        if number == 2:
            raise OSError("down")
        return answers(*rows)

    async def script() -> None:
        service = Scripted(reply, seconds=2)
        job = Job(
            service, capacity=1, batch=Batch(2, linger=1), timeout=9, errors="column", retry=again(9, 1)
        )
        job.push(1)
        await asyncio.sleep(4.1)
        job.push(2)
        await asyncio.sleep(2.4)
        service.seconds = 4
        job.push(3, 4)
        await asyncio.sleep(1)
        service.seconds = 1
        await job.end()
        # Both are ready again at 7.1; row 1 has time until 10, and 3 and 4 hold the slot until 10.5.
        assert service.calls == [(1, [1]), (4.1, [1, 2]), (6.5, [3, 4]), (10.5, [2])]
        assert job.statistics().waiting == 0
        assert infos(job)[1].type == "CallTimeout"
        assert [result for row, result in job.emitted if row != 1] == answers(2, 3, 4)

    play(script)


def test_a_call_that_swallows_its_cancellation_is_counted_and_its_slot_given_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script() -> None:
        class Stubborn(Service):
            async def __call__(self, rows: list[Any]) -> list[Any]:
                until = asyncio.get_running_loop().time() + 20
                while 0 in rows and asyncio.get_running_loop().time() < until:
                    try:
                        await asyncio.sleep(20)
                    except asyncio.CancelledError:
                        self.cancelled += 1
                return await super().__call__(rows)

        service = Stubborn()
        job = Job(service, capacity=1, batch=Batch(2), timeout=5, errors="null")
        job.push(0, 1, 2, 3)
        await asyncio.sleep(6.5)
        assert service.calls == [(6, [2, 3])]
        assert job.statistics().abandoned == 1
        await asyncio.sleep(60)
        # One call, two rows of it.
        assert job.statistics().late == 2
        assert job.statistics().in_flight == 0
        await job.end()

    with caplog.at_level(logging.WARNING, "pillarbox"):
        play(script)
    assert "Stubborn did not end within 1 s after it was cancelled" in caplog.text


def test_a_batch_whose_rows_time_out_before_its_task_begins_gives_its_slot_back() -> None:
    async def script() -> None:
        service = Scripted(poison(0))
        job = Job(service, capacity=1, batch=Batch(1), timeout=5, errors="column", retry=again(2, 4.9))
        job.push(0)
        await asyncio.sleep(4)
        # The loop has no turn until both times are over: the call is begun and taken away at once.
        loop_of().advance(20 - now())
        await asyncio.sleep(0.5)
        assert service.batches == [[0]]
        # The second was never made.
        assert infos(job)[0].attempts == 1
        job.push(1)
        await job.end()
        assert service.calls[1:] == [(20.5, [1])]
        assert job.statistics().abandoned == 0

    play(script)
