"""Merges the closed segments of a scope into one: fewer files, larger frames, nothing damaged, nothing twice.

The merged segment is written beside the others and synced, gets its name, and only then are the others
deleted. Killed at any moment, everything is found: perhaps twice, which is the same. Segments that a process
appends to are left alone. One compaction of a scope at a time. Any thread, any process.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.folder import PART, SUFFIX, LocalFolder
from pillarbox.ledger.frames import encode_frame, header, schema
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.reader import Folder, LedgerReader
from pillarbox.ledger.scope import Scope

LOCK = ".compact"
ROWS = 4096
"""Records of a frame, at most."""
PATIENCE = 1.0
"""Seconds for another compaction to end."""


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
        if len(closed) < 2:
            return done
        _merge(folder, closed, scope, done)
    folder.close()
    return done


def _merge(folder: Folder, closed: dict[str, int], scope: Scope, done: Compacted) -> None:
    reader = LedgerReader(_Closed(folder, closed), allow_pickle=False)  # type: ignore[arg-type]
    segment_id = secrets.token_hex(8)
    about = {"run": scope.run, "uid": scope.uid, "config": scope.config, "batch": str(scope.batch)}
    # spec: Ledger!Merge
    target = folder.create(segment_id + PART, header(segment_id, about))
    try:
        for batch in _regrouped(reader):
            target.append(encode_frame(batch, segment_id, target.end))
            done.records += batch.num_rows
        target.sync()
    except BaseException:
        target.close()
        folder.remove(segment_id + PART)
        raise
    # spec: Ledger!Publish
    target.close()
    folder.publish(segment_id + PART, segment_id + SUFFIX)
    done.bytes_after = target.end
    done.damaged = len(reader.damage)
    # spec: Ledger!Delete
    for name, size in closed.items():
        folder.remove(name)
        done.segments += 1
        done.bytes_before += size


def _regrouped(reader: LedgerReader) -> Any:
    """The records that count, in batches of `ROWS`."""
    import pyarrow as pa

    waiting: list[Any] = []
    rows = 0
    for batch, counts in reader.batches():
        kept = batch if all(counts) else batch.filter(pa.array(counts, pa.bool_()))
        waiting.append(kept)
        rows += kept.num_rows
        if rows >= ROWS:
            whole = pa.Table.from_batches(waiting, schema=schema()).combine_chunks()
            pieces = whole.to_batches(max_chunksize=ROWS)
            waiting = [] if rows % ROWS == 0 else [pieces.pop()]
            rows = sum(piece.num_rows for piece in waiting)
            yield from pieces
    if rows:
        yield from (
            pa.Table.from_batches(waiting, schema=schema()).combine_chunks().to_batches(max_chunksize=ROWS)
        )


def expire(ledger: Ledger, scope: Scope) -> int:
    """Delete what a scope has; returns the bytes that were freed.

    For what is committed, and nobody asks for again. An attempt that still writes there fails with its next
    commit, and so should it. Raises OSError.
    """
    # spec: Ledger!Expire
    folder = ledger.folder(scope)
    freed = 0
    for name, size in folder.segments():
        folder.remove(name)
        freed += size
    if isinstance(folder, LocalFolder):
        folder.remove_folder()
    folder.close()
    return freed


def expire_batches(ledger: Ledger, run: str, through: int) -> list[Scope]:
    """Delete what a query kept for its micro-batches up to and with `through`; returns their scopes.

    For batches that Spark has committed. Raises ValueError for a run that is no stream, and OSError.
    """
    gone = []
    of_run = [scope for scope in ledger.scopes() if scope.run == run]
    if of_run and all(scope.batch is None for scope in of_run):
        raise ValueError(f"run={run!r}: has no micro-batches; expire it as a whole")
    for scope in of_run:
        if scope.batch is not None and scope.batch <= through:
            expire(ledger, scope)
            gone.append(scope)
    return gone


def last_change(ledger: Ledger, scope: Scope) -> float:
    """When a segment of the scope changed last: seconds since 1970, 0 without any. Raises LedgerError."""
    folder = ledger.folder(scope)
    try:
        return max((folder.changed(name) for name, _ in folder.segments()), default=0.0)
    except OSError as error:
        raise LedgerError(f"{folder.path} cannot be read: {error}") from error
