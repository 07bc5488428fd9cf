"""Merges the closed segments of a scope into one: fewer files, larger frames, nothing damaged, nothing twice.

The merged segment is written beside the others and synced, gets its name, and only then are the others
deleted. Killed at any moment, everything is found: perhaps twice, which is the same. Segments that a process
appends to are left alone. One compaction of a scope at a time. Any thread, any process.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pillarbox.ledger.commits import FRAME
from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.folder import PART, SUFFIX, LocalFolder
from pillarbox.ledger.frames import encode_frame, header, owner_of
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.reader import Folder, LedgerReader, is_own
from pillarbox.ledger.scope import Scope

LOCK = ".compact"
PATIENCE = 1.0
"""Seconds for another compaction to end."""
COMMIT_PATIENCE = 30.0
"""Seconds for a commit to end."""


@dataclass
class Compacted:
    """What a compaction did."""

    segments: int = 0
    """Merged and deleted."""
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    damaged: int = 0
    """Parts that were left out."""


class _Closed:
    """A folder as it looks when only some of its segments are there."""

    def __init__(self, folder: Folder, names: dict[str, int]) -> None:
        self._folder = folder
        self._names = names
        self.path = folder.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def segments(self) -> list[tuple[str, int]]:
        return [(name, self._names[name]) for name, _ in self._folder.segments() if name in self._names]


def compact(ledger: Ledger, scope: Scope) -> Compacted:
    """Merge the closed segments of a scope; nothing is done where there is one or none.

    Raises LedgerFullError, and LedgerError if another compaction of the scope is at work.
    """
    folder = ledger.folder(scope)
    done = Compacted()
    if not folder.segments():
        return done
    with folder.lock(PATIENCE, LOCK):
        if isinstance(folder, LocalFolder):
            folder.remove_parts()
        with folder.lock(PATIENCE):
            # Under the lock a segment that has just been made is locked by its writer already.
            closed = {name: size for name, size in folder.segments() if not folder.is_open(name)}
        # What a merge takes it deletes: no file of somebody else, and no segment that was copied there.
        closed = {name: size for name, size in closed.items() if is_own(folder, scope.about, name, size)}
        if len(closed) < 2:
            return done
        _merge(folder, closed, scope, done)
    folder.close()
    return done


def _merge(folder: Folder, closed: dict[str, int], scope: Scope, done: Compacted) -> None:
    reader = LedgerReader(_Closed(folder, closed), scope.about, allow_pickle=False)  # type: ignore[arg-type]
    segment_id = secrets.token_hex(8)
    # spec: Ledger!Merge
    target = folder.create(segment_id + PART, header(segment_id, scope.about))
    try:
        for batch in _regrouped(reader):
            target.append(encode_frame(batch, segment_id, target.end, owner_of(scope.about))[1])
            done.records += batch.num_rows
        target.sync()
    except BaseException:
        target.close()
        folder.remove(segment_id + PART)
        raise
    target.close()
    reader.close()
    # Under the lock: who commits, and lists the segments for that, sees the old ones or the new one.
    try:
        with folder.lock(COMMIT_PATIENCE):
            # spec: Ledger!Publish
            folder.publish(segment_id + PART, segment_id + SUFFIX)
            # spec: Ledger!Delete
            for name, size in closed.items():
                folder.remove(name)
                done.segments += 1
                done.bytes_before += size
    except FileNotFoundError:
        raise LedgerError(f"{folder.path} has expired while it was merged") from None
    done.bytes_after = target.end
    done.damaged = len(reader.damage)


def _regrouped(reader: LedgerReader) -> Iterator[Any]:
    """The records that count, in batches of `FRAME` bytes or more: as many of the old ones as that takes."""
    import pyarrow as pa

    waiting: list[Any] = []
    size = 0
    replaced = _replaced(reader)
    for batch, counts in reader.batches():
        kept = batch if all(counts) else batch.filter(pa.array(counts, pa.bool_()))
        if kept.num_rows:
            kept = _with_replaced(kept, replaced)
            waiting.append(kept)
            size += kept.nbytes
        if size >= FRAME:
            yield from _one(waiting)
            waiting, size = [], 0
    if waiting:
        yield from _one(waiting)


def _replaced(reader: LedgerReader) -> dict[bytes, tuple[int, float]]:
    """Attempts and cost of the records that do not count, by their keys: they were paid for."""
    spent: dict[bytes, tuple[int, float]] = {}
    for batch, counts in reader.batches():
        for row, count in enumerate(counts):
            if not count:
                key = batch["key"][row].as_py()
                attempts, cost = spent.get(key, (0, 0.0))
                attempts, cost = attempts + batch["attempts"][row].as_py(), cost + batch["cost"][row].as_py()
                spent[key] = attempts, cost
    return spent


def _with_replaced(batch: Any, replaced: dict[bytes, tuple[int, float]]) -> Any:
    """The batch with what was spent on the records that its own ones replace, which is taken out of there."""
    import pyarrow as pa

    if not replaced:
        return batch
    keys = batch["key"].to_pylist()
    added = {row: replaced.pop(key) for row, key in enumerate(keys) if key in replaced}
    if not added:
        return batch
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for place, name in enumerate(("attempts", "cost")):
        values = columns[name].to_pylist()
        for row, spent in added.items():
            values[row] += spent[place]
        columns[name] = pa.array(values, columns[name].type)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def _one(batches: list[Any]) -> list[Any]:
    import pyarrow as pa

    return [batches[0]] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
