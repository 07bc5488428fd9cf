"""What an enumerator and the readers of its source say to each other. Plain values, any thread.

The idea is Flink's `SourceEvent` (FLIP-27).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceEvent:
    """A message of a source's own, from its enumerator to a reader or the other way.

    `kind` tells its messages apart, `payload` is what JSON can hold, 64 KiB of it at most. A message is
    handed over at most once, and those of one sender in order; one to a reader that has gone is dropped.
    """

    kind: str
    payload: Any = None
