"""What the legacy sources share: their rows, and the check of a number. Plain functions, any thread."""

from __future__ import annotations

from typing import Any


def row_of(record: Any, schema: Any) -> Any:
    """The record itself; where there is a schema, one that is no tuple is a row of one column."""
    return record if schema is None or isinstance(record, tuple) else (record,)


def check_count(name: str, value: Any) -> int:
    """`value` if it is an int of at least 1; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}={value!r}: must be at least 1")
    return value
