"""`read_splits`: drives a reader in the calling thread until its splits have been read.

For whoever has no task around it: Spark's partitions, tests, a loop of one's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from pillarbox.sources.reader import Fetched, Progress, ReaderContract, SourceReader
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)

SHORT_SPLIT_S = 1.0
"""Of splits that take less the next one is asked for while one is read, so that the reader's threads go on.
Where they take longer the time in which nothing is read is no matter, and whoever has nothing to do had
better have it."""


def read_splits(
    reader: SourceReader[S], splits: Iterable[S] | Callable[[], S | Future[S | None] | None]
) -> Iterator[Fetched]:
    """Read `splits` with `reader`: starts it, gives what it polls as it comes, and closes it.

    splits: all of them; or a function that gives the next one, until it gives None. It is called when nothing
    else is left; and, when the split before has taken less than a second, already while the last one is read.
    One that would have to wait gives a future instead: until that is done the last one is read on. What is
    finished is given too, even with no rows.

    In the thread that iterates, which waits where nothing is there. Closing the iterator closes the reader.
    Raises what the reader and the function raise.
    """
    contract = None if reader.is_checked else ReaderContract(reader, "poll")
    left: dict[str, Progress[S]] = {}
    ask = splits if callable(splits) else None
    asked: S | Future[S | None] | None = None
    began, is_short = time.monotonic(), False

    def add(new: Sequence[S]) -> None:
        left.update((split.split_id, Progress(split)) for split in new)
        reader.add_splits(new)

    try:
        reader.start()
        if not callable(splits):
            add(list(splits))
        while True:
            while ask is not None and len(left) <= is_short:
                if asked is None:
                    asked = ask()
                if isinstance(asked, Future):
                    if left and not asked.done():
                        break
                    asked = asked.result()
                if asked is None:
                    ask = None
                else:
                    add([asked])
                    asked = None
            if not left:
                return
            fetched = reader.poll()
            if fetched is None:
                future = reader.available()
                if future is not None:
                    future.result()
                continue
            if contract is not None:
                contract.check_kind(fetched)
                contract.check(fetched, left.get(fetched.split_id))
                left[fetched.split_id].position = fetched.position
            if fetched.finished:
                del left[fetched.split_id]
                now = time.monotonic()
                began, is_short = now, now - began < SHORT_SPLIT_S
            yield fetched
    finally:
        reader.close()
