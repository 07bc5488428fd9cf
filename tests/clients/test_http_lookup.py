"""Lookups of rows over HTTP, against a real server."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import namedtuple
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web

from pillarbox import CallFailed, Retry, async_map
from pillarbox.clients import Http, HttpLookup, Secret
from pillarbox.clients.transport import HttpStatusError


async def service(request: web.Request) -> web.Response:
    """Answers with what it was asked."""
    if request.path.startswith("/status/"):
        return web.Response(status=int(request.path.rpartition("/")[2]), text="said")
    body = await request.read()
    seen: dict[str, Any] = {"path": request.raw_path, "body": json.loads(body) if body else None}
    seen["key"] = request.headers.get("Authorization") or request.headers.get("X-Api-Key")
    return web.json_response(seen)


def answers(serve: Any, rows: list[Any], path: str, handler: Any = service, **options: Any) -> list[Any]:
    """The results of a lookup for each row, called alone."""

    async def run() -> list[Any]:
        async with serve(handler) as url:
            client = pickle.loads(pickle.dumps(HttpLookup(url + path, **options)))
            async with client:
                return [await client(*(row if isinstance(row, list) else [row])) for row in rows]

    return asyncio.run(run())


@pytest.mark.contract
def test_the_fields_of_a_row_are_taken_by_name_and_encoded(serve: Any) -> None:
    record = namedtuple("record", "other name year")
    rows = [
        {"name": "a/b c", "year": 2013, "other": 1},
        record("other", "ü?&#%", Decimal("1.50")),
        ["x", date(2013, 1, 2)],
        ("x", True),
        {"name": None, "year": 2013},
    ]
    found = answers(serve, rows, "/planes/{name}?y={year}&u=m")
    assert [each and each["path"] for each in found] == [
        "/planes/a%2Fb%20c?y=2013&u=m",
        "/planes/%C3%BC%3F%26%23%25?y=1.50&u=m",
        "/planes/x?y=2013-01-02&u=m",
        "/planes/x?y=true&u=m",
        None,
    ]


def test_a_field_of_a_row_is_its_column_also_where_tuples_have_an_attribute_of_its_name(serve: Any) -> None:
    Row = pytest.importorskip("pyspark.sql").Row
    found = answers(serve, [Row(count="books", index="x1")], "/{count}/{index}")
    assert [each["path"] for each in found] == ["/books/x1"]
    assert [each["path"] for each in answers(serve, [Row("books", "x1")], "/{count}/{index}")] == [
        "/books/x1"
    ]
    with pytest.raises(ValueError, match="the row has no 'size'; needed are: size"):
        answers(serve, [Row(count="books")], "/{size}")


@pytest.mark.contract
def test_a_record_in_a_body_is_an_object_with_its_names_and_all_is_json(serve: Any) -> None:
    Row = pytest.importorskip("pyspark.sql").Row
    address = Row(street="Main", no=5, tags=[Row(k="a", v=date(2013, 1, 2))])
    (found,) = answers(serve, [Row(id=1, address=address)], "/a", method="POST", body=["id", "address"])
    tags = [{"k": "a", "v": "2013-01-02"}]
    assert found["body"] == {"id": 1, "address": {"street": "Main", "no": 5, "tags": tags}}
    with pytest.raises(ValueError, match="body: .*not JSON compliant"):
        answers(serve, [{"x": float("inf")}], "/a", method="POST", body=["x"])


def of_row(row: dict[str, Any]) -> list[Any]:
    return [row["id"], row["text"]]


def test_a_body_is_json_of_fields_or_what_a_function_returns(serve: Any) -> None:
    row = {"id": 1, "day": date(2013, 1, 2), "text": "ü"}
    (found,) = answers(serve, [row], "/a/{id}", method="POST", body=["day", "text"])
    assert found["body"] == {"day": "2013-01-02", "text": "ü"}
    (found,) = answers(serve, [row], "/a", method="POST", body=of_row)
    assert found["body"] == [1, "ü"]


def test_a_value_that_names_another_place_of_the_service_is_refused(serve: Any) -> None:
    for value in ("", ".", ".."):
        with pytest.raises(ValueError, match="name='.*': is not a part of a path"):
            answers(serve, [value], "/planes/{name}")
    assert answers(serve, [""], "/planes?name={name}")[0]["path"] == "/planes?name="


@pytest.mark.contract
def test_statuses_are_results_nulls_or_errors(serve: Any) -> None:
    assert answers(serve, [404, 204], "/status/{code}") == [None, None]
    assert (
        answers(serve, [409, 200], "/status/{code}", parse="text", statuses={409: "result"}) == ["said"] * 2
    )
    assert answers(serve, [500], "/status/{code}", statuses={500: "null"}) == [None]
    for code, options in ((500, {}), (404, {"statuses": {404: "error"}}), (302, {})):
        with pytest.raises(HttpStatusError, match=rf"/status/\{{code\}}: HTTP {code} .*: said") as raised:
            answers(serve, [code], "/status/{code}", **options)
        assert (raised.value.status, raised.value.body) == (code, b"said")


def test_an_answer_is_parsed_as_it_is_asked_for(serve: Any) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body="<ü>".encode(), content_type="text/html")

    parses: list[Any] = ["text", "bytes", len]
    found = [answers(serve, ["x"], "/{a}", page, parse=parse)[0] for parse in parses]
    assert found == ["<ü>", "<ü>".encode(), 4]
    with pytest.raises(
        ValueError, match=r"GET http://.*/\{a\}: the answer \(text/html, 4 bytes\) is not JSON"
    ):
        answers(serve, ["x"], "/{a}", page)


@pytest.mark.contract
def test_of_an_answer_are_taken_the_fields_that_are_asked_for(serve: Any) -> None:
    taken: list[Any] = ["path", ["path", "none"], ()]
    found = [answers(serve, ["x"], "/{a}", take=take)[0] for take in taken]
    assert found == ["/x", {"path": "/x", "none": None}, {}]
    assert answers(serve, [404, 204, None], "/status/{code}", take=["a"]) == [{"a": None}] * 3

    async def number(request: web.Request) -> web.Response:
        return web.json_response(7)

    with pytest.raises(ValueError, match=r"the answer is not a JSON object with 'path'"):
        answers(serve, ["x"], "/{a}", number, take="path")


def test_keys_are_sent_and_are_nowhere_else(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a-key-that-nobody-sees"
    monkeypatch.setenv("LOOKUP_KEY", key)
    secret = Secret.env("LOOKUP_KEY")
    assert answers(serve, ["x"], "/{a}", key=secret)[0]["key"] == f"Bearer {key}"
    assert answers(serve, ["x"], "/{a}", headers={"X-Api-Key": secret})[0]["key"] == key
    assert answers(serve, ["x"], "/{a}?b=1", params={"appid": secret})[0]["path"] == f"/x?b=1&appid={key}"
    assert answers(serve, ["x"], "/{a}", params={"appid": secret})[0]["path"] == f"/x?appid={key}"
    with pytest.raises(HttpStatusError) as raised:
        answers(serve, [500], "/status/{code}", params={"appid": secret})
    assert key not in str(raised.value)

    async def run() -> None:
        async with (
            serve(service) as url,
            HttpLookup(url + "/{a}", params={"appid": secret}, key=secret) as client,
        ):
            await client("x")
            assert key not in repr(client)
            assert key.encode() not in pickle.dumps(client)

    asyncio.run(run())


@pytest.mark.contract
def test_a_lookup_is_called_by_the_operator_which_waits_as_the_service_asks(serve: Any) -> None:
    asked: list[str] = []

    async def busy(request: web.Request) -> web.Response:
        asked.append(request.path)
        if asked.count(request.path) == 1:
            return web.Response(status=429, headers={"Retry-After": "0"})
        return web.json_response({"name": request.path})

    async def run() -> list[Any]:
        async with serve(busy) as url:
            client = HttpLookup(url + "/{id}", http=Http(connections=4))
            return [each async for each in async_map(range(20), client, capacity=8, retry=Retry(2))]

    assert asyncio.run(run()) == [{"name": f"/{number}"} for number in range(20)]
    assert len(asked) == 40


def test_an_account_without_credit_is_asked_once(serve: Any) -> None:
    asked: list[str] = []

    async def poor(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"error": {"code": "insufficient_quota"}}, status=429)

    async def run() -> None:
        async with serve(poor) as url:
            client = HttpLookup(url + "/{id}")
            assert [each async for each in async_map([1], client, retry=Retry(5))]

    with pytest.raises(CallFailed, match="insufficient_quota"):
        asyncio.run(run())
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("host/{a}", {}, "url='host/{a}': must begin with an address such as 'https://host/'"),
        ("https://{host}/", {}, "must begin with an address"),
        ("https://me:secret@host/{a}", {}, "must not hold a user, a password or a key; use Secret.env"),
        ("https://host/{a}?api_key=secret-sk-123456789", {}, "must not hold a user, a password or a key"),
        ("https://host/a b", {}, "must be percent-encoded"),
        ("https://host/{a", {}, "url='https://host/{a': expected '}'"),
        ("https://host/{0}", {}, "{0} must be the name of a field"),
        ("https://host/{a.b}", {}, "{a.b} must be the name of a field"),
        ("https://host/", {"body": ["a"]}, "body: is for method='POST'"),
        ("https://host/", {"method": "PUT"}, "method='PUT': must be one of 'GET', 'POST'"),
        ("https://host/", {"parse": "xml"}, "parse='xml': must be one of 'json', 'text', 'bytes'"),
        ("https://host/", {"parse": "text", "take": "a"}, "take='a': is for parse='json'"),
        ("https://host/", {"statuses": {99: "null"}}, "statuses: 99 is not a status from 200 to 599"),
        ("https://host/", {"statuses": {404: "none"}}, "statuses[404]='none': must be one of 'result'"),
        ("https://host/", {"headers": {"Authorization": "Bearer secret"}}, "a key itself would travel"),
        ("https://host/", {"params": {"api_key": "secret-sk-123456789"}}, "a key itself would travel"),
    ],
)
def test_a_wrong_argument_of_a_lookup_is_refused(url: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        HttpLookup(url, **options)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_row_that_does_not_fit_is_told_by_its_fields(serve: Any) -> None:
    with pytest.raises(ValueError, match="the row has no 'name'; needed are: name, year"):
        answers(serve, [{"year": 1}], "/{name}/{year}")
    with pytest.raises(ValueError, match="1 values where 2 are needed: name, year"):
        answers(serve, ["a"], "/{name}/{year}")
    with pytest.raises(TypeError, match="name: a bytes has no form in an address"):
        answers(serve, [{"name": b"a"}], "/{name}")


def test_a_lookup_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="HttpLookup: is not open on this event loop"):
        asyncio.run(HttpLookup("http://localhost/{a}")("x"))
