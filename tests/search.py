"""Budgets of searches: as many examples as the profile of Hypothesis that is in force allows."""

from __future__ import annotations

from hypothesis import settings

FULL = 100
"""Examples of a property under the profile of `make test-all`, which is Hypothesis's own."""
MIN_EXAMPLES = 10


def examples(number: int) -> int:
    """Give `number` for `make test-all`, and that share of it which the profile has of `FULL` elsewhere."""
    return max(number * settings().max_examples // FULL, min(number, MIN_EXAMPLES))
