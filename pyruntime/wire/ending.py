"""How tasks that talk to others are ended: cancelled, and waited for. On the loop of the tasks."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN = 0.25
"""Seconds after which a task that has not ended is cancelled again."""


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
        _, pending = await asyncio.wait(pending, timeout=AGAIN)
    for task in tasks:
        if not task.cancelled():
            task.exception()
