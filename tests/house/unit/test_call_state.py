"""The state of a call: which file writes each of its slots. Read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillarbox.aio.calls import Call

SOURCES = Path(__file__).resolve().parents[3] / "pyruntime"
CALLS = {"call", "each", "first", "hedge", "joined", "sharing"}
"""Names of variables that hold a call."""
SCHEDULERS = {"scheduler.py", "batch_scheduler.py"}
HEDGED = {"scheduler.py", "hedging.py"}
ALL_HEDGED = {*HEDGED, "batch_hedging.py"}
WRITERS = {
    "attempt": SCHEDULERS,
    "attempt_deadline": HEDGED,
    "began": SCHEDULERS | ALL_HEDGED,
    "cost": {"cost.py", "operator_snapshots.py"},
    "deadline": SCHEDULERS,
    "endpoint": {"current_call.py", *ALL_HEDGED},
    "error": SCHEDULERS,
    "execution": SCHEDULERS | ALL_HEDGED,
    "handle": {"admission.py", *SCHEDULERS},
    "held": {"held_bytes.py"},
    "identity": {"chained.py"},
    "input": {"ledger_rows.py"},
    "key": {"ledger_rows.py"},
    "looked": {"ledger_lookup.py"},
    "ordinal": {"chained.py"},
    "pause": {"scheduler.py"},
    "refusals": {"scheduler.py"},
    "refused_since": {"scheduler.py"},
    "repeats": {"scheduler.py"},
    "source": {"chained.py"},
    "started": {"scheduler.py"},
    "uncharged": SCHEDULERS,
    "units": {"scheduler.py"},
    "waits_since": {"batch_filler.py", *SCHEDULERS},
    "weight": {"batch_scheduler.py"},
}
"""By slot, the files that write it. Schedulers are one class and its subclasses for batches and hedges."""


def written(source: str) -> Iterator[str]:
    """The slots of calls that a module assigns to."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ("put", "put_each"):
            # Of many calls at a time, by the slot's name in capitals.
            yield from {ast.unparse(node.value).lower()} & {*Call.__slots__}
        is_stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_stored and isinstance(node.value, ast.Name) and node.value.id in CALLS:
            yield from {node.attr} & {*Call.__slots__}


@pytest.mark.contract("The life of a call is written by the scheduler alone.")
def test_each_slot_of_a_call_is_written_where_the_table_says() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for slot in written(path.read_text()):
            found.setdefault(slot, set()).add(path.name)
    assert found == WRITERS
    assert {*WRITERS, "row"} == {*Call.__slots__}


def test_a_slot_that_is_written_elsewhere_is_found() -> None:
    source = "call.error, other.error = 1, 2\ncall.attempt += 1\nself.error = call.row\nHELD.put(calls, 1)"
    assert sorted(written(source)) == ["attempt", "error", "held"]
