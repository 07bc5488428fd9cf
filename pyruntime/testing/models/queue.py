"""The reference models of both result queues: entries in one list, in the order of admission.

The order of emission is a subclass's. Written from the specification and without the kernel; used by the
queue suite and by the search for linearizations. A value: any thread.
"""

# Why handles are numbers of attempts. The kernel's are slots and generations, which a subject of somebody
# else's need not have; a suite learns which handle the subject gave for which attempt, and holds it to
# being a new one.
#
# Why the two orders differ in one method, `next_out`. Everything else of the contract, bounds, renewal,
# late completions and snapshots, must not depend on the order, and a model with two versions of it could
# not say so.

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from pillarbox.testing.models.model import Model, Raised

Q = TypeVar("Q", bound="QueueModel")


class Saved(NamedTuple):
    """An entry of a snapshot; the result of an unfinished one is None."""

    element: Any
    finished: bool
    result: Any


class HeldEntry(NamedTuple):
    """An entry that is held. `attempt` is the number of its present attempt, its handle here."""

    element: Any
    attempt: int
    finished: bool = False
    result: Any = None


@dataclass(frozen=True)
class QueueModel(Model):
    """A result queue as the contract has it, without an order of emission.

    A handle is the number of an attempt: 1 for the first admission of the queue's life, and so on.
    """

    capacity: int
    watermark: Any = "WATERMARK"
    """The value that stands for an element where a watermark comes out."""
    closed: bool = False
    held: tuple[HeldEntry, ...] = ()
    done: tuple[int, ...] = ()
    """The attempts of the finished entries that are held, in the order of their completions."""
    waiting: tuple[Saved, ...] = ()
    """The entries that are still to be restored."""
    attempts: int = 0

    confined: ClassVar[frozenset[str]] = frozenset({
        "put", "put_watermark", "renew", "has_completed", "emit", "emit_many", "clear", "close", "snapshot",
        "restore", "admit_restored",
    })  # fmt: skip
    operations: ClassVar[frozenset[str]] = confined | {
        "complete", "len", "is_full", "is_empty", "in_flight", "restoring",
    }  # fmt: skip

    def key(self) -> Hashable:
        """Results and elements are told apart as objects: they need not be hashable."""
        held = tuple((id(e.element), e.attempt, e.finished, id(e.result)) for e in self.held)
        waiting = tuple((id(e.element), e.finished, id(e.result)) for e in self.waiting)
        return self.capacity, self.closed, held, self.done, waiting, self.attempts

    # ---- in

    # spec: ResultQueue!Put
    def put(self: Q, element: Any) -> tuple[Q, Any]:
        """Admit an element; the handle of its first attempt."""
        refused = self._refusal()
        if refused:
            return self, refused
        after = self._admitted(Saved(element, False, None))
        return after, after.attempts

    # spec: ResultQueue!PutWatermark
    def put_watermark(self: Q, watermark: Any) -> tuple[Q, Any]:
        """Admit a watermark; it has finished."""
        refused = self._refusal()
        if refused:
            return self, refused
        return self._admitted(Saved(self.watermark, True, watermark)), None

    # spec: ResultQueue!Renew
    def renew(self: Q, handle: int) -> tuple[Q, Any]:
        """Begin a new attempt; its handle. The old handle is stale."""
        entry = self._running(handle)
        if entry is None:
            return self, Raised("ValueError")
        number = self.attempts + 1
        return replace(self._with(entry, entry._replace(attempt=number)), attempts=number), number

    # spec: ResultQueue!Complete
    def complete(self: Q, handle: int, result: Any) -> tuple[Q, Any]:
        """Give the entry of this attempt its result; whether that had an effect."""
        entry = self._running(handle)
        if entry is None:
            return self, False
        after = self._with(entry, entry._replace(finished=True, result=result))
        return replace(after, done=(*after.done, handle)), True

    # ---- out

    def next_out(self) -> HeldEntry | None:
        """The entry that goes next, or None."""
        raise NotImplementedError

    # spec: ResultQueueGraph!HasCompleted
    def has_completed(self: Q) -> tuple[Q, Any]:
        """True if `emit` would give something."""
        return self, self.next_out() is not None

    # spec: ResultQueue!Emit
    def emit(self: Q) -> tuple[Q, Any]:
        """Take the next entry out, with its result; None if none goes."""
        entry = self.next_out()
        if entry is None:
            return self, None
        after = replace(
            self,
            held=tuple(e for e in self.held if e is not entry),
            done=tuple(attempt for attempt in self.done if attempt != entry.attempt),
        )
        return after, (entry.element, entry.result)

    # spec: ResultQueueGraph!EmitMany
    def emit_many(self: Q, limit: int | None = None) -> tuple[Q, Any]:
        """As `emit`, up to `limit` times."""
        after = self
        emitted: list[Any] = []
        while limit is None or len(emitted) < limit:
            after, pair = after.emit()
            if pair is None:
                break
            emitted.append(pair)
        return after, emitted

    # spec: ResultQueueGraph!Clear
    def clear(self: Q) -> tuple[Q, Any]:
        """Take everything out; the elements, those still to be restored last."""
        elements = [e.element for e in self.held] + [e.element for e in self.waiting]
        return replace(self, held=(), done=(), waiting=()), [
            element for element in elements if element is not self.watermark
        ]

    # spec: ResultQueue!Close
    def close(self: Q) -> tuple[Q, Any]:
        """As `clear`; every later put is refused."""
        after, elements = self.clear()
        return replace(after, closed=True), elements

    # ---- snapshots

    # spec: ResultQueue!Snapshot
    def snapshot(self: Q, door: Iterable[Any] = ()) -> tuple[Q, Any]:
        """All that is held, then what is still to be restored, then what waits at the door."""
        held = [Saved(e.element, e.finished, e.result) for e in self.held]
        return self, [*held, *self.waiting, *(Saved(element, False, None) for element in door)]

    # spec: ResultQueue!Restore
    def restore(self: Q, entries: Iterable[Saved]) -> tuple[Q, Any]:
        """Set what is to be admitted again."""
        if self.closed or self.held or self.waiting:
            return self, Raised("ValueError")
        return replace(self, waiting=tuple(Saved(*entry) for entry in entries)), None

    # spec: ResultQueue!AdmitRestored
    def admit_restored(self: Q) -> tuple[Q, Any]:
        """Admit until one needs its call; its handle and element. None if full or nothing is left."""
        after = self
        while after.waiting and len(after.held) < after.capacity:
            entry = after.waiting[0]
            after = replace(after._admitted(entry), waiting=after.waiting[1:])
            if not entry.finished:
                return after, (after.attempts, entry.element)
        return after, None

    # ---- any thread, watching

    def len(self: Q) -> tuple[Q, Any]:
        """The number of entries that are held."""
        return self, len(self.held)

    def is_full(self: Q) -> tuple[Q, Any]:
        """True if there is no room."""
        return self, len(self.held) == self.capacity

    def is_empty(self: Q) -> tuple[Q, Any]:
        """True if nothing is held."""
        return self, not self.held

    def in_flight(self: Q) -> tuple[Q, Any]:
        """The number of entries without a result."""
        return self, len(self.running())

    def restoring(self: Q) -> tuple[Q, Any]:
        """The number of entries that are still to be restored."""
        return self, len(self.waiting)

    def running(self) -> list[HeldEntry]:
        """The entries without a result, in the order of admission."""
        return [entry for entry in self.held if not entry.finished]

    # ---- inside

    def _refusal(self) -> Raised | None:
        if self.closed:
            return Raised("QueueClosedError")
        if self.waiting:
            return Raised("QueueRestoringError")
        return Raised("CapacityError") if len(self.held) == self.capacity else None

    def _running(self, handle: int) -> HeldEntry | None:
        return next((entry for entry in self.running() if entry.attempt == handle), None)

    def _with(self: Q, old: HeldEntry, new: HeldEntry) -> Q:
        return replace(self, held=tuple(new if entry is old else entry for entry in self.held))

    def _admitted(self: Q, saved: Saved) -> Q:
        number = self.attempts + 1
        finished = (number,) if saved.finished else ()
        entry = HeldEntry(saved.element, number, saved.finished, saved.result)
        return replace(self, held=(*self.held, entry), done=self.done + finished, attempts=number)


@dataclass(frozen=True)
class OrderedModel(QueueModel):
    """See `QueueModel`."""

    def next_out(self) -> HeldEntry | None:
        """The oldest entry, if it has finished."""
        return self.held[0] if self.held and self.held[0].finished else None


@dataclass(frozen=True)
class UnorderedModel(QueueModel):
    """See `QueueModel`."""

    def next_out(self) -> HeldEntry | None:
        """Before the first watermark, what finished first; after all of that, the watermark."""
        segment = []
        for entry in self.held:
            if entry.element is self.watermark:
                break
            segment.append(entry)
        if not segment:
            return self.held[0] if self.held else None
        finished = [entry for entry in segment if entry.finished]
        return min(finished, key=lambda entry: self.done.index(entry.attempt), default=None)
