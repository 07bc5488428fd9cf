"""Any orders at any time: a reader gives the rows of a split from where it begins, each once, in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext
from tests.search import examples
from tests.sources.unit.number_source import LONG, Range, Script

ROWS = 60

orders = st.lists(
    st.tuples(st.sampled_from(["add", "pause", "resume", "poll", "poll", "poll"]), st.integers(0, 3)),
    max_size=60,
)


@pytest.mark.contract
@settings(max_examples=examples(150), deadline=None)
@given(orders, st.sampled_from(list(Threading)), st.integers(1, 3), st.integers(1, 25))
def test_orders_between_fetches_lose_nothing_and_repeat_nothing(
    orders: list[tuple[str, int]], model: Threading, max_batches: int, batch: int
) -> None:
    script = Script(batch=batch)
    reader: FetchingReader[Range] = FetchingReader(
        ReaderContext(6), script.make, threading=model, max_batches=max_batches
    )
    reader.start()
    left: dict[str, int] = {}
    paused: set[str] = set()

    def take(fetched: Any) -> None:
        assert fetched.split_id not in paused
        # `next` is where the rows of this split must go on.
        start = left[fetched.split_id]
        numbers = [number for _, number in fetched.records]
        assert numbers == list(range(start, start + len(numbers)))
        left[fetched.split_id] += len(numbers)
        if fetched.finished:
            assert left.pop(fetched.split_id) == ROWS
        assert {split.split_id: split.start for split in reader.splits()} == left

    try:
        for order, number in orders:
            split_id = f"s{number}"
            if order == "add" and split_id not in left:
                left[split_id] = number
                reader.add_splits([Range(split_id, number, ROWS)])
            elif order == "pause" and split_id in left:
                paused.add(split_id)
                reader.pause_or_resume_splits([split_id], [])
            elif order == "resume":
                paused.discard(split_id)
                reader.pause_or_resume_splits([], [split_id])
            elif order == "poll" and (fetched := reader.poll()) is not None:
                take(fetched)
        reader.pause_or_resume_splits([], list(paused))
        paused.clear()
        while left:
            fetched = reader.poll()
            if fetched is not None:
                take(fetched)
            elif (future := reader.available()) is not None:
                future.result(timeout=LONG)
        assert reader.poll() is None
    finally:
        reader.close()
