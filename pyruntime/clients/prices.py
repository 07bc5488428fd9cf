"""Prices of models: what the tokens cost that a service has counted.

Values; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pillarbox.validate import check_number

TOKENS_OF_PRICES = 1e6
"""Tokens to which prices refer."""


@dataclass(frozen=True)
class Price:
    """Prices of a model for a million tokens, in a currency of the user's choice.

    input: of the prompt, or of texts to embed. output: of the answer; None for vectors, which have no price
    of their own. cached_input: of what the service had kept of the prompt; None for the price of `input`.
    A value; any thread. Raises TypeError and ValueError.
    """

    input: float
    output: float | None = None
    cached_input: float | None = None

    def __post_init__(self) -> None:
        check_number("input", self.input, minimum=0.0)
        for name in ("output", "cached_input"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), minimum=0.0)

    def cost(self, asked: int, answered: int = 0, kept: int = 0) -> float:
        """The cost of `asked` tokens of input, of which the service had `kept` some, and of the answer's."""
        for_kept = self.input if self.cached_input is None else self.cached_input
        cost = (asked - kept) * self.input + kept * for_kept + answered * (self.output or 0.0)
        return cost / TOKENS_OF_PRICES


def check_prices(prices: Any, model: str, *, needs_output: bool) -> None:
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
