"""Snapshots that are held for a while after whoever has planned a read was done with it. Thread-safe.

All splits may be given out before the last task has begun, and Spark runs a task again, or another
action, later.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import Any

MOST = 8
"""Connections that this process holds so; of more, the oldest is closed."""

_lock = threading.Lock()
_held: dict[int, tuple[Any, threading.Timer]] = {}


def hold(connection: Any, seconds: float) -> None:
    """Close `connection` after so many seconds, on a daemon thread, or when the process ends. Any thread."""
    if seconds <= 0:
        connection.close()
        return
    timer = threading.Timer(seconds, _let_go, [id(connection)])
    timer.name = "pillarbox-postgres-snapshot"
    timer.daemon = True
    with _lock:
        _held[id(connection)] = connection, timer
        surplus = list(_held)[:-MOST]
    timer.start()
    for key in surplus:
        _let_go(key)


def _let_go(key: int) -> None:
    with _lock:
        connection, timer = _held.pop(key, (None, None))
    if timer is not None:
        timer.cancel()
    if connection is not None:
        with contextlib.suppress(Exception):
            connection.close()


@atexit.register
def close_all() -> None:
    """Close all that are held."""
    for key in list(_held):
        _let_go(key)
