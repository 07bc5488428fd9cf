"""A ledger as a cache: results that are found by content, over jobs and days, and that expire.

A cache is a window in time. Each execution has a cut: it sees the records that are not older. By age the cut
is `max_age` before it begins; by size it is the time from which on everything has room in `max_bytes`. Who
expires deletes whole closed segments, the oldest first, and none that a running execution may still ask for.
The idea of a window over segments is that of a log's retention (Kafka).
"""

# How who expires knows what others may ask for. Each execution leaves a pin in the folder: a file with its
# cut, written before it looks what is there, and written again while it runs. The driver of a job lives
# somewhere else than its tasks, between two attempts of a task none of them runs, and an object store has no
# locks: so a pin is not a lock. One that was not written again for an hour is that of an execution that has
# ended. Two executions need nothing more of each other than the smaller cut.
#
# Why a cut is a time, by size too. A list of segments that an execution has given up would have to be merged
# along with them; a time stays true whatever is merged.
#
# Why a record is not deleted alone: a file would be written anew to make it shorter. Segments are merged into
# a few of a like size, each of records of a like age, so whole ones expire soon enough.

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, NamedTuple

from pillarbox.validate import check_limit_of_time, check_positive_int

if TYPE_CHECKING:
    from pillarbox.ledger.reader import Folder

CACHE_RUN = "~cache"
"""The run of what a cache has: none that a user may name."""

PIN_PREFIX = ".pin-"
"""Begins the names of pins; 16 hexadecimal digits follow."""

PIN_LIFE_S = 3600.0
"""Seconds for which a pin counts after it was written last."""

PIN_RENEWAL_S = 600.0
"""Seconds after which an execution that goes on writes its pin again."""

CUT_STEPS = 20
"""A stream's cut moves on by this part of `max_age`: with each step its tasks read the cache anew."""

MERGED_BYTES = 64 * 2**20
"""Bytes of a segment that is merged with others no more, about."""

SIZE_SHARE = 8
"""A merged segment has no more than this part of `max_bytes`."""

MAX_SMALL_SEGMENTS = 32
"""Closed segments that are smaller and are not merged yet."""

US = 1_000_000
"""Microseconds in a second: the unit of cuts, and of the times of records."""


@dataclass(frozen=True)
class Cache:
    """Says how long a ledger's results are kept where they are found by content.

    max_age: seconds after which a result is not an answer any more; None for no limit.
    max_bytes: bytes of what is kept of an operator, about; the oldest goes first. None for no limit.

    Both are looked at when a job begins. A value; any thread. Raises TypeError or ValueError that name the
    argument, its value and what is allowed.
    """

    _: KW_ONLY
    max_age: float | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        check_limit_of_time("max_age", self.max_age)
        if self.max_bytes is not None:
            check_positive_int("max_bytes", self.max_bytes)

    @property
    def merged_bytes(self) -> int:
        """The bytes of a segment that is merged with others no more."""
        return MERGED_BYTES if self.max_bytes is None else min(MERGED_BYTES, self.max_bytes // SIZE_SHARE)

    def cut(self, segments: list[SegmentAge], now: float) -> int:
        """The time before which records are too old, in microseconds since 1970; now: seconds since then."""
        cut = 0 if self.max_age is None else int((now - self.max_age) * US)
        if self.max_bytes is not None:
            left = self.max_bytes
            for segment in sorted(segments, reverse=True):
                left -= segment.size
                if left < 0:
                    return max(cut, int(segment.changed * US) + 1)
        return cut

    def cut_by_age(self, now: float) -> int:
        """The cut of a stream, by age alone: it moves on by steps."""
        if self.max_age is None:
            return 0
        step = max(1, int(self.max_age * US / CUT_STEPS))
        return -(int((self.max_age - now) * US) // step) * step


class SegmentAge(NamedTuple):
    """A segment, and when something was written into it last, in seconds since 1970."""

    changed: float
    name: str
    size: int


def pin(folder: Folder, owner: str, cut: int) -> None:
    """Say that the execution of 16 hexadecimal digits may ask for records from `cut` on. Any thread.

    Under the folder's lock, and before it is looked what is there. Raises LedgerError and OSError.
    """
    # spec: Cache!Pin
    folder.put(PIN_PREFIX + owner, str(cut).encode())


def renew_pin(folder: Folder, owner: str, cut: int) -> None:
    """Write a pin again unless it was lately. Any thread. Raises LedgerError and OSError."""
    name = PIN_PREFIX + owner
    try:
        if time.time() - folder.changed(name) < PIN_RENEWAL_S:
            return
    except FileNotFoundError:
        # It has lapsed; or this is the first task of a plan whose driver sees no folder.
        pass
    pin(folder, owner, cut)


def pinned_cuts(folder: Folder, now: float) -> dict[str, int]:
    """The cuts of the pins that count, by their names; those that count no more are deleted. Any thread."""
    cuts: dict[str, int] = {}
    for name in folder.names():
        if not name.startswith(PIN_PREFIX):
            continue
        try:
            if now - folder.changed(name) > PIN_LIFE_S:
                # spec: Cache!Lapse
                folder.remove(name)
                continue
            text = folder.read_whole(name)
        except FileNotFoundError:
            continue
        # What is torn may have been any cut.
        cuts[name] = int(text) if text.isdigit() else 0
    return cuts
