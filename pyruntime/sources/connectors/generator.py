"""`GeneratorSource`: rows that are made, at a rate and with the latency of a service: for tests, benchmarks.

A plain value; made on the driver, used in any process. Row k of a split is the same whenever it is read.
"""

# Why numbers are mixed from the id and not drawn from a generator with a seed: row k must be the same whoever
# reads it, from wherever it begins. A generator would have to be run from row 0 to come to row k, so that a
# restart near the end would take as long as the whole; the steps of splitmix64 are a function of k, and Arrow
# does them for a column at a time.
#
# Why a rate counts from the time at which the split was found, which is in the split, and not from when a
# reader began: a restart makes up what is late, as a log would have gone on growing meanwhile.

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit
from pillarbox.sources.simple import ListingEnumerator, SimpleSource
from pillarbox.sources.source import Boundedness, check_options, option
from pillarbox.sources.split import OffsetSplit
from pillarbox.validate import naming_arguments

EVENT_TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema({"id": pa.int64(), "split": pa.int32(), "event_time": EVENT_TIME, "value": pa.float64()})
ROW_BYTES = 28
NO_END = 2**63 - 1
MICRO_BATCH_BATCHES = 100
"""Batches of a split in a micro-batch that has no limit, at most."""
LOOK_INTERVAL_S = 0.02
"""Between two looks for rows that come at a rate, and until a wake-up is heard."""
MIXING_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@dataclass(frozen=True)
class GeneratorSplit(OffsetSplit):
    """Rows `start` to `stop` of one of the sequences. Positions count its rows from 0."""

    number: int = 0
    began: float = 0.0
    """The time at which row 0 was there, in seconds since 1970."""

    @property
    def nbytes(self) -> int | None:
        """Of four columns."""
        return None if self.rows is None else ROW_BYTES * self.rows


@naming_arguments
@dataclass(frozen=True)
class GeneratorSource(SimpleSource[GeneratorSplit]):
    """Rows `id`, `split`, `event_time` and `value`, a number from 0 to 1 that `id` and `seed` determine.

        >>> from pillarbox.sources.connectors.generator import GeneratorSource
        >>> from pillarbox.testing import SourceHarness
        >>> with SourceHarness(GeneratorSource(rows=4, splits=2)) as harness:
        ...     print([(row[0], row[1]) for row in harness.read_all()])
        [(0, 0), (2, 0), (1, 1), (3, 1)]

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
    schema = SCHEMA

    rows: int | None = option(None, at_least=0)
    splits: int = option(1, at_least=1)
    rate: float | None = option(None, above=0.0, unit="number of rows a second")
    latency: float = option(0.0, at_least=0.0)
    batch_rows: int = option(10_000, at_least=1)
    first_event: float = option(0.0)
    interval: float = option(1.0, at_least=0.0)
    skew: float = option(0.0)
    disorder: float = option(0.0, at_least=0.0)
    seed: int = option(0)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def boundedness(self) -> Boundedness:
        """With `rows` it has an end."""
        return Boundedness.CONTINUOUS_UNBOUNDED if self.rows is None else Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: Any = 0) -> GeneratorEnumerator:
        """One that has given out so many splits. Their rows begin when they are found."""
        return GeneratorEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def list_splits(self, start: int = 0, stop: int | None = None) -> list[GeneratorSplit]:
        """Those with the numbers from `start` to `stop`."""
        rows, count, now = self.rows, self.splits, time.time()
        return [
            GeneratorSplit(str(n), 0, None if rows is None else len(range(n, rows, count)), n, now)
            for n in range(count)[start:stop]
        ]

    def end_now(self, split: GeneratorSplit) -> int:
        """The position up to which a split has rows now; NO_END without an end and a rate."""
        stop = NO_END if split.stop is None else split.stop
        seconds = time.time() - split.began
        return stop if self.rate is None else min(stop, max(0, int(seconds * self.rate / self.splits)))

    def read(self, split: GeneratorSplit) -> Iterator[tuple[pa.RecordBatch, int] | None]:
        """The rows, as they come."""
        position = split.start
        while position != split.stop:
            yield from _wait(self.latency)
            end = min(self.end_now(split), position + self.batch_rows)
            if end > position:
                yield self._rows(split, position, end), end
                position = end
            else:
                yield from _wait(LOOK_INTERVAL_S)

    def _rows(self, split: GeneratorSplit, start: int, end: int) -> pa.RecordBatch:
        at = pc.add(_numbers(self.batch_rows).slice(0, end - start), start)
        ids = pc.add(pc.multiply(at, self.splits), split.number)
        seconds = self.event_seconds(split, at)
        if self.disorder:
            seconds = pc.subtract(seconds, pc.multiply(_mixed(ids, self.seed + 1), self.disorder))
        event_time = pc.floor(pc.multiply(seconds, 1e6)).cast(pa.int64()).cast(EVENT_TIME)
        own = pa.repeat(pa.scalar(split.number, pa.int32()), len(at))
        return pa.RecordBatch.from_arrays([ids, own, event_time, _mixed(ids, self.seed)], schema=SCHEMA)

    def event_seconds(self, split: GeneratorSplit, rows: pa.Array) -> pa.Array:
        """The event times of these rows of a split, in seconds since 1970, without disorder."""
        return pc.add(pc.multiply(rows, self.interval), self.first_event + split.number * self.skew)


class GeneratorEnumerator(ListingEnumerator[GeneratorSplit]):
    """Gives out the splits, and says which rows are there. Its checkpoint: how many splits it has given."""

    _source: GeneratorSource

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[GeneratorSplit], int]:
        """The next splits."""
        found = self._source.list_splits(checkpoint, checkpoint + most)
        return found, checkpoint + len(found)

    def advance(self, split: GeneratorSplit, limit: ReadLimit) -> GeneratorSplit | None:
        """The rows that are there: at most what the limit says, or without one a hundred batches."""
        limits = (limit.rows, limit.nbytes and limit.nbytes // ROW_BYTES)
        default = MICRO_BATCH_BATCHES * self._source.batch_rows
        most = max(1, min((each for each in limits if each is not None), default=default))
        stop = min(self._source.end_now(split), split.start + most)
        # One with an end is given out once more when it is there, so that it is known to be finished.
        return None if stop <= split.start and stop != split.stop else split.up_to(stop)


def _wait(seconds: float) -> Iterator[None]:
    """Wait, and now and then yield None, so that a wake-up is heard."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0.0:
        time.sleep(min(left, LOOK_INTERVAL_S))
        yield None


@lru_cache(maxsize=4)
def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


def _mixed(ids: pa.Array, seed: int) -> pa.Array:
    """Numbers from 0 to 1 that look random: the steps of splitmix64 (Steele, Lea, Flood, 2014)."""
    bits = pc.add(ids.cast(pa.uint64()), pa.scalar((seed + 1) * 0x9E3779B97F4A7C15 % 2**64, pa.uint64()))
    for shift, factor in MIXING_STEPS:
        bits = pc.bit_wise_xor(bits, pc.shift_right(bits, pa.scalar(shift, pa.uint64())))
        bits = pc.multiply(bits, pa.scalar(factor, pa.uint64()))
    bits = pc.shift_right(bits, pa.scalar(11, pa.uint64()))
    return pc.multiply(bits.cast(pa.float64(), safe=False), 2.0**-53)
