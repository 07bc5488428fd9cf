"""Turns an event on the wire, an answer or an error of any HTTP client, into one class: a `Kind`.

Pure; any thread. No client library is imported: an error is known by its attributes and its names.
"""

# Each client has errors of its own, and a user may use any of them. To import the clients in order to ask
# `isinstance` would cost each worker their import, and know those alone that were thought of. What they
# carry of the answer is nearly the same everywhere: a status, headers, a code, under a handful of names. So
# an error is read along the chain of its causes, as clients wrap each other's errors. The first error that
# has an answer decides; without one, the outermost that says something decides, since a wrapper knows more
# of its request (a body that was cut) than the socket below it (a reset). Properties of clients can raise
# anything, so each is read under a guard.
#
# All that is known stands in the table of `pillarbox.wire_table`.

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from pillarbox.wire_table import (
    CODES,
    CODES_BESIDE,
    CONTENT_CODES,
    ERRNOS,
    ERRORS,
    EXHAUSTED_ERRNOS,
    FORM_STATUSES,
    HTTPX_WORDS,
    NAMES_CREDIT,
    NAMES_MODEL,
    NO_FORM_STATUSES,
    OF_CONNECTIONS,
    RESOLVER,
    RETRY_AFTER_HEADERS,
    RETRY_AFTER_MS_HEADERS,
    TRAITS,
    Kind,
    kind_of_finish,
    kind_of_status,
)

__all__ = [
    "EXHAUSTED_ERRNOS",
    "Kind",
    "Reading",
    "causes_of",
    "delay_of",
    "error_in",
    "exhaustion_in",
    "is_overload",
    "is_permanent",
    "is_unreached",
    "is_unsent",
    "kind_of_finish",
    "kind_of_status",
    "leaves",
    "may_have_poison_row",
    "may_refuse_form",
    "numbers_of",
    "of_all_rows",
    "read_answer",
    "read_error",
    "retry_after_of",
    "status_of",
]

MAX_CAUSES = 8
"""Errors looked at along each chain of causes: a chain can be a circle."""
MAX_BODY_BYTES = 65_536
"""A longer body is not parsed: it is not an error message."""
MAX_MESSAGE_CHARACTERS = 1_000
"""Characters kept of a service's own words."""


_NO_THREAD = "can't start new thread"
"""The words of CPython for a thread that the system does not start."""
_ERRNO_IN_TEXT = re.compile(r"\[Errno (-?\d+)\]")


class Reading(NamedTuple):
    """Event on the wire, as `read_answer` and `read_error` return it.

        >>> from pillarbox.wire import read_answer
        >>> read = read_answer(404, {})
        >>> read.kind.name, read.status, read.is_final
        ('REFUSED_ROW', 404, True)

    status: the HTTP status, if a service sent one. code: the code of the service, of AWS or of gRPC.
    retry_after: seconds that the service asked to wait. location: of a redirect. message: the service's
    text. is_marked_final: True if an error marks itself as final. An immutable tuple; any thread may use it.
    """

    kind: Kind
    status: int | None = None
    code: str | None = None
    retry_after: float | None = None
    location: str | None = None
    message: str | None = None
    is_marked_final: bool = False

    @property
    def is_final(self) -> bool:
        """True if the same request would end so again; never where the service names a time to come back."""
        if self.is_marked_final or self.kind is Kind.OUT_OF_QUOTA:
            return True
        return TRAITS[self.kind].is_final and self.retry_after is None

    @property
    def is_of_all_rows(self) -> bool:
        """True if every other row would meet the event too, unless a person acts."""
        return TRAITS[self.kind].of_all_rows


# -- answers ---------------------------------------------------------------------------------------


def read_answer(status: int, headers: object, body: object = None) -> Reading:
    """Read an answer: its status, its headers (any mapping, or None), its body (bytes, str or parsed JSON).

        >>> from pillarbox.wire import read_answer
        >>> read = read_answer(429, {"Retry-After": "7"}, b'{"error": {"message": "too fast"}}')
        >>> read.kind.name, read.retry_after, read.message
        ('OVERLOADED', 7.0, 'too fast')

    A success whose body is an error object, as gateways send it, has the status in that object, or none.
    Any thread; raises nothing.
    """
    retry_after = delay_of(headers)
    if 200 <= status < 300:
        error = error_in(body)
        if error is None:
            return Reading(Kind.ANSWER, status, retry_after=retry_after)
        return _read_inner_error(error, retry_after)
    words, message = _words_of((body,))
    retry_after = _delay_in((body,)) if retry_after is None else retry_after
    location = _header(headers, "location") if 300 <= status < 400 else None
    kind, code = _classify(status, None, words, message, retry_after)
    return Reading(kind, status, code, retry_after, location, message)


def error_in(body: object) -> Any:
    """Return the error object in the body of a success (bytes, str or parsed JSON); None if there is none.

    It is what stands under "error" in an object without results, or an object that calls itself an error.
    """
    if isinstance(body, bytes | bytearray | memoryview | str):
        text = body if isinstance(body, str) else bytes(body[:MAX_BODY_BYTES])
        mark = '"error"' if isinstance(text, str) else b'"error"'
        if len(body) > MAX_BODY_BYTES or mark not in text:  # type: ignore[operator]
            return None
        body = _parsed(text)
    if not isinstance(body, dict):
        return None
    if body.get("object") == "error" or body.get("type") == "error":
        return body.get("error") or body
    error = body.get("error")
    if not error or any(body.get(name) for name in ("choices", "data", "embeddings", "result", "results")):
        return None
    if isinstance(error, dict):
        return error if any(name in error for name in ("message", "code", "type", "status")) else None
    return error if isinstance(error, str) else None


def _read_inner_error(error: object, retry_after: float | None) -> Reading:
    """Read an error object that came beside a success: the code in it is the status."""
    words, message = _words_of((error,))
    if isinstance(error, str):
        message = error[:MAX_MESSAGE_CHARACTERS]
    status = next((found for word in _numbers_of(error) if (found := _valid(word)) is not None), None)
    if status is not None and status >= 300:
        kind, code = _classify(status, None, words, message, retry_after)
        return Reading(kind, status, code, retry_after, None, message)
    for word in words:
        kind_of_word = CODES.get(word) or CODES_BESIDE[200].get(word)
        if kind_of_word is not None:
            return Reading(kind_of_word, None, word, retry_after, None, message)
    if message is not None and NAMES_MODEL.search(message):
        return Reading(Kind.REFUSED_ALL, None, next(iter(words), None), retry_after, None, message)
    return Reading(Kind.FAILED, None, next(iter(words), None), retry_after, None, message)


def _numbers_of(error: object) -> Iterator[int]:
    for name in ("code", "status", "status_code"):
        value = _item(error, name)
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
        elif isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) == 3:
            yield int(value)


def _classify(
    status: int | None, code: str | None, words: Iterable[str], message: str | None, retry_after: float | None
) -> tuple[Kind, str | None]:
    """Return the kind of an answer, and the code that decided or describes it.

    code: of AWS or gRPC, which comes before the status. words: of error objects.
    """
    words = [*words]
    if (spent := next((word for word in words if CODES.get(word) is Kind.OUT_OF_QUOTA), None)) is not None:
        return Kind.OUT_OF_QUOTA, spent
    if code is not None and code in CODES:
        return CODES[code], code
    if code is None:
        code = next(iter(words), None)
    if status is None:
        return Kind.UNKNOWN, code
    beside = CODES_BESIDE.get(status)
    if beside is not None and status != 200:
        for word in words:
            if word in beside:
                return beside[word], word
        if status in (400, 404) and message is not None and NAMES_MODEL.search(message):
            return Kind.REFUSED_ALL, code
        if status == 400 and message is not None and NAMES_CREDIT.search(message):
            return Kind.OUT_OF_QUOTA, code
    if status == 403 and retry_after is not None:
        return Kind.OVERLOADED, code
    return kind_of_status(status), code


def _words_of(bodies: Iterable[Any]) -> tuple[list[str], str | None]:
    """Return the codes and types of error objects, such as "insufficient_quota", and the first message."""
    words: list[str] = []
    message: str | None = None
    for body in bodies:
        parsed = _parsed(body)
        for item in (parsed, _item(parsed, "error")):
            words += [each for name in ("code", "type") if isinstance(each := _item(item, name), str)]
            for name in ("errors", "details"):
                details = _item(item, name)
                if isinstance(details, list):
                    words += [each for part in details[:4] if isinstance(each := _item(part, "reason"), str)]
        if message is None:
            message = _message_in(parsed)
    return words, message


def _message_in(parsed: object) -> str | None:
    error = _item(parsed, "error")
    for item in (error, parsed):
        for name in ("message", "detail", "error_description"):
            value = _item(item, name)
            if isinstance(value, str) and value:
                return value[:MAX_MESSAGE_CHARACTERS]
    return error[:MAX_MESSAGE_CHARACTERS] if isinstance(error, str) and error else None


def _parsed(body: object) -> Any:
    if isinstance(body, bytearray | memoryview):
        body = bytes(body)
    if not isinstance(body, bytes | str) or not 0 < len(body) <= MAX_BODY_BYTES:
        return body
    try:
        try:
            return json.loads(body)
        except UnicodeDecodeError:
            # In another charset. What is read of it are words and numbers, which are ASCII in nearly all.
            assert isinstance(body, bytes)
            return json.loads(body.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def may_refuse_form(reading: Reading, *, is_fresh: bool) -> bool:
    """Return True if a request may have been refused for the form that it asks for, not for what it holds.

    Such as a kind of structured output, or of vectors. is_fresh: the service has not answered in this form
    yet; nearly every status, such as 403, 500 and 501, may be of the form then. Never overload, quota, a
    wrong model, size or text, nor an outage. Any thread.
    """
    if reading.code in CONTENT_CODES:
        return False
    if reading.status is None:
        return reading.kind is Kind.REFUSED_ROW
    # Another kind than that of the status is one by a word, which knows more.
    if reading.kind is not kind_of_status(reading.status):
        return False
    if reading.status in FORM_STATUSES or not is_fresh:
        return reading.status in FORM_STATUSES
    is_refusal = reading.kind in (Kind.REFUSED_ROW, Kind.REFUSED_ALL, Kind.FAILED)
    return is_refusal and reading.status >= 400 and reading.status not in NO_FORM_STATUSES


# -- errors ----------------------------------------------------------------------------------------


def read_error(error: BaseException) -> Reading:
    """Read an error of a call: the event on the wire.

        >>> from pillarbox.wire import read_error
        >>> read_error(TimeoutError()).kind.name
        'LATE'

    It knows the errors of Pillarbox' transports, of aiohttp, httpx, openai, anthropic, requests, urllib3,
    urllib, botocore and gRPC, also as the cause of another error, and any error with attributes `status` and
    `headers`. A group of errors is read as the first of its members with information. Any thread; raises
    nothing.
    """
    first: Reading | None = None
    for each in leaves(error):
        reading = _read_one(each)
        if reading.kind is not Kind.UNKNOWN or reading.status is not None or reading.is_marked_final:
            return reading
        first = first or reading
    return first or Reading(Kind.UNKNOWN)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group of errors, at whatever depth; an error that is not a group is its own."""
    members = getattr(error, "exceptions", None)
    # By its shape: Python 3.10 has no such class of its own.
    if isinstance(members, tuple) and members and hasattr(error, "derive"):
        for each in members:
            yield from leaves(each)
    else:
        yield error


def _read_one(error: BaseException) -> Reading:
    chain = [*_chain(error)]
    is_marked = any(_get(each, "is_permanent") is True for each in chain)
    reading = _read_chain(error, chain)
    return reading._replace(is_marked_final=True) if is_marked else reading


def _read_chain(error: BaseException, chain: list[BaseException]) -> Reading:
    status: int | None = None
    delay: float | None = None
    for each in chain:
        kind = _get(each, "kind")
        if isinstance(kind, Kind):
            return _with_own_kind(each, kind)
        kind = _kind_of_parser(each)
        if kind is not None:
            return Reading(kind)
        answer = _answer_of(each)
        if answer.kind is not Kind.UNKNOWN:
            if answer.retry_after is None and delay is not None:
                answer = answer._replace(retry_after=delay)
            return answer
        status = answer.status if status is None else status
        delay = answer.retry_after if delay is None else delay
    return Reading(_kind_without_answer(error), status, None, delay)


def _with_own_kind(error: BaseException, kind: Kind) -> Reading:
    """Read an error that carries its kind: what else it says is read as of others."""
    answer = _answer_of(error)
    return answer._replace(kind=kind)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors that it was raised from (`__cause__`)."""
    each: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if each is None:
            return
        yield each
        # The cause of a failed call may be a stand-in, for people.
        cause = _get(each, "cause")
        each = cause if isinstance(cause, BaseException) else each.__cause__


def _kind_of_parser(error: BaseException) -> Kind | None:
    """Return the kind of aiohttp's error of an answer that it cannot parse: its status 400 is its own."""
    names = {kind.__name__ for kind in type(error).__mro__}
    causes = {kind.__name__ for kind in type(error.__cause__).__mro__}
    if "ClientPayloadError" in names:
        return Kind.ANSWERED_BADLY if "ContentEncodingError" in causes else Kind.BROKEN
    return Kind.ANSWERED_BADLY if "HttpProcessingError" in names | causes else None


def _answer_of(error: BaseException) -> Reading:
    """Read the answer that one error carries; `UNKNOWN` without one.

    Known are the errors of aiohttp and urllib (attributes `status`, `headers`), of httpx, requests and the
    clients built on them, OpenAI's and Anthropic's among them (`response`, `status_code`), of Google's
    clients (`code`), botocore (`response`, a dict) and gRPC (`code()`). `wire_carrier` names another object
    that has them in the place of the error.
    """
    named = _get(error, "wire_carrier")
    carrier: Any = error if named is None else named
    response = _get(carrier, "response")
    if isinstance(response, dict):
        return _answer_of_aws(response)
    status = _status(carrier)
    status = _status(response) if status is None else status
    headers = _get(carrier, "headers")
    headers = _get(response, "headers") if headers is None else headers
    described = {name: _get(carrier, name) for name in ("code", "type")}
    bodies = (described, _get(carrier, "body"), _get(response, "_content"), _get(carrier, "_content"))
    words, message = _words_of(bodies)
    delay = delay_of(headers)
    delay = _delay_in(bodies) if delay is None else delay
    kind, code = _classify(status, _code_of_grpc(carrier), words, message, delay)
    if kind is Kind.ANSWER:
        # An error that has a success: it could not be read.
        kind = Kind.ANSWERED_BADLY
    location = _header(headers, "location") if status is not None and 300 <= status < 400 else None
    return Reading(kind, status, code, delay, location, message)


def _answer_of_aws(response: dict[str, Any]) -> Reading:
    metadata = _item(response, "ResponseMetadata")
    error = _item(response, "Error")
    code = _item(error, "Code")
    status = _valid(_item(metadata, "HTTPStatusCode"))
    delay = delay_of(_item(metadata, "HTTPHeaders"))
    message = _item(error, "Message")
    kind, word = _classify(status, code if isinstance(code, str) else None, (), None, delay)
    return Reading(kind, status, word, delay, None, message if isinstance(message, str) else None)


def _status(carrier: object) -> int | None:
    for name in ("status", "status_code", "http_status"):
        status = _get(carrier, name)
        if isinstance(status, int):
            return _valid(status)
    # Not any number: `code` is an exit status or a database's error with others.
    return _valid(code) if isinstance(code := _get(carrier, "code"), HTTPStatus) else None


def _valid(status: object) -> int | None:
    return int(status) if isinstance(status, int) and 100 <= status <= 599 else None


def _code_of_grpc(error: object) -> str | None:
    if not any(kind.__name__ == "RpcError" for kind in type(error).__mro__):
        return None
    code = _get(error, "code")
    try:
        name = code().name
    except BaseException:
        return None
    return name if isinstance(name, str) else None


def _get(carrier: object, name: str) -> Any:
    # A property can raise anything: that of a closed response, for one.
    try:
        return getattr(carrier, name, None)
    except BaseException:
        return None


def _item(mapping: object, name: str) -> Any:
    return mapping.get(name) if isinstance(mapping, dict) else None


# -- errors without an answer ----------------------------------------------------------------------


def _kind_without_answer(error: BaseException) -> Kind:
    """Return the kind of an error by the names and numbers of those that it was raised from."""
    if exhaustion_in(error) is not None:
        return Kind.EXHAUSTED
    is_of_connection = False
    for each, is_cause in causes_of(error):
        kind = _kind_by_name(each)
        # An error that was only met on the way to another one makes it never final.
        if kind is not None and (is_cause or not TRAITS[kind].is_final):
            return kind
        is_of_connection = is_of_connection or any(
            kind.__name__ in OF_CONNECTIONS for kind in type(each).__mro__
        )
    return Kind.NOT_REACHED if is_of_connection else Kind.UNKNOWN


def exhaustion_in(error: BaseException) -> BaseException | None:
    """The error that says that this process lacks descriptors, memory or threads; None if none does.

    It is `error`, or one that it was raised from, or that was met on the way to it. Any thread; raises
    nothing.
    """
    return next((each for each, _ in causes_of(error) if _is_exhaustion(each)), None)


def _is_exhaustion(error: BaseException) -> bool:
    if isinstance(error, OSError):
        # Numbers of TLS are others.
        return not isinstance(error, ssl.SSLError) and not EXHAUSTED_ERRNOS.isdisjoint(numbers_of(error))
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_THREAD in _text(error))


def _kind_by_name(error: BaseException) -> Kind | None:
    if isinstance(error, ssl.SSLError | ssl.CertificateError):
        is_certificate = isinstance(error, ssl.CertificateError)
        return Kind.REFUSED_ALL if is_certificate else Kind.ANSWERED_BADLY
    for kind in type(error).__mro__:
        if kind.__name__ == "RemoteProtocolError":
            return next(found for words, found in HTTPX_WORDS if words in _text(error))
        if kind.__name__ == "ServerDisconnectedError" and not isinstance(_get(error, "message"), str):
            # aiohttp gives the beginning of an answer for a message.
            return Kind.BROKEN
        found = ERRORS.get(kind.__name__)
        if found is not None:
            return found
    # Before Python 3.11 these are two.
    if isinstance(error, TimeoutError | asyncio.TimeoutError) and not _errno_kind(error):
        return Kind.LATE
    return _errno_kind(error)


def _errno_kind(error: BaseException) -> Kind | None:
    """Return the kind of an error of the operating system."""
    if not isinstance(error, OSError):
        return None
    if isinstance(error, socket.gaierror):
        return RESOLVER.get(error.errno or 0)
    kinds = [ERRNOS.get(number) for number in numbers_of(error)]
    if error.errno is not None:
        return kinds[0]
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return Kind.NOT_SENT
    if isinstance(error, ConnectionError):
        return Kind.NOT_REACHED
    return Kind.NOT_REACHED if len(kinds) > 1 and None not in kinds else None


def numbers_of(error: BaseException) -> list[int]:
    """The numbers of the operating system that an `OSError` has, those of several errors in one among them.

    Those of a resolver are none. Any thread; raises nothing.
    """
    if not isinstance(error, OSError) or isinstance(error, socket.gaierror):
        return []
    if error.errno is not None:
        return [error.errno]
    # Of a host with several addresses asyncio tells the errors in words only.
    numbers = [int(number) for number in _ERRNO_IN_TEXT.findall(_text(error))]
    return numbers if len(numbers) > 1 else []


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return ""


def causes_of(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """`error` and the errors that it was raised from, as clients keep them; False from a mere context on.

    Any thread; raises nothing.
    """
    each: BaseException | None = error
    is_cause = True
    for _ in range(MAX_CAUSES):
        if each is None:
            return
        yield from ((leaf, is_cause) for leaf in leaves(each))
        kept = (_get(each, "cause"), each.__cause__, _get(each, "os_error"), _get(each, "reason"), *each.args)
        known = [cause for cause in kept if isinstance(cause, BaseException) and cause is not each]
        is_cause = is_cause and bool(known)
        each = known[0] if known else each.__context__


# -- predicates ------------------------------------------------------------------------------------


def _readings(error: BaseException) -> list[Reading]:
    return [_read_one(each) for each in leaves(error)]


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of `error` or of its causes; None without one.

        >>> from urllib.error import HTTPError
        >>> from pillarbox.wire import status_of
        >>> status_of(HTTPError("https://host/", 503, "busy", None, None))
        503

    It knows the errors that `read_error` knows. Any thread; raises nothing.
    """
    return next((reading.status for reading in _readings(error) if reading.status is not None), None)


def is_overload(error: BaseException) -> bool:
    """Return True if `error` says that the service receives too many calls: all should slow down.

        >>> from urllib.error import HTTPError
        >>> from pillarbox.wire import is_overload
        >>> is_overload(HTTPError("https://host/", 429, "slow", {}, None)), is_overload(TimeoutError())
        (True, False)

    The statuses 429, 503 (with or without Retry-After: RFC 9110 uses it for overload) and 529 do, a 403
    with a Retry-After (a secondary limit of GitHub and others), the codes of AWS for throttling and
    RESOURCE_EXHAUSTED of gRPC. A 429 with `insufficient_quota` does not, as no pause mends it. A timeout
    does not: its cause may be the network. Any thread; raises nothing.
    """
    return any(TRAITS[reading.kind].is_overload for reading in _readings(error))


def is_unreached(error: BaseException) -> bool:
    """Return True if `error` says that the service gave no answer: no connection was made, or it broke.

    So do refused and broken connections, hosts and networks that cannot be reached, a name server that gives
    no answer for now, 502 and 504 of a gateway, UNAVAILABLE of gRPC; not a name that does not exist, a
    certificate that is not believed, an answer that broke off, nor a service that is late. Any thread; raises
    nothing.
    """
    return all(TRAITS[reading.kind].is_unreached for reading in _readings(error))


def is_unsent(error: BaseException) -> bool:
    """Return True if nothing of the request was read, so that it may be sent once more at once.

    So do the errors of a connection that ended before the first byte of an answer. Not where a transport
    has sent it once more already (`was_sent_again`). Any thread; raises nothing.
    """
    members = [*leaves(error)]
    return all(_read_one(each).kind is Kind.NOT_SENT for each in members) and not any(
        _get(each, "was_sent_again") is True for member in members for each in _chain(member)
    )


def is_permanent(error: BaseException) -> bool:
    """Return True if the service would answer the same call in the same way again, by `error`.

        >>> from urllib.error import HTTPError
        >>> from pillarbox.wire import is_permanent
        >>> is_permanent(HTTPError("https://host/", 401, "no", {}, None)), is_permanent(TimeoutError())
        (True, False)

    That is the case for 400, 401, 403, 404, 422 and similar, redirects, 429 with `insufficient_quota` in its
    body, INVALID_ARGUMENT, NOT_FOUND and others of gRPC, a name that does not exist, an untrusted
    certificate, and an error whose attribute `is_permanent` is True. Not if the service names a time to call
    again (`Retry-After`), nor for other errors without a status. In a chain of errors the first one with a
    status or a code decides. Any thread; raises nothing.
    """
    return any(reading.is_final for reading in _readings(error))


def may_have_poison_row(error: BaseException) -> bool:
    """Return True if one row of a batch may be the cause of `error`, which the others would not meet alone.

    It is not where it says that the service is overloaded, cannot be reached or does not know the caller:
    all rows would meet it, and calling them in ever smaller batches would make an outage worse. A time-out
    may be the fault of one row. Any thread; raises nothing.
    """
    return all(TRAITS[reading.kind].may_have_poison_row for reading in _readings(error))


def of_all_rows(error: BaseException) -> bool:
    """Return True if every row would meet `error` until somebody acts: a wrong key, address or model.

    Any thread; raises nothing.
    """
    return any(TRAITS[reading.kind].of_all_rows and reading.is_final for reading in _readings(error))


def retry_after_of(error: BaseException) -> float | None:
    """Return the seconds, 0 or more, for which the service asked to wait; None if `error` has no such time.

        >>> from urllib.error import HTTPError
        >>> from pillarbox.wire import retry_after_of
        >>> retry_after_of(HTTPError("https://host/", 429, "slow", {"retry-after-ms": "1500"}, None))
        1.5

    It reads `Retry-After` (RFC 9110, 10.2.3: seconds or an HTTP date) and, before it, `retry-after-ms` and
    `x-ms-retry-after-ms`, the same in milliseconds; after it LiteLLM's `llm_provider-retry-after`, and
    `retryDelay` in an error object of Google's. Of a repeated header the longest counts. A date becomes a
    delay at once, against the `Date` of the same answer, so that a wrong clock on this machine does not
    matter; against this machine's clock if the answer has none. An unreadable header is ignored, and so are
    `RateLimit-Reset` and similar ones, whose unit differs
    by service. It knows the errors of `read_error`. Any thread; raises nothing.
    """
    for each in leaves(error):
        for part in _chain(each):
            delay = _delay_of_carrier(part)
            if delay is not None:
                return delay
    return None


def _delay_of_carrier(error: BaseException) -> float | None:
    named = _get(error, "wire_carrier")
    carrier: Any = error if named is None else named
    response = _get(carrier, "response")
    if isinstance(response, dict):
        return delay_of(_item(_item(response, "ResponseMetadata"), "HTTPHeaders"))
    headers = _get(carrier, "headers")
    delay = delay_of(_get(response, "headers") if headers is None else headers)
    return _delay_in((_get(carrier, "body"), _get(response, "_content"))) if delay is None else delay


# -- Retry-After -----------------------------------------------------------------------------------

_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
_SECONDS = re.compile(rf"({_DECIMAL.pattern})s")
# A comma that stands between two values, not behind the name of a weekday.
_BETWEEN_VALUES = re.compile(
    r"(?<!day)(?<!Mon)(?<!Tue)(?<!Wed)(?<!Thu)(?<!Fri)(?<!Sat)(?<!Sun),", re.IGNORECASE
)


def delay_of(headers: object) -> float | None:
    """Seconds that these headers ask to wait for, or None; `headers` is any mapping, or None."""
    if headers is None:
        return None
    exact = _longest(headers, RETRY_AFTER_MS_HEADERS[0], _milliseconds)
    if exact is None:
        exact = _longest(headers, RETRY_AFTER_MS_HEADERS[1], _milliseconds)
    told = next(
        (each for name in RETRY_AFTER_HEADERS if (each := _longest(headers, name, _delay)) is not None), None
    )
    if exact is None or told is None:
        return told if exact is None else exact
    # The same in whole seconds, or another wish.
    return exact if abs(told - exact) <= 1.0 else max(told, exact)


def _delay_in(bodies: Iterable[Any]) -> float | None:
    """The seconds that Google's error objects name, which come without a header."""
    for body in bodies:
        details = _item(_item(_parsed(body), "error"), "details")
        for part in details[:8] if isinstance(details, list) else ():
            if (told := _SECONDS.fullmatch(str(_item(part, "retryDelay")))) is not None:
                return float(told[1])
    return None


def _longest(headers: object, name: str, read: Callable[[str, Any], float | None]) -> float | None:
    """The longest delay of all values of a header, which may have come several times."""
    found = [
        delay
        for text in _values(headers, name)
        for part in _BETWEEN_VALUES.split(text)
        if (delay := read(part.strip(), headers)) is not None
    ]
    return max(found, default=None)


def _milliseconds(text: str, headers: object) -> float | None:
    return float(text) / 1000.0 if _DECIMAL.fullmatch(text) else None


def _delay(text: str, headers: object) -> float | None:
    if _DECIMAL.fullmatch(text):
        return float(text)
    then = _moment(text)
    if then is None:
        return None
    now = _moment(_header(headers, "date"))
    return max(0.0, then - (time.time() if now is None else now))


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
        # The old forms have no zone, or one that says nothing; an HTTP date is always in UTC.
        return (moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _header(headers: object, name: str) -> str | None:
    return next(iter(_values(headers, name)), None)


def _values(headers: Any, name: str) -> list[str]:
    """All values of a header, of any client's headers."""
    # aiohttp; httpx; urllib3; email.message. The others join them.
    for method in ("getall", "get_list", "getlist", "get_all"):
        get = _get(headers, method)
        if get is None:
            continue
        try:
            values = [*(get(name) or ())]
        except BaseException:
            continue
        if values:
            return [_as_text(value) for value in values]
    try:
        value = headers.get(name)
        if value is None:
            # The headers of client libraries know no case, a plain dict does.
            value = next((each for key, each in headers.items() if str(key).lower() == name), None)
    except BaseException:
        return []
    if isinstance(value, list | tuple):
        return [_as_text(each) for each in value]
    return [] if value is None else [_as_text(value)]


def _as_text(value: object) -> str:
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return text.strip()
