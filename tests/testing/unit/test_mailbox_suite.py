"""The mailbox suite, pointed at a mailbox that is not ours: right ones pass, each wrong one is found out."""

from __future__ import annotations

import threading
import time
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from pillarbox.testing import suite_machine
from pillarbox.testing.models import MailboxModel
from pillarbox.testing.suites import Disagreement, mailbox_suite
from tests.testing.unit.unshrunk import DEFAULT_SIZES, UNSHRUNK

BURST = 2


class MailboxClosedError(Exception):
    """Their own, of the name that the contract has."""


class WrongThreadError(Exception):
    """Another one."""


class TheirMailbox:
    """A small mailbox in plain Python: one list, one lock. The wrong ones below change one thing each."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.waiting: list[Any] = []
        self.batch: list[Any] = []
        self.state = SimpleNamespace(name="OPEN")
        self.in_a_row = 0
        self.changed = threading.Condition()
        self.callback: Callable[[], object] | None = None

    def check_thread(self) -> None:
        if threading.get_ident() != self.owner:
            raise WrongThreadError

    def put(self, mail: Any) -> None:
        self.put_all([mail])

    def try_put(self, mail: Any) -> bool:
        try:
            self.put(mail)
        except MailboxClosedError:
            return False
        return True

    def put_all(self, mails: list[Any]) -> None:
        with self.changed:
            if self.state.name != "OPEN":
                raise MailboxClosedError
            self.waiting += mails
        self.wake()

    def wake(self) -> None:
        with self.changed:
            callback, self.callback = self.callback, None
            self.notify()
        if callback is not None:
            callback()

    def notify(self) -> None:
        self.changed.notify_all()

    def quiesce(self) -> None:
        with self.changed:
            if self.state.name != "OPEN":
                return
            self.state = SimpleNamespace(name="QUIESCED")
        self.wake()

    def eligible(self, p: int, skip_deferrable: bool) -> list[Any]:
        return [m for m in self.waiting if m.priority >= p and not (skip_deferrable and m.deferrable)]

    def pick(self, p: int = -1, skip_deferrable: bool = False, of_batch: bool = False) -> Any:
        found = self.eligible(p, skip_deferrable)
        urgent = [m for m in found if m.urgent]
        ordinary = [m for m in found if not m.urgent and (m in self.batch or not of_batch)]
        chosen = self.choose(urgent, ordinary)
        if chosen is not None:
            self.in_a_row = self.in_a_row + 1 if chosen.urgent else 0
            self.waiting.remove(chosen)
        return chosen

    def choose(self, urgent: list[Any], ordinary: list[Any]) -> Any:
        if urgent and not (ordinary and self.in_a_row >= BURST):
            return urgent[0]
        return ordinary[0] if ordinary else None

    def try_take(self, p: int = -1, *, skip_deferrable: bool = False) -> Any:
        self.check_thread()
        with self.changed:
            if self.state.name == "CLOSED":
                raise MailboxClosedError
            return self.pick(p, skip_deferrable)

    def take(self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False) -> Any:
        end = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while (mail := self.try_take(p, skip_deferrable=skip_deferrable)) is None:
                if self.state.name != "OPEN":
                    raise MailboxClosedError
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self.sleep(left)
            return mail

    def sleep(self, limit: float | None) -> None:
        self.changed.wait(limit)

    def create_batch(self) -> bool:
        self.check_thread()
        if self.state.name == "CLOSED":
            raise MailboxClosedError
        self.batch = list(self.waiting)
        return bool(self.waiting)

    def try_take_from_batch(self) -> Any:
        self.check_thread()
        with self.changed:
            if self.state.name == "CLOSED":
                raise MailboxClosedError
            return self.pick(of_batch=True)

    def has_mail(self) -> bool:
        self.check_thread()
        return bool(self.waiting)

    def __len__(self) -> int:
        return len(self.waiting)

    def drain(self) -> list[Any]:
        self.check_thread()
        with self.changed:
            return list(iter(self.pick, None))

    def close(self) -> list[Any]:
        left = self.drain()
        self.state = SimpleNamespace(name="CLOSED")
        self.callback = None
        return left

    def arm_wakeup(self, callback: Callable[[], object]) -> bool:
        self.check_thread()
        with self.changed:
            if self.waiting or self.state.name != "OPEN":
                return False
            self.callback = callback
            return True


# ---- wrong ones


class LastUrgentFirst(TheirMailbox):
    def choose(self, urgent: list[Any], ordinary: list[Any]) -> Any:
        return super().choose(urgent[::-1], ordinary)


class UrgentStarvesTheRest(TheirMailbox):
    def choose(self, urgent: list[Any], ordinary: list[Any]) -> Any:
        return urgent[0] if urgent else super().choose(urgent, ordinary)


class HighestPriorityFirst(TheirMailbox):
    def eligible(self, p: int, skip_deferrable: bool) -> list[Any]:
        return sorted(super().eligible(p, skip_deferrable), key=lambda mail: -mail.priority)


class CloseForgetsTheBatch(TheirMailbox):
    def close(self) -> list[Any]:
        return [mail for mail in super().close() if mail not in self.batch]


class DrainSkipsDeferrable(TheirMailbox):
    def drain(self) -> list[Any]:
        self.check_thread()
        return list(iter(lambda: self.pick(skip_deferrable=True), None))


class PutAfterQuiesce(TheirMailbox):
    def put_all(self, mails: list[Any]) -> None:
        if self.state.name == "QUIESCED":
            self.waiting += mails
        else:
            super().put_all(mails)


class BatchGrows(TheirMailbox):
    def put_all(self, mails: list[Any]) -> None:
        super().put_all(mails)
        self.batch += mails


class QuiescedTakeGivesNone(TheirMailbox):
    def take(self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False) -> Any:
        if self.state.name == "QUIESCED":
            return self.try_take(p, skip_deferrable=skip_deferrable)
        return super().take(p, timeout, skip_deferrable=skip_deferrable)


class RefusedPutStays(TheirMailbox):
    def put_all(self, mails: list[Any]) -> None:
        try:
            super().put_all(mails)
        except MailboxClosedError:
            if self.state.name == "QUIESCED" and len(mails) > 1:
                self.waiting += mails[:1]
            raise


class AnyThreadTakes(TheirMailbox):
    def check_thread(self) -> None:
        pass


class WakesTwice(TheirMailbox):
    def wake(self) -> None:
        callback = self.callback
        super().wake()
        if callback is not None:
            callback()


class ArmsWhileMailWaits(TheirMailbox):
    def arm_wakeup(self, callback: Callable[[], object]) -> bool:
        self.check_thread()
        self.callback = callback
        return self.state.name == "OPEN"


class BatchIsNoMail(TheirMailbox):
    def has_mail(self) -> bool:
        self.check_thread()
        return any(mail not in self.batch for mail in self.waiting)


class WakesNobody(TheirMailbox):
    def notify(self) -> None:
        pass


class WakesOnce(TheirMailbox):
    asleep = awoken = False

    def take(self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False) -> Any:
        self.asleep = timeout != 0
        try:
            return super().take(p, timeout, skip_deferrable=skip_deferrable)
        finally:
            self.asleep = False

    def notify(self) -> None:
        if not self.awoken:
            super().notify()
        self.awoken |= self.asleep


class QuiesceWakesNobody(TheirMailbox):
    def notify(self) -> None:
        if self.state.name == "OPEN":
            super().notify()


class TakeDoesNotWait(TheirMailbox):
    def take(self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False) -> Any:
        return super().take(p, 0, skip_deferrable=skip_deferrable)


class TakeWaitsForNothing(TheirMailbox):
    def take(self, p: int = -1, timeout: float | None = None, *, skip_deferrable: bool = False) -> Any:
        with self.changed:
            self.changed.wait(timeout)
        return super().take(p, 0, skip_deferrable=skip_deferrable)


class LargeBatchIsWithoutItsNewest(TheirMailbox):
    def create_batch(self) -> bool:
        found = super().create_batch()
        if len(self.batch) > 3:
            self.batch.pop()
        return found


class LargeBatchLosesItsNewest(TheirMailbox):
    def create_batch(self) -> bool:
        if len(self.waiting) > 3:
            self.check_thread()
            self.waiting.pop()
        return super().create_batch()


TAKES = {"try_take", "take", "try_take_from_batch", "drain", "close"}
WRONG: dict[type[TheirMailbox], set[str]] = {
    LastUrgentFirst: TAKES,
    UrgentStarvesTheRest: TAKES,
    HighestPriorityFirst: TAKES,
    CloseForgetsTheBatch: {"close"},
    DrainSkipsDeferrable: {"drain", "close"},
    PutAfterQuiesce: {"put", "put_all", "try_put"},
    BatchGrows: {"try_take_from_batch"},
    QuiescedTakeGivesNone: {"take"},
    RefusedPutStays: {"len"},
    AnyThreadTakes: {f"{operation} from another thread" for operation in MailboxModel.confined},
    WakesTwice: {"arm_wakeup"},
    ArmsWhileMailWaits: {"arm_wakeup"},
    BatchIsNoMail: {"has_mail"},
    WakesNobody: {"take while another thread does put", "take while another thread does quiesce"},
    WakesOnce: {"take while another thread does put", "take while another thread does quiesce"},
    QuiesceWakesNobody: {"take while another thread does quiesce"},
    TakeDoesNotWait: {"take", "take while another thread does put", "take while another thread does quiesce"},
    TakeWaitsForNothing: {"take that need not wait"},
    LargeBatchIsWithoutItsNewest: {"try_take_from_batch"},
    LargeBatchLosesItsNewest: {"try_take_from_batch", "create_batch", "len"},
}
# Found late, or by waiting: a second or two each.
LATE = {
    WakesNobody,
    CloseForgetsTheBatch,
    PutAfterQuiesce,
    BatchGrows,
    QuiescedTakeGivesNone,
    RefusedPutStays,
    WakesTwice,
    WakesOnce,
    QuiesceWakesNobody,
    TakeWaitsForNothing,
}


def run(make: Callable[[], Any], how: settings = UNSHRUNK, **options: Any) -> None:
    """Runs the suite without shrinking: the first steps that show a mistake are enough here."""
    mailbox_suite(make, urgent_burst=BURST, settings=settings(how, **options))().runTest()


def waits(monkeypatch: pytest.MonkeyPatch, wrong: type[TheirMailbox]) -> None:
    """Gives waits limits by which a busy machine shows a lost wake-up too: what ends first shows nothing.

    Of a mailbox that wakes nobody a few looks tell as much as many.
    """
    if issubclass(wrong, WakesNobody):
        monkeypatch.setattr(suite_machine, "WAKE_LOOKS", 5)
        monkeypatch.setattr(suite_machine, "LOOK_INTERVAL_S", 0.001)
        monkeypatch.setattr(suite_machine, "WAIT_LIMIT_S", 0.5)
    elif issubclass(wrong, WakesOnce | QuiesceWakesNobody | TakeWaitsForNothing):
        monkeypatch.setattr(suite_machine, "WAIT_LIMIT_S", 5.0)


def test_a_right_mailbox_of_others_passes() -> None:
    run(TheirMailbox, max_examples=20)


@pytest.mark.contract
@pytest.mark.parametrize(
    "wrong",
    [pytest.param(wrong, marks=pytest.mark.slow) if wrong in LATE else wrong for wrong in WRONG],
    ids=[wrong.__name__ for wrong in WRONG],
)
def test_a_wrong_mailbox_is_found_out_by_the_operation_that_is_wrong(
    wrong: type[TheirMailbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits(monkeypatch, wrong)
    with pytest.raises(Disagreement) as found:
        run(wrong)
    assert found.value.operation in WRONG[wrong]


@pytest.mark.contract
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(WakesNobody, marks=pytest.mark.slow),
        LargeBatchIsWithoutItsNewest,
        LargeBatchLosesItsNewest,
    ],
)
def test_default_sizes_find_a_lost_wake_up_and_a_large_batch_without_its_newest_mail(
    wrong: type[TheirMailbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits(monkeypatch, wrong)
    with pytest.raises(Disagreement):
        run(wrong, DEFAULT_SIZES)


@pytest.mark.contract
def test_the_first_wake_up_that_is_lost_is_heard_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert suite_machine.WAKE_LOOKS * suite_machine.LOOK_INTERVAL_S < suite_machine.WAIT_LIMIT_S < 1.0
    waits(monkeypatch, WakesNobody)
    limits: list[float | None] = []

    class Counted(WakesNobody):
        def sleep(self, limit: float | None) -> None:
            limits.append(limit)
            super().sleep(limit)

    with pytest.raises(Disagreement, match=r"take while another thread does .*nothing for 0\.005 s at least"):
        run(Counted)
    # Nothing ends these waits; shorter ones are for what must come to its end. Hypothesis repeats what has
    # failed, once.
    waited = [limit for limit in limits if limit is None or limit > suite_machine.SOON_S]
    assert len(waited) <= 2
    assert None not in waited and max(waited) <= suite_machine.WAIT_LIMIT_S


def test_the_failure_says_what_was_done_and_what_was_expected() -> None:
    with pytest.raises(Disagreement, match=r"take\(.*\): the subject gave None, the contract says Raised"):
        run(QuiescedTakeGivesNone)


def test_a_suite_is_a_test_case_with_the_name_it_was_given() -> None:
    case = mailbox_suite(TheirMailbox, urgent_burst=BURST, name="TheirSuite")
    assert (case.__name__, case.settings.deadline) == ("TheirSuite", None)
    assert isinstance(case(), unittest.TestCase)
