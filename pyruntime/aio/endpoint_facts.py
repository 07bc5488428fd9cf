"""The findings of tasks about endpoints, as they travel: the value, and the interfaces of both sides.

A `Finding` is a value, for any thread. `pillarbox.aio.endpoint_pool` has the states that it is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pillarbox.validate import Amount, Count


class Finding(NamedTuple):
    """State of an endpoint, as a task has found it: it rests for so many seconds more, or it is well.

    rests: consecutive rests, of which this is the last; 0 for one that is well. unreached: it rests since it
    was not reached. No address and no text of an error is in it.
    """

    seconds: Amount
    rests: Count
    unreached: bool

    @property
    def is_rest(self) -> bool:
        """True if the endpoint rests, or has rested and was not tried since."""
        return self.rests > 0


class EndpointStates(Protocol):
    """The states of the endpoints of one service, known by their places. Any thread.

    channel: a coordinator, and the name of limits there. number: of a change, as the coordinator counts them.
    """

    @property
    def identities(self) -> tuple[str, ...]:
        """The address of each place, with what decides about its answers beside it. May hold secrets."""

    def watch(self, found: Callable[[int, bool], None]) -> None:
        """Have `found` called with the place of each endpoint whose state a request of this process changes.

        On the thread of that request. Its second argument is True where the endpoint is probed, and has not
        changed yet.
        """

    def unwatch(self, found: Callable[[int, bool], None]) -> None:
        """Have it called no more."""

    def finding(self, place: int, channel: object) -> tuple[int, Finding]:
        """The number of the last change that this channel has brought, and the state."""

    def noted(self, place: int, channel: object, number: int) -> None:
        """Note that the state that this process has found is the change with this number."""

    def told(self, place: int, channel: object, number: int, finding: Finding) -> None:
        """Take what another process has found, unless that change, or a later one, is known."""

    def told_probe(self, place: int, seconds: float) -> None:
        """Have an endpoint that rests do so for so long, as another process probes it now."""


class SharedFacts(Protocol):
    """The way of one task's findings about endpoints to the other tasks of its job, and of theirs to it.

    While there is no way, each task goes on with what it knows itself: no call waits, and none fails.
    """

    def share(self, states: EndpointStates) -> None:
        """Share the states of these endpoints from now on. Any thread."""

    def start(self) -> None:
        """Connect on the running loop, as soon as there are endpoints. On the mailbox thread."""

    async def close(self) -> None:
        """End. On the mailbox thread."""
