"""Notices that Spark has left a task whose calls never end: then nobody else would end them.

A task that fails elsewhere, in an operator behind this one, closes the connection to its Python worker and
says no more. A worker that neither reads nor writes, as its input has ended and its calls hang, does not see
that: it would go on for ever, with all its calls. For the task's thread.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
from types import FrameType

log = logging.getLogger("pillarbox")


class Hangup:
    """Looks at the worker's connection. Where it cannot be found or looked at, nothing is ever noticed."""

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        # Linux. Tells as well of an end that is closed for writing only, which Spark does not do.
        event = getattr(select, "POLLRDHUP", 0)
        descriptor = _connection()
        if event and descriptor is not None:
            self._poll = select.poll()
            self._poll.register(descriptor, event)
        else:
            log.debug("no connection to Spark to look at: calls that hang are not ended when Spark leaves")

    def check(self) -> None:
        """Raise ConnectionAbortedError if the other end has closed the connection."""
        if self._poll is not None and self._poll.poll(0):
            raise ConnectionAbortedError("Spark has ended this task")


def _connection() -> int | None:
    """The descriptor of the connection that PySpark's worker writes results to; None outside of one."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # By what it holds: the module has another name without a daemon, and where a setting names its own.
        if frame.f_code.co_name == "main" and {"infile", "outfile"} <= frame.f_locals.keys():
            try:
                descriptor = int(frame.f_locals["outfile"].fileno())
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    return descriptor
            except (AttributeError, OSError, ValueError):
                return None
        frame = frame.f_back
    return None
