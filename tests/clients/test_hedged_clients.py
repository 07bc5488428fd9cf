"""Clients whose calls are hedged, with a real server of which some requests get no answer."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox import Batch, Endpoints, Hedge, async_map
from pillarbox.clients import Chat, Embeddings, HttpLookup
from pillarbox.testing import serve

ROWS = 40
HANGS, SEED = 0.1, 2
"""The share of requests that get no answer; the seed has some of each client be so."""


def numbers() -> list[str]:
    return [f"N{number}" for number in range(100, 100 + ROWS)]


@pytest.mark.contract("Clients that ask for something say that they may be hedged.")
def test_requests_that_get_no_answer_are_overtaken() -> None:
    hedge = Hedge(after=0.2, budget=1.0, calls=5)
    with serve(hang=HANGS, dimensions=4, seed=SEED) as service:
        planes = HttpLookup(f"{service.url}/planes/{{tailnum}}", take="tailnum")
        chat = Chat(service.url, "any-model", prompt="{text}")
        vectors = Embeddings(service.url, "any-model")
        rows = numbers()
        looked_up = async_map([{"tailnum": row} for row in rows], planes, hedge=hedge)
        assert list(looked_up) == rows
        asked = async_map([{"text": row} for row in rows], chat, hedge=hedge)
        assert [type(answer) for answer in asked] == [str] * ROWS
        embedded = async_map(rows, vectors, hedge=hedge)
        assert {vector.shape for vector in embedded} == {(4,)}
    for each in (looked_up, asked, embedded):
        counts: Any = each.statistics()
        assert counts.results == ROWS
        assert counts.hedges_won >= 1
        assert counts.calls == ROWS + counts.hedged


@pytest.mark.contract(
    "Rows of a client with several addresses are overtaken at another address, of which one hangs."
)
@pytest.mark.parametrize("kind", ["lookup", "chat", "embeddings"])
def test_rows_at_an_address_that_hangs_are_overtaken_at_another_one(kind: str) -> None:
    hedge = Hedge(after=0.2, budget=1.0, calls=2)
    with serve(hang=1.0, dimensions=4) as ill, serve(dimensions=4) as well:
        urls = [ill.url, well.url]
        client: Any
        rows: Any = [{"tailnum": row} for row in numbers()[:8]]
        if kind == "lookup":
            urls = [url + "/planes/{tailnum}" for url in urls]
            client = HttpLookup(Endpoints(urls, choose="in-order"), take="tailnum")
        elif kind == "chat":
            client = Chat(Endpoints(urls, choose="in-order"), "any-model", prompt="{tailnum}")
        else:
            client = Embeddings(Endpoints(urls, choose="in-order"), "any-model")
            rows = numbers()[:8]
        found = async_map(rows, client, hedge=hedge, capacity=16)
        assert len([*found]) == 8
    counts: Any = found.statistics()
    assert (counts.hedges_won, counts.errors, counts.calls) == (8, 0, 16)


def test_a_post_must_be_said_to_do_no_harm() -> None:
    post = HttpLookup("http://127.0.0.1:1/planes", method="POST", body=["tailnum"])
    with pytest.raises(ValueError, match=r"HttpLookup.*idempotent=True"):
        async_map([{"tailnum": "N1"}], post, hedge=Hedge())
    assert async_map([{"tailnum": "N1"}], post, hedge=Hedge(idempotent=True)) is not None


@pytest.mark.contract("Batches of texts whose request gets no answer are overtaken by a hedge.")
def test_batches_of_texts_that_get_no_answer_are_overtaken() -> None:
    with serve(hang=HANGS, dimensions=4, seed=SEED) as service:
        client = Embeddings(service.url, "any-model")
        hedge = Hedge(after=0.2, budget=1.0, calls=5)
        embedded = async_map(numbers(), client, batch=Batch(2), hedge=hedge)
        assert {vector.shape for vector in embedded} == {(4,)}
    counts: Any = embedded.statistics()
    assert counts.results == ROWS and counts.hedges_won >= 1
    assert counts.batches == ROWS // 2 + counts.hedged
