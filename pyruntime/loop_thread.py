"""A thread that runs an asyncio event loop, for jobs whose caller blocks; and the one for connections.

`LoopThread`, `acquire_loop` and `release_loop` are thread-safe, `end` is for the loop of the tasks.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from pillarbox.lacks import check_descriptors, in_words
from pillarbox.thread_start import check_memory, start_thread

T = TypeVar("T")

SIGNAL_CHECK_INTERVAL_S = 1.0
"""Seconds that a thread waits at most before it looks for signals."""

LAST_WAIT_S = 0.05
LAST_TURNS = 20
"""Seconds, then turns, that a loop runs on when it ends: for cancelled tasks, and for transports to close."""


STOP_TIMEOUT_S = 5.0
"""Seconds for the loop of connections to end, when the last of them has been closed."""
LOOP_DESCRIPTORS = 12
"""Descriptors that a loop and its first connection take."""
LOOP_BYTES = 1 << 20
"""Bytes that a loop takes."""
CANCEL_INTERVAL_S = 0.25
"""Seconds after which a task that has not ended is cancelled again."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where that is installed, otherwise one of asyncio.

    Raises OSError or MemoryError where the process has no room for one.
    """
    # libuv ends the process where it gets none.
    check_descriptors(LOOP_DESCRIPTORS)
    check_memory(LOOP_BYTES)
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def post(loop: asyncio.AbstractEventLoop, fn: Callable[..., Any], *args: object) -> None:
    """Have `fn` called on the loop's thread; no effect once the loop is closed. Any thread."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(fn, *args)


class LoopThread:
    """An event loop in a daemon thread; it runs until `close`.

    A daemon, because a function that blocks the loop for ever must not keep the process from ending.
    last_wait_s: seconds for cancelled tasks to end, when the loop ends.
    """

    def __init__(
        self,
        name: str,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
        last_wait_s: float = LAST_WAIT_S,
    ) -> None:
        with in_words(f"the thread {name} cannot begin"):
            self.loop = new_loop()
        self._last_wait_s = last_wait_s
        self._is_closed = self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            with in_words(f"the thread {name} cannot begin"):
                start_thread(self._thread)
        except BaseException:
            self.loop.close()
            raise

    @property
    def is_current(self) -> bool:
        """True for the thread of the loop itself, which must not wait for it."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` on the loop. Any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop, and wait for its end; Ctrl-C is noticed. Not on the loop's thread."""
        done = self.submit(coroutine)
        # A CPython without a GIL spins before it blocks on a lock. A signal that comes meanwhile interrupts
        # nothing, and is noticed only when the lock has been waited for.
        while not wait([done], SIGNAL_CHECK_INTERVAL_S).done:
            if not self.is_alive:
                # Of what has ended it, such as a process without memory, nobody else would say a word.
                raise RuntimeError(f"the thread {self._thread.name} has ended, and what it ran with it")
        return done.result()

    def call(self, fn: Callable[[], Any]) -> None:
        """Have `fn` called on the loop's thread; no effect once the loop is closed. Any thread."""
        post(self.loop, fn)

    @property
    def is_alive(self) -> bool:
        """False once it has ended, and in the child of a fork, which has none of its parent's threads."""
        return self._thread.is_alive()

    def stack(self) -> str:
        """Return where the thread is now, as a traceback. Any thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"

    def close(self, timeout: float) -> bool:
        """End the loop and its thread; False if it has not ended after `timeout` seconds. Idempotent."""
        if not self._is_closed:
            # A second stop would interrupt the last turns.
            self._is_closed = True
            self.call(self._stop)
        self._thread.join(timeout)
        return not self.is_alive

    def _stop(self) -> None:
        self._is_stopped = True
        self.loop.stop()

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            # A loop that ends by an exception forgets that it was told to stop in the same turn.
            while not self._is_stopped:
                with suppress(SystemExit, KeyboardInterrupt):
                    # A task of a call raised it; whoever awaits that task gets it, the loop goes on.
                    loop.run_forever()
        finally:
            _complete(loop, _cancel_all(self._last_wait_s))
            _complete(loop, loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()


# One thread for all servers and clients of a process: what they do is short, and nothing of it blocks. With
# one for each, a process would have as many as it has streams, coordinators and tasks, and a message between
# two of them would wait for both.
_guard = threading.Lock()
_connections: LoopThread | None = None
_users = 0


def acquire_loop() -> LoopThread:
    """The thread for this process's connections, begun if it is not there. Any thread but that one."""
    global _connections, _users
    with _guard:
        if _connections is None:
            _connections = LoopThread("pillarbox-rpc")
        _users += 1
        return _connections


def release_loop(thread: LoopThread) -> None:
    """Use it no more; with its last user it ends. Any thread but that one, once for each `acquire_loop`."""
    global _connections, _users
    with _guard:
        if thread is not _connections:
            return
        _users -= 1
        if _users:
            return
        _connections = None
    thread.close(STOP_TIMEOUT_S)


def _forget_loop() -> None:
    # The child of a fork has none of its parent's threads, and may have a lock that one of them holds.
    global _guard, _connections, _users
    _guard, _connections, _users = threading.Lock(), None, 0


def _end_loop() -> None:
    # Whoever leaves a server or a client open at the end of the process leaves it to this: a thread in
    # compiled code, as that of uvloop is, must not run on while the interpreter is taken down.
    if _connections is not None:
        _connections.close(STOP_TIMEOUT_S)


atexit.register(_end_loop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loop)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, and wait until all have ended. What they raise is theirs, and is not raised here.

    A task may lose a cancellation: `asyncio.wait_for` of Python 3.10 and 3.11 forgets one that comes in the
    turn in which what it waits for has ended (python/cpython#86296), and a task that tries again for as long
    as it takes would then never end. So who has not ended is cancelled again.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_INTERVAL_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()


def _complete(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run `coroutine` to its end, whatever other tasks raise meanwhile that ends a loop."""
    task = loop.create_task(coroutine)
    while not task.done():
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_until_complete(task)


async def _cancel_all(wait_s: float) -> None:
    # A task that is cancelled before its first step closes nothing of what it was given.
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=wait_s)
    # The time may be over after one turn of a busy machine; and a transport closes in turns of its own.
    for _ in range(LAST_TURNS):
        await asyncio.sleep(0)
    for task in tasks:
        # What does not end when it is cancelled was reported already.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
