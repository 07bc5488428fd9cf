"""`Batch`, the option: what it allows, and which functions can be called with batches."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import AsyncIterator
from operator import itemgetter
from typing import Any

import pytest

from pillarbox import Batch, Options, async_map


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"size": 0}, ValueError, "size=0: must be at least 1"),
        ({"size": True}, TypeError, "size=True: must be an int, not bool"),
        ({"size": 1.0}, TypeError, "size=1.0: must be an int, not float"),
        ({"linger": -1}, ValueError, "linger=-1: must be a finite number of seconds, at least 0"),
        ({"linger": float("inf")}, ValueError, "linger=inf: must be a finite number of seconds"),
        ({"linger": None}, TypeError, "linger=None: must be a number of seconds, not NoneType"),
        ({"weight": len}, ValueError, "max_weight=None: give both or neither"),
        ({"max_weight": 5}, ValueError, "weight=None, max_weight=5: give both or neither"),
        ({"weight": 3, "max_weight": 5}, TypeError, "weight=3: must be a function of the row or None"),
        ({"weight": len, "max_weight": 0}, ValueError, "max_weight=0: must be a finite number above 0"),
    ],
    ids=repr,
)
def test_a_bad_argument_is_named_with_its_value_and_what_is_allowed(
    given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message.replace("(", r"\(")):
        Batch(**given)


def test_a_weight_that_would_have_to_be_awaited_is_refused() -> None:
    async def weight(row: str) -> int:
        return len(row)

    with pytest.raises(TypeError, match="must be a plain function"):
        Batch(weight=weight, max_weight=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "kind"), [(True, TypeError), ("3", TypeError), (None, TypeError), (float("nan"), ValueError)]
)
def test_a_weight_is_a_finite_number_of_0_or_more(said: Any, kind: type[Exception]) -> None:
    batch = Batch(weight=lambda row: said, max_weight=5)
    with pytest.raises(kind, match=f"weight gave {said!r}: must give a"):
        batch.weight_of("row")


def test_a_batch_is_a_value_that_pickles_and_does_not_change() -> None:
    batch = Batch(7, linger=0.5, weight=itemgetter("bytes"), max_weight=100)
    copy = pickle.loads(pickle.dumps(batch))
    assert (copy.size, copy.linger, copy.max_weight) == (7, 0.5, 100)
    assert copy.weight_of({"bytes": 9}) == 9.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.size = 8  # type: ignore[misc]


def test_the_window_holds_eight_times_the_rows_that_are_in_flight() -> None:
    assert Options(capacity=4, batch=Batch(10)).window == 4 * 10 * 8


async def one_by_one(rows: list[int]) -> AsyncIterator[int]:
    for row in rows:
        yield row


def test_an_async_generator_is_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match="one_by_one.*: an async generator cannot be called with batches"):
        async_map([1], one_by_one, batch=Batch())
    assert list(async_map([[1, 2]], one_by_one)) == [[1, 2]]


def test_an_async_generator_that_a_resource_gives_is_refused_before_any_call() -> None:
    class Client:
        async def __aenter__(self) -> Any:
            return one_by_one

        async def __aexit__(self, *error: object) -> None:
            pass

        async def __call__(self, rows: list[int]) -> list[int]:
            raise AssertionError("what __aenter__ gave is to be called")

    with pytest.raises(TypeError, match="an async generator cannot be called with batches"):
        list(async_map([1], Client(), batch=Batch()))
