"""The contract of the result queues: order, watermarks, capacity, handles, completion, the end."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import (
    WATERMARK,
    CapacityError,
    OrderedQueue,
    QueueClosedError,
    ResultQueue,
    UnorderedQueue,
    WrongThreadError,
)

QueueType = type[OrderedQueue] | type[UnorderedQueue]
both = pytest.mark.parametrize("queue_type", [OrderedQueue, UnorderedQueue])


def filled(queue_type: QueueType, entries: str, capacity: int = 16) -> tuple[ResultQueue, dict[str, int]]:
    """A queue with these entries, one letter each; `|` is a watermark. Handles by letter."""
    queue, handles = queue_type(capacity), {}
    for entry in entries:
        if entry == "|":
            queue.put_watermark("mark")
        else:
            handles[entry] = queue.put(entry)
    return queue, handles


def emitted(queue: ResultQueue) -> str:
    """Emit all that the queue can, as letters; checks that each has the result of its own completion."""
    letters = ""
    for element, result in queue.emit_many():
        if element is WATERMARK:
            assert result == "mark"
            letters += "|"
        else:
            assert result == element.upper()
            letters += element
    return letters


def complete(queue: ResultQueue, handles: dict[str, int], letters: str) -> None:
    for letter in letters:
        assert queue.complete(handles[letter], letter.upper()) is True


# ---- order


@pytest.mark.contract(
    "An ordered queue emits an entry when all before it have been emitted.",
    convicts=["passes_unfinished_head"],
)
def test_ordered_emits_an_entry_when_all_before_it_have_been() -> None:
    queue, handles = filled(OrderedQueue, "abcd")
    complete(queue, handles, "cb")
    assert emitted(queue) == ""
    complete(queue, handles, "a")
    assert emitted(queue) == "abc"
    complete(queue, handles, "d")
    assert emitted(queue) == "d"


@pytest.mark.contract(
    "An unordered queue emits in the order of completions.", convicts=["finished_in_reverse"]
)
def test_unordered_emits_in_the_order_of_completions() -> None:
    queue, handles = filled(UnorderedQueue, "abcd")
    complete(queue, handles, "db")
    assert emitted(queue) == "db"
    complete(queue, handles, "ac")
    assert emitted(queue) == "ac"


@pytest.mark.contract(convicts=["passes_watermark"])
@both
def test_no_element_passes_a_watermark_in_either_direction(queue_type: QueueType) -> None:
    queue, handles = filled(queue_type, "ab|cd|e")
    complete(queue, handles, "ec")
    assert emitted(queue) == ""
    complete(queue, handles, "a")
    assert emitted(queue) == "a"
    complete(queue, handles, "b")
    assert emitted(queue) == "b|c"
    complete(queue, handles, "d")
    assert emitted(queue) == "d|e"


@pytest.mark.contract(convicts=["watermark_not_finished"])
@both
def test_a_watermark_at_the_head_is_emitted_at_once_and_several_stay_in_order(queue_type: QueueType) -> None:
    queue = queue_type(4)
    for value in (1, 2, None):
        queue.put_watermark(value)
    assert queue.in_flight == 0
    assert [queue.emit() for _ in range(4)] == [(WATERMARK, 1), (WATERMARK, 2), (WATERMARK, None), None]


@pytest.mark.contract
@both
def test_after_one_completion_everything_that_it_lets_go_is_emitted(queue_type: QueueType) -> None:
    queue, handles = filled(queue_type, "a|bcd|e")
    complete(queue, handles, "bcde")
    assert not queue.has_completed()
    complete(queue, handles, "a")
    assert queue.has_completed()
    assert emitted(queue) == "a|bcd|e"
    assert not queue.has_completed()


@both
def test_emit_gives_pairs_and_none_when_there_is_nothing(queue_type: QueueType) -> None:
    queue = queue_type(2)
    assert queue.emit() is None
    handle = queue.put(None)
    assert queue.emit() is None
    queue.complete(handle, None)
    assert queue.emit() == (None, None)
    assert queue.emit() is None


@both
@pytest.mark.parametrize("limit", [0, 1, 63, 64, 65, 128, 200, 10**30])
def test_emit_many_keeps_its_limit(queue_type: QueueType, limit: int) -> None:
    queue = queue_type(150)
    for number in range(150):
        queue.complete(queue.put(number), -number)
    taken = queue.emit_many(limit)
    assert taken == [(number, -number) for number in range(min(limit, 150))]
    assert len(queue) == 150 - len(taken)
    assert queue.emit_many() == [(number, -number) for number in range(len(taken), 150)]


# ---- capacity


@pytest.mark.contract(convicts=["capacity_off_by_one"])
@both
def test_capacity_counts_elements_and_watermarks_until_they_are_emitted(queue_type: QueueType) -> None:
    queue, handles = filled(queue_type, "a|b", capacity=3)
    assert (queue.capacity, len(queue), queue.is_full, queue.is_empty, queue.in_flight) == (
        3,
        3,
        True,
        False,
        2,
    )
    for put in (queue.put, queue.put_watermark):
        with pytest.raises(CapacityError, match="3 entries") as raised:
            put("more")
        assert raised.value.capacity == 3
    complete(queue, handles, "a")
    assert queue.is_full and queue.in_flight == 1
    with pytest.raises(CapacityError):
        queue.put("more")
    assert emitted(queue) == "a|"
    assert not queue.is_full
    queue.put_watermark("mark")
    complete(queue, handles, "b")
    assert emitted(queue) == "b|"
    assert queue.is_empty


@pytest.mark.contract(convicts=["slot_not_freed"])
@both
def test_a_queue_of_capacity_one_works_for_ever(queue_type: QueueType) -> None:
    queue = queue_type(1)
    for number in range(1000):
        if number % 3:
            assert queue.complete(queue.put(number), -number)
            assert queue.emit() == (number, -number)
        else:
            queue.put_watermark(number)
            assert queue.emit() == (WATERMARK, number)


@both
@pytest.mark.parametrize("capacity", [0, -1, 2**24 + 1, 2**80])
def test_a_capacity_out_of_range_is_refused(queue_type: QueueType, capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity .*{capacity}"):
        queue_type(capacity)


@both
def test_arguments_of_a_wrong_kind_are_refused_by_name(queue_type: QueueType) -> None:
    with pytest.raises(TypeError, match="capacity"):
        queue_type(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit .*-1"):
        queue_type(1).emit_many(-1)
    with pytest.raises(TypeError):
        queue_type(1).complete("handle", 1)  # type: ignore[arg-type]


def test_the_base_is_not_constructible() -> None:
    with pytest.raises(TypeError, match="base"):
        ResultQueue(3)  # type: ignore[call-arg]


# ---- completion and handles


@pytest.mark.contract(convicts=["late_completion_overwrites"])
@both
def test_the_first_completion_wins_and_later_ones_are_counted(queue_type: QueueType) -> None:
    queue = queue_type(2)
    handle = queue.put("a")
    assert queue.complete(handle, "first") is True
    assert queue.complete(handle, "second") is False
    assert queue.emit() == ("a", "first")
    assert queue.complete(handle, "third") is False
    statistics = queue.statistics()
    assert (statistics.completed, statistics.late) == (1, 2)


@pytest.mark.contract(convicts=["earlier_attempt_accepted"])
@both
def test_a_handle_of_an_earlier_attempt_has_no_effect(queue_type: QueueType) -> None:
    queue = queue_type(2)
    first = queue.put("a")
    second = queue.renew(first)
    assert second != first
    assert queue.complete(first, "of the first attempt") is False
    assert not queue.has_completed()
    assert queue.complete(second, "of the second attempt") is True
    assert queue.emit() == ("a", "of the second attempt")
    assert queue.statistics()[-2:] == (1, 1)


@both
def test_only_the_present_attempt_of_an_unfinished_entry_can_be_renewed(queue_type: QueueType) -> None:
    queue = queue_type(2)
    first = queue.put("a")
    second = queue.renew(first)
    with pytest.raises(ValueError, match=str(first)):
        queue.renew(first)
    queue.complete(second, "A")
    for handle in (first, second, -1, 0, 10**15, 10**30):
        with pytest.raises(ValueError, match=str(handle)):
            queue.renew(handle)


@pytest.mark.contract
@both
def test_a_handle_of_a_reused_slot_has_no_effect(queue_type: QueueType) -> None:
    queue = queue_type(1)
    old = queue.put("a")
    queue.complete(old, "A")
    queue.emit()
    new = queue.put("b")
    assert queue.complete(old, "of a") is False
    assert queue.complete(new, "of b") is True
    assert queue.emit() == ("b", "of b")


@both
def test_numbers_that_are_no_handles_are_counted_and_nothing_else(queue_type: QueueType) -> None:
    queue = queue_type(3)
    queue.put_watermark("mark")
    handle = queue.put("a")
    for number in (
        0,
        -1,
        1,
        2,
        handle + 1,
        handle - 1,
        handle + (1 << 24),
        2**63 - 1,
        -(2**63),
        10**30,
        -(10**30),
    ):
        assert queue.complete(number, "X") is False
    assert queue.statistics().late == 11
    assert queue.complete(handle, "A") is True


# ---- what is held, and the end


@both
def test_a_snapshot_holds_what_was_not_emitted_in_the_order_of_admission(queue_type: QueueType) -> None:
    queue, handles = filled(queue_type, "ab|c")
    complete(queue, handles, "bc")
    mark = (WATERMARK, True, "mark")
    rest = [mark, ("c", True, "C")]
    assert queue.snapshot() == [("a", False, None), ("b", True, "B"), *rest]
    if queue_type is UnorderedQueue:
        assert queue.emit() == ("b", "B")
        assert queue.snapshot() == [("a", False, None), *rest]
        queue.put("d")
        assert queue.snapshot() == [("a", False, None), *rest, ("d", False, None)]
    assert queue.snapshot() == queue.snapshot()


@both
def test_clear_returns_what_was_not_emitted_and_ignores_its_completions(queue_type: QueueType) -> None:
    queue, handles = filled(queue_type, "abc|d", capacity=5)
    complete(queue, handles, "ac")
    assert queue.emit() is not None
    assert queue.clear() == ["b", "c", "d"]
    assert (len(queue), queue.in_flight, queue.snapshot(), queue.emit()) == (0, 0, [], None)
    assert not any(queue.complete(handle, "X") for handle in handles.values())
    assert queue.emit() is None
    assert queue.statistics().late == 4
    again = {letter: queue.put(letter) for letter in "vwxyz"}
    complete(queue, again, "zyxwv")
    assert emitted(queue) == ("vwxyz" if queue_type is OrderedQueue else "zyxwv")


@pytest.mark.contract
@both
def test_nothing_is_emitted_and_nothing_taken_in_after_close(queue_type: QueueType) -> None:
    queue, handles = filled(queue_type, "ab|")
    complete(queue, handles, "a")
    assert queue.close() == ["a", "b"]
    assert queue.emit() is None and queue.emit_many() == [] and not queue.has_completed()
    assert queue.complete(handles["b"], "B") is False
    for put in (queue.put, queue.put_watermark):
        with pytest.raises(QueueClosedError):
            put("c")
    assert queue.close() == [] and queue.clear() == []


@both
def test_statistics_are_frozen_and_add_up(queue_type: QueueType) -> None:
    queue, handles = filled(queue_type, "ab|c", capacity=8)
    complete(queue, handles, "ac")
    queue.emit()
    statistics = queue.statistics()
    assert statistics._asdict() == {
        "capacity": 8,
        "size": 3,
        "in_flight": 1,
        "restoring": 0,
        "admitted": 3,
        "watermarks": 1,
        "restored": 0,
        "completed": 2,
        "emitted": 1,
        "renewed": 0,
        "late": 0,
    }
    with pytest.raises(AttributeError):
        statistics.size = 0  # type: ignore[misc]


# ---- threads

CONFINED: dict[str, Callable[[ResultQueue, int], Any]] = {
    "put": lambda queue, handle: queue.put("b"),
    "put_watermark": lambda queue, handle: queue.put_watermark("mark"),
    "renew": lambda queue, handle: queue.renew(handle),
    "has_completed": lambda queue, handle: queue.has_completed(),
    "emit": lambda queue, handle: queue.emit(),
    "emit_many": lambda queue, handle: queue.emit_many(),
    "snapshot": lambda queue, handle: queue.snapshot(),
    "restore": lambda queue, handle: queue.restore([]),
    "admit_restored": lambda queue, handle: queue.admit_restored(),
    "clear": lambda queue, handle: queue.clear(),
    "close": lambda queue, handle: queue.close(),
}


@both
@pytest.mark.parametrize("operation", CONFINED)
def test_a_confined_operation_raises_in_another_thread_and_changes_nothing(
    queue_type: QueueType, operation: str, elsewhere: Callable[..., Any]
) -> None:
    queue = queue_type(4)
    handle = queue.put("a")
    before = queue.statistics()
    with pytest.raises(WrongThreadError, match="elsewhere"):
        elsewhere(lambda: CONFINED[operation](queue, handle))
    assert queue.statistics() == before
    assert queue.complete(handle, "A")


@pytest.mark.contract("A queue whose owner alone completes refuses completions of other threads.")
@both
def test_where_the_owner_alone_completes_another_thread_is_refused(
    queue_type: QueueType, elsewhere: Callable[..., Any]
) -> None:
    queue = queue_type(4, owner_completes=True)
    handle = queue.put("a")
    before = queue.statistics()
    with pytest.raises(WrongThreadError, match="elsewhere"):
        elsewhere(lambda: queue.complete(handle, "A"))
    assert queue.statistics() == before
    assert queue.complete(handle, "A")


@pytest.mark.contract(
    "Where the owner alone completes, the first completion of the present attempt wins, and is counted.",
    convicts=["alone_any_attempt", "alone_not_listed", "alone_not_counted"],
)
def test_where_the_owner_alone_completes_the_first_completion_of_the_present_attempt_wins() -> None:
    for queue_type in (OrderedQueue, UnorderedQueue):
        queue = queue_type(4, owner_completes=True)
        stale = queue.put("a")
        handle = queue.renew(stale)
        assert not queue.complete(stale, "of an earlier attempt")
        assert queue.in_flight == 1
        assert queue.complete(handle, "A")
        assert not queue.complete(handle, "too late")
        assert (queue.in_flight, queue.statistics().completed, queue.statistics().late) == (0, 1, 2)
        assert queue.emit_many() == [("a", "A")]


@both
def test_where_the_owner_alone_completes_who_adopts_the_queue_completes(
    queue_type: QueueType, elsewhere: Callable[..., Any]
) -> None:
    queue = queue_type(4, owner_completes=True)

    def use() -> list[Any]:
        queue.adopt()
        queue.complete(queue.put("a"), "A")
        return queue.emit_many()

    assert elsewhere(use) == [("a", "A")]
    with pytest.raises(WrongThreadError):
        queue.complete(1 << 24, "B")


@pytest.mark.parametrize("owner_completes", [False, True])
def test_a_ring_is_used_round_and_round_in_order(owner_completes: bool) -> None:
    queue, element = OrderedQueue(3, owner_completes=owner_completes), iter(range(100))
    held: list[tuple[int, int]] = []
    for _ in range(20):
        while not queue.is_full:
            number = next(element)
            held.append((number, queue.put(number)))
        assert [entry.element for entry in queue.snapshot()] == [number for number, _ in held]
        queue.complete(held[1][1], "later")
        assert queue.emit_many() == []
        queue.complete(held[0][1], "first")
        assert queue.emit_many(1) == [(held[0][0], "first")]
        assert queue.emit() == (held[1][0], "later")
        del held[:2]
    assert queue.clear() == [number for number, _ in held]
    assert queue.put("again") and queue.snapshot()[0].element == "again"


@both
def test_an_empty_queue_may_be_adopted(queue_type: QueueType, elsewhere: Callable[..., Any]) -> None:
    queue = queue_type(4)

    def take_over() -> int:
        queue.adopt()
        return queue.put("a")

    handle = elsewhere(take_over)
    with pytest.raises(WrongThreadError):
        queue.adopt()
    assert queue.complete(handle, "A")
    with pytest.raises(WrongThreadError):
        queue.emit()


@pytest.mark.contract
@both
def test_completions_of_many_threads_win_once_each_while_the_owner_emits(queue_type: QueueType) -> None:
    total, capacity, completers = 6000, 64, 3
    queue = queue_type(capacity)
    # Every completer tries every handle: exactly one of them wins each entry.
    offered: list[list[tuple[int, int]]] = [[] for _ in range(completers)]
    wins = [0] * completers
    arrived = threading.Condition()
    over = False

    def complete_all(who: int) -> None:
        shuffle = random.Random(who).shuffle
        while True:
            with arrived:
                arrived.wait_for(lambda: offered[who] or over)
                batch, offered[who] = offered[who], []
                if not batch:
                    return
            shuffle(batch)
            for handle, element in batch:
                wins[who] += queue.complete(handle, (element, who))

    threads = [threading.Thread(target=complete_all, args=(who,)) for who in range(completers)]
    for thread in threads:
        thread.start()
    out: list[int] = []
    admitted = 0
    while len(out) < total:
        fresh = []
        while admitted < total and not queue.is_full:
            fresh.append((queue.put(admitted), admitted))
            admitted += 1
        if fresh:
            with arrived:
                for mine in offered:
                    mine.extend(fresh)
                arrived.notify_all()
        for element, result in queue.emit_many(7):
            assert result[0] == element
            out.append(element)
    with arrived:
        over = True
        arrived.notify_all()
    for thread in threads:
        thread.join()
    assert (out if queue_type is OrderedQueue else sorted(out)) == list(range(total))
    assert sum(wins) == total
    statistics = queue.statistics()
    assert (statistics.completed, statistics.emitted, statistics.late) == (
        total,
        total,
        total * (completers - 1),
    )
