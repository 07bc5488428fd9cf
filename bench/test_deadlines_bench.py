"""The cost of a timer: the kernel's deadlines beside the timers of an event loop and beside an ordered table.

A chunk arms and cancels, or arms and expires, a thousand timers while others wait. With lengths that are all
different the deadlines cannot use that equal lengths are due in the order of their arming.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import cycle, islice, repeat

import pytest

from bench.conftest import Chunks
from pillarbox.kernel import Deadlines

MANY = 1_000
WAITING = [10, 1_000, 100_000, 1_000_000]

each_number_of_others = pytest.mark.parametrize("waiting", WAITING)


class Clock:
    """A clock that is moved by the suite: what it costs to ask it is the same for all."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lengths(count: int) -> list[float]:
    """Different lengths, in seconds, in no order."""
    rng = random.Random(count)
    return [100.0 + rng.random() for _ in range(count)]


def nothing() -> None:
    """Do nothing: the callback of the event loop."""


# ---- armed and cancelled, the most usual life of a timer


def armed_and_cancelled(chunks: Chunks, some: list[float], others: Iterable[float]) -> None:
    """Arms and cancels timers of these lengths, one after the other, while others wait."""
    deadlines = Deadlines()
    for seconds in others:
        deadlines.arm(seconds, None)

    def run() -> None:
        arm, cancel = deadlines.arm, deadlines.cancel
        for seconds in some:
            cancel(arm(seconds, None))

    chunks(run, len(some))


@pytest.mark.benchmark(group="a timer is armed and cancelled, all of one length")
@each_number_of_others
def test_deadlines_one_length(chunks: Chunks, waiting: int) -> None:
    armed_and_cancelled(chunks, [3600.0] * MANY, repeat(3600.0, waiting))


@pytest.mark.benchmark(group="a timer is armed and cancelled, all of one length")
@each_number_of_others
def test_ordered_dict_one_length(chunks: Chunks, waiting: int) -> None:
    table: OrderedDict[object, float] = OrderedDict((object(), 0.0) for _ in range(waiting))
    key = object()

    def run() -> None:
        now, pop = time.monotonic, table.pop
        for _ in range(MANY):
            table[key] = now() + 3600.0
            pop(key, None)

    chunks(run, MANY)


@pytest.mark.benchmark(group="a timer is armed and cancelled, all of one length")
@each_number_of_others
def test_event_loop_one_length(chunks: Chunks, waiting: int) -> None:
    loop = asyncio.new_event_loop()
    for _ in range(waiting):
        loop.call_later(3600.0, nothing)

    async def cancel_some() -> None:
        later = loop.call_later
        for _ in range(MANY):
            later(3600.0, nothing).cancel()

    # The loop has its turns, in which it throws away what is cancelled.
    chunks(lambda: loop.run_until_complete(cancel_some()), MANY, rounds=100)
    loop.close()


@pytest.mark.benchmark(group="a timer is armed and cancelled, a thousand lengths")
@each_number_of_others
def test_deadlines_thousand_lengths(chunks: Chunks, waiting: int) -> None:
    some = lengths(MANY)
    armed_and_cancelled(chunks, some, islice(cycle(some), waiting))


@pytest.mark.benchmark(group="a timer is armed and cancelled, all of different lengths")
@each_number_of_others
def test_deadlines_different_lengths(chunks: Chunks, waiting: int) -> None:
    armed_and_cancelled(chunks, lengths(MANY), lengths(waiting))


@pytest.mark.benchmark(group="a timer is armed and cancelled, all of different lengths")
@each_number_of_others
def test_event_loop_different_lengths(chunks: Chunks, waiting: int) -> None:
    loop, some = asyncio.new_event_loop(), lengths(MANY)
    for seconds in lengths(waiting):
        loop.call_later(3600.0 + seconds, nothing)

    async def cancel_some() -> None:
        later = loop.call_later
        for seconds in some:
            later(3600.0 + seconds, nothing).cancel()

    chunks(lambda: loop.run_until_complete(cancel_some()), MANY, rounds=100)
    loop.close()


# ---- armed and expired, a thousand at a time


def rounds_of(some: list[float], waiting: int) -> Iterator[None]:
    """Each step arms a thousand timers; they expire before those that wait."""
    clock = Clock()
    deadlines = Deadlines(clock)
    for seconds in islice(cycle(some), waiting):
        deadlines.arm(1e9 + seconds, None)
    while True:
        for seconds in some:
            deadlines.arm(seconds, None)
        clock.now += 1_000.0
        assert len(deadlines.expire()) == MANY
        yield


@pytest.mark.benchmark(group="a timer is armed and expires, all of one length")
@each_number_of_others
def test_deadlines_expire_one_length(chunks: Chunks, waiting: int) -> None:
    steps = rounds_of([100.0] * MANY, waiting)
    chunks(lambda: next(steps), MANY)


@pytest.mark.benchmark(group="a timer is armed and expires, a thousand lengths")
@each_number_of_others
def test_deadlines_expire_thousand_lengths(chunks: Chunks, waiting: int) -> None:
    steps = rounds_of(lengths(MANY), waiting)
    chunks(lambda: next(steps), MANY)
