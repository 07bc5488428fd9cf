"""The calls of one operator: rows admitted, waiting, running, restored; and what a snapshot has of them.

Confined to the mailbox thread; a `CallState` is a value.
"""

# One object a row holds all that is known of its call, with slots. The alternatives are worse on the path
# of every row: a dictionary of calls by row needs rows that can be hashed, a state object for each stage of
# a call is made and dropped three times a row, and a future for each call costs more than the call of a
# plain function. Most slots are set only where they are needed (`started`, `weight`, `key`): an attribute
# that nobody reads costs a store a row.
#
# A test of the house has the files that write each slot: its life is written by the scheduler and its
# subclass for batches alone, its place in the queue by the admission too, its key by the ledger.

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from pillarbox.aio.deadlines import time_left
from pillarbox.aio.errors import error_of, said
from pillarbox.kernel.alike import Slot


class Call:
    """One admitted row: admitted -> (waits for slot, rate or retry) -> running -> finished -> emitted.

    `attempt` counts the attempts begun, `handle` is the result queue's handle of the present one.
    `execution` is what runs it now, `pause` the timer of its retry; at most one of them is set.
    `deadline` and `attempt_deadline` are handles of its deadlines, -1 before they are armed.
    `began` is when its present attempt began, on the operator's clock; `started`, once one has failed or
    where it was restored, its first, as if no time had passed between snapshot and restore.
    `uncharged`, once one has failed, are attempts that are none of `Retry.attempts`: `refusals` those that an
    overloaded service refused, first at `refused_since`, on the loop's clock, and `repeats` those whose
    function asked to be called again at once.
    `error` is what its last attempt failed with, where another follows. `held` are its bytes, by estimate,
    `units` its weight at the rate once it was asked for, `cost` what it has cost. `key` is its key in a
    ledger, `input` the fingerprint of what else counts of the row there, `looked` how much its reader had
    found by the last look there. With batches `waits_since` is when it came to wait, on the loop's clock,
    and `weight` what it weighs in a batch. `endpoint` is that of its present attempt, where a policy chooses
    one. Behind another function of a chain `source`, `ordinal` and
    `identity` are as `ChainedRow` says.
    """

    __slots__ = (
        *("row", "held", "handle", "attempt", "execution", "pause", "deadline", "attempt_deadline", "began"),
        *("started", "error", "uncharged", "refusals", "refused_since", "repeats", "cost"),
        *("units", "waits_since", "weight", "key", "input", "looked", "source", "ordinal"),
        *("identity", "endpoint"),
    )

    began: float
    endpoint: Any
    identity: bytes
    input: bytes
    key: bytes
    looked: int
    ordinal: tuple[int, ...]
    refusals: int
    refused_since: float | None
    repeats: int
    source: Any
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
        self.execution: Any = None
        self.pause: asyncio.TimerHandle | None = None
        self.error: BaseException | None = None
        self.units: float | None = None
        self.cost = 0.0

    @property
    def hedges(self) -> Call | None:
        """The call that this one hedges, which is its row's; None for a row's call."""
        return None

    @property
    def avoided(self) -> tuple[Any, ...]:
        """The endpoints of the calls that a hedge is to be faster than; none for a row's call."""
        return ()

    @property
    def charged(self) -> int:
        """Attempts that `Retry.attempts` counts; one must have failed."""
        return self.attempt - self.uncharged

    @property
    def is_first(self) -> bool:
        """True if no attempt before the present one was charged."""
        return self.attempt == 1 or self.charged == 1

    def take_back(self) -> None:
        """Have the present attempt, which has ended, be none."""
        self.attempt -= 1
        if self.attempt == 1:
            self.began = self.started

    def elapsed(self, now: float) -> float:
        """Seconds that its attempts and pauses have taken by `now`, on the operator's clock; 0 before any."""
        if self.attempt > 1:
            return now - self.started
        return now - self.began if self.attempt else 0.0

    def attempt_elapsed(self, now: float) -> float:
        """Seconds that its present attempt has taken by `now`, on the operator's clock."""
        return now - self.began


# A loop over the rows of a batch that reads or sets a slot costs five bytecodes a row; these cost one load.
ATTEMPT, BEGAN, COST, EXECUTION, HANDLE, HELD = (
    Slot(Call, name) for name in ("attempt", "began", "cost", "execution", "handle", "held")
)
INPUT, KEY, LOOKED, ROW, WAITS_SINCE = (
    Slot(Call, name) for name in ("input", "key", "looked", "row", "waits_since")
)
"""One slot of many calls at a time."""

Chunk: TypeAlias = list[tuple[Call, Any]]
"""Calls that have ended, each with the result of its row."""

TakesResult: TypeAlias = Callable[[Call, Any], None] | None
"""Takes a call and its result; None for nothing that does."""

TakesResults: TypeAlias = Callable[[Sequence[Call], Sequence[Any]], None]
"""Takes calls, and a result for each."""


class OperatorFunctions(NamedTuple):
    """The functions of an operator for its scheduler.

    complete: takes a row and its result, once for each. stop: takes the error that ends the job. finished:
    gives the rows that have finished, those before a restore included. complete_all: takes rows that were
    called together, as `complete` takes each; None where each is taken alone.
    """

    complete: Callable[[Call, Any], None]
    stop: Callable[[BaseException], None]
    finished: Callable[[], int]
    complete_all: TakesResults | None = None


class RestoredCall(Call):
    """A row that had been called before its snapshot. Its `started` is set, before its next attempt too."""

    __slots__ = ()

    def elapsed(self, now: float) -> float:
        """Seconds that its attempts and pauses have taken, those before the snapshot included."""
        return now - self.started


class CallState(NamedTuple):
    """A row that is not finished.

    attempts: those that have failed; one that runs is begun again, with the same number. spent: seconds of
    `timeout` that are over. pause: seconds until the next attempt; None where none is waited for.
    refused_for: seconds since the service refused the row for the first time. repeats: attempts
    that the function asked to be followed by another at once.
    """

    row: Any
    attempts: int = 0
    spent: float = 0.0
    pause: float | None = None
    error: BaseException | None = None
    cost: float = 0.0
    uncharged: int = 0
    refusals: int = 0
    refused_for: float | None = None
    repeats: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors of clients hold connections and headers, which do not pickle: class and text are kept.
        error = None if self.error is None else (type(self.error).__name__, said(self.error))
        return call_state_from, (*self[:4], error, *self[5:])


def call_state_from(
    row: Any, attempts: int, spent: float, pause: float | None, error: Any, *more: Any
) -> CallState:
    """The state of a call, as its pickle keeps it: errors by class and text."""
    return CallState(row, attempts, spent, pause, error and error_of(*error), *more)


def state_of(call: Call, now: float, loop: asyncio.AbstractEventLoop, is_pausing: bool) -> CallState:
    """The state of a call that has no result. now: by the operator's clock.

    is_pausing: it may not begin yet.
    """
    attempts = call.attempt
    timer = call.pause if call.execution is None else call.execution.timer
    if not attempts:
        # What lacked something of its process pauses without an attempt; others wait for somebody else's.
        is_pausing = is_pausing and timer is not None
    elif not is_pausing and call.execution is not None:
        # A batch has its rows before its call begins.
        attempts -= getattr(call.execution, "started", True)
    state = CallState(call.row, attempts, call.elapsed(now), cost=call.cost)
    if is_pausing:
        state = state._replace(pause=time_left(timer, loop))
    if not attempts:
        return state
    since = call.refused_since
    return state._replace(
        error=call.error,
        uncharged=call.uncharged,
        refusals=call.refusals,
        refused_for=None if since is None else loop.time() - since,
        repeats=call.repeats,
    )
