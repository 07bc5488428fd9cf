"""The base of the reference models, frozen values with one method for each operation of the contract.

A method takes the arguments that the subject's method takes, and returns `(model after it, outcome)`. The
suites follow one path of operations; the search for linearizations goes back and forth, which values allow
for nothing.

An outcome is a result, or the kind of the error that was raised, as plain values: so a subject may have its
own classes of errors. Any thread.
"""

# Why a model gives the outcome together with the next model, where one could ask it before and tell it
# after. An operation whose outcome depends on more than one choice, such as a wake-up that is on its way,
# has several next models for one outcome (`step`): asking first would have to choose one.

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar

M = TypeVar("M", bound="Model")


class Raised(NamedTuple):
    """An operation raised. `kind` is the name of the contract's error, such as "MailboxClosedError"."""

    kind: str


class _Blocked(enum.Enum):
    BLOCKED = "BLOCKED"


BLOCKED = _Blocked.BLOCKED
"""The outcome of an operation that would wait now, in a model: no subject returns it."""


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


class Model:
    """Base of the reference models. Subclasses are frozen dataclasses, and so comparable and hashable."""

    operations: ClassVar[frozenset[str]] = frozenset()
    """Names of the methods that are operations."""
    confined: ClassVar[frozenset[str]] = frozenset()
    """Those that only the owning thread may call."""

    def apply(self: M, operation: str, *arguments: Any, **keywords: Any) -> tuple[M, Any]:
        """The model after the operation, and its outcome; `BLOCKED`, and no change, if it would wait now."""
        if operation not in self.operations:
            raise ValueError(f"operation={operation!r}: {type(self).__name__} has none of that name")
        model: tuple[M, Any] = getattr(self, operation)(*arguments, **keywords)
        return model

    def step(self: M, operation: str, arguments: tuple[Any, ...], result: Any) -> tuple[M, ...]:
        """Every model that can follow if the operation had this outcome now; none if it cannot have."""
        after, outcome = self.apply(operation, *arguments)
        return (after,) if outcome is not BLOCKED and outcome == result else ()

    def key(self) -> Hashable:
        """Equal for two models that no operation can tell apart."""
        return self

    @classmethod
    def bind(cls, operation: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, those with default values included."""
        bound = _signature(getattr(cls, operation)).bind(None, *arguments, **keywords)
        bound.apply_defaults()
        return bound.args[1:]


@cache
def _signature(method: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(method)
    plain = [p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in signature.parameters.values()]
    return signature.replace(parameters=plain)
