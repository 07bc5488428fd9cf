"""The reads of this driver that give out splits by need: `DriverReads`, a service on the driver's channel.

A read is planned in a process of Spark's, which opens it here; its tasks ask here for one split after the
other. Thread-safe.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from typing import Any

from pillarbox.sources.channel import Peer
from pillarbox.sources.events import event_from_json
from pillarbox.spark.source.driver_read import DriverRead, PeerEnd, aside
from pillarbox.spark.source.named import Registered, make_source
from pillarbox.spark.source.options import parse_options
from pillarbox.spark.source.schemas import schema_from_text

MAX_RUNNING_READS = 32
"""Reads whose enumerators are there. Of more, the oldest that no task reads now are suspended."""
SUSPEND_AFTER_S = 60.0
"""Without a task a read is suspended."""
MAX_KNOWN_READS, MAX_KNOWN_SPLITS = 1000, 300_000
"""Reads whose tasks can still be run again, and the splits of all of them: some 400 bytes each."""
MAX_PARTITIONS = 100_000


class DriverReads:
    """The sources that were registered in this process, and their reads. A service: nothing here blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[str, Registered] = {}
        self._reads: OrderedDict[str, DriverRead] = OrderedDict()
        self._tasks: dict[str, tuple[DriverRead, int, str, PeerEnd]] = {}

    def register(self, registration: str, source: Registered) -> None:
        """Read `source` where this registration is asked for: a name may be given anew. Any thread."""
        with self._lock:
            self._sources[registration] = source

    def forget(self, registration: str) -> None:
        """Spark has refused it. Any thread."""
        with self._lock:
            self._sources.pop(registration, None)

    # -- the channel's thread ------------------------------------------------------------------------

    def opened(self, peer: Peer, about: Any) -> None:
        """A planner, or a task of a read."""
        if about["read"] is None:
            return
        read = self._read(about["read"])
        end = PeerEnd(peer)
        read.coordinator.attach(about["subtask"], end)
        self._tasks[peer.name] = (read, about["subtask"], about["host"], end)

    def request(self, peer: Peer, body: Any) -> Any:
        """A planner opens a read, or a task asks for its next split."""
        if "open" in body:
            return aside(lambda: self._open(**body))
        read, partition, host, _ = self._tasks[peer.name]
        index, most = body["next"], body["most"]
        known = read.known(partition, index)
        if known:
            return known
        if not read.running:
            self._make_room()
        return read.ask(partition, index, host, most)

    def pushed(self, peer: Peer, body: Any) -> None:
        """A task has an event for the enumerator."""
        read, partition, *_ = self._tasks[peer.name]
        event = event_from_json(body)
        peer.drop_if_fails(read.hear(partition, event), f"the enumerator could not take event {event.kind!r}")

    def gone(self, peer: Peer, said_so: bool) -> None:
        """A task has ended, or a planner."""
        task = self._tasks.pop(peer.name, None)
        if task is None:
            return
        read, partition, _, end = task
        read.coordinator.detach(partition, end)
        if read.coordinator.attended or not read.running:
            return
        if read.coordinator.over:
            aside(read.suspend)
        else:
            # After `take`, say. Its next task may come in a moment, or never.
            asyncio.get_running_loop().call_later(SUSPEND_AFTER_S, aside, read.suspend)

    def _read(self, name: str) -> DriverRead:
        with self._lock:
            read = self._reads.get(name)
            if read is None:
                raise RuntimeError(
                    f"this read is not known here any more: {MAX_KNOWN_READS:,} were planned since, or this "
                    "is another process; make its DataFrame anew"
                )
            self._reads.move_to_end(name)
            return read

    # -- a thread of its own ---------------------------------------------------------------------------

    def _open(self, open: str, of: str, partitions: int, options: dict[str, str], schema: str) -> None:
        with self._lock:
            source = self._sources[of]
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ValueError(f"partitions={partitions!r}: must be from 1 to {MAX_PARTITIONS:,}")
        made = make_source(source, parse_options(options), schema_from_text(schema))
        with self._lock:
            # A planner whose connection broke asks again.
            self._reads.setdefault(open, DriverRead(made, partitions))
            forgotten = []
            known = sum(read.coordinator.size for read in self._reads.values())
            while len(self._reads) > 1 and (known > MAX_KNOWN_SPLITS or len(self._reads) > MAX_KNOWN_READS):
                forgotten.append(self._reads.popitem(last=False)[1])
                known -= forgotten[-1].coordinator.size
        for read in forgotten:
            aside(read.close)

    def _make_room(self) -> None:
        with self._lock:
            running = [each for each in self._reads.values() if each.running]
        left = [each for each in running if not each.coordinator.attended]
        for each in left[: max(0, len(running) + 1 - MAX_RUNNING_READS)]:
            aside(each.suspend)
