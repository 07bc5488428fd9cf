"""Reads of an error what the service said: status, overload, lost connection, `Retry-After`, poison rows.

Pure: any thread. No client library is imported: an error is known by its attributes and its names.
"""

# Each client has errors of its own, and a user may use any of them. To import the clients in order to ask
# `isinstance` would cost each worker their import, and know those alone that were thought of. What they
# carry of the answer is nearly the same everywhere: a status, headers, a code, under a handful of names. So
# `answers` looks for those names, along the chain of causes, as clients wrap each other's errors; all else
# here asks `answers`. Properties of clients can raise anything, so each is read under a guard.

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import timezone
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from pillarbox.aio.errors import (
    MESSAGE_CHARACTERS,
    CallFailed,
    CallTimeout,
    ErrorInfo,
    NotCalled,
    ResultRejected,
    cut,
    leaves,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OVERLOADED = frozenset({429, 503, 529})
"""Too Many Requests (RFC 6585), Service Unavailable (RFC 9110), and 529, which some services answer when all
their clients together are too many."""

THROTTLED = _words(
    "BandwidthLimitExceeded EC2ThrottledException LimitExceededException "
    "ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled "
    "RequestThrottledException RESOURCE_EXHAUSTED SlowDown ThrottledException Throttling "
    "ThrottlingException TooManyRequestsException"
)
"""Error codes of AWS that its clients take for throttling, and the one of gRPC."""

PERMANENT = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 413, 414, 415, 416, 417, 422, 426, 428, 431, 451}
    | {501, 505}
)
"""Statuses (RFC 9110, 6585, 7725) with which a service answers the same call in the same way again. Time
mends others: 408, 409, 421, 423, 424, 425, 429, most of 5xx; a service's own numbers are not known."""

PERMANENT_CODES = _words(
    "ALREADY_EXISTS DATA_LOSS FAILED_PRECONDITION INVALID_ARGUMENT NOT_FOUND OUT_OF_RANGE "
    "PERMISSION_DENIED UNAUTHENTICATED UNIMPLEMENTED"
)
"""Status codes of gRPC that stay what they are."""

TRANSIENT_CODES = _words(
    "PriorRequestNotComplete RequestTimeout RequestTimeoutException TransactionInProgressException"
)
"""Error codes of AWS that its clients try again, though their status is 400."""

OUT_OF_FUNDS = frozenset({"billing_hard_limit_reached", "billing_not_active", "insufficient_quota"})
"""Error codes of OpenAI, and of services that speak as it does, for an account without credit: they come with
the status 429, and no pause mends them."""


FROM_GATEWAYS = frozenset({502, 504})
"""Bad Gateway and Gateway Timeout (RFC 9110): a gateway does not reach the service."""

NO_CONNECTION = frozenset(
    getattr(errno, name, None)
    for name in _words(
        "ECONNABORTED ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH ENETDOWN ENETRESET ENETUNREACH EPIPE "
        "ETIMEDOUT"
    )
)
"""Numbers of the operating system's errors of connections that were not made, or broke."""

CONNECTION_ERRORS = _words(
    "ConnectTimeout ConnectTimeoutError ConnectionClosedError ConnectionTimeoutError "
    "EndpointConnectionError ServerDisconnectedError"
)
"""Names of errors that clients (aiohttp, botocore, httpx, requests, urllib3) raise for the same, without the
operating system's."""

OF_ALL_ROWS = frozenset({401, 402, 403, 407, 502, 504})
"""Answers about who calls (RFC 9110), or from a gateway that does not reach the service."""

OF_CONNECTIONS = _words(
    "APIConnectionError ClientConnectionError ConnectionError HTTPClientError NetworkError ProtocolError "
    "gaierror"
)
"""Names of the errors of connections: built in, of aiohttp, botocore, httpx, requests and others."""

MAX_CAUSES = 8
"""Errors looked at along each chain of causes: a chain can be a circle."""
MAX_BODY_BYTES = 65_536
"""A longer body is not parsed: it is not an error message."""


_ERRNO = re.compile(r"\[Errno (-?\d+)\]")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
_IN_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
# A LiteLLM proxy gives under the second name what the provider said, and its own limits too.
_RETRY_AFTER = ("retry-after", "llm_provider-retry-after")


class Answer(NamedTuple):
    """An answer, as far as an error tells of it."""

    status: int | None
    """The HTTP status."""
    headers: Any
    """Something like a mapping of the headers, or None."""
    code: str | None
    """The error code of AWS, or the name of the status code of gRPC."""
    carrier: Any
    """The error, or the result that was rejected: its body is read by `codes_of` only."""


def answers(error: BaseException) -> Iterator[Answer]:
    """The answers that an error and those that it was raised from (`__cause__`) carry; the error's own first.

    Known are the errors of aiohttp and urllib (attributes `status`, `headers`), of httpx, requests and the
    clients built on them, OpenAI's and Anthropic's among them (`response`, `status_code`), of Google's
    clients (`code`), botocore (`response`, a dict) and gRPC (`code()`). Of a `ResultRejected` it is the
    result, where that is such an answer. Raises nothing.
    """
    for each in _chain(error):
        carrier: Any = each.result if isinstance(each, ResultRejected) else each
        yield _answer_of(carrier, _get(carrier, "response"))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors that it was raised from."""
    each: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if each is None:
            return
        yield each
        # The cause of a failed call may be a stand-in, for people.
        each = each.cause if isinstance(each, CallFailed) else each.__cause__


def _answer_of(carrier: Any, response: Any) -> Answer:
    if isinstance(response, dict):
        return _answer_of_aws(response, carrier)
    status = _status(carrier)
    headers = _get(carrier, "headers")
    return Answer(
        _status(response) if status is None else status,
        _get(response, "headers") if headers is None else headers,
        _code_of_grpc(carrier),
        carrier,
    )


def codes_of(answer: Answer) -> Iterator[str]:
    """The words that a service's error object has for what went wrong, such as "insufficient_quota".

    Read are `code` and `type` of the error, as OpenAI's client sets them, and of the JSON body: the attribute
    `body`, or what httpx and requests have already received. Nothing is awaited or received. Raises nothing.
    """
    carrier = answer.carrier
    response = _get(carrier, "response")
    bodies = (_get(carrier, "body"), _get(response, "_content"), _get(carrier, "_content"))
    described = [{name: _get(carrier, name) for name in ("code", "type")}, *map(_parsed, bodies)]
    for each in described:
        for item in (each, _item(each, "error")):
            yield from (code for name in ("code", "type") if isinstance(code := _item(item, name), str))


def _parsed(body: Any) -> Any:
    if not isinstance(body, bytes | str) or not 0 < len(body) <= MAX_BODY_BYTES:
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _answer_of_aws(response: dict[str, Any], carrier: Any) -> Answer:
    metadata = _item(response, "ResponseMetadata")
    code = _item(_item(response, "Error"), "Code")
    return Answer(
        _valid(_item(metadata, "HTTPStatusCode")),
        _item(metadata, "HTTPHeaders"),
        code if isinstance(code, str) else None,
        carrier,
    )


def _status(carrier: Any) -> int | None:
    for name in ("status", "status_code", "http_status"):
        status = _get(carrier, name)
        if isinstance(status, int):
            return _valid(status)
    # Not any number: `code` is an exit status or a database's error with others.
    return code if isinstance(code := _get(carrier, "code"), HTTPStatus) else None


def _valid(status: Any) -> int | None:
    return int(status) if isinstance(status, int) and 100 <= status <= 599 else None


def _code_of_grpc(error: Any) -> str | None:
    if not any(kind.__name__ == "RpcError" for kind in type(error).__mro__):
        return None
    code = _get(error, "code")
    try:
        name = code().name
    except BaseException:
        return None
    return name if isinstance(name, str) else None


def _get(carrier: Any, name: str) -> Any:
    # A property can raise anything: that of a closed response, for one.
    try:
        return getattr(carrier, name, None)
    except BaseException:
        return None


def _item(mapping: Any, name: str) -> Any:
    return mapping.get(name) if isinstance(mapping, dict) else None


# -- status and kind of a failure ------------------------------------------------------------------


def status_of(error: BaseException) -> int | None:
    """The HTTP status that `error` or the error that it was raised from carries; None for none.

    Known are the errors of aiohttp, httpx, requests, urllib, botocore and of the clients built on them.
    Any thread; raises nothing.
    """
    return next((answer.status for answer in answers(error) if answer.status is not None), None)


def describe(error: CallFailed | CallTimeout | NotCalled, latency: float) -> ErrorInfo:
    """Build what `errors="column"` and dead letters say about an error."""
    cause = error.cause if isinstance(error, CallFailed) else error
    message = cut(error.reason, MESSAGE_CHARACTERS)
    return ErrorInfo(type(cause).__name__, message, error.attempts, latency, status_of(cause))


def is_overload(error: BaseException) -> bool:
    """Return True if `error` says that the service gets more calls than it takes: all should slow down.

    So do the statuses 429, 503 (with or without Retry-After: RFC 9110 has it for overload) and 529, a 403
    with a Retry-After (a secondary limit of GitHub and others), the codes of AWS for throttling and
    RESOURCE_EXHAUSTED of gRPC. A 429 with `insufficient_quota` does not, as no pause mends it. A time-out
    does not: it may be the network's. Any thread; raises nothing.
    """
    return any(_is_overload(answer) for each in leaves(error) for answer in answers(each))


def is_unreached(error: BaseException) -> bool:
    """Return True if `error` says that the service gave no answer: no connection was made, or it broke.

    So do refused and broken connections, hosts and networks that cannot be reached, a name server that gives
    no answer for now, 502 and 504 of a gateway, UNAVAILABLE of gRPC; not a name that does not exist, a
    certificate that is not believed, nor a service that is late. Known are the errors of asyncio, aiohttp,
    httpx, requests, urllib, botocore and of clients built on them. Any thread; raises nothing.
    """
    members = [*leaves(error)]
    return bool(members) and all(_is_unreached(each) for each in members)


def _is_unreached(error: BaseException) -> bool:
    for answer in answers(error):
        if answer.status is not None or answer.code is not None:
            return answer.status in FROM_GATEWAYS or answer.code == "UNAVAILABLE"
    found = False
    for each in _causes(error):
        if isinstance(each, ssl.SSLError | ssl.CertificateError):
            return False
        found = found or type(each).__name__ in CONNECTION_ERRORS or _has_no_connection(each)
    return found


def _has_no_connection(error: BaseException) -> bool:
    if not isinstance(error, OSError):
        return False
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    if error.errno is not None:
        return error.errno in NO_CONNECTION
    # Of a host with several addresses asyncio tells the errors in words only.
    numbers = _ERRNO.findall(str(error))
    return isinstance(error, ConnectionError) or (
        len(numbers) > 1 and all(int(number) in NO_CONNECTION for number in numbers)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors that it was raised from, as clients keep them."""
    each: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if each is None:
            return
        yield from leaves(each)
        kept = (
            each.__cause__,
            getattr(each, "os_error", None),
            getattr(each, "reason", None),
            *each.args[:1],
        )
        known = [cause for cause in kept if isinstance(cause, BaseException) and cause is not each]
        each = known[0] if known else each.__context__


def is_permanent(error: BaseException) -> bool:
    """Return True if the service would give the same answer to the same call again, by what `error` says.

    So do 400, 401, 403, 404, 422 and their like (a table is in the documentation), 429 with
    `insufficient_quota` in its body, INVALID_ARGUMENT, NOT_FOUND and others of gRPC, and an error whose
    attribute `is_permanent` is True. Not where the service names a time to call again (`Retry-After`), nor
    another error without a status. Of a chain of errors the first one decides that has a status or a code.
    Any thread; raises nothing.
    """
    if any(_get(each, "is_permanent") is True for each in _chain(error)):
        return True
    for answer in answers(error):
        if is_out_of_funds(answer):
            return True
        if answer.status is None and answer.code is None:
            continue
        if _is_overload(answer) or answer.code in TRANSIENT_CODES or delay_of(answer.headers) is not None:
            return False
        return answer.status in PERMANENT or answer.code in PERMANENT_CODES
    return False


def is_out_of_funds(answer: Answer) -> bool:
    """Return True if the account that calls has no credit left."""
    return any(code in OUT_OF_FUNDS for code in codes_of(answer))


def _is_overload(answer: Answer) -> bool:
    overload = (
        answer.status in OVERLOADED
        or answer.code in THROTTLED
        or (answer.status == 403 and delay_of(answer.headers) is not None)
    )
    return overload and not is_out_of_funds(answer)


def may_have_poison_row(error: BaseException) -> bool:
    """Return True if one row of a batch may be the cause of `error`, which the others would not meet alone.

    It is not where it says that the service is overloaded, cannot be reached or does not know the caller:
    all rows would meet it, and calling them in ever smaller batches would make an outage worse. A time-out
    may be the fault of one row. Errors are known by their names and attributes, along `__cause__`. Raises
    nothing.
    """
    if is_overload(error) or status_of(error) in OF_ALL_ROWS or any(map(is_out_of_funds, answers(error))):
        return False
    if is_unreached(error):
        return False
    for each in _chain(error):
        # Before Python 3.11 these are two.
        if isinstance(each, TimeoutError | asyncio.TimeoutError):
            return True
        if any(kind.__name__ in OF_CONNECTIONS for kind in type(each).__mro__):
            return False
    return True


# -- Retry-After -----------------------------------------------------------------------------------


def retry_after_of(error: BaseException) -> float | None:
    """Seconds, 0 or more, after which the service asked to be called again; None where `error` says nothing.

    Read are `Retry-After` (RFC 9110, 10.2.3: seconds or an HTTP date) and, before it, `retry-after-ms` and
    `x-ms-retry-after-ms`, which say the same in milliseconds; behind it LiteLLM's `llm_provider-retry-after`.
    A date is made a delay at once, against the `Date` of the same answer, so that a wrong clock on this
    machine does not matter; against this machine's clock where the answer has none. What cannot be read
    counts as nothing said. `RateLimit-Reset` and the like are not read: they are seconds with some services
    and a point in time with others.

    The errors are those that `status_of` knows. Any thread; raises nothing.
    """
    for answer in answers(error):
        delay = delay_of(answer.headers)
        if delay is not None:
            return delay
    return None


def delay_of(headers: Any) -> float | None:
    """Seconds that these headers ask to wait for, or None; `headers` is any mapping, or None."""
    if headers is None:
        return None
    for name in _IN_MILLISECONDS:
        milliseconds = _number(_header(headers, name))
        if milliseconds is not None:
            return milliseconds / 1000.0
    text = next((text for name in _RETRY_AFTER if (text := _header(headers, name)) is not None), None)
    if text is None:
        return None
    seconds = _number(text)
    return _seconds_until(text, headers) if seconds is None else seconds


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _DECIMAL.fullmatch(text) else None


def _seconds_until(text: str, headers: Any) -> float | None:
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


def _header(headers: Any, name: str) -> str | None:
    # The headers of client libraries know no case, a plain dict does.
    try:
        value = headers.get(name)
        if value is None:
            value = next((each for key, each in headers.items() if str(key).lower() == name), None)
    except BaseException:
        return None
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return None if value is None else str(value).strip()
