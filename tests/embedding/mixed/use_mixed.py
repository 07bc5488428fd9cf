"""Uses the module of this project: native and Python producers, and a consumer of either kind.

Whoever consumes, nothing is lost: what was accepted has run, or was dropped, once.
"""

import threading
from collections.abc import Callable

import mixed

from pillarbox.kernel import BACKENDS, Mail, MailboxClosedError, OrderedQueue, TaskMailbox, UnorderedQueue

NATIVE_THREADS, PYTHON_THREADS, EACH = 3, 2, 20_000


class Producers:
    """Threads that put into a mailbox, native and of Python. What they say is for after `join`."""

    def __init__(self, mailbox: TaskMailbox) -> None:
        self.mailbox = mailbox
        self.native = 0
        self.python: list[object] = []
        self.ran: list[object] = []
        self.before: tuple[int, int] = mixed.counts()
        self.threads = [threading.Thread(target=self.put) for _ in range(PYTHON_THREADS)]
        self.threads.append(threading.Thread(target=self.put_natively))
        for thread in self.threads:
            thread.start()

    def put(self) -> None:
        for _ in range(EACH):
            token = object()
            try:
                self.mailbox.put(Mail(self.ran.append, token))
            except MailboxClosedError:
                return
            self.python.append(token)

    def put_natively(self) -> None:
        self.native = mixed.produce(self.mailbox, NATIVE_THREADS, EACH)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()

    def join_and_quiesce(self) -> None:
        self.join()
        self.mailbox.quiesce()

    def native_counts(self) -> tuple[int, int]:
        """The numbers of native mails that have run and were dropped since the beginning."""
        ran, dropped = mixed.counts()
        return ran - self.before[0], dropped - self.before[1]


def all_have_run(producers: Producers) -> None:
    assert producers.native == NATIVE_THREADS * EACH
    assert producers.native_counts() == (producers.native, 0), producers.native_counts()
    assert len(producers.python) == PYTHON_THREADS * EACH
    assert sorted(map(id, producers.ran)) == sorted(map(id, producers.python))


def by_batches(mailbox: TaskMailbox) -> int:
    ran = 0
    try:
        while True:
            mailbox.take().run()
            ran += 1 + mailbox.run_batch()
    except MailboxClosedError:
        return ran


def by_takes(mailbox: TaskMailbox) -> int:
    ran = 0
    try:
        while True:
            mailbox.take(timeout=60.0).run()
            ran += 1
    except MailboxClosedError:
        return ran


def natively(mailbox: TaskMailbox) -> int:
    assert mailbox.is_mailbox_thread
    ran: int = mixed.consume(mailbox)
    # It was lent: this thread is the mailbox thread again.
    assert mailbox.is_mailbox_thread
    return ran


def consumed_by(consume: Callable[[TaskMailbox], int], backend: str) -> None:
    mailbox = TaskMailbox(backend=backend)
    producers = Producers(mailbox)
    ender = threading.Thread(target=producers.join_and_quiesce)
    ender.start()
    assert consume(mailbox) == (NATIVE_THREADS + PYTHON_THREADS) * EACH
    ender.join()
    all_have_run(producers)
    assert mailbox.close() == []


def drained_and_closed(backend: str) -> None:
    """Some are drained and run, some are returned by close and forgotten: those are dropped."""
    mailbox = TaskMailbox(backend=backend)
    producers = Producers(mailbox)
    mails: list[Mail] = []
    while len(mails) < 2_000:
        mails += mailbox.drain()
    left = mailbox.close()
    producers.join()
    for mail in mails:
        mail.run()
    assert len(mails) + len(left) == producers.native + len(producers.python)
    ran = producers.native_counts()[0]
    assert ran + len(producers.ran) == len(mails)
    del mail, mails, left
    assert sum(producers.native_counts()) == producers.native


def dropped_without_close(backend: str) -> None:
    mailbox = TaskMailbox(backend=backend)
    producers = Producers(mailbox)
    producers.join()
    del mailbox
    producers.mailbox = TaskMailbox()
    assert producers.native_counts() == (0, NATIVE_THREADS * EACH)


def completed_natively(queue_type: type[OrderedQueue | UnorderedQueue]) -> None:
    """Entries of Python, completed by native threads: each once, with its own result."""
    queue = queue_type(1000)
    for _ in range(20):
        handles = tuple(queue.put(number) for number in range(1000))
        results = tuple(f"result {number}" for number in range(1000))
        assert mixed.complete(queue, handles, results) == 1000
        emitted = dict(queue.emit_many())
        assert emitted == dict(enumerate(results))
    handles = tuple(queue.put(number) for number in range(10))
    assert queue.close() == list(range(10))
    assert mixed.complete(queue, handles, tuple(map(str, handles))) == 0


for queue_type in (OrderedQueue, UnorderedQueue):
    completed_natively(queue_type)
for backend in BACKENDS:
    consumed_by(by_batches, backend)
    consumed_by(by_takes, backend)
    consumed_by(natively, backend)
    drained_and_closed(backend)
    dropped_without_close(backend)
print("mixed: done")
