"""An option that is not there: the error names the one that was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import Options, Step, async_map


async def call(row: int) -> int:
    return row


@pytest.mark.contract("An option that is not there is refused, and the error names the one that was meant.")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("concurrency", "capacity"),
        ("max_workers", "capacity"),
        ("max_retries", "retry"),
        ("rate_limit", "rate"),
        ("batch_size", "batch"),
        ("on_error", "errors"),
        ("tiemout", "timeout"),
        ("capactiy", "capacity"),
    ],
)
@pytest.mark.parametrize(
    ("function", "make"),
    [
        ("async_map", lambda **named: async_map([1], call, **named)),
        ("Step", lambda **named: Step(call, **named)),
        ("Options", lambda **named: Options(**named)),
    ],
)
def test_an_option_that_is_not_there_is_refused_and_the_one_that_was_meant_is_named(
    function: str, make: Callable[..., Any], name: str, meant: str
) -> None:
    secret = "sk-0123456789"
    with pytest.raises(TypeError) as refused:
        make(**{name: secret})
    assert str(refused.value) == f"{function}: there is no argument {name!r}; did you mean {meant!r}?"


def test_where_nothing_is_near_the_error_lists_what_there_is() -> None:
    with pytest.raises(TypeError, match="no argument 'zzz'; there are batch, budget, buffer, capacity, "):
        Options(zzz=1)  # type: ignore[call-arg]
