"""Result queues of many thousand entries: a completion is of the entry that its handle names."""

from __future__ import annotations

import random

import pytest

from pillarbox.kernel import OrderedQueue, UnorderedQueue


@pytest.mark.contract(convicts=["handles_of_large_queues_mixed_up"])
@pytest.mark.parametrize("queue_type", [OrderedQueue, UnorderedQueue])
@pytest.mark.parametrize("capacity", [3_000, 70_000])
def test_in_a_queue_of_many_thousands_each_completion_is_of_the_entry_that_its_handle_names(
    queue_type: type[OrderedQueue] | type[UnorderedQueue], capacity: int
) -> None:
    queue = queue_type(capacity)
    handles = [(queue.put(number), number) for number in range(capacity)]
    random.Random(1).shuffle(handles)
    assert all(queue.complete(handle, -number) for handle, number in handles)
    assert not any(queue.complete(handle, "again") for handle, _ in handles)
    pairs = queue.emit_many()
    assert all(result == -number for number, result in pairs)
    numbers = [number for number, _ in pairs]
    assert (numbers if queue_type is OrderedQueue else sorted(numbers)) == list(range(capacity))
