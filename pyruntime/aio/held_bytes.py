"""The bytes that an operator holds: rows in its window, results that wait. Confined to the mailbox thread."""

# To weigh each result: `size_of` walks through all that a result holds, which costs more than a call that
# returns at once. So numbers and the like are not weighed, and of results so small that a window full of them
# is no matter only one of sixteen is.

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any

from pillarbox.aio.calls import HELD, Call
from pillarbox.aio.errors import Failed
from pillarbox.aio.gate import Slots
from pillarbox.aio.options import Options
from pillarbox.aio.sizes import CALL_BYTES, LEDGER_BYTES, SMALL_TYPES, Weighed, size_of
from pillarbox.kernel.alike import Slot
from pillarbox.task.protocols import OperatorOutput

NOT_WEIGHED = SMALL_TYPES | {Failed}
"""Types of results that are not weighed."""

LIGHT_SHARE = 1 / 16
"""A window full of results that hold less than this share of `Buffer.max_bytes` is light."""

NEWEST_SHARE = 0.1
"""The part of the mean of results that the last one has: the mean is of some ten of them."""

LIGHT_RESULTS = 15
"""Results that are not weighed after one that belongs to a light window."""

_NBYTES = Slot(Weighed, "nbytes")


class HeldBytes:
    """Counts bytes up to `most`, and has no more calls in flight than find room for their results.

    most: `Buffer.max_bytes`. kept_back: that of the ledger's session; None without a ledger. `held` are the
    bytes of the rows in the window and of the results that were weighed. `light` are the results that are not
    weighed before the next one is: who completes a row counts them down, as it is on the path of every row.
    `output_is_full`: what is emitted waits for room there. `is_tight`: fewer calls may be in flight than
    `capacity` says, as their results would have no room.
    """

    __slots__ = (
        *("held", "is_tight", "light", "most", "output_is_full", "_call_bytes", "_kept_back", "_light_bytes"),
        *("_most_calls", "_output", "_result_bytes", "_rows_of_call", "_slots"),
    )

    _output: OperatorOutput
    _slots: Slots

    def __init__(self, options: Options, most: int, kept_back: Callable[[], tuple[bool, int]] | None) -> None:
        self.held = 0
        self.light = 0
        self.is_tight = self.output_is_full = False
        self.most = most
        # Where results are small, what a row takes besides is most of it.
        self._call_bytes = CALL_BYTES + (0 if kept_back is None else LEDGER_BYTES)
        self._light_bytes = most * LIGHT_SHARE / options.window
        self._most_calls = options.max_capacity
        self._rows_of_call = 1 if options.batch is None else options.batch.size
        # The mean of the last results.
        self._result_bytes = 0.0
        self._kept_back = kept_back

    def bind(self, slots: Slots, output: OperatorOutput) -> None:
        """Take the slots of the calls, and the output, which holds bytes too. Before the first row."""
        self._slots = slots
        self._output = output

    def left(self) -> int:
        """Bytes that have room; below 0 where more is held than may be."""
        left = self.most - self.held - self._output.held_bytes
        return left if self._kept_back is None else left - self._kept_back()[1]

    def weigh(self, call: Call, result: Any) -> None:
        """Count the bytes of a result, and begin no call whose result has no room."""
        size = size_of(result) + self._call_bytes
        call.held += size
        self.held += size
        self._result_bytes += (size - self._result_bytes) * NEWEST_SHARE if self._result_bytes else size
        self._look_at_room()

    def weigh_all(self, calls: Sequence[Call], results: Sequence[Any]) -> None:
        """Count the bytes of results that came together, as `weigh` does of each, but for light ones."""
        kinds = {*map(type, results)}
        if len(kinds) != 1 or not issubclass(kinds.pop(), Weighed):
            for call, result in zip(calls, results, strict=True):
                if type(result) in NOT_WEIGHED:
                    continue
                if self.light:
                    self.light -= 1
                else:
                    self.weigh(call, result)
            return
        count = len(results)
        if self.light >= count:
            self.light -= count
            return
        # They know their bytes, and those of one block have the same.
        sizes = [*map(self._call_bytes.__add__, _NBYTES.of(results))]
        HELD.put_each(calls, [*map(add, HELD.of(calls), sizes)])
        held = sum(sizes)
        self.held += held
        mean, before = held / count, self._result_bytes
        self._result_bytes = mean + (before - mean) * (1.0 - NEWEST_SHARE) ** count if before else mean
        self._look_at_room()

    def _look_at_room(self) -> None:
        """Begin no call whose result has no room beside those that have just been counted."""
        if self._result_bytes < self._light_bytes:
            self.light = LIGHT_RESULTS
        # Of that, up to a half may be with whoever takes the results: looked at only from here on.
        room = 0.5 * self.most - self.held
        # The limit of now is looked up for results only that have no room beside those of the most calls.
        is_close = self._result_bytes * self._most_calls > room
        if self.is_tight or (is_close and self._result_bytes * self._slots.limit > room):
            self.allow_calls()

    def allow_calls(self) -> None:
        """Let so many calls be in flight as will find room for their results, and one to go on with."""
        limit, row_bytes = self._slots.limit, self._result_bytes * self._rows_of_call
        room = int(self.left() / row_bytes) if row_bytes else limit
        self.is_tight = room < limit
        # Where the output is full or results wait for the disk, the end of that looks again; otherwise one
        # call must go on, or none would.
        waits = self.output_is_full or (self._kept_back is not None and self._kept_back()[0])
        self._slots.allow(max(room, 0 if waits else 1) if self.is_tight else None)
