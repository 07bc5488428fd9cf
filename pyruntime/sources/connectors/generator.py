"""`GeneratorSource`: rows that are made, at a rate and with the latency of a service: for tests, benchmarks.

A plain value; made on the driver, used in any process. Row k of a split is the same whenever it is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.sources.connectors.options import Options
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

if TYPE_CHECKING:
    import pyarrow as pa

TIMES = ("latency", "first_event", "interval", "skew", "disorder")
STEP = 0.1
"""Seconds between two batches at a low rate."""
MIXED = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


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
        return None if self.rows is None else 28 * self.rows


@dataclass(frozen=True)
class GeneratorSource(Source[GeneratorSplit, Any]):
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

    Raises ValueError for what is not allowed. Deterministic: only when rows come depends on the clock.
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
        for name, least in (("rows", 0), ("splits", 1), ("batch_rows", 1)):
            value = getattr(self, name)
            if name == "rows" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: must be a whole number of at least {least}")
        for name in ("latency", "interval", "disorder"):
            check_duration(name, getattr(self, name))
        for name in ("first_event", "skew"):
            check_moment(name, getattr(self, name))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed={self.seed!r}: must be a whole number")
        number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        if self.rate is not None and not (number and 0.0 < self.rate < float("inf")):
            raise ValueError(f"rate={self.rate!r}: must be above 0, in rows a second, or None")

    @property
    def boundedness(self) -> Boundedness:
        """With `rows` it has an end."""
        return Boundedness.CONTINUOUS_UNBOUNDED if self.rows is None else Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext[GeneratorSplit]) -> GeneratorEnumerator:
        """One whose rows begin when it first looks."""
        return GeneratorEnumerator(context, 0, self)

    def restore_enumerator(
        self, context: EnumeratorContext[GeneratorSplit], checkpoint: Any
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
        import pyarrow as pa

        return pa.schema(
            [
                ("id", pa.int64()),
                ("split", pa.int32()),
                ("event_time", pa.timestamp("us", "UTC")),
                ("value", pa.float64()),
            ]
        )

    def there(self, split: GeneratorSplit, now: float) -> int | None:
        """How many rows of a split there are at a time; None: all."""
        if self.rate is None:
            return None
        return max(0, int((now - split.began) * self.rate / self.splits))

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None) -> GeneratorSource:
        """The source that options of the same names describe. Its columns are its own."""
        found = Options(options)
        rows = found.number("rows", int, 0)
        rate = found.number("rate", float, 0.0)
        counts = {
            name: found.number(name, int, getattr(cls, name)) for name in ("splits", "batch_rows", "seed")
        }
        times = {name: found.number(name, float, getattr(cls, name)) for name in TIMES}
        found.check_all_read()
        return cls(
            rows=rows if "rows" in options else None,
            rate=rate if "rate" in options else None,
            **counts,
            **times,
        )


class GeneratorEnumerator(SplitEnumerator[GeneratorSplit, Any]):
    """Gives out the splits, and says which rows are there. Its checkpoint: how many splits it has given."""

    def __init__(
        self, context: EnumeratorContext[GeneratorSplit], checkpoint: Any, source: GeneratorSource
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source

    def discover(self, checkpoint: Any, most: int) -> tuple[Sequence[GeneratorSplit], Any]:
        """The next splits."""
        source = self._source
        end = min(source.splits, checkpoint + most)
        now = time.time()
        return [
            GeneratorSplit(str(number), 0, self._rows(number), number, now)
            for number in range(checkpoint, end)
        ], end

    def advance(self, split: GeneratorSplit, limit: ReadLimit) -> GeneratorSplit | None:
        """The rows that are there. Without a rate there are a hundred batches, or what the limit says."""
        source = self._source
        there = source.there(split, time.time())
        ends = [] if there is None else [there]
        if split.stop is not None:
            ends.append(split.stop)
        if limit.rows is not None:
            ends.append(split.start + max(1, limit.rows))
        if limit.nbytes is not None:
            ends.append(split.start + max(1, limit.nbytes // 28))
        stop = min(ends, default=split.start + 100 * source.batch_rows)
        if stop <= split.start and stop != split.stop:
            return None
        return split.up_to(stop)

    def position_at(self, split: GeneratorSplit, timestamp: float) -> int:
        """The first row that may be later."""
        source = self._source
        ahead = timestamp - source.first_event - split.number * source.skew
        if ahead < 0.0:
            return 0
        if source.interval == 0.0:
            return 2**63 - 1
        return int(ahead / source.interval) + 1

    def _rows(self, number: int) -> int | None:
        source = self._source
        if source.rows is None:
            return None
        return max(0, -(-(source.rows - number) // source.splits))


class GeneratorReader(SplitReader[GeneratorSplit]):
    """Makes the rows, split by split in turn. One thread calls all but `wake_up`."""

    def __init__(self, source: GeneratorSource, wanted: pa.Schema | None) -> None:
        import pyarrow as pa

        self._source = source
        self._schema = source.arrow_schema() if wanted is None else wanted
        unknown = set(self._schema.names) - set(source.arrow_schema().names)
        if unknown:
            raise ValueError(f"schema: has columns {sorted(unknown)}, which a generator does not make")
        self._count = pa.array(range(source.batch_rows), pa.int64())
        self._splits: dict[str, GeneratorSplit] = {}
        self._paused: set[str] = set()
        self._turn: Iterator[str] = iter(())
        self._woken = threading.Event()

    def handle_splits_changes(self, change: SplitsChange[GeneratorSplit]) -> None:
        """Take splits up, or let go of them."""
        if isinstance(change, SplitsAdded):
            self._splits.update((split.split_id, split) for split in change.splits)
        else:
            for split_id in change.split_ids:
                del self._splits[split_id]
                self._paused.discard(split_id)

    def pause_or_resume_splits(self, pause: Any, resume: Any) -> None:
        """Make nothing of the splits `pause` until they are in `resume`."""
        self._paused.update(pause)
        self._paused.difference_update(resume)

    def wake_up(self) -> None:
        """End the wait of a fetch. Any thread."""
        self._woken.set()

    def fetch(self) -> Sequence[Fetched]:
        """A batch of the next split that has rows; waits for rows, and for the latency."""
        if self._source.latency and self._woken.wait(self._source.latency):
            self._woken.clear()
            return ()
        for _ in range(len(self._splits)):
            split = self._next()
            if split is None:
                break
            fetched = self._batch(split)
            if fetched is not None:
                return (fetched,)
        if self._woken.wait(STEP if self._source.rate is None else self._pause()):
            self._woken.clear()
        return ()

    def _next(self) -> GeneratorSplit | None:
        """The splits in turn, but for those that are paused."""
        for _ in range(2):
            for split_id in self._turn:
                if split_id in self._splits and split_id not in self._paused:
                    return self._splits[split_id]
            self._turn = iter(list(self._splits))
        return None

    def _pause(self) -> float:
        """Seconds until a row of some split is there."""
        source, now = self._source, time.time()
        assert source.rate is not None
        each = source.splits / source.rate
        running = [split for split_id, split in self._splits.items() if split_id not in self._paused]
        waits = [split.began + (split.start + 1) * each - now for split in running]
        return max(0.001, min(STEP, min(waits, default=STEP)))

    def _batch(self, split: GeneratorSplit) -> Fetched | None:
        start = split.start
        there = self._source.there(split, time.time())
        end = start + self._source.batch_rows
        if there is not None:
            end = min(end, there)
        if split.stop is not None:
            end = min(end, split.stop)
        finished = split.stop is not None and max(start, end) >= split.stop
        if end <= start and not finished:
            return None
        if finished:
            del self._splits[split.split_id]
        else:
            self._splits[split.split_id] = split.starting_at(end)
        return Fetched(split.split_id, self._rows(split, start, max(0, end - start)), end, finished)

    def _rows(self, split: GeneratorSplit, start: int, rows: int) -> pa.RecordBatch:
        import pyarrow as pa
        from pyarrow import compute as pc

        source = self._source
        at = pc.add(self._count.slice(0, rows), start)
        ids = pc.add(pc.multiply(at, source.splits), split.number)
        columns: dict[str, Any] = {"id": ids}
        names = self._schema.names
        if "split" in names:
            columns["split"] = pa.nulls(rows, pa.int32()).fill_null(split.number)
        if "value" in names:
            columns["value"] = _mixed(ids, source.seed)
        if "event_time" in names:
            first = source.first_event + split.number * source.skew
            event = pc.add(pc.multiply(at, source.interval), first)
            if source.disorder:
                event = pc.subtract(event, pc.multiply(_mixed(ids, source.seed + 1), source.disorder))
            micros = pc.floor(pc.multiply(event, 1e6)).cast(pa.int64())
            columns["event_time"] = micros.cast(pa.timestamp("us", "UTC"))
        made = [columns[field.name].cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)


def _mixed(ids: pa.Array, seed: int) -> pa.Array:
    """Numbers from 0 to 1 that look random: the steps of splitmix64 (Steele, Lea, Flood, 2014)."""
    import pyarrow as pa
    from pyarrow import compute as pc

    bits = pc.add(ids.cast(pa.uint64()), pa.scalar((seed + 1) * 0x9E3779B97F4A7C15 % 2**64, pa.uint64()))
    for shift, factor in zip((30, 27), MIXED, strict=True):
        bits = pc.bit_wise_xor(bits, pc.shift_right(bits, pa.scalar(shift, pa.uint64())))
        bits = pc.multiply(bits, pa.scalar(factor, pa.uint64()))
    bits = pc.shift_right(bits, pa.scalar(11, pa.uint64()))
    return pc.multiply(bits.cast(pa.float64(), safe=False), 2.0**-53)
