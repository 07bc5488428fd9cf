"""The reference model of a task mailbox: one list in put order, searched anew by every take.

Written from the specification and without the kernel. Used by the mailbox suite, by the search for
linearizations and by the tests of the specification. A value: any thread.
"""

# Why one list in the order of the puts, where the kernel has an inbox, a batch and two queues. The contract
# speaks of nothing but that order, urgency and priority; a model that had the kernel's queues would have
# its mistakes as well. Each take searches the list anew, which costs what a test can pay.
#
# Why a wake-up may be lent. A put of another thread takes the armed callback out and calls it a moment
# later; in between the owner may arm another one. A model that knew only "armed" would call a right history
# wrong.

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from pillarbox.testing.models.model import BLOCKED, Model, Raised

MIN_PRIORITY = -1
CLOSED_ERROR = Raised("MailboxClosedError")


class MailLike(Protocol):
    """A mail, as far as the model reads it. Two mails are the same if they are equal."""

    @property
    def priority(self) -> int:
        """A take of priority p accepts p and more."""

    @property
    def urgent(self) -> bool:
        """True if it comes before ordinary mails."""

    @property
    def deferrable(self) -> bool:
        """True if a take may skip it."""


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
            return self, CLOSED_ERROR
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
            return self, CLOSED_ERROR
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
            return self, CLOSED_ERROR
        return self, BLOCKED if timeout is None else None

    # spec: Mailbox!CreateBatch, Mailbox!RaiseClosed
    def create_batch(self) -> tuple[MailboxModel, Any]:
        """Make what waits the batch; whether anything waits."""
        if self.state == "CLOSED":
            return self, CLOSED_ERROR
        return replace(self, batch=len(self.waiting)), bool(self.waiting)

    # spec: Mailbox!TakeFromBatch, Mailbox!BatchUsedUp, Mailbox!RaiseClosed
    def try_take_from_batch(self) -> tuple[MailboxModel, Any]:
        """The next mail of the batch, or an urgent one, or None."""
        if self.state == "CLOSED":
            return self, CLOSED_ERROR
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
    def step(self, operation: str, arguments: tuple[Any, ...], result: Any) -> tuple[MailboxModel, ...]:
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
