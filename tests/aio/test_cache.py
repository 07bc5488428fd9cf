"""A ledger that is a cache: results are found by content, over jobs, and expire."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, Errors, Step, async_map
from pillarbox.ledger import Cache, Ledger, LedgerError

pytestmark = pytest.mark.usefixtures("each_loop")

HOUR_S = 3600.0
MAX_SMALL_SEGMENTS = 32
"""Those that a cache has at most, beside merged ones, when a job begins."""


class Squares:
    """Answers a number with its square, and counts what it was asked for."""

    def __init__(self) -> None:
        self.calls = Counter[Any]()

    async def __call__(self, row: Any) -> Any:
        numbers = row if isinstance(row, list) else [row]
        self.calls.update(numbers)
        return [number * number for number in numbers] if isinstance(row, list) else row * row


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def cached(folder: str, **more: Any) -> Ledger:
    return Ledger(folder, **{"uid": "squares", "cache": True, **more})


def segments(folder: str) -> list[Path]:
    return sorted(Path(folder).rglob("*.arrow"))


def aged(folder: str, seconds: float) -> None:
    """Have the segments that are there be older by so many seconds."""
    for path in segments(folder):
        moment = path.stat().st_mtime - seconds
        os.utime(path, (moment, moment))


def forget_pins(folder: str) -> None:
    """As an hour after the last job has ended."""
    for path in Path(folder).rglob(".pin-*"):
        os.utime(path, (0, 0))


@pytest.mark.contract
@pytest.mark.parametrize("batch", [None, Batch(8)])
def test_a_second_job_calls_for_new_rows_only(folder: str, batch: Batch | None) -> None:
    squares = Squares()
    assert list(async_map(range(200), squares, ledger=cached(folder), batch=batch)) == [
        n * n for n in range(200)
    ]
    again = list(async_map(range(10, 210), squares, ledger=cached(folder), batch=batch))
    assert again == [n * n for n in range(10, 210)]
    assert squares.calls == dict.fromkeys(range(210), 1)


@pytest.mark.contract
def test_equal_rows_of_a_cache_share_a_call(folder: str) -> None:
    squares = Squares()
    assert list(async_map([3, 4, 3, 3], squares, ledger=cached(folder))) == [9, 16, 9, 9]
    assert squares.calls == {3: 1, 4: 1}


@pytest.mark.contract(convicts=["inputs_of_cache_ignored"])
def test_a_row_of_a_cache_is_known_by_its_inputs_whatever_else_it_has(folder: str) -> None:
    calls: list[Any] = []

    async def ask(row: dict[str, Any]) -> Any:
        calls.append(row)
        return row["text"]

    rows = [{"id": n, "text": text} for n, text in enumerate(["a", None, "a", None])]
    for _ in range(2):
        assert list(async_map(rows, ask, ledger=cached(folder, inputs=["text"]))) == ["a", None, "a", None]
    assert len(calls) == 2
    list(async_map(rows, ask, ledger=cached(folder)))
    assert len(calls) == 6


@pytest.mark.contract
@pytest.mark.parametrize("change", [{"uid": "other"}, {"version": 2}])
def test_another_uid_or_version_of_a_cache_finds_nothing(folder: str, change: dict[str, Any]) -> None:
    squares = Squares()
    for ledger in (cached(folder), cached(folder, **change), cached(folder), cached(folder, **change)):
        assert list(async_map(range(10), squares, ledger=ledger)) == [n * n for n in range(10)]
    assert squares.calls == dict.fromkeys(range(10), 2)


@pytest.mark.contract
def test_failed_rows_of_a_cache_are_called_again(folder: str) -> None:
    calls = Counter[int]()

    async def odd_fails(row: int) -> int:
        calls[row] += 1
        if row % 2:
            raise ValueError(row)
        return row

    for _ in range(2):
        list(async_map(range(10), odd_fails, ledger=cached(folder), errors=Errors("column")))
    assert calls == {row: 1 + row % 2 for row in range(10)}


@pytest.mark.contract
def test_each_function_of_a_chain_has_its_results_by_content(folder: str) -> None:
    squares, halves = Squares(), Counter[int]()

    async def half(row: int) -> float:
        halves[row] += 1
        return row / 2

    chain = [Step(squares, uid="squares"), Step(half, uid="halves")]
    ledger = Ledger(folder, cache=True)
    assert list(async_map(range(-3, 4), chain, ledger=ledger)) == [n * n / 2 for n in range(-3, 4)]
    assert halves == {0: 1, 1: 1, 4: 1, 9: 1}
    list(async_map(range(-5, 6), chain, ledger=ledger))
    assert squares.calls == dict.fromkeys(range(-5, 6), 1)
    assert halves == dict.fromkeys([0, 1, 4, 9, 16, 25], 1)


@pytest.mark.contract
def test_a_cache_behind_another_function_takes_inputs_that_have_no_fingerprint(folder: str) -> None:
    class Document:
        """Has no attribute that could be read."""

        __slots__ = ()

    async def measure(document: Document) -> int:
        return 7

    for _ in range(2):
        squares = Squares()
        out = async_map([Document(), Document()], [Step(measure), Step(squares, ledger=cached(folder))])
        assert list(out) == [49, 49]
    assert not squares.calls


@pytest.mark.contract(convicts=["old_answers_found"])
def test_an_answer_that_is_older_than_max_age_is_none(folder: str) -> None:
    squares = Squares()
    list(async_map(range(5), squares, ledger=cached(folder)))
    list(async_map(range(5), squares, ledger=cached(folder, cache=Cache(max_age=HOUR_S))))
    assert squares.calls.total() == 5
    before = time.time()
    while time.time() - before < 0.01:
        pass
    list(async_map(range(5), squares, ledger=cached(folder, cache=Cache(max_age=0.01))))
    assert squares.calls.total() == 10
    # The new answers stand beside those of before.
    list(async_map(range(5), squares, ledger=cached(folder)))
    assert squares.calls.total() == 10


@pytest.mark.contract(convicts=["merge_of_cache_keeps_the_oldest"])
def test_of_several_answers_to_a_question_a_merge_leaves_the_newest(folder: str) -> None:
    called: list[int] = []

    async def count(row: int) -> int:
        called.append(row)
        return len(called)

    # A millionth of a second later the answer is too old.
    for _ in range(8):
        list(async_map([1], count, ledger=cached(folder, cache=Cache(max_age=1e-6))))
    assert len(called) == len(segments(folder)) == 8
    subprocess.run([sys.executable, "-m", "pillarbox", "ledger", "compact", folder], check=True, timeout=60)
    assert len(segments(folder)) == 1
    assert list(async_map([1], count, ledger=cached(folder))) == [8]


@pytest.mark.contract(convicts=["pins_not_looked_at"])
def test_old_segments_go_when_a_job_begins_and_nobody_needs_them(folder: str) -> None:
    squares = Squares()
    list(async_map(range(5), squares, ledger=cached(folder)))
    (first,) = segments(folder)
    aged(folder, 2 * HOUR_S)
    limited = cached(folder, cache=Cache(max_age=HOUR_S))
    list(async_map([7], squares, ledger=limited))
    # The first job had no limit, and may be running: its pin counts for an hour.
    assert first.exists()
    forget_pins(folder)
    list(async_map([8], squares, ledger=limited))
    assert not first.exists()
    assert squares.calls.total() == 7
    list(async_map([7, 8], squares, ledger=limited))
    assert squares.calls.total() == 7


@pytest.mark.contract(convicts=["cut_by_size_keeps_one_more"])
def test_the_oldest_segments_go_where_a_cache_is_too_large(folder: str) -> None:
    squares = Squares()
    for job in range(4):
        list(async_map(range(job * 100, job * 100 + 100), squares, ledger=cached(folder)))
        aged(folder, HOUR_S)
    sizes = [path.stat().st_size for path in segments(folder)]
    assert len(sizes) == 4
    forget_pins(folder)
    room = cached(folder, cache=Cache(max_bytes=sum(sizes) // 2 + max(sizes) // 2))
    list(async_map([], squares, ledger=room))
    assert len(segments(folder)) == 2
    list(async_map(range(400), squares, ledger=cached(folder)))
    assert squares.calls == {n: 2 if n < 200 else 1 for n in range(400)}


@pytest.mark.contract
def test_what_a_running_job_may_ask_for_is_not_expired_by_another(folder: str) -> None:
    squares = Squares()
    list(async_map(range(100), squares, ledger=cached(folder)))
    aged(folder, 2 * HOUR_S)
    forget_pins(folder)
    running = async_map(range(100), squares, ledger=cached(folder))
    assert next(running) == 0
    for limit in (Cache(max_age=HOUR_S), Cache(max_bytes=1)):
        list(async_map([], squares, ledger=cached(folder, cache=limit)))
    assert list(running) == [n * n for n in range(1, 100)]
    assert squares.calls.total() == 100


@pytest.mark.contract
def test_a_cache_that_many_jobs_have_used_has_few_segments(folder: str) -> None:
    squares = Squares()
    for job in range(2 * MAX_SMALL_SEGMENTS):
        list(async_map([job], squares, ledger=cached(folder)))
    assert len(segments(folder)) <= MAX_SMALL_SEGMENTS + 1
    list(async_map(range(2 * MAX_SMALL_SEGMENTS), squares, ledger=cached(folder)))
    assert squares.calls == dict.fromkeys(range(2 * MAX_SMALL_SEGMENTS), 1)


@pytest.mark.contract
def test_two_jobs_at_once_use_one_cache(folder: str) -> None:
    async def both() -> tuple[list[Any], list[Any]]:
        async def job(numbers: range) -> list[Any]:
            return [each async for each in async_map(numbers, Squares(), ledger=cached(folder))]

        return await asyncio.gather(job(range(300)), job(range(100, 400)))

    one, other = asyncio.run(both())
    assert one == [n * n for n in range(300)]
    assert other == [n * n for n in range(100, 400)]
    squares = Squares()
    list(async_map(range(400), squares, ledger=cached(folder)))
    assert squares.calls.total() == 0


KILLED = """
    import asyncio, sys
    from pillarbox import Ledger, async_map

    async def square(n):
        await asyncio.sleep(0 if n < 50 else 100)
        return n * n

    ledger = Ledger(sys.argv[1], uid="squares", cache=True)
    for each in async_map(range(100), square, capacity=10, ledger=ledger):
        print(each, flush=True)
"""


@pytest.mark.contract
def test_what_a_killed_job_has_kept_in_a_cache_is_not_called_again(folder: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED), folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [int(next(process.stdout)) for _ in range(30)]
        process.kill()
    assert seen == [n * n for n in range(30)]
    squares = Squares()
    assert list(async_map(range(100), squares, ledger=cached(folder))) == [n * n for n in range(100)]
    assert squares.calls.keys().isdisjoint(range(30))
    assert set(squares.calls) >= set(range(50, 100))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"run": "nightly"}, "run='nightly': is not for a cache"),
        ({"key": ["id"]}, "key=.*is not for a cache"),
        ({"cache": 3}, "cache=3: must be True, False or a Cache"),
        ({"cache": None, "run": "~cache"}, "run='~cache': is the name of what caches have"),
    ],
)
def test_what_a_cache_has_no_use_for_is_refused(folder: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        cached(folder, **given)


@pytest.mark.parametrize(
    "given", [{"max_age": 0}, {"max_bytes": 0}, {"max_age": "a day"}, {"max_bytes": 1.5}]
)
def test_limits_of_a_cache_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(given))}="):
        Cache(**given)


def test_raw_results_of_a_cache_are_parsed_by_each_job(folder: str) -> None:
    class Asked(Squares):
        def __init__(self, field: str) -> None:
            super().__init__()
            self.field = field

        async def __call__(self, row: int) -> str:
            self.calls[row] += 1
            return json.dumps({"square": row * row, "half": row / 2})

        def parse(self, text: str) -> Any:
            return json.loads(text)[self.field]

    assert list(async_map(range(5), Asked("square"), ledger=cached(folder))) == [n * n for n in range(5)]
    halves = Asked("half")
    assert list(async_map(range(5), halves, ledger=cached(folder))) == [n / 2 for n in range(5)]
    assert halves.calls.total() == 0


class Text(str):
    """A text as libraries have them: its dict of attributes is empty."""


class Slotted:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Derived(Slotted):
    """Has a dict of attributes, which says nothing of its number."""


def of_pandas(name: str) -> Any:
    """A class of pandas, which a Python without a GIL need not have."""
    return getattr(pytest.importorskip("pandas"), name)


async def said(row: Any) -> str:
    return str(row)


@pytest.mark.contract
@pytest.mark.parametrize(
    "given",
    [
        lambda: [Text("a"), Text("b")],
        lambda: [of_pandas("Timestamp")("2024-01-01"), of_pandas("Timestamp")("2025-01-01")],
        lambda: [of_pandas("Timedelta")(1), of_pandas("Timedelta")(2)],
    ],
    ids=["texts", "times", "spans"],
)
def test_rows_whose_content_is_no_attribute_have_an_answer_each(
    folder: str, given: Callable[[], list[Any]]
) -> None:
    rows = given()
    assert list(async_map(rows, said, ledger=cached(folder))) == [str(row) for row in rows]


@pytest.mark.contract
@pytest.mark.parametrize("row", [Derived(1), ValueError("a"), said], ids=["slots", "error", "function"])
def test_an_object_whose_attributes_do_not_say_all_is_refused_by_a_cache(folder: str, row: Any) -> None:
    with pytest.raises(LedgerError, match="has no fingerprint: .* with inputs="):
        list(async_map([row], said, ledger=cached(folder)))
