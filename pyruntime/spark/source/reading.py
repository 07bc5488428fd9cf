"""What a Spark task does with splits: read them and give Spark the rows in the shape it wants. In the task.

Arrow batches go on as they are where they have the columns and types of the schema; otherwise columns are
put in order and cast. Rows in sequences go on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from pillarbox.sources.reader import Fetched, ReaderContext
from pillarbox.sources.reading import read_splits
from pillarbox.sources.source import Source
from pillarbox.sources.split import Split
from pillarbox.spark.source.link import EventReader, TaskLink, hears

S = TypeVar("S", bound=Split)


def read_rows(
    source: Source[S, Any],
    splits: Iterable[S] | Callable[[], S | None],
    context: ReaderContext,
    link: TaskLink,
    observe: Callable[[Fetched], None] | None = None,
) -> Iterator[Any]:
    """The rows of `splits`, as tuples or Arrow batches with the columns of `context.schema`.

    link: the way to the enumerator. observe: is told of all that was fetched, once Spark asks for more.
    Closing the iterator ends the reading.
    """
    assert context.schema is not None
    shape = Shape(context.schema)
    reader = source.create_reader(context)
    if hears(reader):
        reader = hearing = EventReader(reader)
        link.receive, link.failed = hearing.hear, hearing.fail
        link.connect()
    # What is a generator can be closed.
    with closing(cast("Generator[Fetched, None, None]", read_splits(reader, splits))) as all_fetched:
        for fetched in all_fetched:
            records = fetched.records
            if not isinstance(records, pa.RecordBatch):
                yield from records
            elif records.num_rows:
                yield shape.fit(records)
            if observe is not None:
                observe(fetched)


class Shape:
    """Makes Arrow batches those of a schema. Confined."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._seen: pa.Schema | None = None
        self._fits = False

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with the schema's columns, in its order, with its types.

        Raises ValueError that names the column, for one that is missing, has values of another type, or has
        nulls that the schema does not have.
        """
        if batch.schema is not self._seen:
            self._seen = batch.schema
            self._fits = batch.schema.equals(self._schema)
        columns = batch.columns if self._fits else [self._column(batch, field) for field in self._schema]
        for field, column in zip(self._schema, columns, strict=True):
            if not field.nullable and column.null_count:
                raise ValueError(f"column {field.name!r} has nulls, and the schema says that it has none")
        return batch if self._fits else pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @staticmethod
    def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        at = batch.schema.get_all_field_indices(field.name)
        if len(at) != 1:
            raise ValueError(
                f"column {field.name!r} stands {len(at)} times in what was read, which has the columns "
                f"{', '.join(batch.schema.names)}"
            )
        column = batch.column(at[0])
        if column.type.equals(field.type):
            return column
        try:
            # Spark's timestamps are microseconds.
            return column.cast(options=pc.CastOptions(field.type, allow_time_truncate=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise ValueError(
                f"column {field.name!r} is {column.type} and not {field.type}: {error}"
            ) from None
