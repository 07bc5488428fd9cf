"""The state of an async operator in a snapshot: references and numbers. Any thread, if the rows allow it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, overload

from pillarbox.aio.error_policy import FailureCounts
from pillarbox.task import Idleness, Watermark

FORMAT = 1
"""The format of `AsyncWaitState`; another one is refused."""


class CallState(NamedTuple):
    """A row that is not finished.

    attempts: those that have failed; one that runs is begun again, with the same number. spent: seconds of
    `timeout` that are over. pause: seconds until the next attempt; None where none is waited for.
    refused_for: seconds since the service refused the row for the first time.
    """

    row: Any
    attempts: int = 0
    spent: float = 0.0
    pause: float | None = None
    error: BaseException | None = None
    cost: float = 0.0
    uncharged: int = 0
    refusals: int = 0
    refused_for: float | None = None


class FinishedRow(NamedTuple):
    """A row that has its result, and is not called again.

    is_durable: whether the ledger has the result; without a ledger nothing waits for one. For one that it has
    not: attempts, those begun; latency, the seconds of the last one.
    """

    row: Any
    result: Any
    cost: float
    is_durable: bool
    attempts: int = 0
    latency: float = 0.0


Entry = CallState | FinishedRow | list[Watermark | Idleness]
"""A list of watermarks and statuses stands for those between rows."""

_UNFINISHED: Any = object()
_APART: Any = object()


class StateEntries(Sequence[Entry]):
    """Entries of a state, in the order of admission. Filled by the mailbox thread; then for any thread.

    Most are rows of which nothing has failed, and rows with their results. They stand in columns: so many
    objects that the garbage collector follows would make it run within each checkpoint, and look at all that
    the process has every so often. An entry is made when it is asked for.
    """

    __slots__ = ("_apart", "_costs", "_marks", "_results", "_rows", "_spent")

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._results: list[Any] = []
        self._spent: list[float] = []
        self._costs: list[float] = []
        self._apart: dict[int, Entry] = {}
        self._marks = 0

    @property
    def rows(self) -> int:
        """Entries that are rows."""
        return len(self._rows) - self._marks

    def add_call(self, row: Any, spent: float, cost: float) -> None:
        """Add a row of which no attempt has failed. spent: seconds of its first one."""
        self._rows.append(row)
        self._results.append(_UNFINISHED)
        self._spent.append(spent)
        self._costs.append(cost)

    def add_finished(self, row: Any, result: Any, cost: float) -> None:
        """Add a row whose result nothing is to be done with but to emit it."""
        self._rows.append(row)
        self._results.append(result)
        self._spent.append(0.0)
        self._costs.append(cost)

    def add(self, entry: Entry) -> None:
        """Add any entry."""
        self._apart[len(self._rows)] = entry
        self._marks += type(entry) is list
        self.add_finished(None, _APART, 0.0)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Entry: ...

    @overload
    def __getitem__(self, place: slice) -> list[Entry]: ...

    def __getitem__(self, place: int | slice) -> Entry | list[Entry]:
        if isinstance(place, slice):
            return [*self][place]
        at = range(len(self._rows))[place]
        return self._entry(at, self._rows[at], self._results[at], self._spent[at], self._costs[at])

    def __iter__(self) -> Iterator[Entry]:
        return map(self._entry, count(), self._rows, self._results, self._spent, self._costs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateEntries | tuple) and [*self] == [*other]

    def _entry(self, place: int, row: Any, result: Any, spent: float, cost: float) -> Entry:
        if result is _UNFINISHED:
            return CallState(row, 0, spent, None, None, cost)
        return self._apart[place] if result is _APART else FinishedRow(row, result, cost, True)


class SchedulerState(NamedTuple):
    """The part of a snapshot that is about all calls together."""

    failures: FailureCounts
    retries: Any
    calls: int
    cost: float


class AsyncWaitState(NamedTuple):
    """An async operator in a snapshot.

    entries: in the order of admission. finished: rows that had left, for what counts them.
    """

    format: int
    ordered: bool
    entries: Sequence[Entry]
    scheduler: SchedulerState
    finished: int
