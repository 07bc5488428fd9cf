"""Which splits a partition of a bounded read has: an append-only log for each, the same for all its attempts.

`PartitionLog` is pure state, for one thread. An attempt of a partition, whether first, speculated, retried or
of a later action, asks for the log's entries one after the other, and a new one is appended when it comes to
the end. So whichever attempt is committed has read just what is in the log, and a split is in one log only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)


@dataclass(frozen=True)
class Entry(Generic[S]):
    """What an attempt reads next. `split` is None at the end of the partition."""

    split: S | None


class PartitionLog(Generic[S]):
    """The logs of `partitions` partitions. Confined to one thread.

    take: gives a split to a partition, on the machine `host`, and lets it wait no more; None if none waits
        that this partition may have.
    is_over: whether this partition can get no other split, now that `take` gave none.
    before: what to go on from: its logs are copied.
    """

    def __init__(
        self,
        partitions: int,
        take: Callable[[int, str], S | None],
        is_over: Callable[[int], bool],
        before: PartitionLog[S] | None = None,
    ) -> None:
        if partitions < 1:
            raise ValueError(f"partitions={partitions!r}: must be 1 or more")
        self._take = take
        self._is_over = is_over
        self._logs: list[list[S]] = [[] for _ in range(partitions)]
        self._closed = [False] * partitions
        if before is not None:
            self._logs = [list(log) for log in before._logs]
            self._closed = list(before._closed)

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self._logs)

    def splits(self, partition: int) -> tuple[S, ...]:
        """What is in a partition's log so far."""
        return tuple(self._logs[self._checked(partition)])

    def length(self, partition: int) -> int:
        """How many that are."""
        return len(self._logs[self._checked(partition)])

    def is_closed(self, partition: int) -> bool:
        """Whether nothing will be appended to a partition's log."""
        return self._closed[self._checked(partition)]

    def append(self, partition: int, split: S) -> None:
        """Give a split to a partition that has not asked. Raises RuntimeError if the partition is closed."""
        if self.is_closed(partition):
            raise RuntimeError(
                f"split {split.split_id!r} cannot be given to partition {partition}, which is closed"
            )
        self._logs[partition].append(split)

    def close(self, partition: int) -> None:
        """Append nothing to a partition's log from now on."""
        # spec: PartitionLog!Close
        self._closed[self._checked(partition)] = True

    def next(self, partition: int, index: int, host: str) -> Entry[S] | None:
        """Entry `index` of a partition's log, for an attempt on `host`; None if there is none yet.

        The same call gives the same answer once it is not None. Raises ValueError for a partition that does
        not exist or an index that nobody can have come to.
        """
        log = self._logs[self._checked(partition)]
        if type(index) is not int or not 0 <= index <= len(log):
            raise ValueError(f"index={index!r}: must be from 0 to {len(log)} in partition {partition}")
        if index < len(log):
            # spec: PartitionLog!Replay
            return Entry(log[index])
        if self._closed[partition]:
            return Entry(None)
        split = self._take(partition, host)
        if split is not None:
            # spec: PartitionLog!Append
            log.append(split)
            return Entry(split)
        if self._is_over(partition):
            self.close(partition)
            return Entry(None)
        return None

    def _checked(self, partition: int) -> int:
        if type(partition) is not int or not 0 <= partition < len(self._logs):
            raise ValueError(f"partition={partition!r}: must be from 0 to {len(self._logs) - 1}")
        return partition
