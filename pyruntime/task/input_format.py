"""Input formats: old code that divides an input into splits and reads them one record after the other.

A format is confined to whoever uses it: the one that asks for splits, or the one that reads them; not both
with one object at the same time. `FormatContext` is a plain value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pillarbox.task.splits import ReplicatedSplits, SharedSplits, SplitAssigner

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class FormatContext:
    """Who reads with a format: the task's name, and which of how many readers it is. Any thread.

    Raises TypeError or ValueError for a `subtask` that is not an int from 0 to `parallelism` - 1.
    """

    task_name: str
    subtask: int = 0
    parallelism: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (("parallelism", self.parallelism, 1), ("subtask", self.subtask, 0)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r}: must be an int, not {type(value).__name__}")
            if value < least:
                raise ValueError(f"{name}={value!r}: must be at least {least}")
        if self.subtask >= self.parallelism:
            raise ValueError(
                f"subtask={self.subtask!r}: must be below parallelism, which is {self.parallelism}"
            )


class InputFormat(ABC, Generic[S, T]):
    """Divides an input into splits of type S, and reads records of type T from one split after the other.

    Calls come in this order: `configure`; then `create_input_splits` and `split_assigner`, where splits are
    handed out, or, where they are read, for each split `open`, then `reached_end` and `next_record` in turn,
    then `close`. The idea is Flink's `InputFormat`, after Hadoop's.
    """

    def configure(self, parameters: Mapping[str, Any]) -> None:
        """Take the job's parameters. Called before everything else."""

    @abstractmethod
    def create_input_splits(self, min_splits: int) -> Sequence[S]:
        """Divide the input into splits, `min_splits` or more if that can be. None is no split."""

    def split_assigner(self, splits: Sequence[S]) -> SplitAssigner[S]:
        """What hands `splits` to the readers; here each split to one of them."""
        return SharedSplits(splits)

    @abstractmethod
    def open(self, split: S) -> None:
        """Begin to read a split, which may be one that was given back unread, or read in part, before."""

    @abstractmethod
    def reached_end(self) -> bool:
        """Whether the split has no more records."""

    @abstractmethod
    def next_record(self) -> T | None:
        """The next record; None if there is none after all, which need not be the end of the split."""

    @abstractmethod
    def close(self) -> None:
        """End with the split. Called after every `open`, also after one that has raised."""


class RichInputFormat(InputFormat[S, T]):
    """A format that holds something over many splits, such as a connection, and knows who reads with it."""

    _context: FormatContext | None = None

    @property
    def runtime_context(self) -> FormatContext:
        """Who reads with it. Raises RuntimeError before `set_runtime_context`."""
        if self._context is None:
            raise RuntimeError(
                f"{type(self).__name__} has no runtime context yet; a reader sets it before open_input_format"
            )
        return self._context

    def set_runtime_context(self, context: FormatContext) -> None:
        """Say who reads. Called by the reader, after `configure` and before `open_input_format`."""
        self._context = context

    def open_input_format(self) -> None:
        """Get what is needed for all splits. Called once by a reader, before the first `open`."""

    def close_input_format(self) -> None:
        """Let go of it. Called once by a reader, after the last `close`, also if something has raised."""


class ReplicatingInputFormat(RichInputFormat[S, T]):
    """Has every reader read the whole input: each gets all splits of `format`.

    For the small side of a join.
    """

    def __init__(self, format: InputFormat[S, T]) -> None:
        if not isinstance(format, InputFormat):
            raise TypeError(f"format={format!r}: must be an InputFormat, not {type(format).__name__}")
        self.format = format

    def configure(self, parameters: Mapping[str, Any]) -> None:
        """Hand the parameters on."""
        self.format.configure(parameters)

    def create_input_splits(self, min_splits: int) -> Sequence[S]:
        """The splits of the format."""
        return self.format.create_input_splits(min_splits)

    def split_assigner(self, splits: Sequence[S]) -> SplitAssigner[S]:
        """What hands every split to every reader."""
        return ReplicatedSplits(splits)

    def set_runtime_context(self, context: FormatContext) -> None:
        """Say who reads, also to a rich format within."""
        super().set_runtime_context(context)
        if isinstance(self.format, RichInputFormat):
            self.format.set_runtime_context(context)

    def open_input_format(self) -> None:
        """Open a rich format."""
        if isinstance(self.format, RichInputFormat):
            self.format.open_input_format()

    def close_input_format(self) -> None:
        """Close a rich format."""
        if isinstance(self.format, RichInputFormat):
            self.format.close_input_format()

    def open(self, split: S) -> None:
        """Begin to read a split."""
        self.format.open(split)

    def reached_end(self) -> bool:
        """Whether the split has no more records."""
        return self.format.reached_end()

    def next_record(self) -> T | None:
        """The next record, or None."""
        return self.format.next_record()

    def close(self) -> None:
        """End with the split."""
        self.format.close()
