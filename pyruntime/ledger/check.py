"""Checks of arguments, and text that can be shown. Pure: any thread.

Each error names the argument, its value and what is allowed.
"""

from __future__ import annotations

import json
import math
from typing import Any


def check_text(name: str, value: Any) -> str:
    """`value` if it is a str that is not empty; otherwise TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name}={value!r}: must not be empty")
    return value


def printable(text: str) -> str:
    r"""`text` with `\u....` for what is no visible character: a terminal would obey some of those.

    What was JSON is the same JSON after that.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


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
