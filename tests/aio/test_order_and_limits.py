"""The operator without Spark: order, limits, inputs and outputs."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections.abc import AsyncIterator, Collection, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Buffer, CallFailed, Options, Timeout, async_map
from tests.search import examples
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("each_loop")


class Gate:
    """Calls that wait until the test lets them go, in the order that the test chooses."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.open: dict[int, asyncio.Future[None]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.most = 0

    async def __call__(self, row: int) -> int:
        self.loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = self.loop.create_future()
        with self.changed:
            self.open[row] = future
            self.most = max(self.most, len(self.open))
            self.changed.notify_all()
        await future
        return row

    def wait_for(self, rows: set[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: rows <= self.open.keys())

    def let_go(self, row: int) -> None:
        self.wait_for({row})
        with self.changed:
            future = self.open.pop(row)
        assert self.loop is not None
        self.loop.call_soon_threadsafe(future.set_result, None)


def in_background(iterator: Iterator[int]) -> tuple[list[int], threading.Thread, threading.Condition]:
    results: list[int] = []
    changed = threading.Condition()

    def run() -> None:
        for result in iterator:
            with changed:
                results.append(result)
                changed.notify_all()

    thread = threading.Thread(target=run)
    thread.start()
    return results, thread, changed


async def identity(row: int) -> int:
    return row


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("rows", [[], [1], list(range(1000))], ids=["none", "one", "many"])
@pytest.mark.parametrize("lazy", [True, False], ids=["iterator", "collection"])
def test_every_row_yields_its_result_exactly_once(rows: list[int], ordered: bool, lazy: bool) -> None:
    async def jitter(row: int) -> int:
        if row % 3:
            await asyncio.sleep(random.random() / 1000)
        return row

    results = list(async_map(iter(rows) if lazy else rows, jitter, ordered=ordered, capacity=16))
    assert sorted(results) == rows
    if ordered:
        assert results == rows


@pytest.mark.contract
def test_in_order_a_result_waits_for_all_before_it() -> None:
    gate = Gate()
    results, thread, _ = in_background(async_map(range(3), gate))
    gate.let_go(2)
    gate.let_go(1)
    gate.wait_for({0})
    assert results == []
    gate.let_go(0)
    thread.join()
    assert results == [0, 1, 2]


@pytest.mark.contract
def test_unordered_a_result_leaves_as_soon_as_it_is_there() -> None:
    gate = Gate()
    results, thread, changed = in_background(async_map(range(3), gate, ordered=False))
    for count, row in enumerate([2, 0, 1], 1):
        gate.let_go(row)
        with changed:
            assert changed.wait_for(lambda count=count: len(results) == count)
    thread.join()
    assert results == [2, 0, 1]


@pytest.mark.contract
def test_no_more_calls_than_capacity_are_in_flight() -> None:
    gate = Gate()
    results, thread, _ = in_background(async_map(range(12), gate, capacity=3))
    gate.wait_for({0, 1, 2})
    for row in range(12):
        gate.let_go(row)
    thread.join()
    assert gate.most == 3
    assert results == list(range(12))


def test_a_slow_head_does_not_idle_the_slots_until_the_reorder_window_is_full() -> None:
    gate = Gate()
    results, thread, _ = in_background(
        async_map(range(20), gate, capacity=2, options=Options(buffer=Buffer(6)))
    )
    for row in range(1, 6):
        gate.let_go(row)
    # Six rows are admitted, five have finished, and the window is full: row 6 may not be called.
    gate.wait_for({0})
    assert set(gate.open) == {0}
    gate.let_go(0)
    for row in range(6, 20):
        gate.let_go(row)
    thread.join()
    assert results == list(range(20))


@pytest.mark.contract
def test_no_more_rows_than_the_window_and_the_read_ahead_are_read() -> None:
    read = 0
    gate = Gate()

    def rows() -> Iterator[int]:
        nonlocal read
        for row in range(1000):
            read = row + 1
            yield row

    results, thread, _ = in_background(async_map(rows(), gate, capacity=2, options=Options(buffer=Buffer(4))))
    gate.wait_for({0, 1})
    # Four in the window, 256 read ahead, and one in the reader's hand; taken in two steps at most.
    assert read <= 4 + 2 * 257
    for row in range(1000):
        gate.let_go(row)
    thread.join()
    assert results == list(range(1000))


@pytest.mark.contract
def test_the_consumer_holds_up_the_reading_when_it_does_not_take_results() -> None:
    started = 0

    async def count(row: int) -> int:
        nonlocal started
        started += 1
        return row

    with async_map(range(1_000_000), count, capacity=4, options=Options(buffer=Buffer(8))) as results:
        assert next(results) == 0
        wait_until(lambda: (counts := results.statistics()) and counts.finished_waiting >= 8)
        assert started < 1000


@settings(max_examples=examples(30), deadline=None)
@given(
    rows=st.lists(st.integers(0, 3), max_size=60),
    capacity=st.integers(1, 8),
    slack=st.integers(0, 20),
    ordered=st.booleans(),
)
def test_results_are_those_of_the_plain_map_for_any_rows_and_limits(
    rows: list[int], capacity: int, slack: int, ordered: bool
) -> None:
    async def call(pair: tuple[int, int]) -> tuple[int, int]:
        for _ in range(pair[1]):
            await asyncio.sleep(0)
        return pair

    pairs = list(enumerate(rows))
    results = list(
        async_map(
            pairs, call, capacity=capacity, ordered=ordered, options=Options(buffer=Buffer(capacity + slack))
        )
    )
    assert (results if ordered else sorted(results)) == pairs


@pytest.mark.contract
def test_none_is_a_row_and_a_result_like_any_other() -> None:
    assert list(async_map(iter([None, 1, None]), identity)) == [None, 1, None]  # type: ignore[list-item]


def test_a_call_that_never_waits_lets_others_and_the_emission_have_their_turn() -> None:
    assert sum(async_map(range(100_000), identity)) == sum(range(100_000))


def test_an_async_generator_gives_the_list_of_what_it_yields() -> None:
    async def several(row: int) -> AsyncIterator[int]:
        for i in range(row):
            yield i

    assert list(async_map(range(4), several)) == [[], [0], [0, 1], [0, 1, 2]]


def test_an_async_iterator_that_is_returned_is_gathered() -> None:
    async def several(row: int) -> AsyncIterator[int]:
        async def inner() -> AsyncIterator[int]:
            yield row
            yield -row

        return inner()

    assert list(async_map([1, 2], several)) == [[1, -1], [2, -2]]


@pytest.mark.contract(convicts=["context_leaks_to_next_row"])
def test_calls_see_the_context_of_the_caller_and_not_each_others() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("caller")

    async def call(row: int) -> str:
        seen = variable.get()
        variable.set(f"row {row}")
        await asyncio.sleep(0)
        return seen

    assert list(async_map(range(50), call, capacity=2)) == ["caller"] * 50
    assert list(async_map(range(5), lambda row: variable.get(), capacity=2)) == ["caller"] * 5


@pytest.mark.contract
def test_an_error_of_the_input_reaches_the_caller_as_it_is() -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise LookupError("no more pages")

    with pytest.raises(LookupError, match="no more pages"):
        list(async_map(rows(), identity))


@pytest.mark.contract
def test_results_can_be_taken_inside_of_a_running_event_loop() -> None:
    async def main() -> list[int]:
        return list(async_map(range(10), identity))

    assert asyncio.run(main()) == list(range(10))


def test_statistics_count_rows_calls_and_results() -> None:
    results = async_map(range(10), identity)
    assert results.statistics() is None
    assert len(list(results)) == 10
    counts = results.statistics()
    assert counts is not None
    assert (counts.rows_in, counts.results, counts.calls, counts.in_flight, counts.waiting) == (
        10,
        10,
        10,
        0,
        0,
    )


@pytest.mark.contract
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"capacity": 0}, ValueError, "capacity=0: must be at least 1"),
        ({"capacity": 2.5}, TypeError, "capacity=2.5: must be an int, not float"),
        ({"capacity": True}, TypeError, "capacity=True"),
        (
            {"capacity": 3_000_000},
            ValueError,
            "capacity=3000000, buffer=None: the window of rows may be at most",
        ),
        (
            {"options": Options(buffer=Buffer(500)), "capacity": 1000},
            ValueError,
            "buffer=500: must be at least capacity",
        ),
        ({"timeout": 0}, ValueError, "timeout=0: must be a finite number of seconds above 0"),
        ({"timeout": "1s"}, TypeError, "timeout='1s': must be a number of seconds"),
        ({"retry": "3"}, TypeError, "retry='3': must be a number of attempts, a pillarbox.Retry"),
        ({"schema": "n long"}, TypeError, "schema='n long': is for a Spark DataFrame"),
        ({"errors": "ignore"}, ValueError, "errors='ignore': must be one of 'fail', 'null'"),
        ({"ordered": "yes"}, TypeError, "ordered='yes': must be True or False"),
    ],
)
def test_a_bad_argument_is_named_when_the_call_is_made(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        async_map([1], identity, **arguments)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="attempt=nan"):
        Timeout(attempt=float("nan"))


@pytest.mark.parametrize("fn", [3, None, int], ids=["int", "None", "class"])
def test_what_cannot_be_called_is_refused_when_the_call_is_made(fn: object) -> None:
    with pytest.raises(TypeError, match="fn="):
        async_map([1], fn)  # type: ignore[call-overload]


def test_what_cannot_be_iterated_is_refused_when_the_call_is_made() -> None:
    with pytest.raises(TypeError, match="rows=7"):
        async_map(7, identity)  # type: ignore[call-overload]


def test_a_failed_iterator_gives_no_more_results() -> None:
    async def fail(row: int) -> int:
        raise ValueError(row)

    results = async_map(range(3), fail)
    with pytest.raises(CallFailed):
        next(results)
    assert list(results) == []


@pytest.mark.contract
def test_what_may_wait_is_not_read_on_the_event_loop() -> None:
    class Table(Collection[int]):
        def __len__(self) -> int:
            return 3

        def __contains__(self, row: object) -> bool:
            raise AssertionError

        def __iter__(self) -> Iterator[int]:
            assert threading.current_thread().name.startswith("pillarbox-read-")
            return iter(range(3))

    assert list(async_map(Table(), identity)) == [0, 1, 2]
