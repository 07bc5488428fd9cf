"""Every form of a missing value, every place of a result, and the right answer of each cell.

A form is a value that says alone that it is missing, or a collection that says by a mask, or by its type, of
which of its elements it is so. An answer is a null, a NaN where the form is a float that is one, or the error
of the row: never a number.
"""

from __future__ import annotations

import datetime
import decimal
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.spark.results import ResultError, RowEncoder, ValueEncoder

UTC = datetime.timezone.utc
NULL, NAN, REFUSED, NONE = "null", "NaN", "the error of its row", "no cell"

KINDS: dict[str, tuple[T.DataType, Any]] = {
    "double": (T.DoubleType(), 1.5),
    "long": (T.LongType(), 7),
    "boolean": (T.BooleanType(), True),
    "string": (T.StringType(), "x"),
    "decimal": (T.DecimalType(4, 1), decimal.Decimal("1.0")),
    "timestamp": (T.TimestampType(), datetime.datetime(2024, 1, 1, tzinfo=UTC)),
    "date": (T.DateType(), datetime.date(2024, 1, 1)),
}
"""Types, each with a value that is there."""

# -- the forms ---------------------------------------------------------------------------------------

MISSING: dict[str, Any] = {
    "None": None,
    "NA of pandas": pd.NA,
    "NaT of pandas": pd.NaT,
    "masked of NumPy": np.ma.masked,
    "masked array of no dimension": np.ma.array(1.5, mask=True),
    "NaT of NumPy": np.datetime64("NaT", "us"),
    "NaT of NumPy, a difference": np.timedelta64("NaT", "ns"),
    "None in an array of no dimension": np.array(None, object),
    "null of Arrow": pa.scalar(None),
    "typed null of Arrow": pa.scalar(None, pa.float64()),
    "null of Arrow, of a text": pa.scalar(None, pa.string()),
}
"""Values that are null wherever they are."""

NO_NUMBERS: dict[str, Any] = {
    "NaN": float("nan"),
    "NaN of NumPy": np.nan,
    "NaN of 64 bits of NumPy": np.float64("nan"),
    "NaN of 32 bits": np.float32("nan"),
    "NaN of 16 bits": np.float16("nan"),
    "NaN in an array of no dimension": np.array(np.nan),
    "NaN of Arrow": pa.scalar(float("nan")),
}
"""Floats that are not a number: NaN where a float may be."""

NEVER: dict[str, Any] = {"NaN of Decimal": decimal.Decimal("NaN"), "sNaN": decimal.Decimal("sNaN")}
"""Values that no type of Spark has."""

SINGLE = {**MISSING, **NO_NUMBERS, **NEVER}


def _guessed(make: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    """A collection of pandas in the type that it chooses for a value and None."""

    def made(value: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make([value, None, value])

    return made


def _arrow(value: Any) -> pa.Array:
    return pa.array([value, None, value])


def _nullable(value: Any) -> Any:
    return pd.array([value, None, value])


MASKED: dict[str, Callable[[Any], Any]] = {
    "list": lambda value: [value, None, value],
    "tuple": lambda value: (value, None, value),
    "deque": lambda value: deque([value, None, value]),
    "array of objects": lambda value: np.array([value, None, value], object),
    "masked array": lambda value: np.ma.array([value] * 3, mask=[False, True, False]),
    "masked array of objects": lambda value: np.ma.array(
        [value] * 3, mask=[False, True, False], dtype=object
    ),
    "Series": _guessed(pd.Series),
    "Series of objects": _guessed(lambda values: pd.Series(values, dtype=object)),
    "Index": _guessed(pd.Index),
    "array of pandas": _nullable,
    "Series of an array of pandas": lambda value: pd.Series(_nullable(value)),
    "Index of an array of pandas": lambda value: pd.Index(_nullable(value)),
    "categories": _guessed(pd.Categorical),
    "Series of categories": _guessed(lambda values: pd.Series(values, dtype="category")),
    "sparse array": _guessed(
        lambda values: pd.arrays.SparseArray([values[0], np.nan, values[2]], fill_value=np.nan)
    ),
    "Series of Arrow in pandas": lambda value: pd.Series(_arrow(value).to_pandas(types_mapper=pd.ArrowDtype)),
    "array of Arrow": _arrow,
    "chunks of Arrow": lambda value: pa.chunked_array([_arrow(value)[:2], _arrow(value)[2:]]),
    "dictionary of Arrow": lambda value: _arrow(value).dictionary_encode(),
}
"""Three elements, of which the second one is missing."""
TEXTS = {
    "Series of texts": lambda value: pd.Series([value, None, value], dtype="string"),
    "Series of texts, as objects": lambda value: pd.Series([value, None, value], dtype="string[python]"),
}
"""The same, of texts alone."""
if find_spec("polars") is not None:
    import polars

    MASKED["Series of Polars"] = lambda value: polars.Series([value, None, value])


def _times(value: datetime.datetime) -> Any:
    return np.array([value, "NaT", value], "M8[us]")


NUMBERS = {"array of floats": lambda value: np.array([value, np.nan, value])}
TIMES = {"array of times": lambda value: _times(value.replace(tzinfo=None))}
COLLECTIONS = {**MASKED, **TEXTS, **NUMBERS, **TIMES}
OF_KINDS = {
    **dict.fromkeys(TEXTS, ("string",)),
    **dict.fromkeys(NUMBERS, ("double", "long")),
    **dict.fromkeys(TIMES, ("timestamp",)),
}
"""Collections that cannot have all kinds."""
GUESSED = ("array of floats", "Series", "Index")
"""Collections that have None as a NaN where a type of NumPy has no other way."""
NO_COLUMNS = (
    *("masked array", "masked array of objects", "array of Arrow", "chunks of Arrow", "dictionary of Arrow"),
)
"""Collections that pandas takes for other ones in a column."""


# -- the places --------------------------------------------------------------------------------------


def encoded(kind: T.DataType, value: Any) -> Any:
    """The value that is found in the column of `value`."""
    encoder = ValueEncoder(kind, UTC)
    (array,), _ = encoder.encode([encoder.convert(value)])
    (found,) = array.to_pylist()
    return found


def batch_of(kind: T.DataType, results: Any) -> list[Any]:
    """The values that are found where a batch function gives these results, of one column."""
    encoder = RowEncoder(T.StructType().add("f", kind), UTC)
    rows = encoder.rows_of(results)
    (array,), _ = encoder.encode(encoder.convert_all([*results] if rows is None else rows))
    found: list[Any] = array.to_pylist()
    return found


def _row(kind: T.DataType, value: Any) -> Any:
    encoder = RowEncoder(T.StructType().add("n", T.LongType()).add("f", kind), UTC)
    arrays, _ = encoder.encode([encoder.convert({"n": 1, "f": value})])
    return arrays[1].to_pylist()[0]


def _objects(value: Any, there: Any) -> Any:
    made = np.empty(3, object)
    made[0], made[1], made[2] = there, value, there
    return made


def _struct(kind: T.DataType) -> T.StructType:
    return T.StructType().add("f", kind)


Place = Callable[[T.DataType, Any, Any], Any]
PLACES: dict[str, Place] = {
    "alone": lambda kind, value, there: encoded(kind, value),
    "in a row": lambda kind, value, there: _row(kind, value),
    "in a list": lambda kind, value, there: encoded(T.ArrayType(kind), [there, value])[1],
    "in a tuple": lambda kind, value, there: encoded(T.ArrayType(kind), (there, value))[1],
    "in an array of objects": lambda kind, value, there: encoded(T.ArrayType(kind), _objects(value, there))[
        1
    ],
    "in a struct": lambda kind, value, there: encoded(_struct(kind), {"f": value})["f"],
    "in a map": lambda kind, value, there: encoded(T.MapType(T.StringType(), kind), {"k": value})[0][1],
    "as a key": lambda kind, value, there: encoded(T.MapType(kind, T.StringType()), [(value, "")])[0][0],
    "in a list of lists": lambda kind, value, there: encoded(
        T.ArrayType(T.ArrayType(kind)), [[there, value]]
    )[0][1],
    "in a struct of a list": lambda kind, value, there: encoded(T.ArrayType(_struct(kind)), [{"f": value}])[
        0
    ]["f"],
    "in a list of a batch": lambda kind, value, there: batch_of(kind, [there, value])[1],
    "in a tuple of a batch": lambda kind, value, there: batch_of(kind, (there, value))[1],
    "in an array of a batch": lambda kind, value, there: batch_of(kind, _objects(value, there))[1],
    "in a Series of a batch": lambda kind, value, there: batch_of(
        kind, pd.Series(_objects(value, there), dtype=object)
    )[1],
    "in records of a batch": lambda kind, value, there: batch_of(kind, [{"f": there}, {"f": value}])[1],
}
"""Places of a value: gives what is found there. there: a value of the kind, for beside it."""

COLLECTED: dict[str, Callable[[T.DataType, Any], Sequence[Any]]] = {
    "as a list": lambda kind, values: encoded(T.ArrayType(kind), values),
    "as a list in a struct": lambda kind, values: encoded(_struct(T.ArrayType(kind)), {"f": values})["f"],
    "as a list in a map": lambda kind, values: encoded(
        T.MapType(T.StringType(), T.ArrayType(kind)), {"k": values}
    )[0][1],
    "as a list in a list": lambda kind, values: encoded(T.ArrayType(T.ArrayType(kind)), [values])[0],
    "as the results of a batch": batch_of,
    "as a column of a DataFrame": lambda kind, values: batch_of(kind, _column(values)),
}
"""Places of a collection: gives its elements as they are found there."""


def _column(values: Any) -> Any:
    return pd.DataFrame({"f": values})["f"]


# -- the cells ---------------------------------------------------------------------------------------


def answer(form: str, place: str, kind: str) -> str:
    """The right answer of a cell."""
    if form in COLLECTIONS:
        is_column = place == "as a column of a DataFrame"
        if kind not in OF_KINDS.get(form, KINDS) or (is_column and form in NO_COLUMNS):
            return NONE
        if is_column and form in ("list", "tuple", "deque", "Series of Polars"):
            # As pandas takes it.
            form = "Series"
        if form in GUESSED and kind in ("double", "long"):
            return NAN if kind == "double" else REFUSED
        if form == "dictionary of Arrow" and place.startswith("as a list") and kind in _VECTORS:
            # Arrow has an array of numbers in no other way than as numbers.
            return REFUSED
        return NULL
    if form in NO_NUMBERS:
        return NAN if kind == "double" else REFUSED
    return REFUSED if form in NEVER or place == "as a key" else NULL


_VECTORS = ("double", "long", "boolean")


def found(form: str, place: str, kind: str) -> str:
    """The answer that a cell has."""
    spark, there = KINDS[kind]
    try:
        if form in SINGLE:
            value = PLACES[place](spark, SINGLE[form], there)
        else:
            first, value, last = COLLECTED[place](spark, COLLECTIONS[form](there))
            assert None not in (first, last)
    except ResultError:
        return REFUSED
    return shown(value)


def shown(value: Any) -> str:
    """The answer that a value is; of a value that is there itself, in words."""
    if value is None:
        return NULL
    return NAN if isinstance(value, float) and value != value else repr(value)


def cells() -> dict[tuple[str, str], list[str]]:
    """By form and place: the kinds in which the cell is one."""
    made: dict[tuple[str, str], list[str]] = {}
    for forms, places in ((SINGLE, PLACES), (COLLECTIONS, COLLECTED)):
        for form in forms:
            for place in places:
                kinds = [kind for kind in KINDS if answer(form, place, kind) != NONE]
                if kinds:
                    made[form, place] = kinds
    return made


# -- the doors: results and rows through Spark ---------------------------------------------------------

SINGLE_CELLS = [(form, kind) for form in SINGLE for kind in KINDS]
"""Each is a row, by its number."""
SHAPES: dict[str, Callable[[T.DataType], T.DataType]] = {
    "alone": lambda kind: kind,
    "in a list": T.ArrayType,
    "in a struct": _struct,
    "in a map": lambda kind: T.MapType(T.StringType(), kind),
}
RESULTS = T.StructType(
    [
        T.StructField(f"{kind} {shape}".replace(" ", "_"), make(spark))
        for kind, (spark, _) in KINDS.items()
        for shape, make in SHAPES.items()
    ]
)
INPUT = "number int, x double, text string, list array<double>"


def given(number: int) -> tuple[int, float | None, str | None, list[float | None]]:
    """The input of a row: nulls and NaN, alone and in one another."""
    x = None if number % 2 else float("nan")
    return number, x, None if number % 3 else "NaN", [None, float("nan"), 1.0]


async def give(row: Any) -> dict[str, Any]:
    """A result with a form in each place of its kind, and null in all others."""
    form, kind = SINGLE_CELLS[row.number]
    value = SINGLE[form]
    forms = {"alone": value, "in a list": [value], "in a struct": {"f": value}, "in a map": {"k": value}}
    return {f"{kind} {shape}".replace(" ", "_"): each for shape, each in forms.items()}


async def give_number(number: int) -> dict[str, Any]:
    """As `give`, by the number alone."""
    return await give(T.Row(number=number))


async def give_unless(closed: str, row: Any) -> dict[str, Any]:
    """As `give`, until there is a file: then the end of the job, as nothing is to be called any more."""
    if os.path.exists(closed):
        os.abort()
    return await give(row)


def shown_row(row: Any, number: int) -> set[str]:
    """The answers of all places of a row of results."""
    _, kind = SINGLE_CELLS[number]
    alone, some, struct, by_name = (row[f"{kind} {shape}".replace(" ", "_")] for shape in SHAPES)
    return {shown(alone), *map(shown, some or ["nothing"]), shown((struct or {"f": 0})["f"]), *_of(by_name)}


def _of(by_name: Any) -> set[str]:
    return set(map(shown, (by_name or {"": "nothing"}).values()))


def due(number: int) -> set[str]:
    form, kind = SINGLE_CELLS[number]
    return {answer(form, "in a row", kind)}


IN_BATCHES = ("string", "double")
"""Kinds whose collections go through a batch function on Spark."""


async def give_batch(kind: str, rows: list[Any]) -> Any:
    """The collection of the form whose number the rows have."""
    (number,) = {row.id // 3 for row in rows}
    return [*COLLECTIONS.values()][number](KINDS[kind][1])
