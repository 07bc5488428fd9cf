"""The reference model of the hand-over: items in one list, and how the input or the output has ended.

Written from the specification and without the kernel; used by the handover suite and by the search for
linearizations. A value: any thread.
"""

# Why a timed take that gave nothing may leave a `wake_up` behind. Whether its time was over first or it was
# woken first cannot be told from outside, and both are right: `step` gives both models, and what follows
# decides.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from pillarbox.testing.models.model import BLOCKED, Model, Raised

CLOSED_ERROR = Raised("HandoverClosedError")


class Item(NamedTuple):
    """An item that waits, with its size in bytes."""

    item: Any
    nbytes: int


@dataclass(frozen=True)
class HandoverModel(Model):
    """A hand-over as the contract has it. `max_bytes=None`: no bound on bytes."""

    max_items: int
    max_bytes: int | None = None
    items: tuple[Item, ...] = ()
    end: str = "RUNNING"
    """RUNNING, ENDING after `finish` or `fail`, CLOSED after `close`."""
    failure: str | None = None
    """The kind of the error that `fail` gave."""
    woken: bool = False
    """A `wake_up` that nobody has noticed yet."""
    armed_consumer: bool = False
    armed_producer: int | None = None
    """The bytes for which an armed producer wants room."""

    operations: ClassVar[frozenset[str]] = frozenset({
        "put", "try_put", "finish", "fail", "take", "try_take", "take_all", "close", "wake_up",
        "arm_wakeup_consumer", "arm_wakeup_producer", "ended", "len",
    })  # fmt: skip

    # ---- producer

    # spec: Handover!Put, Handover!PutAtEnd, Handover!PutFindsNoRoom, Handover!PutTimesOut
    def put(self, item: Any, nbytes: int = 0, timeout: float | None = None) -> tuple[HandoverModel, Any]:
        """Put an item in, or wait for room; False after `close` or when the time is over."""
        if self.end == "ENDING":
            return self, CLOSED_ERROR
        if self.end == "CLOSED":
            return self, False
        if not self.has_room(nbytes):
            return self, BLOCKED if timeout is None else False
        return replace(self, items=(*self.items, Item(item, nbytes)), armed_consumer=False), True

    # spec: Handover!Put, Handover!PutAtEnd, Handover!PutFindsNoRoom
    def try_put(self, item: Any, nbytes: int = 0) -> tuple[HandoverModel, Any]:
        """As `put`, without waiting."""
        return self.put(item, nbytes, 0)

    # spec: Handover!Finish
    def finish(self) -> tuple[HandoverModel, Any]:
        """End the input; whether this call did."""
        return self._ended(None)

    # spec: Handover!Fail
    def fail(self, exception: BaseException) -> tuple[HandoverModel, Any]:
        """End the input with a failure; whether this call did."""
        return self._ended(type(exception).__name__)

    # spec: Handover!ArmProducer
    def arm_wakeup_producer(
        self, callback: Callable[[], object], nbytes: int = 0
    ) -> tuple[HandoverModel, Any]:
        """Arm a call by the take that makes room, unless there is room."""
        if self.end == "CLOSED" or self.has_room(nbytes):
            return self, False
        return replace(self, armed_producer=nbytes), True

    # ---- consumer

    # spec: Handover!Take, Handover!TakeAtEnd, Handover!TakeIsWoken, Handover!TakeTimesOut
    def take(self, timeout: float | None = None) -> tuple[HandoverModel, Any]:
        """The oldest item, or wait for one; None after a `wake_up` or when the time is over."""
        after, item = self.try_take()
        if item is not None or timeout == 0:
            return after, item
        if self.woken:
            return replace(self, woken=False), None
        return self, BLOCKED if timeout is None else None

    def step(self, operation: str, arguments: tuple[Any, ...], result: Any) -> tuple[HandoverModel, ...]:
        """A timed take that gave None was woken, or its time was over and a `wake_up` stays pending."""
        found = super().step(operation, arguments, result)
        if found and operation == "take" and result is None and self.woken and arguments[0] is not None:
            return (*found, self)
        return found

    # spec: Handover!Take, Handover!TakeAtEnd, Handover!TakeFindsNothing
    def try_take(self) -> tuple[HandoverModel, Any]:
        """The oldest item, or None; after the end the failure, or HandoverClosedError."""
        if not self.items:
            return self, self._nothing_left()
        return self._without(1), self.items[0].item

    # spec: Handover!TakeAll
    def take_all(self) -> tuple[HandoverModel, Any]:
        """Everything that waits; after the end as `try_take`."""
        if not self.items:
            return self, self._nothing_left() or []
        return self._without(len(self.items)), [item.item for item in self.items]

    # spec: Handover!Close
    def close(self) -> tuple[HandoverModel, Any]:
        """End the output; what waits."""
        after = replace(self, items=(), end="CLOSED", failure=None, armed_consumer=False, armed_producer=None)
        return after, [item.item for item in self.items]

    # spec: Handover!WakeUp
    def wake_up(self) -> tuple[HandoverModel, Any]:
        """Have the take that waits, or the next one that would, give None."""
        return replace(self, woken=not self.armed_consumer, armed_consumer=False), None

    # spec: Handover!ArmConsumer
    def arm_wakeup_consumer(self, callback: Callable[[], object]) -> tuple[HandoverModel, Any]:
        """Arm a call by the next put, end or `wake_up`, unless there is something to take notice of."""
        armed = not self.items and self.end == "RUNNING" and not self.woken
        return replace(self, woken=False, armed_consumer=armed or self.armed_consumer), armed

    # ---- watching

    def ended(self) -> tuple[HandoverModel, Any]:
        """True if nothing waits and nothing can come."""
        return self, not self.items and self.end != "RUNNING"

    def len(self) -> tuple[HandoverModel, Any]:
        """The number of items that wait."""
        return self, len(self.items)

    def has_room(self, nbytes: int) -> bool:
        """True if an item of so many bytes may go in now."""
        if not self.items:
            return True
        if len(self.items) >= self.max_items:
            return False
        return self.max_bytes is None or sum(item.nbytes for item in self.items) + nbytes <= self.max_bytes

    # ---- inside

    def _ended(self, failure: str | None) -> tuple[HandoverModel, Any]:
        if self.end != "RUNNING":
            return self, False
        return replace(self, end="ENDING", failure=failure, armed_consumer=False), True

    def _nothing_left(self) -> Raised | None:
        if self.end == "RUNNING":
            return None
        return Raised(self.failure) if self.failure else CLOSED_ERROR

    def _without(self, count: int) -> HandoverModel:
        after = replace(self, items=self.items[count:])
        if self.armed_producer is not None and after.has_room(self.armed_producer):
            return replace(after, armed_producer=None)
        return after
