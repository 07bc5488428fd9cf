"""Where elements go: the protocol of an output, and what travels between the records.

An output is called on the mailbox thread. Only the future of `available()` may be completed elsewhere.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pillarbox.task.checkpoint import CheckpointBarrier

MAX_WATERMARK = math.inf
"""The watermark at the end of all data: event time has come to its end."""


class Watermark(NamedTuple):
    """No record of this or an earlier event time follows. `timestamp` is in seconds."""

    timestamp: float


class Idleness(NamedTuple):
    """Whether nothing comes for a while, so that nobody need wait for a watermark; ended by a record."""

    idle: bool


class TaskOutput(Protocol):
    """Takes what a task or an operator emits. Called on the mailbox thread only.

    `is_available` is False when no more records should come for now. Records that come nevertheless must be
    accepted: one call of an operator may emit several. An output that has a method `emit_status(idle: bool)`
    hears when its input becomes idle and when it is no longer.
    """

    def collect(self, record: Any) -> None:
        """Take one record."""

    def emit_watermark(self, timestamp: float) -> None:
        """Take a watermark, in seconds of event time; `MAX_WATERMARK` is the last one."""

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """Take a checkpoint's barrier: records before it belong to the checkpoint, those after it do not.

        The barrier of an unaligned checkpoint may pass records that this output still holds; those then
        belong to the checkpoint as records under way.
        """

    @property
    def is_available(self) -> bool:
        """Whether there is room. Reads one value, as it is asked for every element."""

    def available(self) -> Future[Any]:
        """A future that is done when there is room again. Any thread may complete it."""


class OperatorOutput(TaskOutput, Protocol):
    """What an operator emits to. Mailbox thread only."""

    def emit_status(self, idle: bool) -> None:
        """Say that nothing comes for a while, or that this is over."""
