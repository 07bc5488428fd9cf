"""Several addresses of a service: each is left out alone while it fails, and calls go to the others."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from pillarbox import Retry, Timeout, async_map
from pillarbox.clients import Chat, Embeddings, Http, HttpLookup
from tests.clients.raw_service import RawRequest, RawService, raw_answer

ROWS = 60
CAPACITY = 8
REFUSED = raw_answer(b'{"error": {"message": "a fault of this address"}}', "application/json", status=500)
KINDS = ["chat", "embeddings", "lookup"]
BACKENDS = ["libcurl", "aiohttp"]

everywhere = pytest.mark.parametrize(
    ("kind", "backend"), [(kind, backend) for kind in KINDS for backend in BACKENDS]
)


def answered(request: RawRequest) -> bytes:
    if request.method == "GET":
        return raw_answer(json.dumps(request.path.rpartition("/")[2]).encode(), "application/json")
    asked = json.loads(request.body)
    if "messages" in asked:
        choice = {
            "index": 0,
            "message": {"content": asked["messages"][-1]["content"]},
            "finish_reason": "stop",
        }
        given: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    else:
        vectors = [
            {"index": at, "embedding": [float(len(text)), 1.0]} for at, text in enumerate(asked["input"])
        ]
        given = {"data": vectors, "usage": {"prompt_tokens": 1}}
    return raw_answer(json.dumps(given).encode(), "application/json")


def says(status: int, *headers: str, times: int | None = None) -> Callable[[RawRequest], bytes]:
    """Answers with a status that is not a success, the first `times` requests or all."""
    lines = "".join(f"{header}\r\n" for header in headers)
    body = b'{"error": {"message": "not here"}}'
    refusal = f"HTTP/1.1 {status} Told\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body
    left = [times]

    def answer(request: RawRequest) -> bytes:
        if left[0] is None:
            return refusal
        left[0] -= 1
        return refusal if left[0] >= 0 else answered(request)

    return answer


def job(kind: str, urls: list[str], backend: Any, rows: int = ROWS, **options: Any) -> list[Any]:
    """Ask for so many rows; raises AssertionError for a wrong result."""
    http = Http(proxy="direct", backend=backend, connect_timeout=options.pop("connect_timeout", 10.0))
    texts = ["x" * (1 + number % 7) for number in range(rows)]
    options = {"capacity": CAPACITY, **options}
    expected: list[Any] = texts
    if kind == "chat":
        chat = Chat([url + "/v1" for url in urls], "m", prompt="{text}", http=http)
        found = [*async_map([{"text": text} for text in texts], chat, **options)]
    elif kind == "lookup":
        lookup = HttpLookup([url + "/{text}" for url in urls], http=http)
        found = [*async_map([{"text": text} for text in texts], lookup, **options)]
    else:
        client = Embeddings([url + "/v1" for url in urls], "m", max_texts=1, encoding="float", http=http)
        found = [vector[0] for vector in async_map(texts, client, batch=client.batch, **options)]
        expected = [len(text) for text in texts]
    if not options.get("ordered", True):
        found, expected = sorted(found), sorted(expected)
    assert found == expected
    return found


@contextmanager
def services(*answers: Callable[[RawRequest], bytes]) -> Iterator[list[RawService]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RawService(answer)) for answer in answers]


def closed_port() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def black_hole() -> Iterator[str]:
    """An address at which no connection comes about: the queue of its connections is full."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.contract("A call that failed at one address of several is made again at another one.")
@everywhere
def test_a_call_that_failed_at_one_address_is_made_again_at_another(kind: str, backend: Any) -> None:
    with services(answered, lambda request: REFUSED) as (good, bad):
        job(kind, [good.url, bad.url], backend, retry=Retry(2, initial=0.0))
        assert 1 <= len(bad.requests) < ROWS / 2


@pytest.mark.contract("One address of several that is overloaded rests alone for as long as it asks.")
@everywhere
@pytest.mark.parametrize("status", [429, 503])
def test_one_address_that_is_overloaded_rests_alone(kind: str, backend: Any, status: int) -> None:
    with services(answered, says(status, "Retry-After: 3000"), answered) as (one, bad, two):
        job(kind, [one.url, bad.url, two.url], backend)
        # Those that were on their way when the first was refused.
        assert 1 <= len(bad.requests) <= CAPACITY
        assert len(one.requests) + len(two.requests) == ROWS


@pytest.mark.contract("An address of several that is not reached costs no row and no attempt.")
@everywhere
@pytest.mark.parametrize("how", ["refused", "no-name", "black-hole"])
def test_an_address_that_is_not_reached_costs_no_row(kind: str, backend: Any, how: str) -> None:
    with services(answered) as (good,), black_hole() as hole:
        bad = {"refused": closed_port(), "no-name": "http://no-such-host.invalid", "black-hole": hole}[how]
        job(kind, [bad, good.url], backend, connect_timeout=2.0, retry=Retry(1))
        assert len(good.requests) == ROWS


@pytest.mark.contract("An address of several that answers again gets calls again.")
@everywhere
def test_an_address_that_answers_again_gets_calls_again(kind: str, backend: Any) -> None:
    with services(answered, says(503, "Retry-After: 0", times=12)) as (good, ill):
        job(kind, [good.url, ill.url], backend, rows=200)
        assert len(ill.requests) > 12
        assert len(good.requests) + len(ill.requests) == 200 + 12


@pytest.mark.contract("Where all addresses refuse for a while no row is lost, with one attempt a row too.")
@everywhere
def test_where_all_addresses_refuse_for_a_while_no_row_is_lost(kind: str, backend: Any) -> None:
    with services(*[says(503, "Retry-After: 0.05", times=6) for _ in range(3)]) as all_of_them:
        job(kind, [each.url for each in all_of_them], backend, retry=Retry(1))
        assert sum(len(each.requests) for each in all_of_them) == ROWS + 3 * 6


@pytest.mark.contract("A key that one address of several refuses is told in the log, and costs no row.")
@everywhere
def test_a_key_that_one_address_refuses_costs_no_row(
    kind: str, backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pillarbox")
    with services(answered, says(401)) as (good, bad):
        job(kind, [good.url, bad.url], backend)
        assert len(good.requests) == ROWS
        (told,) = [record.getMessage() for record in caplog.records if bad.url in record.getMessage()]
        assert "HTTP 401" in told and "rests until" in told


@everywhere
def test_a_key_that_all_addresses_refuse_costs_one_request_a_row(kind: str, backend: Any) -> None:
    with services(says(401), says(401), says(401)) as all_of_them:
        with pytest.raises(AssertionError):
            job(kind, [each.url for each in all_of_them], backend, errors="column", retry=3)
        assert sum(len(each.requests) for each in all_of_them) <= ROWS + 2 * (CAPACITY + 1)


@pytest.mark.contract("A slow address has no more calls in flight than its share.")
@everywhere
def test_a_slow_address_has_no_more_calls_in_flight_than_its_share(kind: str, backend: Any) -> None:
    go_on = threading.Event()

    def slowly(request: RawRequest) -> bytes:
        go_on.wait()
        return answered(request)

    def quickly(request: RawRequest) -> bytes:
        if sum(len(each.requests) for each in (one, two, slow)) >= ROWS:
            go_on.set()
        return answered(request)

    with services(quickly, quickly, slowly) as (one, two, slow):
        job(kind, [one.url, two.url, slow.url], backend, capacity=6, ordered=False)
        assert len(slow.requests) <= 3


@pytest.mark.contract("An address of several that never answers costs an attempt of few rows, and no row.")
@everywhere
def test_an_address_that_never_answers_costs_no_row(kind: str, backend: Any) -> None:
    go_on = threading.Event()

    def never(request: RawRequest) -> bytes:
        go_on.wait()
        return b""

    with services(answered, answered, never) as (one, two, bad):
        try:
            urls = [one.url, two.url, bad.url]
            job(kind, urls, backend, retry=Retry(2, initial=0.0), timeout=Timeout(attempt=2.0))
            assert len(bad.requests) <= CAPACITY
        finally:
            go_on.set()


def test_addresses_of_a_lookup_have_the_same_fields() -> None:
    with pytest.raises(ValueError, match="has not the fields of"):
        HttpLookup(["http://one/{a}", "http://two/{b}"])
    with pytest.raises(TypeError, match="must be an address, or a list"):
        HttpLookup([])
    with pytest.raises(ValueError, match="must begin with an address"):
        HttpLookup(["http://one/{a}", "two/{a}"])


@pytest.mark.contract("Of a lookup at several addresses a cache knows the path and the query, not the hosts.")
def test_a_cache_knows_paths_of_several_addresses_not_their_hosts() -> None:
    one = HttpLookup(["http://one/{a}", "http://two/{a}"]).configuration
    assert one == HttpLookup(["http://three/{a}", "http://one/{a}"]).configuration
    assert one != HttpLookup(["http://one/b/{a}", "http://two/b/{a}"]).configuration


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_several_addresses_travels(kind: str) -> None:
    urls = ["http://one/v1", "http://two/v1"]
    clients: dict[str, Any] = {
        "chat": Chat(urls, "m", prompt="{text}"),
        "embeddings": Embeddings(urls, "m"),
        "lookup": HttpLookup([url + "/{text}" for url in urls]),
    }
    assert pickle.loads(pickle.dumps(clients[kind])) == clients[kind]
