"""The state of a Mail as it reports it, and that it waits in one mailbox at a time."""

import pytest

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxClosedError, TaskMailbox


def nothing() -> None:
    pass


@pytest.mark.contract("A mail runs its function with its arguments and returns its result.")
def test_run_calls_the_function_with_its_arguments_and_returns_its_result() -> None:
    assert Mail(divmod, 17, 5).run() == (3, 2)
    with pytest.raises(ZeroDivisionError):
        Mail(divmod, 17, 0).run()


def test_a_mail_says_what_it_was_made_of() -> None:
    mail = Mail(print, 1, 2, priority=7, urgent=True, deferrable=True)
    assert (mail.fn, mail.args, mail.priority, mail.urgent, mail.deferrable) == (print, (1, 2), 7, True, True)
    mail = Mail(print)
    assert (mail.args, mail.priority, mail.urgent, mail.deferrable) == ((), 0, False, False)
    with pytest.raises(AttributeError):
        mail.priority = 3  # type: ignore[misc]


def test_priorities_reach_from_the_least_to_the_greatest() -> None:
    assert (MIN_PRIORITY, MAX_PRIORITY) == (-1, 2**31 - 1)
    for priority in (MIN_PRIORITY, MAX_PRIORITY):
        assert Mail(print, priority=priority).priority == priority
    for priority in (MIN_PRIORITY - 1, MAX_PRIORITY + 1, 2**70):
        with pytest.raises(ValueError, match=f"priority .*{priority}"):
            Mail(print, priority=priority)


def test_arguments_of_a_wrong_kind_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="fn .*3"):
        Mail(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="description .*3"):
        Mail(print, description=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"priority .*1\.5"):
        Mail(print, priority=1.5)  # type: ignore[arg-type]


def test_a_description_that_is_a_function_is_called_only_when_it_is_shown() -> None:
    calls: list[int] = []

    def describe() -> str:
        calls.append(1)
        return "row 17"

    mail, mailbox = Mail(print, description=describe), TaskMailbox()
    mailbox.put(mail)
    mailbox.try_take()
    assert calls == []
    assert mail.description == "row 17"
    assert calls == [1]
    mailbox.quiesce()
    with pytest.raises(MailboxClosedError) as raised:
        mailbox.put(mail)
    assert calls == [1]
    assert "row 17" in str(raised.value)


def test_repr_names_the_function_and_what_is_special() -> None:
    assert repr(Mail(nothing)) == "<Mail nothing>"
    assert (
        repr(Mail(nothing, description="tick", priority=3, urgent=True)) == "<Mail tick, priority=3, urgent>"
    )
    assert repr(Mail(nothing, deferrable=True)) == "<Mail nothing, deferrable>"

    def bad() -> str:
        raise KeyError("no")

    assert repr(Mail(nothing, description=bad)) == "<Mail description raised KeyError('no')>"


@pytest.mark.contract(convicts=["claim_twice"])
def test_a_mail_in_a_mailbox_may_not_be_put_again_anywhere_until_it_was_taken() -> None:
    mail, here, there = Mail(nothing), TaskMailbox(), TaskMailbox()
    here.put(mail)
    for mailbox in (here, there):
        for put in (
            mailbox.put,
            mailbox.try_put,
            lambda mail, box=mailbox: box.put_all([Mail(nothing), mail]),
        ):
            with pytest.raises(ValueError, match="waits in a mailbox"):
                put(mail)
    assert (len(here), len(there)) == (1, 0)
    for give_out in (here.try_take, here.take, lambda: here.drain()[0]):
        assert give_out() is mail
        there.put(mail)
        assert there.try_take() is mail
        here.put(mail)
    assert here.close() == [mail]
    there.put(mail)


@pytest.mark.contract
def test_a_put_all_that_names_a_mail_twice_leaves_nothing_behind() -> None:
    mailbox, mails = TaskMailbox(), [Mail(nothing), Mail(nothing)]
    with pytest.raises(ValueError, match="named twice"):
        mailbox.put_all([*mails, mails[0]])
    assert len(mailbox) == 0
    mailbox.put_all(mails)
    assert mailbox.drain() == mails


def test_a_waiting_mail_cannot_be_made_anew() -> None:
    mail, mailbox = Mail(nothing), TaskMailbox()
    mailbox.put(mail)
    with pytest.raises(ValueError, match="cannot be changed"):
        mail.__init__(print)  # type: ignore[misc]
    assert mailbox.try_take() is mail


def test_a_mail_that_was_never_filled_in_does_no_harm() -> None:
    mail, mailbox = Mail.__new__(Mail), TaskMailbox()
    mailbox.put(mail)
    assert mailbox.try_take() is mail
    with pytest.raises(TypeError):
        mail.run()


def test_a_mail_that_is_put_while_it_is_made_is_whole_or_refused() -> None:
    mailbox = TaskMailbox()

    class Puts:
        def __bool__(self) -> bool:
            mailbox.put(mail)
            return True

    mail = Mail(print, "first")
    with pytest.raises(ValueError, match="waits in a mailbox"):
        mail.__init__(print, "second", urgent=Puts())  # type: ignore[misc, arg-type]
    assert (mail.args, mail.urgent, mailbox.try_take()) == (("first",), False, mail)
