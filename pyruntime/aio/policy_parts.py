"""The interface of policies that options bring: what they are made with, and what they have besides moments.

Confined to the mailbox thread. `pillarbox.aio.options` says which option brings which policy, and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pillarbox.aio.calls import Call
from pillarbox.aio.options import Options
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policy import CallPolicy


class PolicyParts(NamedTuple):
    """The parts of an operator that a policy of its options may need. The functions are for its thread.

    clock: seconds. load: the policy that each operator has. service: what is known of the service, as
    `KnownService`; None where that is not installed. hold: takes a row that may not be called yet. resume:
    has rows called that were held, before all that wait or, with True, behind them.
    """

    options: Options
    clock: Callable[[], float]
    load: LoadPolicy
    service: Any
    hold: Callable[[Call], object]
    resume: Callable[[Sequence[Call], bool], None]


class OptionPolicy(CallPolicy):
    """A policy that an option brings: what it needs of its operator besides the moments of calls."""

    @classmethod
    def of(cls, parts: PolicyParts) -> CallPolicy:
        """Make the policy of an operator with these parts, whose options bring it."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin: calls may begin from now on. After `open`."""

    async def closed(self) -> None:
        """Give back what was granted and not used. After `close`."""

    def totals(self) -> Mapping[str, Any]:
        """Counts by the fields of `Totals` that it has. Any thread."""
        return {}


class LetsThrough(Protocol):
    """A policy by which rows wait behind others before they wait for a slot. On the mailbox thread."""

    def let_through(self, call: Call) -> bool:
        """Return True if a row that comes may be called; otherwise it is held. Raises what its key raises."""

    def completing(self, complete: Callable[[Call, Any], None]) -> Callable[[Call, Any], None]:
        """`complete`, behind which the row is taken out: a ledger has results of rows that are not called."""
