"""The coordinator of a source's readers in tasks: `SourceCoordinator`, and their links in its process.

It runs the enumerator, deals splits out, keeps event times together, and puts checkpoints together.
Thread-safe. The idea is Flink's `SourceCoordinator` (FLIP-27).
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from pillarbox.rpc.client import RpcHandle
from pillarbox.sources.alignment import Hold
from pillarbox.sources.channel import SourceChannel
from pillarbox.sources.enumerating import Checkpoint, Waiting
from pillarbox.sources.event_time import WatermarkStrategy
from pillarbox.sources.link import (
    Failed,
    Message,
    ReaderState,
    SourceEvent,
    digest_of,
    state_from_json,
    state_to_json,
)
from pillarbox.sources.remote_link import LinkService
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.sources.split_coordinator import ReaderEnd, SplitCoordinator
from pillarbox.validate import check_positive_int

S = TypeVar("S", bound=Split)

CHECKPOINT_VERSION = 1


class SourceCoordinator(Generic[S]):
    """Coordinates `parallelism` readers of `source`, numbered from 0. Use it in a `with` block.

    watermarks: with a `max_drift`, readers are told how far they may read. The strategy itself is for the
        readers, which report by it.
    channel: where readers in other processes come in. It must have been started, and is not closed here.
        None: there are readers in this process only.
    checkpoint: what `snapshot` of an earlier run gave, to go on from it with any parallelism: all that was
        not read to its end is dealt out anew.
    failed: told once, on the enumerator's thread, what has ended the coordinator. All readers fail with it.

    A reader reaches it by a `link`, in this process, or by a `RemoteLink` made from `handle`. One that dies
    must come back in its place for the source to be read to its end: it gets what it had in the last complete
    checkpoint. What it was given since goes to whoever asks.

    Raises TypeError or ValueError for a bad argument.
    """

    def __init__(
        self,
        source: Source[S, Any],
        parallelism: int,
        *,
        watermarks: WatermarkStrategy | None = None,
        channel: SourceChannel | None = None,
        checkpoint: Mapping[str, Any] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        if not isinstance(source, Source):
            raise TypeError(f"source={source!r}: must be a Source, not {type(source).__name__}")
        check_positive_int("parallelism", parallelism)
        self._source = source
        self._channel = channel
        self._service = f"source-{uuid.uuid4().hex}"
        restored = None if checkpoint is None else checkpoint_from_json(source, checkpoint)
        self._coordinator: SplitCoordinator[S] = SplitCoordinator(parallelism, watermarks=watermarks)
        self._thread = self._coordinator.thread(source, restored=restored, failed=failed)

    def start(self) -> SourceCoordinator[S]:
        """Make the enumerator and begin to discover. Any thread, once. Raises what the source raises."""
        self._thread.start()
        if self._channel is not None:
            try:
                self._channel.serve(self._service, LinkService(self, self._source.split_serializer))
            except BaseException:
                self._thread.close()
                raise
        return self

    def close(self) -> None:
        """End it; readers that are still there fail. Any thread but the enumerator's. Idempotent."""
        if self._channel is not None:
            self._channel.withdraw(self._service)
        self._thread.close(RuntimeError(f"the coordinator of {self._source!r} has been closed"))

    def __enter__(self) -> SourceCoordinator[S]:
        return self.start()

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def parallelism(self) -> int:
        """The number of readers that are there, or will be."""
        return self._coordinator.parallelism

    @property
    def split_serializer(self) -> Serializer[S]:
        """The serializer of its splits."""
        return self._source.split_serializer

    @property
    def failure(self) -> BaseException | None:
        """The error that has ended it, if any has."""
        return self._thread.failure

    @property
    def alignment_hold(self) -> Hold | None:
        """The splits that alignment holds back now, those that they wait for, and since when. Any thread.

        One that lasts for ten seconds is said in the log, once.
        """
        return self._coordinator.holds.hold

    def link(self, subtask: int) -> LocalLink[S]:
        """The link of a reader in this process. Any thread. Raises ValueError for a place that is none."""
        if not 0 <= subtask < self.parallelism:
            raise ValueError(f"subtask={subtask!r}: must be from 0 to {self.parallelism - 1}")
        return LocalLink(self, subtask)

    @property
    def handle(self) -> RpcHandle:
        """The way here for readers in other processes. It pickles, with its secret. See `RemoteLink`.

        Raises RuntimeError without a channel.
        """
        if self._channel is None:
            raise RuntimeError("the coordinator has no channel: give it one for readers in other processes")
        return self._channel.handle(self._service)

    def snapshot(self, states: Mapping[int, Any]) -> dict[str, Any]:
        """A checkpoint of the whole run, as what JSON can hold. Waits for the enumerator's thread.

        states: by subtask, what the readers' `SourceInput.snapshot_state` gave, each at a moment of its own.
            One is needed of each reader that is there and was given splits.

        Raises ValueError for a state that is missing or is from an earlier life of its reader, and what has
        ended the coordinator.
        """
        parts = {
            at: state if isinstance(state, ReaderState) else state_from_json(state, self.split_serializer)
            for at, state in states.items()
        }
        return checkpoint_to_json(self._source, self._thread.call(self._coordinator.snapshot, parts))

    def complete(self, checkpoint: Mapping[str, Any]) -> None:
        """Say that `checkpoint`, which `snapshot` gave, is durable: a reader's death undoes what came later.

        Before a reader is started from it: one that comes earlier is refused.
        Raises ValueError for one that was given up, because a reader has died since; then take another.
        """
        self._thread.call(self._coordinator.complete, checkpoint["number"])

    def notify_committed(self, positions: Mapping[str, Any]) -> None:
        """Have the enumerator tell the service what is durable. Any thread. What that raises is logged."""
        self._thread.execute(self._coordinator.notify_committed, positions)

    # -- for links, any thread ----------------------------------------------------------------

    def open_reader(self, end: ReaderEnd, subtask: int, host: str, restored: str | None) -> None:
        """A reader is there, behind `end`. What speaks against it is delivered as `Failed`.

        restored: what `digest_of` gives for its state.
        """

        def opened(done: Future[None]) -> None:
            error = done.exception()
            if error is not None:
                # Told here, as it may have ended before it has heard of the reader.
                end.deliver(Failed(error))
                self._thread.execute(_raise, error)

        opening = self._thread.submit(self._coordinator.open, end, subtask, host, restored)
        opening.add_done_callback(opened)

    def said(self, end: ReaderEnd, subtask: int, what: Callable[..., None], *args: Any) -> None:
        """See `SplitCoordinator.said`."""
        self._thread.execute(self._coordinator.said, end, subtask, what, *args)


def _raise(error: BaseException) -> None:
    raise error


class LocalLink(Generic[S]):
    """The link of a reader in the coordinator's process: a `CoordinatorLink`. Thread-safe, never blocks."""

    def __init__(self, coordinator: SourceCoordinator[S], subtask: int) -> None:
        self._coordinator = coordinator
        self._subtask = subtask
        self._receive: Callable[[Message[S]], None] | None = None

    def open(self, receive: Callable[[Message[S]], None], state: ReaderState[S] | None = None) -> None:
        """See `CoordinatorLink`."""
        self._receive = receive
        restored = digest_of(state, self._coordinator.split_serializer)
        self._coordinator.open_reader(self, self._subtask, socket.gethostname(), restored)

    def deliver(self, message: Message[S]) -> None:
        """See `ReaderEnd`."""
        receive = self._receive
        if receive is not None:
            receive(message)

    def request_split(self) -> None:
        """See `CoordinatorLink`."""
        self._say(SplitCoordinator.request)

    def send(self, event: SourceEvent) -> None:
        """See `CoordinatorLink`."""
        self._say(SplitCoordinator.hear, event)

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        """See `CoordinatorLink`."""
        self._say(SplitCoordinator.report, dict(watermarks))

    def finished(self, split_ids: Collection[str]) -> None:
        """See `CoordinatorLink`."""
        self._say(SplitCoordinator.finished, tuple(split_ids))

    def close(self, done: bool = False) -> None:
        """See `CoordinatorLink`."""
        if self._receive is not None:
            self._receive = None
            self._say(SplitCoordinator.leave, done)

    def _say(self, what: Callable[..., None], *args: Any) -> None:
        self._coordinator.said(self, self._subtask, what, *args)

    def __repr__(self) -> str:
        return f"<LocalLink of reader {self._subtask}>"


def checkpoint_to_json(source: Source[S, Any], checkpoint: Checkpoint[S, Any]) -> dict[str, Any]:
    """A checkpoint as what JSON can hold."""
    splits = source.split_serializer
    known = source.checkpoint_serializer
    return {
        "version": CHECKPOINT_VERSION,
        "number": checkpoint.number,
        "enumerator": {"version": known.version, "checkpoint": known.to_json(checkpoint.checkpoint)},
        "split_version": splits.version,
        "waiting": [[splits.to_json(each.split), each.skip] for each in checkpoint.waiting],
        "readers": {str(at): state_to_json(state, splits) for at, state in checkpoint.readers.items()},
    }


def checkpoint_from_json(source: Source[S, Any], written: Mapping[str, Any]) -> Checkpoint[S, Any]:
    """Read what `checkpoint_to_json` has written. Raises ValueError for what it has not."""
    if not isinstance(written, Mapping) or written.get("version") != CHECKPOINT_VERSION:
        raise ValueError(
            f"checkpoint={written!r}: must be a checkpoint of a source, version {CHECKPOINT_VERSION}"
        )
    splits = source.split_serializer
    known = written["enumerator"]
    version = written["split_version"]
    return Checkpoint(
        source.checkpoint_serializer.from_json(known["version"], known["checkpoint"]),
        [Waiting(splits.from_json(version, split), skip) for split, skip in written["waiting"]],
        {int(at): state_from_json(state, splits) for at, state in written["readers"].items()},
    )
