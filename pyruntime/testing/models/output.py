"""The reference model of what a task emits: each row once, none past a mark. Any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pillarbox.task import Idleness, Watermark


def _parts(elements: Iterable[Any]) -> list[list[Any]]:
    """Rows, and what travels between them, in turn: rows first."""
    parts: list[list[Any]] = [[]]
    for element in elements:
        if isinstance(element, (Watermark, Idleness)) is bool(len(parts) % 2):
            parts.append([])
        parts[-1].append(element)
    return parts


def _marks_agree(got: list[Any], due: list[Any], is_whole: bool) -> bool:
    """Watermarks and statuses between which no row came may be merged: the newest of each kind counts."""
    rest = iter(due)
    # A watermark and a status are tuples, which may be equal.
    in_order = all(any(type(mark) is type(other) and mark == other for other in rest) for mark in got)
    return in_order and (not is_whole or {type(m): m for m in got} == {type(m): m for m in due})


def agrees(got: Iterable[Any], due: Iterable[Any], *, ordered: bool, is_whole: bool) -> bool:
    """Return True if an output is what is due, or, unless `is_whole`, a beginning of it.

    No row passes a watermark or a status; between two of them `ordered` rows keep their order. Rows are
    hashable.
    """
    got_parts, due_parts = _parts(got), _parts(due)
    last = len(got_parts) - 1
    if last >= len(due_parts) or (is_whole and last + 1 < len(due_parts)):
        return False
    for place, (some, all_) in enumerate(zip(got_parts, due_parts, strict=False)):
        through = is_whole or place < last
        if place % 2:
            agree = _marks_agree(some, all_, through)
        elif ordered:
            agree = some == (all_ if through else all_[: len(some)])
        else:
            agree = Counter(some) == Counter(all_) if through else Counter(some) <= Counter(all_)
        if not agree:
            return False
    return True
