"""The recorder, the models' arguments, and what `pillarbox.testing` needs."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from pillarbox.kernel import Mail, MailboxClosedError, OrderedQueue, TaskMailbox
from pillarbox.testing.linearizability import Recorder, numbered_handles
from pillarbox.testing.models import MailboxModel, OrderedModel, Raised


def test_an_event_has_all_arguments_by_position_and_the_outcome() -> None:
    mailbox, mail = Recorder(TaskMailbox(), MailboxModel), Mail(print)
    mailbox.put(mail)
    assert mailbox.try_take(skip_deferrable=True) is mail
    mailbox.put_all(iter([mail]))
    mailbox.quiesce()
    with pytest.raises(MailboxClosedError):
        mailbox.put(late := Mail(print))
    assert mailbox.drain() == [mail]
    assert len(mailbox) == 0
    me = threading.current_thread().name
    assert [event[:4] for event in mailbox.events()] == [
        (me, "put", (mail,), None),
        (me, "try_take", (-1, True), mail),
        (me, "put_all", ((mail,),), None),
        (me, "quiesce", (), None),
        (me, "put", (late,), Raised("MailboxClosedError")),
        (me, "drain", (), [mail]),
        (me, "len", (), 0),
    ]


def test_tickets_count_the_beginnings_and_ends_of_one_thread_upwards() -> None:
    mailbox = Recorder(TaskMailbox(), MailboxModel)
    for _ in range(50):
        mailbox.has_mail()
    events = mailbox.events()
    tickets = [ticket for event in events for ticket in (event.start, event.end)]
    assert tickets == sorted(tickets)
    assert set(tickets) == set(range(max(tickets) + 1))


def test_threads_of_one_name_are_told_apart() -> None:
    mailbox = Recorder(TaskMailbox(), MailboxModel)
    for _ in range(3):
        thread = threading.Thread(target=mailbox.quiesce, name="same")
        thread.start()
        thread.join()
    assert [event.thread for event in mailbox.events()] == ["same", "same#2", "same#3"]


def test_an_operation_begins_before_the_pause_and_ends_after_the_second() -> None:
    inside = threading.Event()
    leave = threading.Event()

    def pause() -> None:
        if threading.current_thread().name == "slow":
            inside.set()
            leave.wait(30)

    mailbox = Recorder(TaskMailbox(), MailboxModel, pause=pause)
    thread = threading.Thread(target=mailbox.quiesce, name="slow")
    thread.start()
    inside.wait(30)
    mailbox.has_mail()
    leave.set()
    thread.join()
    slow, fast = mailbox.events()
    assert (slow.operation, fast.operation) == ("quiesce", "has_mail")
    assert slow.start < fast.start < fast.end < slow.end


def test_an_error_has_the_name_of_its_class() -> None:
    class MailboxClosedError(Exception):
        """Their own."""

    class Theirs:
        def put(self, mail: object) -> None:
            raise MailboxClosedError

    mailbox = Recorder(Theirs(), MailboxModel)
    with pytest.raises(MailboxClosedError):
        mailbox.put(1)
    assert mailbox.events()[0].result == Raised("MailboxClosedError")


def test_what_is_no_operation_is_the_subjects_own() -> None:
    mailbox = Recorder(TaskMailbox(), MailboxModel)
    assert mailbox.statistics().put == 0
    assert mailbox.state.name == "OPEN"
    assert mailbox.events() == []


def test_a_list_that_is_changed_afterwards_does_not_change_the_history() -> None:
    mailbox, mail = Recorder(TaskMailbox(), MailboxModel), Mail(print)
    mailbox.put(mail)
    mailbox.drain().clear()
    assert mailbox.events()[-1].result == [mail]


def test_handles_become_numbers_of_attempts() -> None:
    queue = Recorder(OrderedQueue(4), OrderedModel)
    first = queue.put("a")
    queue.put_watermark("w")
    second = queue.renew(first)
    queue.complete(first, 1)
    queue.complete(second, 2)
    queue.complete(12345, 3)
    numbers = [(e.operation, e.arguments[:1], e.result) for e in numbered_handles(queue.events())]
    assert numbers == [
        ("put", ("a",), 1),
        ("put_watermark", ("w",), None),
        ("renew", (1,), 3),
        ("complete", (1,), False),
        ("complete", (3,), True),
        ("complete", (0,), False),
    ]


def test_a_model_has_only_its_operations() -> None:
    with pytest.raises(ValueError, match="operation='step': MailboxModel has none of that name"):
        MailboxModel().apply("step")


SCRIPT = """
import sys
sys.modules["hypothesis"] = None
import pillarbox.testing
from pillarbox.testing.linearizability import linearize
from pillarbox.testing.models import MailboxModel
print(linearize([], MailboxModel()).linearizable)
"""


def test_without_hypothesis_everything_but_the_suites_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True\n"
