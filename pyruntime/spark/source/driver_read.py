"""One read that gives out splits by need: `DriverRead`. Thread-safe; in the driver.

Spark plans a DataFrame's read once: all actions on it, and whatever is computed again, are attempts of the
same partitions. So what was given out is kept. The enumerator is there only while somebody reads: it is put
to rest when nobody has for a while, and goes on where it was when somebody asks again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from pillarbox.sources.channel import Peer
from pillarbox.sources.events import SourceEvent, event_to_json
from pillarbox.sources.partition_log import Entry
from pillarbox.sources.remote_link import pieces
from pillarbox.sources.shared_read import MOST, Rested, SharedRead
from pillarbox.spark.source.named import AnySource

T = TypeVar("T")


def aside(fn: Callable[[], object]) -> None:
    """Call `fn` on a thread of its own: a source whose service does not answer must hold up nobody else."""
    threading.Thread(target=fn, name="pillarbox-source-read", daemon=True).start()


class DriverRead:
    """A read of `source` in `partitions` partitions. It begins with the first task that asks.

    None of its methods blocks, but `rest` and `close`.
    """

    def __init__(self, source: AnySource, partitions: int) -> None:
        self._source = source
        self._serializer = source.split_serializer
        self._partitions = partitions
        self._lock = threading.Lock()
        self._given: list[list[Any]] = [[] for _ in range(partitions)]
        self._over = [False] * partitions
        self._peers: dict[int, list[Peer]] = {}
        # Held while the enumerator is made or put to rest, which may take as long as its service likes.
        self._changing = threading.Lock()
        self._shared: SharedRead[Any] | None = None
        self._rested: Rested | None = None
        # What nobody has asked the enumerator yet, and what is being asked, which is the first.
        self._asked: deque[Callable[[Callable[[], SharedRead[Any]]], None]] = deque()
        self._failure: BaseException | None = None

    @property
    def running(self) -> bool:
        """Whether its enumerator is there."""
        return self._shared is not None

    @property
    def size(self) -> int:
        """Splits that were given out."""
        return sum(map(len, self._given))

    @property
    def attended(self) -> bool:
        """Whether an attempt is there."""
        with self._lock:
            return any(self._peers.values())

    def known(self, partition: int, index: int) -> list[Any]:
        """What the partition reads from number `index` on, as far as that is known: [] is the end."""
        with self._lock:
            given = self._given[partition]
            # As many as a message holds.
            answer = next(pieces(given[index : index + MOST]), [])
            if self._over[partition] and index + len(answer) == len(given):
                answer.append([])
            return answer

    def ask(self, partition: int, index: int, host: str, most: int) -> Future[list[Any]]:
        """The same, found out if need be: `most` new ones at most. Fails with what ended the enumerator."""

        def note(entries: list[Entry[Any]]) -> list[Any]:
            self._note(partition, index, entries)
            return self.known(partition, index)

        return self._with_enumerator(lambda shared: shared.next(partition, index, host, most), note)

    def hear(self, partition: int, event: SourceEvent) -> Future[None]:
        """A task says something to the enumerator."""
        return self._with_enumerator(lambda shared: shared.hear(partition, event), lambda done: done)

    def came(self, partition: int, peer: Peer) -> None:
        """An attempt is there. Raises ValueError for a partition that does not exist."""
        if not (type(partition) is int and 0 <= partition < self._partitions):
            raise ValueError(f"partition={partition!r}: must be from 0 to {self._partitions - 1}")
        with self._lock:
            self._peers.setdefault(partition, []).append(peer)

    def went(self, partition: int, peer: Peer) -> None:
        """An attempt has gone."""
        with self._lock:
            self._peers[partition].remove(peer)

    @property
    def over(self) -> bool:
        """Whether every partition has come to its end."""
        with self._lock:
            return all(self._over)

    def rest(self) -> None:
        """Let the enumerator go, unless an attempt is there, and remember where it was. May block."""
        with self._changing:
            shared = self._shared
            if shared is None or self.attended:
                return
            self._shared = None
            try:
                self._rested = shared.rest()
            except Exception as error:
                # What it knew is gone; what was given out must not be found again.
                shared.close()
                if any(self._given) or self._rested is not None:
                    self._failure = error

    def close(self) -> None:
        """End the enumerator for good. May block."""
        with self._changing:
            shared, self._shared = self._shared, None
            self._failure = RuntimeError(
                "this read was planned too long ago, and many others were since: make its DataFrame anew"
            )
        if shared is not None:
            shared.close()

    # -- inside --------------------------------------------------------------------------------------

    def _with_enumerator(
        self, ask: Callable[[SharedRead[Any]], Future[T]], take: Callable[[T], Any]
    ) -> Future[Any]:
        """What `take` makes of what `ask` is answered by the enumerator, which is made if it is not there."""
        answer: Future[Any] = Future()

        def answered(done: Future[T]) -> None:
            error = done.exception()
            with suppress(InvalidStateError):
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(take(done.result()))

        def begin(enumerator: Callable[[], SharedRead[Any]]) -> None:
            try:
                future = ask(enumerator())
            except BaseException as error:
                with suppress(InvalidStateError):
                    answer.set_exception(error)
            else:
                future.add_done_callback(answered)

        with self._lock:
            self._asked.append(begin)
            if len(self._asked) > 1:
                # Whoever came first asks for all, so that events stay in order.
                return answer
        # Where it is there and nobody changes that, at once.
        if self._changing.acquire(blocking=False):
            try:
                shared = self._shared
                if shared is not None and shared.failure is None:
                    self._ask_all(lambda: shared)
                    return answer
            finally:
                self._changing.release()
        aside(self._ask_aside)
        return answer

    def _ask_aside(self) -> None:
        with self._changing:
            self._ask_all(self._begun)

    def _ask_all(self, enumerator: Callable[[], SharedRead[Any]]) -> None:
        while True:
            self._asked[0](enumerator)
            with self._lock:
                self._asked.popleft()
                if not self._asked:
                    return

    def _begun(self) -> SharedRead[Any]:
        if self._failure is not None:
            raise self._failure
        shared = self._shared
        if shared is not None and shared.failure is not None:
            if any(self._given):
                # Which splits those that were given out were taken from, nobody knows any more.
                raise shared.failure
            shared.close()
            shared = None
        if shared is None:
            made = SharedRead(self._source, self._partitions, send=self._send, rested=self._rested)
            shared = self._shared = made.start()
        return shared

    def _note(self, partition: int, index: int, entries: list[Entry[Any]]) -> None:
        version = self._serializer.version
        with self._lock:
            given = self._given[partition]
            for at, entry in enumerate(entries, index):
                if entry.split is None:
                    self._over[partition] = True
                elif at == len(given):
                    given.append([version, self._serializer.to_json(entry.split)])

    def _send(self, partition: int, event: SourceEvent) -> None:
        with self._lock:
            peers = list(self._peers.get(partition, ()))
        for peer in peers:
            peer.push(event_to_json(event))
