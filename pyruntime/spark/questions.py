"""Columns of answers: questions to a language model for each row of a DataFrame.

`ask` is for the driver; what it sends to the workers runs on the event loop there.
"""

# The answer's type is the schema. It is the one that the model is asked for, so that a column cannot be of
# another; whoever wants another type of Spark casts it. Values go by their JSON, whatever class they had: one
# way for Pydantic, dataclasses and schemas, at some microseconds for an answer that took a second.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pillarbox.aio.errors import shorten
from pillarbox.aio.options import Options, resolve_options
from pillarbox.clients.chat import Chat
from pillarbox.spark.client_columns import AroundClient, check_column, check_max_cost, map_client
from pillarbox.spark.json_schema import spark_type, value_reader
from pillarbox.spark.progress import Progress
from pillarbox.validate import check_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pillarbox.aio.options import OptionNames


def ask(
    df: DataFrame,
    *,
    client: Chat,
    into: str | None = None,
    keep: str | Sequence[str] = "*",
    progress: Progress | None = None,
    options: Options | None = None,
    **more: Unpack[OptionNames],
) -> DataFrame:
    """Add columns of what a language model answers for each row.

        ask(reviews, client=Chat(url, "small", prompt="Is this good or bad? {text}"), into="verdict")
        ask(reviews, client=Chat(url, "small", prompt="Look at {text}", answer=Review))

    df: batch or streaming; its columns fill the prompt. A row with a null in one of these gets nulls, and
    nothing is asked.
    client: a `Chat`. into: the name of one column, a string or the struct of the answer; None for a column
    of each of the answer's fields.
    keep: as for `async_map`, all columns unless given. progress, options and the others: as there. A ledger
    keeps the texts of replies, and knows a row by the columns of the prompt, unless it has `inputs`.

    On the driver. Raises TypeError or ValueError at once for a bad argument, also where a column of the
    prompt is missing; in the task what `async_map` raises.
    """
    if not callable(getattr(df, "mapInArrow", None)):
        raise TypeError(f"df={df!r}: must be a Spark DataFrame, not {type(df).__name__}")
    if not isinstance(client, Chat):
        raise TypeError(f"client={shorten(client)}: must be a pillarbox.clients.Chat")
    check_question(client, resolve_options(options, more))
    fields = [check_column("prompt", name, df) for name in client.fields]
    kind = answer_type(client)
    if into is not None:
        schema = T.StructType([T.StructField(check_text("into", into), kind)])
    elif isinstance(kind, T.StructType):
        schema = kind
    else:
        raise TypeError("into=None: a plain text needs the name of its column, such as into='answer'")
    fn = _Answers(client, kind, as_row=into is None)
    return map_client(df, fn, schema, keep, progress, options, {**more}, fields)


def check_question(client: Chat, options: Options) -> None:
    """Raise ValueError for options that a question cannot have."""
    if options.batch is not None:
        raise ValueError("batch: a question is asked for each row alone; leave batch out")
    check_max_cost(client, options.budget)


def answer_type(client: Chat) -> T.DataType:
    """The type of a client's answers: a string, or the struct of its schema. Raises ValueError."""
    schema = client.answer_schema
    return T.StringType() if schema is None else spark_type(schema)


def answer_column(client: Chat) -> tuple[Callable[..., Any], T.DataType]:
    """The function of `async_udf` for a client, which takes the columns of its prompt in order, and its type.

    Raises ValueError for an answer that has no type.
    """
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

    async def __call__(self, *row: Any) -> Any:
        return await self._client(*row)

    def parse(self, text: str | None) -> Any:
        """The columns of the text of a reply: what a ledger keeps is the text."""
        answer = self._chat.parse(text)
        value = None if answer is None else self._read(self._chat.plain(answer))
        if self._names is None:
            return value if self._value_only else (value,)
        return (None,) * len(self._names) if value is None else tuple([value[name] for name in self._names])
