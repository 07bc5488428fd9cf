"""A service of chats for the tests, in the form of OpenAI's: it counts the words of what it is asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from aiohttp import web

Messages: TypeAlias = list[dict[str, str]]

SPOILED_OF = 5
"""Of so many answers a service that spoils gives a bad one."""


def counted(messages: Messages) -> str:
    """The service's own answer: the number of words in the first line of the question, and its first word."""
    question = next(each["content"] for each in messages if each["role"] == "user")
    words = question.splitlines()[0].split()
    return json.dumps({"words": len(words), "first": words[0]})


@dataclass
class ChatService:
    """One service. The requests that it took are in `requests`, their headers in `headers`.

    structures: kinds of `response_format` that it knows; others are refused with status `refusal`, or with
    `ignores` answered as if they were not there. answer: gives the text of a reply. spoils: exactly one of
    `SPOILED_OF` answers in a row is spoiled, its place drawn with `seed`. change: what is done to each reply
    before it is sent. key: the header and value that requests must have.
    """

    structures: tuple[str, ...] = ("json_schema", "json_object")
    ignores: bool = False
    refusal: int = 400
    answer: Callable[[Messages], str] = counted
    spoils: bool = False
    seed: int = 0
    change: Callable[[dict[str, Any]], Any] = lambda reply: reply
    key: tuple[str, str] | None = None
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    replies: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._spoiled_place = 0

    @property
    def structures_asked(self) -> list[str | None]:
        """The kind of structured output of each request."""
        return [(request.get("response_format") or {}).get("type") for request in self.requests]

    async def respond(self, request: web.Request) -> web.Response:
        """Answer a request."""
        asked = await request.json()
        self.requests.append(asked)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path_qs)
        if self.key is not None and request.headers.get(self.key[0]) != self.key[1]:
            given = request.headers.get(self.key[0])
            return error(401, f"Incorrect API key provided: {given}", "invalid_api_key")
        structure = (asked.get("response_format") or {}).get("type")
        if structure is not None and structure not in self.structures and not self.ignores:
            return error(self.refusal, f"response_format: {structure} is not supported")
        text = self.answer(asked["messages"])
        if self.spoils:
            text = self._spoiled(text)
        message = {"role": "assistant", "content": text}
        spoken = sum(len(each["content"]) for each in asked["messages"])
        reply = {
            "object": "chat.completion",
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": spoken, "completion_tokens": len(text)},
        }
        return web.json_response(self.change(reply))

    def _spoiled(self, text: str) -> str:
        """The text, or one of the ways in which models miss a form."""
        place = self.replies % SPOILED_OF
        if place == 0:
            self._spoiled_place = self._random.randrange(SPOILED_OF)
        self.replies += 1
        if place != self._spoiled_place:
            return text
        spoiled = (
            text[: len(text) // 2],
            "I am sorry, but I do not know.",
            "{}",
            json.dumps({**json.loads(text), "words": "several"}),
            json.dumps([json.loads(text)] * 2),
        )
        return self._random.choice(spoiled)


def error(status: int, message: str, code: str | None = None, **headers: str) -> web.Response:
    """An answer that is an error, as such services give it."""
    described = {"message": message, "type": "invalid_request_error", "code": code}
    return web.json_response({"error": described}, status=status, headers=headers)


@asynccontextmanager
async def serving(service: ChatService) -> AsyncIterator[ChatService]:
    """Serve on a port of loopback, on the running loop; `service.url` is its address."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/{path:.*}", service.respond)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield service
    finally:
        await runner.cleanup()
