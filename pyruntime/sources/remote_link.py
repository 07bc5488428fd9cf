"""The link of a reader in another process: `RemoteLink` there, `LinkService` at the coordinator.

`RemoteLink` is thread-safe. The service is called on the channel's thread. What they say to each other are
the messages of this file; a list that may be long goes in pieces.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pillarbox.rpc.client import RpcClient, RpcHandle
from pillarbox.rpc.codec import Codec
from pillarbox.rpc.connection import pieces
from pillarbox.rpc.server import Peer
from pillarbox.sources.link import (
    AddSplits,
    Event,
    EventTimeLimit,
    Failed,
    Message,
    NoMoreSplits,
    ReaderState,
    SourceEvent,
    check_event,
    digest_of,
)
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import SplitCoordinator

if TYPE_CHECKING:
    from pillarbox.sources.coordinator import SourceCoordinator

S = TypeVar("S", bound=Split)


class SomeSplits(NamedTuple):
    """A piece of an `AddSplits`: splits as JSON, each with the records to skip. more: others belong to it."""

    number: int
    version: int
    splits: tuple[tuple[Any, int], ...]
    more: bool


class OpenReader(NamedTuple):
    """A reader is there. restored: see `digest_of`."""

    subtask: int
    host: str
    restored: str | None


class RequestSplit(NamedTuple):
    """See `CoordinatorLink.request_split`."""


class ReportWatermarks(NamedTuple):
    """See `CoordinatorLink.report`."""

    watermarks: tuple[tuple[str, float | None], ...]


class FinishSplits(NamedTuple):
    """See `CoordinatorLink.finished`."""

    split_ids: tuple[str, ...]


class Leave(NamedTuple):
    """See `CoordinatorLink.close`."""

    done: bool


TO_READER = Codec(SomeSplits, NoMoreSplits, SourceEvent, EventTimeLimit)
TO_COORDINATOR = Codec(OpenReader, RequestSplit, ReportWatermarks, FinishSplits, SourceEvent, Leave)


class RemoteLink(Generic[S]):
    """The link of a reader in a process of its own. See `CoordinatorLink`. Thread-safe.

    handle: `SourceCoordinator.handle`. source: for how its splits are written. patience: seconds without a
    connection after which the reader fails.
    """

    def __init__(
        self, handle: RpcHandle, subtask: int, source: Source[S, Any], *, patience: float = 60.0
    ) -> None:
        self._handle = handle
        self._subtask = subtask
        self._serializer = source.split_serializer
        self._patience = patience
        self._client: RpcClient | None = None
        self._receive: Callable[[Message[S]], None] | None = None
        # The client's thread: pieces of a message that is not whole yet.
        self._splits: list[tuple[S, int]] = []

    def open(self, receive: Callable[[Message[S]], None], state: ReaderState[S] | None = None) -> None:
        """See `CoordinatorLink`."""
        self._receive = receive
        opening = OpenReader(self._subtask, socket.gethostname(), digest_of(state, self._serializer))
        self._client = self._handle.connect(
            TO_COORDINATOR.to_json(opening),
            receive=self._hear,
            failed=lambda error: self._deliver(Failed(error)),
            patience=self._patience,
        )

    def request_split(self) -> None:
        """See `CoordinatorLink`."""
        self._say(RequestSplit())

    def send(self, event: SourceEvent) -> None:
        """See `CoordinatorLink`. Raises what `check_event` raises."""
        self._say(check_event(event))

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        """See `CoordinatorLink`."""
        kind, written = TO_COORDINATOR.to_json(ReportWatermarks(tuple(watermarks.items())))
        for piece in pieces(written):
            self._push([kind, piece])

    def finished(self, split_ids: Collection[str]) -> None:
        """See `CoordinatorLink`."""
        for piece in pieces(split_ids):
            self._say(FinishSplits(tuple(piece)))

    def close(self, done: bool = False) -> None:
        """See `CoordinatorLink`."""
        self._receive = None
        self._say(Leave(done))
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __repr__(self) -> str:
        return f"<RemoteLink of reader {self._subtask}, {self._handle!r}>"

    def _say(self, message: Any) -> None:
        self._push(TO_COORDINATOR.to_json(message))

    def _push(self, written: list[Any]) -> None:
        client = self._client
        if client is not None:
            client.push(written)

    # -- the client's thread ------------------------------------------------------------------

    def _deliver(self, message: Message[S]) -> None:
        receive = self._receive
        if receive is not None:
            receive(message)

    def _hear(self, body: Any) -> None:
        message = TO_READER.from_json(body)
        if isinstance(message, SourceEvent):
            self._deliver(Event(message))
        elif not isinstance(message, SomeSplits):
            self._deliver(message)
        else:
            for written, skip in message.splits:
                self._splits.append((self._serializer.from_json(message.version, written), skip))
            if not message.more:
                splits, self._splits = self._splits, []
                skips = {split.split_id: skip for split, skip in splits if skip}
                self._deliver(AddSplits(tuple(split for split, _ in splits), message.number, skips))


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
        if isinstance(message, Failed):
            error = message.error
            kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
            self._peer.drop(f"{kind}{error}")
        elif isinstance(message, AddSplits):
            number, serializer = message.number, self._serializer
            written = [
                (serializer.to_json(split), message.skip.get(split.split_id, 0)) for split in message.splits
            ]
            parts = [*pieces(written)] or [[]]
            for at, part in enumerate(parts, 1):
                self._push(SomeSplits(number, serializer.version, tuple(part), at < len(parts)))
        else:
            self._push(message.event if isinstance(message, Event) else message)

    def _push(self, message: Any) -> None:
        self._peer.push(TO_READER.to_json(message))


class LinkService(Generic[S]):
    """Answers the remote links of one coordinator: a `Service` of its channel. The channel's thread."""

    def __init__(self, coordinator: SourceCoordinator[S], serializer: Serializer[S]) -> None:
        self._coordinator = coordinator
        self._serializer = serializer
        self._ends: dict[str, RemoteEnd[S]] = {}

    def opened(self, peer: Peer, about: Any) -> None:
        """See `Service`. Raises ValueError for what is not a reader."""
        subtask, host, restored = TO_COORDINATOR.from_json(about)
        if not 0 <= subtask < self._coordinator.parallelism:
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {self._coordinator.parallelism - 1}")
        end = self._ends[peer.name] = RemoteEnd(peer, subtask, self._serializer)
        self._coordinator.open_reader(end, subtask, host, restored)

    def request(self, peer: Peer, body: Any) -> Any:
        """See `Service`. Readers ask nothing that has an answer of its own."""
        raise ValueError("a coordinator answers no requests")

    def pushed(self, peer: Peer, body: Any) -> None:
        """See `Service`. Raises ValueError for what no reader says."""
        message, end = TO_COORDINATOR.from_json(body), self._ends[peer.name]
        if isinstance(message, RequestSplit):
            self._said(end, SplitCoordinator.request)
        elif isinstance(message, SourceEvent):
            self._said(end, SplitCoordinator.hear, message)
        elif isinstance(message, ReportWatermarks):
            self._said(end, SplitCoordinator.report, dict(message.watermarks))
        elif isinstance(message, FinishSplits):
            self._said(end, SplitCoordinator.finished, message.split_ids)
        elif isinstance(message, Leave):
            end.done = message.done
        else:
            raise ValueError(f"{message!r} is said when a reader opens, and not later")

    def _said(self, end: RemoteEnd[S], what: Callable[..., None], *args: Any) -> None:
        self._coordinator.said(end, end.subtask, what, *args)

    def gone(self, peer: Peer, said_so: bool) -> None:
        """See `Service`."""
        end = self._ends.pop(peer.name)
        self._said(end, SplitCoordinator.leave, end.done)
