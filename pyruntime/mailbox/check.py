"""Checks of arguments, for all packages: an error names the argument, its value and what is allowed.

Pure: any thread.
"""

from __future__ import annotations

import math
from typing import Any


def check_bool(name: str, value: Any) -> bool:
    """`value` if it is a bool; otherwise TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be True or False, not {type(value).__name__}")
    return value


def check_positive_int(name: str, value: Any) -> int:
    """`value` if it is an int of at least 1; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}={value!r}: must be at least 1")
    return value


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """`value` if it is one of `allowed`; otherwise TypeError or ValueError."""
    choices = ", ".join(repr(choice) for choice in allowed)
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: must be one of {choices}, not {type(value).__name__}")
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {choices}")
    return value


def check_text(name: str, value: Any) -> str:
    """`value` if it is a str that is not empty; otherwise TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name}={value!r}: must not be empty")
    return value


def check_seconds(name: str, value: Any) -> float:
    """`value` as seconds if it is a finite number above 0; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: must be a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name}={value!r}: must be a finite number of seconds above 0")
    return float(value)


def check_count(name: str, value: Any, least: int, most: int) -> int:
    """`value` if it is an int from `least` to `most`; otherwise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name}={value!r}: must be from {least:,} to {most:,}")
    return value
