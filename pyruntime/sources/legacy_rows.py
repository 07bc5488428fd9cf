"""What the legacy sources share: their rows. A plain function, any thread."""

from __future__ import annotations

from typing import Any


def row_of(record: Any, schema: Any) -> Any:
    """The record itself; where there is a schema, one that is no tuple is a row of one column."""
    return record if schema is None or isinstance(record, tuple) else (record,)
