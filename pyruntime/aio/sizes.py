"""How many bytes a row holds, by estimate. Pure: any thread."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_FLAT = frozenset({bool, bytes, float, int, str, type(None)})


def size_of(row: Any) -> int:
    """Bytes of `row` and, for a usual collection, of what it holds directly. An estimate that is cheap."""
    size = sys.getsizeof(row, 64)
    if type(row) in _FLAT:
        return size
    if isinstance(row, tuple | list | set | frozenset):
        return size + sum(sys.getsizeof(value, 64) for value in row)
    if isinstance(row, Mapping):
        return size + sum(sys.getsizeof(key, 64) + sys.getsizeof(value, 64) for key, value in row.items())
    return size
