"""The service of one operator, as far as it is known: the limits that answers name, and its addresses.

Confined to the mailbox thread, but where noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pillarbox.aio.calls import Call
from pillarbox.aio.endpoint_counts import EndpointCounts
from pillarbox.aio.endpoint_limits import Demand
from pillarbox.aio.endpoint_pool import EndpointPool
from pillarbox.aio.endpoints import Endpoint
from pillarbox.aio.options import Options
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policies.returns import ReturnPolicy
from pillarbox.aio.policies.service_limits import ServiceLimitsPolicy


class EndpointServices(NamedTuple):
    """Services of an operator for clients that choose among endpoints. Any thread.

    waits: whether a call for which nothing was sent is made again. share: shares the states of the endpoints
    with other tasks. note: counts a request: the pool, the endpoint, seconds, whether it ended with a fault
    of the endpoint. demand: what a request for calls asks of the limits of an endpoint. follow: has the
    limits of the endpoints of a pool hold calls back; on the thread of the operator's loop.
    """

    waits: Callable[[], bool]
    share: Callable[[EndpointPool], None]
    note: Callable[[EndpointPool, Endpoint, float, bool], None]
    demand: Callable[[Sequence[Call]], Demand]
    follow: Callable[[EndpointPool], None]


class KnownService:
    """The service of one operator, with the two policies that know of it.

    counts: the calls of each address. load: holds calls back.
    """

    def __init__(self, options: Options, load: LoadPolicy) -> None:
        self.limits = limits = ServiceLimitsPolicy(options, load)
        self.returns = ReturnPolicy(load)
        self.counts = counts = EndpointCounts()
        self._facts: Any = None if options.limits is None else options.limits.open_facts()
        self.for_calls = EndpointServices(
            load.waits_for_service, self.share, counts.count, limits.demand_of, limits.follow
        )

    def share(self, pool: EndpointPool) -> None:
        """Share the states of the endpoints of `pool` with other tasks, and wake the operator. Any thread."""
        self.returns.watch(pool)
        if self._facts is not None and not pool.is_alone:
            self._facts.share(pool)

    def start(self) -> None:
        """Begin to share findings with other tasks. On the mailbox thread."""
        if self._facts is not None:
            self._facts.start()

    async def closed(self) -> None:
        """Share nothing any more. On the mailbox thread."""
        if self._facts is not None:
            await self._facts.close()
