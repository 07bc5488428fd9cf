"""The part of a stream that runs beside Spark's driver: `StreamDriver`. One thread uses it, Spark's.

It has the enumerator's thread, the discovery thread and the channel's thread, and starts none before it is
asked for something: Spark makes readers of streams that it never runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from pillarbox.sources.alignment import Hold
from pillarbox.sources.channel import ChannelHandle, Peer, SourceChannel
from pillarbox.sources.enumerating import EnumeratorThread
from pillarbox.sources.enumerator import ReadLimit, SplitEnumerator
from pillarbox.sources.events import event_from_json
from pillarbox.spark.source.aligning import Aligner
from pillarbox.spark.source.driver_read import PeerEnd
from pillarbox.spark.source.offsets import Json, Offset, OffsetCodec, number_of
from pillarbox.spark.source.planning import MicroBatches
from pillarbox.spark.source.read import Read

FIRST_IDLE_S, MAX_IDLE_S = 0.01, 0.2
"""Between two plans of which the first has found nothing to read: it doubles. Spark asks without a pause."""


class StreamDriver:
    """Plans the micro-batches of one query, and talks to its tasks. A service: see the channel's thread."""

    def __init__(self, read: Read, codec: OffsetCodec[Any, Any]) -> None:
        self._read = read
        self._codec = codec
        strategy = read.options.watermarks
        self._aligner: Aligner[Any] | None = None if strategy is None else Aligner(strategy)
        self.parallelism = max(read.partitions, read.options.min_partitions or 1)
        self._batches: MicroBatches[Any, Any] = MicroBatches(read.source, self.parallelism, self._aligner)
        self._channel: SourceChannel | None = None
        self._handle: ChannelHandle | None = None
        self._told = 0
        self._available_now = False
        self._idle = FIRST_IDLE_S
        self._found_nothing_at = -MAX_IDLE_S
        # The channel's thread.
        self._tasks: dict[str, tuple[int, PeerEnd]] = {}

    @property
    def thread(self) -> EnumeratorThread[Any, Any]:
        """The enumerator's thread. Raises RuntimeError before anything was planned."""
        return self._batches.thread

    @property
    def hold(self) -> Hold | None:
        """The splits that alignment holds back now, and those that they wait for. Any thread."""
        return None if self._aligner is None else self._aligner.holds.hold

    def only_what_is_there(self) -> None:
        """Plan what is there now, and then nothing."""
        self._available_now = True
        self._batches.only_what_is_there()

    def plan(self, start: Json, limit: ReadLimit) -> Offset[Any, Any] | None:
        """The offset after the next micro-batch, None if there is nothing to read.

        After one that has found nothing, the next one waits for some milliseconds.
        """
        if not self._available_now:
            time.sleep(max(0.0, self._found_nothing_at + self._idle - time.monotonic()))
        # Another number: an offset of before was not used, or this process is new.
        if number_of(start) != self._batches.number:
            self._batches.take_up(self._codec.from_json(start))
        planned = self._batches.plan(limit)
        if planned is not None:
            self._idle = FIRST_IDLE_S
            self._found_nothing_at = -MAX_IDLE_S
            return planned
        # Spark does not say so of the last micro-batch, but it is done, or nobody would ask.
        self.committed(start).result()
        self._idle = min(2 * self._idle, MAX_IDLE_S)
        self._found_nothing_at = time.monotonic()
        return None

    def settle(self, end: Json) -> None:
        """A micro-batch up to `end` is to run; after a restart that is the first that is heard of."""
        if self._batches.number < 0:
            self._batches.take_up(self._codec.from_json(end))

    def committed(self, end: Json) -> Future[None]:
        """Tell the source what is durable, on its thread. What it raises is logged."""
        done: Future[None] = Future()
        done.set_result(None)
        if self._batches.number < 0 or end["number"] <= self._told:
            return done
        if type(self._batches.enumerator).notify_committed is SplitEnumerator.notify_committed:
            return done
        self._told = end["number"]
        positions = self._codec.from_json(end).positions()
        return self.thread.submit(self._batches.coordinator.notify_committed, positions)

    def handle(self) -> ChannelHandle:
        """The way for tasks to this process. The channel listens from the first call on."""
        if self._handle is None:
            options = self._read.options
            self._channel = SourceChannel(options.host, options.port, advertise=options.advertise).start()
            self._handle = self._channel.serve("stream", self)
        return self._handle

    def close(self) -> None:
        """End the threads and the channel."""
        if self._channel is not None:
            self._channel.close()
        self._batches.close()

    # -- as a service; the channel's thread ----------------------------------------------------------

    def opened(self, peer: Peer, about: Any) -> None:
        """A task is there."""
        subtask, end = about["subtask"], PeerEnd(peer)
        coordinator = self._batches.coordinator
        coordinator.attach(subtask, end)
        self._tasks[peer.name] = subtask, end
        introduced = self.thread.submit(coordinator.introduce, subtask, about["host"])
        peer.drop_if_fails(introduced, f"the enumerator could not take reader {subtask}")

    def request(self, peer: Peer, body: Any) -> Any:
        """Take how far a task has read in event time."""
        return self.thread.submit(self._report, body["times"])

    def pushed(self, peer: Peer, body: Any) -> None:
        """A task says something to the enumerator. What that raises ends the task."""
        event = event_from_json(body)
        heard = self.thread.submit(self._batches.coordinator.hear, self._tasks[peer.name][0], event)
        peer.drop_if_fails(heard, f"the enumerator could not take event {event.kind!r}")

    def gone(self, peer: Peer, said_so: bool) -> None:
        """A task has ended."""
        task = self._tasks.pop(peer.name, None)
        if task is not None:
            self._batches.coordinator.detach(*task)

    def _report(self, times: Mapping[str, float]) -> None:
        if self._aligner is not None:
            self._aligner.report(times)
