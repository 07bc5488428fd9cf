"""Finds out what makes batches fail: one of their rows, their number of rows, or a fault that all rows meet.

Decides which rows are called next of those that failed; `BatchRunner` calls them. Confined to the mailbox
thread.
"""

# Halving finds one bad row of n with 2 log2(n) calls. Where every row fails it needs 2n, and for a service
# that takes ten texts at a time it is done anew for each batch. So where several batches in a row fail alike,
# the cause is looked for once, and those that fail so meanwhile wait for what is found.
#
# - Single rows are tried, far apart. Where one does well, the batch has a bad row or is too large. Where ten
#   in a row fail alike, so do all: the batch fails, those that wait with it, and the next ones are not taken
#   apart.
# - Pieces are tried one after the other, to find the largest that does well, by bisecting the number of rows.
#   A row that fails alone, or a piece that fails though a larger one did well, says that it is not that.
#
# Ten rows prove nothing of the next batch. So whatever was found is tried again, with one row of the batches
# that fail later, and is dropped with the first that does well; a limit of the number with a larger batch now
# and then. What that costs is a call for each batch, or for some: the alternative, to believe what was found,
# loses rows, and the other one, to take each batch apart, costs two calls a row for ever.

from __future__ import annotations

import logging
import math
import time
from collections import deque

from pillarbox.aio.calls import Call
from pillarbox.aio.causes import Cause

log = logging.getLogger("pillarbox")

SCOUTS = 10
"""Rows that fail alone, and alike, before all rows are taken to fail so."""
MANY = 3
"""Calls of several rows that fail alike, one after the other: fewer may be chance."""
LARGER_AFTER = 64
"""Batches of a size that was found, after which a larger one is tried."""
MEMORY_S = 60.0
"""Seconds for which other operators of the process know what all rows of a function fail with."""

_known: dict[tuple[str, Cause], float] = {}
"""The causes that all rows of functions failed with, by their names, and until when tasks begin with that."""


class Inquiry:
    """The batches that wait for what is found of one cause; `calls` are their rows that wait."""

    __slots__ = (
        *("_tried", "calls", "cause", "failed_alone", "high", "is_sizing", "leader", "low", "sent", "well"),
    )

    def __init__(self, cause: Cause, leader: object) -> None:
        self.cause = cause
        self.leader: object | None = leader
        """The batch that is called now for all; None between two calls."""
        self.calls: deque[Call] = deque()
        self._tried: set[Call] = set()
        self.failed_alone = 0
        self.is_sizing = False
        self.sent = 0
        """Rows of the batch that it began with."""
        self.low, self.high = 1, 0
        """Rows of the largest call that did well, and of the smallest that did not."""
        self.well = 0
        """Rows that have done well since the last call that did not, whose rows come first."""

    @property
    def is_over(self) -> bool:
        """True if the size is known, and the rows of the smallest failed call do well in smaller ones."""
        return self.high - self.low <= 1 and self.well >= self.high

    def next_calls(self) -> list[Call]:
        """Take the rows to be called next out of those that wait, which are some."""
        calls = self.calls
        if not self.is_sizing:
            for _ in range(len(calls)):
                # Far apart: what is beside a bad row is often bad as well.
                calls.rotate(-(1 + len(calls) * 5 // 13))
                if calls[0] not in self._tried:
                    break
            self._tried.add(calls[0])
            return [calls.popleft()]
        rows = min(len(calls), max(1, (self.low + self.high) // 2))
        return [calls.popleft() for _ in range(rows)]


class BatchSearch:
    """The knowledge of why batches of one operator fail. name: its function's."""

    def __init__(self, name: str, size: int) -> None:
        self.inquiry: Inquiry | None = None
        self.most = size
        """Rows of a batch, at most: the size that was given, or a smaller one that was found."""
        self.suggested = math.inf
        """Rows of a batch, at most, by what the function says of the service; see `CurrentCall`."""
        self._name = name
        self._size = size
        self._all: Cause | None = None
        self._has_succeeded = False
        self._in_a_row = 0
        self._many = MANY
        self._alike: Cause | None = None
        self._alone = self._fresh = 0
        # Causes that have nothing to do with the number of rows, as a row failed with them alone.
        self._not_of_size: set[Cause] = set()
        self._limited_by: Cause | None = None
        self._at_most = 0

    @property
    def holds(self) -> bool:
        """True while rows that were not called wait for what is found."""
        return self.inquiry is not None and self.inquiry.high > 0

    def succeeded(self, rows: int, is_whole: bool) -> None:
        """A call of so many rows did well."""
        self._has_succeeded = True
        self._in_a_row = self._alone = self._fresh = 0
        if self._all is not None:
            _known.pop((self._name, self._all), None)
            self._all = None
        if self.most < self._size and rows > self.most:
            self._drop_limit()
        elif is_whole and rows == self.most:
            self._at_most += 1

    def rows_now(self) -> int:
        """Rows of the next batch, at most."""
        most = self.most
        if most < self._size and self._at_most >= LARGER_AFTER:
            most = min(self._size, most + 1 + most // 8)
        return most if self.suggested >= most else max(1, int(self.suggested))

    def began(self, rows: int) -> None:
        """A batch of rows that had not been called is called."""
        if rows > self.most:
            self._at_most = 0

    def failed(self, cause: Cause, is_fresh: bool) -> None:
        """A call of several rows has failed, which was the first one of them or another."""
        self._fresh += is_fresh
        self._in_a_row = self._in_a_row + 1 if cause == self._alike else 1
        self._alike = cause
        if self._all is None and _known.get((self._name, cause), 0.0) > time.monotonic():
            self._all = cause

    def failed_alone(self, cause: Cause) -> None:
        """A row has failed for good that was called alone."""
        self._alone = self._alone + 1 if cause == self._alike else 1
        self._alike = cause
        self._not_of_size.add(cause)
        if cause == self._limited_by:
            self._drop_limit()
        # Near the end of the input only those rows are left that fail.
        if self._alone >= SCOUTS and self._fresh >= MANY:
            self._believe(cause)

    def is_worth_it(self, cause: Cause, rows: int, is_part: bool) -> bool:
        """Return True if a batch that failed, or a part of one, is to be looked into for all."""
        if cause == self._all:
            return not is_part
        # A small one is taken apart with as many calls.
        few = self._many > MANY or self._has_succeeded or is_part
        return rows > SCOUTS and self._in_a_row >= (self._many if few else 2)

    def was_in_vain(self) -> None:
        """An inquiry has found a row that does well: another one takes more to begin."""
        self._many *= 2

    def is_of_all(self, inquiry: Inquiry) -> bool:
        """Return True if enough rows have failed alone, after another one."""
        needed = 1 if inquiry.cause == self._all else SCOUTS
        if inquiry.failed_alone < needed:
            return False
        self._believe(inquiry.cause)
        return True

    def _believe(self, cause: Cause) -> None:
        if self._all != cause:
            log.warning(
                "%s: %d rows failed alone, and alike, as their batches did, with %s: batches that fail so "
                "are not taken apart from now on",
                self._name,
                SCOUTS,
                cause.type,
            )
        self._all = cause
        while len(_known) > 100:
            _known.pop(next(iter(_known)))
        _known[self._name, cause] = time.monotonic() + MEMORY_S

    def may_be_of_size(self, inquiry: Inquiry) -> bool:
        """Return True if the number of rows may be the cause, once a row has done well alone."""
        return inquiry.cause not in self._not_of_size and inquiry.high > inquiry.low + 1

    def learn(self, inquiry: Inquiry) -> None:
        """Pieces of `inquiry.low` rows do well, and no larger ones."""
        if inquiry.low >= self.most or (inquiry.low < 2 and inquiry.high > 2):
            return
        self.most = inquiry.low
        self._limited_by = inquiry.cause
        self._at_most = 0
        log.warning(
            "%s fails with more than %d rows in a call and gets no more from now on: give Batch(%d)",
            self._name,
            self.most,
            self.most,
        )

    def _drop_limit(self) -> None:
        if self._limited_by is not None:
            self._not_of_size.add(self._limited_by)
            self._limited_by = None
        self.most = self._size
