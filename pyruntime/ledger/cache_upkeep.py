"""The upkeep of caches: what a job does at its beginning, and `pillarbox ledger expire` at any time.

Any thread, any process, several at a time.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import NamedTuple

from pillarbox.ledger.cache import MAX_SMALL_SEGMENTS, Cache, SegmentAge, pin, pinned_cuts, renew_pin
from pillarbox.ledger.errors import LedgerBusyError, LedgerError
from pillarbox.ledger.keys import Scope
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.maintenance import compact
from pillarbox.ledger.reader import Folder, is_own
from pillarbox.ledger.writer import COMMIT_LOCK_TIMEOUT_S

log = logging.getLogger("pillarbox")


class Expired(NamedTuple):
    """The outcome of an expiry: segments and bytes deleted, and executions that kept others from it."""

    segments: int = 0
    bytes: int = 0
    in_use_by: int = 0


def begin_execution(ledger: Ledger, scope: Scope, owner: str, *, by_age: bool = False) -> int:
    """Pin what an execution may ask for, expire and merge; returns its cut. For the driver.

    owner: 16 hexadecimal digits that name the execution. by_age: the cut is by age alone, as that of a
    stream, which may run for as long as it likes. Upkeep that fails is said and no more.
    Raises LedgerError and OSError where not even the pin can be written.
    """
    cache = ledger.cache_limits
    folder = ledger.folder(scope)
    try:
        folder.make()
        with folder.lock(COMMIT_LOCK_TIMEOUT_S):
            cut = cache.cut(folder.segments_by_age(), time.time())
            try:
                _delete(folder, scope, cut)
            except (LedgerError, OSError) as error:
                log.warning("what is too old in %s was not deleted: %s", folder.path, error)
            cut = cache.cut_by_age(time.time()) if by_age else cut
            pin(folder, owner, cut)
    finally:
        folder.close()
    try:
        merge_small(ledger, scope, cache)
    except (LedgerError, OSError) as error:
        log.warning("segments of %s were not merged: %s", folder.path, error)
    return cut


def join_execution(ledger: Ledger, scope: Scope, owner: str, cut: int | None) -> int:
    """Have a task take part in an execution; returns the cut that it goes by. Any thread.

    cut: that of the execution; None for one of its own, by age alone. Raises LedgerError and OSError.
    """
    folder = ledger.folder(scope)
    try:
        folder.make()
        with folder.lock(COMMIT_LOCK_TIMEOUT_S):
            if cut is None:
                cut = ledger.cache_limits.cut_by_age(time.time())
            renew_pin(folder, owner, cut)
    finally:
        folder.close()
    return cut


def expire_cache(ledger: Ledger, scope: Scope, cache: Cache) -> Expired:
    """Delete the segments of a cache that are beyond the limits of `cache`, and that no execution needs.

    `Cache(max_bytes=1)` leaves what is needed only. Raises LedgerBusyError, LedgerError and OSError.
    """
    folder = ledger.folder(scope)
    try:
        if not folder.exists():
            return Expired()
        with folder.lock(COMMIT_LOCK_TIMEOUT_S):
            return _delete(folder, scope, cache.cut(folder.segments_by_age(), time.time()))
    finally:
        folder.close()


def _delete(folder: Folder, scope: Scope, cut: int) -> Expired:
    """Delete closed segments whose records are all older than `cut` and than every pin. Under the lock."""
    # spec: Cache!Choose
    pins = pinned_cuts(folder, time.time())
    limit = min([cut, *pins.values()])
    gone = size = 0
    for segment in sorted(folder.segments_by_age()):
        if segment.changed * 1_000_000 >= limit:
            break
        if folder.is_open(segment.name) or not is_own(folder, scope.about, segment.name, segment.size):
            continue
        # spec: Cache!Expire
        folder.remove(segment.name)
        gone, size = gone + 1, size + segment.size
    return Expired(gone, size, sum(each < cut for each in pins.values()))


def merge_small(ledger: Ledger, scope: Scope, cache: Cache) -> None:
    """Merge closed segments of a like age, where many are small. Raises LedgerError and OSError."""
    most = cache.merged_bytes
    folder = ledger.folder(scope)
    try:
        small = [each for each in sorted(folder.segments_by_age()) if each.size < most // 2]
    finally:
        folder.close()
    if len(small) <= MAX_SMALL_SEGMENTS:
        return
    for group in _groups(small, most):
        # Another process is at it.
        with suppress(LedgerBusyError):
            # spec: Cache!Merge
            compact(ledger, scope, only={each.name for each in group})


def _groups(segments: list[SegmentAge], most: int) -> list[list[SegmentAge]]:
    """Segments that follow one another, of `most` bytes together."""
    groups: list[list[SegmentAge]] = [[]]
    size = 0
    for segment in segments:
        if groups[-1] and size + segment.size > most:
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += segment.size
    return groups
