"""`run_batch`: the mails that wait are run by the kernel, as if each were taken from a batch and run."""

import ctypes
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox, WrongThreadError

pytestmark = pytest.mark.usefixtures("each_backend")


def fails() -> None:
    raise LookupError("the second mail")


def test_it_runs_what_waits_in_take_order_with_its_arguments_and_says_how_many() -> None:
    mailbox, said = TaskMailbox(), list[object]()
    mailbox.put_all([Mail(said.append, "first"), Mail(said.extend, ("second", "third"), priority=7)])
    mailbox.put(Mail(said.append, "urgent", urgent=True))
    assert mailbox.run_batch() == 3
    assert said == ["urgent", "first", "second", "third"]
    assert mailbox.run_batch() == 0


@pytest.mark.contract
def test_what_a_mail_puts_is_of_the_next_batch_unless_it_is_urgent() -> None:
    mailbox, said = TaskMailbox(), list[str]()

    def puts() -> None:
        mailbox.put(Mail(said.append, "later"))
        mailbox.put(Mail(said.append, "urgent", urgent=True))

    mailbox.put_all([Mail(puts), Mail(said.append, "of this batch")])
    assert mailbox.run_batch() == 3
    assert said == ["urgent", "of this batch"]
    assert mailbox.run_batch() == 1
    assert said[-1] == "later"


def test_a_limit_ends_a_row_of_urgent_mails_that_put_each_other() -> None:
    mailbox, runs = TaskMailbox(), list[int]()

    def again() -> None:
        runs.append(1)
        mailbox.put(Mail(again, urgent=True))

    mailbox.put(Mail(again, urgent=True))
    assert mailbox.run_batch(100) == 100
    assert len(runs) == 100
    assert len(mailbox) == 1


def test_what_is_beyond_the_limit_is_first_in_the_next_batch() -> None:
    mailbox, said = TaskMailbox(), list[int]()
    mailbox.put_all([Mail(said.append, number) for number in range(5)])
    assert mailbox.run_batch(limit=2) == 2
    mailbox.put(Mail(said.append, 5))
    assert mailbox.run_batch() == 4
    assert said == [0, 1, 2, 3, 4, 5]


def test_meanwhile_bounds_the_urgent_mails_that_come_while_a_batch_runs() -> None:
    mailbox, said = TaskMailbox(), list[str]()

    def again() -> None:
        said.append("urgent")
        mailbox.put(Mail(again, urgent=True))

    mailbox.put_all([Mail(again, urgent=True), Mail(said.append, "waited")])
    assert mailbox.run_batch(meanwhile=3) == 5
    assert mailbox.mails_run == 5
    assert said == ["urgent"] * 5
    assert mailbox.run_batch(2, meanwhile=3) == 2


@pytest.mark.contract
def test_leave_batch_ends_the_batch_that_runs_and_those_around_it() -> None:
    mailbox, said = TaskMailbox(), list[object]()
    mailbox.leave_batch()  # no batch runs: without effect

    def nested() -> None:
        mailbox.put_all([Mail(mailbox.leave_batch), Mail(said.append, "left by both")])
        said.append(mailbox.run_batch())

    mailbox.put_all([Mail(nested), Mail(said.append, "first of the nested one")])
    assert mailbox.run_batch() == 1
    assert said == ["first of the nested one", 2]
    assert mailbox.run_batch() == 1
    assert said[-1] == "left by both"


def test_a_nested_batch_does_not_forget_that_the_one_around_it_is_to_be_left() -> None:
    mailbox, said = TaskMailbox(), list[object]()

    def leaves() -> None:
        mailbox.leave_batch()
        mailbox.put(Mail(said.append, "nested"))
        said.append(mailbox.run_batch())

    mailbox.put_all([Mail(leaves), Mail(said.append, "waited")])
    mailbox.put(Mail(said.append, "left"))
    assert mailbox.run_batch() == 1
    assert said == ["waited", "left", "nested", 3]


class Loud(Mail):
    """A mail that says that it runs."""

    def run(self) -> object:
        return self.fn("loud", *self.args)


@pytest.mark.contract("A batch runs a mail by its own run, where that is overridden.")
def test_a_mail_is_run_by_its_own_run() -> None:
    mailbox, said = TaskMailbox(), list[tuple[str, ...]]()

    def say(*words: str) -> None:
        said.append(words)

    class Other(Mail):
        pass

    alone = Other(say, "four")
    alone.run = lambda: say("four", "alone")  # type: ignore[method-assign]
    mailbox.put_all([Loud(say, "one"), Other(say, "two"), Mail(say, "three"), alone])
    assert mailbox.run_batch() == 4
    assert said == [("loud", "one"), ("two",), ("three",), ("four", "alone")]
    with pytest.raises(AttributeError, match="read-only"):
        Mail(say).run = say  # type: ignore[method-assign]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_no_mails_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit .*{limit}"):
        TaskMailbox().run_batch(limit)


@pytest.mark.contract("What a mail of a batch raises is raised, and the rest of the batch stays.")
def test_what_a_mail_raises_is_raised_and_the_rest_stays() -> None:
    mailbox, said = TaskMailbox(), list[str]()
    mailbox.put_all([Mail(said.append, "first"), Mail(fails), Mail(said.append, "third")])
    with pytest.raises(LookupError, match="the second mail"):
        mailbox.run_batch()
    assert said == ["first"]
    assert len(mailbox) == 1
    assert mailbox.run_batch() == 1
    assert said == ["first", "third"]


class Interrupted(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.contract
@pytest.mark.skipif(sys.platform == "win32", reason="raises a signal by the C library")
def test_signals_are_handled_in_the_midst_of_a_batch_whatever_its_mails_call() -> None:
    mailbox, said = TaskMailbox(), list[int]()

    def interrupt(*_: object) -> None:
        raise Interrupted

    # `signal.raise_signal` would see to the handler itself.
    mailbox.put(Mail(ctypes.CDLL(None)["raise"], int(signal.SIGUSR1)))
    mailbox.put_all([Mail(said.append, number) for number in range(1000)])
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            mailbox.run_batch()
        assert len(said) < 1000
    finally:
        signal.signal(signal.SIGUSR1, before)
    mailbox.run_batch()
    assert said == list(range(1000))


def test_a_mail_may_take_and_may_close() -> None:
    mailbox, said = TaskMailbox(), list[Any]()
    left = Mail(said.append, "returned by close")
    mailbox.put_all([Mail(lambda: said.append(mailbox.try_take())), taken := Mail(fails)])
    mailbox.put_all([Mail(lambda: said.extend(mailbox.close())), left])
    assert mailbox.run_batch() == 2
    assert said == [taken, left]


def test_a_closed_mailbox_and_another_thread_are_refused(
    elsewhere: Callable[[Callable[[], Any]], Any],
) -> None:
    mailbox = TaskMailbox()
    with pytest.raises(WrongThreadError):
        elsewhere(mailbox.run_batch)
    mailbox.close()
    with pytest.raises(MailboxClosedError, match="CLOSED"):
        mailbox.run_batch()
