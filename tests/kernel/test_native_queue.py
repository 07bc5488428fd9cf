"""The result queues of the C interface: what each function of its table answers."""

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.kernel import OrderedQueue, UnorderedQueue
from tests.kernel.unit.native_table import RELEASE_FN, Pair, table

CAPACITY = 3
ELEMENTS = [1000, 2000, 3000, 4000]
RESULTS = [10, 20, 30, 40]


def nothing(payload: int) -> None:
    raise AssertionError(f"{payload} is released")


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def ordered(request: pytest.FixtureRequest) -> bool:
    which: bool = request.param
    return which


@pytest.fixture(params=["create_queue", "create_confined_queue"])
def queue(request: pytest.FixtureRequest, ordered: bool) -> Iterator[int]:
    made = getattr(table, request.param)(CAPACITY, ordered)
    yield made
    table.destroy_queue(made, RELEASE_FN())


def put(queue: int, element: int) -> int | None:
    """The handle, or None if the queue is full."""
    handle = ctypes.c_int64(-1)
    return handle.value if table.put_entry(queue, element, ctypes.byref(handle)) else None


def emitted(queue: int, most: int = 10) -> list[tuple[int, int]]:
    pairs = (Pair * most)()
    return [(pair.element, pair.result) for pair in pairs[: table.emit(queue, pairs, most)]]


@pytest.mark.parametrize("capacity", [-1, 0, 2**24 + 1])
def test_a_queue_with_a_bad_capacity_is_not_made(capacity: int) -> None:
    assert table.create_queue(capacity, True) is None


@pytest.mark.contract("Entries of a native result queue leave with their results, in the order asked for.")
def test_entries_leave_with_their_results_in_the_order_asked_for(queue: int, ordered: bool) -> None:
    handles = [put(queue, element) for element in ELEMENTS[:3]]
    assert put(queue, 4000) is None
    assert table.complete(queue, handles[1], 20)
    assert emitted(queue) == ([] if ordered else [(2000, 20)])
    assert table.complete(queue, handles[2], 30)
    assert table.complete(queue, handles[0], 10)
    expected = [(1000, 10), (2000, 20), (3000, 30)] if ordered else [(3000, 30), (1000, 10)]
    assert emitted(queue, 1) + emitted(queue) == expected


def test_only_the_present_attempt_completes_an_entry_and_only_once(queue: int) -> None:
    first = put(queue, 1000)
    handle = ctypes.c_int64(first or 0)
    assert table.renew(queue, ctypes.byref(handle))
    assert handle.value != first
    assert not table.complete(queue, first, 10)
    assert table.complete(queue, handle, 20)
    assert not table.complete(queue, handle, 30)
    assert not table.renew(queue, ctypes.byref(handle))
    assert emitted(queue) == [(1000, 20)]
    assert not table.complete(queue, handle, 40)


def test_no_entry_passes_a_watermark(queue: int) -> None:
    before = put(queue, 1000)
    assert table.put_watermark(queue, 2000, 20)
    behind = put(queue, 3000)
    assert not table.put_watermark(queue, 4000, 40)
    assert table.complete(queue, behind, 30)
    assert emitted(queue) == []
    assert table.complete(queue, before, 10)
    assert emitted(queue) == [(1000, 10), (2000, 20), (3000, 30)]


def test_what_is_left_is_released_once_when_the_queue_is_destroyed(ordered: bool) -> None:
    queue = table.create_queue(CAPACITY, ordered)
    handles = [put(queue, element) for element in ELEMENTS[:3]]
    assert table.complete(queue, handles[1], 20)
    released: list[int] = []
    table.destroy_queue(queue, RELEASE_FN(released.append))
    assert sorted(released) == [20, 1000, 2000, 3000]


@pytest.mark.parametrize("make", [OrderedQueue, UnorderedQueue])
def test_a_native_completion_gives_a_queue_of_python_its_reference(
    make: Callable[[int], OrderedQueue | UnorderedQueue],
) -> None:
    queue = make(2)
    result = object()
    before = sys.getrefcount(result)
    handle = queue.put("element")
    pointer = ctypes.c_void_p(id(result))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
    assert table.complete(table.queue_of(queue), handle, pointer)
    gc.collect()
    assert sys.getrefcount(result) == before + 1
    assert queue.emit() == ("element", result)
    assert sys.getrefcount(result) == before
    assert not table.complete(table.queue_of(queue), handle, pointer)


@pytest.mark.parametrize("make", [OrderedQueue, UnorderedQueue])
def test_a_native_completion_with_null_gives_none_and_an_odd_address_is_refused(
    make: Callable[[int], OrderedQueue | UnorderedQueue],
) -> None:
    queue = make(2)
    handle = queue.put("element")
    assert not table.complete(table.queue_of(queue), handle, 3)
    assert table.complete(table.queue_of(queue), handle, None)
    assert queue.snapshot() == [("element", True, None)]
    assert queue.emit() == ("element", None)
    assert not table.put_watermark(table.queue_of(queue), None, 3)


def test_another_thread_completes_while_the_owner_emits(ordered: bool) -> None:
    capacity, rounds = 64, 2000
    queue = table.create_queue(capacity, ordered)
    handles: list[int] = []
    ready, completed = threading.Semaphore(0), threading.Semaphore(0)

    def complete() -> None:
        for _ in range(rounds):
            ready.acquire()
            handle = handles.pop(0)
            assert table.complete(queue, handle, 2)
            completed.release()

    thread = threading.Thread(target=complete)
    thread.start()
    came = begun = 0
    while came < rounds:
        while begun < rounds and (handle := put(queue, 8)) is not None:
            begun += 1
            handles.append(handle)
            ready.release()
        # An owner that looks again and again takes the processor from the thread that it waits for.
        completed.acquire()
        pairs = emitted(queue, capacity)
        assert pairs == [(8, 2)] * len(pairs)
        came += len(pairs)
    thread.join()
    table.destroy_queue(queue, RELEASE_FN(nothing))


@pytest.mark.parametrize("wrong", [object(), None, "queue"])
def test_what_is_no_queue_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(TypeError, match="queue must be an OrderedQueue or UnorderedQueue"):
        table.queue_of(wrong)


def test_native_code_gets_no_queue_whose_owner_alone_completes() -> None:
    with pytest.raises(ValueError, match="make it without owner_completes"):
        table.queue_of(OrderedQueue(1, owner_completes=True))
