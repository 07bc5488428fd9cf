"""`read_splits`: drives a reader in the calling thread until its splits have been read.

For whoever has no task around it: Spark's partitions, tests, a loop of one's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

from pillarbox.sources.contract import ReaderContract
from pillarbox.sources.fetching import FetchingReader
from pillarbox.sources.reader import Fetched, SourceReader
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)

SHORT = 1.0
"""Seconds. Of splits that take less the next one is asked for while one is read. Where they take longer the
time in which nothing is read is no matter, and whoever has nothing to do had better have it."""


def read_splits(reader: SourceReader[S], splits: Iterable[S] | Callable[[], S | None]) -> Iterator[Fetched]:
    """What `reader` reads of `splits`: starts it, gives what it polls as it comes, and closes it.

    splits: all of them; or a function that gives the next one, until it gives None. It is called when nothing
    else is left; and, when the split before has taken less than a second, already while the last one is read,
    in a thread of its own, one call at a time. What it has given is read, unless the iterator is closed.
    What is finished is given too, even with no rows.

    In the thread that iterates, which waits where nothing is there. Closing the iterator closes the reader,
    and does not wait for a call that goes on. Raises what the reader raises; what the function raises, after
    the rows of the splits before.
    """
    if not callable(splits):
        yield from _read(reader, list(splits), None)
        return
    asking = _Asking(splits)
    try:
        yield from _read(reader, [], asking)
    finally:
        asking.close()


def _read(reader: SourceReader[S], given: list[S], asking: _Asking[S] | None) -> Iterator[Fetched]:
    try:
        reader.start()
        if given:
            reader.add_splits(given)
        # Each with where it stands. What fetchers give they have checked.
        left = {split.split_id: (split, split.start) for split in given}
        contract = None if isinstance(reader, FetchingReader) else ReaderContract(reader, "poll")
        began, ahead = time.monotonic(), False

        def take_up(split: S | None) -> bool:
            if split is None:
                return False
            left[split.split_id] = split, split.start
            reader.add_splits([split])
            return True

        while True:
            if asking is not None and len(left) < 2:
                if not left and not take_up(asking.next()):
                    return
                take_up(asking.next_if_known(ahead))
            elif not left:
                return
            fetched = reader.poll()
            if fetched is None:
                future = reader.available()
                if future is not None:
                    future.result()
                continue
            if contract is not None:
                contract.check_kind(fetched)
                if fetched.split_id not in left:
                    contract.refuse_unknown(fetched.split_id)
                split, reached = left[fetched.split_id]
                contract.check(fetched, split, reached)
                left[fetched.split_id] = split, fetched.position
            if fetched.finished:
                del left[fetched.split_id]
                now = time.monotonic()
                began, ahead = now, now - began < SHORT
            yield fetched
    finally:
        reader.close()


class _Asking(Generic[S]):
    """Asks for splits, if need be ahead, in a thread. Confined to the thread that reads."""

    def __init__(self, ask: Callable[[], S | None]) -> None:
        self._ask = ask
        self._thread: threading.Thread | None = None
        self._questions: SimpleQueue[Future[S | None] | None] = SimpleQueue()
        self._answer: Future[S | None] | None = None
        self._closed = False

    def next(self) -> S | None:
        """The next split; waits for it. None: there is none. Raises what asking has raised."""
        if self._answer is None:
            return self._ask()
        answer, self._answer = self._answer, None
        return answer.result()

    def next_if_known(self, ahead: bool) -> S | None:
        """The next split, if it was asked for and is there. If nobody has asked, `ahead` does."""
        answer = self._answer
        if answer is None:
            if ahead:
                self._begin()
            return None
        # The end, and a failure, keep until all is read.
        if not answer.done() or answer.exception() is not None or answer.result() is None:
            return None
        return self.next()

    def close(self) -> None:
        """End the thread; a call that goes on ends it later."""
        self._closed = True
        if self._thread is not None:
            self._questions.put(None)
            if self._answer is None or self._answer.done():
                self._thread.join()

    def _begin(self) -> None:
        self._answer = Future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pillarbox-ask", daemon=True)
            self._thread.start()
        self._questions.put(self._answer)

    def _run(self) -> None:
        while (answer := self._questions.get()) is not None and not self._closed:
            try:
                answer.set_result(self._ask())
            except BaseException as error:
                answer.set_exception(error)
