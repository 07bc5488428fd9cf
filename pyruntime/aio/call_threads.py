"""Threads in which the calls of a blocking function run, and the async function that they make of it.

Confined to the mailbox thread, that of the event loop, but for the code of the threads themselves.
"""

# Why an answer of a thread is mail, and one mail has all answers that have come until it runs. Each answer
# by a `call_soon_threadsafe` of its own is a system call of asyncio's loop; each by a mail of its own is a
# turn of the chain. `python -m bench.mails` has the figures, docs/architecture.md the way.
#
# Why the answer of a call that was given up comes by the loop. A task that ends cancels its calls and waits
# for them, and runs no mail meanwhile.

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from types import GeneratorType
from typing import Any
from weakref import WeakSet

from pillarbox.aio.errors import named
from pillarbox.aio.function import refuse_awaitable
from pillarbox.aio.row_inputs import set_done
from pillarbox.aio.usage import Result, sum_of
from pillarbox.kernel import Mail, TaskMailbox
from pillarbox.thread_start import start_thread

_here = threading.local()
"""The `CallThreads` of each thread that has event loops."""


class _ThreadJob:
    """One call in a thread. On the loop's thread `waiter` is set when it has ended."""

    __slots__ = ("context", "error", "given_up", "has_ended", "result", "row", "waiter")

    def __init__(self, row: Any) -> None:
        self.row = row
        self.context = copy_context()
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        self.given_up = False
        self.waiter: asyncio.Future[None] | None = None


_LEAVE = _ThreadJob(None)
"""Ends the thread that takes it."""


class CallThreads:
    """The async function that runs a blocking one in threads, as many as there are calls at a time.

    It ends when the thread has returned, cancelled or not: a thread cannot be cancelled. A call that returns
    a `concurrent.futures.Future` gives its thread back and ends with that, which is cancelled with it.

    fn: the blocking function. finish: makes the result of what `fn`, or its future, gives for a row; for any
    thread. name: what errors call the function. mailbox: that of the task, to which answers go as mail of
    `priority`. The caller has a thread for each call (`reserve`). Confined to the thread of `loop`, but for
    `_run`.
    """

    # Why a thread is there before its call begins. A process may have no room for one more: in its memory, or
    # in the pids of its container. Where the call finds that out, it has begun: its times run, and what it
    # was granted is spent, though nothing was called.

    # Not a `ThreadPoolExecutor`: its threads are joined when the interpreter ends, so a call that never
    # returns would hold the process. These are daemons.

    def __init__(
        self,
        fn: Callable[[Any], Any],
        finish: Callable[[Any, Any], Any],
        name: str,
        loop: asyncio.AbstractEventLoop,
        mailbox: TaskMailbox,
        priority: int,
    ) -> None:
        self._fn = fn
        self._finish = finish
        self._name = name
        self._loop = loop
        self._mailbox = mailbox
        # Calls that have ended in their threads, and the mail for all of them while it is not on its way.
        self._ended: deque[_ThreadJob] = deque()
        self._answers = Mail(self._run_mail, priority=priority, description="answers of threads")
        self._mail = deque([self._answers])
        self._jobs: SimpleQueue[_ThreadJob | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running = 0
        # To be called as soon as a thread has ended that was given up, once for each.
        self._leaving: list[Callable[[], object]] = []
        if not hasattr(_here, "pools"):
            _here.pools = WeakSet()
        _here.pools.add(self)
        self.shortage = ""
        """The words of the system with which it refused the last thread."""
        self.freed: Callable[[], object] | None = None
        """Called when a thread becomes free while its call goes on."""

    @property
    def count(self) -> int:
        """Threads that there are."""
        return len(self._threads) - len(self._leaving)

    def reserve(self, calls: int, *, tries: bool = True) -> bool:
        """Have threads for so many calls besides those that run; False if there are none.

        tries: start those that lack.
        """
        while self._running + calls > self.count:
            if not tries:
                return False
            name = f"pillarbox-call-{len(self._threads) + 1}"
            try:
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                start_thread(thread)
            except (RuntimeError, MemoryError, OSError) as error:
                self.shortage = named(error)
                return False
            self._threads.append(thread)
        return True

    def ask_for_one(self, ended: Callable[[], object]) -> bool:
        """Have another function on this loop give up a thread; False if none has more than one.

        ended: called when that thread has ended.
        """
        others = [each for each in _here.pools if each._loop is self._loop and each.count > 1]
        if not others:
            return False
        giving = max(others, key=lambda each: each.count)
        giving._leaving.append(ended)
        # Taken by the first that has nothing else to do.
        giving._jobs.put(_LEAVE)
        return True

    async def __call__(self, row: Any) -> Any:
        """Run the function for `row`; raises what it raises."""
        job = _ThreadJob(row)
        self._running += 1
        self._jobs.put(job)
        was_cancelled = False
        while not job.has_ended:
            job.waiter = self._loop.create_future()
            try:
                await job.waiter
            except asyncio.CancelledError:
                # Its slot is kept for the thread as long as for a coroutine that goes on.
                was_cancelled = job.given_up = True
                # Its answer may be in mail that is not run any more.
                self._take_answers()
        if job.error is not None:
            try:
                raise job.error
            finally:
                # Or the frame and the error would keep each other, and the row.
                del job
        if not isinstance(job.result, Future):
            return job.result
        if was_cancelled and job.result.cancel():
            raise asyncio.CancelledError
        return self._finish(row, await _resolved(job.result, self._name))

    def close(self) -> None:
        """End the threads, and wait for them where no call runs any more."""
        self._jobs.put(None)
        if not self._running:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job is _LEAVE:
                call_soon(self._loop, self._left, threading.current_thread())
                return
            try:
                job.result = job.context.run(self._call, job.row)
            except BaseException as error:
                job.error = error
            self._answer(job)
            # Nothing of a finished call stays referenced while the thread waits for the next.
            del job
        # The one mark of the end goes round, so that it reaches every thread.
        self._jobs.put(None)

    def _answer(self, job: _ThreadJob) -> None:
        """Hand the end of a call to the mailbox thread. On a thread of a call."""
        # In this order: a mail that runs meanwhile takes the answer, or this puts the next one.
        self._ended.append(job)
        if job.given_up:
            call_soon(self._loop, self._take_answers)
            return
        try:
            # One thread gets it; where none does, it is on its way.
            mail = self._mail.pop()
        except IndexError:
            return
        if not self._mailbox.try_put(mail):
            # It is closed: of a task that ends.
            self._mail.append(mail)
            call_soon(self._loop, self._take_answers)

    def _run_mail(self) -> None:
        # In this order: the next answer puts the mail again, or is taken here.
        self._mail.append(self._answers)
        self._take_answers()

    def _take_answers(self) -> None:
        ended = self._ended
        while ended:
            self._end(ended.popleft())

    def _call(self, row: Any) -> Any:
        result = self._fn(row)
        return result if isinstance(result, Future) else self._finish(row, result)

    def _left(self, thread: threading.Thread) -> None:
        # Until then it has its memory and its id. It has nothing left to do.
        thread.join()
        self._threads.remove(thread)
        self._leaving.pop(0)()

    def _end(self, job: _ThreadJob) -> None:
        self._running -= 1
        job.has_ended = True
        if job.waiter is not None and not job.waiter.done():
            job.waiter.set_result(None)
        if self.freed is not None and isinstance(job.result, Future):
            # Its call goes on, so that no end of it begins another.
            self.freed()


async def _resolved(future: Future[Any], name: str) -> Any:
    """The result of `future`, which is cancelled if this is; raises what it raises."""
    # Not by `asyncio.wrap_future`, whose future takes no `StopIteration`, and then never ends.
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    future.add_done_callback(lambda _: call_soon(loop, set_done, ended))
    try:
        await ended
    finally:
        # Cancelled while it waited, and nothing otherwise.
        future.cancel()
    if future.cancelled():
        raise CancelledError(f"the Future that {name} returned was cancelled")
    return future.result()


def blocking_function(
    fn: Callable[[Any], Any], name: str, loop: asyncio.AbstractEventLoop, mailbox: TaskMailbox, priority: int
) -> Callable[[Any], Awaitable[Any]]:
    """Make the async function that runs a blocking one of a row, which may give a future or a generator."""

    def finish(row: Any, result: Any) -> Any:
        if isinstance(result, GeneratorType):
            return joined([*result])
        refuse_awaitable(name, result)
        return result

    return CallThreads(fn, finish, name, loop, mailbox, priority)


def joined(results: list[Any]) -> list[Any] | Result:
    """Return the results that a generator gave; in one `Result` with all usage, where it gave such."""
    if Result not in {*map(type, results)}:
        return results
    said = [each.usage for each in results if type(each) is Result and each.usage is not None]
    values = [each.value if type(each) is Result else each for each in results]
    return Result(values, sum_of(said) if said else None)


def call_soon(loop: asyncio.AbstractEventLoop, fn: Callable[..., None], *args: Any) -> None:
    """Have `fn` called on the thread of `loop`. Any thread; no effect on a loop that has closed."""
    # It was closed without waiting any longer.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(fn, *args)
