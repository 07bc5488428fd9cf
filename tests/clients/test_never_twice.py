"""Clients over a ledger that is a cache: the same question is asked once, whatever asks it and how often."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pillarbox import async_map
from pillarbox.clients import Chat, Http, HttpLookup
from pillarbox.ledger import Ledger
from tests.clients.chat_service import ChatService, serving
from tests.clients.conftest import serve_handler

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")

DIRECT = Http(proxy="direct", read_timeout=600.0)
ROWS = [{"id": number, "text": text} for number, text in enumerate(["all is well", "no", "all is well"])]


class Counted(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    words: int


class First(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    first: str


class Sure(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    words: int
    sure: bool


def several() -> Any:
    """`Counted` with a check in Python: the schema is the same."""

    def check(words: int) -> int:
        if words < 2:
            raise ValueError("too few")
        return words

    checks = {"several": pydantic.field_validator("words")(check)}
    return pydantic.create_model("Counted", words=(int, ...), __validators__=checks)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "cache"), uid="ask", cache=True)


def jobs(service: ChatService, work: Callable[[Callable[..., list[Any]]], None]) -> None:
    """Do `work` with a function that runs a job, by a client of the service that is changed as it says."""

    async def run() -> None:
        async with serving(service):
            first = Chat(f"{service.url}/v1", "small", prompt="{text}", http=DIRECT)

            def ask(ledger: Ledger, rows: Any = ROWS, **change: Any) -> list[Any]:
                client = dataclasses.replace(first, **change)
                return list(async_map(rows, client, ledger=ledger))

            await asyncio.to_thread(work, ask)

    asyncio.run(run())


@pytest.mark.contract
def test_equal_questions_are_asked_once_by_all_jobs(ledger: Ledger) -> None:
    service = ChatService()

    def work(ask: Callable[..., list[Any]]) -> None:
        first = ask(ledger)
        assert len(service.requests) == 2
        others = [{**row, "id": row["id"] + 100} for row in ROWS]
        assert ask(ledger, others) == first
        assert ask(ledger, [*ROWS, {"id": 4, "text": "new"}])[:3] == first
        assert len(service.requests) == 3

    jobs(service, work)


@pytest.mark.contract
@pytest.mark.parametrize(
    "change",
    [
        {"model": "large"},
        {"prompt": "Say: {text}"},
        {"system": "Be short."},
        {"body": {"temperature": 0}},
    ],
)
def test_another_model_prompt_or_parameter_asks_anew(ledger: Ledger, change: dict[str, Any]) -> None:
    service = ChatService()

    def work(ask: Callable[..., list[Any]]) -> None:
        ask(ledger)
        ask(ledger, **change)
        assert len(service.requests) == 4
        ask(ledger)
        ask(ledger, **change)
        assert len(service.requests) == 4

    jobs(service, work)


@pytest.mark.contract
def test_another_type_of_the_answers_is_another_question(ledger: Ledger) -> None:
    service = ChatService()

    def work(ask: Callable[..., list[Any]]) -> None:
        assert ask(ledger, answer=Counted) == [Counted(words=3), Counted(words=1), Counted(words=3)]
        assert ask(ledger, answer=First) == [First(first="all"), First(first="no"), First(first="all")]
        assert len(service.requests) == 4
        service.answer = lambda messages: '{"words": 7, "sure": true}'
        assert ask(ledger, answer=Sure) == [Sure(words=7, sure=True)] * 3
        assert len(service.requests) == 6
        assert ask(ledger, answer=Counted) == [Counted(words=3), Counted(words=1), Counted(words=3)]
        assert ask(ledger, answer=Sure) == [Sure(words=7, sure=True)] * 3
        assert len(service.requests) == 6

    jobs(service, work)


@pytest.mark.contract
def test_a_check_that_the_model_is_not_told_of_asks_for_what_no_longer_fits(ledger: Ledger) -> None:
    service = ChatService()

    def work(ask: Callable[..., list[Any]]) -> None:
        ask(ledger, answer=Counted)
        assert len(service.requests) == 2
        service.answer = lambda messages: '{"words": 7}'
        assert [each.words for each in ask(ledger, answer=several())] == [3, 7, 3]
        assert len(service.requests) == 3

    jobs(service, work)


async def told(request: web.Request) -> web.Response:
    return web.json_response([request.path, await request.text()])


def looked_up(rows: list[Any], path: str, ledger: Ledger, **options: Any) -> list[Any]:
    """The answers of a service that tells what it was asked."""

    async def run() -> list[Any]:
        async with serve_handler(told) as url:
            client = HttpLookup(url + path, http=DIRECT, **options)
            return await asyncio.to_thread(lambda: list(async_map(rows, client, ledger=ledger)))

    return asyncio.run(run())


def text_of_row(row: dict[str, Any]) -> Any:
    return row["text"]


@pytest.mark.contract
@pytest.mark.parametrize("path", ["/score", "/score/{lang}"])
def test_a_lookup_whose_body_is_a_function_asks_for_each_row_that_differs(ledger: Ledger, path: str) -> None:
    rows = [{**row, "lang": "en"} for row in ROWS]
    found = looked_up(rows, path, ledger, method="POST", body=text_of_row)
    assert [json.loads(body) for _, body in found] == [row["text"] for row in ROWS]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("/{day}", [date(2026, 1, 5), date(2026, 2, 5), date(2026, 1, 5)]),
        ("/{title}", ["Dune", "Emma", "Dune"]),
        ("/{imag}", [1.0, 2.0, 1.0]),
    ],
)
def test_a_row_that_is_a_value_is_known_by_it_though_its_type_has_a_fields_name(
    ledger: Ledger, path: str, rows: list[Any]
) -> None:
    found = looked_up(rows, path, ledger)
    assert [said for said, _ in found] == [f"/{row}" for row in rows]
