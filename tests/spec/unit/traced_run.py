"""A mailbox at work among Python threads; prints the trace. Run with a traced build on the path.

`traced_run.py lock-free | mutex PRODUCERS OPERATIONS SEED`
"""

import ctypes
import random
import sys
import threading
import time

import pillarbox.kernel.mailbox
from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox

URGENT_BURST = 4
BACKLOG = 20


def nothing() -> None:
    pass


def produce(
    mailbox: TaskMailbox, start: threading.Barrier, operations: int, quiesces: bool, seed: int
) -> None:
    numbers = random.Random(seed)
    start.wait()

    def mail() -> Mail:
        urgent, deferrable = numbers.random() < 0.2, numbers.random() < 0.2
        return Mail(nothing, priority=numbers.randrange(2), urgent=urgent, deferrable=deferrable)

    for operation in range(operations):
        if quiesces and operation == operations - operations // 20:
            mailbox.quiesce()
        if numbers.random() < 0.1:
            try:
                mailbox.put_all([mail() for _ in range(numbers.randrange(1, 4))])
            except MailboxClosedError:
                assert mailbox.state.name != "OPEN"
        else:
            mailbox.try_put(mail())
        # Nobody runs far ahead of the others.
        while len(mailbox) > BACKLOG:
            time.sleep(0)


def consume(mailbox: TaskMailbox, seed: int) -> None:
    numbers = random.Random(seed)
    while mailbox.state.name == "OPEN":
        what = numbers.randrange(10)
        if what == 0:
            mailbox.create_batch()
        elif what == 1:
            mailbox.try_take_from_batch()
        elif what == 2 and numbers.random() < 0.2:
            mailbox.drain()
        elif what == 3:
            mailbox.try_take(1)
        elif what == 4:
            mailbox.try_take(skip_deferrable=True)
        else:
            try:
                mailbox.take(timeout=0.002)
            except MailboxClosedError:
                break
    mailbox.try_take()
    mailbox.close()


def main() -> None:
    backend, producers, operations, seed = sys.argv[1], *map(int, sys.argv[2:])
    # Threads take turns often, in the middle of things.
    sys.setswitchinterval(1e-5)
    mailbox = TaskMailbox(urgent_burst=URGENT_BURST, backend=backend)
    start = threading.Barrier(producers + 1)
    threads = [
        threading.Thread(target=produce, args=(mailbox, start, operations, number == 0, seed + 1 + number))
        for number in range(producers)
    ]
    for thread in threads:
        thread.start()
    start.wait()
    consume(mailbox, seed)
    for thread in threads:
        thread.join()
    traced = ctypes.CDLL(pillarbox.kernel.mailbox.__file__)
    traced.pillarbox_trace_take.restype = ctypes.c_void_p
    text = traced.pillarbox_trace_take()
    print(ctypes.string_at(text).decode(), end="")
    libc = ctypes.CDLL(None)
    libc.free(ctypes.c_void_p(text))


if __name__ == "__main__":
    main()
