"""What kind of function a user gave: refused, async, an async generator, or blocking. Pure: any thread."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def check_function(fn: Any, *, in_batches: bool = False) -> None:
    """Raise TypeError unless `fn` can be called, with lists of rows where `in_batches`."""
    if isinstance(fn, type) or not callable(fn):
        raise TypeError(
            f"fn={fn!r}: must be an async function, a function, or an object with __call__, "
            f"not {'a class' if isinstance(fn, type) else type(fn).__name__}"
        )
    if in_batches and is_async_generator(fn):
        raise TypeError(
            f"fn={fn!r}: an async generator cannot be called with batches; make it an async function "
            "that returns a list with one result for each row"
        )


def _call_of(fn: Callable[..., Any]) -> Any:
    # Looked up on the type, as a call does.
    return inspect.getattr_static(type(fn), "__call__", None)


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether `fn`, or the `__call__` of its type, is an async function: its calls run on the event loop."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(_call_of(fn))


def refuse_awaitable(name: str, result: Any) -> None:
    """Raise TypeError if `result`, which the plain function called `name` gave, would have to be awaited."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{name} is a plain function and returned an awaitable: "
            "make it `async def`, so that it runs on the event loop"
        )


def is_async_generator(fn: Callable[..., Any]) -> bool:
    """Whether `fn`, or the `__call__` of its type, is an async generator function."""
    return inspect.isasyncgenfunction(fn) or inspect.isasyncgenfunction(_call_of(fn))
