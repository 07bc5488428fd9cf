"""A ledger with some values in it, by small numbers. For the tests of this folder."""

from __future__ import annotations

from typing import Any

from pillarbox.ledger import Ledger, Scope
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")


def keep(ledger: Ledger, values: dict[int, Any], scope: Scope = SCOPE) -> None:
    """One segment with these values."""
    with ledger.writer(scope) as writer:
        for number, value in values.items():
            writer.append(key(number), value)


def found(ledger: Ledger, scope: Scope = SCOPE) -> dict[int, Any]:
    """The values of all numbers that have one."""
    return {int.from_bytes(record.key[:8], "big"): record.value for record in ledger.reader(scope).records()}
