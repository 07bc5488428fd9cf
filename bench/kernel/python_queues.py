"""Measures queues of Python, ours among them: `python -m bench.kernel.python_queues WORK KIND [NUMBER]`.

The workloads have the names of `bench/native/chunks.cpp`; `bench.chunks` asks for a chunk at a time. For the
main thread of the child. Objects and mails are made beforehand.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple

from bench.python_chunks import nothing, resident
from bench.serve import ROUND, Work, serve
from pillarbox.kernel import Deadlines, Handover, Mail, TaskMailbox
from pillarbox.mailbox.processor import MailboxProcessor


class Queue(NamedTuple):
    """The functions of a queue with which a thread puts, takes without waiting, and takes."""

    put: Callable[[Any], Any]
    try_take: Callable[[], Any]
    take: Callable[[], Any]


def new() -> Mail:
    """Build an element, the same in every queue, so that all have as much memory to touch."""
    return Mail(nothing)


def janus_queue(most: int = 0) -> Any:
    """A queue of janus, which must be made within a loop; that of this process runs only for `loop` works."""
    import janus

    async def make() -> Any:
        return janus.Queue(most)

    return asyncio.new_event_loop().run_until_complete(make())


def culsans_queue(most: int = 0) -> Any:
    import culsans

    return culsans.Queue(most)


def aiologic_queue(most: int = 0) -> Any:
    import aiologic

    return aiologic.Queue(most) if most else aiologic.SimpleQueue()


def opened(kind: str, most: int = 0) -> Queue:
    """A queue of this kind, of at most `most` elements (0: any number), whose consumer is this thread."""
    if kind == "pillarbox" and most:
        handover = Handover(most, most * 100)
        return Queue(partial(handover.put, nbytes=100), handover.take_all, handover.take)
    if kind == "pillarbox":
        mailbox = TaskMailbox()
        return Queue(mailbox.put, mailbox.try_take, mailbox.take)
    if kind == "SimpleQueue":
        simple: queue.SimpleQueue[Any] = queue.SimpleQueue()
        return Queue(simple.put, simple.get_nowait, simple.get)
    if kind == "queue.Queue":
        plain: queue.Queue[Any] = queue.Queue(most)
        return Queue(plain.put, plain.get_nowait, plain.get)
    if kind == "asyncio.Queue":
        ours: asyncio.Queue[Any] = asyncio.Queue()
        return Queue(ours.put_nowait, ours.get_nowait, ours.get_nowait)
    if kind == "aiologic":
        logic = aiologic_queue(most)
        return Queue(logic.green_put, lambda: logic.green_get(blocking=False), logic.green_get)
    mixed = {"janus": janus_queue, "culsans": culsans_queue}[kind](most).sync_q
    return Queue(mixed.put, mixed.get_nowait, mixed.get)


def single(kind: str, _: int) -> Work:
    """Put one, take it without waiting; one thread."""
    put, take, _ = opened(kind)
    element: Any = new()

    def work(operations: int) -> int:
        nonlocal element
        one = element
        begin = perf_counter_ns()
        for _ in range(operations):
            put(one)
            one = take()
        time = perf_counter_ns() - begin
        element = one
        return time

    return work


def batch(kind: str, _: int) -> Work:
    """Put a thousand, take them; one thread."""
    put, take, _ = opened(kind)
    elements = [new() for _ in range(ROUND)]

    def work(operations: int) -> int:
        begin = perf_counter_ns()
        for _ in range(operations // ROUND):
            for element in elements:
                put(element)
            for _ in elements:
                take()
        return perf_counter_ns() - begin

    return work


class Threads:
    """Producers that do their share whenever they are asked."""

    def __init__(self, count: int, produce: Callable[[int, int], None]) -> None:
        self._produce = produce
        self._begun = [0] * count
        self._gates: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(count)]
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._run, args=(number,), daemon=True).start()

    def _run(self, number: int) -> None:
        while True:
            share = self._gates[number].get()
            self._begun[number] = perf_counter_ns()
            self._produce(number, share)
            self._done.put(None)

    def begin(self, share: int) -> None:
        """Have each of them do so much."""
        for gate in self._gates:
            gate.put(share)

    def since(self, end: int) -> int:
        """Nanoseconds from the first put to `end`, when all are done."""
        for _ in self._gates:
            self._done.get()
        return end - min(self._begun)


def producers(kind: str, count: int) -> Work:
    """So many threads put as fast as they can, this one takes each. From the first put to the last take."""
    put, _, take = opened(kind)
    elements: list[list[Any]] = [[] for _ in range(count)]

    def produce(number: int, share: int) -> None:
        for element in elements[number][:share]:
            put(element)

    threads = Threads(count, produce)

    def work(operations: int) -> int:
        share = operations // count
        for mine in elements:
            mine += [new() for _ in range(share - len(mine))]
        threads.begin(share)
        for _ in range(share * count):
            take()
        return threads.since(perf_counter_ns())

    return work


def chains(kind: str, together: int) -> Work:
    """A thread puts so many at a time, this one takes all there are and runs them."""
    put, _, take = opened(kind)
    mailbox = TaskMailbox()
    put_all: Callable[[list[Any]], None] = mailbox.put_all
    elements: list[Any] = []

    def produce(_: int, share: int) -> None:
        for first in range(0, share, together):
            if kind == "pillarbox":
                put_all(elements[first : first + together])
            else:
                put(elements[first : first + together])

    threads = Threads(1, produce)

    def work(operations: int) -> int:
        if len(elements) != operations:
            elements[:] = [Mail(nothing) for _ in range(operations)]
        threads.begin(operations)
        left = operations
        while left > 0:
            if kind == "pillarbox":
                mail = mailbox.take()
                assert mail is not None
                mail.run()
                left -= 1 + mailbox.run_batch()
            else:
                some = take()
                for element in some:
                    element.run()
                left -= len(some)
        return threads.since(perf_counter_ns())

    return work


def there_and_back(kind: str, percentage: int) -> Work:
    """One goes to another thread, which sends it back. What so many percent of the journeys take at most."""
    here = opened(kind)
    made = threading.Event()
    there: list[Queue] = []

    def send_back() -> None:
        there.append(opened(kind))
        made.set()
        put, take = here.put, there[0].take
        while True:
            put(take())

    threading.Thread(target=send_back, daemon=True).start()
    made.wait()
    element = new()

    def work(operations: int) -> int:
        put, take, times = there[0].put, here.take, []
        for _ in range(operations):
            begin = perf_counter_ns()
            put(element)
            take()
            times.append(perf_counter_ns() - begin)
        times.sort()
        return times[(operations - 1) * percentage // 100] * operations

    return work


def handover(kind: str, most: int) -> Work:
    """A thread puts, this one takes; at most so many may wait, ours also of bytes."""
    put, take_all, take = opened(kind, most)

    def produce(_: int, share: int) -> None:
        for number in range(share):
            put(number)

    threads = Threads(1, produce)

    def work(operations: int) -> int:
        threads.begin(operations)
        if kind == "pillarbox":
            left = operations
            while left > 0:
                take()
                left -= 1 + len(take_all())
        else:
            for _ in range(operations):
                take()
        return threads.since(perf_counter_ns())

    return work


def processor(kind: str, _: int) -> Work:
    """A thousand that wait are taken and run: by the loop of a task, or by a loop of their own."""
    if kind == "pillarbox":
        loop = MailboxProcessor(lambda _: None, latency_interval=None)
        mails = [Mail(nothing) for _ in range(ROUND)]
        put_all, run = loop.mailbox.put_all, loop.run_mailbox_step
    else:
        put, take, _ = opened(kind)

    def work(operations: int) -> int:
        time = 0
        for _ in range(operations // ROUND):
            if kind == "pillarbox":
                put_all(mails)
                begin = perf_counter_ns()
                run()
            else:
                for _ in range(ROUND):
                    put(nothing)
                begin = perf_counter_ns()
                for _ in range(ROUND):
                    take()()
            time += perf_counter_ns() - begin
        return time

    return work


def deadline(kind: str, waiting: int) -> Work:
    """So many deadlines wait. Arm one more, and cancel it."""
    if kind == "pillarbox":
        deadlines = Deadlines()
        for _ in range(waiting):
            deadlines.arm(30.0, None)
        arm, cancel = deadlines.arm, deadlines.cancel

        def work(operations: int) -> int:
            begin = perf_counter_ns()
            for _ in range(operations):
                cancel(arm(30.0, None))
            return perf_counter_ns() - begin

        return work
    loop = asyncio.new_event_loop()
    for _ in range(waiting):
        loop.call_later(30.0, nothing)

    async def some(operations: int) -> int:
        later = loop.call_later
        begin = perf_counter_ns()
        for _ in range(operations):
            later(30.0, nothing).cancel()
        # The loop throws out what was cancelled when it has become much.
        await asyncio.sleep(0)
        return perf_counter_ns() - begin

    return lambda operations: loop.run_until_complete(some(operations))


def bytes_of(kind: str, _: int) -> Work:
    """Resident memory of one more call that waits: a mail, or elsewhere a tuple of function and arguments."""
    put, _, _ = opened(kind)

    def work(operations: int) -> int:
        before = resident()
        for number in range(operations):
            put(Mail(nothing, number) if kind == "pillarbox" else (nothing, (number,)))
        return resident() - before

    return work


class Loop:
    """The event loop of this thread, how a thread calls something there, and what is called."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.loop = asyncio.new_event_loop()
        self.left = 0
        self.over: asyncio.Event
        self.tasks: list[asyncio.Task[None]] = []
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        self.over = asyncio.Event()
        loop, kind = self.loop, self.kind
        if kind == "pillarbox":
            task = MailboxProcessor(
                lambda controller: controller.suspend_default_action(), latency_interval=None
            )
            put = task.mailbox.put
            self.tasks.append(loop.create_task(task.run_async()))
            self.call = lambda: put(Mail(self.count))
        elif kind == "call_soon_threadsafe":
            self.call = lambda: loop.call_soon_threadsafe(self.count)
        else:
            if kind == "janus":
                import janus

                opened: Any = janus.Queue()
                put, get = opened.sync_q.put, opened.async_q.get
            elif kind == "culsans":
                opened = culsans_queue()
                put, get = opened.sync_q.put, opened.async_q.get
            else:
                opened = aiologic_queue()
                put, get = opened.put, opened.async_get

            async def consume() -> None:
                while True:
                    (await get())()

            self.tasks.append(loop.create_task(consume()))
            self.call = lambda: put(self.count)
        await asyncio.sleep(0)

    def count(self) -> None:
        """Count a call on the loop."""
        self.left -= 1
        if not self.left:
            self.over.set()

    def until_called(self, times: int, begin: Callable[[], None]) -> int:
        """Runs the loop until `count` was called so often; the time when that was."""
        self.left = times

        async def wait() -> int:
            self.over.clear()
            begin()
            await self.over.wait()
            return perf_counter_ns()

        return self.loop.run_until_complete(wait())


def to_loop(kind: str, _: int) -> Work:
    """A thread has functions called on this thread's event loop as fast as it can, all of them timed."""
    target = Loop(kind)

    def produce(_: int, share: int) -> None:
        call = target.call
        for _ in range(share):
            call()

    threads = Threads(1, produce)
    return lambda operations: threads.since(
        target.until_called(operations, lambda: threads.begin(operations))
    )


def to_loop_and_back(kind: str, percentage: int) -> Work:
    """A thread has a function called on the loop, which answers it. What so many percent take at most."""
    target = Loop(kind)
    answers: queue.SimpleQueue[None] = queue.SimpleQueue()
    plain = target.count

    def count() -> None:
        answers.put(None)
        plain()

    target.count = count  # type: ignore[method-assign]
    times: list[int] = []

    def produce(_: int, share: int) -> None:
        call = target.call
        for _ in range(share):
            begin = perf_counter_ns()
            call()
            answers.get()
            times.append(perf_counter_ns() - begin)

    threads = Threads(1, produce)

    def work(operations: int) -> int:
        times.clear()
        threads.since(target.until_called(operations, lambda: threads.begin(operations)))
        times.sort()
        return times[(operations - 1) * percentage // 100] * operations

    return work


WORKS: dict[str, Callable[[str, int], Work]] = {
    "single": single,
    "batch": batch,
    "producers": producers,
    "chains": chains,
    "thereandback": there_and_back,
    "handover": handover,
    "processor": processor,
    "deadline": deadline,
    "bytes": bytes_of,
    "toloop": to_loop,
    "toloopandback": to_loop_and_back,
}


def main(words: list[str]) -> None:
    """The child's command."""
    name, kind, number = [*words, "0"][:3]
    serve(WORKS[name](kind, int(number)))


if __name__ == "__main__":
    main(sys.argv[1:])
