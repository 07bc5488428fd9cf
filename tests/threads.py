"""The threads of Pillarbox that the test that runs has begun. For tests; in the thread that runs them.

Tests of other files run in the same process, and some leave threads on purpose: Spark's session its channel.
"""

from __future__ import annotations

import threading

_before: set[threading.Thread] = set()


def note() -> None:
    """Take those that are there for others'. Before each test."""
    _before.clear()
    _before.update(threading.enumerate())


def begun(name: str = "pillarbox-") -> list[threading.Thread]:
    """Those that have begun since and live, whose names hold `name`."""
    return [each for each in threading.enumerate() if name in each.name and each not in _before]
