"""Makes of results the form in which they leave; one that does not fit fails its attempt. Mailbox thread."""

from __future__ import annotations

from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.function import ParsingConverter, ResultConverter
from pillarbox.aio.policy import CallPolicy


class FitPolicy(CallPolicy):
    """Converts results by a `ResultConverter`; None for results that leave as they are.

    The functions of the converter are attributes, None without one. convert_fallback: for what stands for the
    result of a row that timed out.
    """

    def __init__(self, converter: ResultConverter | None) -> None:
        self.convert = self.convert_all = self.convert_fallback = self.rows_of = self.elements_of = None
        self.skips = frozenset(["accept"])
        if converter is None:
            return
        self.skips = frozenset()
        self.convert = converter.convert
        self.convert_all = converter.convert_all
        self.rows_of = converter.rows_of
        self.elements_of = converter.elements_of
        # What stands for a result is nothing that could be parsed.
        self.convert_fallback = (
            converter.convert_value if isinstance(converter, ParsingConverter) else converter.convert
        )

    def accept(self, call: Call, result: Any) -> Any:
        """Convert a result; what that raises is the error of the attempt."""
        assert self.convert is not None
        return self.convert(result)
