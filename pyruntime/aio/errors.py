"""The errors of calls, with row, attempts and cause, and what stands for the result of a failed row."""

# Why each error is made of its fields and makes its text in `__str__`. An exception pickles as its class and
# `args`: one that passes its text alone cannot be made again in the driver, or is made with the text in the
# place of its first argument.
#
# Why `cause` stands beside `__cause__`: pickle drops the second, and Python's own printing knows only that.
#
# Why an error's text is never trusted to be one. `repr` of a row and `str` of an error are code of others,
# run where a failure is being reported: an exception in them would take the place of the failure, or end the
# task for a row that was to be dropped.

from __future__ import annotations

import builtins
import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from pillarbox.kernel import PillarboxError
from pillarbox.redaction import DEFAULT, Redact
from pillarbox.user_frames import shows_all_frames
from pillarbox.wire import Kind, leaves, status_of

_ROW_CHARACTERS = 200
MESSAGE_CHARACTERS = 1000
_TRACE_LINES = 200
_GROUP_MEMBERS = 3

# Spark's own error has an error of a worker as text only, with traceback and shortened lines, and Python's
# has no pickled form that is safe to read. So a line of JSON says it once more, and `from_text` reads that.
_MARK = "[pillarbox] "
_MARKED = re.compile(r'\[pillarbox\] \{"error": "(?P<name>\w+)"')
"""Begins the line that says an error once more, for programs that have no more of it than its text."""
LONG_BINARY = 100
"""Characters at which the picture of a binary value, or of base64, becomes its size."""
_BINARY = re.compile(r"""(?<![A-Za-z0-9_])b(?:'[^']*'|"[^"]*")""")
_LONG_WORD = re.compile(rf"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{{{LONG_BINARY},}}={{0,2}}")


def shorten(
    value: object, limit: int = _ROW_CHARACTERS, redact: Redact = DEFAULT, *, binaries: bool = False
) -> str:
    """A one-line picture of `value`, redacted, of at most `limit` characters; never raises.

    binaries: with the contents of binary values; otherwise with the sizes of long ones.
    """
    try:
        text = repr(value if binaries else _light(value))
    except BaseException as error:
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    if not binaries:
        text = without_binaries(text)
    # Before it is cut: half a key is known by nobody.
    return cut(redact.text(" ".join(text.split())), limit)


class _Size:
    """Stands for a binary value in the picture of a row."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __repr__(self) -> str:
        return f"<{self._size:,} bytes>"


def _light(value: object, depth: int = 3) -> object:
    """`value` without long binary values, also in collections: to write megabytes takes a second."""
    kind = type(value)
    if kind is bytes or kind is bytearray:
        size = len(value)  # type: ignore[arg-type]
        return value if size < LONG_BINARY else _Size(size)
    if not depth:
        return value
    if kind is dict:
        return {name: _light(each, depth - 1) for name, each in value.items()}  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        return kind([_light(each, depth - 1) for each in value])  # type: ignore[attr-defined]
    return value


def without_binaries(text: str) -> str:
    """The picture of a value without the contents of images and files in it: the size in their place.

    These are binary values of more than some bytes, and what is as long a word in base64.
    """
    if len(text) < LONG_BINARY:
        return text
    if "b'" in text or 'b"' in text:
        text = _with_sizes(text)
    return _LONG_WORD.sub(_size_of_base64, text)


def _size_of_base64(found: re.Match[str]) -> str:
    word, start = found[0], found.start()
    head = word[:LONG_BINARY]
    is_mixed = head != head.lower() and head != head.upper() and any(map(str.isdigit, head))
    if is_mixed or found.string.endswith("base64,", 0, start):
        return f"<{len(word):,} characters>"
    return word


def _with_sizes(text: str) -> str:
    # Not by a pattern of escapes: it takes 80 times the memory of the text.
    masked = text.replace("\\\\", "??").replace("\\'", "??").replace('\\"', "??")
    parts, at = [], 0
    for found in _BINARY.finditer(masked):
        start, end = found.span()
        if end - start >= LONG_BINARY:
            # An escape is one byte: \xff, \n, \\.
            plain = text[start + 2 : end - 1].replace("\\\\", "?")
            size = len(plain) - plain.count("\\") - 2 * plain.count("\\x")
            parts += [text[at:start], f"<{size:,} bytes>"]
            at = end
    return "".join([*parts, text[at:]])


def said(error: BaseException, redact: Redact = DEFAULT) -> str:
    """Say what `error` says, redacted, in 1,000 characters at most; never raises, as an error's own text may.

    A group of errors, as a task group raises it, says what its members say.
    """
    text = redact.told(error)
    members = [*leaves(error)]
    if members != [error]:
        parts = [f"{type(each).__name__}: {said(each, redact)}" for each in members[:_GROUP_MEMBERS]]
        more = len(members) - len(parts)
        text = f"{text}: {'; '.join(parts)}{f'; and {more} more' if more else ''}"
    return cut(text, MESSAGE_CHARACTERS)


def named(error: BaseException) -> str:
    """Return the name of an error's type, and the text of `said` where there is any."""
    text = said(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def cut(text: str, limit: int) -> str:
    """The text, of at most `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def frames_of(error: BaseException, redact: Redact = DEFAULT) -> str:
    """The frames of the user's code of `error` as text; with `PILLARBOX_FULL_TRACEBACK` its whole traceback.

    Each line is indented. No line of it, and not the whole, is longer than can be read.
    """
    if shows_all_frames():
        text = "\n".join(f"  {line}" for line in redact.printed(error).split("\n"))
    else:
        text = redact.shown(error)
    lines = [cut(line, MESSAGE_CHARACTERS) for line in text.split("\n")] if text else []
    if len(lines) > _TRACE_LINES:
        half = _TRACE_LINES // 2
        lines = [*lines[:half], f"  … ({len(lines) - 2 * half:,} lines)", *lines[-half:]]
    return "\n".join(lines)


class _ErrorOfFields(PillarboxError):
    """The base of errors that are dataclasses: all their fields are what they pickle as."""

    def __post_init__(self) -> None:
        super().__init__(*self._values())
        self.__cause__ = getattr(self, "cause", None)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, each.name) for each in dataclasses.fields(self))  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values()


@dataclass(eq=False, repr=False)
class CallFailed(_ErrorOfFields):
    """Error of a row whose call failed for good: in its last attempt, or with an error that is not retried.

        >>> from pillarbox import CallFailed, async_map
        >>> async def call(row):
        ...     return 10 // row
        >>> try:
        ...     list(async_map([5, 0], call))
        ... except CallFailed as failed:
        ...     print(failed.row, failed.attempts, repr(failed.cause))
        0 1 ZeroDivisionError('integer division or modulo by zero')

    `row` is the text of the row, shortened; `attempts` counts the attempts. `cause` (and `__cause__`, with
    its traceback) is the error of the last attempt. `trace` has the frames of your code in that traceback
    as text if the error comes from another process, which loses `__cause__`. `detail` gives more information
    if there is any.

    Texts are redacted as `Redact` defines. `cause` is the error itself; if redaction changes its text,
    `__cause__` is a substitute with the same class name. Any thread.
    """

    attempts: int
    cause: BaseException
    row: str | None = None
    trace: str | None = None
    detail: str | None = None
    redact = DEFAULT
    """The rule for what is taken out of the texts."""

    def __str__(self) -> str:
        where = "" if self.row is None else f" for row {self.row}"
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        said = f"call failed after {times}{where}: {type(self.cause).__name__}: {self.reason}"
        # One line, and the frames: a reader of the text finds both from the mark at its end.
        return said if self.trace is None else f"{' '.join(said.split())}\n{self.trace}"

    @property
    def reason(self) -> str:
        """The text of the cause, and the detail."""
        text = said(self.cause, self.redact)
        return text if self.detail is None else f"{text} ({self.detail})"

    def redacted(self) -> CallFailed:
        """The same, to be raised: those that it was raised from are printed with it."""
        self.__cause__ = self.redact.sealed(self.cause)
        return self

    def with_trace(self) -> CallFailed:
        """The same error with the traceback of its cause as text, from which `from_text` has it again."""
        told = {
            "error": "CallFailed",
            "attempts": self.attempts,
            "row": self.row,
            "type": type(self.cause).__name__,
            "message": self.reason[:MESSAGE_CHARACTERS],
        }
        frames = frames_of(self.cause, self.redact)
        trace = f"{frames}\n{_marked(told)}" if frames else _marked(told)
        found = CallFailed(self.attempts, self.cause, self.row, trace, self.detail)
        found.redact = self.redact
        return found.redacted()


@dataclass(eq=False, repr=False)
class OpenFailed(_ErrorOfFields):
    """Error of a function that is a resource and could not be opened: no row was called.

        >>> from pillarbox import async_map
        >>> from pillarbox.aio.errors import OpenFailed
        >>> class Service:
        ...     async def __aenter__(self):
        ...         raise PermissionError("no key is set")
        ...     async def __aexit__(self, *error):
        ...         return None
        ...     async def __call__(self, row):
        ...         return row
        >>> try:
        ...     list(async_map([1], Service()))
        ... except OpenFailed as failed:
        ...     print(failed.function, failed.method, repr(failed.cause))
        Service __aenter__ PermissionError('no key is set')

    `function` is the name of its class, `method` "__aenter__" or "__enter__", and `cause` (and `__cause__`)
    the error of that method. Any thread.
    """

    function: str
    method: str
    cause: BaseException

    def __str__(self) -> str:
        return (
            f"{self.function} could not be opened: its {self.method} raised "
            f"{type(self.cause).__name__}: {said(self.cause)}"
        )


class KeptError(PillarboxError):
    """The error of a row of which only type and text are known: that of an earlier run, or of a worker.

    `call_failed` gives one of a class that is called as that of the function's error.
    """


@dataclass(eq=False, repr=False)
class CallTimeout(_ErrorOfFields, TimeoutError):
    """Error of a row whose call returned no result in time. A `TimeoutError`.

        >>> import asyncio
        >>> from pillarbox import CallTimeout, async_map
        >>> async def call(row):
        ...     await asyncio.sleep(3600)
        >>> try:
        ...     list(async_map(["a"], call, timeout=0.01))
        ... except CallTimeout as late:
        ...     print(late.limit, late.seconds, late.attempts)
        timeout 0.01 1

    `seconds` is the limit that was exceeded, `limit` the argument that set it: "timeout" (all attempts) or
    "timeout.attempt" (one attempt). `attempts` counts the attempts that began. `detail` gives more
    information if there is any. Any thread.
    """

    limit: str
    seconds: float
    attempts: int
    row: str | None = None
    detail: str | None = None

    def __str__(self) -> str:
        where = "" if self.row is None else f" for row {self.row}"
        detail = "" if self.detail is None else f"\n\n{self.detail}"
        return f"{self.reason}{where}{detail}"

    def with_trace(self) -> CallTimeout:
        """The same error with a text from which `from_text` has it again."""
        told = {
            "error": "CallTimeout",
            "limit": self.limit,
            "seconds": self.seconds,
            "attempts": self.attempts,
            "row": self.row,
        }
        detail = _marked(told) if self.detail is None else f"{self.detail.rstrip()}\n{_marked(told)}"
        return CallTimeout(self.limit, self.seconds, self.attempts, self.row, detail)

    @property
    def reason(self) -> str:
        """The limit and the attempt, without the row."""
        return f"no result within {self.limit}={self.seconds:g} s, in attempt {self.attempts}"


@dataclass(eq=False, repr=False)
class NotCalled(_ErrorOfFields):
    """Error of a row that was not called, or not again, because a budget is used up. Never raised.

        >>> from pillarbox import Budget, async_map
        >>> async def call(row):
        ...     return 10 * row
        >>> budget = Budget(max_calls=2)
        >>> outcomes = list(async_map([1, 2, 3], call, errors="column", budget=budget, capacity=1))
        >>> print(outcomes[2].error.type, outcomes[2].error.attempts, outcomes[2].error.message)
        NotCalled 0 not called, max_calls=2 is used up

    `reason` names the limit. `attempts` counts the attempts that began: all of them failed, with errors that
    are retried. `skipped_rows` finds such rows in a DataFrame. Any thread.
    """

    reason: str
    row: str | None = None
    attempts: int = 0

    def __str__(self) -> str:
        where = "" if self.row is None else f": row {self.row}"
        return f"{self.reason}{where}"


@dataclass(eq=False, repr=False)
class QuotaUsedUp(_ErrorOfFields):
    """Error of a job whose service takes no call for long: no credit, or a quota of the day is used up.

    `reason` names what is used up, and until when; `cause` is the last refusal. With `errors="column"` the
    job goes on, and its other rows fail with `NotCalled`. A later run with the same ledger calls the rows
    that were not called.

        >>> from pillarbox import QuotaUsedUp
        >>> print(QuotaUsedUp("the credit of the account", PermissionError("no credit")))
        the credit of the account is used up, and no row is called any more: PermissionError: no credit

    Any thread.
    """

    reason: str
    cause: BaseException

    def __str__(self) -> str:
        return f"{self.reason} is used up, and no row is called any more: {named(self.cause)}"


@dataclass(eq=False, repr=False)
class ServiceResting(_ErrorOfFields):
    """A call for which nothing was sent, since no address of its service takes calls for so many seconds.

    `reason` names the addresses, what each said, and until when it rests. The operator counts no attempt,
    holds back all calls until then, and makes this one again. is_of_quotas: the addresses are well, and the
    quotas of all are used up until then.
    """

    kind: ClassVar[Kind] = Kind.OVERLOADED
    reason: str
    seconds: float
    is_of_quotas: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """The seconds, in the form in which services say them."""
        return {"Retry-After": f"{self.seconds:.3f}"}

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False, repr=False)
class ResultRejected(_ErrorOfFields):
    """Error of an attempt whose result `Retry(result=...)` rejects; `result` is that result.

        >>> from pillarbox import CallFailed, Retry, async_map
        >>> async def call(row):
        ...     return ""
        >>> retry = Retry(attempts=2, initial=0.0, result=lambda text: not text)
        >>> try:
        ...     list(async_map([1], call, retry=retry))
        ... except CallFailed as failed:
        ...     print(failed.attempts, repr(failed.cause.result), failed.cause)
        2 '' the result '' is not accepted

    It is retried as other errors are. Any thread.
    """

    result: object

    @property
    def wire_carrier(self) -> object:
        """The result, which may be an answer of a client with a status and headers."""
        return self.result

    def __str__(self) -> str:
        return f"the result {shorten(self.result)} is not accepted"


@dataclass(eq=False, repr=False)
class BatchResultError(_ErrorOfFields, TypeError):
    """Error of a function that is called with batches and did not return one result per row. Never retried.

        >>> from pillarbox import Batch, CallFailed, async_map
        >>> async def call(rows):
        ...     return rows[1:]
        >>> try:
        ...     list(async_map([1, 2], call, batch=Batch(2)))
        ... except CallFailed as failed:
        ...     print(type(failed.cause).__name__, failed.cause.rows, failed.cause.gave)
        BatchResultError 2 1 results

    `function` is its name, `rows` the number of rows in the batch, and `gave` describes the value that it
    returned. Any thread.
    """

    function: str
    rows: int
    gave: str

    def __str__(self) -> str:
        return (
            f"{self.function} was called with a batch of {self.rows:,} rows and gave {self.gave}: it must "
            f"give a list of {self.rows:,} results, by position"
        )


@dataclass(eq=False, repr=False)
class TooManyFailures(_ErrorOfFields):
    """Error of a job in which more rows failed than `Errors.stop_after` allows.

    `limit` is that number or fraction, `cause` (and `__cause__`) the error of the last failed row.

        >>> from pillarbox import Errors, TooManyFailures, async_map
        >>> async def call(row):
        ...     return 10 // row
        >>> try:
        ...     list(async_map([0, 0, 5], call, errors=Errors("null", stop_after=1)))
        ... except TooManyFailures as failed:
        ...     print(failed.limit, type(failed.cause).__name__)
        1 CallFailed
    """

    failed: int
    finished: int
    limit: float
    cause: CallFailed | CallTimeout

    def __str__(self) -> str:
        return (
            f"{self.failed:,} of {self.finished:,} rows failed, more than stop_after={self.limit!r} allows; "
            f"the last: {self.cause}"
        )


class NothingSucceeded(TooManyFailures):
    """Error of a job whose rows so far all failed for one cause, as many as `Errors.floor` allows.

    Also of a job all of whose rows failed, under "null" or "drop". The text begins with the cause, that of
    the last row. `limit` is the floor, in rows.

        >>> from pillarbox import Errors, NothingSucceeded, async_map
        >>> async def call(row):
        ...     raise PermissionError("wrong key")
        >>> try:
        ...     list(async_map(range(50), call, capacity=1, errors=Errors("null", floor=3)))
        ... except NothingSucceeded as failed:
        ...     print(failed.limit, failed.cause.cause)
        3 wrong key
    """

    def __str__(self) -> str:
        error = self.cause
        kind = type(error.cause if isinstance(error, CallFailed) else error).__name__
        reason = " ".join(error.reason.split())
        return (
            f"{kind}: {reason} - so failed all {self.failed:,} rows that have finished, and no other row is "
            f"called; Errors(..., floor=None) goes on\nThe last: {error}"
        )


class ErrorInfo(NamedTuple):
    """Description of a row that failed for good, as an `Outcome` and the column `_error` show it.

        >>> from pillarbox import async_map
        >>> async def call(row):
        ...     return 10 // row
        >>> [outcome] = async_map([0], call, errors="column")
        >>> outcome.error.type, outcome.error.attempts, outcome.error.status
        ('ZeroDivisionError', 1, None)

    type: the name of the error's class. message: its text, redacted. attempts: the attempts that began.
    latency: seconds from the first attempt to the end. status: the HTTP status if the error has one. uid: the
    name of the function in a chain. An immutable tuple; any thread may use it.
    """

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
        """The fields that are written down, by name."""
        told = self._asdict()
        if self.uid is None:
            del told["uid"]
        return told


def describe(error: CallFailed | CallTimeout | NotCalled, latency: float) -> ErrorInfo:
    """Build what `errors="column"` and dead letters say about an error."""
    cause = error.cause if isinstance(error, CallFailed) else error
    message = cut(error.reason, MESSAGE_CHARACTERS)
    return ErrorInfo(type(cause).__name__, message, error.attempts, latency, status_of(cause))


class Outcome(NamedTuple):
    """Result or error of one item under `errors="column"`.

        >>> from pillarbox import async_map
        >>> async def call(row):
        ...     return 10 // row
        >>> for result, error in async_map([5, 0], call, errors="column"):
        ...     print(result, error and error.type)
        2 None
        None ZeroDivisionError

    result: the function's result; None for a failed item. error: an `ErrorInfo`; None if the call succeeded.
    An immutable tuple; any thread may use it.
    """

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


def _marked(told: dict[str, object]) -> str:
    return _MARK + json.dumps(told)


def from_text(text: str) -> CallFailed | CallTimeout | None:
    """The error that is the last one told in `text`, which holds that of its `with_trace`; None without one.

    The cause is of the class of the function's error where Python itself has it, and otherwise a `KeptError`
    of a class that has its name.
    """
    end = len(text)
    while (place := text.rfind(_MARK, 0, end)) >= 0:
        end = place
        try:
            told, _ = json.JSONDecoder().raw_decode(text, place + len(_MARK))
            if told["error"] == "CallTimeout":
                return CallTimeout(
                    str(told["limit"]), float(told["seconds"]), int(told["attempts"]), _row(told["row"])
                )
            if told["error"] == "CallFailed":
                cause = error_of(str(told["type"]), str(told["message"]))
                trace = "\n".join(_frames_before(text, place))
                return CallFailed(int(told["attempts"]), cause, _row(told["row"]), trace)
        except (KeyError, TypeError, ValueError):
            continue
    return None


def shown_in(text: str) -> tuple[str, list[str]] | None:
    """The sentence and the lines of the frames of the last marked error in `text`; None without one.

    The sentence begins with the name of the error's class, without what Spark writes in front of it.
    """
    place = text.rfind(_MARK)
    if place < 0:
        return None
    frames = _frames_before(text, place)
    before = text[:place].rstrip("\n").split("\n")
    sentence = before[-1 - len(frames)] if len(frames) < len(before) else ""
    marked = _MARKED.match(text, place)
    # An error that counts others has the mark of the last of these.
    found = marked and re.search(rf"(?<!\w)(?={marked['name']}: )", sentence)
    found = found or re.search(r"(?<!\w)pillarbox\.(?:\w+\.)+(?=\w+: )", sentence)
    return sentence if found is None else sentence[found.end() :], frames


def _frames_before(text: str, place: int) -> list[str]:
    """The indented lines in front of the place of a mark."""
    found: list[str] = []
    for line in reversed(text[:place].rstrip("\n").split("\n")):
        if not line.startswith("  "):
            break
        found.append(line)
    return found[::-1]


def marked(text: str, error: BaseException) -> str:
    """`text`, which is of an error of any other class, with the line by which `shown_in` finds it."""
    return f"{text}\n{_marked({'error': type(error).__name__})}"


def _row(row: object) -> str | None:
    return None if row is None else str(row)


def error_of(name: str, message: str) -> BaseException:
    """An error of a class of this name that says `message`: one of Python's own, or else a `KeptError`."""
    # So that `except ValueError` on the driver meets what was a ValueError in the task. Not by importing the
    # module that a text names: the text comes from a worker, and an import runs what it finds.
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            cause: Exception = known(message)
            if str(cause) == message:
                return cause
        except TypeError:
            # One that is made of more than its text.
            pass
    kept: BaseException = type(name, (KeptError,), {})(message)
    return kept
