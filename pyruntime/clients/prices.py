"""Prices of models: what the tokens cost that a service has counted.

Values; any thread.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pillarbox.aio.errors import shorten
from pillarbox.clients.transport import without_query
from pillarbox.clients.usage_fields import MAX_TOKENS, count_in, tokens_in
from pillarbox.redaction import redacted
from pillarbox.validate import check_number, naming_arguments

log = logging.getLogger("pillarbox")

COST_HEADER = "x-litellm-response-cost"
"""The header in which a LiteLLM proxy says what a call has cost, in US dollars."""
COST_WORD = COST_HEADER.encode()
MAX_STATED_COST = 1e6
"""The highest cost of one call that is believed."""
TOKENS_OF_PRICES = 1e6
"""Tokens to which prices refer."""
LITELLM_NAMES = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
"""The names of prices, of one token each, in LiteLLM's file."""
_DECIMAL = re.compile(r"[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
"""A cost as a header may have it: no sign, and no word such as "nan"."""


class _Stated(Mapping[str, "Price"]):
    """A table without prices, for a service that states what each call costs. A value."""

    def __getitem__(self, model: str) -> Price:
        raise KeyError(model)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Price.STATED"

    def __reduce__(self) -> tuple[type[_Stated], tuple[()]]:
        return _Stated, ()


@naming_arguments
@dataclass(frozen=True)
class Price:
    """Prices of a model per million tokens, in a currency of the user's choice.

    input: of the prompt, or of texts to embed. output: of the answer; None for vectors, which have no price
    of their own. cached_input: of the part of the prompt that the service had cached; None for `input`.
    cache_write: of the part that it has put into its cache for later prompts (Anthropic); None for `input`.

        >>> from pillarbox.clients import Price
        >>> Price(input=0.5, output=2.0).cost(1_000_000, 500_000)
        1.5

    `prices=Price.STATED` is for a LiteLLM proxy, which states the cost of each call in its answer. Without a
    table of prices such a cost counts anyway; this lets Spark take `Budget(max_cost=...)`, which it refuses
    at the call where nothing says what calls cost. A call without a stated cost ends the job then.

    A value; any thread may use it. Raises TypeError and ValueError for a bad price.
    """

    STATED: ClassVar[Mapping[str, Price]] = _Stated()

    input: float
    output: float | None = None
    cached_input: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        check_number("input", self.input, minimum=0.0)
        for name in ("output", "cached_input", "cache_write"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), minimum=0.0)

    @classmethod
    def read(cls, path: str | os.PathLike[str], model: str, provider: str | None = None) -> dict[str, Price]:
        """Return the price of `model` in a file of the user's, as `prices=` takes it.

            >>> import json, pathlib
            >>> from pillarbox.clients import Price
            >>> entry = {"input_cost_per_token": 5e-07, "output_cost_per_token": 2e-06}
            >>> _ = pathlib.Path("prices.json").write_text(json.dumps({"small": entry}))
            >>> Price.read("prices.json", "small")["small"].output
            2.0

        path: of a JSON file in the form of LiteLLM's `model_prices_and_context_window.json`, read now, in
        this process. model: as it is there, or without `provider` and a slash in front, such as "azure/".
        Raises OSError, and ValueError for another file or a model that it lacks.
        """
        try:
            entries = json.loads(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"prices={str(path)!r}: is not JSON: {error}") from None
        for name in (model, f"{provider}/{model}"):
            if isinstance(entries, dict) and isinstance(entries.get(name), dict):
                return {model: _price_in(str(path), model, entries[name])}
        near = get_close_matches(model, map(str, entries), 3) if isinstance(entries, dict) else []
        meant = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"prices={str(path)!r}: has no price of model={model!r}{meant}")

    def cost(self, asked: int, answered: int = 0, kept: int = 0, written: int = 0) -> float:
        """Return the cost of `asked` input tokens and of `answered` output tokens.

        Of the input, `kept` were cached, and `written` were put into the cache.
        """
        for_kept = self.input if self.cached_input is None else self.cached_input
        cost = (asked - kept) * self.input + kept * for_kept + answered * (self.output or 0.0)
        if self.cache_write is not None:
            cost += written * (self.cache_write - self.input)
        return cost / TOKENS_OF_PRICES


def _price_in(path: object, model: str, entry: Any) -> Price:
    """The price of one entry of a file. Raises ValueError."""
    found = {field: _per_million(path, entry, name) for field, name in LITELLM_NAMES.items()}
    if found["input"] is None:
        raise ValueError(f"prices={path!r}: has no input_cost_per_token of {model!r}")
    if entry.get("mode") == "embedding":
        found["output"] = None
    return Price(**found)  # type: ignore[arg-type]


def _per_million(path: object, entry: Mapping[str, Any], name: str) -> float | None:
    price = entry.get(name)
    if price is None:
        return None
    if isinstance(price, bool) or not isinstance(price, int | float):
        raise ValueError(f"prices={path!r}: {name}={price!r} must be a number")
    # To nine places: a million times a binary fraction is not the number that was written.
    return round(price * TOKENS_OF_PRICES, 9)


class ReplyTokens(NamedTuple):
    """Tokens that a reply used; None for what the service does not say.

    asked: of the prompt. answered: of the reply. in_all: of both. kept: of the prompt, those that the service
    had kept. written: those that it keeps from now on.
    """

    asked: int | None
    answered: int | None
    in_all: int | None
    kept: int
    written: int = 0

    @classmethod
    def of(cls, usage: object, has_text: bool) -> ReplyTokens:
        """The tokens of the object `usage` of a reply, of any form, which has a text if `has_text`."""
        asked, answered, in_all = tokens_in(usage)
        # Neither a prompt nor a text is of no tokens: zeros are of a gateway that does not count.
        asked = asked or None
        if has_text:
            answered = answered or None
        in_all = in_all or None
        if in_all is not None:
            if asked is None and answered is not None and in_all > answered:
                asked = in_all - answered
            elif answered is None and asked is not None and in_all > asked:
                answered = in_all - asked
        if asked is not None and answered is not None:
            in_all = asked + answered
        kept = written = 0
        if asked and isinstance(usage, dict):
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
            if details:
                kept = min(asked, count_in(details, "cached_tokens") or 0)
                written = min(asked - kept, count_in(details, "written_tokens") or 0)
        return cls(asked, answered, in_all, kept, written)

    def cost(self, price: Price) -> float | None:
        """The cost of all; None where a count is unknown that has a price."""
        output = price.output or 0.0
        if self.asked is None and self.answered is None and self.in_all and price.input == output:
            return price.cost(self.in_all)
        if (self.asked is None and price.input) or (self.answered is None and output):
            return None
        return self.least_cost(price)

    def least_cost(self, price: Price) -> float:
        """The cost of the known counts."""
        return price.cost(self.asked or 0, self.answered or 0, self.kept, self.written)


def plain_tokens(usage: object) -> ReplyTokens | None:
    """The tokens of the object `usage` as most services count; None for others, which `ReplyTokens.of` reads.

    Both counts are there, under OpenAI's names or Anthropic's, and nothing was written into a cache.
    """
    if type(usage) is not dict:
        return None
    asked = usage.get("prompt_tokens") or usage.get("input_tokens")
    answered = usage.get("completion_tokens") or usage.get("output_tokens")
    if not (type(asked) is type(answered) is int and 0 < asked <= MAX_TOKENS and 0 < answered <= MAX_TOKENS):
        return None
    kept = 0
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if details:
        if type(details) is not dict or "written_tokens" in details:
            return None
        kept = details.get("cached_tokens") or 0
        if type(kept) is not int or not 0 <= kept <= asked:
            return None
    return tuple.__new__(ReplyTokens, (asked, answered, asked + answered, kept, 0))


class StatedCosts:
    """The costs that a proxy states beside its answers, for a client without prices.

    Says once that one cannot be read. Confined to the thread of the client's calls; pickled it is a new one.
    """

    __slots__ = ("_has_told",)

    def __init__(self) -> None:
        self._has_told = False

    def __reduce__(self) -> tuple[type[StatedCosts], tuple[()]]:
        return StatedCosts, ()

    def of(self, url: str, headers: Mapping[str, str]) -> tuple[float | None, str | None]:
        """The cost in the headers of an answer, None if there is none; and why it is unknown, if it is.

        url: that of the request, for the log.
        """
        # Most services name none: of theirs no header is parsed.
        mention = getattr(headers, "mention", None)
        if mention is not None and not mention(COST_WORD):
            return None, None
        stated = headers.get(COST_HEADER)
        if stated is None:
            return None, None
        if _DECIMAL.fullmatch(stated) and (cost := float(stated)) <= MAX_STATED_COST:
            return cost, None
        unknown = (
            f"{without_query(url)} states a cost that is none ({COST_HEADER}: {shorten(redacted(stated))})"
        )
        if not self._has_told:
            self._has_told = True
            log.warning("%s: it counts as 0; said once", unknown)
        return None, f"{unknown}: give prices"

    def of_texts(
        self, price: Price | None, tokens: int | None, url: str, headers: Mapping[str, str], uncounted: str
    ) -> tuple[float | None, str | None]:
        """The cost of a request of so many tokens of input, by its price or as stated; as `of` otherwise.

        uncounted: why it is unknown where the service does not count.
        """
        if price is None:
            cost, unknown = self.of(url, headers)
        else:
            cost, unknown = None if tokens is None else price.cost(tokens), None
        return cost, unknown or (uncounted if tokens is None and cost is None else None)


def check_prices(prices: object, model: str, *, needs_output: bool) -> None:
    """Accept a table of prices that has the one of `model`, or is empty. Raises TypeError and ValueError."""
    if not isinstance(prices, Mapping):
        raise TypeError(f"prices={prices!r}: must be a mapping of models to prices")
    for name, price in prices.items():
        if not isinstance(price, Price):
            raise TypeError(f"prices[{name!r}]={price!r}: must be a pillarbox.clients.Price")
        if needs_output and price.output is None:
            raise ValueError(f"prices[{name!r}]={price!r}: has no price of answers; give output too")
    if prices and model not in prices:
        raise ValueError(f"prices: has no price of model={model!r}, but of {', '.join(map(repr, prices))}")


def table_of(prices: Mapping[str, Price]) -> Mapping[str, Price]:
    """A copy of a table of prices; `Price.STATED` as it is."""
    return prices if isinstance(prices, _Stated) else dict(prices)


def check_max_cost(max_cost: float | None, prices: Mapping[str, Price], how: str) -> None:
    """Raise ValueError for a bound on the cost where no price says it. how: what to give the client."""
    if max_cost is not None and not prices and not isinstance(prices, _Stated):
        raise ValueError(
            f"max_cost={max_cost!r}: needs to know what a call costs; give the client {how}, or Price.STATED "
            "for prices where a proxy states the cost in its answers"
        )
