"""The kernel's exceptions: their root, their text, and that they survive pickling."""

import pickle
import sys
import threading

import pytest

from pillarbox.kernel import (
    WATERMARK,
    CapacityError,
    Handover,
    HandoverClosedError,
    Mail,
    MailboxClosedError,
    MailboxState,
    PillarboxError,
    QueueClosedError,
    TaskMailbox,
    WrongThreadError,
)

ERRORS = [
    PillarboxError("anything"),
    MailboxClosedError(MailboxState.CLOSED),
    WrongThreadError("'a' (ident 1)", "'b' (ident 2)"),
    CapacityError(100),
    QueueClosedError(),
    HandoverClosedError("finished"),
]


@pytest.mark.contract("An error of the kernel is the same after pickling.")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_is_the_same_after_pickling(error: PillarboxError, protocol: int) -> None:
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert isinstance(copy, PillarboxError)


def test_a_pickled_refusal_describes_the_mail_which_itself_does_not_travel() -> None:
    mail = Mail(threading.Lock().acquire, description="the mail")
    single, several = MailboxClosedError("QUIESCED", mail), MailboxClosedError("CLOSED", (mail, mail))
    assert single.mail is mail
    copy = pickle.loads(pickle.dumps(single))
    assert (copy.state, copy.mail, str(copy)) == ("QUIESCED", "<Mail the mail>", str(single))
    copy = pickle.loads(pickle.dumps(several))
    assert (copy.state, copy.mail, str(copy)) == ("CLOSED", ("<Mail the mail>",) * 2, str(several))


def test_errors_name_what_they_are_about() -> None:
    assert "CLOSED" in str(MailboxClosedError("CLOSED")) and "more" in str(MailboxClosedError("CLOSED"))
    assert "'a' (ident 1)" in str(ERRORS[2]) and "'b' (ident 2)" in str(ERRORS[2])
    assert "100" in str(ERRORS[3])
    assert "finished" in str(ERRORS[5])


@pytest.mark.contract(convicts=["greatest_bound_refused"])
def test_the_greatest_bound_is_accepted_and_one_more_is_refused() -> None:
    for bounded in (
        lambda bound: TaskMailbox(urgent_burst=bound),
        lambda bound: TaskMailbox().run_batch(bound),
        lambda bound: Handover(bound),
        lambda bound: Handover(1, bound),
    ):
        bounded(1)
        bounded(sys.maxsize)
        for refused in (0, sys.maxsize + 1):
            with pytest.raises(ValueError, match=f"must be 1 to {sys.maxsize}, not {refused}"):
                bounded(refused)


def test_a_thread_that_has_ended_is_named_by_its_ident() -> None:
    made: list[TaskMailbox] = []
    thread = threading.Thread(target=lambda: made.append(TaskMailbox()))
    thread.start()
    ident = thread.ident
    thread.join()
    with pytest.raises(WrongThreadError, match=str(ident)):
        made[0].try_take()


def test_the_watermark_object_is_one_in_every_process() -> None:
    assert pickle.loads(pickle.dumps(WATERMARK)) is WATERMARK
    assert repr(WATERMARK) == "pillarbox.kernel.WATERMARK"
