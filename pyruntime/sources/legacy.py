"""Old functions and formats as a `Source`: functions for `StreamTask`, formats for Spark's batches, too.

*A function* is a split for each of its instances. A position is a state of the function: a reader takes the
rows together with it, under the checkpoint lock.

*A format* has its own splits. A position is how many records of the split were read: after a restart so many
are read and dropped.

Both are read by generators, as a `SimpleSource` is.
"""

# A function's state is taken together with the rows, under its lock, each time that rows are taken
# (`take_rows`), and not when a checkpoint is asked for, as Flink does. There the barrier follows the rows
# through the job; here the task may be anywhere behind them, and needs the state that belongs to the rows
# that it has. The price is a `snapshot_state` for each take instead of for each checkpoint: it should be
# cheap, as a position is.
#
# A format has no positions at all, only an order: after a restart its records are read again and counted.
# That is wrong for a format that does not give the same records twice; such a one cannot be restarted by
# anybody.
#
# Why threads of functions are daemons, and are left alone when they do not end: Python cannot stop a thread,
# and a job that has failed must not hang on a loop that ignores its `cancel`. All it emits raises.

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import Fetched, ReaderContext
from pillarbox.sources.serializer import ExactJsonSerializer, Serializer
from pillarbox.sources.simple import LoopReader, Yielded
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.task import legacy
from pillarbox.validate import check_callable, check_duration, check_positive_int

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pillarbox")

MAX_RECORDS_AHEAD = 1_000
CANCEL_TIMEOUT_S = 5.0
MAX_FETCH_RECORDS = 1_000


@dataclass(eq=False, repr=False)
class _LegacySource(Source[Any, Any]):
    """Makes old code, and writes its states or splits, with the version of what has written them."""

    make: Callable[[], Any]
    _: KW_ONLY
    serializer: Serializer[Any] = field(default_factory=ExactJsonSerializer)

    boundedness = Boundedness.BOUNDED

    def __post_init__(self) -> None:
        check_callable("make", self.make)
        if not all(hasattr(self.serializer, name) for name in ("version", "to_json", "from_json")):
            raise TypeError(
                f"serializer={self.serializer!r}: must be a Serializer, such as DataclassSerializer(State)"
            )

    def write(self, value: Any) -> list[Any]:
        """A state or a split, as JSON can hold it."""
        return [self.serializer.version, self.serializer.to_json(value)]

    def read(self, written: Any) -> Any:
        """Read what `write` has written. Raises ValueError for what it has not."""
        if not (isinstance(written, list) and len(written) == 2):
            raise ValueError(f"written={written!r:.200}: must be a version, and what it has written")
        return self.serializer.from_json(*written)


# -- functions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionSplit(Split):
    """The rows that one instance of a function emits. A position is its state; None is the beginning."""

    subtask: int = 0


@dataclass(eq=False, repr=False, kw_only=True)
class FromSourceFunction(_LegacySource):
    """The source that runs a `SourceFunction`. For tasks.

    make: makes the function, one for each run of it. A restart goes on from a state of it, and must then get
        the same rows. One without both `snapshot_state` and `restore_state` starts over after a restart.
    bounded: True if the function comes to an end of its own.
    parallelism: how many instances run, each a split; more than 1 for a `ParallelSourceFunction` only.
    serializer: how states are written; by default they are what JSON can hold.
    capacity: records that a function may be ahead. grace: seconds that it has to end after its `cancel`.

    The function's watermarks, or if it has none the times of `collect_with_timestamp`, are its event time.
    Calls `make()` once, at once. Raises TypeError or ValueError for a bad argument.
    """

    bounded: bool = False
    parallelism: int = 1
    capacity: int = MAX_RECORDS_AHEAD
    grace: float = CANCEL_TIMEOUT_S

    split_type = FunctionSplit

    def __post_init__(self) -> None:
        super().__post_init__()
        function = self.make()
        self.name = name = type(function).__qualname__
        if not isinstance(function, legacy.SourceFunction):
            raise TypeError(f"make={self.make!r}: must make a SourceFunction, not {name}")
        parallel = isinstance(function, legacy.ParallelSourceFunction)
        if check_positive_int("parallelism", self.parallelism) > 1 and not parallel:
            what = f"{name} is not a ParallelSourceFunction"
            raise ValueError(f"parallelism={self.parallelism}: must be 1, {what}")
        check_positive_int("capacity", self.capacity)
        check_duration("grace", self.grace)
        if not self.bounded:
            self.boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: int = 0) -> _FunctionEnumerator:
        """The enumerator of a run in which so many splits were found."""
        return _FunctionEnumerator(context, checkpoint, self.parallelism)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[FunctionSplit]:
        """Runs the functions, each with a thread that takes its rows."""
        make_reader = partial(_FunctionReader, self)
        return FetchingReader(context, make_reader, threading=Threading.SPLIT_PER_THREAD, grace=self.grace)


class FunctionRun(legacy.SourceContext):
    """Runs a function in a daemon thread, from where a split starts, until its end or `close`.

    It is the function's context. Confined to one thread, which takes the rows, but for `wake_up` and what the
    function calls.

    position, timestamp, idle, ended: behind what was taken. The timestamp is the latest watermark, without
    any the latest event time.
    """

    def __init__(self, source: FromSourceFunction, split: FunctionSplit) -> None:
        self._source = source
        self._function = function = source.make()
        if isinstance(function, legacy.ParallelSourceFunction):
            function.runtime_context = legacy.RuntimeContext(source.name, split.subtask, source.parallelism)
        if split.start is not None and isinstance(function, legacy.CheckpointedSource):
            function.restore_state(source.read(split.start))
        super().__init__(source.capacity, atomic_sections=function.atomic_sections, name=source.name)
        self.position = split.start
        self.timestamp: float | None = None
        self.idle = self.ended = False
        self._error: BaseException | None = None
        name = f"pillarbox-source {source.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def take_rows(self) -> list[Any]:
        """The rows emitted since the last call. Waits for the lock alone.

        Raises what the function has raised, instead of them: behind that the state is not known.
        """
        function = self._function
        with self._lock:
            with self._changed:
                records, self._records = self._records, []
                self._has_news, self.ended = False, self._ended
                self._changed.notify_all()
            if self._error is not None:
                raise self._error
            self.timestamp = self._latest if self._watermark is None else self._watermark
            self.idle = self.is_idle
            if records and isinstance(function, legacy.CheckpointedSource):
                self.position = self._source.write(function.snapshot_state())
        return records

    def wait_for_news(self, seconds: float | None = None) -> bool:
        """Wait for an element, the end or a wake-up, at most so long; False: nothing of that."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_news or self._ended, seconds)

    def wake_up(self) -> None:
        """End a wait; the next one, if there is none. Any thread."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def close(self) -> bool:
        """Cancel the function, wait for its end, and return True if it has ended. Idempotent.

        One that has not ended in time is logged by its name and left alone: all it emits raises
        `SourceCancelled` in it. What its `cancel` raises is logged.
        """
        thread, grace = self._thread, self._source.grace
        with self._changed:
            first = not (self._stop.is_set() or self._ended)
            self._stop.set()
            self._changed.notify_all()
        if first:
            try:
                self._function.cancel()
            except Exception:
                log.exception("the cancel of source %s raised", self._name)
            thread.join(min(grace, threading.TIMEOUT_MAX))
            if thread.is_alive():
                text = (
                    "source %s has not ended within %g s of its cancel; it is left alone and can emit nothing"
                )
                log.warning(text, self._name, grace)
        return not thread.is_alive()

    def _run(self) -> None:
        try:
            self._function.run(self)
        except BaseException as error:
            if not self.is_cancelled:
                self._error = error
            elif not isinstance(error, legacy.SourceCancelled):
                log.info("source %s ended with an error after its cancel", self._name, exc_info=error)
        if self._lock.revoke(threading.get_ident()):
            log.warning("source %s ended without giving the checkpoint lock back", self._name)
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class _FunctionEnumerator(SplitEnumerator[FunctionSplit, int]):
    """Finds a split for each instance; knows how many it has found."""

    def __init__(self, context: EnumeratorContext[Any], checkpoint: int, parallelism: int) -> None:
        super().__init__(context, checkpoint)
        self._parallelism = parallelism

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[FunctionSplit], int]:
        numbers = range(self._parallelism)[checkpoint : checkpoint + most]
        return [FunctionSplit(f"function-{n}", subtask=n) for n in numbers], checkpoint + len(numbers)


class _FunctionReader(LoopReader[FunctionSplit]):
    """Gives what a function emits, with its state behind that."""

    def __init__(self, source: FromSourceFunction) -> None:
        super().__init__(source, None, self._rows_of)
        self._source = source
        self._run: FunctionRun | None = None

    def wake_up(self) -> None:
        # In this order: a run that begins meanwhile looks whether it was woken.
        super().wake_up()
        if (run := self._run) is not None:
            run.wake_up()

    def _rows_of(self, split: FunctionSplit) -> Iterator[Yielded]:
        with closing(FunctionRun(self._source, split)) as self._run:
            run = self._run
            if self._woken.is_set():
                run.wake_up()
            told: tuple[float | None, bool] = (None, False)
            while not run.ended:
                run.wait_for_news()
                rows = run.take_rows()
                news = run.timestamp, run.idle
                if rows or news != told:
                    told = news
                    yield Fetched(split.split_id, rows, run.position, False, run.timestamp, run.idle)
                else:
                    yield None


# -- formats ----------------------------------------------------------------------------------------


ALL_RECORDS = 2**63 - 1
"""The `stop` of a split of a format, which alone knows how many records there are."""


@dataclass(frozen=True)
class FormatSplit(Split):
    """A split of a format; `start` is how many records were read. subtask: its only reader, if replicated."""

    stop: Any = ALL_RECORDS
    payload: Any = None
    subtask: int | None = None
    rows: int | None = None
    nbytes: int | None = None
    hosts: Any = ()


@dataclass(eq=False, repr=False, kw_only=True)
class FromInputFormat(_LegacySource):
    """The bounded source that reads the splits of an `InputFormat`.

    make: makes the format, one for each who uses it; it must pickle where the source travels. With a
        `ReplicatingInputFormat` each reader reads all splits, in tasks; so it is refused with a schema.
    parameters: for `configure`. min_splits: for `create_input_splits`, called once, on the discovery thread.
    schema: the columns of its records, for Spark. A record that is not a tuple is then a row of one column.
    serializer: as for `FromSourceFunction`, for splits. batch: records of one fetch.

    Splits go to who asks, one near to them if there is one, or as the format's `choose` says. Calls `make()`
    once, at once. Raises TypeError or ValueError for a bad argument.
    """

    schema: pa.Schema | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    min_splits: int = 1
    batch: int = MAX_FETCH_RECORDS

    split_type: type[Any] = field(default=FormatSplit, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        made = self.make()
        self.replicated = isinstance(made, legacy.ReplicatingInputFormat)
        if not (self.replicated or isinstance(made, legacy.InputFormat)):
            raise TypeError(f"make={self.make!r}: must make an InputFormat, not {type(made).__name__}")
        if self.replicated and self.schema is not None:
            what = (
                f"make={self.make!r}: makes a ReplicatingInputFormat, for tasks, and has a schema, for Spark"
            )
            raise ValueError(f"{what}, whose tasks share all rows: give the format within, or no schema")
        check_positive_int("min_splits", self.min_splits)
        check_positive_int("batch", self.batch)

    def make_configured(self) -> legacy.InputFormat[Any, Any]:
        """A format that was told the parameters."""
        made = self.make()
        format = made.format if isinstance(made, legacy.ReplicatingInputFormat) else made
        format.configure(self.parameters)
        return format

    def arrow_schema(self) -> pa.Schema:
        """The columns that were given. Raises TypeError if none were."""
        return super().arrow_schema() if self.schema is None else self.schema

    def row_of(self, record: Any) -> Any:
        """The record itself; where there is a schema, one that is not a tuple is a row of one column."""
        return record if self.schema is None or isinstance(record, tuple) else (record,)

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: Any = None) -> Any:
        """The enumerator of a run; `checkpoint` is the splits that were not found yet, None at first."""
        return _FormatEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[Any]:
        """Reads one split after the other."""
        return FetchingReader(context, partial(_FormatReader, self, context))


class _FormatEnumerator(SplitEnumerator[FormatSplit, "list[Any] | None"]):
    """Asks the format for its splits, once. Confined as `SplitEnumerator` is."""

    def __init__(self, context: EnumeratorContext[Any], checkpoint: Any, source: FromInputFormat) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self._format = source.make_configured()

    def discover(self, checkpoint: list[Any] | None, most: int) -> tuple[list[FormatSplit], list[Any]]:
        serializer = self._source.split_serializer
        if checkpoint is None:
            checkpoint = [serializer.to_json(split) for split in self._create()]
        return [serializer.from_json(1, each) for each in checkpoint[:most]], checkpoint[most:]

    def _create(self) -> Iterator[FormatSplit]:
        # The enumerator's own is asked by another thread, to choose.
        source, format = self._source, self._source.make_configured()
        total = format.statistics() or legacy.InputStatistics()
        created = format.create_input_splits(source.min_splits)
        nbytes, rows = (None if each is None else round(each / max(1, len(created))) for each in total)
        for number, split in enumerate(created):
            written, hosts = source.write(split), [*getattr(split, "hosts", ())]
            one = FormatSplit(str(number), payload=written, rows=rows, nbytes=nbytes, hosts=hosts)
            if source.replicated:
                readers = range(self.context.parallelism)
                yield from (replace(one, split_id=f"{number}@{each}", subtask=each) for each in readers)
            else:
                yield one

    def assigned_to(self, split: FormatSplit) -> int | None:
        return split.subtask

    def choose(self, pending: Sequence[FormatSplit], reader: ReaderInfo) -> int:
        if type(self._format).choose is not legacy.InputFormat.choose:
            own = [self._source.read(split.payload) for split in pending]
            chosen = self._format.choose(own, reader.subtask)
            if chosen is not None:
                return own.index(chosen)
        return super().choose(pending, reader)


class _FormatReader(LoopReader[Any]):
    """Reads the splits of a format, one after the other."""

    def __init__(self, source: FromInputFormat, context: ReaderContext) -> None:
        super().__init__(source, context.schema, self._rows_of)
        self._source = source
        self._format = format = source.make_configured()
        self._is_open = self._is_rich_open = False
        # What is to be closed with the reader.
        self._ends = ExitStack()
        if isinstance(format, legacy.RichInputFormat):
            # Nobody knows how many readers there will be.
            format.runtime_context = legacy.RuntimeContext("source", context.subtask, context.subtask + 1)

    def close(self) -> None:
        with self._ends:
            super().close()

    def _rows_of(self, split: Any) -> Iterator[Yielded]:
        format, rows, read = self._format, list[Any](), 0
        if isinstance(format, legacy.RichInputFormat) and not self._is_rich_open:
            self._is_rich_open = True
            self._ends.callback(format.close_input_format)
            format.open_input_format()
        self._is_open = True
        format.open(self._source.read(split.payload))
        while not format.reached_end():
            record = format.next_record()
            if record is not None:
                read += 1
                if read > (split.start or 0):
                    rows.append(self._source.row_of(record))
            if len(rows) >= self._source.batch or self._woken.is_set():
                self._woken.clear()
                yield (rows, read) if rows else None
                rows = []
        if rows:
            yield rows, read

    def _leave(self) -> None:
        super()._leave()
        if self._is_open:
            self._is_open = False
            self._format.close()
