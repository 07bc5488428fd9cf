"""`max_bytes` bounds rows and results at their depth, and chunks and kept results are cut by bytes."""

from __future__ import annotations

import asyncio
import dataclasses
import decimal
import gc
import sys
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pytest

from pillarbox import Batch, Buffer, Dedupe, Ledger, Options, async_map
from tests.aio.virtual import Job, play

MIB = 1024 * 1024


def weight_of(*values: Any) -> int:
    """The bytes that an operator counts for rows that are these values."""

    async def never(row: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async def script() -> int:
        job = Job(never, capacity=len(values), buffer=Buffer(max_bytes=2**40))
        job.push(*values)
        await asyncio.sleep(0.01)
        held = job.statistics().held_bytes
        await job.stop()
        return held

    return play(script)


@dataclasses.dataclass(slots=True)
class Slotted:
    text: str


class Plain:
    def __init__(self, text: str) -> None:
        self.text = text


TEXT = "x" * (10 * MIB)


@pytest.mark.contract
@pytest.mark.parametrize(
    "message",
    [
        TEXT,
        TEXT.encode(),
        {"text": TEXT},
        {TEXT: 1},
        [TEXT],
        (1, TEXT),
        {TEXT},
        {"choices": [{"message": {"role": "assistant", "content": TEXT}}]},
        Plain(TEXT),
        Slotted(TEXT),
        [Plain(TEXT), {"a": Slotted("")}],
        [[TEXT[:MIB]] * 10],
        memoryview(TEXT.encode()),
        [0.5] * (10 * MIB // (8 + sys.getsizeof(0.5))),
        [["a", 0.5, TEXT[:1000]]] * 10_000,
        dict.fromkeys(range(10_000), TEXT[:1000]),
    ],
    # Pytest numbers ids that are equal.
    ids=lambda each: type(each).__name__,
)
def test_a_message_weighs_what_it_holds_at_whatever_depth(message: Any) -> None:
    assert 9 * MIB < weight_of(message) < 16 * MIB


def _allocated(value: Any, steps: int = 16) -> int:
    """Bytes of `value` with all that it holds, each object once, as memory is given out: by `steps`."""
    found: dict[int, Any] = {}
    left = [value]
    while left:
        each = left.pop()
        if id(each) not in found:
            found[id(each)] = each
            left += [*each.keys(), *each.values()] if isinstance(each, dict) else []
            left += each if isinstance(each, list | tuple) else []
    return sum(-(-sys.getsizeof(each) // steps) * steps for each in found.values())


@pytest.mark.contract("Numbers in lists, nested lists and dicts weigh what they hold, within a quarter.")
@pytest.mark.parametrize(
    "result",
    [
        [place * 0.5 for place in range(8)],
        [place * 0.5 for place in range(1024)],
        [10**6 + place for place in range(1024)],
        [[row + place * 0.5 for place in range(32)] for row in range(32)],
        [[row + place * 0.5 for place in range(1024)] for row in range(4)],
        tuple((row * 0.5, row * 0.25) for row in range(20)),
        {f"column {place}": place * 0.5 for place in range(40)},
        {"vectors": [[row + place * 0.5 for place in range(256)] for row in range(3)], "model": "a"},
    ],
    ids=["few", "floats", "integers", "matrix", "vectors", "pairs", "dict", "answer"],
)
def test_numbers_weigh_what_they_hold(result: Any) -> None:
    assert 0.8 * _allocated(result) < weight_of(result) < 1.25 * _allocated(result)


@pytest.mark.contract("A short Arrow array weighs its C++ objects too.")
@pytest.mark.parametrize("length", [1, 8, 32, 128])
def test_a_short_arrow_array_weighs_its_objects_too(length: int) -> None:
    array = pa.array([place * 0.5 for place in range(length)])
    # About 560 bytes beside the numbers, by the resident memory of 60,000 of them.
    assert 480 <= weight_of(array) - array.nbytes <= 640


@pytest.mark.contract("A view of an array weighs its share of the array that it keeps.")
def test_a_view_weighs_its_share_of_what_it_keeps() -> None:
    matrix = numpy.random.rand(64, 64)
    alone = matrix[3]
    del matrix
    assert 0.9 * 64 * 64 * 8 < weight_of(alone) < 1.1 * 64 * 64 * 8
    rows = [*numpy.random.rand(64, 64)]
    assert 0.9 * 64 * 64 * 8 < weight_of(*rows) < 1.5 * 64 * 64 * 8


def test_weighing_takes_a_bounded_time_and_ends_in_a_cycle() -> None:
    cycle: list[Any] = []
    cycle.extend([cycle, cycle, {"again": cycle}])
    assert weight_of(cycle) > 0
    wide = [[[object()] * 50 for _ in range(50)] for _ in range(50)]
    assert weight_of(wide) > sys.getsizeof(wide)


class Living:
    """Counts the living results of one test, and their maximum."""

    now = most = 0


class Page:
    """A result of many bytes that counts itself."""

    def __init__(self, size: int, living: Living, row: int = 0) -> None:
        self.row = row
        self.text = "x" * size
        self._living = living
        living.now += 1
        living.most = max(living.most, living.now)

    def __del__(self) -> None:
        self._living.now -= 1


SIZE = 100_000


@pytest.mark.parametrize("batch", [None, Batch(4)], ids=["row", "batch"])
def test_a_slow_row_holds_back_calls_whose_results_would_not_find_room(batch: Batch | None) -> None:
    """The head takes long: without a bound the whole window of 2,000 rows, 200 MB, would wait for it."""

    living = Living()

    async def script() -> int:
        head = asyncio.get_running_loop().create_future()

        async def get(row: int) -> Page:
            await (head if row == 0 else asyncio.sleep(0.01))
            return Page(SIZE, living, row)

        async def get_all(rows: list[int]) -> list[Page]:
            return [await get(row) for row in rows]

        job = Job(
            get if batch is None else get_all,
            capacity=20,
            buffer=Buffer(2000, max_bytes=4 * MIB),
            batch=batch,
        )
        job.push(*range(2000))
        await asyncio.sleep(60.0)
        held = job.statistics().held_bytes
        most = living.most
        assert 2 * MIB < held < (4 * MIB + 20 * SIZE * (1 if batch is None else batch.size))
        head.set_result(None)
        await job.end()
        assert [page.row for page in job.results] == [*range(2000)]
        assert job.statistics().held_bytes == 0
        return most

    # What 4 MiB hold, and the calls that began before any result was known.
    assert 20 < play(script) <= 42 + 20 * (1 if batch is None else batch.size)


@pytest.mark.contract
def test_results_that_nobody_takes_are_bounded_by_bytes() -> None:
    living = Living()

    async def get(row: int) -> Page:
        await asyncio.sleep(0)
        return Page(SIZE, living)

    with async_map(
        range(3000), get, capacity=20, options=Options(buffer=Buffer(2000, max_bytes=4 * MIB))
    ) as results:
        taken = 0
        for _ in results:
            taken += 1
            if taken == 100:
                break
        # The window, the chunk that is built, the one on its way and the one that is taken.
        assert living.most * SIZE < 12 * MIB
    assert taken == 100


def test_every_result_comes_where_each_has_more_than_max_bytes() -> None:
    async def get(row: int) -> bytes:
        return bytes(300_000 + row)

    for ordered in (True, False):
        found = async_map(
            range(60), get, capacity=8, ordered=ordered, options=Options(buffer=Buffer(max_bytes=100_000))
        )
        assert sorted(map(len, found)) == [*range(300_000, 300_060)]


async def _consume(rows: int) -> list[int]:
    async def get(row: int) -> bytes:
        return bytes(300_000 + row)

    return [
        len(each)
        async for each in async_map(
            range(rows), get, capacity=8, options=Options(buffer=Buffer(max_bytes=1_000_000))
        )
    ]


def test_async_for_gives_every_large_result() -> None:
    assert play(lambda: _consume(60)) == [*range(300_000, 300_060)]


def test_small_results_are_not_weighed() -> None:
    async def script() -> int:
        job = Job(identity, buffer=Buffer(max_bytes=1000), capacity=100)
        job.push(*range(100))
        await job.end()
        return job.statistics().held_bytes

    async def identity(row: int) -> float:
        return row / 2

    assert play(script) == 0


# -- results that are kept --------------------------------------------------------------------


async def answer(row: Any) -> Any:
    """Gives texts back short, and of a number a large result."""
    return len(row) if isinstance(row, str) else {"text": "x" * MIB}


async def kept(job: Job, rows: list[Any]) -> int:
    """Count the last of the rows, which come again one by one, that find a kept result."""
    found = 0
    for row in reversed(rows):
        shared = job.statistics().shared
        job.push(row)
        await asyncio.sleep(0.01)
        if job.statistics().shared == shared:
            break
        found += 1
    return found


@pytest.mark.contract
def test_kept_results_and_their_keys_hold_no_more_than_max_bytes() -> None:
    async def script() -> None:
        job = Job(answer, dedupe=Dedupe(memo=300), buffer=Buffer(max_bytes=10 * MIB), capacity=1)
        texts = [f"{number}" + "x" * MIB for number in range(30)]
        for rows in (texts, [*range(300)]):
            for row in rows:
                job.push(row)
                await asyncio.sleep(0.01)
            assert 5 <= await kept(job, rows) <= 10
        huge = "huge" + "x" * 11 * MIB
        job.push(huge)
        await asyncio.sleep(0.01)
        # It is not kept, and there is no room for another beside it.
        assert await kept(job, [299, huge]) == 0
        await job.end()

    play(script)


class View:
    """A row that would keep its batch, as those of Spark do."""

    __is_view__ = True

    def __init__(self, batch: list[bytes], index: int) -> None:
        self.batch, self.index = batch, index

    def __iter__(self) -> Iterator[Any]:
        yield len(self.batch[self.index])

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other)  # type: ignore[arg-type]


class Rows(list[bytes]):
    """A batch that a weak reference may have."""


def test_a_key_does_not_keep_the_batch_of_its_row() -> None:
    calls: list[int] = []

    async def length(row: View) -> int:
        calls.append(len(row.batch[row.index]))
        return calls[-1]

    async def script() -> None:
        batches: list[weakref.ref[Rows]] = []

        async def rows() -> AsyncIterator[View]:
            for number in [*range(100), *range(100)]:
                batch = Rows([bytes(number)])
                batches.append(weakref.ref(batch))
                yield View(batch, 0)

        results = async_map(rows(), length, capacity=1, options=Options(dedupe=Dedupe(memo=100)))
        assert [await anext(results) for _ in range(199)] == [*range(100), *range(99)]
        gc.collect()
        # Those that are on their way, and not those of all the results that are kept.
        assert sum(reference() is not None for reference in batches) < 20
        assert calls == [*range(100)]
        await results.aclose()

    play(script)


KINDS: dict[str, Callable[[int], Any]] = {
    "floats, few": lambda row: [row + place * 0.5 for place in range(8)],
    "floats": lambda row: [row + place * 0.5 for place in range(512)],
    "lists of lists": lambda row: [[row + place * 0.5 for place in range(3)] for _ in range(100)],
    "lists of texts": lambda row: [[f"wörd€ {row} {place}"] for place in range(30)],
    "dict": lambda row: {"text": f"answer {row}" * 5, "score": row * 0.5, "number": row + 10**9},
    "dicts": lambda row: [{"id": row + place * 0.5, "name": f"{row} {place}"} for place in range(30)],
    "text, short": lambda row: f"answer {row}",
    "text": lambda row: f"{row}" * 1000,
    "bytes": lambda row: bytes(2000) + b"%d" % row,
    "decimals": lambda row: [decimal.Decimal(f"{row}.{place}" + "7" * 60) for place in range(100)],
    "integers": lambda row: [2**300 + row + place for place in range(100)],
    "numpy": lambda row: numpy.random.rand(256),
    "numpy, short": lambda row: numpy.random.rand(8),
    "Arrow": lambda row: pa.array(numpy.random.rand(256)),
}


NOT_KEPT = ("Arrow", "integers")
"""Kinds that a ledger does not keep, or keeps otherwise."""


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()


PER_CALL = 450
"""About the bytes that a row takes besides what it is."""


async def _held(make: Callable[[int], Any], most: int, weight: int, ledger: Ledger | None) -> int:
    """Bytes that are allocated once no further call begins, as nobody takes the results."""
    # No more rows than can be held: each has a place, and a call.
    rows = 64 + int(1.2 * most / (weight + PER_CALL))
    begun: list[int] = []

    async def call(row: int) -> Any:
        begun.append(row)
        return make(row)

    options = Options(buffer=Buffer(rows, max_bytes=most), capacity=16, ordered=False, ledger=ledger)
    job = async_map(range(10_000, 200_000), call, options=options)
    await anext(job)
    before, still = -1, 0
    while still < 50:
        await asyncio.sleep(0.01)
        still, before = (still + 1 if len(begun) == before else 0), len(begun)
    found = _traced()
    await job.aclose()
    return found


@pytest.mark.contract(
    "An operator holds at most 1.5 times `max_bytes` of results and their calls, whatever they are.",
    convicts=["calls_weigh_nothing", "unsaved_results_weigh_nothing", "kept_rows_weigh_as_others"],
)
@pytest.mark.parametrize(
    ("kind", "is_kept"),
    [(kind, is_kept) for kind in KINDS for is_kept in (False, True) if not (is_kept and kind in NOT_KEPT)],
)
def test_what_is_held_is_at_most_half_as_much_again(kind: str, is_kept: bool, tmp_path: Path) -> None:
    most = 8 * MIB
    weight = weight_of(KINDS[kind](10_000))
    tracemalloc.start()
    try:
        # What is made once for all is not held.
        warm = Ledger(tmp_path / "warm", uid="held", run="1") if is_kept else None
        asyncio.run(_held(KINDS[kind], MIB, weight, warm))
        base = _traced()
        ledger = Ledger(tmp_path / "job", uid="held", run="1") if is_kept else None
        held = asyncio.run(_held(KINDS[kind], most, weight, ledger)) - base
    finally:
        tracemalloc.stop()
    assert 0.5 * most < held < 1.5 * most
