"""Batches: which rows are called together, and when. Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import Batch, Buffer
from tests.aio.virtual import HOUR, Job, Scripted, Service, again, answers, loop_of, now, play


def test_a_full_batch_is_called_at_once() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, batch=Batch(3, linger=HOUR))
        job.push(1, 2, 3)
        await asyncio.sleep(1)
        assert service.calls == [(0, [1, 2, 3])]
        assert job.results == answers(1, 2, 3)
        await job.stop()

    play(script)


@pytest.mark.contract
def test_a_batch_that_is_not_full_is_called_when_its_oldest_row_has_waited_linger() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, batch=Batch(3, linger=10))
        job.push(1)
        await asyncio.sleep(9)
        job.push(2)
        await asyncio.sleep(0.9)
        assert service.calls == []
        await asyncio.sleep(0.2)
        assert service.calls == [(10, [1, 2])]
        await job.stop()

    play(script)


def test_with_linger_0_no_row_waits_for_another() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, batch=Batch(3, linger=0))
        job.push(1, 2)
        await asyncio.sleep(1)
        job.push(3)
        await asyncio.sleep(1)
        assert service.calls == [(0, [1, 2]), (1, [3])]
        await job.stop()

    play(script)


def test_a_late_linger_timer_never_flushes_the_next_batch() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, batch=Batch(3, linger=10))
        job.push(1)
        await asyncio.sleep(9)
        # The batch is called as it is full; the timer of its first row is still to come.
        job.push(2, 3)
        await asyncio.sleep(0.5)
        job.push(4)
        await asyncio.sleep(9.9)
        assert service.calls == [(9, [1, 2, 3])]
        await asyncio.sleep(0.2)
        assert service.calls == [(9, [1, 2, 3]), (19.5, [4])]
        await job.stop()

    play(script)


def test_a_linger_timer_that_a_blocked_loop_makes_late_looks_at_the_rows_own_times() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, batch=Batch(2, linger=10))
        job.push(1)
        await asyncio.sleep(5)
        # The loop has no turn for an hour; then the timer is late, and a row comes.
        loop_of().advance(HOUR - now())
        await asyncio.sleep(1)
        assert service.calls == [(HOUR, [1])]
        job.push(2)
        await asyncio.sleep(9.9)
        assert len(service.calls) == 1
        await asyncio.sleep(0.2)
        assert service.calls[1:] == [(HOUR + 11, [2])]
        await job.stop()

    play(script)


def test_rows_that_are_left_over_keep_the_time_at_which_they_came() -> None:
    async def script() -> None:
        service = Service(seconds=8)
        job = Job(service, capacity=1, batch=Batch(2, linger=10))
        job.push(1, 2, 3)
        await asyncio.sleep(9)
        assert service.calls == [(0, [1, 2])]
        # The slot is free since 8; the row has waited since 0 and not since then.
        await asyncio.sleep(2)
        assert service.calls == [(0, [1, 2]), (10, [3])]
        await job.stop()

    play(script)


def test_while_all_slots_are_busy_a_batch_goes_on_filling() -> None:
    async def script() -> None:
        service = Service(seconds=10)
        job = Job(service, capacity=1, batch=Batch(4, linger=1))
        job.push(1)
        for row in (2, 3, 4, 5, 6):
            await asyncio.sleep(2)
            job.push(row)
        await asyncio.sleep(30)
        # The first row waited a second. The slot was free at 11, and the rows 2 to 5 had waited enough.
        assert service.calls[:2] == [(1, [1]), (11, [2, 3, 4, 5])]
        assert service.most == 1
        await job.stop()

    play(script)


def test_the_end_of_the_input_flushes_without_waiting() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, batch=Batch(3, linger=HOUR))
        job.push(1, 2, 3, 4)
        await job.end()
        assert service.calls == [(0, [1, 2, 3]), (0, [4])]

    play(script)


def test_a_batch_that_no_row_can_join_before_a_result_leaves_does_not_wait() -> None:
    async def script() -> None:
        service = Service()
        # The window holds 3 rows: a batch of 100 can never be full.
        job = Job(service, capacity=1, buffer=Buffer(3), batch=Batch(100, linger=HOUR))
        job.push(*range(7))
        await asyncio.sleep(1)
        assert service.calls == [(0, [0, 1, 2]), (0, [3, 4, 5])]
        await job.end()
        assert [rows for _, rows in service.calls][2:] == [[6]]
        assert job.results == answers(*range(7))

    play(script)


def test_rows_that_max_bytes_keeps_out_are_not_waited_for() -> None:
    async def script() -> None:
        service = Service()
        rows = [bytes([number]) * 100_000 for number in range(4)]
        # The second is the one that is too much.
        job = Job(service, buffer=Buffer(max_bytes=150_000), batch=Batch(100, linger=HOUR))
        job.push(*rows)
        await job.end()
        assert service.calls == [(0, rows[:2]), (0, rows[2:])]

    play(script)


def test_a_batch_that_pauses_whole_is_not_waited_for() -> None:
    async def script() -> None:
        def reply(number: int, rows: list[int]) -> list[Any]:
            if number == 1:
                raise OSError("down")
            return answers(*rows)

        service = Scripted(reply, seconds=1)
        job = Job(service, capacity=1, batch=Batch(2, linger=HOUR), retry=again(2, 100))
        job.push(1, 2, 3)
        await job.end()
        assert service.calls == [(0, [1, 2]), (1, [3]), (101, [1, 2])]

    play(script)


def test_a_row_that_pauses_alone_is_waited_for_as_long_as_linger() -> None:
    async def script() -> None:
        def reply(number: int, rows: list[int]) -> list[Any]:
            return [OSError("busy") if row == 1 and number == 1 else ("answer", row) for row in rows]

        for linger, calls in ((5, [(0, [1, 2]), (4, [1, 3])]), (2, [(0, [1, 2]), (2, [3]), (4, [1])])):
            service = Scripted(reply, seconds=1)
            job = Job(service, capacity=1, batch=Batch(2, linger=linger), retry=again(2, 3))
            job.push(1, 2, 3)
            begun = now()
            await job.end()
            assert [(round(at - begun, 6), rows) for at, rows in service.calls] == calls

    play(script)


@pytest.mark.contract
def test_capacity_counts_batches_in_flight() -> None:
    async def script() -> None:
        service = Service(seconds=1)
        job = Job(service, capacity=3, batch=Batch(2, linger=HOUR))
        job.push(*range(20))
        await asyncio.sleep(0.5)
        assert job.statistics().in_flight == 3
        await job.end()
        assert service.most == 3
        assert [time for time, _ in service.calls] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
        assert job.results == answers(*range(20))

    play(script)


@pytest.mark.contract
def test_a_row_is_weighed_once_and_a_batch_weighs_no_more_than_it_may() -> None:
    async def script() -> None:
        weighed: list[int] = []

        def weight(row: int) -> int:
            weighed.append(row)
            return row

        service = Service()
        job = Job(service, capacity=1, batch=Batch(10, linger=HOUR, weight=weight, max_weight=10))
        job.push(4, 5, 2, 8)
        await asyncio.sleep(1)
        # Two more would be 11; 2 and 8 are 10, so that is full.
        assert [rows for _, rows in service.calls] == [[4, 5], [2, 8]]
        job.push(3)
        await asyncio.sleep(1)
        job.push(4)
        assert len(service.calls) == 2
        job.push(3)
        await asyncio.sleep(1)
        assert service.calls[2] == (2, [3, 4, 3])
        assert weighed == [4, 5, 2, 8, 3, 4, 3]
        await job.stop()

    play(script)


def test_a_row_that_is_heavier_than_a_batch_may_be_goes_alone() -> None:
    async def script() -> None:
        service = Service()
        job = Job(service, capacity=1, batch=Batch(10, linger=HOUR, weight=float, max_weight=10))
        job.push(1, 50, 2, 60, 70)
        await job.end()
        assert [rows for _, rows in service.calls] == [[1], [50], [2], [60], [70]]

    play(script)


def test_a_row_that_cannot_be_weighed_fails_alone() -> None:
    async def script() -> None:
        service = Service()
        batch = Batch(10, linger=HOUR, weight=lambda row: 10 / row, max_weight=100)
        job = Job(service, errors="column", batch=batch)
        job.push(1, 0, 2, -5)
        await job.end()
        assert [rows for _, rows in service.calls] == [[1, 2]]
        assert [job.results[0], job.results[2]] == answers(1, 2)
        failed = [job.results[1], job.results[3]]
        assert [error.type for error in failed] == ["ZeroDivisionError", "ValueError"]
        assert "weight gave -2.0: must give a finite number, 0 or more" in failed[1].message
        assert [error.attempts for error in failed] == [0, 0]

    play(script)
