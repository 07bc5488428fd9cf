"""The messages between a reader and the coordinator of its source, and the way for them: `CoordinatorLink`.

A reader's task holds a link, in the coordinator's process or over a channel, and need not know which. Plain
values, any thread; the link itself may be called by any thread. The idea of the messages is Flink's:
`OperatorEvent` is the general one, `SourceEvent` (FLIP-27) one kind of it.

The coordinator alone says who reads what. A reader that was restored shows what it had, and reads what it is
given then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pillarbox.rpc.connection import encode
from pillarbox.sources.serializer import Serializer
from pillarbox.sources.split import Split

MAX_NBYTES = 64 * 1024
"""Bytes of the payload of a `SourceEvent` as JSON."""


class OperatorEvent:
    """A message between an operator and its coordinator: handed over at most once, in the sender's order.

    Those of the framework are in `pillarbox.sources.link`. What a source says to itself is a `SourceEvent`.
    """


@dataclass(frozen=True)
class SourceEvent(OperatorEvent):
    """A message of a source's own, from its enumerator to a reader or the other way.

    `kind` tells its messages apart, `payload` is what JSON can hold, 64 KiB of it at most. A message is
    handed over at most once, and those of one sender in order; one to a reader that has gone is dropped.
    """

    kind: str
    payload: Any = None


def check_event(event: SourceEvent) -> SourceEvent:
    """The event. Raises TypeError or ValueError for a payload that is too long or that JSON cannot hold."""
    if len(encode(event.payload)) > MAX_NBYTES:
        raise ValueError(f"the payload of event {event.kind!r} is too long: at most {MAX_NBYTES:,} bytes")
    return event


def event_to_json(event: SourceEvent) -> dict[str, Any]:
    """A message with the event. Raises what `check_event` raises."""
    check_event(event)
    return {"is": "event", "kind": event.kind, "payload": event.payload}


def event_from_json(body: dict[str, Any]) -> SourceEvent:
    """The event of such a message."""
    return SourceEvent(str(body["kind"]), body["payload"])


S = TypeVar("S", bound=Split)

VERSION = 1


@dataclass(frozen=True)
class AddSplits(OperatorEvent, Generic[S]):
    """Read these too."""

    splits: tuple[S, ...]
    number: int
    """Counts what a reader of this place was given, over all its lives: it rises, and is more than 0."""
    skip: Mapping[str, int] = field(default_factory=dict)
    """By split id: how many of the first records from `start` on were emitted already. Most have none."""


@dataclass(frozen=True)
class NoMoreSplits(OperatorEvent):
    """No other splits will come: end when those that are there have been read."""


@dataclass(frozen=True)
class Event(OperatorEvent):
    """The enumerator says something to the reader."""

    event: SourceEvent


@dataclass(frozen=True)
class EventTimeLimit(OperatorEvent):
    """Give nothing more of splits whose watermark is beyond this: event-time alignment. It may fall too."""

    seconds: float
    """Infinite: all may go on."""


@dataclass(frozen=True)
class Failed(OperatorEvent):
    """The coordinator has failed or cannot be reached. The task must end with `error`; nothing else comes."""

    error: BaseException


Message = AddSplits[S] | NoMoreSplits | Event | EventTimeLimit | Failed


@dataclass(frozen=True)
class ReaderState(Generic[S]):
    """The splits of a reader at one moment: its part of a checkpoint.

    taken_up: the `number` of the latest `AddSplits` that `splits` counts in; 0 before the first. With it the
    coordinator tells a split that was still under way from one that was finished.
    splits: those that are not finished, each starting where the rows end that are behind it.
    skip: by split id, how many records from `start` on are behind it besides.
    """

    taken_up: int = 0
    splits: tuple[S, ...] = ()
    skip: Mapping[str, int] = field(default_factory=dict)


def state_to_json(state: ReaderState[S], serializer: Serializer[S]) -> dict[str, Any]:
    """`state` as what JSON can hold. `serializer` is that of the source's splits."""
    return {
        "version": VERSION,
        "split_version": serializer.version,
        "taken_up": state.taken_up,
        "splits": [serializer.to_json(split) for split in state.splits],
        "skip": dict(state.skip),
    }


def state_from_json(written: Any, serializer: Serializer[S]) -> ReaderState[S]:
    """Read what `state_to_json` has written. Raises ValueError for what it has not."""
    if not isinstance(written, dict) or written.get("version") != VERSION:
        raise ValueError(f"written={written!r}: must be the state of a reader, version {VERSION}")
    version = written["split_version"]
    return ReaderState(
        taken_up=written["taken_up"],
        splits=tuple(serializer.from_json(version, split) for split in written["splits"]),
        skip=dict(written["skip"]),
    )


def digest_of(state: ReaderState[S] | None, serializer: Serializer[S]) -> str | None:
    """A short text, the same for states with the same splits and what is behind these; None for None."""
    if state is None:
        return None
    return digest(((split, state.skip.get(split.split_id, 0)) for split in state.splits), serializer)


def digest(splits: Iterable[tuple[S, int]], serializer: Serializer[S]) -> str:
    """A short text that is the same for the same splits, each with the records behind it, in any order."""
    written = [
        (split.split_id, serializer.to_json(split), skip)
        for split, skip in sorted(splits, key=lambda each: each[0].split_id)
    ]
    return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


class CoordinatorLink(Protocol[S]):
    """A reader's end. Any thread; nothing blocks but `close`. What goes wrong comes as `Failed`."""

    def open(self, receive: Callable[[Message[Any]], None], state: ReaderState[S] | None = None) -> None:
        """Say that the reader is there. Called once, before everything else.

        receive: takes the messages, on any thread but one at a time and in order, and must not block: it
            hands them to the task's mailbox.
        state: what the reader was restored with, if it was: then the coordinator must have been restored from
            the same checkpoint, or have been told before that this one is complete; otherwise `Failed` comes.
            The splits to read come as `AddSplits` all the same: the reader reads none but those. They are
            these, unless they were dealt out anew.
        """

    def request_split(self) -> None:
        """Ask for a split. The answer is `AddSplits` or `NoMoreSplits`; to ask again before it is no more."""

    def send(self, event: SourceEvent) -> None:
        """Say something to the enumerator."""

    def report(self, watermarks: Mapping[str, float | None]) -> None:
        """The watermarks of splits in seconds, by split id; None for one that is idle. Only what changed."""

    def finished(self, split_ids: Collection[str]) -> None:
        """These splits have been read to their end."""

    def close(self, done: bool = False) -> None:
        """The reader goes. Idempotent. Over a channel it waits seconds at most for the word to go out.

        done: it has read everything that it had, so nothing goes back, unless it comes again before a
            checkpoint has counted that in. Otherwise its splits go back, as when its process dies.
        """
