"""An option that is not there: the error names the one that was meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import (
    Adaptive,
    Batch,
    Budget,
    Buffer,
    Errors,
    Ledger,
    Options,
    Rate,
    Retry,
    Step,
    Timeout,
    async_map,
)
from pillarbox.clients import Chat, Embeddings, Http, HttpLookup, Price
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.connectors.generator import GeneratorSource
from pillarbox.testing import serve


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


@pytest.mark.contract("Every public class and function names the argument that was meant.")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Retry(max_attempts=3),
            "Retry: there is no argument 'max_attempts'; did you mean 'attempts'?",
        ),
        (lambda: Retry(backoff=2.0), "did you mean 'initial'?"),
        (lambda: Rate(rps=5), "did you mean 'per_second'?"),
        (lambda: Batch(batch_size=5), "did you mean 'size'?"),
        (lambda: Budget(cost=5.0), "did you mean 'max_cost'?"),
        (lambda: Errors(on_error="null"), "did you mean 'mode'?"),
        (lambda: Ledger("folder", id="x"), "did you mean 'uid'?"),
        (lambda: Adaptive(maximum=5), "did you mean 'most'?"),
        (lambda: Buffer(row=5), "did you mean 'rows'?"),
        (lambda: Timeout(atempt=5), "did you mean 'attempt'?"),
        (lambda: Embeddings("https://h/v1", "m", api_key="sk-1"), "did you mean 'key'?"),
        (lambda: Embeddings(url="https://h/v1", model="m"), "did you mean 'base_url'?"),
        (lambda: Chat("https://h/v1", "m", response_format=int), "did you mean 'answer'?"),
        (lambda: HttpLookup("https://h/{x}", timeout=5), "did you mean 'http'?"),
        (lambda: Http(timeout=5), "did you mean 'total_timeout'?"),
        (lambda: Price(inptu=1.0), "did you mean 'input'?"),
        (lambda: serve(prt=1), "did you mean 'port'?"),
        (lambda: GeneratorSource(1, split=1), "did you mean 'splits'?"),
        (lambda: FileSource("folder", formats="csv"), "did you mean 'format'?"),
    ],
)
def test_every_door_names_the_argument_that_was_meant(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)) as refused:
        make()
    assert "sk-1" not in str(refused.value)


def test_where_nothing_is_near_the_error_lists_what_there_is() -> None:
    with pytest.raises(TypeError, match="no argument 'zzz'; there are batch, budget, buffer, capacity, "):
        Options(zzz=1)  # type: ignore[call-arg]
