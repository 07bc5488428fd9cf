"""Model services for the simulation of limits: what they refuse, and how long they take. In any event loop.

Time is that of the running loop, so that the same model is a simulation in a `VirtualTimeLoop`, and a real
service behind a socket. Confined to the loop's thread.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

REFUSAL_S = 0.002
"""Seconds until a call is refused."""


class Refused(Exception):
    """An answer with a status that means overload, with or without Retry-After."""

    def __init__(self, status: int, retry_after: float | None) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}


def now() -> float:
    """The time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


@dataclass
class Service:
    """A service that works on `places` calls at once; the others wait, or are refused with 503.

    seconds: of a call, in the mean; log-normal with `sigma`. refuses: whether it refuses, instead of a queue.
    share: of the calls, by chance, that it answers with `status` at once, and with `retry_after`.
    moves: pairs of a time and of the places from then on.
    """

    places: int
    seconds: float
    sigma: float = 0.0
    refuses: bool = False
    share: float = 0.0
    status: int = 429
    retry_after: float | None = None
    moves: Sequence[tuple[float, int]] = ()
    dice: random.Random = field(default_factory=lambda: random.Random(11))
    served: list[tuple[float, float]] = field(default_factory=list)
    """Pairs of the time at which an answer left and the seconds that its call had taken."""
    refused: int = 0

    def __post_init__(self) -> None:
        self.in_work = 0
        self.calls = 0
        self._began = 0.0
        self._queue: list[asyncio.Future[None]] = []
        self._moves = list(self.moves)

    def start(self) -> None:
        """Begin the time of `moves`."""
        self._began = now()

    @property
    def knee(self) -> int:
        """The places that there are now."""
        while self._moves and now() - self._began >= self._moves[0][0]:
            self.places = self._moves.pop(0)[1]
            self._let_in()
        return self.places

    async def __call__(self, row: int) -> int:
        began = now()
        self.calls += 1
        is_refused = self.dice.random() < self.share or (self.refuses and self.in_work >= self.knee)
        if is_refused:
            self.refused += 1
            await asyncio.sleep(REFUSAL_S)
            raise Refused(self.status, self.retry_after)
        if self.in_work >= self.knee or self._queue:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(place)
            self._let_in()
            await place
        else:
            self.in_work += 1
        try:
            noise = self.dice.lognormvariate(-(self.sigma**2) / 2, self.sigma) if self.sigma else 1.0
            await asyncio.sleep(self.seconds * noise)
        finally:
            self.in_work -= 1
            self._let_in()
        ended = now()
        self.served.append((ended, ended - began))
        return row

    def _let_in(self) -> None:
        while self._queue and self.in_work < self.places:
            self.in_work += 1
            place = self._queue.pop(0)
            if place.done():
                self.in_work -= 1
            else:
                place.set_result(None)
