"""A client of lookups: one request for each row, one value out.

`HttpLookup` is a picklable value; its calls run on the event loop that it was entered on.
"""

# Why an address is a template of fields, and not a function of the row. A template can be looked at on the
# driver: its host is fixed, so that no value of a row can send the client's key to another server; no key
# stands in it; and the fields that a row needs are known, which `lookup` of Spark looks for among the columns
# before a job begins. A function would do as it likes in the task, with values that come from anybody.
#
# Why values are percent-encoded whole, `/` with the rest, and "..", "." and "" refused in a path: a server
# reads them as another folder, and the answer for another address would be taken for that of the row.
#
# Why 404 is null and other refusals are errors. That something is not there is what a lookup may find out;
# 400 or 403 say that the request is wrong, which with null would be a column of nulls and a job that is
# green.

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from string import Formatter
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlsplit

from pillarbox.aio.service_addresses import Endpoints
from pillarbox.clients.addresses import Addresses, addresses_of
from pillarbox.clients.charsets import (
    UTF_8,
    TextUnreadable,
    charset_of,
    content_type_of,
    decoded_json,
    decoded_text,
)
from pillarbox.clients.client import Client, Connections
from pillarbox.clients.fields import (
    HalfCharacter,
    json_of,
    may_have_halves,
    text_of,
    values_by_name,
    whole_json,
    whole_text,
)
from pillarbox.clients.secret import HINT, Secret, SecretHeaders, check_headers, check_key
from pillarbox.clients.transport import Http, Response, status_error
from pillarbox.redaction import has_secret, redacted, shown_address, visible
from pillarbox.validate import check_choice, check_text, naming_arguments

Parse: TypeAlias = Literal["json", "text", "bytes"] | Callable[[bytes], Any]
Treatment: TypeAlias = Literal["result", "null", "error"]

METHODS = ("GET", "POST")
PARSES = ("json", "text", "bytes")
TREATMENTS = ("result", "null", "error")
NOT_FOUND = 404
PARAMETER = "?"
"""In front of the names of query parameters, where they stand among the headers of `SecretHeaders`."""


@naming_arguments
@dataclass(frozen=True)
class HttpLookup(Client):
    """Client of any HTTP service: one request for each row, as a function that the operator calls with rows.

    Called with one row, whose fields it takes by name, or with the values of the fields in the order of `url`
    and `body`, as `async_udf` does. If one of them is None the result is None, and no request is sent.

    url: the address, with names of fields in braces in its path and query, such as
        "https://host/planes/{tailnum}?year={year}". Values are percent-encoded. Or a list with the addresses
        of one service, with the same fields: a request is sent to the one with the fewest in flight.
    method: "GET" or "POST". body: for POST, the fields that are sent as one JSON object, or a function of the
        row, or of the values, that returns the JSON to send.
    parse: "json", "text" or "bytes", or a function of the answer's body that returns the result. Text and
        JSON are in the charset that the answer names, otherwise in UTF-8.
    take: of a JSON object, the name of the field that is the result, or a list of the fields that the result
        has, such as those of a schema. A field that the answer lacks is None, and all of them without an
        answer.
    statuses: the treatment of statuses: "result" parses the answer, "null" is None, "error" raises. By
        default 2xx is a result (204 and an empty body None), 404 is null, all others are errors.
    params: query parameters of each request, texts or Secrets. key: a `Secret`, sent as a bearer token.
    headers: more headers; keys in them are Secrets. http: options of the transport.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import HttpLookup
        >>> from pillarbox.testing import serve
        >>> with serve() as service:
        ...     planes = HttpLookup(f"{service.url}/planes/{{tailnum}}", take="tailnum")
        ...     list(async_map([{"tailnum": "N14228"}, {"tailnum": "no plane"}], planes))
        ['N14228', None]

    Raises TypeError and ValueError that name the argument. Calls raise HttpStatusError for statuses that are
    errors, ValueError for a row or an answer that does not fit, TextUnreadable for bytes that are not in
    their charset, errors of connections, and RuntimeError if the client is not open. Calls belong on the
    thread of the loop on which it was entered.
    """

    url: str | Sequence[str] | Endpoints
    _: KW_ONLY
    method: Literal["GET", "POST"] = "GET"
    body: Sequence[str] | Callable[..., Any] | None = None
    parse: Parse = "json"
    take: str | Sequence[str] | None = None
    statuses: Mapping[int, Treatment] = field(default_factory=dict)
    params: Mapping[str, str | Secret] = field(default_factory=dict)
    key: Secret | None = None
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    http: Http = field(default_factory=Http)
    _connections: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _templates: dict[str, _Template] = field(init=False, repr=False, compare=False)
    _urls: Any = field(default=None, init=False, repr=False, compare=False)
    _fields: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    _sent: tuple[Any, dict[str, str], str] = field(
        default=(None, {}, ""), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        urls = _checked_urls(self.url)
        templates = {url: _Template(url) for url in urls}
        address = templates[urls[0]]
        _check_fields(templates)
        check_choice("method", self.method, METHODS)
        body = _checked_body(self.body, self.method)
        if not callable(self.parse):
            check_choice("parse", self.parse, PARSES)
        take = _checked_take(self.take, self.parse)
        _check_statuses(self.statuses)
        check_key("key", self.key)
        headers = check_headers("headers", self.headers)
        params = check_headers("params", self.params)
        if not isinstance(self.http, Http):
            raise TypeError(f"http={self.http!r}: must be a pillarbox.clients.Http")
        fields = dict.fromkeys(address.names)
        if isinstance(body, tuple):
            fields |= dict.fromkeys(body)
        for name, value in (
            *(("body", body), ("statuses", {NOT_FOUND: "null", **self.statuses}), ("headers", headers)),
            *(("params", params), ("take", take), ("_templates", templates), ("_fields", tuple(fields))),
            ("url", urls if isinstance(self.url, list) else self.url),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_urls", self._addresses())

    def __getstate__(self) -> dict[str, Any]:
        # What was sent last has the keys in it; what is known of addresses is of this process.
        return {**super().__getstate__(), "_sent": (None, {}, ""), "_urls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["_urls"] = self._addresses()

    def _addresses(self) -> Addresses:
        # An address may refuse a key, and take another one.
        return addresses_of(self.url, [*self._templates], ("lookup", repr(self.key)))

    @property
    def configuration(self) -> dict[str, Any]:
        """The part that decides about results, for a cache: see `Client.configuration`.

        Of several addresses the paths and queries count, and not the hosts: they are of one service.
        """
        told = super().configuration
        if isinstance(self.url, str):
            return told
        return {**told, "url": sorted({url.partition("://")[2].partition("/")[2] for url in self._templates})}

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that a row needs, in the order of `url` and `body`.

        Empty where `body` is a function, which may read any of them: for a ledger the whole row counts.
        """
        return () if callable(self.body) else self._fields

    @property
    def idempotent(self) -> bool:
        """True with GET: a slow call may be hedged. A POST may change something at the service."""
        return self.method == "GET"

    async def __call__(self, *row: object) -> Any:
        """Look up one row: see the class."""
        values = values_by_name(row, self._fields)
        # As a join on null finds nothing.
        if any(value is None for value in values.values()):
            return self._nothing()
        if self.body is None:
            body, headers = None, None
        else:
            body, headers = self._encoded(row, values), {"Content-Type": "application/json"}
        urls = self._urls
        if urls.only is not None:
            url = self._templates[urls.only].filled(values, self.http.surrogates)
            return self._result(urls.only, await self._send(self.method, url, headers=headers, body=body))
        return await urls.call(self._asked, values, headers, body)

    async def _asked(
        self, template: str, values: dict[str, Any], headers: dict[str, str] | None, body: bytes | None
    ) -> Any:
        """The result of one address of several."""
        # Behind the mark stands the address of DNS to connect to.
        template, mark, place = template.partition("#")
        url = self._templates[template].filled(values, self.http.surrogates) + mark + place
        return self._result(template, await self._send(self.method, url, headers=headers, body=body))

    def _encoded(self, row: tuple[Any, ...], values: dict[str, Any]) -> bytes:
        if callable(self.body):
            content = self.body(*row)
        else:
            assert self.body is not None
            content = {name: values[name] for name in self.body}
        try:
            text = json_of(content, separators=(",", ":"), allow_nan=False)
            return whole_text("body", text, self.http.surrogates).encode()
        except HalfCharacter:
            raise
        except TypeError as error:
            raise TypeError(f"body: {error}") from None
        except ValueError as error:
            raise ValueError(f"body: {error}") from None

    def _result(self, url: str, response: Response) -> Any:
        status = response.status
        treatment = self.statuses.get(status) or ("result" if 200 <= status < 300 else "error")
        if treatment == "null":
            return self._nothing()
        if treatment == "error":
            raise status_error(self.method, url, response)
        parse, content = self.parse, response.body
        if callable(parse):
            return parse(content)
        if parse == "bytes":
            return content
        if parse == "json" and not content:
            return self._nothing()
        kind = content_type_of(response.headers)
        try:
            if parse == "text":
                text = decoded_text(content, charset_of(kind)).text
                return whole_text("the answer", text, self.http.surrogates)
            text, codec = decoded_json(content, charset_of(kind))
        except TextUnreadable as error:
            raise TextUnreadable(f"{self.method} {url}: {error}") from None
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            answer = f"the answer ({kind or 'without a content type'}, {len(content)} bytes)"
            raise ValueError(f"{self.method} {url}: {answer} is not JSON: {error}") from None
        found = self._taken(url, found)
        # Other codecs write escapes in other bytes.
        if codec != UTF_8 or may_have_halves(content):
            return whole_json("the answer", found, self.http.surrogates)
        return found

    def _nothing(self) -> dict[str, None] | None:
        """The result where there is none: a row over Spark has all its columns."""
        return dict.fromkeys(self.take) if isinstance(self.take, tuple) else None

    def _taken(self, url: str, found: object) -> Any:
        take = self.take
        if take is None:
            return found
        if not isinstance(found, dict):
            raise ValueError(f"{self.method} {url}: the answer is not a JSON object with {take!r}")
        return found.get(take) if isinstance(take, str) else {name: found.get(name) for name in take}

    # -- keys ------------------------------------------------------------------------------------------------

    def _headers(self) -> SecretHeaders:
        # Among the headers, so that keys in the query are read and renewed by the same rule; no header's name
        # may begin with such a mark.
        params = {PARAMETER + name: value for name, value in self.params.items()}
        return SecretHeaders({**self.headers, **params}, self.key, "bearer" if self.key else None)

    async def _request(
        self,
        opened: Connections,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        vectors: int,
    ) -> Response:
        current = opened.headers.current
        # Made once for each reading of the keys, which gives another mapping, and not for each request.
        if self._sent[0] is not current:
            pairs = [(name, value) for name, value in current.items() if name.startswith(PARAMETER)]
            query = "&".join(f"{_quoted(name[1:])}={_quoted(value)}" for name, value in pairs)
            real = {name: value for name, value in current.items() if not name.startswith(PARAMETER)}
            object.__setattr__(self, "_sent", (current, real, query))
        _, sent, query = self._sent
        if query:
            url, mark, place = url.partition("#")
            url = f"{url}{'&' if '?' in url else '?'}{query}{mark}{place}"
        if headers:
            sent = {**headers, **sent}
        return await opened.transport.request(method, url, headers=sent, body=body, vectors=vectors)


class _Template:
    """An address with fields in its path and query. Raises TypeError and ValueError."""

    def __init__(self, url: Any) -> None:
        check_text("url", url)
        address, _, query = url.partition("?")
        pairs = [pair.replace("=", ": ", 1) for pair in query.split("&") if "{" not in pair]
        if has_secret(address) or any(redacted(pair) != visible(pair) for pair in pairs):
            raise ValueError(
                f"url={shown_address(url)!r}: must not hold a user, a password or a key; {HINT}, in key, "
                "headers or params"
            )
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or "{" in parts.netloc:
            raise ValueError(f"url={url!r}: must begin with an address such as 'https://host/'")
        if parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError(f"url={url!r}: must be percent-encoded, and have no fragment")
        self._first = ""
        # The field's name, whether it stands in the path, the text behind it.
        self._rest: list[tuple[str, bool, str]] = []
        in_path = True
        try:
            pieces = list(Formatter().parse(url))
        except ValueError as error:
            raise ValueError(f"url={url!r}: {error}; a brace itself is written as %7B or %7D") from None
        for literal, name, form, conversion in pieces:
            if self._rest:
                last = self._rest[-1]
                self._rest[-1] = (last[0], last[1], literal)
            else:
                self._first = literal
            in_path = in_path and "?" not in literal
            if name is None:
                continue
            if not name.isidentifier() or form or conversion:
                raise ValueError(f"url={url!r}: {{{name}}} must be the name of a field")
            self._rest.append((name, in_path, ""))

    @property
    def names(self) -> list[str]:
        """The names of the fields, in order."""
        return [name for name, _, _ in self._rest]

    def filled(self, values: Mapping[str, Any], surrogates: str) -> str:
        """The address of a row. Raises ValueError for a value that would name another place."""
        parts = [self._first]
        for name, in_path, literal in self._rest:
            value = whole_text(name, text_of(name, values[name]), surrogates)
            if in_path and value in ("", ".", ".."):
                # Servers read these as the folder itself, or the one above.
                raise ValueError(f"{name}={value!r}: is not a part of a path")
            parts.append(value if value.isascii() and value.isalnum() else quote(value, safe=""))
            parts.append(literal)
        return "".join(parts)


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _checked_urls(url: object) -> tuple[str, ...]:
    if isinstance(url, str):
        return (url,)
    if isinstance(url, Endpoints):
        return tuple(url.urls)
    if not isinstance(url, list | tuple) or not url:
        raise TypeError(f"url={url!r}: must be an address, or a list with one or more, or Endpoints")
    return tuple(url)


def _check_fields(templates: Mapping[str, _Template]) -> None:
    """Raise ValueError for addresses of different fields: they are not of one service."""
    first, *others = templates.items()
    for url, template in others:
        if set(template.names) != set(first[1].names):
            raise ValueError(f"url: {url!r} has not the fields of {first[0]!r}; give both the same ones")


def _checked_body(body: object, method: str) -> Any:
    if body is None:
        return None
    if method == "GET":
        raise ValueError("body: is for method='POST'")
    if callable(body):
        return body
    if isinstance(body, str) or not isinstance(body, Sequence):
        raise TypeError(f"body={body!r}: must be a list of names of fields, a function of the row, or None")
    for name in body:
        check_text("a name of body", name)
    return tuple(body)


def _checked_take(take: object, parse: object) -> Any:
    if take is None:
        return None
    if parse != "json":
        raise ValueError(f"take={take!r}: is for parse='json'")
    if isinstance(take, str):
        return check_text("take", take)
    if not isinstance(take, Sequence):
        raise TypeError(f"take={take!r}: must be the name of a field, a list of names, or None")
    return tuple(check_text("a name of take", name) for name in take)


def _check_statuses(statuses: object) -> None:
    if not isinstance(statuses, Mapping):
        raise TypeError(f"statuses={statuses!r}: must be a mapping of statuses to {TREATMENTS}")
    for status, treatment in statuses.items():
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"statuses: {status!r} is not a status from 200 to 599")
        check_choice(f"statuses[{status}]", treatment, TREATMENTS)
