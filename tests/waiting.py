"""Waits of tests: until a condition holds, by no clock of their own.

The one limit is the test's time-out (pytest-timeout), which shows the stacks of all threads. A limit in the
wait would turn a busy machine into a failed test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.002
"""Seconds between two looks at a condition that nothing announces."""


def wait_until(condition: Callable[[], object]) -> None:
    """Wait in this thread until the condition holds. What it raises ends the wait."""
    while not condition():
        time.sleep(POLL_S)


async def until(condition: Callable[[], object]) -> None:
    """Wait on the event loop until the condition holds. What it raises ends the wait."""
    while not condition():
        await asyncio.sleep(POLL_S)
