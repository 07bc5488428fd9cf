"""The link of a reader in another process: `RemoteLink` there, `LinkService` at the coordinator.

`RemoteLink` is thread-safe. The service is called on the channel's thread. What they say to each other are
the messages of `pillarbox.sources.link` as JSON, long ones in pieces.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pillarbox.sources.channel import ChannelClient, ChannelHandle, Peer
from pillarbox.sources.events import SourceEvent, event_from_json, event_to_json
from pillarbox.sources.link import (
    AddSplits,
    Event,
    EventTimeLimit,
    Failed,
    Message,
    NoMoreSplits,
    ReaderState,
    digest_of,
)
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import SplitCoordinator
from pillarbox.wire.frames import encode

if TYPE_CHECKING:
    from pillarbox.sources.coordinator import SourceCoordinator

S = TypeVar("S", bound=Split)
T = TypeVar("T")

PIECE = 128 * 1024
"""Bytes of a piece of a long message, about. A single split may be longer, up to what a message may be."""


def pieces(items: Collection[T]) -> Iterator[list[T]]:
    """`items` in lists that are not too long for a message each."""
    piece: list[T] = []
    taken = 0
    for item in items:
        length = len(encode(item))
        if piece and taken + length > PIECE:
            yield piece
            piece, taken = [], 0
        piece.append(item)
        taken += length
    if piece:
        yield piece


def time_to_json(time: float | None) -> float | str | None:
    """A watermark as JSON, which knows no infinity."""
    return str(time) if time is not None and math.isinf(time) else time


class RemoteLink(Generic[S]):
    """The link of a reader in a process of its own. See `CoordinatorLink`. Thread-safe.

    handle: `SourceCoordinator.handle`. source: for how its splits are written. patience: seconds without a
    connection after which the reader fails.
    """

    def __init__(
        self, handle: ChannelHandle, subtask: int, source: Source[S, Any], *, patience: float = 60.0
    ) -> None:
        self._handle = handle
        self._subtask = subtask
        self._serializer = source.split_serializer
        self._patience = patience
        self._client: ChannelClient | None = None
        self._receive: Callable[[Message[S]], None] | None = None
        # The client's thread: pieces of a message that is not whole yet.
        self._splits: list[tuple[S, int]] = []

    def open(self, receive: Callable[[Message[S]], None], state: ReaderState[S] | None = None) -> None:
        """See `CoordinatorLink`."""
        self._receive = receive
        restored = digest_of(state, self._serializer)
        about = {"subtask": self._subtask, "host": socket.gethostname(), "restored": restored}
        self._client = self._handle.connect(
            about, receive=self._heard, failed=self._failed, patience=self._patience
        )

    def request_split(self) -> None:
        """See `CoordinatorLink`."""
        self._say({"is": "request"})

    def send(self, event: SourceEvent) -> None:
        """See `CoordinatorLink`. Raises what `event_to_json` raises."""
        self._say(event_to_json(event))

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        """See `CoordinatorLink`."""
        said = [[split_id, time_to_json(time)] for split_id, time in watermarks.items()]
        for piece in pieces(said):
            self._say({"is": "report", "watermarks": piece})

    def finished(self, split_ids: Collection[str]) -> None:
        """See `CoordinatorLink`."""
        for piece in pieces(split_ids):
            self._say({"is": "finished", "splits": piece})

    def close(self, done: bool = False) -> None:
        """See `CoordinatorLink`."""
        client, self._client = self._client, None
        if client is None:
            return
        self._receive = None
        client.push({"is": "leave", "done": done})
        client.close()

    def __repr__(self) -> str:
        return f"<RemoteLink of reader {self._subtask}, {self._handle!r}>"

    def _say(self, body: dict[str, Any]) -> None:
        client = self._client
        if client is not None:
            client.push(body)

    # -- the client's thread ------------------------------------------------------------------

    def _heard(self, body: dict[str, Any]) -> None:
        message = self._message(body)
        receive = self._receive
        if message is not None and receive is not None:
            receive(message)

    def _message(self, body: dict[str, Any]) -> Message[S] | None:
        kind = body["is"]
        if kind == "splits":
            version = body["version"]
            for written, skip in body["splits"]:
                self._splits.append((self._serializer.from_json(version, written), skip))
            if body["more"]:
                return None
            splits, self._splits = self._splits, []
            skips = {split.split_id: skip for split, skip in splits if skip}
            return AddSplits(tuple(split for split, _ in splits), body["number"], skips)
        if kind == "no more":
            return NoMoreSplits()
        if kind == "event":
            return Event(event_from_json(body))
        if kind == "limit":
            return EventTimeLimit(float(body["seconds"]))
        raise ValueError(f"{kind!r} is no message to a reader")

    def _failed(self, error: Exception) -> None:
        receive = self._receive
        if receive is not None:
            receive(Failed(error))


class RemoteEnd(Generic[S]):
    """The coordinator's way to a reader in another process. See `ReaderEnd`. Thread-safe."""

    def __init__(self, peer: Peer, subtask: int, serializer: Serializer[S]) -> None:
        self.subtask = subtask
        self.done = False
        """True if it has said that it had read everything. The channel's thread."""
        self._peer = peer
        self._serializer = serializer

    def deliver(self, message: Message[S]) -> None:
        """See `ReaderEnd`."""
        if isinstance(message, AddSplits):
            self._add(message)
        elif isinstance(message, NoMoreSplits):
            self._peer.push({"is": "no more"})
        elif isinstance(message, Event):
            self._peer.push(event_to_json(message.event))
        elif isinstance(message, EventTimeLimit):
            self._peer.push({"is": "limit", "seconds": time_to_json(message.seconds)})
        else:
            error = message.error
            kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
            self._peer.drop(f"{kind}{error}")

    def _add(self, message: AddSplits[S]) -> None:
        written = [
            [self._serializer.to_json(split), message.skip.get(split.split_id, 0)] for split in message.splits
        ]
        parts = [*pieces(written)] or [[]]
        for at, part in enumerate(parts, 1):
            self._peer.push({
                "is": "splits", "version": self._serializer.version, "number": message.number,
                "splits": part, "more": at < len(parts),
            })  # fmt: skip


class LinkService(Generic[S]):
    """Answers the remote links of one coordinator: a `Service` of its channel. The channel's thread."""

    def __init__(self, coordinator: SourceCoordinator[S], serializer: Serializer[S]) -> None:
        self._coordinator = coordinator
        self._serializer = serializer
        self._ends: dict[str, RemoteEnd[S]] = {}

    def opened(self, peer: Peer, about: Any) -> None:
        """See `Service`. Raises ValueError for what is no reader."""
        subtask = about["subtask"]
        if type(subtask) is not int or not 0 <= subtask < self._coordinator.parallelism:
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {self._coordinator.parallelism - 1}")
        end = RemoteEnd(peer, subtask, self._serializer)
        self._ends[peer.name] = end
        restored = about["restored"]
        self._coordinator.open_reader(
            end, subtask, str(about["host"]), None if restored is None else str(restored)
        )

    def request(self, peer: Peer, body: Any) -> Any:
        """See `Service`. Readers ask nothing that has an answer of its own."""
        raise ValueError("a coordinator answers no requests")

    def pushed(self, peer: Peer, body: Any) -> None:
        """See `Service`. Raises KeyError, TypeError or ValueError for what no reader says."""
        end = self._ends[peer.name]
        kind = body["is"]
        if kind == "request":
            self._coordinator.said(end, end.subtask, SplitCoordinator.request)
        elif kind == "event":
            self._coordinator.said(end, end.subtask, SplitCoordinator.hear, event_from_json(body))
        elif kind == "report":
            times = {str(name): None if time is None else float(time) for name, time in body["watermarks"]}
            self._coordinator.said(end, end.subtask, SplitCoordinator.report, times)
        elif kind == "finished":
            names = [str(split_id) for split_id in body["splits"]]
            self._coordinator.said(end, end.subtask, SplitCoordinator.finished, names)
        elif kind == "leave":
            end.done = bool(body["done"])
        else:
            raise ValueError(f"{kind!r} is nothing that a reader says")

    def gone(self, peer: Peer, said_so: bool) -> None:
        """See `Service`."""
        end = self._ends.pop(peer.name)
        self._coordinator.said(end, end.subtask, SplitCoordinator.leave, end.done)
