"""`SimpleSource`: a source from two methods, `list_splits` and `read`. Everything else has a default.

For connectors whose splits are few (their names are the checkpoint) and whose reading is a loop: pages of a
service, ranges of a table. Others derive `Source`, `SplitEnumerator` and `SplitReader` instead.
"""

# Why `read` is a generator. A split reader has to end a `fetch` when it is woken, go on where it stood, and
# close what it has open when it is read no further: as a loop of a class that is a state machine over four
# methods. A generator stands where it yielded; None in between is the turn that a wake-up needs, and closing
# it runs its `finally`. What it cannot do is stop in the middle of a blocking call, which is why `read`
# should block for seconds at most.
#
# Why the checkpoint is the names of all splits. A count, or the highest name, would be smaller, and wrong for
# a source whose splits come in no order. Sources with very many write an enumerator of their own, as the
# files' does.

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import Fetched, ReaderContext, Records, SplitReader, SplitsAdded
from pillarbox.sources.source import Boundedness, Source, read_options
from pillarbox.sources.split import OffsetSplit, Split

if TYPE_CHECKING:
    import pyarrow as pa

S = TypeVar("S", bound=Split)

Yielded = tuple[Records, Any] | Fetched | None


class SimpleSource(Source[S, Any]):
    """Source that lists its splits and reads them in a loop. Derive a frozen dataclass and write two methods.

        >>> from dataclasses import dataclass
        >>> from pillarbox.sources import SimpleSource
        >>> from pillarbox.sources.split import OffsetSplit
        >>> from pillarbox.testing import SourceHarness
        >>> @dataclass(frozen=True)
        ... class Squares(SimpleSource):
        ...     most: int = 4
        ...     schema = (("square", "int64"),)
        ...     def list_splits(self):
        ...         return [OffsetSplit("all", 0, self.most)]
        ...     def read(self, split):
        ...         for number in range(split.start, split.stop):
        ...             yield [(number * number,)], number + 1
        >>> with SourceHarness(Squares()) as harness:
        ...     harness.read_all()
        [(0,), (1,), (4,), (9,)]

    Its fields are its options: `from_options` accepts those of type str, int, float and bool. It is bounded
    unless it has a `discovery_interval`, in seconds. `list_splits` runs on the driver, `read` on a thread of
    the task. Their errors end the job.
    """

    split_type: type[Any] = OffsetSplit
    schema: ClassVar[Iterable[tuple[str, Any]] | pa.Schema]
    """The columns: `(("id", "int64"), ("text", "string"))`, or a `pyarrow.Schema`."""
    discovery_interval: float | None = None
    """Seconds between two looks for new splits; None: the source has the splits that it lists first."""
    poll_interval: float = 1.0
    """Seconds until a split without an end is read on after `read` has come to what is there."""

    @abstractmethod
    def list_splits(self) -> Iterable[S]:
        """Return all splits that exist now. Called on the driver, repeatedly; known ones are ignored."""

    @abstractmethod
    def read(self, split: S) -> Iterator[Yielded]:
        """Yield batches of the rows from `split.start` to `split.stop`, each with the position after it.

        Ends at `stop`, or, if that is None, at the end of the present rows: a split without an end is read
        later from its position. A generator, closed when it is read no further; on a fetcher's
        thread. It should block for seconds at most: for longer waits it yields None from time to time.
        If it knows event time it yields a `Fetched`.
        """

    def end(self, split: S) -> Any:
        """Return the position after the present rows of a split without a `stop`. Micro-batches need it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `end`, so split {split.split_id!r}, which has no stop, cannot be "
            "cut into micro-batches"
        )

    @property
    def boundedness(self) -> Boundedness:
        """Without a `discovery_interval` it has an end."""
        return Boundedness.BOUNDED if self.discovery_interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[S], checkpoint: Any = ()
    ) -> SplitEnumerator[S, Any]:
        """One that lists the splits, and knows those with the names of `checkpoint`."""
        return ListingEnumerator(context, [*checkpoint], self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[S]:
        """One split at a time; where splits have no end, each on a thread of its own."""
        if self.boundedness is Boundedness.BOUNDED:
            return FetchingReader(context, partial(LoopReader, self, context.schema, self.read))
        read_on = partial(LoopReader, self, context.schema, self.read, self.poll_interval)
        return FetchingReader(context, read_on, threading=Threading.SPLIT_PER_THREAD)

    def arrow_schema(self) -> pa.Schema:
        """The columns that `schema` names."""
        import pyarrow as pa

        if not hasattr(self, "schema"):
            return super().arrow_schema()
        return pa.schema([*self.schema])

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> Any:
        """The source whose fields these options are. Its columns are its own. Raises ValueError."""
        if not is_dataclass(cls):
            return super().from_options(options, schema)
        return cls(**read_options(cls, options))


class ListingEnumerator(SplitEnumerator[S, Any]):
    """Knows the names of the splits that were listed."""

    def __init__(self, context: EnumeratorContext[S], checkpoint: object, source: SimpleSource[S]) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self.discovery_interval = source.discovery_interval

    def discover(self, checkpoint: Any, most: int) -> tuple[Sequence[S], Any]:
        """Those that are listed and not known."""
        known = set(checkpoint)
        new = [split for split in self._source.list_splits() if split.split_id not in known][:most]
        return new, [*checkpoint, *(split.split_id for split in new)]

    def advance(self, split: S, limit: ReadLimit) -> S | None:
        """All of a split that is there; where positions are numbers, as many as the limit says."""
        numbered = isinstance(split, OffsetSplit)
        if limit.rows is not None and split.rows is None and not numbered:
            raise ValueError(f"max_rows: {split!r} does not say how many rows it has")
        if limit.nbytes is not None and split.nbytes is None:
            raise ValueError(f"max_bytes: {split!r} does not say how many bytes it has")
        stop = self._source.end(split) if split.stop is None else split.stop
        if numbered and limit.rows is not None:
            stop = min(stop, split.start + max(1, limit.rows))
        # An empty range of one that goes on is not worth a task; of one with an end it says that this is
        # reached. An end that has gone back, as a replica's may, gives no row a second time.
        if split.stop is None and (stop <= split.start if numbered else stop == split.start):
            return None
        return split.up_to(stop)


class LoopReader(SplitReader[S]):
    """Reads one split at a time with a generator.

    source: has the columns of its rows. wanted: those that are asked for. read: makes the generator of one.
    poll_interval: seconds until a split that has no `stop` is read on; None: it ends as its generator does.
    """

    def __init__(
        self,
        source: Source[S, Any],
        wanted: pa.Schema | None,
        read: Callable[[S], Iterator[Yielded]],
        poll_interval: float | None = None,
    ) -> None:
        self._read = read
        self._poll_interval = poll_interval
        self._wanted = wanted
        # Where the columns that are wanted stand in a row; None if all are, in order.
        self._places = None if wanted is None else _places(source.arrow_schema(), wanted)
        self._split: S | None = None
        self._rows: Iterator[Yielded] | None = None
        self._woken = threading.Event()

    def handle_splits_changes(self, change: SplitsAdded[S]) -> None:
        """Go to another split."""
        self._leave()
        self._split = change.splits[0]

    def wake_up(self) -> None:
        """End a wait for what is not there yet. Any thread."""
        self._woken.set()

    def fetch(self) -> Sequence[Fetched]:
        """Return what the generator yields next; at its end the split is finished, or waits for more."""
        split = self._split
        if split is not None:
            if self._rows is None:
                self._rows = iter(self._read(split))
            for found in self._rows:
                if found is None:
                    return []
                fetched = found if isinstance(found, Fetched) else Fetched(split.split_id, *found)
                self._split = split.starting_at(fetched.position)
                return [fetched._replace(records=self._selected(fetched.records))]
            self._rows = None
            if self._poll_interval is None or split.stop is not None:
                self._leave()
                return [Fetched(split.split_id, (), split.start, finished=True)]
        self._woken.wait(self._poll_interval)
        self._woken.clear()
        return []

    def close(self) -> None:
        """Close the generator."""
        self._leave()

    def _leave(self) -> None:
        rows, self._rows, self._split = self._rows, None, None
        if isinstance(rows, Generator):
            rows.close()

    def _selected(self, records: Records) -> Records:
        """The columns that are wanted."""
        if self._wanted is None:
            return records
        if isinstance(records, Sequence):
            places = self._places
            return records if places is None else [tuple([row[at] for at in places]) for row in records]
        from pyarrow.compute import CastOptions

        columns = [
            # Spark's timestamps are microseconds.
            records.column(field.name).cast(options=CastOptions(field.type, allow_time_truncate=True))
            for field in self._wanted
        ]
        return type(records).from_arrays(columns, schema=self._wanted)


def _places(own: pa.Schema, wanted: pa.Schema) -> list[int] | None:
    unknown = [name for name in wanted.names if name not in own.names]
    if unknown:
        raise ValueError(
            f"schema: column {unknown[0]!r} is not one of the source (columns: {', '.join(own.names)})"
        )
    return None if wanted.names == own.names else [own.names.index(name) for name in wanted.names]
