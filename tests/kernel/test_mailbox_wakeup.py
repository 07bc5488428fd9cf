"""The one-shot wake-up of a mailbox thread that sleeps elsewhere than in take."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import Mail, TaskMailbox

pytestmark = pytest.mark.usefixtures("each_backend")


def nothing() -> None:
    pass


WAKERS: dict[str, Callable[[TaskMailbox], Any]] = {
    "put": lambda mailbox: mailbox.put(Mail(nothing)),
    "try_put": lambda mailbox: mailbox.try_put(Mail(nothing)),
    "put_all": lambda mailbox: mailbox.put_all([Mail(nothing), Mail(nothing)]),
    "quiesce": lambda mailbox: mailbox.quiesce(),
}


@pytest.mark.contract(convicts=["armed_stays", "mutex_armed_stays"])
@pytest.mark.parametrize("waker", WAKERS)
def test_the_next_event_calls_the_wakeup_once_in_its_own_thread(
    waker: str, elsewhere: Callable[..., Any]
) -> None:
    mailbox, calls = TaskMailbox(), list[str]()
    assert mailbox.arm_wakeup(lambda: calls.append(threading.current_thread().name)) is True
    elsewhere(lambda: WAKERS[waker](mailbox))
    assert calls == ["elsewhere"]
    mailbox.try_put(Mail(nothing))
    mailbox.quiesce()
    assert calls == ["elsewhere"]


def test_the_mail_is_in_when_the_wakeup_is_called() -> None:
    mailbox, mail, taken = TaskMailbox(), Mail(nothing), list[object]()
    mailbox.arm_wakeup(lambda: taken.append(mailbox.try_take()))
    mailbox.put(mail)
    assert taken == [mail]


def test_the_wakeup_may_arm_again_and_put() -> None:
    mailbox, calls = TaskMailbox(), list[int]()

    def again() -> None:
        calls.append(len(calls))
        mailbox.drain()
        assert mailbox.arm_wakeup(again)
        if len(calls) < 3:
            mailbox.put(Mail(nothing))

    mailbox.arm_wakeup(again)
    mailbox.put(Mail(nothing))
    assert calls == [0, 1, 2]


@pytest.mark.contract(convicts=["arm_without_look"])
@pytest.mark.parametrize("where", ["arrived", "batch", "backlog", "urgent"])
def test_nothing_is_armed_while_a_mail_waits(where: str) -> None:
    mailbox, calls = TaskMailbox(), list[int]()
    mailbox.put(Mail(nothing, urgent=where == "urgent"))
    if where == "batch":
        mailbox.create_batch()
    elif where in ("backlog", "urgent"):
        assert mailbox.try_take(9) is None
    assert mailbox.arm_wakeup(lambda: calls.append(1)) is False
    mailbox.put(Mail(nothing))
    assert calls == []


@pytest.mark.parametrize("end", ["quiesce", "close"])
def test_nothing_is_armed_when_the_mailbox_is_not_open(end: str) -> None:
    mailbox = TaskMailbox()
    getattr(mailbox, end)()
    assert mailbox.arm_wakeup(nothing) is False


def test_arming_again_replaces_the_wakeup() -> None:
    mailbox, calls = TaskMailbox(), list[str]()
    mailbox.arm_wakeup(lambda: calls.append("first"))
    mailbox.arm_wakeup(lambda: calls.append("second"))
    mailbox.put(Mail(nothing))
    assert calls == ["second"]


def test_a_take_leaves_the_wakeup_armed_and_close_drops_it() -> None:
    mailbox, calls = TaskMailbox(), list[int]()
    mailbox.arm_wakeup(lambda: calls.append(1))
    assert mailbox.take(timeout=0) is None
    assert mailbox.close() == []
    mailbox.quiesce()
    assert calls == []


@pytest.mark.contract
def test_a_wakeup_that_raises_does_not_make_the_put_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox, seen = TaskMailbox(), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lambda info: seen.append((info.exc_type, info.object)))

    def fail() -> None:
        raise ZeroDivisionError

    mailbox.arm_wakeup(fail)
    mailbox.put(Mail(nothing))
    assert seen == [(ZeroDivisionError, fail)]
    assert len(mailbox) == 1


def test_a_wakeup_is_released_when_it_was_called_replaced_closed_or_forgotten() -> None:
    class Wakeup:
        def __call__(self) -> None:
            pass

    for end in ("put", "replace", "close", "forget"):
        mailbox, wakeup = TaskMailbox(), Wakeup()
        gone = weakref.ref(wakeup)
        mailbox.arm_wakeup(wakeup)
        del wakeup
        gc.collect()
        assert gone() is not None
        if end == "put":
            mailbox.put(Mail(nothing))
        elif end == "replace":
            mailbox.arm_wakeup(nothing)
        elif end == "close":
            mailbox.close()
        del mailbox
        assert gone() is None, end


@pytest.mark.contract
def test_no_wakeup_is_lost_between_producers_and_an_event_loop() -> None:
    producers, each = 3, 2000

    async def consume() -> int:
        loop, mailbox = asyncio.get_running_loop(), TaskMailbox()
        awake = asyncio.Event()

        def produce() -> None:
            for _ in range(each):
                mailbox.put(Mail(nothing))

        threads = [threading.Thread(target=produce) for _ in range(producers)]
        for thread in threads:
            thread.start()
        taken = 0
        while taken < producers * each:
            awake.clear()
            if mailbox.arm_wakeup(lambda: loop.call_soon_threadsafe(awake.set)):
                await asyncio.wait_for(awake.wait(), 30)
            taken += len(mailbox.drain())
        for thread in threads:
            thread.join()
        return taken

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert asyncio.run(consume()) == producers * each
    finally:
        sys.setswitchinterval(before)


@pytest.mark.contract(convicts=["interrupt_swallowed"])
def test_a_ctrl_c_inside_a_wakeup_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    mailbox = TaskMailbox()
    assert mailbox.arm_wakeup(interrupted)

    def put_and_wait() -> None:
        mailbox.put(Mail(print))
        # Signals are looked for between two lines, and by every wait.
        mailbox.take(1, timeout=30)

    with pytest.raises(KeyboardInterrupt):
        put_and_wait()
    assert len(mailbox) == 1


@pytest.mark.contract(
    "A wake-up that is armed outlives a take that waits and finds nothing.", convicts=["fetch_disarms"]
)
def test_a_wakeup_that_is_armed_outlives_a_take_that_finds_nothing() -> None:
    mailbox, calls = TaskMailbox(), list[int]()
    assert mailbox.arm_wakeup(lambda: calls.append(1))
    # Long enough that a thread that waits for its turn still comes to sleep.
    assert mailbox.take(timeout=0.2) is None
    mailbox.put(Mail(nothing))
    assert calls == [1]
