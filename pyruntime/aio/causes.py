"""Tells causes of failures apart: which errors are alike, and which are mistakes of the program.

Pure: any thread.
"""

# Rows fail alike where their errors differ only by what names the row: numbers, identifiers, quoted texts. So
# words with a digit and quoted parts count for nothing. To compare types alone would take a refused key and
# an odd text for the same, as both are an `HttpStatusError`.

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, NamedTuple

from pillarbox.aio.errors import CallFailed
from pillarbox.wire import leaves

CAUSE_CHARACTERS = 400
"""Characters of an error's text that are compared."""

_OF_ONE_ROW = re.compile(r"'[^']*'|\"[^\"]*\"|\S*\d\S*")

_MISTAKES = (NameError, ImportError, SyntaxError, NotImplementedError)


class Cause(NamedTuple):
    """The part of an error that errors of one cause have in common."""

    type: str
    status: Any
    text: str


def cause_of(error: BaseException) -> Cause:
    """The cause that `error` tells of. Raises nothing."""
    if isinstance(error, CallFailed):
        error = error.cause
    try:
        text = str(error)[:CAUSE_CHARACTERS]
        status = getattr(error, "status", None)
        status = status if isinstance(status, int) else getattr(error, "status_code", None)
    except BaseException:
        text, status = "", None
    return Cause(
        type(error).__name__, status if isinstance(status, int) else None, _OF_ONE_ROW.sub("#", text)
    )


def is_mistake(error: BaseException) -> bool:
    """Return True if `error` says that the program is wrong: another attempt would end in the same way.

    Those are a name that is not defined (`NameError`), a module that is not there (`ImportError`), a
    `SyntaxError`, a `NotImplementedError`, and an attribute of None or of a module that does not exist. Other
    errors of types and values may come from one answer of a service. Raises nothing.
    """
    return any(
        isinstance(each, _MISTAKES)
        or (
            isinstance(each, AttributeError)
            and isinstance(each.obj, ModuleType | type(None))
            and _is_set(each)
        )
        for each in leaves(error)
    )


def _is_set(error: AttributeError) -> bool:
    # One that was raised by hand says nothing of its object, which is None then.
    return bool(error.name) and (error.obj is not None or "'NoneType' object" in str(error))
