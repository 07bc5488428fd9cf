"""The part of a ledger that an operator uses: scope, budget of the run, answers found stale.

Any thread, unless a class says otherwise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from pillarbox.aio.function import configuration_of
from pillarbox.aio.limits.rate import RunBudget
from pillarbox.aio.options import Options
from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger.keys import ContentIdentity, content_of_fields, content_of_values

log = logging.getLogger("pillarbox")


def budget_of_run(options: Options, run: str | None) -> Options:
    """`options` whose budget is that of the run: what the ledger says was spent before counts. Any thread.

    A call of a batch is kept with each of its rows, so that of batches only as many are known as whole ones
    would have been. Raises LedgerError and OSError.
    """
    ledger = options.ledger
    if ledger is None or run is None or not options.budget.counts:
        return options
    uid = str(ledger.uid)
    calls, cost = ledger.spent(run, uid)
    if options.batch is not None:
        calls = math.ceil(calls / options.batch.size)
    name = hashlib.blake2b(repr((ledger.location, run, uid)).encode(), digest_size=16).hexdigest()
    return dataclasses.replace(options, limits=RunBudget(options.limits, name, calls, cost))


def time_of_run(options: Options, run: str | None) -> Options:
    """`options` whose budget of time is that of the run: the seconds of earlier executions count. Any thread.

    Raises LedgerError and OSError.
    """
    ledger, budget = options.ledger, options.budget
    if ledger is None or run is None or budget.max_seconds is None:
        return options
    spent = ledger.seconds_spent(run, str(ledger.uid))
    # Where nothing was spent, it counts from the first row.
    return dataclasses.replace(options, budget=budget.begun(time.time(), spent)) if spent else options


def scope_of(
    ledger: Ledger, run: str, *, batch: int | None = None, config: dict[str, Any] | None = None
) -> Scope:
    """The scope of the results of an operator. Any thread."""
    named = None if ledger.key is None else list(ledger.key)
    return Scope.of(run, str(ledger.uid), {"key": named, **(config or {})}, batch)


def fields_of(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the columns that a client reads; none where it does not say them."""
    return () if configuration_of(fn) is None else tuple(getattr(fn, "fields", ()))


def content_of(ledger: Ledger, fn: Callable[..., Any]) -> ContentIdentity:
    """The identity of rows of Python in a cache: by its inputs, what a client reads, or the whole row."""
    fields, values_of = fields_of(fn), getattr(fn, "values_of", None)
    if fields and values_of is not None and ledger.inputs is None:
        return content_of_fields(fields, values_of)
    return content_of_values(ledger.inputs)


@dataclasses.dataclass
class StaleAnswers:
    """Counts rows that are called although an earlier execution has kept an answer under their key."""

    inputs: int = 0
    """Rows whose input was another."""
    versions: int = 0
    """Rows whose answer is one of another version."""
    misfits: int = 0
    """Rows whose answer does not fit what it is parsed into by now."""
    columns: Counter[str] = dataclasses.field(default_factory=Counter)
    """Rows by the columns in which the inputs differ."""

    def __bool__(self) -> bool:
        return self.inputs > 0 or self.versions > 0 or self.misfits > 0

    def add(self, other: StaleAnswers) -> None:
        """Count those of another task as well."""
        self.inputs += other.inputs
        self.versions += other.versions
        self.misfits += other.misfits
        self.columns += other.columns

    def log(self, ledger: Ledger, run: str) -> None:
        """Say what was called again when a job has ended."""
        parts = []
        if self.inputs:
            columns = ", ".join(f"{name} in {count:,}" for name, count in self.columns.most_common(10))
            parts.append(f"{self.inputs:,} of another input (it differs by {columns})")
        if self.versions:
            parts.append(f"{self.versions:,} of another version than {ledger.version!r}")
        if self.misfits:
            parts.append(f"{self.misfits:,} of a form that does not fit any more")
        more = ""
        if self.inputs and ledger.inputs is None:
            more = ". If the answer does not depend on these columns, name those that count: inputs=[...]"
        rows = self.inputs + self.versions + self.misfits
        log.warning(
            f"run={run!r}, uid={ledger.uid!r}: {rows:,} rows were called again, since "
            f"what the ledger has under their key is the answer {' and '.join(parts)}{more}"
        )
