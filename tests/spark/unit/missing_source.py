"""A source whose rows have nulls and NaN in each place, as Arrow has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.sources.simple import SimpleSource
from pillarbox.sources.split import OffsetSplit
from pillarbox.spark.schema import arrow_type
from tests.spark.unit.missing import KINDS

NAN = float("nan")


def _rows() -> list[dict[str, Any]]:
    """A row for each kind and each of null and NaN, which is of doubles alone."""
    rows = []
    for kind, (_, there) in KINDS.items():
        for value in (None, NAN) if kind == "double" else (None,):
            shapes = {"alone": value, "list": [there, value], "struct": {"f": value}, "map": {"k": value}}
            rows.append(
                {name: shapes[name.partition("_")[0]] if _of(name) == kind else None for name in NAMES}
            )
    return rows


def _of(name: str) -> str:
    return name.partition("_")[2]


NAMES = [f"{shape}_{kind}" for kind in KINDS for shape in ("alone", "list", "struct", "map")]


def _type(name: str) -> T.DataType:
    kind = KINDS[_of(name)][0]
    shapes = {
        "list": T.ArrayType(kind),
        "struct": T.StructType().add("f", kind),
        "map": T.MapType(T.StringType(), kind),
    }
    return shapes.get(name.partition("_")[0], kind)


ROWS = _rows()


def batch() -> pa.RecordBatch:
    """The rows, with maps as pairs, which Arrow takes."""
    schema = pa.schema([(name, arrow_type(_type(name))) for name in NAMES])
    rows = [
        {name: [*each.items()] if name.startswith("map") and each else each for name, each in row.items()}
        for row in ROWS
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


@dataclass(frozen=True)
class Missing(SimpleSource[OffsetSplit]):
    """The rows, in one split."""

    def arrow_schema(self) -> pa.Schema:
        return batch().schema

    def list_splits(self) -> list[OffsetSplit]:
        return [OffsetSplit("all", 0, len(ROWS))]

    def read(self, split: OffsetSplit) -> Iterator[Any]:
        start, stop = int(split.start or 0), int(split.stop or 0)
        yield batch().slice(start, stop - start), stop
