"""The reference models: the contracts of mailbox, result queues and hand-over as values that never change.

A method takes the arguments that the subject's method takes, and returns `(model after it, outcome)`. The
suites follow one path of operations; the search for linearizations goes back and forth, which values allow
for nothing.

An outcome is a result, or the name of the error that was raised, as plain values: so a subject may have its
own classes of errors, of the same names. Written from the specification and without the kernel. Any thread.
"""

# Why a model gives the outcome together with the next model, where one could ask it before and tell it
# after. An operation whose outcome depends on more than one choice, such as a wake-up that is on its way,
# has several next models for one outcome (`step`): asking first would have to choose one.
#
# Why the mailbox is one list in the order of the puts, where the kernel has an inbox, a batch and two queues.
# The contract speaks of nothing but that order, urgency and priority; a model that had the kernel's queues
# would have its mistakes as well. Each take searches the list anew, which costs what a test can pay.
#
# Why a wake-up may be lent. A put of another thread takes the armed callback out and calls it a moment
# later; in between the owner may arm another one. A model that knew only "armed" would call a right history
# wrong.
#
# Why handles are numbers of attempts. The kernel's are slots and generations, which a subject of somebody
# else's need not have; a suite learns which handle the subject gave for which attempt, and holds it to
# being a new one. The two orders of queues differ in one method, `next_out`: nothing else of the contract
# must depend on the order.
#
# Why a timed take of a hand-over that gave nothing may leave a `wake_up` pending. No observer can tell
# whether its time was over first or it was woken first, and both are right: `step` gives both models, and
# the operations that follow decide.

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

M = TypeVar("M", bound="Model")
Q = TypeVar("Q", bound="QueueModel")


class Raised(NamedTuple):
    """An operation raised. `kind` is the name of the contract's error, such as "MailboxClosedError"."""

    kind: str


class _Blocked(enum.Enum):
    BLOCKED = "BLOCKED"


BLOCKED = _Blocked.BLOCKED
"""The outcome of an operation that would wait now, in a model: no subject returns it."""


def outcome_of(call: Callable[[], Any]) -> Any:
    """Make the call; return what it returns, or `Raised` with the name of the error's class.

    An assertion that fails, KeyboardInterrupt and the like pass through.
    """
    try:
        return call()
    except AssertionError:
        raise
    except Exception as error:
        return Raised(type(error).__name__)


class Model:
    """Base of the reference models. Subclasses are frozen dataclasses, and so comparable and hashable."""

    operations: ClassVar[frozenset[str]] = frozenset()
    """Names of the methods that are operations."""
    confined: ClassVar[frozenset[str]] = frozenset()
    """Those that only the owning thread may call."""

    def apply(self: M, operation: str, *arguments: object, **keywords: object) -> tuple[M, Any]:
        """The model after the operation, and its outcome; `BLOCKED`, and no change, if it would wait now."""
        if operation not in self.operations:
            raise ValueError(f"operation={operation!r}: {type(self).__name__} has none of that name")
        model: tuple[M, Any] = getattr(self, operation)(*arguments, **keywords)
        return model

    def step(self: M, operation: str, arguments: tuple[Any, ...], result: object) -> tuple[M, ...]:
        """Every model that can follow if the operation had this outcome now; none if it cannot have."""
        after, outcome = self.apply(operation, *arguments)
        return (after,) if outcome is not BLOCKED and outcome == result else ()

    def key(self) -> Hashable:
        """Equal for two models that no operation can tell apart."""
        return self

    @classmethod
    def bind(cls, operation: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, those with default values included."""
        bound = _signature_of(getattr(cls, operation)).bind(None, *arguments, **keywords)
        bound.apply_defaults()
        return bound.args[1:]


# A history binds the arguments of each of its operations.
_signature_of = cache(inspect.signature)


# -- the mailbox --------------------------------------------------------------------------------

MIN_PRIORITY = -1
MAILBOX_CLOSED = Raised("MailboxClosedError")


MailLike: TypeAlias = Any
"""A mail with `priority`, `urgent` and `deferrable`. Two mails are the same if they are equal."""


def accepts(mail: MailLike, p: int, skip_deferrable: bool) -> bool:
    """True if a take of priority `p` accepts the mail."""
    return mail.priority >= p and not (skip_deferrable and mail.deferrable)


def choose(
    waiting: Sequence[MailLike],
    batch: int,
    streak: int,
    urgent_burst: int,
    p: int = MIN_PRIORITY,
    skip_deferrable: bool = False,
    of_batch: bool = False,
) -> int | None:
    """The index of the mail that a take gets, or None.

    waiting: in put order; the first `batch` of them are the batch. streak: urgent mails taken in a row.
    """
    accepted = [i for i, mail in enumerate(waiting) if accepts(mail, p, skip_deferrable)]
    urgent = [i for i in accepted if waiting[i].urgent]
    ordinary = [i for i in accepted if not waiting[i].urgent and (i < batch or not of_batch)]
    if ordinary and (streak >= urgent_burst or not urgent):
        return ordinary[0]
    return urgent[0] if urgent else None


@dataclass(frozen=True)
class MailboxModel(Model):
    """A mailbox as the contract has it. See the module."""

    urgent_burst: int = 64
    state: str = "OPEN"
    waiting: tuple[MailLike, ...] = ()
    """Every mail that waits, in put order."""
    batch: int = 0
    """The number of those, from the first, that the last `create_batch` made the batch."""
    streak: int = 0
    """Urgent mails taken in a row, counted up to `urgent_burst`."""
    armed: bool = False
    lent: bool = False
    """A put or quiesce has taken the armed wake-up away; with other threads it may not have called it yet."""

    operations: ClassVar[frozenset[str]] = frozenset({
        "put", "put_all", "try_put", "try_take", "take", "create_batch", "try_take_from_batch", "has_mail",
        "len", "drain", "quiesce", "close", "arm_wakeup", "get_state",
    })  # fmt: skip
    confined: ClassVar[frozenset[str]] = frozenset({
        "try_take", "take", "create_batch", "try_take_from_batch", "has_mail", "drain", "close",
        "arm_wakeup",
    })  # fmt: skip

    def key(self) -> Hashable:
        """Nobody can tell how urgent and ordinary mails lie among each other."""
        urgent = tuple(mail for mail in self.waiting if mail.urgent)
        ordinary = tuple(mail for mail in self.waiting if not mail.urgent)
        of_batch = sum(not mail.urgent for mail in self.waiting[: self.batch])
        return self.state, urgent, ordinary, of_batch, self.streak, self.armed, self.lent

    # ---- any thread

    # spec: Mailbox!Put, Mailbox!PutRefused
    def put(self, mail: MailLike) -> tuple[MailboxModel, Any]:
        """Accept the mail, or refuse it unless OPEN."""
        return self.put_all((mail,))

    # spec: Mailbox!PutAll, Mailbox!PutRefused
    def put_all(self, mails: Iterable[MailLike]) -> tuple[MailboxModel, Any]:
        """Accept all, as neighbours and in order, or refuse all."""
        if self.state != "OPEN":
            return self, MAILBOX_CLOSED
        new = tuple(mails)
        spent = self.armed and bool(new)
        return replace(
            self, waiting=self.waiting + new, armed=self.armed and not spent, lent=self.lent or spent
        ), None

    # spec: Mailbox!Put, Mailbox!PutRefused
    def try_put(self, mail: MailLike) -> tuple[MailboxModel, Any]:
        """As `put`; whether it was accepted."""
        after, refused = self.put(mail)
        return after, refused is None

    # spec: Mailbox!Quiesce
    def quiesce(self) -> tuple[MailboxModel, Any]:
        """OPEN becomes QUIESCED."""
        if self.state != "OPEN":
            return self, None
        return replace(self, state="QUIESCED", armed=False, lent=self.lent or self.armed), None

    def len(self) -> tuple[MailboxModel, Any]:
        """The number of mails that wait."""
        return self, len(self.waiting)

    def get_state(self) -> tuple[MailboxModel, Any]:
        """The name of the state."""
        return self, self.state

    # ---- the owner

    # spec: Mailbox!Take, Mailbox!TakeNothing, Mailbox!RaiseClosed
    def try_take(self, p: int = MIN_PRIORITY, skip_deferrable: bool = False) -> tuple[MailboxModel, Any]:
        """The first mail that the take accepts, or None."""
        if self.state == "CLOSED":
            return self, MAILBOX_CLOSED
        return self._pick(p, skip_deferrable)

    # spec: Mailbox!Take, Mailbox!TakeNothing, Mailbox!TakeEnded, Mailbox!RaiseClosed
    def take(
        self, p: int = MIN_PRIORITY, timeout: float | None = None, skip_deferrable: bool = False
    ) -> tuple[MailboxModel, Any]:
        """As `try_take`, but it waits for a mail, and is refused if none can come."""
        after, mail = self.try_take(p, skip_deferrable=skip_deferrable)
        if mail is not None:
            return after, mail
        if self.state != "OPEN":
            return self, MAILBOX_CLOSED
        return self, BLOCKED if timeout is None else None

    # spec: Mailbox!CreateBatch, Mailbox!RaiseClosed
    def create_batch(self) -> tuple[MailboxModel, Any]:
        """Make what waits the batch; whether anything waits."""
        if self.state == "CLOSED":
            return self, MAILBOX_CLOSED
        return replace(self, batch=len(self.waiting)), bool(self.waiting)

    # spec: Mailbox!TakeFromBatch, Mailbox!BatchUsedUp, Mailbox!RaiseClosed
    def try_take_from_batch(self) -> tuple[MailboxModel, Any]:
        """The next mail of the batch, or an urgent one, or None."""
        if self.state == "CLOSED":
            return self, MAILBOX_CLOSED
        return self._pick(of_batch=True)

    # spec: Mailbox!HasMail
    def has_mail(self) -> tuple[MailboxModel, Any]:
        """True if any mail waits."""
        return self, bool(self.waiting)

    # spec: Mailbox!Drain
    def drain(self) -> tuple[MailboxModel, Any]:
        """All mail, in the order of taking."""
        after, drained = self, []
        while after.waiting:
            after, mail = after._pick()
            drained.append(mail)
        return after, drained

    # spec: Mailbox!Close
    def close(self) -> tuple[MailboxModel, Any]:
        """CLOSED; what was not taken, in the order of taking."""
        after, left = self.drain()
        return replace(after, state="CLOSED", armed=False, lent=False), left

    # spec: Mailbox!Arm, Mailbox!ArmRefused
    def arm_wakeup(self, callback: Callable[[], object]) -> tuple[MailboxModel, Any]:
        """Arm a call by the next put or quiesce, unless there is mail or the state is not OPEN."""
        if self.waiting or self.state != "OPEN":
            return self, False
        return replace(self, armed=True, lent=False), True

    # spec: Mailbox!ArmSpent
    def step(self, operation: str, arguments: tuple[Any, ...], result: object) -> tuple[MailboxModel, ...]:
        """A put may be about to make its call when another wake-up is armed: then it calls that one."""
        if (
            operation == "arm_wakeup"
            and result is True
            and self.lent
            and self.apply(operation, *arguments)[1] is False
        ):
            return (replace(self, lent=False),)
        return super().step(operation, arguments, result)

    # ---- inside

    def _pick(
        self, p: int = MIN_PRIORITY, skip_deferrable: bool = False, of_batch: bool = False
    ) -> tuple[MailboxModel, Any]:
        index = choose(self.waiting, self.batch, self.streak, self.urgent_burst, p, skip_deferrable, of_batch)
        if index is None:
            return self, None
        mail = self.waiting[index]
        after = replace(
            self,
            waiting=self.waiting[:index] + self.waiting[index + 1 :],
            batch=self.batch - (index < self.batch),
            streak=min(self.streak + 1, self.urgent_burst) if mail.urgent else 0,
        )
        return after, mail


# -- result queues ------------------------------------------------------------------------------


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
    def put(self: Q, element: object) -> tuple[Q, Any]:
        """Admit an element; the handle of its first attempt."""
        refused = self._refusal()
        if refused:
            return self, refused
        after = self._admitted(Saved(element, False, None))
        return after, after.attempts

    # spec: ResultQueue!PutWatermark
    def put_watermark(self: Q, watermark: object) -> tuple[Q, Any]:
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
    def complete(self: Q, handle: int, result: object) -> tuple[Q, Any]:
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


# -- the hand-over ------------------------------------------------------------------------------

HANDOVER_CLOSED = Raised("HandoverClosedError")


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
    def put(self, item: object, nbytes: int = 0, timeout: float | None = None) -> tuple[HandoverModel, Any]:
        """Put an item in, or wait for room; False after `close` or when the time is over."""
        if self.end == "ENDING":
            return self, HANDOVER_CLOSED
        if self.end == "CLOSED":
            return self, False
        if not self.has_room(nbytes):
            return self, BLOCKED if timeout is None else False
        return replace(self, items=(*self.items, Item(item, nbytes)), armed_consumer=False), True

    # spec: Handover!Put, Handover!PutAtEnd, Handover!PutFindsNoRoom
    def try_put(self, item: object, nbytes: int = 0) -> tuple[HandoverModel, Any]:
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

    def step(self, operation: str, arguments: tuple[Any, ...], result: object) -> tuple[HandoverModel, ...]:
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
        return Raised(self.failure) if self.failure else HANDOVER_CLOSED

    def _without(self, count: int) -> HandoverModel:
        after = replace(self, items=self.items[count:])
        if self.armed_producer is not None and after.has_room(self.armed_producer):
            return replace(after, armed_producer=None)
        return after
