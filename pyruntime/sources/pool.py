"""The splits that wait for a reader: by the source's rule, by nearness, in order. Pure state, one thread's.

With 10,000 splits that wait, taking one costs what it costs with ten, unless the source chooses itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pillarbox.sources.enumerator import ReaderInfo, SplitEnumerator
from pillarbox.sources.split import Split

S = TypeVar("S", bound=Split)


@dataclass(frozen=True)
class Waiting(Generic[S]):
    """A split that waits, and how many records from its `start` on are behind it already."""

    split: S
    skip: int = 0


class SplitPool(Generic[S]):
    """Splits that wait, each with an id of its own. Confined to the thread of `enumerator`.

    rule: the reader that is to have a split; None for the source's own, `assigned_to`.
    """

    def __init__(
        self, enumerator: SplitEnumerator[S, Any], rule: Callable[[S], int | None] | None = None
    ) -> None:
        self._enumerator = enumerator
        self._rule = enumerator.assigned_to if rule is None else rule
        # In the order in which they came; taking the first of a dict would look at all that were taken.
        self._all: OrderedDict[str, tuple[Waiting[S], int | None]] = OrderedDict()
        self._ruled: dict[int, OrderedDict[str, None]] = {}
        self._free: OrderedDict[str, None] = OrderedDict()
        self._near: dict[str, OrderedDict[str, None]] = {}
        self._by_default = type(enumerator).choose is SplitEnumerator.choose

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._all

    def ruled(self, subtask: int) -> int:
        """How many wait that are this reader's by the rule."""
        return len(self._ruled.get(subtask, ()))

    def waiting(self) -> list[Waiting[S]]:
        """All of them, in the order in which they came."""
        return [waiting for waiting, _ in self._all.values()]

    def take_up(self, splits: Sequence[S], checkpoint: Any) -> None:
        """What a discovery has found, and what is known with it, in one step.

        Raises ValueError for a split that waits already.
        """
        # spec: SplitAssignment!TakeUp
        self.add(Waiting(split) for split in splits)
        self._enumerator.checkpoint = checkpoint

    def add(self, waiting: Iterable[Waiting[S]], subtask: int | None = None) -> None:
        """Let these wait, for the reader `subtask`, or by the rule.

        Raises ValueError for one that waits already, or a rule that names no reader.
        """
        for each in waiting:
            split = each.split
            name = split.split_id
            if name in self._all:
                raise ValueError(
                    f"split_id={name!r} is found twice: each split must have an id of its own, "
                    "and `discover` must not find what its checkpoint knows"
                )
            reader = self._rule(split) if subtask is None else subtask
            if reader is None:
                self._free[name] = None
                for host in split.hosts:
                    self._near.setdefault(host, OrderedDict())[name] = None
            else:
                parallelism = self._enumerator.context.parallelism
                if not 0 <= reader < parallelism:
                    raise ValueError(
                        f"assigned_to({name!r}) is {reader!r}: must be None or from 0 to {parallelism - 1}"
                    )
                self._ruled.setdefault(reader, OrderedDict())[name] = None
            self._all[name] = each, reader

    def remove(self, split_id: str) -> Waiting[S] | None:
        """Let it wait no more; None if it does not."""
        found = self._all.pop(split_id, None)
        if found is None:
            return None
        waiting, reader = found
        if reader is not None:
            del self._ruled[reader][split_id]
            return waiting
        del self._free[split_id]
        for host in waiting.split.hosts:
            near = self._near.get(host)
            if near is not None:
                near.pop(split_id, None)
                if not near:
                    del self._near[host]
        return waiting

    def take(self, reader: ReaderInfo) -> Waiting[S] | None:
        """One for a reader that asks: its own by the source's rule, or else one that it chooses; or None."""
        ruled = self._ruled.get(reader.subtask)
        if ruled:
            return self.remove(next(iter(ruled)))
        if not self._free:
            return None
        if self._by_default:
            near = self._near.get(reader.host)
            return self.remove(next(iter(near or self._free)))
        names = [*self._free]
        at = self._enumerator.choose([self._all[name][0].split for name in names], reader)
        if not 0 <= at < len(names):
            raise ValueError(f"choose(...) is {at!r}: must be a place in `pending`, 0 to {len(names) - 1}")
        return self.remove(names[at])

    def take_ruled(self, subtask: int) -> list[Waiting[S]]:
        """All that are this reader's by the rule."""
        found = [self.remove(name) for name in [*self._ruled.get(subtask, ())]]
        return [each for each in found if each is not None]
