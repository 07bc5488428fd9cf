"""Fixtures of the operator's tests."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

import pytest

from pillarbox.loop_thread import LAST_WAIT_S, LoopThread


@pytest.fixture(autouse=True)
def _same_pauses() -> None:
    """Has the operator draw the same pauses in each run of a test: on virtual time all is then the same."""
    random.seed(1)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Waits for the threads that a test has begun, and fails if one is alive."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join()
        assert not thread.is_alive(), thread.name


@pytest.fixture(params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the operator run on asyncio's event loop, then on uvloop's, whatever it would take by itself."""
    if request.param == "asyncio":
        new_loop = asyncio.new_event_loop
    else:
        new_loop = pytest.importorskip("uvloop").new_event_loop
    monkeypatch.setattr(LoopThread.__init__, "__defaults__", (new_loop, LAST_WAIT_S))
