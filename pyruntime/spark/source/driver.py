"""The reads of this driver that give out splits by need: `DriverReads`, a service on the driver's channel.

A read is planned in a process of Spark's, which opens it here; its tasks ask here for one split after the
other. Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import pyarrow as pa

from pillarbox.sources.channel import Peer
from pillarbox.sources.events import SourceEvent
from pillarbox.sources.partition_log import Entry
from pillarbox.sources.shared_read import SharedRead
from pillarbox.spark.source.named import AnySource, make_source
from pillarbox.spark.source.options import parse_options
from pillarbox.spark.source.threads import CallingThread

log = logging.getLogger("pillarbox")

MOST_RUNNING = 100
"""Reads whose enumerators run. Of more, the one that nobody has asked for longest is ended."""
MOST_KNOWN = 1000
"""Reads whose tasks can still be run again."""


class DriverRead:
    """One read: it begins with the first task that asks, and ends its threads when all splits are given out.

    What was given out is kept, for attempts that come later. Thread-safe.
    """

    def __init__(self, source: AnySource, partitions: int) -> None:
        self._source = source
        self._serializer = source.split_serializer
        self._lock = threading.Lock()
        self._given: list[list[Any]] = [[] for _ in range(partitions)]
        self._over = [False] * partitions
        self._shared: SharedRead[Any] | None = None
        self._peers: dict[int, list[Peer]] = {}
        self._ended = False

    @property
    def running(self) -> bool:
        """Whether its enumerator runs."""
        return self._shared is not None

    def known(self, partition: int, index: int) -> list[Any] | None:
        """What the partition reads as number `index`, where that is known: [] is the end."""
        with self._lock:
            given = self._given[partition]
            if index < len(given):
                return list(given[index])
            return [] if self._over[partition] else None

    def ask(self, partition: int, index: int, host: str) -> Future[list[Any]]:
        """The same, found out if need be. May block, while the enumerator is made."""
        if self._ended:
            raise RuntimeError(
                "this read was planned too long ago, and many others were since: make its DataFrame anew"
            )
        if self._shared is None:
            self._shared = SharedRead(self._source, len(self._given), send=self._send).start()
        answer: Future[list[Any]] = Future()

        def done(future: Future[Entry[Any]]) -> None:
            error = future.exception()
            with suppress(InvalidStateError):
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(self._note(partition, index, future.result().split))

        self._shared.next(partition, index, host).add_done_callback(done)
        return answer

    def hear(self, partition: int, event: SourceEvent) -> Future[None]:
        """A task says something to the enumerator."""
        if self._shared is None:
            raise RuntimeError("the enumerator of this read has ended: all splits are given out")
        return self._shared.hear(partition, event)

    def came(self, partition: int, peer: Peer) -> None:
        """An attempt is there."""
        with self._lock:
            self._peers.setdefault(partition, []).append(peer)

    def went(self, partition: int, peer: Peer) -> None:
        """An attempt has gone."""
        with self._lock:
            self._peers[partition].remove(peer)

    def close(self) -> None:
        """End the enumerator. What was given out is kept. May block."""
        shared, self._shared = self._shared, None
        self._ended = not all(self._over)
        if shared is not None:
            shared.close()

    @property
    def over(self) -> bool:
        """Whether every partition has come to its end, and no attempt is there that might say something."""
        with self._lock:
            return all(self._over) and not any(self._peers.values())

    def _note(self, partition: int, index: int, split: Any) -> list[Any]:
        with self._lock:
            if split is None:
                self._over[partition] = True
                return []
            written = [self._serializer.version, self._serializer.to_json(split)]
            if index == len(self._given[partition]):
                self._given[partition].append(written)
            return written

    def _send(self, partition: int, event: SourceEvent) -> None:
        with self._lock:
            peers = list(self._peers.get(partition, ()))
        for peer in peers:
            peer.push({"event": [event.kind, event.payload]})


class DriverReads:
    """What was registered in this process, and the reads of it. A service: its methods do not block."""

    def __init__(self) -> None:
        self._thread = CallingThread("pillarbox-source-reads")
        self._lock = threading.Lock()
        self._sources: dict[str, AnySource | type[AnySource] | None] = {}
        self._reads: OrderedDict[str, DriverRead] = OrderedDict()
        self._tasks: dict[str, tuple[DriverRead, int, str]] = {}

    def register(self, name: str, source: AnySource | type[AnySource] | None) -> None:
        """Read `source` where `name` is asked for. Any thread."""
        with self._lock:
            self._sources[name] = source

    # -- the channel's thread ------------------------------------------------------------------------

    def opened(self, peer: Peer, about: Any) -> None:
        """A planner, or a task of a read."""
        if about["read"] is None:
            return
        read = self._read(about["read"])
        self._tasks[peer.name] = (read, about["subtask"], about["host"])
        read.came(about["subtask"], peer)

    def request(self, peer: Peer, body: Any) -> Any:
        """A planner opens a read, or a task asks for its next split."""
        if "open" in body:
            return self._thread.submit(lambda: self._open(**body))
        read, partition, host = self._tasks[peer.name]
        index = body["next"]
        known = read.known(partition, index)
        if known is not None:
            return known
        answer: Future[list[Any]] = Future()
        self._thread.submit(lambda: _pass_on(lambda: self._ask(read, partition, index, host), answer))
        return answer

    def pushed(self, peer: Peer, body: Any) -> None:
        """A task has an event for the enumerator."""
        read, partition, _ = self._tasks[peer.name]
        event = SourceEvent(*body["event"])

        def done(future: Future[None]) -> None:
            error = future.exception()
            if error is not None:
                peer.drop(f"the enumerator could not take event {event.kind!r}: {error}")

        read.hear(partition, event).add_done_callback(done)

    def gone(self, peer: Peer, said_so: bool) -> None:
        """A task has ended, or a planner."""
        task = self._tasks.pop(peer.name, None)
        if task is not None:
            read, partition, _ = task
            read.went(partition, peer)
            if read.over:
                self._thread.submit(read.close)

    def _read(self, name: str) -> DriverRead:
        with self._lock:
            read = self._reads.get(name)
            if read is None:
                raise RuntimeError(
                    f"this read is not known here any more: {MOST_KNOWN:,} were planned since, or this "
                    "is another process; make its DataFrame anew"
                )
            self._reads.move_to_end(name)
            return read

    # -- the thread of the reads ---------------------------------------------------------------------

    def _open(self, open: str, of: str, partitions: int, options: dict[str, str], schema: str) -> None:
        with self._lock:
            # A planner whose connection broke asks again.
            if open in self._reads:
                return
            source = self._sources[of]
        made = make_source(
            source, parse_options(options), pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema)))
        )
        with self._lock:
            self._reads[open] = DriverRead(made, partitions)
            forgotten = [self._reads.popitem(last=False)[1] for _ in range(len(self._reads) - MOST_KNOWN)]
        for read in forgotten:
            read.close()

    def _ask(self, read: DriverRead, partition: int, index: int, host: str) -> Future[list[Any]]:
        if not read.running:
            with self._lock:
                running = [each for each in self._reads.values() if each.running]
            for each in running[: len(running) + 1 - MOST_RUNNING]:
                each.close()
        return read.ask(partition, index, host)


def _pass_on(ask: Callable[[], Future[list[Any]]], answer: Future[list[Any]]) -> None:
    """Have `answer` be that of `ask`, which may raise."""

    def done(future: Future[list[Any]]) -> None:
        error = future.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(future.result())

    try:
        ask().add_done_callback(done)
    except BaseException as error:
        answer.set_exception(error)
