"""The rows that a sink gets of results: with columns of their source rows, and failures in their form.

Used on the job's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pillarbox.aio.calls import Call
from pillarbox.aio.dead_letter_files import DeadLetterFiles
from pillarbox.aio.errors import Failed
from pillarbox.aio.function import gives_one_row
from pillarbox.aio.row_fields import as_fields
from pillarbox.aio.stages import Stage, form_of_failures


class ResultRows:
    """Makes rows of results, and puts failed rows aside where the options say so.

    A list is as many rows, but of a function that gives one row. With `keep`, or where failures become a
    column, a row is a dict: that of a result without names has it as `value`.

    keep: columns of the source's rows to put in front; ("*",) for all.
    """

    def __init__(self, stages: Sequence[Stage], keep: Sequence[str]) -> None:
        self._keep = tuple(keep)
        self._is_chain = len(stages) > 1
        self._form = form_of_failures(stages)
        self._dropped = frozenset(stage.uid for stage in stages if stage.drops)
        self._one_row = gives_one_row(stages[-1].fn)
        places = {
            stage.uid: stage.options.errors.dead_letter
            for stage in stages
            if stage.options.errors.dead_letter is not None
        }
        self._dead_letters = DeadLetterFiles(places, has_source=self._is_chain) if places else None

    def of(self, results: Sequence[tuple[Call, Any]]) -> list[Any]:
        """The rows of results, in their order. Raises OSError where failed rows cannot be put aside."""
        if self._dead_letters is not None:
            self._dead_letters.write([*results])
        plain = not self._keep and self._form != "column"
        rows: list[Any] = []
        for call, result in results:
            if type(result) is Failed:
                rows += self._failed(call, result)
                continue
            several = result if type(result) is list and not self._one_row else [result]
            if plain:
                rows += several
            else:
                kept = self._kept(call)
                error = {"_error": None} if self._form == "column" else {}
                rows += [{**kept, **_named(each), **error} for each in several]
        return rows

    def _failed(self, call: Call, failed: Failed) -> list[dict[str, Any]]:
        if failed.info.uid in self._dropped:
            return []
        kept = self._kept(call)
        return [{**kept, "_error": failed.info.told()}] if self._form == "column" else [kept]

    def _kept(self, call: Call) -> dict[str, Any]:
        if not self._keep:
            return {}
        row = as_fields(call.source if self._is_chain else call.row)
        fields: dict[str, Any] = row if isinstance(row, dict) else _named(row)
        if self._keep == ("*",):
            return fields
        missing = [name for name in self._keep if name not in fields]
        if missing:
            raise ValueError(
                f"keep: {missing[0]!r} is not a column of the source's rows (columns: {', '.join(fields)})"
            )
        return {name: fields[name] for name in self._keep}


def _named(result: object) -> dict[str, Any]:
    fields = as_fields(result)
    if isinstance(fields, dict):
        return fields
    names = getattr(fields, "_fields", None)
    return {"value": result} if names is None else dict(zip(names, fields, strict=True))
