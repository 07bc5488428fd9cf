"""Measures the kernel from Python, a chunk at a time: `python -m bench.python_chunks WORK [KIND] [NUMBER]`.

The workloads are those of `bench/native/chunks.cpp`, by the same names. `bench.chunks` asks.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from bench.serve import ROUND, Work, serve, shuffled
from pillarbox.kernel import Mail, OrderedQueue, ResultQueue, TaskMailbox, UnorderedQueue

QUEUES: dict[str, Callable[[int], ResultQueue]] = {
    "ordered": OrderedQueue,
    "ordered-owner": partial(OrderedQueue, owner_completes=True),
    "unordered": UnorderedQueue,
    "unordered-owner": partial(UnorderedQueue, owner_completes=True),
}


def nothing() -> None:
    """Do nothing: the body of the mails."""


def among(backend: str, waiting: int) -> Work:
    """So many mails wait. Put one behind them, take the oldest."""
    mailbox, spare = TaskMailbox(backend=backend), Mail(nothing)
    for _ in range(waiting):
        mailbox.put(Mail(nothing))

    def work(operations: int) -> int:
        nonlocal spare
        put, take, mail = mailbox.put, mailbox.try_take, spare
        begin = perf_counter_ns()
        for _ in range(operations):
            put(mail)
            mail = take()
        time = perf_counter_ns() - begin
        spare = mail
        return time

    return work


def past(backend: str, waiting: int) -> Work:
    """So many mails of priority 0 wait. Put one of priority 1, take it past them."""
    mailbox, mail = TaskMailbox(backend=backend), Mail(nothing, priority=1)
    for _ in range(waiting):
        mailbox.put(Mail(nothing))

    def work(operations: int) -> int:
        put, take = mailbox.put, mailbox.try_take
        begin = perf_counter_ns()
        for _ in range(operations):
            put(mail)
            take(1)
        return perf_counter_ns() - begin

    return work


def steady(order: str, in_flight: int) -> Work:
    """So many records are in flight. Complete the oldest, emit it, put another one."""
    queue, element, result = QUEUES[order](in_flight), object(), object()
    handles = [queue.put(element) for _ in range(in_flight)]
    oldest = 0

    def work(operations: int) -> int:
        nonlocal oldest
        put, complete, emit, index = queue.put, queue.complete, queue.emit, oldest
        begin = perf_counter_ns()
        for _ in range(operations):
            complete(handles[index], result)
            emit()
            handles[index] = put(element)
            index = index + 1 if index + 1 < in_flight else 0
        time = perf_counter_ns() - begin
        oldest = index
        return time

    return work


def rounds(order: str, each: int) -> Work:
    """A round: put a thousand records, with a watermark after every `each` (0: none); complete them in random
    order, and emit, after each completion, what may leave then.
    """
    marks = ROUND // each if each else 0
    queue, element, result, random = QUEUES[order](ROUND + marks), object(), object(), shuffled(ROUND)

    def work(operations: int) -> int:
        put, mark, complete, emit_many = queue.put, queue.put_watermark, queue.complete, queue.emit_many
        begin = perf_counter_ns()
        for _ in range(operations // ROUND):
            handles = []
            for number in range(ROUND):
                handles.append(put(element))
                if each and number % each == each - 1:
                    mark(number)
            out = 0
            for index in random:
                complete(handles[index], result)
                out += len(emit_many())
            if out != ROUND + marks:
                raise AssertionError(f"{out} came out of {ROUND + marks}")
        return perf_counter_ns() - begin

    return work


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def bytes_of_mails(backend: str, _: int) -> Work:
    """Bytes of resident memory that so many more waiting mails take, made for the purpose."""
    mailbox = TaskMailbox(backend=backend)

    def work(operations: int) -> int:
        put = mailbox.put
        before = resident()
        for _ in range(operations):
            put(Mail(nothing))
        mailbox.create_batch()
        return resident() - before

    return work


WORKS: dict[str, Callable[[str, int], Work]] = {
    "among": among,
    "past": past,
    "steady": steady,
    "rounds": rounds,
    "bytes": bytes_of_mails,
}


def main(words: list[str]) -> None:
    """The child's command."""
    name, kind, number = [*words, "0", "0"][:3]
    serve(WORKS[name](kind, int(number)))


if __name__ == "__main__":
    main(sys.argv[1:])
