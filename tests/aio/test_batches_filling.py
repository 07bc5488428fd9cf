"""Batches: which rows are called together, and when. Time is virtual."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pillarbox import Batch, Buffer
from tests.aio.unit.virtual import HOUR, Rig, Scripted, Service, again, answers, play


def test_a_full_batch_is_called_at_once() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, batch=Batch(3, linger=HOUR))
        rig.push(1, 2, 3)
        await asyncio.sleep(1)
        assert service.calls == [(0, [1, 2, 3])]
        assert rig.results == answers(1, 2, 3)
        await rig.stop()

    play(script)


@pytest.mark.contract
def test_a_batch_that_is_not_full_is_called_when_its_oldest_row_has_waited_linger() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, batch=Batch(3, linger=10))
        rig.push(1)
        await asyncio.sleep(9)
        rig.push(2)
        await asyncio.sleep(0.9)
        assert service.calls == []
        await asyncio.sleep(0.2)
        assert service.calls == [(10, [1, 2])]
        await rig.stop()

    play(script)


def test_with_linger_0_no_row_waits_for_another() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, batch=Batch(3, linger=0))
        rig.push(1, 2)
        await asyncio.sleep(1)
        rig.push(3)
        await asyncio.sleep(1)
        assert service.calls == [(0, [1, 2]), (1, [3])]
        await rig.stop()

    play(script)


def test_a_late_linger_timer_never_flushes_the_next_batch() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, batch=Batch(3, linger=10))
        rig.push(1)
        await asyncio.sleep(9)
        # The batch is called as it is full; the timer of its first row is still to come.
        rig.push(2, 3)
        await asyncio.sleep(0.5)
        rig.push(4)
        await asyncio.sleep(9.9)
        assert service.calls == [(9, [1, 2, 3])]
        await asyncio.sleep(0.2)
        assert service.calls == [(9, [1, 2, 3]), (19.5, [4])]
        await rig.stop()

    play(script)


def test_a_linger_timer_that_a_blocked_loop_makes_late_looks_at_the_rows_own_times() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, batch=Batch(2, linger=10))
        rig.push(1)
        await asyncio.sleep(5)
        # The loop has no turn for an hour; then the timer and the new rows come together.
        rig.loop.now = HOUR
        rig.push(2, 3)
        await asyncio.sleep(9.9)
        assert service.calls == [(HOUR, [1, 2])]
        await asyncio.sleep(0.2)
        assert service.calls == [(HOUR, [1, 2]), (HOUR + 10, [3])]
        await rig.stop()

    play(script)


def test_rows_that_are_left_over_keep_the_time_at_which_they_came() -> None:
    async def script() -> None:
        service = Service(seconds=8)
        rig = Rig(service, capacity=1, batch=Batch(2, linger=10))
        rig.push(1, 2, 3)
        await asyncio.sleep(9)
        assert service.calls == [(0, [1, 2])]
        # The slot is free since 8; the row has waited since 0 and not since then.
        await asyncio.sleep(2)
        assert service.calls == [(0, [1, 2]), (10, [3])]
        await rig.stop()

    play(script)


def test_while_all_slots_are_busy_a_batch_goes_on_filling() -> None:
    async def script() -> None:
        service = Service(seconds=10)
        rig = Rig(service, capacity=1, batch=Batch(4, linger=1))
        rig.push(1)
        for row in (2, 3, 4, 5, 6):
            await asyncio.sleep(2)
            rig.push(row)
        await asyncio.sleep(30)
        # The first row waited a second. The slot was free at 11, and the rows 2 to 5 had waited enough.
        assert service.calls[:2] == [(1, [1]), (11, [2, 3, 4, 5])]
        assert service.most == 1
        await rig.stop()

    play(script)


def test_the_end_of_the_input_flushes_without_waiting() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, batch=Batch(3, linger=HOUR))
        rig.push(1, 2, 3, 4)
        await rig.end()
        assert service.calls == [(0, [1, 2, 3]), (0, [4])]

    play(script)


def test_a_batch_that_no_row_can_join_before_a_result_leaves_does_not_wait() -> None:
    async def script() -> None:
        service = Service()
        # The window holds 3 rows: a batch of 100 can never be full.
        rig = Rig(service, capacity=1, buffer=Buffer(3), batch=Batch(100, linger=HOUR))
        rig.push(*range(7))
        await asyncio.sleep(1)
        assert service.calls == [(0, [0, 1, 2]), (0, [3, 4, 5])]
        await rig.end()
        assert [rows for _, rows in service.calls][2:] == [[6]]
        assert rig.results == answers(*range(7))

    play(script)


def test_rows_that_max_bytes_keeps_out_are_not_waited_for() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, buffer=Buffer(max_bytes=2), batch=Batch(100, linger=HOUR))
        rig.push(*range(4))
        await rig.end()
        assert service.calls == [(0, [0, 1]), (0, [2, 3])]

    play(script)


def test_a_batch_that_pauses_whole_is_not_waited_for() -> None:
    async def script() -> None:
        def reply(number: int, rows: list[int]) -> list[Any]:
            if number == 1:
                raise OSError("down")
            return answers(*rows)

        service = Scripted(reply, seconds=1)
        rig = Rig(service, capacity=1, batch=Batch(2, linger=HOUR), retry=again(2, 100))
        rig.push(1, 2, 3)
        await rig.end()
        assert service.calls == [(0, [1, 2]), (1, [3]), (101, [1, 2])]

    play(script)


def test_a_row_that_pauses_alone_is_waited_for_as_long_as_linger() -> None:
    async def script() -> None:
        def reply(number: int, rows: list[int]) -> list[Any]:
            return [OSError("busy") if row == 1 and number == 1 else ("answer", row) for row in rows]

        for linger, calls in ((5, [(0, [1, 2]), (4, [1, 3])]), (2, [(0, [1, 2]), (2, [3]), (4, [1])])):
            service = Scripted(reply, seconds=1)
            rig = Rig(service, capacity=1, batch=Batch(2, linger=linger), retry=again(2, 3))
            rig.push(1, 2, 3)
            begun = rig.loop.now
            await rig.end()
            assert [(round(at - begun, 6), rows) for at, rows in service.calls] == calls

    play(script)


@pytest.mark.contract
def test_capacity_counts_batches_in_flight() -> None:
    async def script() -> None:
        service = Service(seconds=1)
        rig = Rig(service, capacity=3, batch=Batch(2, linger=HOUR))
        rig.push(*range(20))
        await asyncio.sleep(0.5)
        assert rig.operator.statistics().in_flight == 3
        await rig.end()
        assert service.most == 3
        assert [time for time, _ in service.calls] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
        assert rig.results == answers(*range(20))

    play(script)


@pytest.mark.contract
def test_a_row_is_weighed_once_and_a_batch_weighs_no_more_than_it_may() -> None:
    async def script() -> None:
        weighed: list[int] = []

        def weight(row: int) -> int:
            weighed.append(row)
            return row

        service = Service()
        rig = Rig(service, capacity=1, batch=Batch(10, linger=HOUR, weight=weight, max_weight=10))
        rig.push(4, 5, 2, 8)
        await asyncio.sleep(1)
        # Two more would be 11; 2 and 8 are 10, so that is full.
        assert [rows for _, rows in service.calls] == [[4, 5], [2, 8]]
        rig.push(3)
        await asyncio.sleep(1)
        rig.push(4)
        assert len(service.calls) == 2
        rig.push(3)
        await asyncio.sleep(1)
        assert service.calls[2] == (2, [3, 4, 3])
        assert weighed == [4, 5, 2, 8, 3, 4, 3]
        await rig.stop()

    play(script)


def test_a_row_that_is_heavier_than_a_batch_may_be_goes_alone() -> None:
    async def script() -> None:
        service = Service()
        rig = Rig(service, capacity=1, batch=Batch(10, linger=HOUR, weight=float, max_weight=10))
        rig.push(1, 50, 2, 60, 70)
        await rig.end()
        assert [rows for _, rows in service.calls] == [[1], [50], [2], [60], [70]]

    play(script)


def test_a_row_that_cannot_be_weighed_fails_alone() -> None:
    async def script() -> None:
        service = Service()
        batch = Batch(10, linger=HOUR, weight=lambda row: 10 / row, max_weight=100)
        rig = Rig(service, errors="null", batch=batch)
        rig.push(1, 0, 2, -5)
        await rig.end()
        assert [rows for _, rows in service.calls] == [[1, 2]]
        assert [rig.results[0], rig.results[2]] == answers(1, 2)
        infos: list[Any] = [rig.results[1].info, rig.results[3].info]
        assert [info.type for info in infos] == ["ZeroDivisionError", "ValueError"]
        assert "weight gave -2.0: must give a finite number, 0 or more" in infos[1].message
        assert [info.attempts for info in infos] == [0, 0]

    play(script)
