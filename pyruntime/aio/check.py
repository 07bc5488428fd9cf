"""Checks of arguments: each error names the argument, its value and what is allowed."""

from __future__ import annotations

import math
from typing import Any

from pillarbox.aio.function import is_async, is_async_generator


def check_seconds(name: str, value: Any) -> float | None:
    """`value` as seconds if it is None or a number above 0; otherwise TypeError or ValueError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: must be a number of seconds or None, not {type(value).__name__}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(
            f"{name}={value!r}: must be a finite number of seconds above 0, or None for no limit"
        )
    return float(value)


def check_positive_number(name: str, value: Any) -> float:
    """`value` if it is a finite number above 0; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: must be a number, not {type(value).__name__}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name}={value!r}: must be a finite number above 0")
    return float(value)


def check_function_or_none(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is None or a plain function: its answer is not awaited."""
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"{name}={value!r}: must be a function or None, not {type(value).__name__}")
    if is_async(value) or is_async_generator(value):
        raise TypeError(f"{name}={value!r}: must be a plain function, its answer cannot be awaited")
