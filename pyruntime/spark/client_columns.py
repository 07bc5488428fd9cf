"""Columns from services beside those of a DataFrame: vectors of texts, fields of lookups, answers of models.

`embed_text`, `lookup` and `ask` are for the driver; what they send to the workers runs on the event loop
there.
"""

# They are thin: `async_map` with a function around the client that knows the columns. Spark runs that in one
# pass over the rows, however many columns are made; `async_udf` of the same client makes one column for each
# pass, as an expression, and can be registered for SQL.
#
# Why nulls never reach the client: services differ in what they make of an empty text, and it would be paid
# for. Why texts of several columns go in one call: requests are filled by number and tokens, and a
# call for each column would send half-filled ones. A row then fails as a whole, as what was paid for a part
# of it cannot stand in a row without the rest.
#
# Why the schema of an answer is its type. It is the one that the model is asked for, so that a column
# cannot be of another; whoever wants another type of Spark casts it. Values go by their JSON, whatever
# class they had: one way for Pydantic, dataclasses and schemas, at some microseconds for an answer that
# took a second.

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from pillarbox.aio.batching import Batch
from pillarbox.aio.errors import BatchResultError, shorten
from pillarbox.aio.function import configuration_of, enter_function, is_async
from pillarbox.aio.hedge import is_idempotent
from pillarbox.aio.options import Options, resolve_options
from pillarbox.aio.stages import resolve_stages
from pillarbox.aio.usage import Result
from pillarbox.clients.chat import Chat
from pillarbox.clients.embeddings import Embeddings
from pillarbox.clients.images import Images
from pillarbox.ledger import Ledger
from pillarbox.spark.answer_types import spark_type, value_reader
from pillarbox.spark.column_functions import check_budget
from pillarbox.spark.dataframe import map_dataframe
from pillarbox.spark.large_columns import joined
from pillarbox.spark.observation import JobProgress
from pillarbox.spark.operator_plan import check_on_driver, name_of
from pillarbox.spark.records import array_of_numpy, flags_of
from pillarbox.spark.schema import check_column, frame_of, parse_schema
from pillarbox.validate import check_text, suggesting_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames

Frame = TypeVar("Frame")
"""A DataFrame of Spark, or a table without Spark."""
VECTOR = T.ArrayType(T.FloatType())
"""The type of a vector in Spark."""


@suggesting_options(Options)
def embed_text(
    df: Frame,
    text: str | Sequence[str],
    *,
    into: str | Sequence[str],
    client: Callable[[Any], Any],
    keep: str | Sequence[str] = "*",
    batch: Batch | None = None,
    progress: JobProgress | bool | None = None,
    options: Options | None = None,
    **more: Unpack[OptionNames],
) -> Frame:
    """Add columns of vectors, `array<float>`, for columns of text: in blocks, in one pass.

    df: batch or streaming, or a table without Spark (`pillarbox.frames`), whose calls are made at once.
    text, into: a column of strings and the name of its vectors, or as many of both.
    client: an `Embeddings`, or an async function or resource of a `pyarrow.Array` of texts without nulls that
        returns a NumPy array of shape (texts, dimensions), or a list with a vector or an error for each text,
        also in a `Result`. Texts of several columns are sent in one call.
    keep: as for `async_map`; by default all columns. A null text gives a null vector and is not sent.
    batch: by default requests are filled as the client's own `batch` defines, if it has one.
    progress, options and the others: as for `async_map`. A ledger identifies a row by its texts, unless it
    has `inputs`. With `errors` a row fails as a whole if one of its texts fails.

        >>> from pillarbox.clients import Embeddings
        >>> from pillarbox.spark import embed_text
        >>> from pillarbox.testing import serve
        >>> docs = spark.createDataFrame([("a pillar box",), (None,)], "text string")
        >>> with serve(dimensions=4) as service:
        ...     client = Embeddings(service.url, "any-model")
        ...     rows = embed_text(docs, "text", into="vector", client=client).collect()
        >>> len(rows[0].vector), rows[1].vector
        (4, None)

    On the driver. Raises TypeError or ValueError at once for a bad argument; in the task the errors of
    `async_map`. The name is Daft's `embed_text`.
    """
    texts = _names("text", text)
    vectors = _names("into", into)
    if len(texts) != len(vectors):
        raise ValueError(f"text={text!r}, into={into!r}: must be as many names of vectors as of texts")
    frame = frame_of(df)
    for name in texts:
        kind = frame.schema[check_column("text", name, frame.columns)].dataType
        # A column of nulls alone has no type where nothing has said it.
        if not isinstance(kind, T.StringType | T.NullType):
            raise TypeError(f"text={name!r}: is a column of {kind.simpleString()}, must be a string")
    _check_client(client)
    check_budget(client, resolve_options(options, {**more}).budget)
    given = batch or (options.batch if isinstance(options, Options) else None)
    schema = T.StructType([T.StructField(name, VECTOR) for name in vectors])
    if given is None:
        given = _filled(client, texts)
    elif isinstance(given, Batch):
        # What is not a `Batch` is refused with all other options.
        given = dataclasses.replace(given, arrow=True)
    by_name = {**more, "batch": given}
    made: Frame = map_client(
        frame, _TextEmbedder(client, texts, vectors), schema, keep, progress, options, by_name, texts
    )
    return made


@suggesting_options(Options)
def lookup(
    df: Frame,
    *,
    client: Callable[[Any], Any],
    schema: str | T.StructType,
    keep: str | Sequence[str] = "*",
    progress: JobProgress | bool | None = None,
    options: Options | None = None,
    **more: Unpack[OptionNames],
) -> Frame:
    """Add columns with the fields of a service's answer for each row.

    df: as for `embed_text`. client: an `HttpLookup`, or an async function or resource of one row.
    schema: the columns to add: the fields with these names of an answer that is an object, null if it lacks
        one; other fields are omitted. A single column may also be the whole answer: an object for a struct or
        a map, or any other value. No answer (None) gives nulls.
    keep: as for `async_map`; by default all columns. progress, options and the others: as for `async_map`. A
        ledger identifies a row by the fields that the client names in `fields`, unless it has `inputs`.

        >>> from pillarbox.clients import HttpLookup
        >>> from pillarbox.spark import lookup
        >>> from pillarbox.testing import serve
        >>> flights = spark.createDataFrame([("N14228",), ("no plane",)], "tailnum string")
        >>> with serve() as service:
        ...     planes = HttpLookup(f"{service.url}/planes/{{tailnum}}")
        ...     rows = lookup(flights, client=planes, schema="manufacturer string, seats int").collect()
        >>> [row.seats is None for row in rows]
        [False, True]

    On the driver. Raises TypeError or ValueError at once for a bad argument; in the task the errors of
    `async_map`. The idea is Flink's lookup join.
    """
    frame = frame_of(df)
    _check_client(client)
    columns = parse_schema("schema", schema, has_spark=frame.sparkSession is not None)
    fields = [check_column("client", name, frame.columns) for name in getattr(client, "fields", ())]
    picker = _FieldPicker(client, columns)
    made: Frame = map_client(frame, picker, columns, keep, progress, options, {**more}, fields)
    return made


def map_client(
    df: Any,
    fn: Callable[[Any], Any],
    schema: T.StructType,
    keep: str | Sequence[str],
    progress: JobProgress | bool | None,
    options: Options | None,
    given: dict[str, Any],
    inputs: Sequence[str],
) -> Any:
    """As `async_map`, with a ledger that knows a row by `inputs` unless it says others."""
    ledger = given.get("ledger") or (options.ledger if isinstance(options, Options) else None)
    if inputs and isinstance(ledger, Ledger) and ledger.inputs is None:
        given["ledger"] = dataclasses.replace(ledger, inputs=tuple(inputs))
    stages = resolve_stages(fn, options, given)
    return map_dataframe(df, stages, schema=schema, keep=keep, progress=progress)


# -- arguments ------------------------------------------------------------------------------------


def _names(option: str, given: object) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names or not all(isinstance(each, str) for each in names):
        raise TypeError(f"{option}={given!r}: must be the name of a column, or a list of names")
    return list(names)


def _check_client(client: object) -> None:
    if not callable(client) or isinstance(client, type) or not is_async(client):
        raise TypeError(
            f"client={shorten(client)}: must be a client of pillarbox.clients, or an async function"
        )


def _filled(client: object, texts: Sequence[str]) -> Batch:
    """The batches that fill the requests of a client with the texts of the rows."""
    own = getattr(client, "batch", None)
    if not isinstance(own, Batch):
        return Batch(arrow=True)
    size = max(1, own.size // len(texts))
    if own.weight is None:
        return dataclasses.replace(own, size=size, arrow=True)
    weight = own.weight
    return dataclasses.replace(
        own, size=size, arrow=True, weight=lambda row: sum(weight(row[name]) for name in texts)
    )


# -- what runs in the tasks -----------------------------------------------------------------------


class AroundClient:
    """A resource that opens a client, and calls it. Sent to the workers."""

    def __init__(self, client: Callable[[Any], Any]) -> None:
        self._client = client
        # What plans and errors call it.
        self.__name__ = name_of(client)
        self.__qualname__ = getattr(client, "__qualname__", type(client).__qualname__)

    def __repr__(self) -> str:
        return repr(self._client)

    @property
    def configuration(self) -> Mapping[str, Any] | None:
        """The part of the client that decides about results, for a cache, if it says that."""
        return configuration_of(self._client)

    @property
    def idempotent(self) -> bool:
        """True if the client says that a slow call may be hedged."""
        return is_idempotent(self._client)

    @property
    def request_bytes(self) -> Callable[..., int] | None:
        """The function of the client that gives the bytes of a call besides its row, if it has one."""
        found: Callable[..., int] | None = getattr(self._client, "request_bytes", None)
        return found

    @property
    def agrees_on_length(self) -> bool:
        """True if tasks have to agree on the length of the client's vectors."""
        return getattr(self._client, "agrees_on_length", False)

    @property
    def gives_new_memory(self) -> bool:
        """True if the client keeps no reference to the memory of its blocks."""
        # What stands around a client, and answers for it by its name, may keep what the client does not.
        return isinstance(self._client, Embeddings) and self._client.gives_new_memory

    def check_on_driver(self) -> None:
        """Raise what the client lacks here, if it says that."""
        check_on_driver(self._client)

    def agree_on_length(self, name: str, agree: Callable[[int], Awaitable[int]]) -> None:
        """See `Embeddings`."""
        self._client.agree_on_length(name, agree)  # type: ignore[attr-defined]

    def expect_length(self, length: int) -> None:
        """See `Embeddings`; nothing for another client."""
        if isinstance(self._client, Embeddings):
            self._client.expect_length(length)

    async def __aenter__(self) -> Any:
        # In the worker: it could not be sent there.
        self._stack = AsyncExitStack()
        self._client = await enter_function(self._client, self._stack)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


class _TextEmbedder(AroundClient):
    """Gives for a record batch the columns of vectors of some of its columns."""

    def __init__(self, client: Callable[[Any], Any], texts: Sequence[str], vectors: Sequence[str]) -> None:
        super().__init__(client)
        self._texts = texts
        self._vectors = vectors

    async def __call__(self, batch: pa.RecordBatch) -> Any:
        columns = [_texts_of(batch.column(name)) for name in self._texts]
        parts = [column.drop_null() if column.null_count else column for column in columns]
        texts = joined(parts)
        if not len(texts):
            # Nothing is called, so a bound on the cost has nothing to ask for.
            return Result(self._made(columns, parts, np.empty((0, 0), np.float32)), usage=0.0)
        found = await self._client(texts)
        usage = None
        if type(found) is Result:
            found, usage = found.value, found.usage
        if not hasattr(found, "__len__") or len(found) != len(texts):
            what = f"{len(found):,} results" if hasattr(found, "__len__") else type(found).__name__
            raise BatchResultError(self.__qualname__, len(texts), what)
        made = self._made(columns, parts, found)
        return made if usage is None else Result(made, usage)

    def _made(self, columns: Sequence[pa.Array], parts: Sequence[pa.Array], found: Any) -> Any:
        """The columns of vectors, or results for each row, of what the client gave for all texts."""
        if not isinstance(found, np.ndarray) or found.ndim != 2:
            return self._row_by_row(columns, found)
        if len(columns) == 1 and not columns[0].null_count:
            return found
        arrays = []
        place = 0
        for column, part in zip(columns, parts, strict=True):
            arrays.append(_vectors_beside(column, found[place : place + len(part)]))
            place += len(part)
        return pa.RecordBatch.from_arrays(arrays, list(self._vectors))

    def _row_by_row(self, columns: Sequence[pa.Array], found: Sequence[Any]) -> list[Any]:
        """A result for each row, of vectors and errors of its texts; an error for all where there is one."""
        given = iter(found)
        rows: list[list[Any]] = [[None] * len(columns) for _ in range(len(columns[0]))]
        for place, column in enumerate(columns):
            for row, is_there in zip(rows, column.is_valid().to_pylist(), strict=True):
                if is_there:
                    row[place] = next(given)
        return [
            next((each for each in row if isinstance(each, BaseException)), None)
            or dict(zip(self._vectors, row, strict=True))
            for row in rows
        ]


def _texts_of(column: pa.Array) -> pa.Array:
    """Return the column as one of texts, also where it has nulls alone and no type of its own."""
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _vectors_beside(texts: pa.Array, block: np.ndarray[Any, Any]) -> pa.ListArray:
    """The vectors of a block, one for each text that is not null, with nulls for the others."""
    is_there = texts.is_valid()
    lengths = flags_of(is_there) * block.shape[1]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.ascontiguousarray(block, np.float32).ravel()
    mask = None if not texts.null_count else texts.is_null()
    return pa.ListArray.from_arrays(array_of_numpy(offsets), array_of_numpy(values), mask=mask)


class _FieldPicker(AroundClient):
    """Gives for a row the values of the columns of a schema, out of what a service answers."""

    def __init__(self, client: Callable[[Any], Any], schema: T.StructType) -> None:
        super().__init__(client)
        self._names = schema.names
        self._is_one = len(schema.fields) == 1
        self._takes_objects = self._is_one and isinstance(schema.fields[0].dataType, T.StructType | T.MapType)

    async def __call__(self, row: object) -> Any:
        answer = await self._client(row)
        if answer is None:
            return (None,) * len(self._names)
        if isinstance(answer, Mapping) and not self._takes_objects:
            return tuple([answer.get(name) for name in self._names])
        if self._is_one:
            return (answer,)
        raise TypeError(
            f"the answer is a {type(answer).__name__}, and must be an object with the fields "
            f"{', '.join(self._names)}"
        )


@suggesting_options(Options)
def ask(
    df: Frame,
    *,
    client: Chat,
    images: str | Sequence[str] | Images | None = None,
    into: str | None = None,
    keep: str | Sequence[str] = "*",
    progress: JobProgress | bool | None = None,
    options: Options | None = None,
    **more: Unpack[OptionNames],
) -> Frame:
    """Add columns with a language model's answer for each row.

    df: as for `embed_text`; its columns fill the prompt. A row with a null in one of these gets nulls, and
        no request is sent.
    client: a `Chat`. images: columns of images and PDFs, as for `Chat`, in place of the client's own.
    into: the name of one column, a string or the struct of the answer; None for a column of each of the
        answer's fields.
    keep: as for `async_map`; by default all columns. progress, options and the others: as for `async_map`. A
        ledger stores the texts of replies and identifies a row by the columns of the prompt, unless it has
        `inputs`.

        >>> from dataclasses import dataclass
        >>> from pillarbox.clients import Chat
        >>> from pillarbox.spark import ask
        >>> from pillarbox.testing import serve
        >>> @dataclass
        ... class Review:
        ...     good: bool
        >>> reviews = spark.createDataFrame([("a lovely soup",), (None,)], "text string")
        >>> with serve() as service:
        ...     client = Chat(service.url, "any-model", prompt="Review: {text}", answer=Review)
        ...     rows = ask(reviews, client=client).collect()
        >>> rows[0].asDict().keys(), rows[1].good
        (dict_keys(['text', 'good']), None)

    On the driver. Raises TypeError or ValueError at once for a bad argument, also if a column of the
    prompt is missing; in the task the errors of `async_map`.
    """
    frame = frame_of(df)
    if not isinstance(client, Chat):
        raise TypeError(f"client={shorten(client)}: must be a pillarbox.clients.Chat")
    if images is not None:
        client = dataclasses.replace(client, images=images)
    check_question(client, resolve_options(options, more))
    fields = [check_column("prompt", name, frame.columns) for name in client.prompt_fields]
    for name in client.image_fields:
        check_image_type(name, frame.schema[check_column("images", name, frame.columns)].dataType)
        fields.append(name)
    kind = answer_type(client)
    if into is not None:
        schema = T.StructType([T.StructField(check_text("into", into), kind)])
    elif isinstance(kind, T.StructType):
        schema = kind
    else:
        raise TypeError("into=None: a plain text needs the name of its column, such as into='answer'")
    fn = _Answers(client, kind, as_row=into is None)
    made: Frame = map_client(frame, fn, schema, keep, progress, options, {**more}, fields)
    return made


def check_image_type(name: str, kind: T.DataType) -> None:
    """Raise TypeError for the type of a column that has no images."""
    of = kind.elementType if isinstance(kind, T.ArrayType) else kind
    if not isinstance(of, T.BinaryType | T.StringType):
        raise TypeError(
            f"images: {name!r} is a column of {kind.simpleString()}; must be binary, a string that is an "
            "address, or an array of these"
        )


def check_question(client: Chat, options: Options) -> None:
    """Raise ValueError for options that a question cannot have."""
    if options.batch is not None:
        raise ValueError("batch: a question is asked for each row alone; leave batch out")
    client.check_budget(options.budget)


def answer_type(client: Chat) -> T.DataType:
    """The type of a client's answers: a string, or the struct of its schema. Raises ValueError."""
    schema = client.answer_schema
    return T.StringType() if schema is None else spark_type(schema)


def answer_column(client: Chat, options: Options) -> tuple[Callable[..., Any], T.DataType]:
    """The function of `async_udf` for a client, which takes the columns of its prompt in order, and its type.

    Raises ValueError for options that a question cannot have, and an answer that has no type.
    """
    check_question(client, options)
    kind = answer_type(client)
    return _Answers(client, kind, as_row=False, value_only=True), kind


class _Answers(AroundClient):
    """Gives for a row the columns of its answer. Sent to the workers.

    as_row: a column of each field; otherwise one of all. value_only: the value itself, for `async_udf`.
    """

    def __init__(self, client: Chat, kind: T.DataType, *, as_row: bool, value_only: bool = False) -> None:
        super().__init__(client)
        self._chat = client
        self._read = value_reader(kind)
        self._names = kind.names if isinstance(kind, T.StructType) and as_row else None
        self._value_only = value_only

    async def __call__(self, *row: object) -> Any:
        return await self._client(*row)

    def parse(self, text: str | None) -> Any:
        """The columns of the text of a reply: what a ledger keeps is the text."""
        answer = self._chat.parse(text)
        value = None if answer is None else self._read(self._chat.plain(answer))
        if self._names is None:
            return value if self._value_only else (value,)
        return (None,) * len(self._names) if value is None else tuple([value[name] for name in self._names])
