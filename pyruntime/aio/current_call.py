"""The call that runs, as its function sees it, and what such a call may ask of its operator.

A `CurrentCall` is for any thread; `CURRENT` is set by the runners, each in the context of its calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from pillarbox.aio.calls import ATTEMPT, Call
from pillarbox.aio.errors import said
from pillarbox.aio.options import Timeout
from pillarbox.aio.usage import Usage
from pillarbox.ledger.errors import LedgerValueError
from pillarbox.ledger.keys import fingerprint
from pillarbox.redaction import Redact

CURRENT: ContextVar[Any] = ContextVar("pillarbox_current_call")
"""A `CurrentCall`; or a worker, which carries one call after the other and knows the present one."""


IDENTITY_CHARACTERS_LOGGED = 8
"""Characters of an identity that the text of a log message has; the record has all of them."""


log = logging.getLogger("pillarbox.call")


class CallServices(NamedTuple):
    """Services of an operator for its running calls. The functions are for any thread, but where noted.

    bill_request: counts the usage of a request: calls, usage, seconds, whether the cost is known; for a
    thread with a running loop. endpoints: the `EndpointServices` for clients of several addresses; None where
    no ring has such clients.
    report_limits: takes calls and the headers of an answer to them, on the thread of `loop`.
    suggest_rows: limits the rows of later batches; on the thread of `loop`.
    """

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    timeout: Timeout
    redact: Redact
    bill_request: Callable[[Sequence[Call], Usage, float, bool], None]
    endpoints: Any
    report_limits: Callable[[Sequence[Call], object], None]
    suggest_rows: Callable[[float], None]


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

    __slots__ = ("_attempts", "_calls", "_identity", "_services")

    def __init__(self, services: CallServices, calls: Sequence[Call]) -> None:
        self._services = services
        self._calls = calls
        self._attempts: list[int] = ATTEMPT.of(calls)
        self._identity: str | None = None

    def __repr__(self) -> str:
        return f"<call of row {self.identity}, attempt {self.attempt}>"

    @property
    def rows(self) -> tuple[CurrentCall, ...]:
        """The call of each row of a batch alone, by position."""
        return tuple([CurrentCall(self._services, (call,)) for call in self._calls])

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
    def endpoint(self) -> Any:
        """The endpoint that was chosen for the attempt; None without one.

        An `Endpoint` of `Options(endpoints=...)`, or what `CallPolicy.choose` of a policy returned; for a
        client of several addresses the `Endpoint` of its last request.
        """
        return getattr(self._calls[0], "endpoint", None)

    @property
    def error(self) -> BaseException | None:
        """The error of the previous attempt; None in the first.

        For a batch that of the first row with an error.
        """
        return next((call.error for call in self._calls if call.error is not None), None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `timeout`, or the limit of one attempt, ends the call; None without such a limit."""
        limits, now = self._services.timeout, self._services.clock()
        left = []
        for call in self._calls:
            if limits.total is not None:
                left.append(limits.total - call.elapsed(now))
            if limits.attempt is not None:
                left.append(limits.attempt - call.attempt_elapsed(now))
        return max(0.0, min(left)) if left else None

    @property
    def waits_for_service(self) -> bool:
        """True if the call is made again, apart from its attempts, where nothing was sent for it.

        For clients that know of each address of a service whether it takes calls.
        """
        endpoints = self._services.endpoints
        return endpoints is not None and bool(endpoints.waits())

    def share_endpoints(self, pool: object) -> None:
        """Share the states of these endpoints with the other tasks of the job, if it has a coordinator.

        For clients that choose among endpoints by themselves. Any thread.
        """
        self._services.endpoints.share(pool)

    @property
    def avoided(self) -> tuple[Any, ...]:
        """The endpoints of the calls that this one hedges; none for one that hedges nothing."""
        return self._calls[0].avoided

    @property
    def demand(self) -> Any:
        """The demand of a request of the call on the limits of an endpoint."""
        return self._services.endpoints.demand(self._calls)

    def begin_request(self, pool: object, endpoint: object) -> None:
        """Note that a request of the call goes to one endpoint of several. Any thread.

        For clients that choose among endpoints by themselves: the limits that the next answer names are those
        of this endpoint, and a hedge goes to another one.
        """
        for call in self._calls:
            call.endpoint = endpoint
        if self._is_on_loop():
            self._services.endpoints.follow(pool)

    def _is_on_loop(self) -> bool:
        """Return True on the loop of the operator."""
        try:
            return asyncio.get_running_loop() is self._services.loop
        except RuntimeError:
            return False

    def count_request(self, pool: object, endpoint: object, seconds: float, is_fault: bool) -> None:
        """Count a request of the call at one endpoint of several. Any thread.

        For clients that choose among endpoints by themselves. is_fault: it ended with a fault of the
        endpoint.
        """
        self._services.endpoints.note(pool, endpoint, seconds, is_fault)

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
        self._services.bill_request(self._calls, usage, seconds, knows_cost)

    def report_limits(self, headers: Any) -> None:
        """Report the headers of an answer, from which the operator learns the limits of the service.

        headers: any mapping, as clients of HTTP give them. The clients of `pillarbox.clients` report them by
        themselves, and errors carry theirs. No effect beside a `Rate` without `learn=True`. Any thread.

            >>> from pillarbox import async_map, current_call
            >>> async def call(row):
            ...     headers = {"ratelimit-limit": "60", "ratelimit-remaining": "59", "ratelimit-reset": "60"}
            ...     current_call().report_limits(headers)
            ...     return row
            >>> list(async_map([1, 2], call))
            [1, 2]
        """
        services = self._services
        if self._is_on_loop():
            services.report_limits(self._calls, headers)
            return
        # The loop may have ended, of a thread that goes on.
        with suppress(RuntimeError):
            services.loop.call_soon_threadsafe(services.report_limits, self._calls, headers)

    def suggest_rows(self, share: float) -> None:
        """Limit later batches of the function to this multiple of the rows of this call.

        For clients that know a service's limit and would have to divide larger ones. share: infinite for no
        limit. No effect without batches. Any thread.
        """
        # The loop may have ended, of a thread that goes on.
        with suppress(RuntimeError):
            self._services.loop.call_soon_threadsafe(self._services.suggest_rows, len(self._calls) * share)

    def fields(self) -> dict[str, Any]:
        """The attributes of the records of `logger`."""
        error = self.error
        told = None
        if error is not None:
            text = said(error, self._services.redact)
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


def last_error() -> BaseException | None:
    """The error of the running call's previous attempt; None in the first, and where no call runs."""
    found = CURRENT.get(None)
    return None if found is None else found.error


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
