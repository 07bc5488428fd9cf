"""The option `Endpoints`: the addresses of one service. A value without state: safe in any thread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from pillarbox.redaction import has_secret, shown_address
from pillarbox.validate import check_bool, check_choice, check_positive_number, naming_arguments

Choice: TypeAlias = Literal["least-loaded", "in-order"]

CHOICES = ("least-loaded", "in-order")
MAX_ENDPOINTS = 1024
"""Endpoints of one service: more are a mistake."""
_TEMPLATE_QUERY = re.compile(r"\?(?:[\w.~-]+=\{\w+\}(?:&|$))+$")
"""A query that has fields of a row alone, as those of `HttpLookup`."""


class Spread(NamedTuple):
    """The addresses of one service in full, with a weight for each, and the choice among them.

    resolve: DNS has several addresses for each name; with `keeps_name` an endpoint's address is the URL with
    the name, and the address of DNS as its fragment.
    """

    urls: tuple[str, ...]
    weights: tuple[float, ...]
    choose: Choice = "least-loaded"
    resolve: bool = False
    keeps_name: bool = False


@naming_arguments
@dataclass(frozen=True)
class Endpoints:
    """Define the endpoints of one service, and the choice among them.

    urls: the address of each endpoint: a list of texts, or one text.
    weights: by address, the share of calls relative to the others, above 0; 1.0 for those that it omits.
    choose: "least-loaded" takes two endpoints at random, and of these the one with fewer calls in flight for
        its weight; one that is slower by more than twice counts as more loaded, in proportion. "in-order"
        takes the first of the list that takes calls; the others are in reserve.
    resolve: each address that DNS has for the name in a URL is an endpoint of its own. A client connects to
        it and keeps the name for the Host header and for TLS; a function finds the address in
        `Endpoint.url` and the name in `Endpoint.host`. The name is resolved once in each process.

        >>> from pillarbox import Endpoints, Options, async_map, current_call
        >>> async def call(row):
        ...     return f"{row} at {current_call().endpoint.url}"
        >>> service = Endpoints(["http://one", "http://two"], choose="in-order")
        >>> list(async_map(["a", "b"], call, options=Options(endpoints=service)))
        ['a at http://one', 'b at http://one']

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    urls: str | Sequence[str]
    weights: Mapping[str, float] | None = None
    choose: Choice = "least-loaded"
    resolve: bool = False

    def __post_init__(self) -> None:
        urls = _checked_urls(self.urls)
        object.__setattr__(self, "urls", urls)
        object.__setattr__(self, "weights", _checked_weights(self.weights, urls))
        check_choice("choose", self.choose, CHOICES)
        check_bool("resolve", self.resolve)

    def __hash__(self) -> int:
        return hash(self.spread)

    @property
    def spread(self) -> Spread:
        """The same, as pools of facts are known by it."""
        weights = self.weights or {}
        return Spread(
            tuple(self.urls), tuple([weights.get(url, 1.0) for url in self.urls]), self.choose, self.resolve
        )


def _checked_urls(urls: object) -> tuple[str, ...]:
    found = (urls,) if isinstance(urls, str) else urls
    if not isinstance(found, list | tuple) or not found:
        raise TypeError(f"urls={urls!r}: must be a list of addresses, with one or more")
    for url in found:
        if not isinstance(url, str):
            raise TypeError(f"urls: each address must be a str, not {type(url).__name__}")
        if has_secret(_TEMPLATE_QUERY.sub("", url)):
            raise ValueError(
                f"urls: {shown_address(url)!r} must not hold a user, a password or a query: endpoints stand "
                "in logs and statistics; give keys to the function or the client"
            )
        if not url or not url.isprintable() or " " in url:
            raise ValueError(f"urls: {url!r} must be an address such as 'http://host:8000'")
    if len({*found}) < len(found):
        twice = next(url for place, url in enumerate(found) if url in found[:place])
        raise ValueError(
            f"urls: {twice!r} is there twice; give weights={{{twice!r}: 2.0}} for a larger share"
        )
    if len(found) > MAX_ENDPOINTS:
        raise ValueError(f"urls: {len(found):,} addresses: may be at most {MAX_ENDPOINTS:,}")
    return tuple(found)


def _checked_weights(weights: object, urls: tuple[str, ...]) -> dict[str, float] | None:
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights={weights!r}: must be a mapping of addresses to numbers, or None")
    for url, weight in weights.items():
        if url not in urls:
            raise ValueError(f"weights: {url!r} is not one of the addresses {list(urls)}")
        check_positive_number(f"weights[{url!r}]", weight)
    return dict(weights)
