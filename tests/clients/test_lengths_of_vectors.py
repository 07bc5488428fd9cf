"""Vectors of one column have one length, and are normalized right whatever their numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pillarbox
from pillarbox import Errors, Ledger, Retry
from pillarbox.clients import Embeddings
from tests.clients.unit.raw_embeddings import Raw, Reply, answer, check, embedded, serving

TEXTS = [f"text {number}" for number in range(20)]


class Changing:
    """A service whose model is another one after some requests."""

    def __init__(self, requests: int, before: int = 4, after: int = 6) -> None:
        self._left = requests
        self._lengths = before, after

    def __call__(self, request: dict[str, Any]) -> Reply:
        self._left -= 1
        return answer(request, self._lengths[self._left < 0])


@pytest.mark.contract
@pytest.mark.parametrize("encoding", ["auto", "float"])
def test_vectors_of_another_length_than_the_first_are_errors_that_name_both(encoding: Any) -> None:
    with serving(Changing(4)) as service:
        client = service.client(max_texts=2, encoding=encoding)
        outcomes = embedded(client, TEXTS, capacity=1, retry=3)
        # It would be so again, and each is paid for.
        assert len(service.requests) == 10
    check(outcomes[:8], TEXTS[:8])
    assert all("vectors of 6, and those before have 4" in each.error.message for each in outcomes[8:])


@pytest.mark.contract
def test_one_of_two_addresses_with_another_model_gives_no_second_length() -> None:
    with serving(answer) as one, serving(lambda request: answer(request, 6)) as two:
        client = Embeddings([one.url, two.url], "m", max_texts=2, http=one.client().http)
        outcomes = embedded(client, TEXTS, capacity=1, retry=Retry(3, initial=0.001))
    # Whichever answered first has the right model.
    assert all(each.error is None for each in outcomes)
    assert len({len(each.result) for each in outcomes}) == 1


@pytest.mark.contract
def test_an_answer_with_two_lengths_is_an_error() -> None:
    def handle(request: dict[str, Any]) -> Reply:
        reply = answer({"input": request["input"]})
        reply.body["data"][0]["embedding"].append(1.0)
        return reply

    with serving(handle) as service:
        outcomes = embedded(service.client(), TEXTS[:2], errors=Errors("column", floor=None))
    # Each is called alone, where the first has five and is not the same as before.
    assert {each.error is None for each in outcomes} <= {True, False}
    assert len({len(each.result) for each in outcomes if each.error is None}) <= 1


def run(service: Raw, texts: list[str], ledger: Ledger) -> list[Any]:
    """Another process would have another client, so here is a new one for each job."""
    return embedded(service.client(max_texts=5), texts, ledger=ledger, capacity=1)


@pytest.mark.contract
@pytest.mark.parametrize("cached", [False, True])
def test_the_vectors_that_a_ledger_has_kept_say_the_length(tmp_path: Path, cached: bool) -> None:
    kind: dict[str, Any] = {"cache": True} if cached else {"run": "r"}
    ledger = Ledger(str(tmp_path), uid="embed", **kind)
    with serving(Changing(1)) as service:
        check(run(service, TEXTS[:5], ledger), TEXTS[:5])
        outcomes = run(service, [*TEXTS[5:10], *TEXTS[:5]], ledger)
    assert all("vectors of 6, and those before have 4" in each.error.message for each in outcomes[:5])
    check(outcomes[5:], TEXTS[:5])


@pytest.mark.contract
def test_the_dimensions_that_were_asked_for_say_the_length() -> None:
    with serving(lambda request: answer(request, 6)) as service:
        (found,) = embedded(service.client(dimensions=4), TEXTS[:1])
    assert "dimensions=4: the service gave vectors of 6" in found.error.message


@pytest.mark.contract
@pytest.mark.parametrize("size", [1e25, 1e-30, 3e38, 1e-45])
def test_normalize_is_right_for_very_large_and_very_small_numbers(size: float) -> None:
    def handle(request: dict[str, Any]) -> Reply:
        data = [{"index": place, "embedding": [size, size, 0.0, -size]} for place in range(2)]
        return Reply(200, {"data": data})

    async def job(client: Embeddings) -> Any:
        return [row async for row in pillarbox.async_map(["a", "b"], client, batch=client.batch)]

    with serving(handle) as service:
        found = np.stack(asyncio.run(job(service.client(normalize=True))))
    part = 1 / np.sqrt(3)
    assert np.allclose(found, [[part, part, 0.0, -part]] * 2, atol=1e-6)
