"""What runs beside Spark's driver for one stream: `Driving`. One thread uses it, Spark's; it has its own.

- the enumerator's thread: plans, hears events and event times, tells the source what is durable
- the discovery thread
- the channel's thread
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from pillarbox.sources.channel import ChannelHandle, Peer, SourceChannel
from pillarbox.sources.enumerator import ReaderInfo, ReadLimit, SplitEnumerator
from pillarbox.sources.events import SourceEvent, event_from_json, event_to_json
from pillarbox.sources.split import Split
from pillarbox.spark.source.aligning import Aligner
from pillarbox.spark.source.offsets import Json, Offset, OffsetCodec, number_of
from pillarbox.spark.source.planning import MicroBatches
from pillarbox.spark.source.read import Read
from pillarbox.spark.source.threads import CallingThread

log = logging.getLogger("pillarbox")

T = TypeVar("T")

STOP = 2.0
"""Seconds for a thread to end."""


class StreamContext:
    """What the enumerator of a stream may ask and order. Confined to its thread."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self._readers: dict[int, tuple[ReaderInfo, Peer]] = {}

    @property
    def parallelism(self) -> int:
        """The most tasks of a micro-batch."""
        return self._parallelism

    @property
    def readers(self) -> Mapping[int, ReaderInfo]:
        """The tasks that are there now and have said so: those whose readers hear or send events."""
        return {subtask: info for subtask, (info, _) in self._readers.items()}

    def assign(self, splits: Collection[Split], subtask: int) -> None:
        """Raises TypeError: a micro-batch is dealt out when it is planned."""
        raise TypeError(
            "in a micro-batch stream nothing is assigned to a running reader: say by assigned_to(split) "
            "which one is to have it"
        )

    def no_more_splits(self, subtask: int) -> None:
        """Nothing: the task of a micro-batch has all of its splits from its beginning."""

    def send(self, subtask: int, event: SourceEvent) -> None:
        """Say something to a task."""
        known = self._readers.get(subtask)
        if known is not None:
            known[1].push(event_to_json(event))

    def add(self, subtask: int, host: str, peer: Peer) -> ReaderInfo:
        """A task is there."""
        info = ReaderInfo(subtask, host)
        self._readers[subtask] = (info, peer)
        return info

    def remove(self, peer: Peer) -> None:
        """A task has gone."""
        for subtask, (_, known) in list(self._readers.items()):
            if known is peer:
                del self._readers[subtask]


class Driving:
    """Plans the micro-batches of one query, and talks to its tasks."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.parallelism = read.partitions
        self._thread = CallingThread("pillarbox-enumerator")
        self._discoverer = CallingThread("pillarbox-discover")
        self._context = StreamContext(self.parallelism)
        strategy = read.options.watermarks
        self._aligner: Aligner[Any] | None = None if strategy is None else Aligner(strategy)
        self._batches: MicroBatches[Any, Any] = MicroBatches(
            read.source, self._context, self._discoverer.submit, self._aligner
        )
        self._channel: SourceChannel | None = None
        self._handle: ChannelHandle | None = None
        self._told = 0

    def call(self, fn: Callable[[], T]) -> T:
        """Have `fn` called on the enumerator's thread, and wait for it."""
        return self._thread.call(fn)

    @property
    def enumerator(self) -> SplitEnumerator[Any, Any]:
        """The enumerator. On its thread."""
        return self._batches.enumerator

    def only_what_is_there(self) -> None:
        """Plan what is there now, and then nothing."""
        self.call(self._batches.only_what_is_there)

    def plan(self, start: Json, limit: ReadLimit, codec: OffsetCodec[Any, Any]) -> Offset[Any, Any] | None:
        """The offset after the next micro-batch, None if there is nothing to read."""

        def plan() -> Offset[Any, Any] | None:
            # Another number: an offset of before was not used, or this process is new.
            if number_of(start) != self._batches.number:
                self._batches.take_up(codec.from_json(start))
            return self._batches.plan(limit)

        planned = self.call(plan)
        if planned is None:
            # Spark does not say so of the last micro-batch, but it is done, or nobody would ask.
            self.committed(start, codec).result()
        return planned

    def settle(self, end: Json, codec: OffsetCodec[Any, Any]) -> None:
        """A micro-batch up to `end` is to run; after a restart that is the first that is heard of."""

        def settle() -> None:
            if self._batches.number < 0:
                self._batches.take_up(codec.from_json(end))

        self.call(settle)

    def committed(self, end: Json, codec: OffsetCodec[Any, Any]) -> Future[None]:
        """Tell the source what is durable, on its thread. What it raises is logged."""

        def tell() -> None:
            kind = type(self._batches.enumerator)
            if end["number"] <= self._told or kind.notify_committed is SplitEnumerator.notify_committed:
                return
            self._told = end["number"]
            try:
                self._batches.enumerator.notify_committed(codec.from_json(end).positions())
            except Exception:
                log.exception("a source could not be told what is durable")

        return self._thread.submit(tell)

    def handle(self) -> ChannelHandle:
        """The way for tasks to this process. The channel listens from the first call on."""
        if self._handle is None:
            options = self._read.options
            self._channel = SourceChannel(options.host, options.port, advertise=options.advertise).start()
            self._handle = self._channel.serve("stream", StreamService(self))
        return self._handle

    def close(self) -> None:
        """End the threads and the channel."""
        if self._channel is not None:
            self._channel.close()
        self._thread.submit(self._batches.close)
        self._thread.close(STOP)
        self._discoverer.close(STOP)

    # -- for the channel's thread ------------------------------------------------------------------

    def reader_came(self, peer: Peer, subtask: int, host: str) -> None:
        """A task is there."""

        def add() -> None:
            self._batches.enumerator.add_reader(self._context.add(subtask, host, peer))

        self._thread.submit(add).add_done_callback(_log_failure)

    def reader_went(self, peer: Peer) -> None:
        """A task has gone."""
        self._thread.submit(lambda: self._context.remove(peer))

    def event_came(self, peer: Peer, subtask: int, event: SourceEvent) -> None:
        """A task says something to the enumerator. What that raises ends the task."""
        heard = self._thread.submit(lambda: self._batches.enumerator.handle_source_event(subtask, event))
        peer.drop_if_fails(heard, f"the enumerator could not take event {event.kind!r}")

    def times_came(self, times: Mapping[str, float]) -> Future[None]:
        """A task has read so far, in event time."""
        aligner = self._aligner
        return self._thread.submit(lambda: None if aligner is None else aligner.report(times))


class StreamService:
    """Answers the tasks of a stream. On the channel's thread."""

    def __init__(self, driving: Driving) -> None:
        self._driving = driving
        self._subtasks: dict[str, int] = {}

    def opened(self, peer: Peer, about: Any) -> None:
        """A task."""
        self._subtasks[peer.name] = about["subtask"]
        self._driving.reader_came(peer, about["subtask"], about["host"])

    def request(self, peer: Peer, body: Any) -> Any:
        """How far a task has read in event time."""
        return self._driving.times_came(body["times"])

    def pushed(self, peer: Peer, body: Any) -> None:
        """An event."""
        self._driving.event_came(peer, self._subtasks[peer.name], event_from_json(body))

    def gone(self, peer: Peer, said_so: bool) -> None:
        """A task has ended."""
        self._subtasks.pop(peer.name, None)
        self._driving.reader_went(peer)


def _log_failure(future: Future[None]) -> None:
    error = future.exception()
    if error is not None:
        log.error("an enumerator has failed with a reader that came", exc_info=error)
