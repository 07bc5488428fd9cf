"""Endpoints that name quotas in their answers, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pillarbox import current_call
from tests.aio.virtual import now

URLS = ("http://one", "http://two", "http://three")


def named(remaining: int, reset: str, limit: int = 600) -> dict[str, str]:
    """The headers of a limit of calls."""
    return {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": reset,
    }


class Refused(Exception):
    """An answer 429; `code` as OpenAI's error object has it."""

    def __init__(self, headers: dict[str, str] | None = None, code: str | None = None) -> None:
        super().__init__("status 429")
        self.status = 429
        self.headers = headers or {}
        if code is not None:
            self.code = code

    def copy(self) -> Refused:
        """The same of another answer."""
        return Refused(self.headers, getattr(self, "code", None))


class Named:
    """Calls of endpoints that answer after 0.1 s, with these headers by address, or refuse with an error."""

    def __init__(self, headers: dict[str, Any], seconds: float = 0.1) -> None:
        self.headers = headers
        self.seconds = seconds
        self.requests: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {url: [] for url in URLS}

    async def ask(self, url: str, row: Any) -> Any:
        """Ask one endpoint for a row."""
        self.requests[url] += 1
        self.times[url].append(now())
        await asyncio.sleep(self.seconds)
        said = self.headers.get(url)
        if isinstance(said, Refused):
            raise said.copy()
        if said is not None:
            current_call().report_limits(said)
        return row

    async def __call__(self, row: Any) -> Any:
        return await self.ask(current_call().endpoint.url, row)
