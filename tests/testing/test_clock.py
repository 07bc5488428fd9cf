"""The fake clock: it moves forward only, when it is told to, and says so."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pillarbox.testing import FakeClock


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
