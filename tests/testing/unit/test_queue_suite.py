"""The queue suite and its books: queues that break one rule each are found out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pillarbox.kernel import WATERMARK, OrderedQueue, UnorderedQueue
from pillarbox.testing import queue_suite
from pillarbox.testing.suites.machine import Disagreement
from pillarbox.testing.suites.queue import Bookkeeping, BookkeepingError
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
    WatermarkIsDropped: (False, {"len", "is_empty", "is_full"}),
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


def books(
    *output: int, ordered: bool = True, position: int = 4, marks: set[int] | None = None
) -> Bookkeeping:
    return Bookkeeping(
        ordered, position, output=[(number, f"result {number}") for number in output], marks=marks or set()
    )


def test_books_in_which_everything_came_out_once_and_in_order_are_right() -> None:
    books(0, 1, 2, 3).check()
    books(1, 0, 2, 3, ordered=False, marks={2}).check()
    given_back = books(0, 1)
    given_back.returned = [2]
    given_back.door = [3]
    given_back.check()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (books(0, 1, 3), "came out"),
        (books(0, 1, 2, 2, 3), "came out"),
        (books(0, 1, 2, 3, 4), "came out"),
        (books(0, 2, 1, 3), "in the order"),
        (books(0, 2, 1, 3, ordered=False, marks={2}), r"\[1\] passed the watermark 2"),
        (books(0, 3, 2, 1, ordered=False, marks={2}), r"\[3, 1\] passed the watermark 2"),
    ],
)
def test_wrong_books_are_refused(wrong: Bookkeeping, message: str) -> None:
    with pytest.raises(BookkeepingError, match=message):
        wrong.check()


def test_a_saved_result_is_neither_replaced_nor_asked_for_again() -> None:
    saved = Bookkeeping(True, 2, saved_results={0: "r", 1: "s"})
    saved.emitted((0, "r"), WATERMARK)
    with pytest.raises(BookkeepingError, match="had the result 's', emitted was 'x'"):
        saved.emitted((1, "x"), WATERMARK)
    with pytest.raises(BookkeepingError, match="is called again"):
        saved.called_again(1)
