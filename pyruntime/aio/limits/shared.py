"""The option `Shared`: one capacity for all tasks of a job. A value; any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from pillarbox.aio.adaptive import Adaptive, CapacityFinder
from pillarbox.validate import check_choice, check_positive_int, naming_arguments

MAX_SLOTS = 10_000
"""Calls in flight of one capacity that is shared, at most."""


@naming_arguments
@dataclass(frozen=True)
class Shared:
    """Capacity of a whole job: calls in flight at the service, at most, over all tasks that share `limits`.

    calls: their number. One task alone may have all of them; tasks that have rows have about equal numbers.
        "auto" or an `Adaptive` has the coordinator find the number, by the calls of all tasks; calls that
        seem never to end have slots beside it. A number that you give is never exceeded.

        >>> from pillarbox import Coordinator, Shared, async_map
        >>> async def call(row):
        ...     return row + 1
        >>> with Coordinator() as coordinator:
        ...     list(async_map([1, 2], call, capacity=Shared(20), limits=coordinator.named("service")))
        [2, 3]

    Slots are leased by the coordinator. Those of a task that is killed come back when its lease is over, half
    a minute later. A value; any thread may use it. Raises TypeError or ValueError for a bad argument.
    """

    calls: int | Literal["auto"] | Adaptive

    def __post_init__(self) -> None:
        calls = self.calls
        if isinstance(calls, str):
            check_choice("calls", calls, ("auto",))
            object.__setattr__(self, "calls", Adaptive())
        elif not isinstance(calls, Adaptive):
            check_positive_int("capacity", calls)
        if self.most > MAX_SLOTS:
            raise ValueError(f"calls={calls!r}: must be at most {MAX_SLOTS:,}")

    @property
    def slots(self) -> int | Adaptive:
        """The number, or the rule that finds it."""
        assert not isinstance(self.calls, str)
        return self.calls

    @property
    def most(self) -> int:
        """Calls in flight, at most, whatever is found."""
        slots = self.slots
        return slots.most if isinstance(slots, Adaptive) else slots


class SharedSlots(Protocol):
    """The slots of one task. All methods are for the mailbox thread."""

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""

    @property
    def finder(self) -> CapacityFinder | None:
        """Takes the outcomes of calls, where their number is found by them; None where it is given."""

    @property
    def stuck(self) -> int:
        """Of the calls in flight, those that seem never to end: they keep their slots."""

    def hang(self, calls: int) -> None:
        """Note that so many calls in flight seem never to end. Where the number is found, for others."""

    def start(
        self,
        in_flight: Callable[[], int],
        changed: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Connect on the running loop. in_flight: calls in flight now. changed: called when `limit` changes.

        fail: takes the error of a coordinator that is lost for good.
        """

    def want(self) -> None:
        """Ask for more slots: a call waits, or takes the last one."""

    def release(self) -> None:
        """Give back what is asked back, as a call has ended."""

    async def close(self) -> None:
        """Give all slots back, and end."""
