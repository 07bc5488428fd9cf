"""A result queue's snapshot, and its restoring: what is kept, and in which order it comes back."""

import gc
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pillarbox.kernel import (
    WATERMARK,
    OrderedQueue,
    QueueEntry,
    QueueRestoringError,
    ResultQueue,
    UnorderedQueue,
    WrongThreadError,
)

QueueType = type[OrderedQueue] | type[UnorderedQueue]
both = pytest.mark.parametrize("queue_type", [OrderedQueue, UnorderedQueue])

MARK = (WATERMARK, True, "mark")
# In order: unfinished, finished, a watermark, finished, unfinished.
FIVE = [("a", False, None), ("b", True, "B"), MARK, ("c", True, "C"), ("d", False, None)]


def restored(queue_type: QueueType, entries: list[Any], capacity: int = 16) -> ResultQueue:
    queue = queue_type(capacity)
    queue.restore(entries)
    return queue


def admit_all(queue: ResultQueue) -> dict[str, int]:
    """Admits until None; the handles by element."""
    return {element: handle for handle, element in iter(queue.admit_restored, None)}


# ---- snapshot


@pytest.mark.contract
@both
def test_a_snapshot_keeps_results_and_errors_and_leaves_the_queue_as_it_is(queue_type: QueueType) -> None:
    queue, error = queue_type(5), KeyError("lost")
    queue.put("a")
    queue.complete(queue.put("b"), error)
    queue.put_watermark("mark")
    before = queue.statistics()
    entries = queue.snapshot()
    assert entries == [("a", False, None), ("b", True, error), MARK]
    assert all(type(entry) is QueueEntry for entry in entries)
    assert [entry.finished for entry in entries] == [False, True, True]
    assert queue.statistics() == before
    assert queue.snapshot() == entries


@both
def test_a_result_that_is_none_is_told_from_no_result(queue_type: QueueType) -> None:
    queue = queue_type(2)
    queue.complete(queue.put("a"), None)
    assert queue.snapshot() == [("a", True, None)]
    assert restored(queue_type, queue.snapshot()).admit_restored() is None


@pytest.mark.contract(convicts=["snapshot_forgets_restored"])
@both
def test_a_snapshot_ends_with_what_is_still_to_be_restored_and_what_waits_at_the_door(
    queue_type: QueueType,
) -> None:
    queue = restored(queue_type, FIVE, capacity=2)
    handle, _ = queue.admit_restored() or (0, None)
    assert queue.admit_restored() is None
    assert queue.snapshot(door=["x", WATERMARK]) == [*FIVE, ("x", False, None), (WATERMARK, False, None)]
    queue.complete(handle, "A")
    assert queue.emit() is not None
    left = FIVE[1:] if queue_type is OrderedQueue else [("a", True, "A"), *FIVE[2:]]
    assert queue.snapshot(iter("xy")) == [*left, ("x", False, None), ("y", False, None)]


@both
def test_the_door_may_use_the_queue_while_it_is_read(queue_type: QueueType) -> None:
    queue = queue_type(3)

    def door() -> Iterator[str]:
        queue.complete(queue.put("a"), "A")
        yield "x"
        queue.put("b")

    assert queue.snapshot(door()) == [("a", True, "A"), ("b", False, None), ("x", False, None)]


@both
def test_a_snapshot_survives_pickling(queue_type: QueueType) -> None:
    queue = restored(queue_type, FIVE)
    copy = pickle.loads(pickle.dumps(queue.snapshot()))
    assert copy == FIVE
    assert copy[2].element is WATERMARK
    assert restored(queue_type, copy).snapshot() == FIVE


# ---- restore


@pytest.mark.contract(convicts=["restore_shuffles", "restored_called_again"])
@both
def test_restored_entries_come_back_in_order_and_finished_ones_are_not_called_again(
    queue_type: QueueType,
) -> None:
    queue = restored(queue_type, FIVE)
    assert (len(queue), queue.restoring, queue.in_flight, queue.is_empty) == (0, 5, 0, True)
    assert queue.emit() is None and not queue.has_completed()
    handle_a, a = queue.admit_restored() or (0, None)
    assert (a, len(queue), queue.restoring) == ("a", 1, 4)
    handle_d, d = queue.admit_restored() or (0, None)
    assert (d, len(queue), queue.restoring, queue.in_flight) == ("d", 5, 0, 2)
    assert queue.admit_restored() is None
    assert queue.complete(handle_d, "D") and queue.complete(handle_a, "A")
    assert not queue.complete(handle_a, "again")
    first, second = ("a", "A"), ("b", "B")
    if queue_type is UnorderedQueue:
        first, second = second, first
    assert queue.emit_many() == [first, second, (WATERMARK, "mark"), ("c", "C"), ("d", "D")]
    statistics = queue.statistics()
    assert (statistics.admitted, statistics.watermarks, statistics.restored) == (4, 1, 5)
    assert (statistics.completed, statistics.emitted, statistics.restoring) == (2, 5, 0)


@both
def test_a_restored_entry_can_be_renewed(queue_type: QueueType) -> None:
    queue = restored(queue_type, [("a", False, None)])
    handle, _ = queue.admit_restored() or (0, None)
    renewed = queue.renew(handle)
    assert not queue.complete(handle, "of the first attempt")
    assert queue.complete(renewed, "A")
    assert queue.emit() == ("a", "A")


@pytest.mark.contract
@both
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_restoring_more_than_the_capacity_goes_on_as_entries_are_emitted(
    queue_type: QueueType, capacity: int
) -> None:
    entries = [*FIVE, *FIVE]
    queue = restored(queue_type, entries, capacity)
    out: list[tuple[Any, Any]] = []
    calls: list[str] = []
    while queue.restoring or len(queue):
        while (admitted := queue.admit_restored()) is not None:
            handle, element = admitted
            calls.append(element)
            assert len(queue) <= capacity
            assert queue.complete(handle, element.upper())
        assert len(queue) == capacity or not queue.restoring
        assert queue.snapshot()[len(queue) :] == entries[len(entries) - queue.restoring :]
        out += queue.emit_many()
    assert calls == ["a", "d", "a", "d"]
    half = [("a", "A"), ("b", "B"), (WATERMARK, "mark"), ("c", "C"), ("d", "D")]
    assert out == [*half, *half]


@both
def test_finished_entries_are_admitted_also_when_no_call_is_left(queue_type: QueueType) -> None:
    queue = restored(queue_type, [MARK, ("a", True, "A"), MARK])
    assert queue.admit_restored() is None
    assert (queue.restoring, queue.in_flight, queue.has_completed()) == (0, 0, True)
    assert queue.emit_many() == [(WATERMARK, "mark"), ("a", "A"), (WATERMARK, "mark")]


@pytest.mark.contract(convicts=["put_overtakes_restored"])
@both
def test_nothing_new_goes_in_before_everything_is_restored(queue_type: QueueType) -> None:
    queue = restored(queue_type, FIVE, capacity=3)
    for left in (5, 4):
        for put in (queue.put, queue.put_watermark):
            with pytest.raises(QueueRestoringError, match=f" {left} entries") as raised:
                put("new")
            assert raised.value.left == queue.restoring == left
            assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
        queue.admit_restored()
    before = queue.statistics()
    with pytest.raises(QueueRestoringError, match=" 2 entries"):
        queue.put("new")
    assert queue.is_full and queue.statistics() == before
    queue.clear()
    assert queue.put("new") and queue.snapshot() == [("new", False, None)]


@both
def test_restoring_nothing_changes_nothing(queue_type: QueueType) -> None:
    queue = restored(queue_type, [])
    assert (queue.restoring, queue.admit_restored()) == (0, None)
    assert queue.put("a")


@both
def test_only_an_empty_open_queue_that_does_not_restore_is_restored(queue_type: QueueType) -> None:
    queue = queue_type(3)
    queue.complete(queue.put("a"), "A")
    with pytest.raises(ValueError, match="empty.* 1 entries"):
        queue.restore(FIVE)
    queue.emit()
    queue.restore(FIVE[:2])
    for _ in range(2):
        with pytest.raises(ValueError, match="restoring 2 entries already"):
            queue.restore(FIVE)
    assert queue.close() == ["a", "b"]
    with pytest.raises(ValueError, match="closed"):
        queue.restore(FIVE)
    assert queue.snapshot() == [] and queue.restoring == 0


@both
@pytest.mark.parametrize(
    ("entry", "error", "words"),
    [
        ("abc", TypeError, "entry 1 .*triple.*'abc'"),
        (None, TypeError, "entry 1 .*triple.*None"),
        (("b", True), ValueError, "entry 1 .*triple.*'b', True"),
        (("b", True, 1, 2), ValueError, "entry 1 .*triple"),
        (("b", 1, "B"), TypeError, "entry 1: finished .*not 1"),
        (("b", False, "B"), ValueError, "entry 1: the result .*'B'"),
        ((WATERMARK, False, None), ValueError, "entry 1: a watermark .*WATERMARK"),
    ],
)
def test_a_bad_entry_is_refused_by_name_and_nothing_is_restored(
    queue_type: QueueType, entry: Any, error: type[Exception], words: str
) -> None:
    queue = queue_type(3)
    with pytest.raises(error, match=words):
        queue.restore([("a", True, "A"), entry])
    assert (queue.restoring, len(queue)) == (0, 0)
    with pytest.raises(TypeError):
        queue.restore(5)  # type: ignore[arg-type]


@both
def test_entries_that_use_the_queue_while_they_are_read_are_seen_to_do_so(queue_type: QueueType) -> None:
    queue = queue_type(3)

    def entries() -> Iterator[tuple[Any, bool, Any]]:
        yield ("a", True, "A")
        queue.put("b")

    with pytest.raises(ValueError, match="empty"):
        queue.restore(entries())
    assert queue.snapshot() == [("b", False, None)]


# ---- the end, threads, references


@both
@pytest.mark.parametrize("end", ["clear", "close"])
def test_clear_and_close_give_back_what_was_still_to_be_restored(queue_type: QueueType, end: str) -> None:
    queue = restored(queue_type, FIVE, capacity=2)
    handle, _ = queue.admit_restored() or (0, None)
    assert getattr(queue, end)() == ["a", "b", "c", "d"]
    assert (queue.restoring, len(queue), queue.admit_restored(), queue.snapshot()) == (0, 0, None, [])
    assert not queue.complete(handle, "A")
    assert queue.emit() is None


@both
def test_a_queue_that_restores_is_not_adopted(queue_type: QueueType, elsewhere: Callable[..., Any]) -> None:
    queue = restored(queue_type, FIVE)
    with pytest.raises(WrongThreadError):
        elsewhere(queue.adopt)
    assert elsewhere(lambda: queue.restoring) == 5
    queue.clear()
    elsewhere(queue.adopt)


@pytest.mark.contract(
    "A queue keeps no reference to what it refuses to restore.", convicts=["refused_restore_leaks"]
)
@both
def test_restoring_leaves_no_reference_behind(queue_type: QueueType) -> None:
    class Tracked:
        pass

    things = [Tracked() for _ in range(4)]
    gone = [weakref.ref(thing) for thing in things]
    entries: list[Any] = [
        (things[0], False, None),
        (things[1], True, things[2]),
        (WATERMARK, True, things[3]),
    ]
    before = [sys.getrefcount(thing) for thing in things]
    queue = restored(queue_type, entries, capacity=2)
    for _ in range(3):
        with pytest.raises(ValueError, match="already"):
            queue.restore(entries)
        queue.snapshot(things)
    queue.admit_restored()
    queue.snapshot()
    queue.clear()
    assert [sys.getrefcount(thing) for thing in things] == before
    queue.restore(entries)
    queue.admit_restored()
    del entries, things
    gc.collect()
    assert all(ref() is not None for ref in gone)
    del queue
    assert all(ref() is None for ref in gone)


@pytest.mark.contract
@both
def test_over_several_lives_everything_is_emitted_once_and_no_result_is_asked_for_again(
    queue_type: QueueType,
) -> None:
    chance = random.Random(7)
    total, put, called, out = 300, 0, set[int](), list[Any]()
    kept: list[QueueEntry] = []
    while put < total or kept:
        queue = restored(queue_type, list(kept), chance.randint(1, 6))
        running: dict[int, int] = {}
        for _ in range(chance.randint(1, 40)):
            admitted = queue.admit_restored()
            if admitted is not None:
                running[admitted[1]] = admitted[0]
            elif put < total and not queue.is_full and not queue.restoring:
                running[put] = queue.put(put)
                put += 1
            if running and chance.random() < 0.5:
                element = chance.choice(list(running))
                assert element not in called
                called.add(element)
                assert queue.complete(running.pop(element), -element)
            out += queue.emit_many(chance.randint(0, 3))
        kept = queue.snapshot()
        assert queue.close() == [entry.element for entry in kept]
    assert called == set(range(total))
    assert all(result == -element for element, result in out)
    elements = [element for element, _ in out]
    assert (elements if queue_type is OrderedQueue else sorted(elements)) == list(range(total))
