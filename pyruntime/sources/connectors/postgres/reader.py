"""Reads ranges of a table: `PostgresReader`, on its fetcher's thread. One connection."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.postgres.client import begin_reading, psycopg
from pillarbox.sources.connectors.postgres.copying import read_csv
from pillarbox.sources.connectors.postgres.ranges import Ranges
from pillarbox.sources.connectors.postgres.settled import Settled
from pillarbox.sources.connectors.postgres.split import PostgresSplit
from pillarbox.sources.reader import Fetched, SplitReader, SplitsAdded, SplitsChange

if TYPE_CHECKING:
    import pyarrow as pa

    from pillarbox.sources.connectors.postgres.source import PostgresSource

BATCH = 2**20
"""Bytes of text that make a batch."""
WAIT = 1.0
"""Seconds that one fetch waits for rows."""


class PostgresReader(SplitReader[PostgresSplit]):
    """Reads one range after the other. Its fetcher's thread calls all but `wake_up`."""

    def __init__(self, source: PostgresSource, asked: pa.Schema | None) -> None:
        self._source = source
        self._asked = asked
        self._connection: Any = None
        self._ranges: Ranges | None = None
        self._schema: pa.Schema | None = None
        self._waiting: list[PostgresSplit] = []
        self._current: PostgresSplit | None = None
        self._pieces: Generator[Fetched | None, None, None] | None = None
        self._woken = threading.Event()

    def handle_splits_changes(self, change: SplitsChange[PostgresSplit]) -> None:
        """Take splits up, or let go of them."""
        if isinstance(change, SplitsAdded):
            self._waiting.extend(change.splits)
            return
        self._waiting = [split for split in self._waiting if split.split_id not in change.split_ids]
        if self._current is not None and self._current.split_id in change.split_ids:
            self._let_go()

    def wake_up(self) -> None:
        """End the wait of a `fetch`, between two rows. Any thread; does not block."""
        self._woken.set()

    def fetch(self) -> Sequence[Fetched]:
        """The next batch of the range at hand."""
        try:
            if self._pieces is None:
                if not self._waiting:
                    self._woken.wait(WAIT)
                    return []
                self._current = self._waiting.pop(0)
                self._pieces = self._read(self._current)
            assert self._current is not None
            with self._source.address.asking(f"reading {self._source.table}"):
                found = next(self._pieces)
            if found is None:
                return []
            if found.finished:
                self._current = self._pieces = None
            return [found]
        finally:
            self._woken.clear()

    def close(self) -> None:
        """Close the connection."""
        self._let_go()

    def _let_go(self) -> None:
        connection, pieces = self._connection, self._pieces
        self._connection = self._pieces = self._current = None
        if connection is not None:
            connection.close()
        if pieces is not None:
            # It is in the middle of what the connection was sending.
            with contextlib.suppress(psycopg().Error):
                pieces.close()

    def _open(self) -> tuple[Any, Ranges]:
        if self._connection is None:
            self._connection = self._source.address.connect()
            self._ranges = None
        if self._ranges is None:
            self._ranges = Ranges.find(self._source, self._connection, self._asked)
            self._schema = self._ranges.schema
        return self._connection, self._ranges

    def _read(self, split: PostgresSplit) -> Generator[Fetched | None, None, None]:
        """Batches of a split; None where `fetch` is to return."""
        connection, ranges = self._open()
        if self._source.mode == "incremental" and split.stop is None:
            yield from self._follow(split, connection, ranges)
            return
        if split.snapshot is not None:
            self._take_snapshot(connection, split.snapshot)
        yield from self._range(split, connection, ranges, split.start, split.stop, to_the_end=True)

    def _take_snapshot(self, connection: Any, snapshot: str) -> None:
        try:
            begin_reading(connection, snapshot)
        except (psycopg().errors.InvalidParameterValue, psycopg().errors.UndefinedObject):
            raise RuntimeError(
                f"{self._source!r}: the snapshot in which all splits are read is gone: whoever has planned "
                "the read has ended. Register the source, so that the driver holds it (register_source), or "
                "read with consistent=False: then each split is read in a snapshot of its own"
            ) from None

    def _follow(self, split: PostgresSplit, connection: Any, ranges: Ranges) -> Iterator[Fetched | None]:
        """Rows that are settled, for ever."""
        settled = Settled(ranges, everybody=self._source.waits_for_all(ranges.kind))
        at, last = split.start, None
        while True:
            bound = settled.look(connection)
            if bound is None or bound == last:
                self._woken.wait(self._source.poll_interval)
                yield None
                continue
            for found in self._range(split, connection, ranges, at, bound, to_the_end=False):
                if found is not None:
                    at = found.position
                yield found
            last = bound

    def _range(
        self,
        split: PostgresSplit,
        connection: Any,
        ranges: Ranges,
        start: str | None,
        stop: str | None,
        *,
        to_the_end: bool,
    ) -> Iterator[Fetched | None]:
        """Batches of the rows behind `start` up to `stop`. A batch ends where the key changes."""
        kept: list[pa.RecordBatch] = []
        position = start
        with connection.cursor() as cursor, cursor.copy(ranges.copy(start, stop)) as copy:
            blocks: list[Any] = []
            size = 0
            for block in copy:
                blocks.append(block)
                size += len(block)
                if size >= BATCH:
                    ready, kept, position = self._cut(ranges, kept, blocks, position)
                    blocks, size = [], 0
                    if ready is not None:
                        yield Fetched(split.split_id, ready, position)
                elif self._woken.is_set():
                    yield None
            last = _joined([*kept, self._parsed(ranges, blocks)])
        if split.snapshot is not None:
            connection.execute("commit")
        if last.num_rows:
            position = _key_of(ranges, last, last.num_rows - 1)
        if last.num_rows or to_the_end:
            yield Fetched(split.split_id, self._shown(ranges, last), position, finished=to_the_end)

    def _cut(
        self, ranges: Ranges, kept: list[pa.RecordBatch], blocks: list[Any], position: str | None
    ) -> tuple[pa.RecordBatch | None, list[pa.RecordBatch], str | None]:
        """What can be handed over, rows that may have others of their key behind them, and the position.

        `kept` has rows of one key. They are not looked at again, however many come.
        """
        batch = self._parsed(ranges, blocks)
        key = _key_of(ranges, batch, batch.num_rows - 1)
        before = _key_of(ranges, kept[0], 0) if kept else None
        if before == key:
            return None, [*kept, batch], position
        # Rows are in the key's order: by halves to the first that has the last one's key.
        at, end = 0, batch.num_rows - 1
        while at < end:
            middle = (at + end) // 2
            if _key_of(ranges, batch, middle) == key:
                end = middle
            else:
                at = middle + 1
        if at:
            before = _key_of(ranges, batch, at - 1)
        if before is None:
            return None, [batch], position
        ready = _joined([*kept, batch.slice(0, at)])
        return self._shown(ranges, ready), [batch.slice(at)], before

    def _parsed(self, ranges: Ranges, blocks: list[Any]) -> pa.RecordBatch:
        import pyarrow as pa

        assert self._schema is not None
        schema = self._schema
        if ranges.key_column is None:
            schema = schema.append(pa.field("", pa.string()))
        if blocks:
            return read_csv(b"".join(blocks), schema)
        return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)

    def _shown(self, ranges: Ranges, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without the column that was read for the key only."""
        import pyarrow as pa

        if ranges.key_column is not None:
            return batch
        return pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self._schema)


def _key_of(ranges: Ranges, batch: pa.RecordBatch, row: int) -> str:
    """The key of a row, as PostgreSQL reads it."""
    at = ranges.key_column
    return str(batch.column(len(batch.columns) - 1 if at is None else at)[row].as_py())


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows in one batch."""
    import pyarrow as pa

    found = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found[0] if found else batches[0]
