"""Fixtures of the benchmark suites: a second thread, and rounds of many short chunks.

The C library leaves out the atomic instructions of its locks while a process has one thread, so every
suite keeps another one alive. A round is one chunk of operations; the figure to read is the median
round through the number of operations in it, which the report does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Chunks = Callable[..., None]


@pytest.fixture(scope="session", autouse=True)
def second_thread() -> Iterator[None]:
    """A thread that waits until the session ends."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="second thread")
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.fixture
def chunks(benchmark: Any) -> Chunks:
    """`chunks(fn, operations)`: measure `fn()`, which does that many operations, over and over."""

    def run(
        fn: Callable[..., Any],
        operations: int,
        rounds: int = 400,
    ) -> None:
        benchmark.extra_info["operations"] = operations
        benchmark.pedantic(fn, rounds=rounds, warmup_rounds=rounds // 10)

    return run
