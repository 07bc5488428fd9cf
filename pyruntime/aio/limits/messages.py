"""The messages between a task and the coordinator of its limits: plain values, any thread.

A task says what it has done in counts since its beginning, so a report that comes twice, or after a restart,
counts once.
"""

# The alternatives to counts since the beginning are numbered messages that are kept until they are
# acknowledged, or a log of grants at the coordinator. Both need state that survives
# on the side that dies: a coordinator that starts from its file would have to know which messages of each
# task it had already counted, and to write it down for each. A count is idempotent. It may be repeated to
# whoever is there, and the larger one wins; so a restart needs nothing but sums (spec/RateLease.tla).

from __future__ import annotations

from typing import NamedTuple

from pillarbox.aio.limits.headers import LimitKind, LimitReading
from pillarbox.aio.limits.rate import Limits
from pillarbox.rpc.codec import Codec
from pillarbox.validate import Amount, Count, Positive

SERVICE = "limits"
"""The name under which a coordinator serves them."""


class UsageReport(NamedTuple):
    """Counts of a client since its beginning."""

    received: Count = 0
    """Calls granted, as far as it knows."""
    used: Count = 0
    """Calls begun."""
    back: Count = 0
    """Calls given back unused."""
    cost: Amount = 0.0


class Open(NamedTuple):
    """A task is there, first or again. before: of the run, see `RateLimiter.count_before`."""

    name: str
    limits: Limits
    client: str
    before: tuple[str, Count, Amount] | None
    report: UsageReport


class Opened(NamedTuple):
    """The coordinator has the task in its accounts."""


class Update(NamedTuple):
    """A task has done so much, and wants so many calls, of so many units each.

    calls: None for what it wanted before. A want is said once: one grant answers it, and repeated it would be
    answered again while that is on its way.
    """

    report: UsageReport
    calls: Count | None = None
    units: Amount = 0.0


class Granted(NamedTuple):
    """A task may begin so many calls more, of so many units each."""

    calls: Count
    units: Amount


class CoolDown(NamedTuple):
    """The service is overloaded. Goes both ways."""

    seconds: Amount


class Exhausted(NamedTuple):
    """No call may begin any more."""

    why: str


class Named(NamedTuple):
    """The service has named its limits in its answer to a call that began `age` seconds ago."""

    limits: tuple[LimitReading, ...]
    age: Amount


class Used(NamedTuple):
    """Calls of so many units in all have used tokens: of input, of output, and in all.

    age: seconds since they began, in the mean.
    """

    calls: Count
    units: Amount
    input_tokens: Amount
    output_tokens: Amount
    tokens: Amount
    age: Amount


class KnownLimit(NamedTuple):
    """A limit that the coordinator has learned, and what may begin of it now."""

    kind: LimitKind
    limit: Positive
    left: Amount


class Learned(NamedTuple):
    """All that the coordinator has learned of limits, for the statistics of tasks."""

    limits: tuple[KnownLimit, ...]

    def named(self) -> dict[LimitKind, tuple[float, float]]:
        """See `NamedLimits`."""
        return {kind: (limit, left) for kind, limit, left in self.limits}


class Leave(NamedTuple):
    """A task ends, and gives back calls and units that it has not used."""

    report: UsageReport
    unspent: Count
    unspent_units: Amount


class Left(NamedTuple):
    """The last report of a task is in the accounts."""


TO_COORDINATOR = Codec(Open, Update, CoolDown, Named, Used, Leave)
TO_TASK = Codec(Opened, Granted, CoolDown, Exhausted, Learned, Left)
