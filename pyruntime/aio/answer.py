"""What an error of a client library carries of the service's answer: status, headers, error code.

Pure: any thread. No client library is imported: an error is known by its attributes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

from pillarbox.aio.errors import ResultRejected

_CAUSES = 8
"""Errors looked at along `__cause__`: a chain can be a circle."""
MAX_BODY_BYTES = 65_536
"""A longer body is not parsed: it is no error message."""


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
    each: BaseException | None = error
    for _ in range(_CAUSES):
        if each is None:
            return
        carrier: Any = each.result if isinstance(each, ResultRejected) else each
        yield _answer_of(carrier, _get(carrier, "response"))
        each = each.__cause__


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
