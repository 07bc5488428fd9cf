"""The fake clock: it moves forward only, when it is told to, and says so."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pillarbox import Adaptive, Rate, Retry, Timeout, async_map
from pillarbox.testing import FakeClock, VirtualTimeLoop, run_virtual


@pytest.mark.contract("The fake clock stands still until it is moved.")
def test_it_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(2.5)
    assert [clock(), clock()] == [2.5, 2.5]
    clock.advance(1)
    assert clock() == 3.5
    clock.set(10)
    assert clock() == 10.0
    clock.advance(0)
    clock.set(10)
    assert clock() == 10.0
    assert repr(clock) == "FakeClock(10.0)"


@pytest.mark.parametrize(
    ("move", "error", "text"),
    [
        (lambda clock: clock.advance(-0.5), ValueError, "seconds=-0.5: the clock reads 5.0"),
        (lambda clock: clock.set(4.9), ValueError, "seconds=4.9: the clock reads 5.0"),
        (lambda clock: clock.set(float("nan")), ValueError, "seconds=nan"),
        (lambda clock: clock.advance(float("inf")), ValueError, "seconds=inf"),
        (lambda clock: clock.advance("1"), TypeError, "seconds='1'"),
        (lambda clock: clock.advance(True), TypeError, "seconds=True"),
        (lambda clock: clock.on_advance(None), TypeError, "callback=None"),
        (lambda clock: FakeClock(None), TypeError, "now=None"),
    ],
)
def test_it_does_not_go_back_and_says_what_is_wrong(move: Any, error: type[Exception], text: str) -> None:
    clock = FakeClock(5.0)
    told: list[float] = []
    clock.on_advance(lambda: told.append(clock()))
    with pytest.raises(error, match=text):
        move(clock)
    assert clock() == 5.0
    assert told == []


def test_callbacks_see_the_new_time_in_the_thread_that_moved_it_until_they_are_taken_back() -> None:
    clock = FakeClock()
    told: list[tuple[str, float, str]] = []
    callbacks = [
        clock.on_advance(lambda n=name: told.append((n, clock(), threading.current_thread().name)))
        for name in ("a", "b")
    ]
    thread = threading.Thread(target=clock.advance, args=(1.0,), name="mover")
    thread.start()
    thread.join()
    callbacks[0]()
    callbacks[0]()
    clock.set(3.0)
    here = threading.current_thread().name
    assert told == [("a", 1.0, "mover"), ("b", 1.0, "mover"), ("b", 3.0, here)]


def test_a_callback_may_move_the_clock_and_take_another_callback_back() -> None:
    clock = FakeClock()
    told: list[float] = []

    def first() -> None:
        take_back()
        if clock() < 3.0:
            clock.advance(1.0)

    clock.on_advance(first)
    take_back = clock.on_advance(lambda: told.append(clock()))
    clock.advance(1.0)
    assert clock() == 3.0
    assert told == []


def test_many_threads_may_move_it_and_no_move_is_lost() -> None:
    clock = FakeClock()
    told: list[float] = []
    clock.on_advance(lambda: told.append(clock()))

    def move() -> None:
        for _ in range(500):
            clock.advance(1.0)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [float(second) for second in range(1, 2001)]


# -- virtual time -----------------------------------------------------------------------------


def time_now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


@pytest.mark.contract(
    "In virtual time the limits of calls hold at their exact times, and waiting takes no time."
)
@pytest.mark.parametrize(
    ("options", "ended"),
    [
        ({"rate": Rate(0.01, burst=1.0)}, 100.0 + 200.0),
        ({"retry": Retry(2, initial=500.0, maximum=500.0, jitter=False)}, 100.0 + 500.0 + 100.0),
        ({"timeout": Timeout(attempt=30.0, fallback=0)}, 30.0),
        ({"capacity": 1}, 300.0),
        ({"capacity": Adaptive(start=1, most=1)}, 300.0),
    ],
    ids=["rate", "retry", "timeout", "capacity", "adaptive"],
)
def test_limits_hold_at_their_exact_times_in_virtual_time(options: dict[str, Any], ended: float) -> None:
    calls: list[int] = []

    async def call(row: int) -> int:
        calls.append(row)
        await asyncio.sleep(100.0)
        if "retry" in options and row == 2 and calls.count(2) == 1:
            raise ConnectionError("down")
        return row

    async def job() -> float:
        results = [row async for row in async_map(range(3), call, **options)]
        assert results == ([0, 0, 0] if "timeout" in options else [0, 1, 2])
        return time_now()

    assert run_virtual(job()) == ended


def test_a_coroutine_that_waits_for_nothing_that_comes_is_an_error() -> None:
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="would sleep for ever: nothing is ready and no timer is armed"):
        run_virtual(waits())


def test_a_coroutine_that_takes_longer_than_allowed_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="nothing happens before 5000 s, .* through after longest=4000 s"):
        run_virtual(asyncio.sleep(5000), longest=4000)
    run_virtual(asyncio.sleep(4000), longest=4000)


def test_what_a_coroutine_leaves_is_cancelled_and_waited_for() -> None:
    said: list[Any] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(10)
            said.append(time_now())

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            said.append("closed")

    async def main() -> str:
        said.append(asyncio.create_task(slow()))
        generator = numbers()
        assert await anext(generator) == 1
        said.append(generator)
        await asyncio.sleep(1)
        return "done"

    assert run_virtual(main()) == "done"
    assert said[0].cancelled() and said[2:] == [11.0, "closed"]


def test_virtual_time_comes_to_the_very_time_of_a_timer() -> None:
    clock = FakeClock()
    loop = VirtualTimeLoop(clock)
    times: list[float] = []
    for step in range(1, 100):
        loop.call_at(step / 10, lambda: times.append(loop.time()))
    loop.run_until_complete(asyncio.sleep(20))
    loop.close()
    assert times == [step / 10 for step in range(1, 100)]
    assert clock() == pytest.approx(20)
