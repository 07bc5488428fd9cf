"""The place of an operator's results in a ledger, and the budget that its run has left. Any thread."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Any

from pillarbox.aio.limits.shared import RunBudget
from pillarbox.aio.options import Options
from pillarbox.ledger import Ledger, Scope


def budget_of_run(options: Options, run: str | None) -> Options:
    """`options` whose budget is that of the run: what the ledger says was spent before counts. Any thread.

    A call of a batch is kept with each of its rows, so that of batches only as many are known as whole ones
    would have been. Raises LedgerError and OSError.
    """
    ledger = options.ledger
    if ledger is None or run is None or not options.budget.limits_calls:
        return options
    uid = str(ledger.uid)
    calls, cost = ledger.spent(run, uid)
    if options.batch is not None:
        calls = math.ceil(calls / options.batch.size)
    name = hashlib.blake2b(repr((ledger.location, run, uid)).encode(), digest_size=16).hexdigest()
    return dataclasses.replace(options, limits=RunBudget(options.limits, name, calls, cost))


def scope_of(
    ledger: Ledger, run: str, *, batch: int | None = None, config: dict[str, Any] | None = None
) -> Scope:
    """The scope of the results of an operator. Any thread."""
    named = None if ledger.key is None else list(ledger.key)
    return Scope.of(run, str(ledger.uid), {"key": named, **(config or {})}, batch)
