"""Measures PyFlink's result queues, a chunk at a time.

`python -m bench.kernel.pyflink_chunks WHEEL KIND EACH` does what `rounds KIND EACH` of `bench.python_chunks`
does; an EACH of `steady` stands for its `steady KIND 1000`. The queues are read out of the package's wheel,
and need nothing else of it.
"""

from __future__ import annotations

import importlib
import sys
import types
from time import perf_counter_ns
from typing import Any

from bench.serve import ROUND, Work, serve, shuffled

PACKAGE = "pyflink.fn_execution.datastream.process"


class Counted:
    """A sink that counts results."""

    results = 0

    def process_outputs(self, _: object, results: list[object]) -> None:
        """The callback of an emitted entry."""
        self.results += len(results)


def queues(wheel: str) -> Any:
    """PyFlink's module with its queues.

    It imports a function that gives a record's results the form of a DataStream's output, and with it half of
    PyFlink. Records are put here as the Table API puts them, which does not use that function.
    """
    sys.path.insert(0, wheel)
    handler = types.ModuleType(f"{PACKAGE}.input_handler")
    handler._emit_results = None  # type: ignore[attr-defined]
    sys.modules[handler.__name__] = handler
    return importlib.import_module(f"{PACKAGE}.async_function.queue")


def never() -> None:
    """The callback of a full queue while it waits; ours are never full."""
    raise AssertionError("the queue is full")


def steady(queue: Any) -> Work:
    """1,000 records are in flight. Complete the oldest, emit it, put another one."""
    out, element, result = Counted(), object(), [object()]
    entries = [queue.put(None, 0, 0, element) for _ in range(ROUND)]
    oldest = 0

    def work(operations: int) -> int:
        nonlocal oldest
        put, emit, index, before = queue.put, queue.emit_completed_element, oldest, out.results
        begin = perf_counter_ns()
        for _ in range(operations):
            entries[index].complete(result)
            emit(out)
            entries[index] = put(None, 0, 0, element)
            index = index + 1 if index + 1 < ROUND else 0
        time = perf_counter_ns() - begin
        oldest = index
        if out.results - before != operations:
            raise AssertionError("a finished record does not come out")
        return time

    return work


def rounds(queue: Any, each: int) -> Work:
    """A round: put 1,000 records, with a watermark after every `each` (0: none); complete them in random
    order, and emit, after each completion, what may leave then.
    """
    out, element, result, random, watermark = Counted(), object(), [object()], shuffled(ROUND), 0

    def work(operations: int) -> int:
        nonlocal watermark
        put, mark, emit, more = (
            queue.put,
            queue.advance_watermark,
            queue.emit_completed_element,
            queue.has_completed_elements,
        )
        before = out.results
        begin = perf_counter_ns()
        for _ in range(operations // ROUND):
            entries = []
            for number in range(ROUND):
                entries.append(put(None, 0, 0, element))
                if each and number % each == each - 1:
                    watermark += 1
                    mark(watermark)
            for index in random:
                entries[index].complete(result)
                while more():
                    emit(out)
        time = perf_counter_ns() - begin
        if out.results - before != operations // ROUND * ROUND:
            raise AssertionError("not everything that was put came out")
        return time

    return work


def main(words: list[str]) -> None:
    """The child's command."""
    wheel, kind, each = words
    module = queues(wheel)
    make = {"ordered": module.OrderedStreamElementQueue, "unordered": module.UnorderedStreamElementQueue}[
        kind
    ]
    queue = make(ROUND, never)
    serve(steady(queue) if each == "steady" else rounds(queue, int(each)))


if __name__ == "__main__":
    main(sys.argv[1:])
