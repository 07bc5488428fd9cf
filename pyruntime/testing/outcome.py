"""What an operation came to: its result, or the kind of error that it raised, as plain values.

Models, suites and recorders speak of outcomes in these words, so a subject may have its own classes of
errors. Plain values: any thread.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Raised(NamedTuple):
    """An operation raised. `kind` is the name of the contract's error, such as "MailboxClosedError"."""

    kind: str


class _Blocked(enum.Enum):
    BLOCKED = "BLOCKED"


BLOCKED = _Blocked.BLOCKED
"""What a model says of an operation that would wait now: no subject returns it."""


def kind_of(error: BaseException, errors: Mapping[str, type[BaseException]] | None = None) -> Raised:
    """The kind of an error: the contract's name for it by `errors`, or else the name of its class."""
    for kind, own in (errors or {}).items():
        if isinstance(error, own):
            return Raised(kind)
    return Raised(type(error).__name__)


def outcome_of(call: Callable[[], Any], errors: Mapping[str, type[BaseException]] | None = None) -> Any:
    """Make the call; return what it returns, or `Raised`.

    errors: by the contract's name, the subject's own class of that error. An assertion that fails,
    KeyboardInterrupt and the like pass through.
    """
    try:
        return call()
    except AssertionError:
        raise
    except Exception as error:
        return kind_of(error, errors)
