"""The executors of mails and default actions: at once, or under a lock that another thread takes too."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pillarbox.mailbox.action_executor import IMMEDIATE, SynchronizedActionExecutor
from pillarbox.mailbox.processor import Controller, MailboxProcessor


class WatchedLock:
    """A reentrant lock that says whether it is held."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.depth = 0
        self.entered = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1
        self.entered += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        self._lock.release()


def test_immediate_calls_at_once() -> None:
    log: list[int] = []
    IMMEDIATE.run(log.append, 1)
    assert IMMEDIATE.run(pow, 2, 3) == 8
    assert log == [1]
    with pytest.raises(ValueError, match="invalid literal"):
        IMMEDIATE.run(int, "x")


def test_synchronized_calls_under_the_lock_and_gives_it_back() -> None:
    lock = WatchedLock()
    executor = SynchronizedActionExecutor(lock)
    assert executor.lock is lock
    assert executor.run(lambda: lock.depth) == 1
    with pytest.raises(ValueError, match="invalid literal"):
        executor.run(int, "x")
    assert (lock.depth, lock.entered) == (0, 2)


def test_a_lock_that_a_yield_would_hang_in_is_refused() -> None:
    with pytest.raises(ValueError, match="lock must be reentrant"):
        SynchronizedActionExecutor(threading.Lock())
    with pytest.raises(TypeError, match="lock must be a reentrant lock.*not None"):
        SynchronizedActionExecutor(None)  # type: ignore[arg-type]


@pytest.mark.contract
def test_each_mail_and_each_default_action_runs_under_the_lock_of_its_processor() -> None:
    lock = WatchedLock()
    held: list[tuple[str, int]] = []

    def see(what: str) -> Callable[..., None]:
        return lambda *_: held.append((what, lock.depth))

    def action(controller: Controller) -> None:
        see("action")()
        executor.execute(see("yielded"))
        executor.execute(see("tried"))
        executor.yield_()
        executor.try_yield()
        controller.all_actions_completed()

    processor = MailboxProcessor(action, action_executor=SynchronizedActionExecutor(lock))
    executor = processor.executor()
    executor.execute(see("mail"))
    processor.run_mailbox_loop()
    executor.execute(see("drained"))
    processor.drain()
    assert held == [("mail", 1), ("action", 1), ("yielded", 2), ("tried", 2), ("drained", 1)]
    assert lock.depth == 0


def test_the_lock_is_free_while_the_loop_waits_for_mail() -> None:
    lock = WatchedLock()
    suspended = threading.Event()

    def action(controller: Controller) -> None:
        controller.suspend_default_action()
        suspended.set()

    processor = MailboxProcessor(action, action_executor=SynchronizedActionExecutor(lock))
    depths: list[int] = []

    def source() -> None:
        suspended.wait(30)
        with lock:
            depths.append(lock.depth)
        processor.executor().execute(processor.all_actions_completed)

    thread = threading.Thread(target=source)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()
    assert depths == [1]


def test_mails_and_another_thread_never_change_the_state_at_the_same_time() -> None:
    lock = threading.RLock()
    executor = SynchronizedActionExecutor(lock)
    state = {"inside": 0, "overlaps": 0, "changes": 0}

    def change() -> None:
        state["inside"] += 1
        state["overlaps"] += state["inside"] > 1
        state["changes"] += 1
        state["inside"] -= 1

    def action(controller: Controller) -> None:
        change()
        if done.is_set():
            controller.all_actions_completed()

    done = threading.Event()
    processor = MailboxProcessor(action, action_executor=executor)

    def source() -> None:
        for _ in range(500):
            executor.run(change)
            processor.executor().execute(change)
        done.set()

    thread = threading.Thread(target=source)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()
    processor.drain()
    assert state["overlaps"] == 0
    assert state["changes"] == 1000 + processor.statistics().default_actions


def test_an_error_gives_the_lock_back_and_ends_the_loop() -> None:
    lock = WatchedLock()
    processor = MailboxProcessor(lambda _: None, action_executor=SynchronizedActionExecutor(lock))
    processor.report_error(LookupError("mail"))
    with pytest.raises(LookupError, match="mail"):
        processor.run_mailbox_loop()
    assert lock.depth == 0
