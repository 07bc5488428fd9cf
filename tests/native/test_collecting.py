"""Native threads without the GIL complete the calls of a function that is handed a collector."""

from __future__ import annotations

import ctypes
import gc
import sys
import sysconfig
from collections.abc import Sequence
from ctypes import POINTER, byref, c_bool, c_int, c_long, c_void_p
from pathlib import Path
from typing import Any

import pytest

import pillarbox.kernel
from pillarbox import CallFailed, Collector, Retry, async_map
from pillarbox.kernel import CollectorFactory, TaskMailbox
from spec.native import COMPILER, PROGRAMS, SOURCES, compiled_in
from tests.kernel.unit.native_table import table

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library() -> Any:
    includes = [Path(pillarbox.kernel.get_include()), Path(sysconfig.get_path("include"))]
    flags = ["-shared", "-fPIC", "-O1"] + (["-undefined", "dynamic_lookup"] * (sys.platform == "darwin"))
    loaded = ctypes.CDLL(str(compiled_in(PROGRAMS, SOURCES / "collecting.cpp", flags, includes)))
    loaded.start.restype = c_void_p
    loaded.start.argtypes = (c_void_p, POINTER(c_void_p), POINTER(c_long), c_int, c_bool)
    loaded.join.argtypes = (c_void_p, POINTER(c_int))
    return loaded


class Threads:
    """Native threads, one for each handle; `first` is how many of them came first, once they are joined."""

    def __init__(self, library: Any, collectors: Sequence[Collector[int]], numbers: Sequence[int]) -> None:
        self._library = library
        self.count = len(numbers)
        handles = (c_void_p * self.count)(*map(table.collector_of, collectors))
        at_once = self.count == 1
        self._run = library.start(
            ctypes.addressof(table), handles, (c_long * self.count)(*numbers), self.count, at_once
        )
        self.first: int | None = None

    def join(self) -> int:
        without_gil = c_int()
        self.first = self._library.join(self._run, byref(without_gil))
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return self.first
        assert without_gil.value == self.count
        return self.first


@pytest.mark.contract
@pytest.mark.parametrize("ordered", [True, False])
def test_a_native_thread_completes_a_call_without_the_gil(library: Any, ordered: bool) -> None:
    started: list[Threads] = []

    def start(row: int, collector: Collector[int]) -> None:
        started.append(Threads(library, [collector], [row * row]))

    results = list(async_map(range(100), start, ordered=ordered, capacity=8))
    assert sorted(results) == [row * row for row in range(100)]
    assert [threads.join() for threads in started] == [1] * 100


def test_what_is_made_of_it_may_fail_the_attempt(library: Any) -> None:
    started: list[Threads] = []

    def start(row: int, collector: Collector[int]) -> None:
        started.append(Threads(library, [collector], [-1 if len(started) < 2 else row]))

    assert list(async_map([7], start, retry=Retry(3, initial=0.0, maximum=0.0, on=ValueError))) == [7]
    started.clear()
    with pytest.raises(CallFailed, match="ValueError: -1 is below 0"):
        list(async_map([7], start))
    for threads in started:
        threads.join()


@pytest.mark.contract("Of native threads that complete one call the first wins, and the others let go.")
def test_of_native_threads_that_complete_one_call_the_first_wins(library: Any) -> None:
    mailbox = TaskMailbox()
    ended: list[tuple[Any, ...]] = []
    factory = CollectorFactory(mailbox, lambda *told: ended.append(told[1:]))
    made, let_go = library.made_so_far(), library.let_go_so_far()
    for number in range(50):
        collector = factory.create(number)
        threads = Threads(library, [collector] * 4, [10, 11, 12, 13])
        assert threads.join() == 1
        assert collector.complete(0) is False
        assert mailbox.run_batch() == 1
    assert [call for call, _, _ in ended] == [*range(50)]
    assert {result for _, result, _ in ended} <= {10, 11, 12, 13}
    assert (library.made_so_far() - made, library.let_go_so_far() - let_go) == (50, 150)
    assert factory.late == 50 * 4


@pytest.mark.contract("After its time-out and after the end a native completion returns false and lets go.")
def test_a_native_completion_that_comes_too_late_lets_go(library: Any) -> None:
    mailbox = TaskMailbox()
    ended: list[tuple[Any, ...]] = []
    factory = CollectorFactory(mailbox, lambda *told: ended.append(told[1:]))
    let_go = library.let_go_so_far()
    # After a time-out it is told, for it may have been paid for, and counts as no completion.
    collector = factory.create("timed out")
    assert factory.revoke(collector)
    assert Threads(library, [collector], [1]).join() == 0
    assert mailbox.run_batch() == 1 and ended == [("timed out", 1, None)]
    collector = factory.create("closed")
    factory.close(collector)
    assert Threads(library, [collector], [1]).join() == 0
    assert (mailbox.run_batch(), library.let_go_so_far() - let_go, factory.late) == (0, 1, 1)
    # On its way when the mailbox is closed.
    collector = factory.create("dropped")
    assert Threads(library, [collector], [1]).join() == 1
    mailbox.close()
    assert (library.let_go_so_far() - let_go, factory.late) == (2, 2)
    collector = factory.create("after the end")
    assert Threads(library, [collector], [1]).join() == 0
    assert (library.let_go_so_far() - let_go, factory.late) == (3, 3)
    assert ended == [("timed out", 1, None)]


def test_a_handle_holds_one_reference_until_it_is_used(library: Any) -> None:
    mailbox = TaskMailbox()
    factory = CollectorFactory(mailbox, lambda *told: None)
    collector = factory.create(None)
    before = sys.getrefcount(collector)
    threads = Threads(library, [collector] * 3, [1, 2, 3])
    assert sys.getrefcount(collector) == before + 3
    assert threads.join() == 1 and mailbox.run_batch() == 1
    gc.collect()
    assert sys.getrefcount(collector) == before


def test_without_a_function_a_native_thread_gives_a_reference() -> None:
    mailbox = TaskMailbox()
    ended: list[tuple[Any, ...]] = []
    factory = CollectorFactory(mailbox, lambda *told: ended.append(told[1:]))
    result = object()
    before = sys.getrefcount(result)
    for name, first in (("first", True), ("second", False)):
        collector = factory.create(name)
        if not first:
            factory.close(collector)
        handle = table.collector_of(collector)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
        assert table.collect(handle, id(result), None) is first
    assert mailbox.run_batch() == 1 and ended == [("first", result, None)]
    ended.clear()
    assert sys.getrefcount(result) == before


def test_only_a_collector_has_a_handle() -> None:
    with pytest.raises(TypeError, match="collector must be a Collector that a function was handed, not 3"):
        table.collector_of(3)
