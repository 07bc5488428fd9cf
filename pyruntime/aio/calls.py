"""The calls of one operator: rows admitted, waiting, running, restored; and the call as its function sees it.

Confined to the mailbox thread. `CallState` is a value, and a `CurrentCall` is for any thread; `CURRENT` is
set by the runners, each in the context of its calls.
"""

# One object a row holds all that is known of its call, with slots. The alternatives are worse on the path
# of every row: a dictionary of calls by row needs rows that can be hashed, a state object for each stage of
# a call is made and dropped three times a row, and a future for each call costs more than the call of a
# plain function. Most slots are set only where they are needed (`started`, `weight`, `key`): an attribute
# that nobody reads costs a store a row.

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from pillarbox.aio.errors import error_of, said
from pillarbox.kernel import Deadlines
from pillarbox.ledger.errors import LedgerValueError
from pillarbox.ledger.keys import fingerprint

if TYPE_CHECKING:
    from pillarbox.aio.scheduler import CallScheduler
    from pillarbox.aio.usage import Usage

CURRENT: ContextVar[Any] = ContextVar("pillarbox_current_call")
"""A `CurrentCall`; or a worker, which carries one call after the other and knows the present one."""

IDENTITY_CHARACTERS_LOGGED = 8
"""Characters of an identity that the text of a log message has; the record has all of them."""

log = logging.getLogger("pillarbox.call")

K = TypeVar("K")


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
    and `weight` what it weighs in a batch. Behind another function of a chain `source`, `ordinal` and
    `identity` are as `ChainedRow` says.
    """

    __slots__ = (
        *("row", "held", "handle", "attempt", "execution", "pause", "deadline", "attempt_deadline", "began"),
        *("started", "error", "uncharged", "refusals", "refused_since", "repeats", "cost"),
        *("units", "waits_since", "weight", "key", "input", "looked", "source", "ordinal"),
        "identity",
    )

    began: float
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


TakesResult: TypeAlias = Callable[[Call, Any], None] | None
"""Takes a call and its result; None for nothing that does."""


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


class ResultConverter(Protocol):
    """Makes of results the form in which they leave."""

    def convert(self, result: Any) -> Any:
        """The form in which `result` leaves; what it raises is the error of the attempt that gave it.

        What it gave once, it gives back as it is.
        """

    def convert_all(self, results: list[Any]) -> list[Any]:
        """The forms in which the results of a batch leave; raises what `convert` raises for one of them."""

    def rows_of(self, results: Any) -> list[Any] | None:
        """The converted results of a batch that are kept in one block, such as a matrix; None for others.

        Or what `elements_of` gives.
        """

    def elements_of(self, results: Any) -> list[Any] | None:
        """The results of a batch as they are, where a collection says of some that they are missing.

        With None in their places, where its own elements say otherwise. None for other collections.
        """


# `loop.call_later` for each call would be simpler. It makes a handle and a heap entry for each, compares
# handles in Python, and sweeps the heap whenever half of it is cancelled, as nearly all time-outs are. Here
# a deadline is a handle of the kernel's timers, and the loop has one timer, for the deadline that comes
# first. All have the same time to live, so they expire in the order in which they were armed, and that
# timer need not be moved: for one that was cancelled meanwhile it fires and finds nothing.


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of `loop`, in seconds: the monotonic one, unless the loop has a time of its own, as in tests.

    uvloop's own reading of it is that of the beginning of the turn, in milliseconds.
    """
    kind = type(loop)
    is_usual = kind.time is asyncio.BaseEventLoop.time or kind.__module__.startswith("uvloop")
    return time.monotonic if is_usual else loop.time


def time_left(timer: asyncio.TimerHandle | None, loop: asyncio.AbstractEventLoop) -> float:
    """Seconds until `timer` of `loop` fires; 0.0 for none, and where that is in this turn."""
    # A timer of uvloop that is due at once has no time.
    when = getattr(timer, "when", None)
    return 0.0 if when is None else max(0.0, when() - loop.time())


class CallDeadlines(Generic[K]):
    """A deadline per arming, `seconds` after it, on the loop's monotonic clock.

    `cancel(handle)` forgets an arming; no effect when it has expired, was cancelled, or for -1.
    """

    __slots__ = ("_expired", "_loop", "_timer", "_timers", "cancel", "seconds")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expired: Callable[[K], None]) -> None:
        self.seconds = seconds
        self._loop = loop
        self._expired = expired
        usual = sys.platform == "linux" and type(loop).time is asyncio.BaseEventLoop.time
        self._timers = Deadlines(None if usual else loop.time)
        self._timer: asyncio.TimerHandle | None = None
        self.cancel = self._timers.cancel

    def arm(self, key: K) -> int:
        """Have `expired(key)` called in `seconds`, unless the handle that is returned is cancelled."""
        handle = self._timers.arm(self.seconds, key)
        if self._timer is None:
            self._schedule()
        return handle

    def arm_rest(self, key: K, spent: float) -> int:
        """As `arm`, where so many of the seconds were spent before a restore."""
        handle = self._timers.arm(max(0.0, self.seconds - spent), key)
        if self._timer is not None:
            self._timer.cancel()
        self._schedule()
        return handle

    def oldest(self) -> tuple[K, float] | None:
        """The key that expires first, and when, by the loop's clock. Any thread, as an estimate."""
        return self._timers.peek()

    def close(self) -> None:
        """Forget every key; nothing expires any more."""
        self._timers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        deadline = self._timers.next_deadline()
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # One at a time, because what an expiry does may cancel the next one; no more than there are now,
        # because it may also arm.
        for _ in range(len(self._timers)):
            expired = self._timers.expire(1)
            if not expired:
                break
            self._expired(expired[0])
        if self._timer is None:
            self._schedule()


class CurrentCall:
    """Running call, as `current_call` returns it: one attempt of a row, or of the rows of a batch.

        >>> from pillarbox import async_map, current_call
        >>> async def call(row):
        ...     return current_call().identity
        >>> first, second, again = async_map(["a", "b", "a"], call)
        >>> first == again, first == second
        (True, False)

    Any thread. Its properties report the moment at which they are read.
    """

    __slots__ = ("_attempts", "_calls", "_identity", "_scheduler")

    def __init__(self, scheduler: CallScheduler, calls: Sequence[Call]) -> None:
        self._scheduler = scheduler
        self._calls = calls
        self._attempts = [call.attempt for call in calls]
        self._identity: str | None = None

    def __repr__(self) -> str:
        return f"<call of row {self.identity}, attempt {self.attempt}>"

    @property
    def rows(self) -> tuple[CurrentCall, ...]:
        """The call of each row of a batch alone, by position."""
        return tuple([CurrentCall(self._scheduler, (call,)) for call in self._calls])

    @property
    def identity(self) -> str:
        """32 hexadecimal digits that name the row, the same in each attempt of it and in each run.

        With a ledger they are those of its key, otherwise of its content: equal rows then share them.
        For a batch they are those of its rows together. They do not reveal the content.
        """
        if self._identity is None:
            names = [_identity_of(call) for call in self._calls]
            self._identity = names[0] if len(names) == 1 else fingerprint(names).hex()
        return self._identity

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1; of a batch the largest of its rows."""
        return max(self._attempts)

    @property
    def error(self) -> BaseException | None:
        """The error of the previous attempt; None in the first.

        For a batch that of the first row with an error.
        """
        return next((call.error for call in self._calls if call.error is not None), None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `timeout`, or the limit of one attempt, ends the call; None without such a limit."""
        limits, now = self._scheduler.options.timeout, self._scheduler.clock()
        left = []
        for call in self._calls:
            if limits.total is not None:
                left.append(limits.total - call.elapsed(now))
            if limits.attempt is not None:
                left.append(limits.attempt - (now - call.began))
        return max(0.0, min(left)) if left else None

    @property
    def waits_for_service(self) -> bool:
        """True if the call is made again, apart from its attempts, where nothing was sent for it.

        For clients that know of each address of a service whether it takes calls.
        """
        scheduler = self._scheduler
        breaker = scheduler.breaker
        return scheduler.can_break and (breaker is None or not breaker.has_given_up)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger "pillarbox.call", whose records have the row's identity, attempt, error and time left.

        They are the attributes `row`, `attempt`, `last_error` (redacted) and `seconds_left`; row and attempt
        are in the message as well.
        """
        return _CallLogger(self)

    def bill_request(self, usage: Usage, seconds: float, *, knows_cost: bool) -> None:
        """Count the usage of a request of the call that took `seconds`.

        For clients whose result is also for direct use and cannot carry its usage: others
        return a `Result`. knows_cost: False if `usage` has tokens alone, and no price.
        """
        self._scheduler.bill_request(self._calls, usage, seconds, knows_cost)

    def suggest_rows(self, share: float) -> None:
        """Limit later batches of the function to this multiple of the rows of this call.

        For clients that know a service's limit and would have to divide larger ones. share: infinite for no
        limit. No effect without batches. Any thread.
        """
        # The loop may have ended, of a thread that goes on.
        with suppress(RuntimeError):
            self._scheduler.loop.call_soon_threadsafe(
                self._scheduler.runner.suggest_rows, len(self._calls) * share
            )

    def fields(self) -> dict[str, Any]:
        """The attributes of the records of `logger`."""
        error = self.error
        told = None
        if error is not None:
            text = said(error, self._scheduler.options.errors.redaction)
            told = f"{type(error).__name__}: {text}"
        return {
            "row": self.identity,
            "attempt": self.attempt,
            "last_error": told,
            "seconds_left": self.seconds_left,
        }


class _CallLogger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Adds the fields of a call to the records of the logger, when there is a record."""

    def __init__(self, call: CurrentCall) -> None:
        super().__init__(log, {})
        self._call = call

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        fields = self._call.fields()
        name = fields["row"][:IDENTITY_CHARACTERS_LOGGED]
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **fields}
        return f"[row {name}, attempt {fields['attempt']}] {msg}", kwargs


def running_call() -> CurrentCall | None:
    """The call that runs; None where there is none.

    For a function that asks in its own coroutine or thread. Its child tasks may find a later call of the
    same worker, unless `pillarbox.aio.current` has been imported, which makes each call dearer.
    """
    found = CURRENT.get(None)
    current: CurrentCall | None = (
        found if found is None or isinstance(found, CurrentCall) else found.current()
    )
    return current


def _identity_of(call: Call) -> str:
    key: bytes | None = getattr(call, "key", None)
    if key is None:
        # A view of a batch of Spark is known by its values.
        row = tuple(call.row) if getattr(type(call.row), "__is_view__", False) else call.row
        try:
            key = fingerprint(row)
        except LedgerValueError:
            # A row that has no form of its own is known as the object that it is, in this process.
            key = fingerprint(id(call.row))
    return key.hex()
