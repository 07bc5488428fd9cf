"""The addresses of a service for one client: the one that the next request goes to, and what becomes of it.

`Addresses` is for all loops and threads on which one client is open; a `Route` is for one request.
"""

# The client settles the fault of one address by itself: the request goes to another one at once, within its
# call. What is known of addresses, and how one is chosen, is in `pillarbox.aio.endpoint_pool`.

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pillarbox.aio.current_call import CurrentCall, running_call
from pillarbox.aio.deadlines import clock_of
from pillarbox.aio.endpoint_limits import USUAL
from pillarbox.aio.endpoint_pool import EndpointPool, Journey, pool_of
from pillarbox.aio.endpoints import FAILED_AT
from pillarbox.aio.service_addresses import Endpoints, Spread
from pillarbox.clients.late_address import LateAddress

T = TypeVar("T")


class Addresses:
    """The addresses of one service, as one client uses them. Any thread.

    spread: their addresses in full, weights and choice. scope: decides about answers beside the addresses,
    such as the model and the name of the key: clients that agree in it share facts. only: the address, where
    there is one alone: nothing is known of it then but by the operator. first: the first one.
    """

    def __init__(self, spread: Spread, scope: object = None) -> None:
        self.first = spread.urls[0]
        self.only = self.first if len(spread.urls) == 1 and not spread.resolve else None
        self._spread = spread
        self._scope = scope
        # With the clock that nearly all loops have.
        self._pool: EndpointPool | None = None

    def pool(self) -> EndpointPool:
        """The facts of this process, by the clock of the running loop."""
        loop = asyncio.get_running_loop()
        if clock_of(loop) is not time.monotonic:
            return pool_of(self._spread, loop, self._scope)
        if self._pool is None:
            self._pool = pool_of(self._spread, loop, self._scope)
        return self._pool

    def route(self) -> Route:
        """The way of a request that is made now, on the running loop, in the call that runs."""
        return Route(self.pool())

    async def call(self, ask: Callable[..., Awaitable[T]], *args: object) -> T:
        """Return what `ask` gives for an address and `args`; at another address where one is at fault.

        Raises what `ask` raises, and ServiceResting where no address takes requests.
        """
        route = self.route()
        while True:
            url = route.next()
            try:
                result = await ask(url, *args)
            except Exception as error:
                if not route.failed(error):
                    raise
            except BaseException:
                route.cancelled()
                raise
            else:
                route.answered()
                return result


class Route:
    """The addresses that one request goes to, one after the other. On the thread of its loop.

    `next` begins; `answered`, `failed` or `cancelled` ends each time that it has given an address.
    """

    __slots__ = ("_avoids", "_call", "_ends_at", "_journey", "_pool", "_waits")

    def __init__(self, pool: EndpointPool) -> None:
        self._pool = pool
        self._call: CurrentCall | None = running_call()
        # Whether the call is made again, apart from its attempts, where no address takes it now.
        self._waits = False
        self._ends_at: float | None = None
        failed_at: str | None = None
        demand = USUAL
        avoided: tuple[Any, ...] = ()
        if self._call is not None:
            demand, avoided = self._call.demand, self._call.avoided
            self._waits = self._call.waits_for_service
            self._call.share_endpoints(pool)
            failed_at = getattr(self._call.error, FAILED_AT, None)
            left = self._call.seconds_left
            self._ends_at = None if left is None else pool.clock() + left
        self._journey = Journey(pool, failed_at, demand)
        # A hedge goes where no other call of its row runs, if it can.
        self._journey.tried = [each for each in avoided if each in pool.all]
        self._avoids = bool(self._journey.tried)

    def next(self, wanted: str | None = None) -> str:
        """The address that the request goes to: `wanted`, if that takes it. Raises ServiceResting."""
        journey = self._journey
        # spec: Hedge!Hedge
        chosen = journey.next(wanted) if self._avoids else None
        if chosen is None:
            if self._avoids:
                self._avoids = False
                journey.tried.clear()
            # Without that the call is not made again: it goes where requests may go first.
            chosen = journey.next(wanted, anywhere=not self._waits and not journey.tried)
        if chosen is None:
            resting = self._pool.resting(self._pool.clock(), journey.demand)
            if self._waits or not resting.is_of_quotas or (chosen := journey.next(anywhere=True)) is None:
                # spec: Addresses!Pause
                raise resting
        if self._call is not None:
            self._call.begin_request(self._pool, chosen)
        return chosen.url

    def answered(self) -> None:
        """The request was answered: addresses that refused the same one for all rows are at fault."""
        at = self._journey.at
        seconds = self._journey.answered()
        if self._call is not None:
            self._call.count_request(self._pool, at, seconds, False)

    def failed(self, error: BaseException) -> bool:
        """The request failed. Returns True if `next` is to give another address: this one is at fault.

        Otherwise `error` is that of the request. Raises ServiceResting where those that may answer rest.
        """
        journey = self._journey
        if self._avoids:
            # The calls that it hedges may be cancelled by now, and their endpoints be the only ones left.
            self._avoids = False
            journey.tried.clear()
        at, seconds = journey.at, self._pool.clock() - journey.began
        verdict = journey.failed(error)
        if self._call is not None:
            self._call.count_request(self._pool, at, seconds, verdict.is_fault)
        if verdict.moves:
            return True
        if verdict.waits and self._waits:
            raise self._pool.resting(self._pool.clock()) from error
        # The next attempt goes to another address, where one takes it.
        with suppress(AttributeError):
            setattr(error, FAILED_AT, at.url)
        return False

    def cancelled(self) -> None:
        """The request was cancelled: by a limit of the call's time, or for a reason of its own."""
        journey = self._journey
        now = self._pool.clock()
        is_late = self._ends_at is not None and now >= self._ends_at
        journey.cancelled(is_late)
        if self._call is not None:
            self._call.count_request(self._pool, journey.at, now - journey.began, is_late)


def addresses_of(
    given: str | Sequence[str] | Endpoints | LateAddress, urls: Sequence[str], scope: object = None
) -> Addresses:
    """The addresses of a client. given: as its user gave them. urls: those of requests, in the same order."""
    if isinstance(given, Endpoints):
        _, weights, choose, resolve, _ = given.spread
        return Addresses(Spread(tuple(urls), weights, choose, resolve, keeps_name=True), scope)
    different = tuple(dict.fromkeys(urls))
    return Addresses(Spread(different, (1.0,) * len(different)), scope)
