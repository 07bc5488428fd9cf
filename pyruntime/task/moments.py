"""Checks of moments and durations, in seconds: each error names the argument, its value and what is allowed.

Plain functions, any thread.
"""

from __future__ import annotations

import math
from typing import Any


def check_moment(name: str, value: Any) -> float:
    """`value` as a float if it is a finite number of seconds; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}={value!r}: must be a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name}={value!r}: must be a finite number of seconds")
    return float(value)


def check_duration(name: str, value: Any, *, above_zero: bool = False) -> float:
    """`value` as a float if it is finite and at least 0, or above 0; otherwise TypeError or ValueError."""
    seconds = check_moment(name, value)
    if seconds < 0.0 or (above_zero and seconds == 0.0):
        least = "above 0" if above_zero else "at least 0"
        raise ValueError(f"{name}={value!r}: must be {least}, in seconds")
    return seconds


def check_callable(name: str, value: Any) -> None:
    """TypeError unless `value` is callable."""
    if not callable(value):
        raise TypeError(f"{name}={value!r}: must be callable, not {type(value).__name__}")
