"""Functions that are resources: objects whose context manager is run around all of their calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from pillarbox.aio.errors import OpenFailed
from pillarbox.redaction import DEFAULT


def is_resource(fn: Callable[..., Any]) -> bool:
    """Whether `fn` has a context manager, asynchronous or plain."""
    return hasattr(type(fn), "__aenter__") or hasattr(type(fn), "__enter__")


async def enter_function(fn: Callable[..., Any], stack: AsyncExitStack) -> Callable[..., Any]:
    """Enter `fn` into `stack` if it is a context manager; returns what is to be called.

    That is what entering gave, or `fn` itself where that is not callable. On the loop's thread. Raises
    OpenFailed with what entering raised.
    """
    entered: Any
    method = "__aenter__" if hasattr(type(fn), "__aenter__") else "__enter__"
    try:
        if method == "__aenter__":
            entered = await stack.enter_async_context(fn)  # type: ignore[arg-type]
        elif hasattr(type(fn), "__enter__"):
            entered = stack.enter_context(fn)  # type: ignore[arg-type]
        else:
            return fn
    except Exception as error:
        raise OpenFailed(type(fn).__qualname__, method, error) from DEFAULT.chain(error)
    return entered if callable(entered) else fn
