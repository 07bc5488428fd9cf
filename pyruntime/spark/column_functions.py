"""Functions that say themselves how they become a column, and whether a budget suits them. On the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import types as T

from pillarbox.aio.options import Budget, Options
from pillarbox.providers import provided


def adapted(fn: object, options: Options) -> tuple[Callable[..., Any], T.DataType] | None:
    """The function of one column for `fn`, and its type, as `fn.column_adapter` makes them; None without one.

    That is the name of a function of `fn` and `options`, as `pillarbox.providers` has names. Raises what that
    raises, and ModuleNotFoundError where its module is not installed.
    """
    name = getattr(fn, "column_adapter", None)
    if not isinstance(name, str):
        return None
    made: tuple[Callable[..., Any], T.DataType] = provided(name, f"fn={type(fn).__name__}")(fn, options)
    return made


def check_budget(fn: object, budget: Budget) -> None:
    """Raise ValueError for a budget that does not suit `fn`, as its `check_budget` says, if it has one."""
    check = getattr(fn, "check_budget", None)
    if callable(check) and not isinstance(fn, type):
        check(budget)
