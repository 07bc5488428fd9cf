"""Refuses what a reader hands out against its contract, in the words of the contract, batch by batch.

A fetcher checks what its `SplitReader` fetches; `read_splits` and `SourceInput` check what other readers
give. So a connector that breaks a rule fails in a batch, a stream and a task alike. No row is looked at.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from pillarbox.sources.reader import Fetched
from pillarbox.sources.split import Split

_JSON_SCALARS = frozenset({int, str, bool, type(None)})
FETCH_RETURNS = "it must return a list of Fetched, one for each split that it has rows of, or [] for none"
POSITION_RULE = (
    "JSON must hold a position, as it goes into checkpoints: None, a bool, a finite number, a str, or lists "
    "and dicts of these"
)
STOP_RULE = (
    "it must hand out no row at or after `stop`, and say finished=True when it has come there, with the last "
    "rows or with none"
)
RECORDS_RULE = "records must be an Arrow RecordBatch, or a list or tuple of rows"


def is_json(value: Any) -> bool:
    """Return True if JSON gives `value` back as it is. Any thread."""
    kind = type(value)
    if kind in _JSON_SCALARS:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all(map(is_json, value))
    return kind is dict and all(type(name) is str and is_json(each) for name, each in value.items())


class ReaderContract:
    """Checks what `method` of `reader` gives. Confined to the thread that calls that method."""

    def __init__(self, reader: object, method: str) -> None:
        self._method = f"{type(reader).__name__}.{method}"
        self._fitting: set[type[Any]] = {list, tuple}

    def check_list(self, fetched: Any) -> None:
        """Raise TypeError for what is no sequence of `Fetched`."""
        if type(fetched) is list:
            return
        if isinstance(fetched, Fetched):
            raise TypeError(f"{self._method} returned one Fetched: {FETCH_RETURNS}")
        if not isinstance(fetched, Sequence) or isinstance(fetched, str | bytes):
            raise TypeError(f"{self._method} returned {_told(fetched)}: {FETCH_RETURNS}")

    def check_kind(self, fetched: Any) -> None:
        """Raise TypeError for what is no `Fetched`, or has records that are no rows."""
        if not isinstance(fetched, Fetched):
            raise TypeError(
                f"{self._method} returned {_told(fetched)} where a Fetched must be: {FETCH_RETURNS}"
            )
        kind = type(fetched.records)
        if kind not in self._fitting:
            arrow = sys.modules.get("pyarrow")
            if not (arrow is not None and issubclass(kind, arrow.RecordBatch)) and (
                not issubclass(kind, Sequence) or issubclass(kind, str | bytes)
            ):
                raise TypeError(
                    f"{self._method} returned records={_told(fetched.records)} of split "
                    f"{fetched.split_id!r}: {RECORDS_RULE}"
                )
            self._fitting.add(kind)

    def check(self, fetched: Fetched, split: Split, reached: Any) -> None:
        """Raise TypeError or ValueError if these rows, or their position, cannot be.

        split: as it was given to the reader. reached: the position that was said before, or its start.
        """
        position, stop = fetched.position, split.stop
        if not (type(position) in _JSON_SCALARS or fetched.finished or is_json(position)):
            what = f"position={_told(position)} of split {split.split_id!r}"
            raise TypeError(f"{self._method} returned {what}: {POSITION_RULE}")
        if stop is None or not len(fetched.records):
            return
        if reached == stop or _is_beyond(position, stop, split.start):
            what = f"rows of split {split.split_id!r} up to position {position!r}, and its stop is {stop!r}"
            raise ValueError(f"{self._method} returned {what}: {STOP_RULE}")

    def refuse_unknown(self, split_id: Any) -> None:
        """Raise ValueError: the reader has no split of this name."""
        raise ValueError(
            f"{self._method} returned rows of split {split_id!r}, which it does not have: it must return "
            "only what is of splits that it was given, by their split_id, and nothing of one that is finished"
        )


def _is_beyond(position: Any, stop: Any, start: Any) -> bool:
    """Positions that are numbers have an order. Where a source counts down, `stop` is not the highest."""
    if not (type(position) in (int, float) and type(stop) in (int, float)):
        return False
    return bool(position > stop) and not (type(start) in (int, float) and start > stop)


def _told(value: Any) -> str:
    """A value of a reader may be long, and is named by its class as well."""
    shown = repr(value)
    return "None" if value is None else f"{shown[:80]}{'...' * (len(shown) > 80)} ({type(value).__name__})"
