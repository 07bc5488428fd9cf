"""A service that enforces calls and tokens a minute, in virtual time, and names them in its headers.

All is for the thread that runs the loop.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field
from typing import Literal

from pillarbox import Result, Usage, current_call

MINUTE_S = 60.0


class Refused(Exception):
    """An answer 429, with the headers of the service."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("status 429")
        self.status = 429
        self.headers = headers


@dataclass
class Account:
    """One quota of `limit` a minute: a bucket that fills step by step, or a window that turns each minute."""

    limit: float
    form: Literal["bucket", "window"]
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.limit

    def look(self, now: float) -> None:
        """Let what comes back by `now` come back."""
        if self.form == "bucket":
            self.left = min(self.limit, self.left + (now - self.at) * self.limit / MINUTE_S)
            self.at = now
        elif now - self.at >= MINUTE_S:
            self.left, self.at = self.limit, self.at + MINUTE_S * math.floor((now - self.at) / MINUTE_S)

    def reset(self, now: float) -> float:
        """Seconds until all is there again."""
        if self.form == "window":
            return self.at + MINUTE_S - now
        return (self.limit - self.left) * MINUTE_S / self.limit

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there."""
        if self.form == "window":
            return self.reset(now)
        return max(0.0, amount - self.left) * MINUTE_S / self.limit


class Service:
    """An async function of a row: takes `calls` and `tokens` a minute of all who call it.

    form: how it counts. answers: seconds that a call takes, from and to. tokens_of: tokens of a call, from
    and to. names: False for one that says nothing of its limits.
    """

    def __init__(
        self,
        calls: float,
        tokens: float,
        form: Literal["bucket", "window"],
        *,
        answers: tuple[float, float] = (0.3, 1.5),
        tokens_of: tuple[int, int] = (50, 1500),
        names: bool = True,
        seed: int = 1,
    ) -> None:
        self.accounts = {"requests": Account(calls, form), "tokens": Account(tokens, form)}
        self._answers, self._tokens_of, self._names = answers, tokens_of, names
        self._random = random.Random(seed)
        self.in_flight = self.most = 0
        self.taken: list[tuple[float, int]] = []
        self.refused: list[float] = []

    async def __call__(self, row: int) -> Result:
        """Answer one call, or refuse it. Raises Refused."""
        now = asyncio.get_running_loop().time()
        tokens = self._random.randint(*self._tokens_of)
        amounts = {"requests": 1.0, "tokens": float(tokens)}
        for account in self.accounts.values():
            account.look(now)
        lacking = [self.accounts[name].wait(amount, now) for name, amount in amounts.items()
                   if self.accounts[name].left < amount]  # fmt: skip
        if lacking:
            self.refused.append(now)
            headers = self._headers(now)
            await asyncio.sleep(0.02)
            raise Refused({**headers, "Retry-After": f"{math.ceil(max(lacking))}"})
        for name, amount in amounts.items():
            self.accounts[name].left -= amount
        headers = self._headers(now)
        self.taken.append((now, tokens))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await asyncio.sleep(self._random.uniform(*self._answers))
        finally:
            self.in_flight -= 1
        current_call().report_limits(headers)
        asked = tokens // 3
        return Result(row, Usage(input_tokens=asked, output_tokens=tokens - asked))

    def _headers(self, now: float) -> dict[str, str]:
        if not self._names:
            return {}
        headers = {}
        for name, account in self.accounts.items():
            headers[f"x-ratelimit-limit-{name}"] = f"{account.limit:.0f}"
            headers[f"x-ratelimit-remaining-{name}"] = f"{account.left:.0f}"
            headers[f"x-ratelimit-reset-{name}"] = f"{account.reset(now):.3f}s"
        return headers

    def used(self, since: float, until: float) -> float:
        """The part used, between two times, of the limit that was used most."""
        minutes = (until - since) / MINUTE_S
        found = [tokens for at, tokens in self.taken if since <= at < until]
        return max(
            len(found) / (self.accounts["requests"].limit * minutes),
            sum(found) / (self.accounts["tokens"].limit * minutes),
        )

    def refused_share(self, since: float, until: float) -> float:
        """The part of all calls between two times that was refused."""
        refused = sum(since <= at < until for at in self.refused)
        return refused / max(1, refused + sum(since <= at < until for at, _ in self.taken))
