"""The errors of calls: what a row's call can end with, said with the row, the attempts and the cause."""

from __future__ import annotations

import traceback

from pillarbox.kernel import PillarboxError

_ROW_CHARACTERS = 200


def shorten(value: object, limit: int = _ROW_CHARACTERS) -> str:
    """A one-line picture of `value` of at most `limit` characters; never raises."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class CallFailed(PillarboxError):
    """A call that failed for good: in its last attempt, or with an error that is not retried.

    The error of that attempt is `cause` (and `__cause__`, with its traceback). `trace` is the traceback
    as text, where the error travels to another process, which loses `__cause__`.
    """

    def __init__(
        self, attempts: int, cause: BaseException, row: str | None = None, trace: str | None = None
    ) -> None:
        super().__init__(attempts, cause, row, trace)
        self.attempts = attempts
        self.cause = cause
        self.row = row
        self.trace = trace
        self.__cause__ = cause

    def __str__(self) -> str:
        where = "" if self.row is None else f" for row {self.row}"
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        trace = "" if self.trace is None else f"\n\nThe original traceback:\n{self.trace}"
        return f"call failed after {times}{where}: {type(self.cause).__name__}: {self.cause}{trace}"

    def with_trace(self) -> CallFailed:
        """The same error with the traceback of its cause as text."""
        lines = traceback.format_exception(type(self.cause), self.cause, self.cause.__traceback__)
        return CallFailed(self.attempts, self.cause, self.row, "".join(lines))


class CallTimeout(PillarboxError, TimeoutError):
    """A call that had no result in time.

    `seconds` is the limit that it met, `limit` the argument that set it: "timeout" (all attempts) or
    "attempt_timeout" (one). `attempts` counts the attempts that were begun. `detail` says more where
    there is more to say.
    """

    def __init__(
        self, limit: str, seconds: float, attempts: int, row: str | None = None, detail: str | None = None
    ) -> None:
        super().__init__(limit, seconds, attempts, row, detail)
        self.limit = limit
        self.seconds = seconds
        self.attempts = attempts
        self.row = row
        self.detail = detail

    def __str__(self) -> str:
        where = "" if self.row is None else f" for row {self.row}"
        detail = "" if self.detail is None else f"\n\n{self.detail}"
        return f"no result within {self.limit}={self.seconds:g} s, in attempt {self.attempts}{where}{detail}"
