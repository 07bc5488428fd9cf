"""Whether the error of a batch may be the fault of some of its rows. Pure: any thread."""

from __future__ import annotations

import asyncio

from pillarbox.aio.answer import answers
from pillarbox.aio.status import is_out_of_funds, is_overload, is_unreached, status_of

OF_ALL_ROWS = frozenset({401, 402, 403, 407, 502, 504})
"""Answers about who calls (RFC 9110), or from a gateway that does not reach the service."""

OF_CONNECTIONS = frozenset(
    {
        "APIConnectionError",
        "ClientConnectionError",
        "ConnectionError",
        "HTTPClientError",
        "NetworkError",
        "ProtocolError",
        "gaierror",
    }
)
"""Names of the errors of connections: built in, of aiohttp, botocore, httpx, requests and others."""

_CAUSES = 8


def may_have_poison_row(error: BaseException) -> bool:
    """Whether some of a batch's rows, called without the others, might not meet `error`.

    Not where it says that the service is overloaded, cannot be reached or does not know the caller: all rows
    would meet it, and calling them in ever smaller batches would make an outage worse. A time-out may be the
    fault of one row. Errors are known by their names and attributes, along `__cause__`. Raises nothing.
    """
    if is_overload(error) or status_of(error) in OF_ALL_ROWS or any(map(is_out_of_funds, answers(error))):
        return False
    if is_unreached(error):
        return False
    each: BaseException | None = error
    for _ in range(_CAUSES):
        if each is None:
            return True
        # Before Python 3.11 these are two.
        if isinstance(each, TimeoutError | asyncio.TimeoutError):
            return True
        if any(kind.__name__ in OF_CONNECTIONS for kind in type(each).__mro__):
            return False
        each = each.__cause__
    return True
