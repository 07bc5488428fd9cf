"""The messages between a reader and the coordinator of its source, and a reader's part of a checkpoint.

Plain values, any thread. The idea of the messages is Flink's: `OperatorEvent` is the general one,
`SourceEvent` (FLIP-27) one kind of it. The coordinator alone says who reads what. A reader that was restored
shows what it had, and reads what it is given then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pillarbox.sources.split import Serializer, Split


class OperatorEvent:
    """A message between an operator and its coordinator: handed over at most once, in the sender's order.

    Those of the framework are in `pillarbox.sources.link`. What a source says to itself is a `SourceEvent`.
    """


@dataclass(frozen=True)
class SourceEvent(OperatorEvent):
    """A message of a source's own, from its enumerator to a reader or the other way.

    `kind` tells its messages apart, `payload` is what JSON can hold. A message is handed over at most once,
    and those of one sender in order; one to a reader that has gone is dropped.
    """

    kind: str
    payload: Any = None


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


def sorted_splits(state: ReaderState[S]) -> list[tuple[str, S, int]]:
    """The splits of a state, each with the records behind it: the same for states that say the same."""
    found = [(split.split_id, split, state.skip.get(split.split_id, 0)) for split in state.splits]
    return sorted(found, key=lambda each: each[0])
