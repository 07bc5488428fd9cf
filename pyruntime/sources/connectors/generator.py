"""`GeneratorSource`: rows that are made, at a rate and with the latency of a service: for tests, benchmarks.

A plain value; made on the driver, used in any process. Row k of a split is the same whenever it is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

from pillarbox.sources.connectors.options import Options, check_whole
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import (
    Fetched,
    ReaderContext,
    SourceReader,
    SplitReader,
    SplitsAdded,
    SplitsChange,
)
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.task.moments import check_duration, check_moment

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("split", pa.int32()),
        ("event_time", pa.timestamp("us", "UTC")),
        ("value", pa.float64()),
    ]
)
ROW_BYTES = 28
NO_END = 2**63 - 1
MICRO_BATCH_BATCHES = 100
"""Batches of a split in a micro-batch that has no limit, where neither an end nor a rate gives one."""
MIN_WAIT_S, MAX_WAIT_S = 0.001, 0.1
"""Between two looks for rows that come at a rate."""
MIXING_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@dataclass(frozen=True)
class GeneratorSplit(Split):
    """Rows `start` to `stop` of one of the sequences. Positions count its rows from 0."""

    number: int = 0
    began: float = 0.0
    """When row 0 was there, in seconds since 1970."""

    @property
    def rows(self) -> int | None:
        """Exact, where there is an end."""
        return None if self.stop is None else self.stop - self.start

    @property
    def nbytes(self) -> int | None:
        """Of four columns."""
        return None if self.rows is None else ROW_BYTES * self.rows


@dataclass(frozen=True)
class GeneratorSource(Source[GeneratorSplit, int]):
    """Rows `id`, `split`, `event_time` and `value`: a number from 0 to 1 that its id and `seed` decide.

    rows: how many in all; None: without end.
    splits: how many sequences they are in. Split i has the ids i, i + splits, i + 2 * splits and so on.
    rate: rows a second of all splits together, from the start of the run; what is late is made up. None: as
        fast as they are read.
    latency: seconds that each fetch takes, as a service would.
    batch_rows: rows of a batch at most.
    first_event: event time of row 0 of split 0, in seconds since 1970. Each row of a split is `interval`
        seconds after the one before.
    skew: seconds by which split i + 1 is ahead of split i in event time.
    disorder: up to so many seconds a row is earlier than its place says.

    Raises TypeError or ValueError for what is not allowed. Deterministic: only when rows come depends on the
    clock.
    """

    split_type = GeneratorSplit

    rows: int | None = None
    splits: int = 1
    rate: float | None = None
    latency: float = 0.0
    batch_rows: int = 10_000
    first_event: float = 0.0
    interval: float = 1.0
    skew: float = 0.0
    disorder: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("rows", 0), ("splits", 1), ("batch_rows", 1), ("seed", None)):
            if name != "rows" or self.rows is not None:
                check_whole(name, getattr(self, name), least)
        for name in ("latency", "interval", "disorder"):
            check_duration(name, getattr(self, name))
        for name in ("first_event", "skew"):
            check_moment(name, getattr(self, name))
        number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        if self.rate is not None and not (number and 0.0 < self.rate < float("inf")):
            raise ValueError(f"rate={self.rate!r}: must be above 0, in rows a second, or None")

    @property
    def boundedness(self) -> Boundedness:
        """With `rows` it has an end."""
        return Boundedness.CONTINUOUS_UNBOUNDED if self.rows is None else Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext[GeneratorSplit]) -> GeneratorEnumerator:
        """One whose rows begin when it first looks."""
        return self.restore_enumerator(context, 0)

    def restore_enumerator(
        self, context: EnumeratorContext[GeneratorSplit], checkpoint: int
    ) -> GeneratorEnumerator:
        """One that has given out so many splits."""
        return GeneratorEnumerator(context, checkpoint, self)

    def create_reader(self, context: ReaderContext) -> SourceReader[GeneratorSplit]:
        """One that has all its splits at the same time."""
        return FetchingReader(
            context, lambda: GeneratorReader(self, context.schema), threading=Threading.MANY_SPLITS
        )

    def arrow_schema(self) -> pa.Schema:
        """The four columns."""
        return SCHEMA

    def end_now(self, split: GeneratorSplit) -> int:
        """The position up to which a split has rows now; NO_END without an end and a rate."""
        end = NO_END if split.stop is None else split.stop
        if self.rate is None:
            return end
        return min(end, max(0, int((time.time() - split.began) * self.rate / self.splits)))

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> GeneratorSource:
        """The source that options of the same names describe. Its columns are its own."""
        return cls(**Options(options).arguments(GeneratorSource))


class GeneratorEnumerator(SplitEnumerator[GeneratorSplit, int]):
    """Gives out the splits, and says which rows are there. Its checkpoint: how many splits it has given."""

    def __init__(
        self, context: EnumeratorContext[GeneratorSplit], checkpoint: int, source: GeneratorSource
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[GeneratorSplit], int]:
        """The next splits."""
        rows, count = self._source.rows, self._source.splits
        end, now = min(count, checkpoint + most), time.time()
        splits = [
            GeneratorSplit(str(n), 0, None if rows is None else len(range(n, rows, count)), n, now)
            for n in range(checkpoint, end)
        ]
        return splits, end

    def advance(self, split: GeneratorSplit, limit: ReadLimit) -> GeneratorSplit | None:
        """The rows that are there. Without a rate there are a hundred batches, or what the limit says."""
        most = NO_END if limit.rows is None else max(1, limit.rows)
        if limit.nbytes is not None:
            most = min(most, max(1, limit.nbytes // ROW_BYTES))
        stop = min(self._source.end_now(split), split.start + most)
        if stop == NO_END:
            stop = split.start + MICRO_BATCH_BATCHES * self._source.batch_rows
        return None if stop <= split.start and stop != split.stop else split.up_to(stop)

    def position_at(self, split: GeneratorSplit, timestamp: float) -> int:
        """The first row that may be later."""
        source = self._source
        ahead = timestamp - source.first_event - split.number * source.skew
        if ahead < 0.0:
            return 0
        return int(ahead / source.interval) + 1 if source.interval else NO_END


class GeneratorReader(SplitReader[GeneratorSplit]):
    """Makes the rows, split by split in turn. One thread calls all but `wake_up`."""

    def __init__(self, source: GeneratorSource, wanted: pa.Schema | None) -> None:
        self._source = source
        self._schema = source.arrow_schema() if wanted is None else wanted
        unknown = set(self._schema.names) - set(source.arrow_schema().names)
        if unknown:
            raise ValueError(f"schema: has columns {sorted(unknown)}, which a generator does not make")
        self._count = pa.array(range(source.batch_rows), pa.int64())
        # In the order of their turns.
        self._splits: dict[str, GeneratorSplit] = {}
        self._paused: set[str] = set()
        self._woken = threading.Event()

    def handle_splits_changes(self, change: SplitsChange[GeneratorSplit]) -> None:
        """Take splits up, or let go of them."""
        if isinstance(change, SplitsAdded):
            self._splits.update((split.split_id, split) for split in change.splits)
        else:
            for split_id in change.split_ids:
                del self._splits[split_id]
                self._paused.discard(split_id)

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Make nothing of the splits `pause` until they are in `resume`."""
        self._paused.update(pause)
        self._paused.difference_update(resume)

    def wake_up(self) -> None:
        """End the wait of a fetch. Any thread."""
        self._woken.set()

    def fetch(self) -> Sequence[Fetched]:
        """A batch of the next split that has rows; waits for rows, and for the latency."""
        source = self._source
        if source.latency and self._waited(source.latency):
            return ()
        for split_id, split in self._splits.items():
            end = min(source.end_now(split), split.start + source.batch_rows)
            if split_id not in self._paused and (end > split.start or end == split.stop):
                return [self._batch(split, end)]
        self._waited(MAX_WAIT_S if source.rate is None else min(MAX_WAIT_S, max(MIN_WAIT_S, 1 / source.rate)))
        return ()

    def _waited(self, seconds: float) -> bool:
        """Wait; True if woken up."""
        woken = self._woken.wait(seconds)
        self._woken.clear()
        return woken

    def _batch(self, split: GeneratorSplit, end: int) -> Fetched:
        """The rows of `split` up to `end`, and its next turn after all others'."""
        del self._splits[split.split_id]
        finished = end == split.stop
        if not finished:
            self._splits[split.split_id] = split.starting_at(end)
        rows = self._rows(split, split.start, end - split.start)
        return Fetched(split.split_id, rows, end, finished)

    def _rows(self, split: GeneratorSplit, start: int, rows: int) -> pa.RecordBatch:
        source = self._source
        at = pc.add(self._count.slice(0, rows), start)
        ids = pc.add(pc.multiply(at, source.splits), split.number)

        def event_time() -> Any:
            event = pc.multiply(at, source.interval)
            event = pc.add(event, source.first_event + split.number * source.skew)
            if source.disorder:
                event = pc.subtract(event, pc.multiply(_mixed(ids, source.seed + 1), source.disorder))
            return pc.floor(pc.multiply(event, 1e6)).cast(pa.int64()).cast(SCHEMA.field("event_time").type)

        columns: dict[str, Callable[[], pa.Array]] = {
            "id": lambda: ids,
            "split": lambda: pa.nulls(rows, pa.int32()).fill_null(split.number),
            "event_time": event_time,
            "value": lambda: _mixed(ids, source.seed),
        }
        made = [columns[field.name]().cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)


def _mixed(ids: pa.Array, seed: int) -> pa.Array:
    """Numbers from 0 to 1 that look random: the steps of splitmix64 (Steele, Lea, Flood, 2014)."""
    bits = pc.add(ids.cast(pa.uint64()), pa.scalar((seed + 1) * 0x9E3779B97F4A7C15 % 2**64, pa.uint64()))
    for shift, factor in MIXING_STEPS:
        bits = pc.bit_wise_xor(bits, pc.shift_right(bits, pa.scalar(shift, pa.uint64())))
        bits = pc.multiply(bits, pa.scalar(factor, pa.uint64()))
    bits = pc.shift_right(bits, pa.scalar(11, pa.uint64()))
    return pc.multiply(bits.cast(pa.float64(), safe=False), 2.0**-53)
