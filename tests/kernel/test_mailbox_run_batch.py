"""`run_batch`: the mails that wait are run by the kernel, as if each were taken from a batch and run."""

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
