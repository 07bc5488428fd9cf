"""The check of Arrow batches that go to Spark's Java process: what they may not have. Pure; any thread.

A null where the schema says NOT NULL, at any depth, ends the job there, whatever `errors` says; text that is
not UTF-8 passes, and ends whoever reads it in Python. `Border` finds both in a whole batch.
"""

# Each way to Spark's Java process has this one check: results of `async_map`, of the functions over it and of
# columns, also in SQL (`writer.RowWriter`), rows of sources (`data_source.fit`), and of a stream what its
# committed state has to leave (`stream.bucket_state`). A result is converted when its call ends, and a result
# that does not fit is its row's error then. This comes behind it, for what was made by another version, by
# another schema, or past that conversion.
#
# Most columns cost nothing: only those are looked at whose type forbids a null somewhere, or has text in it.
# A test of each value would cost a microsecond; Arrow counts nulls once for an array, and looks through a
# gigabyte of text in a tenth of a second.

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa


def is_strict(kind: pa.DataType) -> bool:
    """Return True if a type says of something in it that it is never null; keys of maps never are."""
    if pa.types.is_map(kind):
        return is_strict(kind.key_type) or not kind.item_field.nullable or is_strict(kind.item_type)
    return any(not field.nullable or is_strict(field.type) for field in _inside(kind))


def has_text(kind: pa.DataType) -> bool:
    """Return True if a type is text, or has text in it."""
    if pa.types.is_map(kind):
        return has_text(kind.key_type) or has_text(kind.item_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    return any(has_text(field.type) for field in _inside(kind))


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, or that of the elements of a list."""
    if pa.types.is_struct(kind):
        return [kind.field(place) for place in range(kind.num_fields)]
    return [kind.value_field] if _is_list(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    return any(
        is_one(kind) for is_one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )


def forbidden_null(array: pa.Array, field: pa.Field, place: str | None = None) -> str | None:
    """The first place, in words, at which `array` has a null that its field does not allow; None for none.

    field: its type and name; the array's own type may allow more. place: its name, if another one.
    """
    place = field.name if place is None else place
    kind = field.type
    if array.null_count:
        if not field.nullable:
            return place
        if is_strict(kind):
            # What is inside of a null is not there.
            array = array.filter(array.is_valid())
    if not is_strict(kind) or not len(array):
        return None
    if pa.types.is_map(kind):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        keys, items = (part.slice(start, end - start) for part in (array.keys, array.items))
        return forbidden_null(keys, kind.key_field, f"a key of {place}") or forbidden_null(
            items, kind.item_field, f"a value of {place}"
        )
    if _is_list(kind):
        return forbidden_null(array.flatten(), kind.value_field, f"an element of {place}")
    parts = zip(_inside(kind), array.flatten(), strict=True)
    found = (forbidden_null(part, each, f"{place}.{each.name}") for each, part in parts)
    return next((each for each in found if each is not None), None)


def missing(value: Any, field: pa.Field, place: str | None = None) -> str | None:
    """As `forbidden_null`, of one value of Python, as PySpark has them for rows."""
    place = field.name if place is None else place
    kind = field.type
    if value is None:
        return None if field.nullable else place
    if not is_strict(kind):
        return None
    if pa.types.is_map(kind):
        parts = [(key, kind.key_field, f"a key of {place}") for key in value]
        parts += [(item, kind.item_field, f"a value of {place}") for item in value.values()]
    elif _is_list(kind):
        parts = [(each, kind.value_field, f"an element of {place}") for each in value]
    else:
        given = [value.get(each.name) for each in _inside(kind)] if isinstance(value, Mapping) else value
        parts = [
            (part, each, f"{place}.{each.name}") for part, each in zip(given, _inside(kind), strict=False)
        ]
    return next((found for part in parts if (found := missing(*part)) is not None), None)


class Border:
    """The check of batches with columns of these fields.

    fields: the columns, in their order; what a batch has of them may be of a type that allows more nulls.
    text: names of columns whose text is looked at, for all of them None: text that has come from Spark goes
    back as it is.
    """

    def __init__(self, fields: Iterable[pa.Field], text: Sequence[str] | None = None) -> None:
        checked = [
            (place, field, has_text(field.type) and (text is None or field.name in text))
            for place, field in enumerate(fields)
        ]
        self._strict = [
            (place, each) for place, each, _ in checked if not each.nullable or is_strict(each.type)
        ]
        self._checked = [
            each for each in checked if each[2] or not each[1].nullable or is_strict(each[1].type)
        ]

    def misfit(self, columns: Sequence[pa.Array]) -> str | None:
        """Say the first thing that these columns may not have, with its column; None where there is none."""
        for place, field, is_text in self._checked:
            null = forbidden_null(columns[place], field)
            if null is not None:
                return f"{null} is null, but the schema says NOT NULL"
            if is_text:
                try:
                    columns[place].validate(full=True)
                except pa.ArrowInvalid as error:
                    return f"{field.name} has text that is not UTF-8, or no value at all ({error})"
        return None

    def check_records(self, records: Sequence[Sequence[Any]]) -> None:
        """Raise ValueError for a record that has a null where there may be none, as values of Python."""
        for place, field in self._strict:
            # Those of Spark's rows that have names are by these.
            values = [
                record[field.name] if getattr(record, "__fields__", None) else record[place]
                for record in records
            ]
            if is_strict(field.type) or None in values:
                found = next((null for value in values if (null := missing(value, field)) is not None), None)
                if found is not None:
                    raise ValueError(f"{found} is null, but the schema says NOT NULL")

    def misfits(self, columns: Sequence[pa.Array]) -> Mapping[int, str]:
        """The places of rows that may not pass, each with what is wrong with it."""
        if self.misfit(columns) is None:
            return {}
        rows = range(len(columns[0]))
        # By copies: of a slice of a null there may be more than is there.
        found = ((row, self.misfit([column.take(pa.array([row])) for column in columns])) for row in rows)
        return {row: why for row, why in found if why is not None}
