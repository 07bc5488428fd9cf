"""The fair lock: first come, first served; reentrant; nobody is starved and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.task.fair_lock import FairLock
from tests.task.unit.sources import LONG, Queue


def in_thread(fn: Callable[[], object], name: str = "other") -> threading.Thread:
    thread = threading.Thread(target=fn, name=name)
    thread.start()
    return thread


def test_it_excludes_other_threads() -> None:
    lock = FairLock()
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(2000):
            with lock:
                seen = count
                count = seen + 1

    threads = [in_thread(work) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert count == 8000
    assert not lock.is_held


@pytest.mark.contract("Threads get the fair lock in the order in which they came.")
def test_threads_get_it_in_the_order_in_which_they_came() -> None:
    lock = FairLock()
    queue = Queue(lock)
    order: list[int] = []

    def take(number: int) -> None:
        with lock:
            order.append(number)

    threads = []
    with lock:
        for number in range(6):
            threads.append(in_thread(lambda number=number: take(number)))
            queue.wait_for_next()
    for thread in threads:
        thread.join()
    assert order == list(range(6))


def test_a_loop_that_takes_it_again_at_once_lets_another_in_after_one_turn() -> None:
    lock = FairLock()
    queue = Queue(lock)
    log: list[str] = []

    def loop(name: str) -> None:
        for _ in range(100):
            with lock:
                log.append(name)
                # The other one stands in the queue when this turn ends, at which this loop wants another.
                if len(log) < 200:
                    queue.wait_for_next()

    with lock:
        threads = [in_thread(lambda name=name: loop(name)) for name in ("task", "source")]
        queue.wait_for_next()
    for thread in threads:
        thread.join()
    first = log[0]
    assert log == [first, "source" if first == "task" else "task"] * 100


def test_the_thread_that_holds_it_takes_it_again() -> None:
    lock = FairLock()
    taken: list[bool] = []
    with lock:
        with lock:
            assert lock.is_held
        in_thread(lambda: taken.append(lock.acquire(0))).join()
        assert lock.is_held
    in_thread(lambda: taken.append(lock.acquire(0))).join()
    assert taken == [False, True]


def test_only_the_thread_that_holds_it_gives_it_back() -> None:
    lock = FairLock()
    with pytest.raises(RuntimeError, match="does not hold"):
        lock.release()
    with lock:
        caught: list[str] = []

        def intrude() -> None:
            for call in (lock.release, lock.give_way):
                with pytest.raises(RuntimeError, match="does not hold") as error:
                    call()
                caught.append(str(error.value))

        in_thread(intrude).join()
        assert lock.is_held
    assert "release()" in caught[0]
    assert "give_way()" in caught[1]


def test_a_wait_that_times_out_leaves_the_queue() -> None:
    lock = FairLock()
    queue = Queue(lock)
    order: list[str] = []
    with lock:
        in_thread(lambda: order.append(f"timed out {lock.acquire(0.001)}")).join()
        assert lock.waiting == 0

        def second() -> None:
            with lock:
                order.append("second")

        queue.wait_for_next()
        thread = in_thread(second)
        queue.wait_for_next()
    thread.join()
    assert order == ["timed out False", "second"]


@pytest.mark.parametrize("granted", [False, True])
def test_a_wait_that_is_interrupted_leaves_the_lock_to_the_next(
    granted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pillarbox.task import fair_lock

    lock = FairLock()
    queue = Queue(lock)
    released = threading.Event()

    class Interrupted:
        """A waiter's lock whose wait ends with Ctrl-C, before its turn or in the moment of it."""

        def acquire(self, timeout: float) -> bool:
            if granted:
                assert released.wait(LONG)
            raise KeyboardInterrupt

        def release(self) -> None:
            released.set()

    class Waiter(fair_lock._Waiter):
        def __init__(self, ident: int, depth: int) -> None:
            super().__init__(ident, depth)
            self.granted = Interrupted()  # type: ignore[assignment]

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()

    with lock:
        monkeypatch.setattr(fair_lock, "_Waiter", Waiter)
        thread = in_thread(interrupted)
        if granted:
            queue.wait_for_next()
        else:
            thread.join()
            assert lock.waiting == 0
    thread.join()
    monkeypatch.undo()
    assert lock.acquire(0)


def test_give_way_lets_all_who_wait_in_first_and_then_holds_it_as_often_as_before() -> None:
    lock = FairLock()
    queue = Queue(lock)
    order: list[str] = []

    def take(name: str) -> None:
        with lock:
            order.append(name)

    with lock, lock:
        assert not lock.give_way()
        threads = []
        for name in "ab":
            threads.append(in_thread(lambda name=name: take(name)))
            queue.wait_for_next()
        assert lock.give_way()
        order.append("back")
        assert lock.is_held
    assert not lock.is_held
    for thread in threads:
        thread.join()
    assert order == ["a", "b", "back"]


def test_given_up_leaves_the_lock_free_meanwhile_also_if_the_block_raises() -> None:
    lock = FairLock()
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(0))
        lock.release()

    def give_up_and_fail() -> None:
        with lock.given_up():
            assert not lock.is_held
            in_thread(take).join()
            raise LookupError

    with lock, lock:
        with pytest.raises(LookupError):
            give_up_and_fail()
        assert lock.is_held
    with lock.given_up():
        in_thread(take).join()
    assert taken == [True, True]
    assert not lock.is_held


def test_revoking_hands_the_lock_to_the_next_and_the_thread_cannot_give_it_back() -> None:
    lock = FairLock()
    held, go_on = threading.Event(), threading.Event()
    caught: list[Any] = []

    def hold() -> None:
        lock.acquire()
        held.set()
        assert go_on.wait(LONG)
        with pytest.raises(RuntimeError, match="does not hold"):
            lock.release()
        caught.append("could not")

    thread = in_thread(hold)
    assert held.wait(LONG)
    ident = thread.ident
    assert ident is not None
    assert not lock.acquire(0)
    assert lock.revoke(ident)
    assert not lock.revoke(ident)
    with lock:
        go_on.set()
        thread.join()
        assert lock.is_held
    assert caught == ["could not"]


@pytest.mark.parametrize(
    ("timeout", "error"), [(-1, ValueError), ("1", TypeError), (float("nan"), ValueError)]
)
def test_a_bad_timeout_is_named_with_its_value(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"timeout={timeout!r}"):
        FairLock().acquire(timeout)
