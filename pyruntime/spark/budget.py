"""Budgets of a whole job: `max_calls` and `max_cost` count over all of its tasks. For the driver."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import threading
from typing import Any

from pillarbox.aio.limits.coordinator import Coordinator
from pillarbox.aio.limits.shared import SharedBudget
from pillarbox.aio.options import Options

_lock = threading.Lock()
_coordinator: Coordinator | None = None


def share_budget(options: Options, session: Any) -> Options:
    """`options` with a coordinator for their budget, where one is needed and none was given. Any thread.

    In local mode that is one on loopback, which ends with the process, and a gate of its own there; it shares
    the budget alone, and the rate is still that of each task. Elsewhere
    nothing is started that listens beyond loopback unasked: raises ValueError, which says to give one.
    """
    if not options.limits_calls or options.coordinator is not None:
        return options
    name = "max_calls" if options.max_calls is not None else "max_cost"
    given = f"{name}={getattr(options, name)!r}"
    master = None if session is None else _master(session)
    if master is None or not master.startswith("local"):
        where = f"on {master}" if master else "over Spark Connect" if session else "without an active session"
        raise ValueError(
            f"{given}: is for the whole job, whose tasks count together through a coordinator; "
            f"{where} give one that the workers reach: coordinator=Coordinator(...)"
        )
    # Several jobs of one run in this process count together, unless one has another budget.
    place = None if options.ledger is None or options.run is None else options.ledger.location
    gate: str | None = None
    if place is not None:
        named = repr((place, options.run, options.uid, options.max_calls, options.max_cost))
        gate = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
    return dataclasses.replace(options, coordinator=SharedBudget(_local().named(gate)))


def _local() -> Coordinator:
    global _coordinator
    with _lock:
        if _coordinator is None:
            _coordinator = Coordinator().start()
            atexit.register(_coordinator.close)
        return _coordinator


def _master(session: Any) -> str | None:
    """The address of the cluster; None over Spark Connect, whose client does not know it."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return None
    return str(session.sparkContext.master)
