"""Replies of services that are ill, for functions and clients of several addresses, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.aio.virtual import now

Reply = Callable[[], Awaitable[Any]]


class Refused(Exception):
    """An answer with a status that is not a success."""

    def __init__(self, status: int, retry_after: float | None = None, body: bytes = b"") -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body
        self.headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}


def refuses(*args: Any, until: float | None = None, seconds: float = 0.001) -> Reply:
    """Refuses each request with `Refused(*args)`, until a time if one is given."""

    async def reply() -> None:
        await asyncio.sleep(seconds)
        if until is None or now() < until:
            raise Refused(*args)

    return reply


def is_dead(until: float | None = None) -> Reply:
    """Refuses each connection, until a time if one is given."""

    async def reply() -> None:
        await asyncio.sleep(0.001)
        if until is None or now() < until:
            raise ConnectionRefusedError(111, "refused")

    return reply


async def hangs() -> None:
    """Answers after all others."""
    await asyncio.sleep(1000.0)
