"""Counts of the calls of one operator by endpoint, for its statistics. Any thread."""

from __future__ import annotations

import threading
from typing import Any

from pillarbox.aio.endpoint_pool import EndpointPool
from pillarbox.aio.endpoints import Endpoint
from pillarbox.aio.limits.learned import NamedLimits


class EndpointCounts:
    """Calls, errors and seconds of one operator by endpoint, and which of the endpoints rest.

    Those of its own: what other tasks of the process do at the same endpoints is not counted here.
    """

    __slots__ = ("_calls", "_errors", "_lock", "_pools", "_seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: list[EndpointPool] = []
        self._calls: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def watch(self, pool: EndpointPool) -> None:
        """Report the state of all endpoints of `pool` from now on."""
        with self._lock:
            if pool not in self._pools:
                self._pools.append(pool)

    def count(self, pool: EndpointPool, endpoint: Endpoint, seconds: float, is_error: bool) -> None:
        """Count a call that ended after so many seconds."""
        name = endpoint.name
        with self._lock:
            if pool not in self._pools:
                self._pools.append(pool)
            self._calls[name] = self._calls.get(name, 0) + 1
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            if is_error:
                self._errors[name] = self._errors.get(name, 0) + 1

    def tables(self, alone: NamedLimits | None = None) -> dict[str, Any]:
        """The fields of `Totals` about endpoints, and about limits. alone: those of a service with one."""
        with self._lock:
            learned: list[tuple[str, NamedLimits | None]] = [("", alone)]
            learned += [(each.name, each.limits.learned) for pool in self._pools for each in pool.all]
            limits = {
                f"{name} {kind}": amounts
                for name, known in learned
                if known is not None
                for kind, amounts in known.named().items()
            }
            return {
                "limits_named": {key: limit for key, (limit, _) in limits.items()},
                "limits_left": {key: left for key, (_, left) in limits.items()},
                "endpoint_calls": dict(self._calls),
                "endpoint_errors": dict(self._errors),
                "endpoint_seconds": dict(self._seconds),
                "endpoint_resting": {
                    each.name: int(each.health.is_open) for pool in self._pools for each in pool.all
                },
            }
