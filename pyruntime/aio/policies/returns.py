"""Wakes an operator that waits since no endpoint takes calls, as soon as one is known to be well.

`ReturnPolicy.watch` is for any thread; all else is confined to the mailbox thread.
"""

# An operator knows when the first rest ends, and waits until then. Another task may find the endpoint well
# before: the one whose turn it is to probe while the others leave the endpoint alone, or one of this process.

from __future__ import annotations

import threading

from pillarbox.aio.endpoint_pool import EndpointPool
from pillarbox.aio.policies.load import LoadPolicy
from pillarbox.aio.policy import CallPolicy, PolicyServices
from pillarbox.loop_thread import post


class ReturnPolicy(CallPolicy):
    """Has calls asked for again when an endpoint of a service takes calls again. load: holds them back."""

    def __init__(self, load: LoadPolicy) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._pools: dict[EndpointPool, None] = {}
        # None before it is opened, and after it is closed.
        self._services: PolicyServices | None = None

    def open(self, services: PolicyServices) -> None:
        """Take what the operator gives."""
        self._services = services

    def watch(self, pool: EndpointPool) -> None:
        """Wake the operator for the endpoints of `pool` from now on. Any thread."""
        if pool in self._pools or pool.is_alone:
            return
        with self._lock:
            if pool in self._pools or self._services is None:
                return
            self._pools[pool] = None
            pool.await_return(self._returned)

    def _returned(self) -> None:
        """An endpoint takes calls again. Any thread."""
        services = self._services
        if services is not None:
            # Behind what runs on that thread now: it may be about to wait.
            post(services.loop, self._wake)

    def _wake(self) -> None:
        # spec: Addresses!Resume
        services = self._services
        if services is not None:
            self._load.end_rest()
            services.wake()

    def close(self) -> None:
        """Wake the operator no more: the endpoints belong to the process."""
        with self._lock:
            self._services = None
            pools = [*self._pools]
        for pool in pools:
            pool.await_no_return(self._returned)
