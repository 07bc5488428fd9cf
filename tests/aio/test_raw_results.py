"""Functions that give raw results: the ledger keeps these, and they are parsed before they go on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Batch, CallFailed, Dedupe, Errors, Options, Retry, Timeout, async_map
from pillarbox.ledger import Ledger

pytestmark = pytest.mark.usefixtures("each_loop")

ROWS = 60


class Asked:
    """Answers a row of one number with a JSON text, and parses that: fields are those that it must have."""

    def __init__(self, *fields: str, answer: Callable[[int], Any] | None = None) -> None:
        self.calls = Counter[int]()
        self.fields = fields
        self.answer = answer or (lambda number: {"square": number * number})

    async def __call__(self, row: Any) -> Any:
        (number,) = row
        self.calls[number] += 1
        return json.dumps(self.answer(number))

    def parse(self, text: str) -> list[Any]:
        answer = json.loads(text)
        return [answer[field] for field in self.fields]


class AskedTogether(Asked):
    """As `Asked`, with a list of rows a call."""

    async def __call__(self, rows: Any) -> Any:
        return [await super(AskedTogether, self).__call__(row) for row in rows]


class NeverAnswers(Asked):
    async def __call__(self, row: Any) -> Any:
        await asyncio.Event().wait()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"), uid="ask", run="run", key=[0])


def rows(count: int = ROWS) -> list[tuple[int]]:
    return [(row,) for row in range(count)]


def squares(count: int = ROWS) -> list[list[int]]:
    return [[row * row] for row in range(count)]


@pytest.mark.contract
def test_a_raw_result_is_parsed_on_a_running_loop_too() -> None:
    async def job() -> list[Any]:
        return [row async for row in async_map(rows(3), Asked("square"))]

    assert asyncio.run(job()) == [[0], [1], [4]]


def test_an_option_of_a_function_object_that_is_called_parse_parses_nothing() -> None:
    class Doubles:
        parse: Any = None

        async def __call__(self, row: int) -> int:
            return self.parse(row)  # type: ignore[no-any-return]

    fn = Doubles()
    fn.parse = lambda row: 2 * row
    assert list(async_map([1, 2], fn)) == [2, 4]


@pytest.mark.contract
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dedupe", [None, Dedupe(), Dedupe(memo=10)])
def test_a_raw_result_is_parsed_with_and_without_a_ledger(
    ledger: Ledger, together: bool, dedupe: Dedupe | None
) -> None:
    asked = (AskedTogether if together else Asked)("square")
    options = Options(batch=Batch(7) if together else None, dedupe=dedupe)
    assert list(async_map(rows(), asked, options=options)) == squares()
    assert asked.calls.total() == ROWS
    for _ in range(2):
        assert list(async_map(rows(), asked, ledger=ledger, options=options)) == squares()
    assert asked.calls.total() == 2 * ROWS


@pytest.mark.contract
def test_a_changed_parser_parses_what_the_ledger_has_anew_without_a_call(ledger: Ledger) -> None:
    first = Asked("square", answer=lambda row: {"square": row * row, "name": f"n{row}"})
    assert list(async_map(rows(), first, ledger=ledger)) == squares()
    second = Asked("name", "square")
    assert list(async_map(rows(), second, ledger=ledger)) == [[f"n{row}", row * row] for row in range(ROWS)]
    assert second.calls.total() == 0


@pytest.mark.contract
def test_a_kept_result_that_does_not_parse_any_more_is_called_again_once(ledger: Ledger) -> None:
    first = Asked(
        "square", answer=lambda row: {"square": row * row} if row % 2 else {"square": row * row, "even": 1}
    )
    list(async_map(rows(), first, ledger=ledger))
    second = Asked("even", answer=lambda row: {"even": 2})
    for _ in range(3):
        found = list(async_map(rows(), second, ledger=ledger))
        assert found == [[1] if row % 2 == 0 else [2] for row in range(ROWS)]
        assert second.calls == dict.fromkeys(range(1, ROWS, 2), 1)
    # Those of the first one are there as before.
    assert list(async_map(rows(), first, ledger=ledger)) == squares()
    assert first.calls.total() == ROWS


@pytest.mark.contract
def test_equal_rows_of_a_kept_result_that_does_not_parse_share_the_new_call(ledger: Ledger) -> None:
    list(async_map(rows(3), Asked("square"), ledger=ledger))
    second = Asked("name", answer=lambda row: {"name": f"n{row}"})
    found = list(async_map(rows(3) * 10, second, ledger=ledger))
    assert found == [["n0"], ["n1"], ["n2"]] * 10
    assert second.calls == {0: 1, 1: 1, 2: 1}


@pytest.mark.contract
def test_a_result_that_does_not_parse_is_a_failed_attempt(ledger: Ledger) -> None:
    asked = Asked("square")
    asked.answer = lambda row: {"square": row} if asked.calls[row] > 1 else {}
    assert list(async_map(rows(5), asked, ledger=ledger, retry=Retry(2, initial=0.0))) == [
        [row] for row in range(5)
    ]
    assert asked.calls == dict.fromkeys(range(5), 2)
    asked.answer = lambda row: {}
    with pytest.raises(CallFailed, match="KeyError"):
        list(async_map(rows(5), asked))


@pytest.mark.contract
def test_a_value_that_stands_for_a_time_out_is_not_parsed(ledger: Ledger) -> None:
    given = Timeout(0.05, fallback=["late"])
    assert list(async_map(rows(2), NeverAnswers("square"), timeout=given, ledger=ledger)) == [["late"]] * 2
    assert list(async_map(rows(2), NeverAnswers("square"), timeout=given)) == [["late"]] * 2


def test_a_failed_row_of_such_a_function_is_an_outcome_like_others(ledger: Ledger) -> None:
    asked = Asked("square", answer=lambda row: {"square": row} if row else {})
    first, second = async_map(rows(2), asked, ledger=ledger, errors=Errors("column"))
    assert first.error is not None
    assert first.error.type == "KeyError"
    assert second.result == [1]


def test_a_parser_that_is_async_is_refused() -> None:
    class Waits(Asked):
        async def parse(self, text: str) -> Any:  # type: ignore[override]
            return text

    with pytest.raises(TypeError, match="method parse is async"):
        async_map(rows(), Waits())
