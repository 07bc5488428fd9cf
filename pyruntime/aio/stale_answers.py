"""Counts of rows that are called again although a ledger has an answer under their key. Any thread."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter

from pillarbox.ledger import Ledger

log = logging.getLogger("pillarbox")


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
