"""The call that runs, as its function may see it: of which row, which attempt of it, and until when.

`CURRENT` is set by the runners, each in the context of its calls; a `CurrentCall` is for any thread.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pillarbox.aio.errors import said
from pillarbox.ledger.errors import LedgerValueError
from pillarbox.ledger.keys import fingerprint

if TYPE_CHECKING:
    from pillarbox.aio.calls import Call
    from pillarbox.aio.scheduler import CallScheduler
    from pillarbox.aio.usage import Usage

CURRENT: ContextVar[Any] = ContextVar("pillarbox_current_call")
"""A `CurrentCall`; or a worker, which carries one call after the other and knows the present one."""

IDENTITY_CHARACTERS_LOGGED = 8
"""Characters of an identity that the text of a log message has; the record has all of them."""

log = logging.getLogger("pillarbox.call")


class CurrentCall:
    """The call in which `current_call` was asked: one attempt of a row, or of the rows of a batch.

    Any thread. What it says is that of the moment in which it is asked.
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
        """32 hexadecimal digits that name the row, in each attempt of it and in each run.

        Those of its key where there is a ledger, otherwise of its content: rows that are equal share it then.
        Of a batch those of its rows together. Tells nothing of the content.
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
        """The error that the attempt before has ended with; None in the first.

        Of a batch that of the first row which has one.
        """
        return next((call.error for call in self._calls if call.error is not None), None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `timeout`, or the time of one attempt, ends the call; None without such a limit."""
        left = [self._scheduler.seconds_left(call) for call in self._calls]
        return min([seconds for seconds in left if seconds is not None], default=None)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger "pillarbox.call", whose records have the row's identity, attempt, error and time left.

        As the attributes `row`, `attempt`, `last_error` (redacted) and `seconds_left`; row and attempt stand
        in the message as well.
        """
        return _CallLogger(self)

    def bill_request(self, usage: Usage, seconds: float, *, knows_cost: bool) -> None:
        """Count what a request of the call used, which has been answered after so long.

        For clients whose result is what a user wants of them by hand too, and cannot say it besides: others
        give a `Result`. knows_cost: False where `usage` has tokens alone, and no price.
        """
        self._scheduler.bill_request(self._calls, usage, seconds, knows_cost)

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
        row = tuple(call.row) if getattr(type(call.row), "is_view", False) else call.row
        try:
            key = fingerprint(row)
        except LedgerValueError:
            # A row that has no form of its own is known as the object that it is, in this process.
            key = fingerprint(id(call.row))
    return key.hex()
