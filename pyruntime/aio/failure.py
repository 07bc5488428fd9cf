"""What a row that failed for good leaves behind: the result that stands for it, and what is said about it.

Values without state: safe in any thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pillarbox.aio.errors import CallFailed, CallTimeout, NotCalled
from pillarbox.aio.status import status_of

MESSAGE_CHARACTERS = 1000


class ErrorInfo(NamedTuple):
    """What is said about a row that failed for good."""

    type: str
    """The class of the function's error; `CallTimeout` for a limit of time, `NotCalled` for no call."""
    message: str
    """Its text, shortened."""
    attempts: int
    """Attempts begun."""
    latency: float
    """Seconds from the start of the first attempt to the end of the last; 0 without any."""
    status: int | None
    """The status of an HTTP answer, where the error has one."""
    uid: str | None = None
    """The function of a chain in which the row failed; None where there is one function only."""

    def told(self) -> dict[str, Any]:
        """What is written down of it."""
        told = self._asdict()
        if self.uid is None:
            del told["uid"]
        return told


class Outcome(NamedTuple):
    """One item's result under `errors="column"`: one of the two is None, unless the function gave None."""

    result: Any
    error: ErrorInfo | None


class Failed:
    """Stands in the operator's output for the result of a row that failed for good."""

    __slots__ = ("info", "not_called")

    def __init__(self, info: ErrorInfo, not_called: bool = False) -> None:
        self.info = info
        self.not_called = not_called

    def __repr__(self) -> str:
        return f"a failed row ({self.info.type}: {self.info.message})"


def describe(error: CallFailed | CallTimeout | NotCalled, latency: float) -> ErrorInfo:
    """What `errors="column"` and dead letters say about an error."""
    cause = error.cause if isinstance(error, CallFailed) else error
    message = error.reason
    if len(message) > MESSAGE_CHARACTERS:
        message = message[: MESSAGE_CHARACTERS - 1] + "…"
    return ErrorInfo(type(cause).__name__, message, error.attempts, latency, status_of(cause))
