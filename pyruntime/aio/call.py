"""The record of one row's way through the operator. Confined to the mailbox thread."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class Call:
    """One admitted row: admitted -> (waits for slot, rate or retry) -> running -> finished -> emitted.

    `attempt` counts the attempts begun, `handle` is the result queue's handle of the present one.
    `runner` is what runs it now, `pause` the timer of its retry; at most one of them is set.
    `deadline` and `attempt_deadline` are handles of its deadlines, -1 before they are armed.
    `began` is when its present attempt began, on the monotonic clock; `started`, once one has failed, its
    first.
    `uncharged`, once one has failed, are attempts that are none of `Retry.attempts`, `refusals` those that an
    overloaded service refused, and `refused_since` is when it did so first, on the loop's clock.
    `error` is what its last attempt failed with, where another follows. `held` are its bytes, by estimate,
    `units` its weight at the rate once it was asked for, `cost` what it has cost. `key` is its key in a
    ledger, `input` the fingerprint of what else counts of the row there, `looked` how much its reader had
    found by the last look there. With batches `waits_since` is when it came to wait, on the loop's clock,
    and `weight` what it weighs in a batch.
    """

    __slots__ = (
        "attempt",
        "attempt_deadline",
        "began",
        "cost",
        "deadline",
        "error",
        "handle",
        "held",
        "input",
        "key",
        "looked",
        "pause",
        "refusals",
        "refused_since",
        "row",
        "runner",
        "started",
        "uncharged",
        "units",
        "waits_since",
        "weight",
    )

    began: float
    input: bytes
    key: bytes
    looked: int
    refusals: int
    refused_since: float | None
    started: float
    uncharged: int
    waits_since: float
    weight: float

    def __init__(self, row: Any, held: int) -> None:
        self.row = row
        self.held = held
        self.attempt = 0
        self.handle = 0
        self.deadline = self.attempt_deadline = -1
        self.runner: Any = None
        self.pause: asyncio.TimerHandle | None = None
        self.error: BaseException | None = None
        self.units: float | None = None
        self.cost = 0.0

    @property
    def charged(self) -> int:
        """Attempts that `Retry.attempts` counts; one must have failed."""
        return self.attempt - self.uncharged

    @property
    def is_first(self) -> bool:
        """True if no attempt before the present one was charged."""
        return self.attempt == 1 or self.charged == 1

    def elapsed(self) -> float:
        """Seconds since the first attempt began; there must have been one."""
        return time.monotonic() - (self.began if self.attempt == 1 else self.started)
