"""Addresses and bodies of requests to services that speak OpenAI's language, as all its clients give them.

Pure, and for any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from pillarbox.aio.service_addresses import Endpoints
from pillarbox.clients.late_address import NOT_OPEN, LateAddress
from pillarbox.clients.transport import HttpStatusError, Response, status_error
from pillarbox.redaction import has_secret, shown_address
from pillarbox.wire import Kind, Reading, read_answer

if TYPE_CHECKING:
    from pillarbox.aio.usage import Usage

Told = TypeVar("Told", bound="ErrorAnswer")

OK = 200

AZURE_PROVIDER = "azure.ai.openai"
"""The name of OpenTelemetry's conventions for Azure."""


class AnswerError(ValueError):
    """Raised if a service answered with success, but not with what was asked for.

    tokens, usage: that the service counted for it all the same; None where it did not.
    """

    tokens: int | None = None
    usage: Usage | None = None


class OtherLength(AnswerError):
    """Raised for vectors of another length than was asked for, or than those before.

    kind: what it means for the other rows. Where there is one address, they will be of that length as well.
    """

    def __init__(self, message: str, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.kind)


class ErrorAnswer(HttpStatusError):
    """A service, or a gateway before it, answered with success, and with an error object in the body.

    status: the code in that object; None where it has none. kind: the class of the error.
    """

    status: int | None  # type: ignore[assignment]

    def __init__(
        self, message: str, status: int | None, headers: Mapping[str, str], body: bytes, kind: Kind
    ) -> None:
        super().__init__(message, status or OK, headers, body)
        self.status = status
        self.kind = kind

    @classmethod
    def of(cls: type[Told], url: str, response: Response, reading: Reading) -> Told:
        """The error of an answer to a POST that was read so."""
        told = status_error("POST", url, response._replace(status=reading.status or response.status))
        return cls(str(told), reading.status, told.headers, told.body, reading.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.status, self.headers, self.body, self.kind)


# Of an error object, as a name or as a kind. Answers of some services have the field, and it is null.
_ERROR = re.compile(rb'"error"(?!\s*:\s*null)')


def may_be_error(response: Response) -> bool:
    """Return False for an answer that is certainly no error, which costs less than `error_of`. Any thread."""
    body = response.body
    return response.status != OK or (b'"error"' in body and _ERROR.search(body) is not None)


def error_of(url: str, response: Response) -> HttpStatusError | None:
    """The error that an answer to a POST is: another status than success, or an error object; or None."""
    if response.status != OK:
        return status_error("POST", url, response)
    reading = read_answer(response.status, response.headers, response.body)
    return None if reading.kind is Kind.ANSWER else ErrorAnswer.of(url, response, reading)


def check_base_url(base_url: object, paths: Sequence[str]) -> str | tuple[str, ...] | Endpoints | LateAddress:
    """Accept an address, a list of several, `Endpoints`, or the address of a server that is known later.

    paths: the ends that the client adds itself.

    Raises TypeError and ValueError, which never quote a key.
    """
    if isinstance(base_url, str):
        _check_url(base_url, paths)
        return base_url
    if isinstance(base_url, LateAddress):
        return base_url
    if isinstance(base_url, Endpoints):
        for url in base_url.urls:
            _check_url(url, paths)
        return base_url
    if not isinstance(base_url, list | tuple) or not base_url:
        raise TypeError(f"base_url={base_url!r}: must be an address, Endpoints, or a list with one or more")
    for url in base_url:
        _check_url(url, paths)
    return tuple(base_url)


def _check_url(url: object, paths: Sequence[str]) -> None:
    if not isinstance(url, str):
        raise TypeError(f"base_url: each address must be a str, not {type(url).__name__}")
    if has_secret(url):
        raise ValueError(
            f"base_url={shown_address(url)!r}: must not hold a user, a password or a query; give a key as "
            "key=Secret.env('NAME')"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url={url!r}: must be an address such as 'https://api.openai.com/v1'")
    if parts.path.rstrip("/").endswith(tuple(paths)):
        raise ValueError(f"base_url={url!r}: leave the last part out; the client adds it")


def request_urls(base_url: str | Sequence[str] | Endpoints | LateAddress, path: str) -> list[str]:
    """The addresses of requests, one for each address of the service."""
    if isinstance(base_url, LateAddress):
        return [NOT_OPEN + path]
    given = base_url.urls if isinstance(base_url, Endpoints) else base_url
    urls = [given] if isinstance(given, str) else given
    return [url.rstrip("/") + path for url in urls]


def azure_path(deployment: str, path: str, version: str | None) -> str:
    """The path of a deployment of Azure's, with the version in its query."""
    query = f"?api-version={quote(str(version), safe='')}"
    return f"/openai/deployments/{quote(deployment, safe='')}{path}{query}"


def checked_body(body: object, own_fields: frozenset[str]) -> dict[str, Any]:
    """More fields of a request's body, as a dict. `own_fields` are those that the client sets itself.

    Raises TypeError and ValueError.
    """
    if not isinstance(body, Mapping):
        raise TypeError(f"body: must be a mapping of names to JSON values, not {type(body).__name__}")
    taken = sorted(own_fields.intersection(body))
    if taken:
        raise ValueError(f"body: {', '.join(taken)} is set by the client, from its options and the rows")
    try:
        json.dumps(dict(body), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"body: must be JSON values: {error}") from None
    return dict(body)
