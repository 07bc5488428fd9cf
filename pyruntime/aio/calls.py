"""What runs the calls of one operator, as `attempts` sees it. Confined to the mailbox thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import Call


class Runner(Protocol):
    """What runs calls."""

    limit: int
    """Calls in flight, at most; may change while they run."""
    abandoned: int
    """Calls that did not end when they were cancelled."""

    @property
    def late(self) -> int:
        """Outcomes that came after their call was taken away."""

    @property
    def in_flight(self) -> int:
        """Calls that hold a slot now."""

    def dispatch(self) -> None:
        """Begin waiting calls while there are slots."""

    def turn(self) -> None:
        """Note that the event loop had its turn."""

    def revoke(self, call: Call) -> None:
        """Take `call` from what runs it and cancel that; what it still brings is ignored.

        With batches: take it from its batch, whether that runs or waits.
        """

    async def close(self) -> None:
        """Cancel all calls and wait for their end, for a time."""


class ResultConverter(Protocol):
    """Makes of results the form in which they leave."""

    def convert(self, result: Any) -> Any:
        """The form in which `result` leaves; what it raises is the error of the attempt that gave it.

        What it gave once, it gives back as it is.
        """

    def convert_all(self, results: list[Any]) -> list[Any]:
        """The forms in which the results of a batch leave; raises what `convert` raises for one of them."""

    def rows_of(self, results: Any) -> list[Any] | None:
        """The converted results of a batch that are kept in one block, such as a matrix; None for others."""
