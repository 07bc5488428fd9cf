"""Several addresses of a service: a call that is made again goes to another one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pillarbox import Retry, async_map
from pillarbox.clients import Chat, Embeddings, Http
from tests.clients.raw_service import RawRequest, RawService, raw_answer

ROWS = 60
REFUSED = raw_answer(b'{"error": {"message": "a fault of this address"}}', "application/json", status=500)


def answered(request: RawRequest) -> bytes:
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


@pytest.mark.contract("A call that failed at one address of several is made again at another one.")
@pytest.mark.parametrize("backend", ["libcurl", "aiohttp"])
@pytest.mark.parametrize("kind", ["chat", "embeddings"])
def test_a_call_that_failed_at_one_address_is_made_again_at_another(kind: str, backend: Any) -> None:
    http = Http(proxy="direct", backend=backend)
    texts = ["x" * (1 + number % 7) for number in range(ROWS)]
    with RawService(answered) as good, RawService(lambda request: REFUSED) as bad:
        urls = [good.url + "/v1", bad.url + "/v1"]
        options: dict[str, Any] = {"capacity": 8, "retry": Retry(2, initial=0.0)}
        if kind == "chat":
            chat = Chat(urls, "m", prompt="{text}", http=http)
            given = [{"text": text} for text in texts]
            assert [*async_map(given, chat, **options)] == texts
        else:
            client = Embeddings(urls, "m", max_texts=1, http=http)
            vectors = async_map(texts, client, batch=client.batch, **options)
            assert [vector[0] for vector in vectors] == [len(text) for text in texts]
        assert len(bad.requests) >= 1
