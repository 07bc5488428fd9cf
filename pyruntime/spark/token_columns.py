"""Columns of tokens: how many each text has, and the texts split into chunks of so many.

`count_tokens` and `split_text` take a column of Spark, or one of pandas, Polars or Arrow, whose values are
computed at once. `token_counter` and `text_splitter` return the same as functions of columns, for SQL. For
the driver; what they send to the workers runs on the task's thread.
"""

# Why the tokenizer goes along with the function, as bytes. Its file would have to be on each worker, or the
# network, and the driver could not say beforehand what a worker lacks. It is parsed once a process; a task
# reads the bytes, 1 to 3 MB, as a broadcast of Spark's.
#
# Why these columns are deterministic, unlike those of `async_udf`: an expression that Spark computes twice
# costs time alone.

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import types as T

from pillarbox.clients.chunks import Chunk, check_chunks, split
from pillarbox.clients.tokenizer_loading import ESTIMATE, PackedTokenizer, packed_tokenizer
from pillarbox.spark import compat
from pillarbox.spark.large_columns import small_chunks
from pillarbox.spark.records import array_of_numpy
from pillarbox.spark.schema import arrow_type
from pillarbox.spark.shipment import Shipment, active_session, ship, use_driver_python
from pillarbox.validate import check_bool

PLACES = ("start", "end", "tokens")
CHUNK = T.StructType(
    [T.StructField("text", T.StringType())] + [T.StructField(name, T.IntegerType()) for name in PLACES]
)
"""A chunk of a text with its places, in characters from 0, and its tokens."""
PARALLELISM = "TOKENIZERS_PARALLELISM"
"""The variable by which the package `tokenizers` is told to use more than one thread."""


def count_tokens(column: Any, tokenizer: Any = ESTIMATE) -> Any:
    """Return a column with the number of tokens of each text; null for a null.

    column: a column of strings of Spark, or its name; or a Series of pandas or Polars or an array of Arrow,
    for which the same kind is returned.
    tokenizer: the name of a `tiktoken` encoding or of a model that `tiktoken` knows, the path of a
    `tokenizer.json` or of its folder, a model on Hugging Face ("org/model"), a `tokenizers.Tokenizer` or a
    `tiktoken.Encoding`. The driver loads it and sends it along. "estimate" counts nothing: the column is then
    called `estimated_tokens`.

        >>> from pillarbox.spark import count_tokens
        >>> docs = spark.createDataFrame([("a pillar box is red",), (None,)], "text string")
        >>> docs.select(count_tokens("text")).collect()
        [Row(estimated_tokens(text)=6), Row(estimated_tokens(text)=None)]

    Special tokens that the model adds to each text are counted. Raises TypeError for another column,
    `TokenizerUnavailable`, within a second, for a tokenizer that cannot be had, and MissingExtra for a
    package that is not installed.
    """
    return token_counter(tokenizer)(column)


def split_text(
    column: Any, max_tokens: int, overlap: int = 0, *, tokenizer: Any = ESTIMATE, details: bool = False
) -> Any:
    """Return a column with the chunks of each text, `array<string>`; null for a null.

    column, tokenizer: as for `count_tokens`.
    max_tokens: the tokens of a chunk, at most, special ones included. overlap: the tokens with which a chunk
    repeats the end of the one before it, at most; less than `max_tokens`.
    details: chunks are structs of `text`, `start`, `end` (in characters from 0) and `tokens`.

        >>> from pyspark.sql import functions as F
        >>> from pillarbox.spark import split_text
        >>> docs = spark.createDataFrame([("A pillar box is red. It takes letters.",)], "text string")
        >>> docs.select(F.explode(split_text("text", 9)).alias("text")).collect()
        [Row(text='A pillar box is red.'), Row(text=' It takes letters.')]

    A chunk ends with a paragraph, a sentence or a word where one ends in its last part, and not within a
    character and its accents, emoji or syllable unless that alone has no room. White space stays: the chunks
    without what they repeat are the text, but for white space that would be a chunk by itself. A text without
    anything else has no chunks. Raises ValueError for numbers that cannot be, and what `count_tokens` raises.
    """
    return text_splitter(max_tokens, overlap, tokenizer=tokenizer, details=details)(column)


def token_counter(tokenizer: Any = ESTIMATE) -> TextFunction:
    """Return `count_tokens` with its tokenizer as a function of a column, which SQL may call.

        >>> from pillarbox.spark import token_counter
        >>> _ = spark.udf.register("tokens", token_counter())
        >>> spark.sql("select tokens('a pillar box') as tokens").first()
        Row(tokens=4)

    tokenizer, errors: as for `count_tokens`.
    """
    packed = packed_tokenizer(tokenizer)
    name = "estimated_tokens" if packed.is_estimate else "count_tokens"
    return TextFunction(name, _Counting(packed), T.IntegerType())


def text_splitter(
    max_tokens: int, overlap: int = 0, *, tokenizer: Any = ESTIMATE, details: bool = False
) -> TextFunction:
    """Return `split_text` with its options as a function of a column, which SQL may call.

        >>> from pillarbox.spark import text_splitter
        >>> _ = spark.udf.register("chunks", text_splitter(9))
        >>> spark.sql("select explode(chunks('A box is red. It takes letters.')) as text").collect()
        [Row(text='A box is red.'), Row(text=' It takes letters.')]

    Arguments and errors: those of `split_text`.
    """
    packed = packed_tokenizer(tokenizer)
    most, repeated = check_chunks(max_tokens, overlap, packed.load().special)
    check_bool("details", details)
    name = "split_text_by_estimate" if packed.is_estimate else "split_text"
    kind = CHUNK if details else T.StringType()
    return TextFunction(name, _Splitting(packed, most, repeated, details), T.ArrayType(kind, False))


class TextFunction:
    """Column function of texts that `token_counter` or `text_splitter` made, for all kinds of columns.

        >>> from pillarbox.spark import token_counter
        >>> token_counter().returnType.simpleString()
        'int'

    It has the attributes of PySpark's own UDFs, so that `spark.udf.register` accepts it for SQL. Any thread.
    """

    deterministic = True

    def __init__(self, name: str, task: _TextTask, result: T.DataType) -> None:
        self.__name__ = name
        self.returnType = result
        self._task = task

    @property
    def func(self) -> Callable[..., Any]:
        """In Spark's workers, once registered, the function that SQL calls."""
        return Shipment(compat.column_task(self._task.run, self.returnType), self.__name__)

    @property
    def evalType(self) -> int:
        """The kind of function that `spark.udf.register` makes of it, which asks for it first."""
        use_driver_python(active_session())
        return compat.COLUMN_KIND

    def asNondeterministic(self) -> TextFunction:
        """The same: PySpark asks whether there is such a method."""
        return self

    def __call__(self, column: Any) -> Any:
        """The column of the results for a column, or for the name of one of Spark."""
        # Classic and Connect have a Column class each, and neither imports the other's.
        if isinstance(column, str) or type(column).__name__ == "Column":
            return self._spark_column(column)
        found = self._computed(column)
        if found is None:
            raise TypeError(
                f"column: a {type(column).__name__}; must be a Column of Spark or the name of one, a Series "
                "of pandas or Polars, or an array of Arrow"
            )
        return found

    def _spark_column(self, column: Column | str) -> Column:
        use_driver_python(active_session())
        run = ship(compat.column_task(self._task.run, self.returnType), self.__name__)
        return compat.column_function(run, self.returnType, is_deterministic=True)(column)

    def _computed(self, column: Any) -> Any:
        """The column of the results in the kind of a column without Spark; None for another kind."""
        kinds = {(each.__module__.partition(".")[0], each.__name__) for each in type(column).__mro__}
        if ("pandas", "Series") in kinds:
            return self._of_pandas(column)
        if ("polars", "Series") in kinds:
            return import_module("polars").from_arrow(self._made(column.to_arrow())).rename(self.__name__)
        if isinstance(column, pa.ChunkedArray):
            return self._made(column)
        return self._task.made(column) if isinstance(column, pa.Array) else None

    def _made(self, column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
        """The results of a column, in arrays that are not joined: it may have more text than one holds."""
        kind = arrow_type(self.returnType)
        return pa.chunked_array([self._task.made(each) for each in small_chunks(column)], kind)

    def _of_pandas(self, column: Any) -> Any:
        pandas = import_module("pandas")
        try:
            texts = pa.Array.from_pandas(column)
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise TypeError(f"column: must be of texts: {error}") from error
        if pa.types.is_floating(texts.type) and texts.null_count == len(texts):
            # So pandas has a column without any value.
            texts = pa.nulls(len(texts))
        made = self._made(texts)
        if isinstance(self.returnType, T.ArrayType):
            values = pandas.Series(made.to_pylist(), dtype=object)
        else:
            # Of its own types of numbers without a null, floats would have to say it.
            values = pandas.Series(made.to_pandas(types_mapper={pa.int32(): pandas.Int32Dtype()}.get))
        return pandas.Series(values.array, index=column.index, name=self.__name__)


# -- what runs in the tasks -----------------------------------------------------------------------------


class _TextTask:
    """Makes the results for batches of texts. Sent to the workers."""

    def __init__(self, tokenizer: PackedTokenizer) -> None:
        self._tokenizer = tokenizer

    def run(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Yield the results for each batch of texts. In a worker."""
        # Spark has a task for each core already.
        os.environ.setdefault(PARALLELISM, "false")
        return map(self.made, batches)

    def made(self, texts: pa.Array) -> pa.Array:
        """Return the results for texts. Raises TypeError for an array of another type."""
        kind = texts.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        names = ("is_string", "is_large_string", "is_string_view", "is_null")
        if not any(getattr(pa.types, name, lambda _: False)(kind) for name in names):
            raise TypeError(f"column: is of Arrow's type {texts.type}, must be of strings")
        return self._results([text for text in texts.to_pylist() if text is not None], _presence(texts))

    def _results(self, texts: list[str], presence: np.ndarray[Any, Any]) -> pa.Array:
        """The results for the texts that are there. presence: of each row, whether it has one."""
        raise NotImplementedError


def _presence(texts: pa.Array) -> np.ndarray[Any, Any]:
    if pa.types.is_null(texts.type):
        return np.zeros(len(texts), bool)
    return np.asarray(texts.is_valid().to_numpy(zero_copy_only=False), bool)


class _Counting(_TextTask):
    """Counts tokens."""

    def _results(self, texts: list[str], presence: np.ndarray[Any, Any]) -> pa.Array:
        counts = np.zeros(len(presence), np.int32)
        counts[presence] = self._tokenizer.load().counts(texts)
        return pa.array(counts, pa.int32(), mask=~presence)


class _Splitting(_TextTask):
    """Splits texts."""

    def __init__(self, tokenizer: PackedTokenizer, max_tokens: int, overlap: int, details: bool) -> None:
        super().__init__(tokenizer)
        self._max_tokens, self._overlap, self._details = max_tokens, overlap, details

    def _results(self, texts: list[str], presence: np.ndarray[Any, Any]) -> pa.Array:
        tokenizer = self._tokenizer.load()
        chunks = [split(text, self._max_tokens, self._overlap, tokenizer) for text in texts]
        lengths = np.zeros(len(presence), np.int32)
        lengths[presence] = [*map(len, chunks)]
        values = pa.array(
            [text[start:end] for text, found in zip(texts, chunks, strict=True) for start, end, _ in found],
            pa.string(),
        )
        if self._details:
            values = _with_places(values, [chunk for found in chunks for chunk in found])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        mask = None if presence.all() else array_of_numpy(~presence)
        element = pa.field("element", values.type, nullable=False)
        made = pa.ListArray.from_arrays(array_of_numpy(offsets), values, mask=mask)
        return made.cast(pa.list_(element))


def _with_places(values: pa.Array, chunks: Sequence[Chunk]) -> pa.Array:
    places = np.array(chunks, np.int32).reshape(-1, len(PLACES))
    columns = [array_of_numpy(np.ascontiguousarray(places[:, place])) for place in range(len(PLACES))]
    return pa.StructArray.from_arrays([values, *columns], names=["text", *PLACES])
