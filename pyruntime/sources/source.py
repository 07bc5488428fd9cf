"""A source: what makes the enumerator and the readers of one input. The same for batch, stream and task.

The idea is Flink's `Source` (FLIP-27, "Refactor Source Interface").
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pillarbox.sources.enumerator import EnumeratorContext, SplitEnumerator
from pillarbox.sources.reader import ReaderContext, SourceReader
from pillarbox.sources.serializer import DataclassSerializer, JsonSerializer, Serializer
from pillarbox.sources.split import Split

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=Split)
C = TypeVar("C")


class Boundedness(enum.Enum):
    """The two kinds of sources: with an end, and without."""

    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "continuous unbounded"


class Source(ABC, Generic[S, C]):
    """An input. A plain value that pickles: it travels to the driver's planner and to every task.

    *Where it runs.* `spark.read.format("pillarbox")` and `spark.readStream.format("pillarbox")`, by options
    or by a name that `pillarbox.spark.register_source` gives it; and, without Spark, as the input of a
    `pillarbox.task.StreamTask`.

    *What it must have.* A class of splits (`split_type`), an enumerator, a reader; `arrow_schema` for Spark.
    Its text (`repr`) shows no secret.
    """

    split_type: type[S]
    """The class of its splits, a frozen dataclass."""

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """`BOUNDED` if it has an end. Spark's batch reads take a bounded one only."""

    @abstractmethod
    def create_enumerator(self, context: EnumeratorContext[S]) -> SplitEnumerator[S, C]:
        """The enumerator of a new run."""

    @abstractmethod
    def restore_enumerator(self, context: EnumeratorContext[S], checkpoint: C) -> SplitEnumerator[S, C]:
        """The enumerator of a run that goes on from `checkpoint`, a `snapshot` of an earlier one."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader[S]:
        """A reader, in a task. Most return a `FetchingReader`."""

    @property
    def split_serializer(self) -> Serializer[S]:
        """The serializer by which its splits are written down."""
        return DataclassSerializer(self.split_type)

    @property
    def checkpoint_serializer(self) -> Serializer[C]:
        """The serializer of what its enumerator knows. Here for what JSON can hold."""
        return JsonSerializer()

    def arrow_schema(self) -> pa.Schema:
        """The columns of its rows. On the driver; may ask the service. Raises TypeError here."""
        raise TypeError(f"{type(self).__name__} has no schema, which Spark needs: it must have arrow_schema")

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> Source[Any, Any]:
        """The source that Spark's options describe; `schema` is the one that the user gave, if any.

        The names of options are in lower case, as Spark gives them. Raises ValueError, which names the
        option, for one that is missing, unknown or bad.
        """
        raise TypeError(f"{cls.__name__} cannot be made from options: it must have from_options")
