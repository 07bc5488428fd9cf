"""A bounded source without Spark, in the calling thread: what its reader takes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pillarbox.sources import Fetched, Source
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.sources.split_coordinator import SplitCoordinator


def fetched(source: Source[Any, Any]) -> Iterator[Fetched]:
    """All that one reader gets of it, split by split."""
    enumerator: Any = source.create_enumerator(SplitCoordinator(1, planned=True))
    try:
        splits: list[Any] = []
        while True:
            found, enumerator.checkpoint = enumerator.discover(enumerator.checkpoint, 1000)
            if not found:
                break
            splits += found
        yield from read_splits(source.create_reader(ReaderContext()), splits)
    finally:
        enumerator.close()
