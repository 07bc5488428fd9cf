"""Chunks of results, as a task hands them over: cut by bytes. No one who takes results sees where."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.aio.calls import Call, Chunk
from pillarbox.aio.task_run import ChunkOutput, cut_chunk
from pillarbox.task.protocols import RowBatch
from tests.aio.virtual import play


def chunk_of(*sizes: int) -> Chunk:
    return [(Call(number, size), number) for number, size in enumerate(sizes)]


@pytest.mark.contract
def test_whoever_asks_for_room_is_woken_at_once_where_there_is_some_and_otherwise_when_there_is() -> None:
    async def script() -> None:
        sink = ChunkOutput(asyncio.get_running_loop(), rows=1)
        woken: list[str] = []
        sink.call_when_room(lambda: woken.append("at once"))
        assert woken == ["at once"]
        for number in range(2):
            sink.collect(RowBatch(chunk_of(1), held_bytes=1))
            assert sink.is_available is (number == 0)
        sink.call_when_room(lambda: woken.append("later"))
        assert woken == ["at once"]
        assert await sink.take_async() is not None
        await asyncio.sleep(0)
        assert woken == ["at once", "later"]

    play(script)


@pytest.mark.contract
def test_a_chunk_is_cut_before_the_row_that_is_too_much() -> None:
    for sizes, first in [((3, 3, 3, 3), 3), ((30, 1), 1), ((1, 30, 1), 1), ((9,), 1), ((0, 10, 0, 1), 3)]:
        chunk, held = cut_chunk(chunk_of(*sizes), 10)
        assert (len(chunk), held) == (first, sum(sizes[:first]))


def test_chunks_that_are_handed_over_have_no_more_bytes_than_a_chunk_may_have() -> None:
    async def script() -> list[list[int]]:
        sink = ChunkOutput(asyncio.get_running_loop(), rows=2048, linger=1000.0, chunk_bytes=10)
        sink.collect(RowBatch(chunk_of(4, 4, 4, 4, 25, 1, 1), held_bytes=43))
        sink.finish()
        taken: list[list[int]] = []
        while (chunk := await sink.take_async()) is not None:
            taken.append([number for _, number in chunk])
        assert sink.held_bytes == 0
        return taken

    assert play(script) == [[0, 1], [2, 3], [4], [5, 6]]
