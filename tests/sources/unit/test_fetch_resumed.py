"""A split that goes on while rows of it are still set aside: its client fetches it again."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import ReaderContext
from tests.sources.unit.number_source import Range, Script, by_split, next_batch


@pytest.mark.contract(
    "A split that goes on while rows of it are set aside is fetched again when these have been taken.",
    convicts=["resumed_split_not_told"],
)
def test_a_split_that_goes_on_before_its_shelf_is_empty_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script()
    reader: FetchingReader[Range] = FetchingReader(
        ReaderContext(subtask=5), script.make, threading=Threading.MANY_SPLITS, max_batches=1
    )
    reader.start()
    try:
        reader.add_splits([Range("a"), Range("b")])
        while (fetched := next_batch(reader)).split_id != "b":
            pass
        rows = [*fetched.records]
        reader.pause_or_resume_splits(["a"], [])
        (fetcher,) = reader._fetchers
        while not fetcher._aside:
            if (more := reader.poll()) is not None:
                rows += more.records
        # The pause of the other split says that the fetcher has heeded both orders.
        reader.pause_or_resume_splits(["b"], ["a"])
        script.wait_for(lambda: any("b" in paused for paused, _ in script.told("paused")))
        told: list[Any] = []
        tell = fetcher.tell
        monkeypatch.setattr(fetcher, "tell", lambda *new: (told.append(threading.get_ident()), tell(*new)))
        while fetcher._aside:
            fetched = next_batch(reader)
            assert fetched.split_id == "a"
            rows += fetched.records
        assert told == [threading.get_ident()]
        fetches = len(script.told("fetch"))
        script.wait_for(lambda: len(script.told("fetch")) > fetches)
        rows += next_batch(reader).records
    finally:
        script.release()
        reader.close()
    numbers = by_split(rows)["a"]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
