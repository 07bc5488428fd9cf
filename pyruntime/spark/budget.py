"""Budgets of a whole job: `max_calls` and `max_cost` count over all of its tasks. For the driver."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import threading
from typing import Any

from pillarbox.aio.limits.coordinator import Coordinator
from pillarbox.aio.limits.rate import SharedBudget
from pillarbox.aio.options import Options

_lock = threading.Lock()
_coordinator: Coordinator | None = None


def share_budget(options: Options, session: Any) -> Options:
    """`options` with a coordinator for their budget, where one is needed and none was given. Any thread.

    In local mode that is one on loopback, which ends with the process, and a gate of its own there; it shares
    the budget alone, and the rate is still that of each task. Elsewhere
    nothing is started that listens beyond loopback unasked: raises ValueError, which says to give one.
    """
    budget = options.budget
    if not budget.limits_calls or options.limits is not None:
        return options
    name = "max_calls" if budget.max_calls is not None else "max_cost"
    given = f"{name}={getattr(budget, name)!r}"
    master = None if session is None else _master(session)
    if master is None or not master.startswith("local"):
        where = f"on {master}" if master else "over Spark Connect" if session else "without an active session"
        raise ValueError(
            f"{given}: is for the whole job, whose tasks count together through a coordinator; "
            f"{where} give one that the workers reach: limits=Coordinator(...)"
        )
    # Several jobs of one run in this process count together, unless one has another budget.
    ledger = options.ledger
    gate: str | None = None
    if ledger is not None and ledger.run is not None:
        named = repr((ledger.location, ledger.run, ledger.uid, budget.max_calls, budget.max_cost))
        gate = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
    return dataclasses.replace(options, limits=SharedBudget(_local().named(gate)))


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
