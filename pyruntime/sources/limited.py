"""`LimitedReader`: a reader whose splits wait where they have come beyond a limit of event time.

Confined to the task's thread, as the reader is. A reader that is told to pause a split has fetched some of it
already: that is put aside here, and comes first when the split goes on. So no split gives anything beyond the
limit but the batch with which it has passed it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from pillarbox.sources.fetcher import approximate_nbytes
from pillarbox.sources.reader import Fetched, SourceReader
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)

MAX_ASIDE = 64 * 2**20
"""Bytes that are put aside; what comes then of splits that are held is given out all the same."""


class LimitedReader(Generic[S]):
    """Polls `reader`, and holds back its splits that are beyond the limit, which is infinite at first.

    paused_or_resumed: called when splits of the reader have been paused or resumed. came: called when rows of
    a split that is paused have come, and are put aside.
    """

    def __init__(
        self,
        reader: SourceReader[S],
        paused_or_resumed: Callable[[Collection[str], Collection[str]], None],
        came: Callable[[str], None],
    ) -> None:
        self._reader = reader
        self._told = paused_or_resumed
        self._came = came
        self._limit = math.inf
        self._watermarks: dict[str, float] = {}
        self._held: set[str] = set()
        # A split of which something is put aside is paused, held or not.
        self._aside: dict[str, deque[tuple[Fetched, int]]] = {}
        self._nbytes = 0
        # Those of which something is put aside and which may go on, in that order.
        self._ready: dict[str, None] = {}

    def poll(self) -> Fetched | None:
        """The next rows of a split that is not held; None if there are none. Raises what the reader does."""
        for split_id in self._ready:
            return self._take_from_aside(split_id)
        # spec: Alignment!Read
        while (fetched := self._reader.poll()) is not None:
            split_id = fetched.split_id
            # What is behind something that was put aside is put there too.
            if split_id not in self._held and split_id not in self._aside:
                return fetched
            self._put_aside(split_id, fetched)
            if self._nbytes > MAX_ASIDE:
                return self._take_from_aside(split_id)
        return None

    @property
    def holds(self) -> bool:
        """Whether any split is held."""
        return bool(self._held)

    def limit(self, to: float) -> None:
        """Splits may be read up to this event time, in seconds, from now on."""
        # spec: Alignment!Obey
        before, self._limit = self._limit, to
        if to < before:
            self._hold([each for each, at in self._watermarks.items() if at > to and each not in self._held])
        else:
            self._release([each for each in self._held if self._watermarks[each] <= to])

    def passed(self, split_id: str, watermark: float) -> None:
        """What `poll` has given of the split has been given out, and has brought it to this watermark."""
        self._watermarks[split_id] = watermark
        if watermark > self._limit and split_id not in self._held:
            self._hold([split_id])

    def finished(self, split_id: str) -> None:
        """The split has been given out to its end."""
        self._watermarks.pop(split_id, None)
        self._held.discard(split_id)

    def _hold(self, split_ids: Collection[str]) -> None:
        self._held.update(split_ids)
        for split_id in split_ids:
            self._ready.pop(split_id, None)
        self._order([each for each in split_ids if each not in self._aside], ())

    def _release(self, split_ids: Collection[str]) -> None:
        self._held.difference_update(split_ids)
        self._ready.update(dict.fromkeys(each for each in split_ids if each in self._aside))
        self._order((), [each for each in split_ids if each not in self._aside])

    def _put_aside(self, split_id: str, fetched: Fetched) -> None:
        # spec: Alignment!WakeHeld
        self._came(split_id)
        nbytes = approximate_nbytes(fetched.records)
        self._nbytes += nbytes
        self._aside.setdefault(split_id, deque()).append((fetched, nbytes))

    def _take_from_aside(self, split_id: str) -> Fetched:
        aside = self._aside[split_id]
        fetched, nbytes = aside.popleft()
        self._nbytes -= nbytes
        if not aside:
            del self._aside[split_id]
            self._ready.pop(split_id, None)
            if not fetched.finished and split_id not in self._held:
                self._order((), (split_id,))
        return fetched

    def _order(self, pause: Collection[str], resume: Collection[str]) -> None:
        if pause or resume:
            self._reader.pause_or_resume_splits(pause, resume)
            self._told(pause, resume)
