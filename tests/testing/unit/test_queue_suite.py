"""The queue suite: queues that break one rule each are found out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pillarbox.kernel import WATERMARK, OrderedQueue, UnorderedQueue
from pillarbox.testing.suites import Disagreement, queue_suite
from tests.testing.unit.unshrunk import UNSHRUNK

CAPACITY = 3
Queue = OrderedQueue | UnorderedQueue


class LateCompletionCounts(OrderedQueue):
    def complete(self, handle: int, result: Any) -> bool:
        super().complete(handle, result)
        return True


class RenewKeepsTheHandle(OrderedQueue):
    def renew(self, handle: int) -> int:
        super().renew(handle)
        return handle


class ClearForgets(OrderedQueue):
    def clear(self) -> list[Any]:
        return super().clear()[:-1]


class CloseStaysOpen(OrderedQueue):
    def close(self) -> list[Any]:
        return self.clear()


class EmitsNoLimit(OrderedQueue):
    def emit_many(self, limit: int | None = None) -> list[tuple[Any, Any]]:
        return super().emit_many()


class SnapshotWithoutTheDoor(OrderedQueue):
    def snapshot(self, door: Iterable[Any] = ()) -> Any:
        return super().snapshot()


class SnapshotWithoutResults(OrderedQueue):
    def snapshot(self, door: Iterable[Any] = ()) -> Any:
        return [(element, False, None) for element, _, _ in super().snapshot(door)]


class RestoreShuffles(OrderedQueue):
    def restore(self, entries: Iterable[Any]) -> None:
        super().restore(list(entries)[::-1])


class RestoredAreCalledAgain(UnorderedQueue):
    def restore(self, entries: Iterable[Any]) -> None:
        super().restore([entry if entry[0] is WATERMARK else (entry[0], False, None) for entry in entries])


class RestoresNothing(UnorderedQueue):
    def restore(self, entries: Iterable[Any]) -> None:
        super().restore([])


class WatermarkIsAnEntryLikeOthers(UnorderedQueue):
    def put_watermark(self, watermark: Any) -> None:
        self.complete(self.put(WATERMARK), watermark)


class WatermarkIsDropped(UnorderedQueue):
    def put_watermark(self, watermark: Any) -> None:
        pass


class CompletesByValue(OrderedQueue):
    """Looks an entry up by its element."""

    def __init__(self, capacity: int) -> None:
        self.handles: dict[Any, int] = {}
        self.elements: dict[int, Any] = {}

    def put(self, element: Any) -> int:
        handle = super().put(element)
        self.handles[element], self.elements[handle] = handle, element
        return handle

    def renew(self, handle: int) -> int:
        new = super().renew(handle)
        if handle in self.elements:
            self.elements[new] = element = self.elements.pop(handle)
            self.handles[element] = new
        return new

    def complete(self, handle: int, result: Any) -> bool:
        if handle in self.elements:
            handle = self.handles[self.elements.pop(handle)]
        return super().complete(handle, result)


def run(make: Callable[[int], Any], ordered: bool) -> None:
    queue_suite(lambda: make(CAPACITY), capacity=CAPACITY, ordered=ordered, settings=UNSHRUNK)().runTest()


OUT = {"emit", "emit_many", "has_completed"}
WRONG: dict[Callable[[int], Any], tuple[bool, set[str]]] = {
    OrderedQueue: (False, OUT),
    UnorderedQueue: (True, OUT),
    LateCompletionCounts: (True, {"complete"}),
    RenewKeepsTheHandle: (True, {"renew"}),
    ClearForgets: (True, {"clear"}),
    CloseStaysOpen: (True, {"put", "put_watermark", "restore"}),
    EmitsNoLimit: (True, {"emit_many"}),
    SnapshotWithoutTheDoor: (True, {"snapshot"}),
    SnapshotWithoutResults: (True, {"snapshot"}),
    RestoreShuffles: (True, {"snapshot"}),
    RestoredAreCalledAgain: (False, {"snapshot", "admit_restored"}),
    RestoresNothing: (False, {"restoring", "snapshot", "len", "is_empty", "in_flight"}),
    WatermarkIsAnEntryLikeOthers: (False, OUT | {"snapshot"}),
    WatermarkIsDropped: (False, {"len", "is_empty", "is_full", "put_watermark from another thread"}),
    CompletesByValue: (True, OUT | {"snapshot", "complete", "renew", "in_flight"}),
}


@pytest.mark.contract
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_queue_is_found_out_by_the_operation_that_is_wrong(wrong: Callable[[int], Any]) -> None:
    ordered, operations = WRONG[wrong]
    with pytest.raises(Disagreement) as found:
        run(wrong, ordered)
    assert found.value.operation in operations


def test_a_capacity_that_is_not_kept_is_found() -> None:
    with pytest.raises(Disagreement) as found:
        run(lambda capacity: OrderedQueue(capacity + 1), True)
    assert found.value.operation in {"is_full", "put", "put_watermark", "statistics"}
