"""A thread that runs an asyncio event loop, for jobs whose caller blocks. Thread-safe."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

SIGNAL_CHECK_INTERVAL_S = 1.0
"""Seconds that a thread waits at most before it looks for signals."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where that is installed, otherwise one of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """An event loop in a daemon thread; it runs until `close`.

    A daemon, because a function that blocks the loop for ever must not keep the process from ending.
    """

    def __init__(self, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` on the loop. Any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop, and wait for its end; Ctrl-C is noticed. Not on the loop's thread."""
        done = self.submit(coroutine)
        # A CPython without a GIL spins before it blocks on a lock. A signal that comes meanwhile interrupts
        # nothing, and is noticed only when the lock has been waited for.
        while not wait([done], SIGNAL_CHECK_INTERVAL_S).done:
            pass
        return done.result()

    def call(self, fn: Callable[[], Any]) -> None:
        """Have `fn` called on the loop's thread; no effect once the loop is closed. Any thread."""
        try:
            self.loop.call_soon_threadsafe(fn)
        except RuntimeError:
            return

    def stack(self) -> str:
        """Where the thread is now, as a traceback. Any thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(the thread has ended)"

    def close(self, timeout: float) -> bool:
        """End the loop and its thread; False if the thread has not ended after `timeout` seconds."""
        self.call(self.loop.stop)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            while True:
                try:
                    loop.run_forever()
                    break
                except (SystemExit, KeyboardInterrupt):
                    # A task of a call raised it; whoever awaits that task gets it, the loop goes on.
                    continue
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                # One turn is enough for what ends when it is cancelled; the rest was reported already.
                loop.run_until_complete(asyncio.wait(tasks, timeout=0.05))
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()
