"""What every reference model is: a frozen value with one method for each operation of the contract.

A method takes the arguments that the subject's method takes, and returns `(model after it, outcome)`. The
suites follow one path of operations; the search for linearizations goes back and forth, which values allow
for nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar

from pillarbox.testing.outcome import BLOCKED

M = TypeVar("M", bound="Model")


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
