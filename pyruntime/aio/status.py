"""Reads from an error a status, an overload, a lost connection, a permanent refusal. Pure: any thread."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator

from pillarbox.aio.answer import Answer, answers, codes_of
from pillarbox.aio.errors import (
    MESSAGE_CHARACTERS,
    CallFailed,
    CallTimeout,
    ErrorInfo,
    NotCalled,
    cut,
    leaves,
)
from pillarbox.aio.retry_after import delay_of, retry_after_of

__all__ = ["is_overload", "is_permanent", "retry_after_of", "status_of"]

OVERLOADED = frozenset({429, 503, 529})
"""Too Many Requests (RFC 6585), Service Unavailable (RFC 9110), and 529, which some services answer when all
their clients together are too many."""

THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RESOURCE_EXHAUSTED",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Error codes of AWS that its clients take for throttling, and the one of gRPC."""

PERMANENT = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 413, 414, 415, 416, 417, 422, 426, 428, 431, 451}
    | {501, 505}
)
"""Statuses (RFC 9110, 6585, 7725) with which a service answers the same call in the same way again. Time
mends others: 408, 409, 421, 423, 424, 425, 429, most of 5xx; a service's own numbers are not known."""

PERMANENT_CODES = frozenset(
    {
        "ALREADY_EXISTS",
        "DATA_LOSS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "OUT_OF_RANGE",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    }
)
"""Status codes of gRPC that stay what they are."""

TRANSIENT_CODES = frozenset(
    {
        "PriorRequestNotComplete",
        "RequestTimeout",
        "RequestTimeoutException",
        "TransactionInProgressException",
    }
)
"""Error codes of AWS that its clients try again, though their status is 400."""

OUT_OF_FUNDS = frozenset({"billing_hard_limit_reached", "billing_not_active", "insufficient_quota"})
"""Error codes of OpenAI, and of services that speak as it does, for an account without credit: they come with
the status 429, and no pause mends them."""


FROM_GATEWAYS = frozenset({502, 504})
"""Bad Gateway and Gateway Timeout (RFC 9110): a gateway does not reach the service."""

NO_CONNECTION = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "EPIPE",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)
"""Numbers of the operating system's errors of connections that were not made, or broke."""

CONNECTION_ERRORS = frozenset(
    {
        "ConnectTimeout",
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "ConnectionTimeoutError",
        "EndpointConnectionError",
        "ServerDisconnectedError",
    }
)
"""Names of errors that clients (aiohttp, botocore, httpx, requests, urllib3) raise for the same, without the
operating system's."""

_CAUSES = 8
"""Errors looked at along each chain of causes: a chain can be a circle."""
_NUMBER = re.compile(r"\[Errno (-?\d+)\]")


def status_of(error: BaseException) -> int | None:
    """The HTTP status that `error` or the error that it was raised from carries; None for none.

    Known are the errors of aiohttp, httpx, requests, urllib, botocore and of the clients built on them.
    Any thread; raises nothing.
    """
    return next((answer.status for answer in answers(error) if answer.status is not None), None)


def describe(error: CallFailed | CallTimeout | NotCalled, latency: float) -> ErrorInfo:
    """What `errors="column"` and dead letters say about an error."""
    cause = error.cause if isinstance(error, CallFailed) else error
    message = cut(error.reason, MESSAGE_CHARACTERS)
    return ErrorInfo(type(cause).__name__, message, error.attempts, latency, status_of(cause))


def is_overload(error: BaseException) -> bool:
    """Whether `error` says that the service gets more calls than it takes, so that all should slow down.

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
    numbers = _NUMBER.findall(str(error))
    return isinstance(error, ConnectionError) or (
        len(numbers) > 1 and all(int(number) in NO_CONNECTION for number in numbers)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors that it was raised from, as clients keep them."""
    each: BaseException | None = error
    for _ in range(_CAUSES):
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
    `insufficient_quota` in its body, and INVALID_ARGUMENT, NOT_FOUND and others of gRPC. Not where the
    service names a time to call again (`Retry-After`), nor an error without a status. Of a chain of errors
    the first one decides that has a status or a code. Any thread; raises nothing.
    """
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
