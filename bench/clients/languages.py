"""CPU of a vector and of a question in each language of the clients: `python -m bench.clients.languages`.

A raw server in a process of its own gives each answer out of memory, in the form of its service: vectors of
1,024 floats for 64 texts a request, in base64 where the language has it and as lists of floats where not, and
a reply of about 100 bytes that a Pydantic type reads. CPU is that of this process, HTTP by libcurl included,
in interleaved rounds. Medians and lowest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import BaseModel

from bench.clients import server
from bench.clients.server import RawHttp, RawServer, vectors, whole_answer
from bench.table import Column, print_table
from pillarbox import async_map
from pillarbox.clients import Chat, Embeddings, Http

BATCH, IN_FLIGHT = 64, 8
VECTORS, QUESTIONS, ROUNDS = 6_400, 4_000, 5
DIRECT = Http(proxy="direct", backend="libcurl")
REPLY = '{"id":7,"name":"row 7","tags":["a","b"]}'
LISTS = {"lists of floats": {"encoding": "float"}}
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "openai": {"base64": {}, **LISTS},
    "voyage": {"base64": {}, **LISTS},
    "jina": {"base64": {}, **LISTS},
    "cohere": LISTS,
    "gemini": LISTS,
    "ollama": LISTS,
}
LANGUAGES = ("openai", "responses", "anthropic", "gemini")
MODEL_OF_CLIENT = "m"


class Extracted(BaseModel):
    """The answer to a question."""

    id: int
    name: str
    tags: list[str]


@cache
def vectors_answer(path: str, count: int) -> bytes:
    """The answer of a service whose form is not that of OpenAI."""
    some = [vectors()[place % server.VECTORS] for place in range(count)]
    if path.endswith("/api/embed"):
        answer: dict[str, Any] = {
            "model": MODEL_OF_CLIENT,
            "embeddings": some,
            "prompt_eval_count": 8 * count,
        }
    elif path.endswith("/embed"):
        billed = {"billed_units": {"input_tokens": 8 * count}}
        answer = {"id": "1", "embeddings": {"float": some}, "texts": [], "meta": billed}
    else:
        answer = {"embeddings": [{"values": each} for each in some]}
    return whole_answer(json.dumps(answer, separators=(",", ":")).encode())


@cache
def reply_answer(path: str) -> bytes:
    """The answer to a question, in the language of its path, which is not OpenAI's chat completions."""
    said: dict[str, Any]
    if path.endswith("/responses"):
        content = [{"type": "output_text", "text": REPLY, "annotations": []}]
        said = {"id": "1", "object": "response", "status": "completed", "error": None, "model": "raw"}
        said["output"] = [{"type": "message", "id": "2", "role": "assistant", "content": content}]
        said["usage"] = {"input_tokens": 9, "output_tokens": 12, "total_tokens": 21}
    elif path.endswith("/messages"):
        said = {"id": "1", "type": "message", "role": "assistant", "model": "raw", "stop_reason": "end_turn"}
        said["content"] = [{"type": "text", "text": REPLY}]
        said["usage"] = {"input_tokens": 9, "output_tokens": 12}
    else:
        content = {"role": "model", "parts": [{"text": REPLY}]}
        said = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}
        said["usageMetadata"] = {"promptTokenCount": 9, "candidatesTokenCount": 12, "totalTokenCount": 21}
    return whole_answer(json.dumps(said, separators=(",", ":")).encode())


class Languages(RawHttp):
    """One connection of a server that speaks each language."""

    def _answer_to(self, head: bytes, body: bytes) -> bytes:
        path = head.split(b" ", 2)[1].decode()
        if path.endswith(("/embeddings", "/completions")):
            # In OpenAI's form.
            return super()._answer_to(head, body)
        if not path.endswith(("/embed", ":batchEmbedContents")):
            return reply_answer(path)
        asked = json.loads(body)
        return vectors_answer(path, len(asked.get("input") or asked.get("texts") or asked.get("requests")))


class LanguageServer(RawServer):
    """The process of the server of all languages."""

    command = ("-m", "bench.clients.languages", "--serve")


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients.languages", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="be the server, and print its port")
    parser.add_argument("--vectors", type=int, default=VECTORS)
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    if options.serve:
        import uvloop

        uvloop.install()
        asyncio.run(server.serve(Languages))
        return 0
    texts = [f"text number {number}" for number in range(options.vectors)]
    numbers = [*range(options.questions)]

    def embedded(client: Embeddings) -> Callable[[], int]:
        return lambda: len(list(async_map(texts, client, batch=client.batch, capacity=IN_FLIGHT)))

    def answered(client: Chat) -> Callable[[], int]:
        rows = [{"number": number} for number in numbers]
        return lambda: len([each for each in async_map(rows, client, capacity=64) if each.tags == ["a", "b"]])

    with LanguageServer() as service:
        url = f"{service.url}/v1"
        for what, jobs in (
            (
                "vector",
                {
                    f"{api}, {form}": (
                        options.vectors,
                        embedded(
                            Embeddings(url, MODEL_OF_CLIENT, api=api, max_texts=BATCH, http=DIRECT, **more)
                        ),
                    )
                    for api, forms in FORMS.items()
                    for form, more in forms.items()
                },
            ),
            (
                "question",
                {
                    name: (
                        options.questions,
                        answered(
                            Chat(
                                url,
                                MODEL_OF_CLIENT,
                                prompt="Extract row {number}",
                                answer=Extracted,
                                language=name,
                                http=DIRECT,
                            )
                        ),
                    )
                    for name in LANGUAGES
                },
            ),
        ):
            _measure(what, jobs, options.rounds)
    return 0


def _measure(what: str, jobs: dict[str, tuple[int, Callable[[], int]]], rounds: int) -> None:
    """Run the jobs in turns, and print the CPU of each."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(-1, rounds):
        for name, (rows, job) in jobs.items():
            began = time.process_time()
            made = job()
            if made != rows:
                raise AssertionError(f"{name}: {made} of {rows}")
            # The first round warms up.
            if number >= 0:
                found[name].append((time.process_time() - began) / rows * 1e6)
    columns = [Column(f"a {what} in", right=False), Column("CPU, us"), Column("lowest")]
    lines = [[name, f"{statistics.median(each):.1f}", f"{min(each):.1f}"] for name, each in found.items()]
    print_table(columns, lines)


if __name__ == "__main__":
    sys.exit(main())
