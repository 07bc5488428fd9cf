"""A service that is overloaded, in virtual time."""

from __future__ import annotations

import asyncio
import math

from tests.aio.virtual import now


class Overloaded(Exception):
    """An answer 429 or 503, with or without Retry-After."""

    def __init__(self, retry_after: float | None = None, status: int = 429) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}


class Limited:
    """Takes `rate` calls a second and `burst` at once: a bucket, or windows of a second since `window`."""

    def __init__(
        self,
        rate: float,
        burst: float,
        retry_after: float | None,
        latency: float,
        window: float | None = None,
    ) -> None:
        self.rate, self.burst, self.latency, self.windows = rate, burst, latency, window is not None
        self.error = Overloaded(retry_after)
        self.level, self.at = burst, window or 0.0
        self.refused = 0

    async def __call__(self, row: int) -> int:
        passed = now() - self.at
        if not self.windows:
            self.level, self.at = min(self.burst, self.level + passed * self.rate), now()
        elif passed >= 1.0:
            self.level, self.at = self.burst, self.at + math.floor(passed)
        if self.level < 1.0:
            self.refused += 1
            await asyncio.sleep(0.001)
            raise self.error
        self.level -= 1.0
        await asyncio.sleep(self.latency)
        return row
