"""Functions that say themselves how they become a column, and what is looked up by its name. No session."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from pillarbox import Budget, Options
from pillarbox.clients import Chat, Embeddings, Price
from pillarbox.providers import provided
from pillarbox.spark.column_functions import adapted, check_budget

OPTIONS = Options()
CHAT = Chat("http://localhost:1", "a-model", prompt="{text}")
EMBEDDINGS = Embeddings("http://localhost:1", "a-model")


class Lookup:
    column_adapter = f"{__name__}:column_of"

    async def __call__(self, key: str) -> int:
        return len(key)


def column_of(fn: Lookup, options: Options) -> tuple[Any, T.DataType]:
    assert options is OPTIONS
    return fn.__call__, T.LongType()


def test_a_function_becomes_a_column_as_it_says() -> None:
    lookup = Lookup()
    assert adapted(lookup, OPTIONS) == (lookup.__call__, T.LongType())
    assert adapted(len, OPTIONS) is None
    fn, kind = adapted(CHAT, OPTIONS) or (None, None)
    assert callable(fn) and kind == T.StringType()


def test_a_function_whose_column_is_made_elsewhere_names_what_is_not_installed() -> None:
    lookup = Lookup()
    lookup.column_adapter = "pillarbox.no_such_ring.columns:made"
    with pytest.raises(
        ModuleNotFoundError, match=r"fn=Lookup: needs pillarbox.no_such_ring.columns, which is not"
    ):
        adapted(lookup, OPTIONS)


def test_a_provider_that_cannot_import_something_of_its_own_says_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "provider_of_this_test.py").write_text("import nothing_called_so\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nothing_called_so'"):
        provided("provider_of_this_test:made", "limits")
    assert "provider_of_this_test" not in sys.modules
    with pytest.raises(AttributeError, match="no_such_name"):
        provided("pillarbox.providers:no_such_name", "limits")


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (CHAT, r"prices={'a-model': Price\(input=..., output=...\)}"),
        (EMBEDDINGS, r"its prices, client.with_prices\({'a-model': Price\(input=...\)}\)"),
    ],
)
def test_a_bound_on_the_cost_needs_prices(client: Any, words: str) -> None:
    says = f"^max_cost=2.0: needs to know what a call costs; give the client {words}, or Price.STATED "
    with pytest.raises(ValueError, match=says):
        check_budget(client, Budget(max_cost=2.0))
    check_budget(client, Budget(max_calls=2))
    check_budget(len, Budget(max_cost=2.0, usage=lambda result: 1.0))


def test_what_says_the_cost_besides_is_enough_for_vectors() -> None:
    check_budget(EMBEDDINGS, Budget(max_cost=2.0, usage=lambda result: 1.0))
    check_budget(EMBEDDINGS.with_prices({"a-model": Price(input=1.0)}), Budget(max_cost=2.0))
    # A chat says its usage with each result: the hook would not be asked.
    with pytest.raises(ValueError, match="max_cost=2.0"):
        check_budget(CHAT, Budget(max_cost=2.0, usage=lambda result: 1.0))
