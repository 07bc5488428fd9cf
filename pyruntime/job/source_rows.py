"""The rows of a job: records of a source's rows, and iterables as sources. For any thread, but its readers.

A function gets a record of each row of a source that has columns, as over Spark: `record.value`,
`record["value"]`. Of an iterable it gets the items as they are.
"""

# Why the reader is wrapped, and not the task's input: there a position counts rows, so that a checkpoint
# falls between any two of them, and a batch of Arrow would be one element. Its columns become Python objects
# by slices, when the task takes them, so that nothing is decoded long before its call begins.

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from pillarbox.aio.chained import record_of
from pillarbox.aio.errors import shorten
from pillarbox.aio.row_inputs import check_rows
from pillarbox.sources import Fetched, SimpleSource, Source, Split, SplitEnumerator, WatermarkStrategy
from pillarbox.sources.enumerator import EnumeratorContext, SourceEvent
from pillarbox.sources.event_time import EventTimes
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.source import Boundedness
from pillarbox.sources.split import OffsetSplit, Serializer

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=Split)

BATCH_ROWS = 256
"""Items of a list that are handed over at a time; each of another iterable may take long."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def source_of(rows: object) -> Source[Any, Any]:
    """The source that a user has given, or that of an iterable. Raises TypeError for other values."""
    if isinstance(rows, Source):
        return rows
    check_rows(rows)
    if not isinstance(rows, Iterable) and not callable(getattr(rows, "rows_from", None)):
        raise TypeError(
            f"source={shorten(rows)}: must be a pillarbox.sources.Source, an iterable, or an object with "
            f"rows_from(position), not {type(rows).__name__}"
        )
    return IterableSource(rows)


class IterableSource(SimpleSource[OffsetSplit]):
    """An iterable, or an object with `rows_from(position)`, as a source of one split.

    The position in an iterable is the number of its items; those before it are passed over after a restart,
    so it must give the same items again. `rows_from(position)` gives pairs of an item and the position behind
    it, from a position that it has given, or None at the beginning; JSON must hold a position.
    """

    split_type: type[Any] = Split

    def __init__(self, rows: object) -> None:
        self._rows: Any = rows

    def __repr__(self) -> str:
        return f"IterableSource({shorten(self._rows)})"

    def list_splits(self) -> Iterable[Any]:
        """One."""
        return [Split("all")]

    def read(self, split: Any) -> Iterator[tuple[Sequence[Any], Any]]:
        """The items from the split's position on."""
        rows_from = getattr(self._rows, "rows_from", None)
        if rows_from is not None:
            for row, position in rows_from(split.start):
                yield [row], position
            return
        start = split.start or 0
        if isinstance(self._rows, Sequence):
            for at in range(start, len(self._rows), BATCH_ROWS):
                some = list(self._rows[at : at + BATCH_ROWS])
                yield some, at + len(some)
            return
        for at, row in enumerate(itertools.islice(self._rows, start, None), start + 1):
            yield [row], at


class ArrowRows(Sequence[Any]):
    """The rows of an Arrow batch as records, decoded by slices. Confined to the task's thread."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._names = tuple(batch.schema.names)
        self.nbytes: int = batch.nbytes

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, int):
            return self[place : place + 1 or None][0]
        start, stop, step = place.indices(len(self))
        batch = self._batch.slice(start, max(0, stop - start))
        names = self._names
        columns = map(decoded, batch.columns)
        return [record_of(names, values) for values in zip(*columns, strict=True)][::step]


def decoded(column: pa.Array) -> list[Any]:
    """The values of a column as Python objects; a timestamp with a zone is a datetime in UTC."""
    import pyarrow as pa

    if not (pa.types.is_timestamp(column.type) and column.type.tz is not None):
        return cast("list[Any]", column.to_pylist())
    # Not by pyarrow: its zones are those of the package pytz, where that is installed.
    micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return [None if each is None else EPOCH + datetime.timedelta(microseconds=each) for each in micros]


class RecordSource(Source[S, Any]):
    """A source whose readers give records, of all its columns or of some. For the tasks of a job.

    columns: the names of those that are read; None for all. Raises ValueError for one that the source lacks.
    """

    def __init__(
        self, source: Source[S, Any], columns: Sequence[str] | None, watermarks: WatermarkStrategy | None
    ) -> None:
        self._source = source
        self.split_type = source.split_type
        self._watermarks = watermarks
        self._schema = None if columns is None else _selected(source.arrow_schema(), columns)
        self._names: tuple[str, ...] | None = None
        if type(source).arrow_schema is not Source.arrow_schema and not isinstance(source, IterableSource):
            self._names = tuple((self._schema or source.arrow_schema()).names)

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def boundedness(self) -> Boundedness:
        """That of the source."""
        return self._source.boundedness

    @property
    def split_serializer(self) -> Serializer[S]:
        """That of the source."""
        return self._source.split_serializer

    @property
    def checkpoint_serializer(self) -> Serializer[Any]:
        """That of the source."""
        return self._source.checkpoint_serializer

    def create_enumerator(self, context: EnumeratorContext[S]) -> SplitEnumerator[S, Any]:
        """That of the source."""
        return self._source.create_enumerator(context)

    def restore_enumerator(self, context: EnumeratorContext[S], checkpoint: Any) -> SplitEnumerator[S, Any]:
        """That of the source."""
        return self._source.restore_enumerator(context, checkpoint)

    def create_reader(self, context: ReaderContext) -> SourceReader[S]:
        """That of the source, with records for rows."""
        if self._schema is not None:
            context = ReaderContext(context.subtask, context.host, context.send, self._schema)
        times = None if self._watermarks is None else EventTimes(self._watermarks, self._names)
        return RecordReader(self._source.create_reader(context), self._names, times)


class RecordReader(SourceReader[S]):
    """Gives the rows of another reader as records. Confined to its task's thread.

    names: the columns of rows that are tuples; None where rows have none. times: reads the event time of a
    batch before it becomes records; None where nobody asks.
    """

    def __init__(
        self, reader: SourceReader[S], names: tuple[str, ...] | None, times: EventTimes | None
    ) -> None:
        self._reader = reader
        self._names = names
        self._times = times
        looked: Callable[[str], float] | None = getattr(reader, "looked", None)
        if looked is not None:
            self.looked = looked

    def start(self) -> None:
        """Start the reader."""
        self._reader.start()

    def poll(self) -> Fetched | None:
        """The next rows, as records where they have columns."""
        fetched = self._reader.poll()
        if fetched is None or not len(fetched.records):
            return fetched
        timestamp = fetched.timestamp if self._times is None else self._times.latest(fetched)
        records, names = fetched.records, self._names
        if not isinstance(records, Sequence):
            return fetched._replace(records=ArrowRows(records), timestamp=timestamp)
        if names is not None:
            records = [record_of(names, row) if type(row) is tuple else row for row in records]
        return fetched._replace(records=records, timestamp=timestamp)

    def available(self) -> Future[Any] | None:
        """That of the reader."""
        return self._reader.available()

    def add_splits(self, splits: Sequence[S]) -> None:
        """Have the reader read these too."""
        self._reader.add_splits(splits)

    def splits(self) -> list[S]:
        """The splits that the reader has."""
        return self._reader.splits()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Have the reader pause or resume splits."""
        self._reader.pause_or_resume_splits(pause, resume)

    def handle_source_event(self, event: SourceEvent) -> None:
        """Give the reader an event."""
        self._reader.handle_source_event(event)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ValueError(
            f"columns: {unknown[0]!r} is not a column of the source (columns: {', '.join(schema.names)})"
        )
    return pa.schema([schema.field(name) for name in columns])
