"""`read_splits`: drives a reader in the calling thread until its splits have been read.

For whoever has no task around it: Spark's partitions, tests, a loop of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pillarbox.sources.reader import Fetched, SourceReader
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)


def read_splits(reader: SourceReader[S], splits: Iterable[S] | Callable[[], S | None]) -> Iterator[Fetched]:
    """What `reader` reads of `splits`: starts it, gives what it polls as it comes, and closes it.

    splits: all of them; or a function that gives the next one, called when the one before is finished, until
    it gives None. What is finished is given too, even with no rows.

    In the thread that iterates, which waits where nothing is there. Closing the iterator closes the reader.
    Raises what the reader raises.
    """
    ask: Callable[[], S | None] | None
    if callable(splits):
        ask, given = splits, []
    else:
        ask, given = None, list(splits)
    try:
        reader.start()
        if given:
            reader.add_splits(given)
        left = {split.split_id for split in given}
        while True:
            if not left:
                split = None if ask is None else ask()
                if split is None:
                    return
                left.add(split.split_id)
                reader.add_splits([split])
            fetched = reader.poll()
            if fetched is None:
                future = reader.available()
                if future is not None:
                    future.result()
                continue
            if fetched.finished:
                left.remove(fetched.split_id)
            yield fetched
    finally:
        reader.close()
