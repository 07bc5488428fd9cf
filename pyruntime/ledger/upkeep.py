"""Compaction merges the closed segments of a scope into one; a cache deletes what is too old or too much.

The merged segment is written beside the others and synced, gets its name, and only then are the others
deleted. Killed at any moment, everything is found: perhaps twice, which is the same. Segments that a process
appends to are left alone. One compaction of a scope at a time. Any thread, any process.

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

import logging
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple

from pillarbox.ledger.errors import LedgerBusyError, LedgerError
from pillarbox.ledger.folders import Folder
from pillarbox.ledger.format import encode_frame, header, message_of, owner_of
from pillarbox.ledger.keys import Scope
from pillarbox.ledger.ledger import Cache, Ledger
from pillarbox.ledger.local_folder import PART, SUFFIX, LocalFolder, Segment, by_age
from pillarbox.ledger.reader import LedgerReader, is_own
from pillarbox.ledger.writer import COMMIT_LOCK_TIMEOUT_S, FRAME_BYTES

log = logging.getLogger("pillarbox")

COMPACTION_LOCK = ".compact"
COMPACTION_LOCK_TIMEOUT_S = 1.0


@dataclass
class Compacted:
    """The outcome of a compaction."""

    segments: int = 0
    """Merged and deleted."""
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    damaged: int = 0
    """Parts that were left out."""


def compact(
    ledger: Ledger,
    scope: Scope,
    *,
    only: Collection[str] | None = None,
    lock_timeout: float = COMPACTION_LOCK_TIMEOUT_S,
) -> Compacted:
    """Merge the closed segments of a scope; nothing is done where there is one or none.

    only: the names of those that are merged; None for all. lock_timeout: seconds to wait for each lock.

    Raises LedgerFullError, and LedgerError if another compaction of the scope is at work.
    """
    folder = ledger.folder(scope)
    if not folder.segments():
        return Compacted()
    with folder.lock(lock_timeout, COMPACTION_LOCK):
        if isinstance(folder, LocalFolder):
            folder.remove_parts()
        with folder.lock(lock_timeout):
            # Under the lock a segment that has just been made is locked by its writer already.
            closed = [each for each in folder.segments() if not folder.is_open(each.name)]
        # What a merge takes it deletes: no file of somebody else, and no segment that was copied there.
        closed = [
            each
            for each in closed
            if (only is None or each.name in only) and is_own(folder, scope.about, each.name, each.size)
        ]
        return _merge(ledger, folder, closed, scope) if len(closed) > 1 else Compacted()


def _merge(ledger: Ledger, folder: Folder, closed: list[Segment], scope: Scope) -> Compacted:
    done = Compacted(len(closed), bytes_before=sum(each.size for each in closed))
    only = {each.name: each.size for each in closed}
    reader = ledger.reader(scope, only=only)
    segment_id = secrets.token_hex(8)
    # spec: Ledger!Merge
    target = folder.create(segment_id + PART, header(segment_id, scope.about))
    try:
        for batch in _regrouped(reader):
            message = message_of(batch)
            target.append(*encode_frame(message, segment_id, target.end, owner_of(scope.about))[1])
            done.records += batch.num_rows
        target.sync()
    except BaseException:
        target.close()
        folder.remove(segment_id + PART)
        raise
    target.close()
    if isinstance(folder, LocalFolder):
        # As old as the newest record in it, for who asks how old it is.
        folder.set_changed(segment_id + PART, max(each.changed for each in closed))
    # Under the lock: who commits, and lists the segments for that, sees the old ones or the new one.
    try:
        with folder.lock(COMMIT_LOCK_TIMEOUT_S):
            # spec: Ledger!Publish
            folder.publish(segment_id + PART, segment_id + SUFFIX)
            # spec: Ledger!Delete
            for each in closed:
                folder.remove(each.name)
    except FileNotFoundError:
        raise LedgerError(f"{folder.path} has expired while it was merged") from None
    done.bytes_after = target.end
    done.damaged = len(reader.damage)
    return done


def _regrouped(reader: LedgerReader) -> Iterator[Any]:
    """The records that count, in batches of `FRAME_BYTES` or more: as many of the old ones as that takes.

    With each stands what was spent on those that it has replaced: they were paid for.
    """
    import pyarrow as pa

    replaced: dict[bytes, tuple[int, float]] = {}
    for rows, places in reader.frames():
        for row in {*range(rows.count)}.difference(places):
            attempts, cost = replaced.get(rows.key(row), (0, 0.0))
            replaced[rows.key(row)] = attempts + rows.attempts[row], cost + rows.cost[row]
    waiting: list[Any] = []
    size = 0
    for rows, places in reader.frames():
        kept = rows.batch if len(places) == rows.count else rows.batch.take(pa.array(places, pa.int64()))
        if kept.num_rows:
            waiting.append(_with_spent(kept, replaced) if replaced else kept)
            size += kept.nbytes
        if size >= FRAME_BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, size = [], 0
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _with_spent(batch: Any, replaced: dict[bytes, tuple[int, float]]) -> Any:
    """The batch with what was spent on the records that its own ones replace, which is taken out of there."""
    import pyarrow as pa

    added = [replaced.pop(key, (0, 0.0)) for key in batch["key"].to_pylist()]
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, more in zip(("attempts", "cost"), zip(*added, strict=True), strict=True):
        columns[name] = pa.array(map(add, batch[name].to_pylist(), more), batch[name].type)
    # Not `set_column`, which batches of the oldest pyarrow do not have.
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


# -- caches: what a job does at its beginning, and `pillarbox ledger expire` at any time ---------


PIN_PREFIX = ".pin-"
"""Begins the names of pins; 16 hexadecimal digits follow."""
PIN_LIFE_S = 3600.0
"""Seconds for which a pin counts after it was written last."""
PIN_RENEWAL_S = 600.0
"""Seconds after which an execution that goes on writes its pin again."""
MAX_SMALL_SEGMENTS = 32
"""Closed segments that are smaller and are not merged yet."""


def _pin(folder: Folder, owner: str, cut: int) -> None:
    """Say that the execution of 16 hexadecimal digits may ask for records from `cut` on. Under the lock."""
    # spec: Cache!Pin
    folder.put(PIN_PREFIX + owner, str(cut).encode())


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
    folder.make()
    with folder.lock(COMMIT_LOCK_TIMEOUT_S):
        cut = cache.cut(folder.segments(), time.time())
        try:
            _delete(folder, scope, cut)
        except (LedgerError, OSError) as error:
            log.warning("what is too old in %s was not deleted: %s", folder.path, error)
        cut = cache.cut_by_age(time.time()) if by_age else cut
        _pin(folder, owner, cut)
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
    folder.make()
    with folder.lock(COMMIT_LOCK_TIMEOUT_S):
        now = time.time()
        if cut is None:
            cut = ledger.cache_limits.cut_by_age(now)
        # There is none if it has lapsed, or for the first task of a plan whose driver sees no folder.
        with suppress(FileNotFoundError):
            if now - folder.changed(PIN_PREFIX + owner) < PIN_RENEWAL_S:
                return cut
        _pin(folder, owner, cut)
    return cut


def expire_cache(ledger: Ledger, scope: Scope, cache: Cache) -> Expired:
    """Delete the segments of a cache that are beyond the limits of `cache`, and that no execution needs.

    `Cache(max_bytes=1)` leaves what is needed only. Raises LedgerBusyError, LedgerError and OSError.
    """
    folder = ledger.folder(scope)
    if not folder.exists():
        return Expired()
    with folder.lock(COMMIT_LOCK_TIMEOUT_S):
        return _delete(folder, scope, cache.cut(folder.segments(), time.time()))


def _delete(folder: Folder, scope: Scope, cut: int) -> Expired:
    """Delete closed segments whose records are all older than `cut` and than every pin. Under the lock."""
    # spec: Cache!Choose
    pins = pinned_cuts(folder, time.time())
    limit = min([cut, *pins.values()])
    gone = size = 0
    for segment in sorted(folder.segments(), key=by_age):
        if segment.changed * 1_000_000 >= limit:
            break
        if folder.is_open(segment.name) or not is_own(folder, scope.about, segment.name, segment.size):
            continue
        # spec: Cache!Expire
        folder.remove(segment.name)
        gone, size = gone + 1, size + segment.size
    return Expired(gone, size, sum(each < cut for each in pins.values()))


def merge_small(ledger: Ledger, scope: Scope, cache: Cache, max_small: int = MAX_SMALL_SEGMENTS) -> None:
    """Merge closed segments of a like age, where more than `max_small` are small.

    Raises LedgerError and OSError.
    """
    most = cache.merged_bytes
    segments = sorted(ledger.folder(scope).segments(), key=by_age)
    small = [each for each in segments if each.size < most // 2]
    if len(small) <= max_small:
        return
    for group in _groups(small, most):
        # Another process is at it.
        with suppress(LedgerBusyError):
            # spec: Cache!Merge
            compact(ledger, scope, only={each.name for each in group})


def _groups(segments: list[Segment], most: int) -> list[list[Segment]]:
    """Segments that follow one another, of `most` bytes together."""
    groups: list[list[Segment]] = [[]]
    size = 0
    for segment in segments:
        if groups[-1] and size + segment.size > most:
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += segment.size
    return groups
