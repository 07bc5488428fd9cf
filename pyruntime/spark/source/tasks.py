"""A task of a read: its splits, its way to the enumerator, and its rows in the shape that Spark wants.

In tasks; the partitions are made on the driver and are plain values. A task has all of its splits, as those
of a micro-batch do, or asks for one after the other.
"""

from __future__ import annotations

import math
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from pillarbox.rpc.client import RpcClient, RpcHandle
from pillarbox.rpc.connection import pieces
from pillarbox.sources.event_time import EventTimes
from pillarbox.sources.link import SourceEvent, event_from_json, event_to_json
from pillarbox.sources.reader import Fetched, ReaderContext, SourceReader
from pillarbox.sources.reading import read_splits
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.split import Split
from pillarbox.spark.source.options import Read

S = TypeVar("S", bound=Split)


@dataclass(eq=False)
class TaskPartition(InputPartition):
    """The part of a read that one task reads. A plain value that pickles.

    splits: all of them; None where the task asks for one after the other, as one of `read`. handle: the way
    to the enumerator, None where there is none.
    """

    number: int
    handle: RpcHandle | None
    splits: list[Any] | None
    read: str | None = None


def read_partition(read: Read, partition: TaskPartition) -> Iterator[Any]:
    """The rows of a partition, as tuples or Arrow batches with the columns of the read's schema.

    Then, where splits are aligned, the event times that they have come to are reported. Closing the iterator
    ends the reading.
    """
    source, splits, strategy = read.source, partition.splits, read.watermarks
    times = None if strategy is None else EventTimes(strategy, read.schema.names)
    latest: dict[str, float] = {}
    with closing(TaskLink(partition.handle, partition.number, partition.read)) as link:
        context = ReaderContext(subtask=partition.number, send=link.send, schema=read.schema)
        reader = link.hearing(source.create_reader(context))
        requests = SplitRequests(link.submit, source.split_serializer)
        reading = read_splits(reader, requests if splits is None else splits)
        # What is a generator can be closed.
        with closing(cast("Generator[Fetched, None, None]", reading)):
            for fetched in reading:
                records = fetched.records
                if not isinstance(records, pa.RecordBatch):
                    yield from records
                elif records.num_rows:
                    yield fit(records, read.schema)
                # Here Spark asks for more: it has what was fetched.
                moment = None if times is None else times.latest(fetched)
                if moment is not None:
                    latest[fetched.split_id] = max(moment, latest.get(fetched.split_id, -math.inf))
        if times is not None or link.has_sent:
            # Answered after all events were heard: one that the enumerator refuses fails the task. In pieces:
            # a message has room for the times of some thousand splits.
            for piece in [*pieces(latest.items())] or [[]]:
                link.request({"times": dict(piece)})


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the columns of `schema`, in its order, with its types.

    Raises ValueError that names the column, for one that is missing, has values of another type, or has nulls
    that the schema does not have.
    """
    fits = batch.schema.equals(schema)
    columns = batch.columns if fits else [_column(batch, field) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name!r} has nulls, and the schema says that it has none")
    return batch if fits else pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    at = batch.schema.get_all_field_indices(field.name)
    if len(at) != 1:
        raise ValueError(
            f"column {field.name!r} stands {len(at)} times in what was read, which has the columns "
            f"{', '.join(batch.schema.names)}"
        )
    column = batch.column(at[0])
    try:
        # Spark's timestamps are microseconds.
        return column.cast(options=pc.CastOptions(field.type, allow_time_truncate=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ValueError(f"column {field.name!r} is {column.type} and not {field.type}: {error}") from None


class SplitRequests(Generic[S]):
    """The splits of a partition, which it asks for when it has none: one, or several where many wait.

    Confined; called again when the future that it has given is done.
    """

    def __init__(self, submit: Callable[[Any], Future[Any]], serializer: Serializer[S]) -> None:
        self._submit = submit
        self._serializer = serializer
        self._waiting: deque[list[Any]] = deque()
        self._index = 0

    def __call__(self) -> S | Future[S | None] | None:
        """The next one, None at the end; a future of it where the driver must be asked."""
        if self._waiting:
            return self._next()
        split: Future[S | None] = Future()

        def answered(answer: Future[Any]) -> None:
            try:
                self._waiting.extend(answer.result())
                split.set_result(self._next())
            except BaseException as error:
                split.set_exception(error)

        self._submit({"next": self._index}).add_done_callback(answered)
        return split

    def _next(self) -> S | None:
        written = self._waiting.popleft()
        if not written:
            return None
        self._index += 1
        return self._serializer.from_json(*written)


class TaskLink:
    """The way between one task and the enumerator. Thread-safe, but for `close`.

    It connects when it is first needed, so that a source without events costs its tasks no connection.
    handle: the way; None where there is none. subtask: the number of the task's partition. read: which one,
    of a process that has several.
    """

    def __init__(self, handle: RpcHandle | None, subtask: int, read: str | None = None) -> None:
        self._handle = handle
        self._about = {"subtask": subtask, "host": socket.gethostname(), "read": read}
        self._connecting = threading.Lock()
        self._client: RpcClient | None = None
        self._closed = False
        self.has_sent = False
        self._lock = threading.Lock()
        self._events: deque[SourceEvent] = deque()
        self._failure: Exception | None = None
        self._waiting: Future[Any] | None = None

    def hearing(self, reader: SourceReader[S]) -> SourceReader[S]:
        """Connect `reader` with the enumerator, if it hears its events. Raises as `request`."""
        if type(reader).handle_source_event is SourceReader.handle_source_event:
            return reader
        self._connected()
        return cast("SourceReader[S]", _EventReader(reader, self))

    def request(self, body: Any) -> Any:
        """Ask, and wait for the answer. Raises RuntimeError where there is no way, or no more."""
        return self.submit(body).result()

    def submit(self, body: Any) -> Future[Any]:
        """The same without waiting."""
        return self._connected().submit(body)

    def send(self, event: SourceEvent) -> None:
        """Say something to the enumerator. Any thread.

        Raises what has ended the connection, and what `event_to_json` raises.
        """
        if self._failure is not None:
            raise self._failure
        body = event_to_json(event)
        self.has_sent = True
        self._connected().push(body)

    def hand_over(self, take: Callable[[SourceEvent], None]) -> None:
        """Give the events that have come to `take`. Raises what has ended the connection, if anything has."""
        while self._events:
            take(self._events.popleft())
        if self._failure is not None:
            # The enumerator may have refused an event; and no event comes that may be waited for.
            raise self._failure

    def either(self, theirs: Future[Any]) -> Future[Any] | None:
        """A future that is done when `theirs` is, or `hand_over` has something to do; None if it has now."""
        future: Future[Any] = Future()
        with self._lock:
            if self._events or self._failure is not None:
                return None
            self._waiting = future
        theirs.add_done_callback(lambda _: _wake(future))
        return future

    def close(self) -> None:
        """Let go of the connection; what was said still goes out. Idempotent."""
        with self._connecting:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> RpcClient:
        if self._handle is None:
            raise RuntimeError(
                "this read has no way to its enumerator, so that it has no events: read the source under a "
                "name that pillarbox.spark.register_source has given it"
            )
        with self._connecting:
            if self._closed:
                raise RuntimeError("the task has ended")
            if self._client is None:
                self._client = self._handle.connect(self._about, receive=self._hear, failed=self._fail)
            return self._client

    # -- the client's thread --------------------------------------------------------------------------

    def _hear(self, body: Any) -> None:
        self._events.append(event_from_json(body))
        self._ring()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            _wake(waiting)


class _EventReader:
    """A reader that is handed the enumerator's events on the task's thread, each before the next rows."""

    def __init__(self, reader: SourceReader[Any], link: TaskLink) -> None:
        self._reader = reader
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def poll(self) -> Fetched | None:
        """The events, then as the reader."""
        self._link.hand_over(self._reader.handle_source_event)
        return self._reader.poll()

    def available(self) -> Future[Any] | None:
        """As the reader, and when there is an event."""
        theirs = self._reader.available()
        return None if theirs is None else self._link.either(theirs)


def _wake(future: Future[Any]) -> None:
    # Two may come at the same time.
    with suppress(InvalidStateError):
        future.set_result(None)
