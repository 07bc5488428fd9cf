"""What the kernel's primitives cost, beside those of the standard library.

The groups are pairs to compare. Every loop is the same Python loop, so the differences are the primitives'.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench.conftest import Chunks
from pillarbox.kernel import BACKENDS, Handover, Mail, OrderedQueue, TaskMailbox, UnorderedQueue

MANY = 1_000
BACKLOG = 10_000


each_backend = pytest.mark.parametrize("backend", BACKENDS)


def nothing() -> None:
    """What the mails of the suites do."""


def mails(count: int = MANY) -> list[Mail]:
    """Mails that do nothing."""
    return [Mail(nothing) for _ in range(count)]


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Has work done by another thread, which waits for it; the work that was asked for is over at the end."""
    work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()

    def run() -> None:
        while (job := work.get()) is not None:
            job()

    thread = threading.Thread(target=run, name="producer")
    thread.start()
    yield work.put
    work.put(None)
    thread.join()


# ---- one mail after the other, one thread


@pytest.mark.benchmark(group="one thread: put and take one")
@each_backend
def test_mailbox_put_and_try_take(chunks: Chunks, backend: str) -> None:
    mailbox, mail = TaskMailbox(backend=backend), Mail(nothing)

    def run() -> None:
        put, take = mailbox.put, mailbox.try_take
        for _ in range(MANY):
            put(mail)
            take()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put and take one")
def test_simple_queue_put_and_get_nowait(chunks: Chunks) -> None:
    simple: queue.SimpleQueue[Mail] = queue.SimpleQueue()
    mail = Mail(nothing)

    def run() -> None:
        put, take = simple.put, simple.get_nowait
        for _ in range(MANY):
            put(mail)
            take()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put and take one")
def test_handover_put_and_try_take(chunks: Chunks) -> None:
    handover, item = Handover(16), object()

    def run() -> None:
        put, take = handover.try_put, handover.try_take
        for _ in range(MANY):
            put(item)
            take()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put and take one")
def test_bounded_queue_put_nowait_and_get_nowait(chunks: Chunks) -> None:
    bounded: queue.Queue[object] = queue.Queue(16)
    item = object()

    def run() -> None:
        put, take = bounded.put_nowait, bounded.get_nowait
        for _ in range(MANY):
            put(item)
            take()

    chunks(run, MANY, rounds=200)


@pytest.mark.benchmark(group="a mail is made")
def test_mail(chunks: Chunks) -> None:
    def run() -> None:
        for _ in range(MANY):
            Mail(nothing)

    chunks(run, MANY)


# ---- many, then all of them


@pytest.mark.benchmark(group="one thread: put and take a thousand")
@each_backend
def test_mailbox_put_batch_and_take_from_it(chunks: Chunks, backend: str) -> None:
    mailbox, some = TaskMailbox(backend=backend), mails()

    def run() -> None:
        put, take = mailbox.put, mailbox.try_take_from_batch
        for mail in some:
            put(mail)
        mailbox.create_batch()
        while take() is not None:
            pass

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put a thousand and call each")
@each_backend
def test_mailbox_put_and_run_batch(chunks: Chunks, backend: str) -> None:
    mailbox, some = TaskMailbox(backend=backend), mails()

    def run() -> None:
        put = mailbox.put
        for mail in some:
            put(mail)
        mailbox.run_batch()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put a thousand and call each")
def test_simple_queue_put_get_and_call(chunks: Chunks) -> None:
    simple: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run() -> None:
        put, take = simple.put, simple.get_nowait
        for _ in range(MANY):
            put(nothing)
        for _ in range(MANY):
            take()()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put and take a thousand")
@each_backend
def test_mailbox_put_all_and_drain(chunks: Chunks, backend: str) -> None:
    mailbox, some = TaskMailbox(backend=backend), mails()

    def run() -> None:
        mailbox.put_all(some)
        mailbox.drain()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put and take a thousand")
def test_simple_queue_put_many_and_get_many(chunks: Chunks) -> None:
    simple: queue.SimpleQueue[Mail] = queue.SimpleQueue()
    some = mails()

    def run() -> None:
        put, take = simple.put, simple.get_nowait
        for mail in some:
            put(mail)
        for _ in some:
            take()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: put and take a thousand")
def test_handover_put_many_and_take_all(chunks: Chunks) -> None:
    handover, some = Handover(MANY), mails()

    def run() -> None:
        put = handover.try_put
        for mail in some:
            put(mail)
        handover.take_all()

    chunks(run, MANY)


@pytest.mark.benchmark(group="one thread: take one of higher priority over 10,000 others")
@each_backend
def test_mailbox_take_over_backlog(chunks: Chunks, backend: str) -> None:
    mailbox, mail = TaskMailbox(backend=backend), Mail(nothing, priority=1)
    mailbox.put_all(mails(BACKLOG))

    def run() -> None:
        put, take = mailbox.put, mailbox.try_take
        for _ in range(10):
            put(mail)
            take(1)

    chunks(run, 10, rounds=100)
    mailbox.close()


# ---- between two threads


@pytest.mark.benchmark(group="two threads: a thousand from one to the other")
@each_backend
def test_mailbox_take_from_other_thread(
    chunks: Chunks, backend: str, elsewhere: Callable[[Callable[[], Any]], None]
) -> None:
    mailbox, some = TaskMailbox(backend=backend), mails()

    def produce() -> None:
        put = mailbox.put
        for mail in some:
            put(mail)

    def run() -> None:
        take = mailbox.take
        elsewhere(produce)
        for _ in range(MANY):
            take()

    chunks(run, MANY, rounds=200)


@pytest.mark.benchmark(group="two threads: a thousand from one to the other")
def test_simple_queue_get_from_other_thread(
    chunks: Chunks, elsewhere: Callable[[Callable[[], Any]], None]
) -> None:
    simple: queue.SimpleQueue[Mail] = queue.SimpleQueue()
    some = mails()

    def produce() -> None:
        put = simple.put
        for mail in some:
            put(mail)

    def run() -> None:
        take = simple.get
        elsewhere(produce)
        for _ in range(MANY):
            take()

    chunks(run, MANY, rounds=200)


@pytest.mark.benchmark(group="two threads: there and back, both asleep in between")
@each_backend
def test_mailbox_round_trip(
    chunks: Chunks, backend: str, elsewhere: Callable[[Callable[[], Any]], None]
) -> None:
    here, there = TaskMailbox(backend=backend), Handover(1)
    mail, trips = Mail(nothing), 50

    def answer() -> None:
        for _ in range(trips):
            here.put(there.take())

    def run() -> None:
        elsewhere(answer)
        for _ in range(trips):
            there.put(mail)
            here.take()

    chunks(run, trips, rounds=100)


@pytest.mark.benchmark(group="two threads: there and back, both asleep in between")
def test_simple_queue_round_trip(chunks: Chunks, elsewhere: Callable[[Callable[[], Any]], None]) -> None:
    here: queue.SimpleQueue[Mail] = queue.SimpleQueue()
    there: queue.SimpleQueue[Mail] = queue.SimpleQueue()
    mail, trips = Mail(nothing), 50

    def answer() -> None:
        for _ in range(trips):
            here.put(there.get())

    def run() -> None:
        elsewhere(answer)
        for _ in range(trips):
            there.put(mail)
            here.get()

    chunks(run, trips, rounds=100)


# ---- result queues


@pytest.mark.benchmark(group="result queues: put, complete, emit")
@pytest.mark.parametrize("make", [OrderedQueue, UnorderedQueue], ids=["ordered", "unordered"])
def test_queue_one_after_the_other(make: type[OrderedQueue | UnorderedQueue], chunks: Chunks) -> None:
    results, element = make(2048), object()

    def run() -> None:
        put, complete, emit = results.put, results.complete, results.emit
        for _ in range(MANY):
            complete(put(element), None)
            emit()

    chunks(run, MANY)


@pytest.mark.benchmark(group="result queues: put, complete, emit")
@pytest.mark.parametrize("make", [OrderedQueue, UnorderedQueue], ids=["ordered", "unordered"])
def test_queue_completed_backwards_and_emitted_together(
    make: type[OrderedQueue | UnorderedQueue], chunks: Chunks
) -> None:
    results, element = make(2048), object()

    def run() -> None:
        put, complete = results.put, results.complete
        handles = [put(element) for _ in range(MANY)]
        for handle in reversed(handles):
            complete(handle, None)
        results.emit_many()

    chunks(run, MANY)


@pytest.mark.benchmark(group="result queues: put, complete, emit")
def test_unordered_queue_with_a_watermark_every_ten(chunks: Chunks) -> None:
    results, element = UnorderedQueue(2048), object()

    def run() -> None:
        put, complete = results.put, results.complete
        handles = []
        for number in range(MANY):
            handles.append(put(element))
            if number % 10 == 9:
                results.put_watermark(number)
        for handle in handles:
            complete(handle, None)
        results.emit_many()

    chunks(run, MANY)
