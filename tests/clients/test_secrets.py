"""A key is read on the worker, and is in nothing that leaves it but the request: these tests grep for it."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import secrets
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import cloudpickle
import numpy as np
import pytest
from aiohttp import web

import pillarbox
from pillarbox import Errors, Ledger
from pillarbox.clients import Embeddings, Http, HttpLookup, Secret
from pillarbox.clients.secret import SecretUnavailable
from pillarbox.clients.transport import HttpStatusError
from tests.clients.conftest import serve_handler
from tests.clients.embedding_service import Service, serving

DIRECT = Http(proxy="direct")


@pytest.fixture
def key() -> str:
    """A key of this test alone, which no pattern knows."""
    return f"key-{secrets.token_hex(12)}"


def holders(key: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Secret]:
    monkeypatch.setenv("KEY_OF_THE_TEST", key)
    file = folder / "key-file"
    file.write_text(f"{key}\n")

    async def fetched() -> str:
        return file.read_text()

    return {
        "env": Secret.env("KEY_OF_THE_TEST"),
        "file": Secret.file(file),
        "call": Secret.call(lambda: file.read_text()),
        "async call": Secret.call(fetched),
    }


KINDS = ["env", "file", "call", "async call"]


@pytest.mark.contract
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_is_sent_and_is_in_no_pickle_and_no_repr(
    kind: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = holders(key, tmp_path, monkeypatch)[kind]

    async def run() -> bytes:
        service = Service(key=("Authorization", f"Bearer {key}"))
        async with serving(service):
            client = Embeddings(f"{service.url}/v1", "e5", key=secret, http=DIRECT)
            async with client:
                await client(["love"])
                return cloudpickle.dumps(client) + repr(client).encode() + repr(vars(client)).encode()

    written = asyncio.run(run())
    assert len(written) > 500
    assert key.encode() not in written


@pytest.mark.contract
@pytest.mark.parametrize("kind", [*KINDS, "literal"])
@pytest.mark.parametrize("header", ["key", "header"])
def test_a_key_that_a_service_quotes_is_in_no_error_log_dead_letter_or_ledger(
    kind: str,
    header: str,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = Secret.literal(key) if kind == "literal" else holders(key, tmp_path, monkeypatch)[kind]
    out = tmp_path / "out"
    ledger = Ledger(str(out / "ledger"), uid="embed", run="1")
    errors = Errors("column", dead_letter=str(out / "dead"))
    caplog.set_level(logging.DEBUG)

    async def run() -> Any:
        service = Service(key=("X-Key", "another"))
        async with serving(service):
            options: Any = {"key": secret} if header == "key" else {"headers": {"X-Key": secret}}
            if header == "key":
                service.key = ("Authorization", "another")
            client = Embeddings(f"{service.url}/v1", "e5", http=DIRECT, **options)
            async with client:
                with pytest.raises(HttpStatusError) as found:
                    await client(["love"])
            rows = pillarbox.async_map(
                ["love", "hate"], client, batch=client.batch, errors=errors, ledger=ledger
            )
            results = [row async for row in rows]
            assert all(key in " ".join(sent.values()) for sent in service.headers)
            return found.value, results

    error, results = asyncio.run(run())
    assert error.status == 401
    assert b"Incorrect API key provided" in error.body
    printed = "".join(traceback.format_exception(error)) + repr(vars(error)) + repr(results)
    assert "***" in printed
    assert key not in printed
    assert key.encode() not in pickle.dumps(error)
    logging.getLogger("pillarbox").warning("a line with %s", key)
    assert key not in caplog.text
    written = [*files_of(out)]
    assert written
    assert [path for path in written if key.encode() in path.read_bytes()] == []
    assert "a line with ***" in caplog.text


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


@pytest.mark.contract
@pytest.mark.parametrize("changed", ["json", "json of PHP", "url", "query"])
def test_a_key_that_a_service_quotes_in_another_form_is_masked(changed: str) -> None:
    key = f'k/{secrets.token_hex(6)}+"\\/{secrets.token_hex(6)}=='
    in_json = json.dumps(key)[1:-1]
    forms = {
        "json": in_json,
        "json of PHP": in_json.replace("/", "\\/"),
        "url": quote(key, safe=""),
        "query": quote_plus(key),
    }

    async def refuse(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {key}"
        return web.Response(
            status=403, text=f"not with <{forms[changed]}>", headers={"X-Seen": forms[changed]}
        )

    async def run() -> HttpStatusError:
        async with (
            serve_handler(refuse) as url,
            Embeddings(url, "e5", key=Secret.literal(key), http=DIRECT) as client,
        ):
            with pytest.raises(HttpStatusError) as found:
                await client(["love"])
        return found.value

    error = asyncio.run(run())
    assert "not with <***>" in str(error)
    assert (error.body, error.headers.get("X-Seen", error.headers.get("x-seen"))) == (
        b"not with <***>",
        "***",
    )


@pytest.mark.contract
def test_a_key_that_was_changed_while_a_job_runs_is_read_again_after_a_401(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first-key-of-the-job")

    async def run() -> Service:
        async with serving(Service(key=("Authorization", "Bearer first-key-of-the-job"))) as service:
            client = Embeddings(f"{service.url}/v1", "e5", key=Secret.file(file), http=DIRECT)
            async with client:
                await client(["love"])
                service.key = ("Authorization", "Bearer second-key-of-the-job")
                file.write_text("second-key-of-the-job")
                blocks = await asyncio.gather(*(client(["love"]) for _ in range(8)))
                assert len({block.tobytes() for block in blocks}) == 1
                await client(["love"])
                file.write_text("a-key-that-is-wrong")
                service.key = ("Authorization", "Bearer third-key-of-the-job")
                with pytest.raises(HttpStatusError, match="401"):
                    await client(["love"])
        return service

    service = asyncio.run(run())
    refused = [headers for headers in service.headers if "first" in headers["Authorization"]]
    assert len(refused) <= 1 + 8
    assert len(service.headers) <= 1 + 16 + 1 + 2


@pytest.mark.contract
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: Secret.env("NO_SUCH_KEY"), "set spark.executorEnv.NO_SUCH_KEY"),
        (lambda folder: Secret.file(folder / "none"), "cannot be read on this worker: No such file"),
        (lambda folder: Secret.file(folder / "empty"), "is empty"),
        (lambda folder: Secret.file(folder / "lines"), "must be printable ASCII in one line"),
        (lambda folder: Secret.call(lambda: 5), "must give a str, not int"),
    ],
)
def test_a_key_that_cannot_be_read_is_told_by_its_place(make: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "lines").write_text("half-a-key\nanother-half")
    secret = make(tmp_path)

    async def run() -> None:
        async with Embeddings("http://127.0.0.1:9/v1", "e5", key=secret, http=DIRECT):
            pass

    with pytest.raises(ValueError, match=message) as found:
        asyncio.run(run())
    assert "half" not in str(found.value)


@pytest.mark.contract
def test_a_vault_that_is_down_when_connections_open_is_named_and_what_it_raised_is_the_cause() -> None:
    def fetch_key() -> str:
        raise ConnectionError("no route to it")

    async def run() -> None:
        async with Embeddings("http://127.0.0.1:9/v1", "e5", key=Secret.call(fetch_key), http=DIRECT):
            pass

    said = r"fetch_key\): cannot be read: ConnectionError: no route to it"
    with pytest.raises(SecretUnavailable, match=said) as found:
        asyncio.run(run())
    assert isinstance(found.value.__cause__, ConnectionError)


class Vault:
    """A vault that counts how often it is asked; `answer` makes the key of the number of the call."""

    def __init__(self, answer: Callable[[int], str]) -> None:
        self.answer = answer
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return self.answer(self.calls)


def refused_rows(vault: Callable[[], Any], rows: int, **options: Any) -> list[pillarbox.Outcome]:
    """The outcomes of rows at a service that refuses every key."""

    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "expired"}, status=401)

    async def run() -> list[pillarbox.Outcome]:
        async with serve_handler(refuse) as url:
            client = HttpLookup(url + "/{x}", key=Secret.call(vault), http=DIRECT)
            errors = Errors("column", floor=None)
            found = pillarbox.async_map([{"x": i} for i in range(rows)], client, errors=errors, **options)
            return [outcome async for outcome in found]

    return asyncio.run(run())


def same_key(number: int) -> str:
    return "the-key-of-always"


def fresh_key(number: int) -> str:
    return f"key-number-{number}"


def down(number: int) -> str:
    if number > 1:
        raise ConnectionError("vault is down")
    return "the-key-of-the-start"


@pytest.mark.contract
@pytest.mark.parametrize("capacity", [1, 64])
@pytest.mark.parametrize("answer", [same_key, fresh_key, down])
def test_a_key_that_stays_refused_is_read_again_a_few_times_and_not_for_each_row(
    answer: Callable[[int], str], capacity: int
) -> None:
    vault = Vault(answer)
    outcomes = refused_rows(vault, 300, capacity=capacity)
    assert all(outcome.error is not None and outcome.error.status == 401 for outcome in outcomes)
    assert 2 <= vault.calls <= 10


@pytest.mark.contract
def test_a_vault_that_is_down_while_a_job_runs_is_told_as_that_and_not_as_the_service() -> None:
    outcomes = refused_rows(Vault(down), 100)
    for outcome in outcomes:
        assert outcome.error is not None
        assert outcome.error.type == "SecretUnavailable"
        assert "Secret.call(Vault): cannot be read: ConnectionError: vault is down" in outcome.error.message


@pytest.mark.contract
def test_rows_whose_key_cannot_be_read_again_are_called_again_until_the_vault_is_back() -> None:
    def answer(number: int) -> str:
        if number == 2:
            raise ConnectionError("vault is down")
        return "old-key-of-the-test" if number == 1 else "new-key-of-the-test"

    async def check(request: web.Request) -> web.Response:
        is_new = request.headers["Authorization"] == "Bearer new-key-of-the-test"
        return web.json_response({"x": 1}, status=200 if is_new else 401)

    async def run() -> list[Any]:
        async with serve_handler(check) as url:
            client = HttpLookup(url + "/{x}", key=Secret.call(Vault(answer)), take="x", http=DIRECT)
            rows = pillarbox.async_map([{"x": i} for i in range(20)], client, retry=5)
            return [result async for result in rows]

    assert asyncio.run(run()) == [1] * 20


@pytest.mark.contract
def test_rows_that_time_out_while_a_vault_hangs_do_not_ask_it_again() -> None:
    asked: list[int] = []

    async def hang() -> str:
        asked.append(len(asked))
        if len(asked) > 1:
            await asyncio.Event().wait()
        return "the-key-of-always"

    outcomes = refused_rows(hang, 20, capacity=10, timeout=0.3)
    assert [outcome.error and outcome.error.type for outcome in outcomes] == ["CallTimeout"] * 20
    assert len(asked) == 2


@pytest.mark.contract
def test_a_batch_is_not_divided_for_a_vault_that_is_down() -> None:
    async def run() -> Service:
        async with serving(Service(key=("Authorization", "another"))) as service:
            client = Embeddings(f"{service.url}/v1", "e5", key=Secret.call(Vault(down)), http=DIRECT)
            rows = pillarbox.async_map(
                ["love"] * 16, client, batch=client.batch, errors=Errors("null", floor=None)
            )
            assert [row async for row in rows] == [None] * 16
        return service

    assert len(asyncio.run(run()).headers) == 1


def test_secrets_are_equal_by_their_place() -> None:
    assert Secret.env("A") == Secret.env("A") != Secret.env("B")
    assert len({Secret.env("A"), Secret.env("A"), Secret.file("A")}) == 2
    assert repr(Secret.env("A")) == "Secret.env('A')"
    assert repr(Secret.literal("key-of-the-test")) == "Secret.literal(***)"
    assert np.array_equal(pickle.loads(pickle.dumps(Secret.env("A"))), Secret.env("A"))


@pytest.mark.parametrize("bad", [5, None, "", " ", "two\nlines", "käy"])
def test_a_wrong_literal_is_refused_without_being_quoted(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as found:
        Secret.literal(bad)
    assert "lines" not in str(found.value)
    assert "käy" not in str(found.value)
