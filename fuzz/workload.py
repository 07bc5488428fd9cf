"""Real threads at a mailbox, recorded: three producers, one consumer, one that quiesces.

Called by the fuzzer and by the tests of histories. Starts threads of its own; the calling thread is the
consumer.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox
from pillarbox.testing.linearizability import Event, Recorder
from pillarbox.testing.models import MailboxModel

BURST = 4
PRODUCERS = 3


def nothing() -> None:
    """Do nothing: the body of the mails."""


@contextmanager
def short_switches() -> Iterator[None]:
    """Let threads interleave finely."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def record(backend: str, seed: int = 1, operations: int = 300, pause: bool = True) -> list[Event]:
    """The history of nine tenths of `operations` puts by each producer, then of more until quiesce has come.

    Whatever the scheduler does, every producer is refused once at least, after quiesce has returned.
    seed: of every choice but the scheduler's. pause: let operations overlap, see `Recorder`.
    """
    chance = random.Random(seed)

    def let_others_run() -> None:
        # Longer than nothing: without a GIL, or on a busy machine, nobody else would run.
        if chance.random() < 0.3:
            time.sleep(1e-6)

    box = Recorder(
        TaskMailbox(urgent_burst=BURST, backend=backend),
        MailboxModel,
        pause=let_others_run if pause else None,
    )
    together = threading.Barrier(PRODUCERS + 1)
    late = threading.Barrier(PRODUCERS + 1)
    quiesced = threading.Event()

    def quiesce() -> None:
        late.wait()
        box.quiesce()
        quiesced.set()

    def producer(number: int) -> Callable[[], None]:
        own = random.Random(seed * 10 + number)

        def run() -> None:
            together.wait()
            produce(box, own, operations - operations // 10)
            late.wait()
            produce(box, own, operations // 10)
            quiesced.wait()
            produce(box, own, 1)

        return run

    threads = [threading.Thread(target=producer(n), name=f"producer {n}") for n in range(PRODUCERS)]
    threads.append(threading.Thread(target=quiesce, name="quiescer"))
    for thread in threads:
        thread.start()
    together.wait()
    consume(box, chance)
    for thread in threads:
        thread.join()
    return box.events()


def some_mail(chance: random.Random) -> Mail:
    """A mail, most often an ordinary one."""
    return Mail(
        nothing,
        priority=chance.choice([0, 0, 0, 1]),
        urgent=chance.random() < 0.15,
        deferrable=chance.random() < 0.2,
    )


def produce(box: Recorder, chance: random.Random, operations: int) -> None:
    """Put so many times, in all three ways, until the mailbox refuses."""
    try:
        for _ in range(operations):
            way = chance.random()
            if way < 0.1:
                box.put_all([some_mail(chance) for _ in range(chance.randrange(1, 4))])
            elif way < 0.2:
                if not box.try_put(some_mail(chance)):
                    return
            else:
                box.put(some_mail(chance))
    except MailboxClosedError:
        pass


def consume(box: Recorder, chance: random.Random) -> None:
    """Take in all ways until the mailbox says that no more can come, then close it."""
    try:
        while True:
            way = chance.random()
            if way < 0.5:
                box.take()
            elif way < 0.65:
                box.try_take(chance.choice([-1, -1, 1]), skip_deferrable=chance.random() < 0.2)
            elif way < 0.75:
                box.create_batch()
            elif way < 0.97:
                box.try_take_from_batch()
            elif way < 0.98:
                box.drain()
            else:
                box.has_mail()
    except MailboxClosedError:
        box.close()
