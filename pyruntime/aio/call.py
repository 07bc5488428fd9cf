"""The record of one row's way through the operator. Confined to the mailbox thread."""

from __future__ import annotations

import asyncio
from typing import Any


class Call:
    """One admitted row: admitted -> (waits for a slot or a retry) -> running -> finished -> emitted.

    `attempt` counts the attempts begun, `handle` is the result queue's handle of the present one.
    `runner` is what runs it now, `pause` the timer of its retry; at most one of them is set.
    `deadline` and `attempt_deadline` are handles of its deadlines, -1 before they are armed.
    """

    __slots__ = ("attempt", "attempt_deadline", "deadline", "handle", "pause", "row", "runner")

    def __init__(self, row: Any) -> None:
        self.row = row
        self.attempt = 0
        self.handle = 0
        self.deadline = self.attempt_deadline = -1
        self.runner: Any = None
        self.pause: asyncio.TimerHandle | None = None
