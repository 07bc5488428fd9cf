"""The columns of services over tables without Spark: pandas, Polars, Arrow, DuckDB, datasets.

`async_map`, `embed_text`, `ask` and `lookup` are those of `pillarbox.spark`: the same line takes a table here
and a DataFrame there; `count_tokens` and `split_text` take a column. With this import, frames and columns of
pandas and Polars have them as methods besides.
Needs the package of PySpark for its types, and neither a session nor Java.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pillarbox.api import async_map
from pillarbox.spark.client_columns import ask, embed_text, lookup
from pillarbox.spark.token_columns import count_tokens, split_text

__all__ = ["add_methods", "ask", "async_map", "count_tokens", "embed_text", "lookup", "split_text"]

NAME = "pillarbox"
"""The name of the methods at frames and columns: `frame.pillarbox.embed_text(...)`."""
TEXT, VECTOR = "text", "vector"


class FrameMethods:
    """Methods of a frame, `frame.pillarbox`: the functions of this module, whose first argument is the frame.

    >>> import pandas
    >>> from pillarbox.frames import add_methods
    >>> add_methods()
    >>> async def call(row):
    ...     return row.text.upper()
    >>> frame = pandas.DataFrame({"text": ["a", "b"]})
    >>> frame.pillarbox.async_map(call, schema="upper string", keep="*")
      text upper
    0    a     A
    1    b     B
    """

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def async_map(self, *arguments: Any, **named: Any) -> Any:
        """See `pillarbox.async_map`."""
        return async_map(self._frame, *arguments, **named)

    def embed_text(self, *arguments: Any, **named: Any) -> Any:
        """See `pillarbox.spark.embed_text`."""
        return embed_text(self._frame, *arguments, **named)

    def ask(self, **named: Any) -> Any:
        """See `pillarbox.spark.ask`."""
        return ask(self._frame, **named)

    def lookup(self, **named: Any) -> Any:
        """See `pillarbox.spark.lookup`."""
        return lookup(self._frame, **named)


class ColumnMethods:
    """Methods of a column of texts, `column.pillarbox`.

    >>> import pandas
    >>> from pillarbox.clients import Embeddings
    >>> from pillarbox.frames import add_methods
    >>> add_methods()
    >>> from pillarbox.testing import serve
    >>> with serve(dimensions=4) as service:
    ...     vectors = pandas.Series(["a letter"]).pillarbox.embed(Embeddings(service.url, "any-model"))
    >>> len(vectors[0])
    4
    """

    def __init__(self, column: Any) -> None:
        self._column = column

    def embed(self, client: Callable[[Any], Any], **named: Any) -> Any:
        """Return the column of the vectors of the texts. named: as for `embed_text`."""
        frame = self._column.rename(TEXT).to_frame()
        return embed_text(frame, TEXT, into=VECTOR, client=client, **named)[VECTOR]

    def count_tokens(self, *arguments: Any, **named: Any) -> Any:
        """See `pillarbox.spark.count_tokens`."""
        return count_tokens(self._column, *arguments, **named)

    def split_text(self, *arguments: Any, **named: Any) -> Any:
        """See `pillarbox.spark.split_text`."""
        return split_text(self._column, *arguments, **named)


def add_methods() -> None:
    """Give the frames and columns of pandas and Polars the methods of this module, where these are imported.

    Done by the import of this module; again for a library that is imported behind it. Any thread.

        >>> import polars
        >>> from pillarbox.frames import add_methods
        >>> add_methods()
        >>> hasattr(polars.DataFrame, "pillarbox")
        True
    """
    if (pandas := sys.modules.get("pandas")) is not None and not hasattr(pandas.DataFrame, NAME):
        pandas.api.extensions.register_dataframe_accessor(NAME)(FrameMethods)
        pandas.api.extensions.register_series_accessor(NAME)(ColumnMethods)
    if (polars := sys.modules.get("polars")) is not None and not hasattr(polars.DataFrame, NAME):
        polars.api.register_dataframe_namespace(NAME)(FrameMethods)
        polars.api.register_series_namespace(NAME)(ColumnMethods)


add_methods()
