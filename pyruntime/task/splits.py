"""Who reads which split: each split for one reader, or every split for all of them. Thread-safe.

A reader that is alone in its process uses `SplitList`, which a checkpoint can hold; confined to that reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Generic, Protocol, TypeVar

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class SplitAssigner(Protocol[S_co]):
    """Hands out splits. Thread-safe. The idea is Flink's `InputSplitAssigner`."""

    def next_split(self, subtask: int) -> S_co | None:
        """The next split for reader `subtask`; None if there is none for it any more. Any thread."""


class SharedSplits(Generic[S]):
    """Gives each split to whichever reader asks first. Thread-safe. Raises ValueError for a split of None."""

    def __init__(self, splits: Iterable[S]) -> None:
        self._lock = Lock()
        self._splits = deque(_checked(splits))

    def next_split(self, subtask: int) -> S | None:
        """The first split that nobody has got. Any thread."""
        with self._lock:
            return self._splits.popleft() if self._splits else None


class ReplicatedSplits(Generic[S]):
    """Gives every split to every reader. Thread-safe. Raises ValueError for a split of None."""

    def __init__(self, splits: Iterable[S]) -> None:
        self._lock = Lock()
        self._splits = _checked(splits)
        self._next: dict[int, int] = {}

    def next_split(self, subtask: int) -> S | None:
        """The first split that this reader has not got. Any thread."""
        with self._lock:
            position = self._next.get(subtask, 0)
            if position == len(self._splits):
                return None
            self._next[subtask] = position + 1
            return self._splits[position]


class SplitList(Generic[S]):
    """A provider of splits for one reader, which remembers in a checkpoint what it has given.

    Confined to the reader, which calls its state under the checkpoint lock. Raises ValueError for a
    split of None.
    """

    def __init__(self, splits: Iterable[S]) -> None:
        self._splits = deque(_checked(splits))

    def __call__(self) -> S | None:
        """The next split; None at the end."""
        return self._splits.popleft() if self._splits else None

    def snapshot_state(self) -> tuple[S, ...]:
        """The splits that were not given yet."""
        return tuple(self._splits)

    def restore_state(self, state: Iterable[S]) -> None:
        """Give the splits of `state`, a `snapshot_state`, and no others."""
        self._splits = deque(_checked(state))


def _checked(splits: Iterable[S]) -> Sequence[S]:
    checked = tuple(splits)
    if any(split is None for split in checked):
        raise ValueError(f"splits={checked!r}: None is no split, it says that there is none left")
    return checked
