"""The clients that are measured, each as a function of a job. Run in the environment of each.

`python -m bench.clients.contenders` reads jobs, one JSON object a line, and answers each with a line when it
is done, and with another when its result is checked. Packages are imported by the contender that needs them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

DIMENSIONS = 1_024
TEXTS_PER_REQUEST = 64
REQUESTS_IN_FLIGHT = 8
LOOKUPS_IN_FLIGHT = 64
MODEL = "raw"


@dataclass(frozen=True)
class Job:
    """So many rows by one contender, from the server at `url`."""

    contender: str
    url: str
    rows: int


def texts(count: int) -> list[str]:
    """The texts of a job, about 50 characters each."""
    return [f"text number {number} of a column, a line long as many are" for number in range(count)]


def batches(rows: list[str]) -> Iterator[list[str]]:
    """The texts of each request."""
    for start in range(0, len(rows), TEXTS_PER_REQUEST):
        yield rows[start : start + TEXTS_PER_REQUEST]


async def in_flight(calls: int, ask: Callable[[Any], Awaitable[Any]], items: list[Any]) -> list[Any]:
    """The answers for all items, so many at a time, in their order."""
    answers: list[Any] = [None] * len(items)
    left = iter(enumerate(items))

    async def work() -> None:
        for index, item in left:
            answers[index] = await ask(item)

    await asyncio.gather(*[work() for _ in range(calls)])
    return answers


def column_of_blocks(blocks: list[Any]) -> Any:
    """An Arrow column `list<float>` of numpy blocks, without a copy."""
    import numpy as np
    import pyarrow as pa

    chunks = []
    for block in blocks:
        count, length = block.shape
        offsets = pa.array(np.arange(0, count * length + 1, length, dtype=np.int32))
        chunks.append(pa.ListArray.from_arrays(offsets, pa.array(block.reshape(-1))))
    return pa.chunked_array(chunks)


def column_of_lists(vectors: list[list[float]]) -> Any:
    """The same of lists of floats."""
    import pyarrow as pa

    return pa.array(vectors, pa.list_(pa.float32()))


# -- embeddings: texts in, an Arrow column out ---------------------------------------------------------------


def _embeddings(backend: Any) -> Callable[[Job], Any]:
    def run(job: Job) -> Any:
        from pillarbox.clients import Embeddings, Http

        http = Http(backend=backend)
        client = Embeddings(f"{job.url}/v1", MODEL, max_texts=TEXTS_PER_REQUEST, http=http)

        async def main() -> list[Any]:
            async with client:
                return await in_flight(REQUESTS_IN_FLIGHT, client, list(batches(texts(job.rows))))

        return column_of_blocks(asyncio.run(main()))

    return run


def async_openai(job: Job) -> Any:
    """OpenAI's own client, as its documentation shows it."""
    from openai import AsyncOpenAI

    async def main() -> list[list[float]]:
        async with AsyncOpenAI(base_url=f"{job.url}/v1", api_key="none", max_retries=0) as client:

            async def ask(batch: list[str]) -> list[list[float]]:
                answer = await client.embeddings.create(input=batch, model=MODEL)
                return [item.embedding for item in answer.data]

            answers = await in_flight(REQUESTS_IN_FLIGHT, ask, list(batches(texts(job.rows))))
        return [vector for answer in answers for vector in answer]

    return column_of_lists(asyncio.run(main()))


@asynccontextmanager
async def session(connections: int) -> AsyncIterator[Any]:
    """A session of aiohttp."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as opened:
        yield opened


def bare_embeddings(job: Job) -> Any:
    """A loop by hand: aiohttp, lists of floats, `pa.array`."""

    async def main() -> list[list[float]]:
        async with session(REQUESTS_IN_FLIGHT) as http:

            async def ask(batch: list[str]) -> list[list[float]]:
                body = {"input": batch, "model": MODEL}
                async with http.post(f"{job.url}/v1/embeddings", json=body) as answer:
                    found = await answer.json()
                return [item["embedding"] for item in found["data"]]

            answers = await in_flight(REQUESTS_IN_FLIGHT, ask, list(batches(texts(job.rows))))
        return [vector for answer in answers for vector in answer]

    return column_of_lists(asyncio.run(main()))


def baseten(job: Job) -> Any:
    """Baseten's client in Rust, asked for lists of floats, of which it makes a block itself."""
    import numpy as np
    from baseten_performance_client import PerformanceClient, RequestProcessingPreference

    preference = RequestProcessingPreference(
        batch_size=TEXTS_PER_REQUEST, max_concurrent_requests=REQUESTS_IN_FLIGHT
    )
    client = PerformanceClient(base_url=job.url, api_key="none")
    answer = client.embed(input=texts(job.rows), model=MODEL, preference=preference)
    return column_of_blocks([np.asarray(answer.numpy(), np.float32)])


def baseten_base64(job: Job) -> Any:
    """The same asked for base64, which it hands over as text: decoded here."""
    import base64

    import numpy as np
    from baseten_performance_client import PerformanceClient, RequestProcessingPreference

    preference = RequestProcessingPreference(
        batch_size=TEXTS_PER_REQUEST, max_concurrent_requests=REQUESTS_IN_FLIGHT
    )
    client = PerformanceClient(base_url=job.url, api_key="none")
    answer = client.embed(input=texts(job.rows), model=MODEL, encoding_format="base64", preference=preference)
    packed = b"".join([base64.b64decode(item.embedding) for item in answer.data])
    return column_of_blocks([np.frombuffer(packed, np.float32).reshape(-1, DIMENSIONS)])


def daft_embed_text(job: Job) -> Any:
    """Daft's `embed_text`."""
    import daft
    from daft.ai.openai.provider import OpenAIProvider
    from daft.functions import embed_text

    provider = OpenAIProvider(base_url=f"{job.url}/v1", api_key="none")
    vectors = embed_text(daft.col("text"), provider=provider, model=MODEL, batch_size=TEXTS_PER_REQUEST)
    frame = daft.from_pydict({"text": texts(job.rows)}).select(vectors.alias("vector"))
    return frame.to_arrow().column("vector")


def openaivec(job: Job) -> Any:
    """The class below openaivec's columns of pandas and Spark."""
    import numpy as np
    import tiktoken
    from openai import AsyncOpenAI
    from openaivec import AsyncBatchEmbeddings

    # It counts tokens with an encoding that is fetched from a server of OpenAI's. Here a byte is a token, and
    # these short texts still fit into its requests.
    tiktoken.registry.ENCODINGS["cl100k_base"] = tiktoken.Encoding(
        "cl100k_base",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={},
    )

    async def main() -> list[Any]:
        async with AsyncOpenAI(base_url=f"{job.url}/v1", api_key="none") as client:
            embedder = AsyncBatchEmbeddings.of(
                client=client,
                model_name=MODEL,
                batch_size=TEXTS_PER_REQUEST,
                max_concurrency=REQUESTS_IN_FLIGHT,
            )
            found: list[Any] = await embedder.create(texts(job.rows))
            return found

    return column_of_blocks([np.stack(asyncio.run(main()))])


# -- lookups: a number in, a value out -----------------------------------------------------------------------


def _lookups(backend: Any, *, by_operator: bool) -> Callable[[Job], Any]:
    def run(job: Job) -> Any:
        from pillarbox import async_map
        from pillarbox.clients import Http, HttpLookup

        client = HttpLookup(f"{job.url}/lookup/{{id}}", http=Http(backend=backend))

        async def main() -> list[Any]:
            async with client:
                return await in_flight(LOOKUPS_IN_FLIGHT, client, list(range(job.rows)))

        if by_operator:
            return list(async_map(range(job.rows), client, capacity=LOOKUPS_IN_FLIGHT))
        return asyncio.run(main())

    return run


def _lookups_of(
    open_client: Callable[[], AbstractAsyncContextManager[Any]], get: Any
) -> Callable[[Job], Any]:
    def run(job: Job) -> Any:
        async def main() -> list[Any]:
            async with open_client() as client:

                async def ask(row: int) -> Any:
                    return await get(client, f"{job.url}/lookup/{row}")

                return await in_flight(LOOKUPS_IN_FLIGHT, ask, list(range(job.rows)))

        return asyncio.run(main())

    return run


async def _by_aiohttp(client: Any, url: str) -> Any:
    async with client.get(url) as answer:
        return await answer.json()


async def _by_httpx(client: Any, url: str) -> Any:
    return (await client.get(url)).json()


def _httpx() -> Any:
    import httpx

    limits = httpx.Limits(max_connections=LOOKUPS_IN_FLIGHT)
    return httpx.AsyncClient(limits=limits, timeout=None)


# -- questions: a number in, an answer of a Pydantic model out -----------------------------------------------


def _answer_model() -> Any:
    from pydantic import BaseModel

    class Answer(BaseModel):
        id: int
        name: str
        tags: list[str]

    return Answer


def _questions(backend: Any, *, by_operator: bool) -> Callable[[Job], Any]:
    def run(job: Job) -> Any:
        from pillarbox import async_map
        from pillarbox.clients import Chat, Http

        http = Http(backend=backend)
        client = Chat(f"{job.url}/v1", MODEL, prompt="Row {id}", answer=_answer_model(), http=http)

        async def ask(row: int) -> Any:
            return client.parse((await client(row)).value)

        async def main() -> list[Any]:
            async with client:
                return await in_flight(LOOKUPS_IN_FLIGHT, ask, list(range(job.rows)))

        if by_operator:
            return list(async_map(range(job.rows), client, capacity=LOOKUPS_IN_FLIGHT))
        return asyncio.run(main())

    return run


def _questions_by_openai(*, parsed: bool) -> Callable[[Job], Any]:
    """OpenAI's own client: with its method that parses, as its documentation shows it, or without."""

    def run(job: Job) -> Any:
        from openai import AsyncOpenAI

        model = _answer_model()

        async def main() -> list[Any]:
            async with AsyncOpenAI(base_url=f"{job.url}/v1", api_key="none", max_retries=0) as client:

                async def ask(row: int) -> Any:
                    messages: Any = [{"role": "user", "content": f"Row {row}"}]
                    if parsed:
                        found = await client.chat.completions.parse(
                            model=MODEL, messages=messages, response_format=model
                        )
                        return found.choices[0].message.parsed
                    answer = await client.chat.completions.create(model=MODEL, messages=messages)
                    return model.model_validate_json(answer.choices[0].message.content)

                return await in_flight(LOOKUPS_IN_FLIGHT, ask, list(range(job.rows)))

        return asyncio.run(main())

    return run


def bare_questions(job: Job) -> Any:
    """A loop by hand: aiohttp, and Pydantic."""
    model = _answer_model()

    async def main() -> list[Any]:
        async with session(LOOKUPS_IN_FLIGHT) as http:

            async def ask(row: int) -> Any:
                body = {"model": MODEL, "messages": [{"role": "user", "content": f"Row {row}"}]}
                async with http.post(f"{job.url}/v1/chat/completions", json=body) as answer:
                    found = await answer.json()
                return model.model_validate_json(found["choices"][0]["message"]["content"])

            return await in_flight(LOOKUPS_IN_FLIGHT, ask, list(range(job.rows)))

    return asyncio.run(main())


EMBEDDINGS: dict[str, Callable[[Job], Any]] = {
    "Embeddings, libcurl": _embeddings("libcurl"),
    "Embeddings, aiohttp": _embeddings("aiohttp"),
    "AsyncOpenAI": async_openai,
    "a loop: aiohttp, json, lists": bare_embeddings,
    "baseten-performance-client": baseten,
    "baseten-performance-client, base64": baseten_base64,
    "Daft embed_text": daft_embed_text,
    "openaivec": openaivec,
}
LOOKUPS: dict[str, Callable[[Job], Any]] = {
    "HttpLookup, libcurl": _lookups("libcurl", by_operator=False),
    "HttpLookup, libcurl, by async_map": _lookups("libcurl", by_operator=True),
    "HttpLookup, aiohttp": _lookups("aiohttp", by_operator=False),
    "a loop: aiohttp, json": _lookups_of(lambda: session(LOOKUPS_IN_FLIGHT), _by_aiohttp),
    "a loop: httpx": _lookups_of(_httpx, _by_httpx),
}
QUESTIONS: dict[str, Callable[[Job], Any]] = {
    "Chat, libcurl": _questions("libcurl", by_operator=False),
    "Chat, libcurl, by async_map": _questions("libcurl", by_operator=True),
    "Chat, aiohttp": _questions("aiohttp", by_operator=False),
    "AsyncOpenAI, create": _questions_by_openai(parsed=False),
    "AsyncOpenAI, parse": _questions_by_openai(parsed=True),
    "a loop: aiohttp, Pydantic": bare_questions,
}
ENVIRONMENTS = {
    "baseten-performance-client": "baseten",
    "baseten-performance-client, base64": "baseten",
    "Daft embed_text": "daft",
    "openaivec": "openaivec",
}
"""Contenders that have an environment of their own."""


FEWER = {"Daft embed_text": 8}
"""The part of the rows, one of so many, that a contender gets.

With 6,400 rows Daft's third job in a process does not end within two minutes. In a first job of so many a row
costs as much CPU as in jobs of 800.
"""


def check(job: Job, found: Any) -> None:
    """Raise ValueError unless the result is the server's answer for each row."""
    if len(found) != job.rows:
        raise ValueError(f"{len(found)} results for {job.rows} rows")
    if job.contender in LOOKUPS:
        if [each["id"] for each in found] != list(range(job.rows)):
            raise ValueError("results of other rows")
        return
    if job.contender in QUESTIONS:
        if [(each.id, each.tags) for each in found] != [(row, ["a", "b"]) for row in range(job.rows)]:
            raise ValueError("answers of other rows")
        return
    from bench.clients.server import vectors

    for row in (0, 1, job.rows - 1):
        expected = vectors()[row % TEXTS_PER_REQUEST % len(vectors())]
        if not all(abs(a - b) < 1e-6 for a, b in zip(found[row].as_py(), expected, strict=True)):
            raise ValueError(f"the vector of row {row} is another one")


def main() -> None:
    """Do jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        try:
            found = (EMBEDDINGS | LOOKUPS | QUESTIONS)[job.contender](job)
            print(json.dumps({"done": True}), file=answers)
            check(job, found)
            print(json.dumps({"checked": True}), file=answers)
        except Exception as error:
            traceback.print_exc()
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}), file=answers)


if __name__ == "__main__":
    main()
