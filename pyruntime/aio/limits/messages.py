"""The messages between a coordinator and the tasks that share its limits. Plain values, any thread."""

from __future__ import annotations

from typing import NamedTuple

from pillarbox.aio.limits.book import Report
from pillarbox.aio.limits.shared import Limits
from pillarbox.rpc.codec import Amount, Codec, Count

SERVICE = "limits"
"""The name under which a coordinator serves them."""


class Open(NamedTuple):
    """A task is there, first or again. before: what a run has spent before, see `Gate.count_before`."""

    gate: str
    limits: Limits
    client: str
    before: tuple[str, Count, Amount] | None
    report: Report


class Opened(NamedTuple):
    """The coordinator has the task on its books."""


class Did(NamedTuple):
    """A task has done so much."""

    report: Report


class Want(NamedTuple):
    """A task wants so many calls; of their units, `head` are for the next one."""

    report: Report
    calls: Count
    units: Amount
    head: Amount


class Granted(NamedTuple):
    """A task may begin so many calls more."""

    calls: Count
    units: Amount


class CoolDown(NamedTuple):
    """The service is overloaded. Goes both ways."""

    seconds: Amount


class Exhausted(NamedTuple):
    """No call may begin any more."""

    why: str


class Leave(NamedTuple):
    """A task ends, and may give back calls and units that it has not used."""

    report: Report
    unspent: Count
    units: Amount


class Left(NamedTuple):
    """What a task said last is on the books."""


TO_COORDINATOR = Codec(Open, Did, Want, CoolDown, Leave)
TO_TASK = Codec(Opened, Granted, CoolDown, Exhausted, Left)
