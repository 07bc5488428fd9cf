"""Raw results: a function whose results are parsed after the ledger has kept them.

A function object with a method `parse` gives raw results, such as the text of a model's answer. The ledger
keeps these, and `parse` makes of each, a kept one too, the value that goes on. So a parser that has changed
parses what is kept anew, without a call. On the thread of the event loop.
"""

# Why not let the function parse, and the ledger keep values: what was paid for is the raw result, and a
# schema of answers changes more often than the question. Why a method and not an option beside `fn`: what
# parses belongs to what asks, as the same object has told the service which form it wants.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox.aio.calls import ResultConverter
from pillarbox.aio.function import parse_of


class Parsed:
    """A raw result, which the ledger keeps, and the value that leaves."""

    __slots__ = ("kept", "value")

    def __init__(self, kept: Any, value: Any) -> None:
        self.kept = kept
        self.value = value


def value_of(result: Any) -> Any:
    """The result as it leaves."""
    return result.value if type(result) is Parsed else result


class ParsingConverter:
    """Parses raw results before another converter, if any, brings them into the form in which they leave.

    keeps: give the raw result as well, as a `Parsed`, for a ledger. What `parse` raises is the error of the
    attempt, as what the converter behind it raises.
    """

    def __init__(self, parse: Callable[[Any], Any], behind: ResultConverter | None, *, keeps: bool) -> None:
        self._parse = parse
        self._behind = behind
        self._keeps = keeps

    def convert(self, result: Any) -> Any:
        """Parse a raw result."""
        if type(result) is Parsed:
            return result
        value = self.convert_value(self._parse(result))
        return Parsed(result, value) if self._keeps else value

    def convert_value(self, value: Any) -> Any:
        """The form in which a value leaves that was not parsed, such as one that stands for a time-out."""
        return value if self._behind is None else self._behind.convert(value)

    def convert_all(self, results: list[Any]) -> list[Any]:
        """Parse the raw results of a batch."""
        return [self.convert(result) for result in results]

    def rows_of(self, results: Any) -> None:
        """None: raw results are parsed one by one."""


def with_parse(
    fn: Callable[..., Any], convert: ResultConverter | None, *, keeps: bool
) -> ResultConverter | None:
    """The converter of results of `fn`, with its `parse` before `convert` if it has one. Any thread.

    fn: as it was given, before it was entered. keeps: as `ParsingConverter` says.
    """
    parse = parse_of(fn)
    return convert if parse is None else ParsingConverter(parse, convert, keeps=keeps)
