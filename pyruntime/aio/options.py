"""The options of one operator, checked when they are given. A value without state: safe in any thread."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.aio.check import check_bool, check_choice, check_positive_int, check_seconds
from pillarbox.aio.retry import Retry

DEFAULT_CAPACITY = 100
REORDER_FACTOR = 8
MAX_WINDOW = 2**24
"""Rows that a result queue can hold."""


@dataclass(frozen=True)
class Options:
    """What bounds the calls of one operator and what becomes of their outcomes.

    ordered: results leave in the order of their rows; otherwise as calls finish.
    capacity: calls in flight, at most (1 or more). A call that waits for its retry is not counted.
    reorder: rows admitted and not yet emitted, at most; None for 8 x `capacity`. At least `capacity`.
    timeout: seconds over all attempts of a row, from the start of its first; None for no limit.
    attempt_timeout: seconds for one attempt; None for no limit.
    retry: a `Retry`, or None to call once.
    errors: "fail" ends the job with the first row that fails for good; "null" gives None for it.

    Raises TypeError or ValueError that name the argument, its value and what is allowed.
    """

    ordered: bool = True
    capacity: int = DEFAULT_CAPACITY
    reorder: int | None = None
    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    errors: str = "fail"

    def __post_init__(self) -> None:
        check_bool("ordered", self.ordered)
        check_positive_int("capacity", self.capacity)
        if self.reorder is not None:
            check_positive_int("reorder", self.reorder)
            if self.reorder < self.capacity:
                raise ValueError(
                    f"reorder={self.reorder!r}: must be at least capacity ({self.capacity}), "
                    f"or None for {REORDER_FACTOR} x capacity"
                )
        if self.window > MAX_WINDOW:
            raise ValueError(
                f"capacity={self.capacity!r}, reorder={self.reorder!r}: "
                f"the window of rows may be at most {MAX_WINDOW:,}"
            )
        check_seconds("timeout", self.timeout)
        check_seconds("attempt_timeout", self.attempt_timeout)
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise TypeError(f"retry={self.retry!r}: must be a pillarbox.Retry or None")
        check_choice("errors", self.errors, ("fail", "null"))

    @property
    def window(self) -> int:
        """Rows admitted and not yet emitted, at most."""
        return self.capacity * REORDER_FACTOR if self.reorder is None else self.reorder
