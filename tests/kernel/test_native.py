"""The C interface: what each function of its table answers. tests/embedding has projects built on it."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pillarbox.kernel import BACKENDS, Mail, TaskMailbox, WrongThreadError
from tests.kernel.asleep import TASKS, falls_asleep, needs_looks, wait_until_asleep
from tests.kernel.unit.native_table import (
    CLOSED,
    DEFERRABLE,
    INVALID,
    LOCK_FREE,
    MUTEX,
    OPEN,
    POST_FN,
    QUIESCED,
    URGENT,
    WAITS,
    Consumer,
    Functions,
    Mails,
    NativeMail,
    chain,
    table,
    take,
)


@pytest.fixture
def mails() -> Mails:
    return Mails(6)


# Of a build for tests the second one too.
KINDS = [LOCK_FREE, MUTEX][: len(BACKENDS)]


@pytest.fixture(params=KINDS, ids=BACKENDS)
def mailbox(request: pytest.FixtureRequest, mails: Mails) -> Iterator[int]:
    """A native one. The mails are there until it is gone."""
    made = table.create(request.param, 64)
    yield made
    table.destroy(made)


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda failure: seen.append((failure.exc_value, failure.object))
    )
    return seen


def taken(mails: Mails, mailbox: int, **how: Any) -> int | None:
    """The index of the next mail, which is run; None: there is none."""
    mail = take(mailbox, **how)[0]
    if mail is None:
        return None
    assert table.run(mail) == 0
    return mails.said.pop()[0]


@contextmanager
def later(call: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    """Makes a call in another thread: when the block waits, where the system says that it does."""

    def when_it_waits() -> None:
        if TASKS.exists():
            wait_until_asleep(threading.main_thread())
        call(*arguments)

    thread = threading.Thread(target=when_it_waits)
    thread.start()
    yield
    thread.join()


@pytest.mark.contract("The C interface says its version and its sizes.")
def test_the_table_says_its_version_and_its_sizes() -> None:
    assert (table.version_major, table.size) == (1, ctypes.sizeof(Functions))
    assert table.mail_size == ctypes.sizeof(NativeMail) == 32


@pytest.mark.parametrize(("backend", "urgent_burst"), [(len(KINDS), 64), (-1, 64), (LOCK_FREE, 0)])
def test_a_mailbox_with_a_bad_argument_is_not_made(backend: int, urgent_burst: int) -> None:
    assert table.create(backend, urgent_burst) is None


def test_a_mail_is_run_once_and_may_be_put_again(mailbox: int, mails: Mails) -> None:
    for _ in range(2):
        assert table.put(mailbox, mails.at(3)) == OPEN
        assert (table.waiting(mailbox), table.state(mailbox)) == (1, OPEN)
        assert taken(mails, mailbox) == 3
        assert take(mailbox) == (None, OPEN)
    assert mails.said == []


def test_a_mail_is_claimed_until_it_was_run_dropped_or_released(mailbox: int, mails: Mails) -> None:
    for end in (table.run, table.drop, table.release):
        assert table.put(mailbox, mails.at(0)) == OPEN
        assert table.put(mailbox, mails.at(0)) == WAITS
        mail, _ = take(mailbox)
        assert table.put(mailbox, mails.at(0)) == WAITS
        end(mail)
    assert mails.said == [(0, True), (0, False)]
    assert table.put(mailbox, mails.at(0)) == OPEN


def test_what_is_no_mail_of_c_is_refused(mailbox: int, mails: Mails) -> None:
    mails.make(0, priority=-2)
    mails.make(1, flags=4)
    ctypes.memset(mails.at(2), 0, ctypes.sizeof(NativeMail))
    for index in range(3):
        assert table.put(mailbox, mails.at(index)) == INVALID
        assert table.put_all(mailbox, mails.pointers(3, index), 2) == INVALID
    assert table.post(mailbox, POST_FN(), None, 0, 0) == INVALID
    assert table.post(mailbox, mails.fn, None, -2, 0) == INVALID
    assert table.post(mailbox, mails.fn, None, 0, 8) == INVALID
    assert table.waiting(mailbox) == 0
    assert table.put(mailbox, mails.at(3)) == OPEN


@pytest.mark.contract(
    "A native put of many mails takes all of them in order, or claims none.",
    convicts=["native_first_claim_kept"],
)
def test_put_all_takes_all_in_order_or_none(mailbox: int, mails: Mails) -> None:
    table.put(mailbox, mails.at(2))
    assert table.put_all(mailbox, mails.pointers(0, 1, 2, 3), 4) == WAITS
    assert table.put_all(mailbox, mails.pointers(0, 1, 0), 3) == WAITS
    assert table.put_all(mailbox, mails.pointers(5, 4, 3), 3) == OPEN
    assert table.put_all(mailbox, None, 0) == OPEN
    assert [taken(mails, mailbox) for _ in range(5)] == [2, 5, 4, 3, None]
    table.quiesce(mailbox)
    assert table.put_all(mailbox, mails.pointers(0, 1), 2) == QUIESCED
    assert table.put(mailbox, mails.at(0)) == QUIESCED
    assert mails[0].queued == mails[1].queued == 0


def test_a_take_names_the_least_priority_and_what_it_skips(mailbox: int, mails: Mails) -> None:
    for index, (priority, flags) in enumerate([(0, DEFERRABLE), (0, 0), (2, 0), (1, URGENT)]):
        table.put(mailbox, mails.make(index, priority, flags))
    assert taken(mails, mailbox, priority=2) == 2
    assert taken(mails, mailbox) == 3
    assert taken(mails, mailbox, skip=DEFERRABLE) == 1
    assert taken(mails, mailbox, skip=DEFERRABLE) is None
    assert taken(mails, mailbox) == 0


@pytest.mark.contract(
    "A function that native code posts is called once, to run or to let go.",
    convicts=["native_post_released_alone"],
)
def test_what_is_posted_is_called_with_its_argument(mailbox: int) -> None:
    said: list[tuple[int | None, bool]] = []
    fn = POST_FN(lambda arg, run: said.append((arg, run)))
    for arg in range(1, 1_001):
        assert table.post(mailbox, fn, arg, 0, URGENT if arg == 1_000 else 0) == OPEN
    table.drop(take(mailbox)[0])
    table.release(take(mailbox)[0])
    assert table.run_batch(mailbox) == 998
    assert said == [(1_000, False), (1, False), *((arg, True) for arg in range(2, 1_000))]
    table.quiesce(mailbox)
    assert table.post(mailbox, fn, 1, 0, 0) == QUIESCED
    table.close(mailbox)
    assert table.post(mailbox, fn, 1, 0, 0) == CLOSED
    assert len(said) == 1_000


def test_a_batch_does_not_grow(mailbox: int, mails: Mails) -> None:
    assert not table.create_batch(mailbox)
    table.put(mailbox, mails.at(0))
    assert table.create_batch(mailbox)
    table.put(mailbox, mails.at(1))
    assert table.take_from_batch(mailbox) == mails.at(0)
    assert table.take_from_batch(mailbox) is None
    assert table.waiting(mailbox) == 1


def test_a_take_waits_as_long_as_it_is_told(mailbox: int, mails: Mails) -> None:
    begin = time.monotonic()
    assert take(mailbox, timeout=0.05) == (None, OPEN)
    assert time.monotonic() - begin >= 0.05
    # Of another priority: it is not for this take, which goes on waiting.
    table.put(mailbox, mails.make(0, priority=-1))
    with later(table.put, mailbox, mails.at(1)):
        assert take(mailbox, priority=0, timeout=-1.0) == (mails.at(1), OPEN)
    with later(table.quiesce, mailbox):
        assert take(mailbox, priority=0, timeout=60.0) == (None, QUIESCED)
    assert take(mailbox, timeout=-1.0)[0] == mails.at(0)
    assert take(mailbox, timeout=float("nan")) == (None, QUIESCED)
    table.release(mails.at(0))


@pytest.mark.contract(
    "A native consumer that waits without a limit sleeps.", convicts=["native_wait_without_limit_spins"]
)
@needs_looks
def test_a_take_that_waits_without_a_limit_sleeps(mailbox: int, mails: Mails) -> None:
    answers: list[tuple[int | None, int]] = []
    consumer = threading.Thread(target=lambda: answers.append(take(mailbox, timeout=-1.0)))
    consumer.start()
    try:
        assert falls_asleep(consumer)
    finally:
        table.put(mailbox, mails.at(0))
        consumer.join()
    assert answers == [(mails.at(0), OPEN)]
    table.release(mails.at(0))


def test_close_returns_what_was_not_taken_linked(mailbox: int, mails: Mails) -> None:
    table.put_all(mailbox, mails.pointers(0, 1, 2), 3)
    table.create_batch(mailbox)
    table.put(mailbox, mails.make(3, flags=URGENT))
    left = chain(table.close(mailbox))
    assert left == [mails.at(index) for index in (3, 0, 1, 2)]
    assert (table.state(mailbox), table.waiting(mailbox)) == (CLOSED, 0)
    assert table.put(mailbox, mails.at(0)) == WAITS
    for mail in left:
        table.drop(mail)
    assert mails.said == [(3, False), (0, False), (1, False), (2, False)]
    assert table.put(mailbox, mails.at(0)) == CLOSED
    assert (table.close(mailbox), take(mailbox, timeout=-1.0)) == (None, (None, CLOSED))


def test_destroy_drops_what_waits(mails: Mails) -> None:
    mailbox = table.create(LOCK_FREE, 1)
    table.put_all(mailbox, mails.pointers(1, 0), 2)
    table.destroy(mailbox)
    assert mails.said == [(1, False), (0, False)]


# ---- with a TaskMailbox


@pytest.mark.parametrize("call", [table.of, lambda thing: table.begin_consuming(thing, Consumer())])
def test_another_object_is_no_mailbox(call: Callable[[object], int]) -> None:
    with pytest.raises(TypeError, match="mailbox must be a TaskMailbox, not 'abc'"):
        call("abc")


FORK = """
import os
from pillarbox.kernel import TaskMailbox
from tests.kernel.unit.native_table import Consumer, table
mailbox = TaskMailbox()
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for call in (table.of, lambda mailbox: table.begin_consuming(mailbox, Consumer())):
    try:
        call(mailbox)
    except Exception as error:
        print(type(error).__name__, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_child_of_a_fork_gets_no_mailbox_of_its_parent() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FORK], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.returncode) == (["ForkedError", "ForkedError"], 0), done.stderr


@pytest.mark.contract(convicts=["native_flags_lost"])
def test_python_takes_what_native_code_has_put(mails: Mails) -> None:
    mailbox = TaskMailbox()
    target = table.of(mailbox)
    assert table.put_all(target, mails.pointers(0, 1, 2, 3), 4) == OPEN
    assert table.put(target, mails.make(4, priority=3, flags=URGENT)) == OPEN
    mail = mailbox.take()
    assert (mail.priority, mail.urgent) == (3, True)
    mail.run()
    mailbox.try_take().run()
    assert mailbox.try_take_from_batch() is None
    forgotten = mailbox.drain()
    assert len(forgotten) == 3
    assert mails.said == [(4, True), (0, True)]
    del forgotten
    assert sorted(mails.said[2:]) == [(1, False), (2, False), (3, False)]


def test_a_native_put_and_quiesce_call_the_wake_up(mails: Mails, unraisable: list[Any]) -> None:
    mailbox = TaskMailbox()
    target = table.of(mailbox)
    called: list[int] = []
    assert mailbox.arm_wakeup(lambda: called.append(threading.get_ident()))
    thread = threading.Thread(target=table.put, args=(target, mails.at(0)))
    thread.start()
    thread.join()
    assert called == [thread.ident]
    mailbox.run_batch()
    assert mailbox.arm_wakeup(lambda: called.append(1 // 0))
    table.quiesce(target)
    assert [type(error) for error, _ in unraisable] == [ZeroDivisionError]
    assert len(called) == 1


@pytest.mark.contract
def test_mail_of_python_runs_in_a_native_consumer(mails: Mails, unraisable: list[Any]) -> None:
    mailbox, consumer, said = TaskMailbox(), Consumer(), []
    failing = Mail(said.index, "what is not there")
    mailbox.put_all([Mail(said.append, 1), failing, Mail(said.append, 2)])
    target = table.begin_consuming(mailbox, consumer)
    assert table.put(target, take(target)[0]) == INVALID
    assert table.run_batch(target) == 2
    assert said == [2]
    assert [(type(error), where) for error, where in unraisable] == [(ValueError, failing)]
    mailbox.put(failing)
    assert table.run(take(target)[0]) == -1
    table.end_consuming(consumer)


@pytest.mark.contract
def test_a_native_consumer_runs_mail_of_python_by_its_own_run() -> None:
    class Twice(Mail):
        def run(self) -> None:
            super().run()
            super().run()

    mailbox, consumer, said = TaskMailbox(), Consumer(), []
    mailbox.put_all([Twice(said.append, 1), Twice(said.append, 2)])
    target = table.begin_consuming(mailbox, consumer)
    assert table.run(take(target)[0]) == 0
    assert table.run_batch(target) == 1
    assert said == [1, 1, 2, 2]
    table.end_consuming(consumer)


def test_mail_of_python_is_released_when_a_native_consumer_drops_it() -> None:
    mailbox, consumer = TaskMailbox(), Consumer()
    held, watched = Mail(print), []

    class Watched:
        def __del__(self) -> None:
            watched.append(self)

    mailbox.put_all([held, Mail(Watched().__init__), Mail(Watched().__init__), Mail(Watched().__init__)])
    target = table.begin_consuming(mailbox, consumer)
    before = sys.getrefcount(held)
    mail, _ = take(target)
    with pytest.raises(ValueError, match="waits in a mailbox already"):
        mailbox.put(held)
    table.drop(mail)
    assert sys.getrefcount(held) == before - 1
    mailbox.put(held)
    table.release(take(target)[0])
    for mail in chain(table.close(target)):
        table.drop(mail)
    table.end_consuming(consumer)
    assert len(watched) == 3
    assert not mailbox.has_mail()


def test_the_consumer_is_the_mailbox_thread_until_it_gives_it_back(elsewhere: Callable[..., Any]) -> None:
    mailbox, consumer, refused = TaskMailbox(), Consumer(), Consumer()
    mailbox.put(Mail(print))
    mailbox.quiesce()

    def begin() -> tuple[int, bool]:
        return table.begin_consuming(mailbox, consumer), mailbox.is_mailbox_thread

    before = sys.getrefcount(mailbox)
    target, is_owner = elsewhere(begin)
    assert (target, is_owner) == (table.of(mailbox), True)
    assert sys.getrefcount(mailbox) == before + 1
    with pytest.raises(WrongThreadError):
        mailbox.try_take()
    table.create_batch(target)
    # What was fetched is the consumer's.
    with pytest.raises(WrongThreadError):
        table.begin_consuming(mailbox, refused)
    elsewhere(lambda: table.end_consuming(consumer))
    assert sys.getrefcount(mailbox) == before
    assert len(mailbox.close()) == 1


@pytest.mark.contract(convicts=["lent_for_ever"])
def test_a_mailbox_is_lent_to_native_code_until_that_gives_it_back() -> None:
    boxes, consumers = [TaskMailbox(), TaskMailbox()], [Consumer(), Consumer()]

    def lend() -> None:
        for mailbox, consumer in zip(boxes, consumers, strict=True):
            mailbox.adopt()
            table.begin_consuming(mailbox, consumer)
        table.end_consuming(consumers[0])

    owner = threading.Thread(target=lend)
    owner.start()
    owner.join()
    boxes[0].adopt(ended=owner)
    assert boxes[0].is_mailbox_thread
    with pytest.raises(ValueError, match="by now is native code"):
        boxes[1].adopt(ended=owner)


@needs_looks
@pytest.mark.contract(convicts=["adopted_while_parked"])
def test_a_mailbox_whose_consumer_waits_in_a_take_is_not_adopted(
    mails: Mails, elsewhere: Callable[..., Any]
) -> None:
    mailbox = TaskMailbox()
    target = table.of(mailbox)
    consumer = threading.Thread(target=take, args=(target,), kwargs={"timeout": -1.0})
    consumer.start()

    try:
        # Before it waits, another thread may take the mailbox.
        wait_until_asleep(consumer)
        with pytest.raises(WrongThreadError):
            elsewhere(mailbox.adopt)
    finally:
        table.put(target, mails.at(0))
        consumer.join()
    table.release(mails.at(0))


def test_the_collector_does_not_look_for_what_may_come_out_without_the_gil() -> None:
    mailbox = TaskMailbox()
    mailbox.put(Mail(print, mailbox))
    table.of(mailbox)
    assert [thing for thing in gc.get_referents(mailbox) if isinstance(thing, Mail)] == []
    assert len(mailbox.close()) == 1
