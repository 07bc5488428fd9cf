"""A watch sees a running operator from outside, and its thread ends with it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pillarbox import async_map
from pillarbox.aio.observe import Watch
from pillarbox.aio.observe.series import read_totals
from pillarbox.aio.totals import Totals


def test_it_sees_calls_in_flight_and_then_their_results() -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    async def call(n: int) -> int:
        begun.release()
        await asyncio.to_thread(go.wait)
        return n

    with async_map(range(4), call, capacity=4) as results, Watch(results, interval=0.005) as watch:
        consumer = threading.Thread(target=lambda: list(results))
        consumer.start()
        for _ in range(4):
            assert begun.acquire(timeout=30)
        seen = threading.Event()
        while watch.totals.in_flight != 4:
            assert not seen.wait(0.001)
        assert (watch.totals.results, watch.totals.capacity) == (0, 4)
        go.set()
        consumer.join(30)
    assert (watch.totals.in_flight, watch.totals.results) == (0, 4)
    assert watch.series[-1].results == 4
    assert max(point.in_flight for point in watch.series) == 4
    assert [thread for thread in threading.enumerate() if thread.name == "pillarbox-watch"] == []


def test_it_is_used_once() -> None:
    watch = Watch(Totals(calls=1))
    with watch:
        pass
    assert watch.totals.calls == 1
    with pytest.raises(RuntimeError, match="used already"):
        watch.__enter__()


@pytest.mark.parametrize("source", [None, 7, "x", object()])
def test_what_cannot_be_observed_is_refused_at_once(source: Any) -> None:
    with pytest.raises(TypeError, match="must be a Progress, a Watch"):
        Watch(source)


@pytest.mark.parametrize("interval", [0, -1.0, float("nan"), "x"])
def test_a_bad_interval_is_refused(interval: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="interval="):
        Watch(Totals(), interval=interval)


@pytest.mark.contract
def test_what_an_iterator_has_done_is_read_before_during_and_after() -> None:
    async def call(n: int) -> int:
        return n

    results = async_map(range(3), call)
    assert read_totals(results) == Totals()
    assert list(results) == [0, 1, 2]
    assert read_totals(results).results == 3
