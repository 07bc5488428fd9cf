"""The connection of a task to Spark: whether Spark has left it, and what has been written to it.

A task whose rows nobody needs any more, as a limit has enough of them, or that fails elsewhere, in an
operator behind this one, is told nothing: Spark closes the connection to its Python worker. A worker that
neither reads nor writes, as its input has ended and its calls take their time, does not see that: it would
go on with all its calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from pillarbox.wire.loop_thread import LoopThread

log = logging.getLogger("pillarbox")


class DisconnectWatcher:
    """Notices that Spark has closed the worker's connection. For the task's thread.

    Where the connection cannot be found or looked at, nothing is ever noticed.
    """

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        self._epoll: Any = None
        self._loop_thread: LoopThread | None = None
        self._output = _connection()
        # Linux. Tells as well of an end that is closed for writing only, which Spark does not do.
        event = getattr(select, "POLLRDHUP", 0)
        if event and self._output is not None:
            self._poll = select.poll()
            self._poll.register(self._output.fileno(), event)
        else:
            log.debug("no connection to Spark to look at: calls that hang are not ended when Spark leaves")

    def check(self) -> None:
        """Raise ConnectionAbortedError if the other end has closed the connection."""
        if self._poll is not None and self._poll.poll(0):
            raise _left()

    def flush(self) -> None:
        """Have what was written reach Spark now. Raises ConnectionAbortedError if Spark has left."""
        self.check()
        if self._output is not None:
            try:
                self._output.flush()
            except OSError as error:
                raise _left() from error

    def watch(self, loop_thread: LoopThread, left: Callable[[ConnectionAbortedError], None]) -> None:
        """Have `left` called with an error on the loop's thread, once, as soon as Spark has left."""
        if self._poll is None or self._output is None:
            return
        # The loop would be woken by each byte that Spark sends; this one is ready when Spark has left.
        self._epoll = epoll = select.epoll()
        epoll.register(self._output.fileno(), select.EPOLLRDHUP)
        self._loop_thread = loop_thread

        def noticed() -> None:
            loop_thread.loop.remove_reader(epoll.fileno())
            left(_left())

        loop_thread.call(lambda: loop_thread.loop.add_reader(epoll.fileno(), noticed))

    def close(self) -> None:
        """Watch no longer, and where Spark has left, have what is still written go nowhere. Idempotent."""
        if self._poll is not None and self._poll.poll(0):
            # The worker ends now, and would print a traceback as it cannot write its last words.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, self._output.fileno())
            os.close(nowhere)
            self._poll = None
        epoll, self._epoll = self._epoll, None
        if epoll is None or self._loop_thread is None:
            return
        loop = self._loop_thread.loop

        def forget() -> None:
            with contextlib.closing(epoll):
                loop.remove_reader(epoll.fileno())

        self._loop_thread.call(forget)


def _left() -> ConnectionAbortedError:
    return ConnectionAbortedError("Spark has ended this task")


def _connection() -> Any:
    """The file that PySpark's worker writes results to, of a socket; None outside of a worker."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # By what it holds: the module has another name without a daemon, and where a setting names its own.
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= frame.f_locals.keys():
            output = frame.f_locals["outfile"]
            try:
                if stat.S_ISSOCK(os.fstat(output.fileno()).st_mode):
                    return output
            except (AttributeError, OSError, ValueError):
                return None
        frame = frame.f_back
    return None
