"""What an error says about the service: its HTTP status, and whether it is overloaded. Pure: any thread."""

from __future__ import annotations

from pillarbox.aio.answer import Answer, answers
from pillarbox.aio.retry_after import delay_of, retry_after_of

__all__ = ["is_overload", "retry_after_of", "status_of"]

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


def status_of(error: BaseException) -> int | None:
    """The HTTP status that `error` or the error that it was raised from carries; None for none.

    Known are the errors of aiohttp, httpx, requests, urllib, botocore and of the clients built on them.
    Any thread; raises nothing.
    """
    return next((answer.status for answer in answers(error) if answer.status is not None), None)


def is_overload(error: BaseException) -> bool:
    """Whether `error` says that the service gets more calls than it takes, so that all should slow down.

    So do the statuses 429, 503 (with or without Retry-After: RFC 9110 has it for overload) and 529, a 403
    with a Retry-After (a secondary limit of GitHub and others), the codes of AWS for throttling and
    RESOURCE_EXHAUSTED of gRPC. A time-out does not: it may be the network's. Any thread; raises nothing.
    """
    return any(_is_overload(answer) for answer in answers(error))


def _is_overload(answer: Answer) -> bool:
    return (
        answer.status in OVERLOADED
        or answer.code in THROTTLED
        or (answer.status == 403 and delay_of(answer.headers) is not None)
    )
