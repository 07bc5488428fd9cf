"""A program that ends jobs early and late, in each way there is, and says what of them is left. Linux only.

python leaving.py LOOP MODE ENDING...: prints a line of JSON for each ending, see `left`. LOOP is "uvloop" or
"asyncio". For the ending "ctrl-c" it prints "waiting" first, and waits for the signal. Run by
test_close_leaves_nothing.py.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import json
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pillarbox import Batch, CallFailed, Rate, Retry, Timeout, async_map

HOUR = 3600.0

MODES = ("coroutines", "threads", "batches", "batches in threads")


class Peer:
    """A port that calls hold a connection to."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.over = threading.Event()
        self.began = threading.Event()
        self.attempts: Counter[int] = Counter()

    def close(self) -> None:
        self.over.set()
        self.listening.close()

    def outcome(self, row: int, soon: bool) -> str:
        """Of an attempt at `row`: "ok", "fails" or "hangs". With `soon` each second attempt is well."""
        self.attempts[row] += 1
        first = self.attempts[row] == 1
        if row >= 12:
            self.began.set()
        return "ok" if row < 3 or (soon and not first) else ("ok", "fails", "hangs")[row % 3]


class Coroutines:
    """An async function of a row that holds a connection; some of its calls end only by cancellation."""

    def __init__(self, peer: Peer, soon: bool) -> None:
        self.peer = peer
        self.soon = soon

    async def __aenter__(self) -> Coroutines:
        _, self.writer = await asyncio.open_connection("127.0.0.1", self.peer.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def __call__(self, row: int) -> int:
        if row < 0:
            raise LookupError("an error in fn")
        outcome = self.peer.outcome(row, self.soon)
        if outcome == "fails":
            raise ConnectionError("try later")
        if outcome == "hangs":
            await asyncio.Event().wait()
        return row


class Batches(Coroutines):
    """The same for a list of rows; a batch hangs with one of its rows."""

    async def __call__(self, rows: list[int]) -> list[Any]:  # type: ignore[override]
        if min(rows) < 0:
            raise LookupError("an error in fn")
        outcomes = [self.peer.outcome(row, self.soon) for row in rows]
        if "hangs" in outcomes and len(rows) > 1:
            await asyncio.Event().wait()
        return [
            row if outcome == "ok" else ConnectionError("try later")
            for row, outcome in zip(rows, outcomes, strict=True)
        ]


class Threads:
    """A blocking function of a row that holds a connection; some of its calls last until the job is over."""

    def __init__(self, peer: Peer, soon: bool) -> None:
        self.peer = peer
        self.soon = soon

    def __enter__(self) -> Threads:
        self.connection = socket.create_connection(("127.0.0.1", self.peer.port))
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    def __call__(self, row: int) -> int:
        if row < 0:
            raise LookupError("an error in fn")
        outcome = self.peer.outcome(row, self.soon)
        if outcome == "fails":
            raise ConnectionError("try later")
        if outcome == "hangs":
            self.peer.over.wait(0.02)
        return row


class BatchThreads(Threads):
    """The same for a list of rows."""

    def __call__(self, rows: list[int]) -> list[int]:  # type: ignore[override]
        return [super(BatchThreads, self).__call__(row) for row in rows]


FUNCTIONS = dict(zip(MODES, (Coroutines, Threads, Batches, BatchThreads), strict=True))


def options(mode: str, soon: bool) -> dict[str, Any]:
    """With everything that arms timers: limits of time, retries that pause, a rate that holds back."""
    given: dict[str, Any] = {
        "capacity": 8,
        "ordered": False,
        "rate": Rate(per_second=2000.0 if soon else 20.0),
        "timeout": Timeout(HOUR, attempt=0.05 if soon else HOUR / 2),
        "retry": Retry(20, initial=0.001, maximum=0.001) if soon else Retry(initial=HOUR, maximum=HOUR),
    }
    if "batches" in mode:
        given["batch"] = Batch(3, linger=0.001 if soon else 0.05)
    return given


class Trouble(Exception):
    """An error of the consumer."""


def endless() -> Iterator[int]:
    yield from itertools.count()


def numbers(last: int) -> Iterator[int]:
    yield from range(40)
    if last:
        yield last


def broken() -> Iterator[int]:
    yield from range(20)
    raise Trouble


# -- the endings ---------------------------------------------------------------------------------

Start = Callable[..., Any]


def exhaustion(start: Start) -> None:
    assert len(list(start(numbers(0), soon=True))) == 40


def break_and_del(start: Start) -> None:
    results = start(endless())
    for _ in results:
        break
    del results
    gc.collect()


def close(start: Start) -> None:
    results = start(endless())
    next(results)
    results.close()


def close_when_all_wait(start: Start) -> None:
    results = start(endless())
    next(results)
    assert start.peer.began.wait()  # type: ignore[attr-defined]
    results.close()


def consumer_raises(start: Start) -> None:
    try:
        with start(endless()) as results:
            for _ in results:
                raise Trouble
    except Trouble:
        pass


def generator_closed(start: Start) -> None:
    def wrapped() -> Iterator[Any]:
        yield from start(endless())

    generator = wrapped()
    next(generator)
    generator.close()
    del generator
    gc.collect()


def error_in_fn(start: Start) -> None:
    try:
        list(start(numbers(-1), soon=True))
    except CallFailed as error:
        if not isinstance(error.cause, LookupError):
            raise
    else:
        raise AssertionError


def error_in_the_iterable(start: Start) -> None:
    try:
        # The calls of the rows before it come to their ends.
        list(start(broken(), soon=True))
    except Trouble:
        pass
    else:
        raise AssertionError


def ctrl_c(start: Start) -> None:
    results = start(endless())
    try:
        for _ in results:
            # In one step: the signal may come in the middle of a `print`, before the end of its line.
            os.write(1, b"waiting\n")
    except KeyboardInterrupt:
        return
    raise AssertionError


ENDINGS: dict[str, Callable[[Start], None]] = {
    "exhaustion": exhaustion,
    "break and del": break_and_del,
    "close": close,
    "close when all wait": close_when_all_wait,
    "consumer raises": consumer_raises,
    "generator closed": generator_closed,
    "error in fn": error_in_fn,
    "error in the iterable": error_in_the_iterable,
    "ctrl-c": ctrl_c,
}


# -- what is left --------------------------------------------------------------------------------


def files() -> Counter[str]:
    """The open files, sockets and pipes of this process, by what they are."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            # Of sockets and pipes without their numbers, which differ.
            found[os.readlink(f"/proc/self/fd/{name}").split(":[")[0]] += 1
        except FileNotFoundError:
            # The one by which the folder was listed.
            continue
    return found


def timers() -> list[str]:
    """The timers of all open event loops that would still fire."""
    found = []
    for each in gc.get_objects():
        if type(each).__name__ == "TimerHandle" and not each.cancelled():
            # One of uvloop has forgotten its function once it has fired.
            armed = each._scheduled if isinstance(each, asyncio.TimerHandle) else "Handle " in repr(each)
            if armed:
                found.append(repr(each))
    return found


def left(before: Counter[str]) -> dict[str, list[str]]:
    """The threads, files, tasks, open event loops and armed timers that were not there before."""
    gc.collect()
    # A list of its own: others come and go while one looks.
    objects = gc.get_objects()
    loops = [each for each in objects if isinstance(each, asyncio.AbstractEventLoop) and not each.is_closed()]
    return {
        "threads": [each.name for each in threading.enumerate() if each is not threading.main_thread()],
        "files": [*(files() - before).elements()],
        "tasks": [repr(each) for each in objects if isinstance(each, asyncio.Task) and not each.done()],
        "loops": [repr(each) for each in loops],
        "timers": timers() if loops else [],
    }


class Starter:
    """Starts jobs of one mode. Each has a port of its own, which goes before it is looked at what is left."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.peer = Peer()

    def __call__(self, rows: Iterator[int], soon: bool = False) -> Any:
        return async_map(rows, FUNCTIONS[self.mode](self.peer, soon), **options(self.mode, soon))


def end_on_a_loop_that_stays(loop: str, mode: str) -> dict[str, list[str]]:
    """The remains of a job, closed while all sorts of calls wait, on a loop that others use."""
    peer = Peer()
    given = options(mode, False)
    # The first calls to hang are cancelled before the job ends.
    given.update(timeout=Timeout(0.3, fallback="timed out"), rate=Rate(per_second=200.0))

    async def job() -> None:
        async with async_map(endless(), FUNCTIONS[mode](peer, False), **given) as results:
            async for result in results:
                if result == "timed out":
                    break

    async def look() -> dict[str, list[str]]:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        gc.collect()
        return {"tasks": [repr(task) for task in tasks], "timers": timers()}

    stays = importlib.import_module(loop).new_event_loop()
    try:
        stays.run_until_complete(job())
        found: dict[str, list[str]] = stays.run_until_complete(look())
    finally:
        stays.close()
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    for each in others:
        # Nobody waits for the thread that reads ahead.
        each.join(10.0)
    found["threads"] = [each.name for each in others if each.is_alive()]
    peer.close()
    return found


async def nothing() -> None:
    """For a first loop: uvloop keeps a pipe from then on, one for the process."""


def main(loop: str, mode: str, *endings: str) -> None:
    if loop == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    first = importlib.import_module(loop).new_event_loop()
    first.run_until_complete(nothing())
    first.close()
    for ending in endings:
        before = files()
        if ending == "a loop that stays":
            print(json.dumps({ending: end_on_a_loop_that_stays(loop, mode)}), flush=True)
            continue
        starter = Starter(mode)
        ENDINGS[ending](starter)
        starter.peer.close()
        print(json.dumps({ending: left(before)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
