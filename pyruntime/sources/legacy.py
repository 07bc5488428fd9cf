"""Old loops and formats as a `Source`: `SourceFunction`, run on a thread, and `InputFormat`, split by split.

The interfaces are Flink's of these names, which FLIP-27 has replaced. A function is a split for each of its
instances, and a position is a state of it. A format has its own splits, and a position is how many records of
a split were read. Both are read by generators, as a `SimpleSource` is.
"""

# Why no checkpoint takes the function's lock, as Flink's does. There the barrier follows the rows through the
# job; here the task may be anywhere behind them, and needs the state that belongs to the rows that it has. So
# the function's own thread takes its state at the end of each section, and hands it over with the section's
# rows in one step. Nobody waits for a loop that is slow to give its lock up, no lock has to be fair, and the
# state is exact whatever the order of state and record within a section. The price is a `snapshot_state` for
# each section instead of for each checkpoint: it should be cheap, as a position is.
#
# Why threads of functions are daemons, and are left alone when they do not end: Python cannot stop a thread,
# and a job that has failed must not hang on a loop that ignores its `cancel`. All it emits raises.
#
# A format has no positions, only an order: after a restart its records are read again and counted. That is
# wrong for a format that does not give the same records twice; such a one cannot be restarted by anybody.

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import Fetched, ReaderContext
from pillarbox.sources.simple import LoopReader, Yielded
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import JsonSerializer, Serializer, Split
from pillarbox.thread_start import start_thread
from pillarbox.validate import check_callable, check_duration, check_methods, check_moment, check_positive_int

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pillarbox")

MAX_RECORDS_AHEAD = 1_000
CANCEL_TIMEOUT_S = 5.0
MAX_FETCH_RECORDS = 1_000

S = TypeVar("S")
T = TypeVar("T")


class SourceCancelled(BaseException):
    """Raised in a source that was cancelled, where it emits or takes the lock; ends its `run`.

    Not an Exception, so that a source that catches those for each record ends nevertheless.
    """


class SourceFunction(ABC):
    """A source that is one loop. The idea is Flink's `SourceFunction`."""

    @abstractmethod
    def run(self, context: SourceContext) -> None:
        """Emit through `context` until the input ends or `cancel` is called. In the source's thread, once."""

    @abstractmethod
    def cancel(self) -> None:
        """End a wait of `run` outside of its context. Once, by another thread; must not block."""


@dataclass(frozen=True)
class RuntimeContext:
    """The place of one among its parallel instances: a name, its number from 0, of how many."""

    task_name: str = "source"
    subtask: int = 0
    parallelism: int = 1


class ParallelSourceFunction(SourceFunction):
    """A source of which several instances run, each for its share. Flink's `RichParallelSourceFunction`."""

    runtime_context = RuntimeContext()
    """Set before `restore_state` and `run`."""


@runtime_checkable
class CheckpointedSource(Protocol):
    """The methods of a source whose position checkpoints hold."""

    def snapshot_state(self) -> Any:
        """The position after the last record emitted. At the end of a section, under the lock."""

    def restore_state(self, state: Any) -> None:
        """Go to the position that a `snapshot_state` returned. Before `run`."""


def _check_made(make: Callable[[], Any], serializer: Serializer[Any]) -> None:
    check_callable("make", make)
    check_methods("serializer", serializer, "to_json", "from_json")


@dataclass(frozen=True)
class FunctionSplit(Split):
    """The rows that one instance of a function emits. A position is its state; None is the beginning."""

    subtask: int = 0


@dataclass(eq=False, repr=False)
class FromSourceFunction(Source[FunctionSplit, int]):
    """The source that runs a `SourceFunction`. For tasks.

    make: makes the function, one for each run of it. A restart goes on from a state of it, and must then get
        the same rows. One without both `snapshot_state` and `restore_state` starts over after a restart.
    bounded: True if the function comes to an end of its own.
    parallelism: how many instances run, each a split; more than 1 for a `ParallelSourceFunction` only.
    serializer: how states are written; by default they are what JSON can hold.
    capacity: records that a function may be ahead, and that one section may emit.
    grace: seconds that it has to end after its `cancel`.

    The function's watermarks, or if it has none the times of `collect_with_timestamp`, are its event time.
    Calls `make()` once, at once. Raises TypeError or ValueError for a bad argument.
    """

    make: Callable[[], Any]
    _: KW_ONLY
    bounded: bool = False
    parallelism: int = 1
    serializer: Serializer[Any] = field(default_factory=JsonSerializer)
    capacity: int = MAX_RECORDS_AHEAD
    grace: float = CANCEL_TIMEOUT_S

    split_type = FunctionSplit
    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __post_init__(self) -> None:
        _check_made(self.make, self.serializer)
        function = self.make()
        self.name = name = type(function).__qualname__
        if not isinstance(function, SourceFunction):
            raise TypeError(f"make={self.make!r}: must make a SourceFunction, not {name}")
        check_methods("make()", function, "run", "cancel")
        parallel = isinstance(function, ParallelSourceFunction)
        if check_positive_int("parallelism", self.parallelism) > 1 and not parallel:
            what = f"{name} is not a ParallelSourceFunction"
            raise ValueError(f"parallelism={self.parallelism}: must be 1, {what}")
        check_positive_int("capacity", self.capacity)
        check_duration("grace", self.grace)
        if self.bounded:
            self.boundedness = Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: int = 0) -> _FunctionEnumerator:
        """The enumerator of a run in which so many splits were found."""
        return _FunctionEnumerator(context, checkpoint, self.parallelism)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[FunctionSplit]:
        """Runs the functions, each with a thread that takes its rows."""
        make_reader = partial(_FunctionReader, self)
        return FetchingReader(context, make_reader, threading=Threading.SPLIT_PER_THREAD, grace=self.grace)


class SourceContext:
    """Runs a function on a daemon thread, from where a split starts; what the function emits goes here.

    What it emits with is thread-safe. What has a leading underscore is for the one thread that takes the
    rows, but for `_wake_up`.

    *Sections.* A function that has state changes it under `checkpoint_lock`, together with the records that
    it belongs to: a checkpoint has all of such a section or nothing. Each method that emits is a section of
    its own where no other is open. Rows leave when their section ends, so it must be short, and emits at most
    `capacity` records.

    *Room.* A source that is `capacity` records ahead waits where a section begins.

    *The end.* After a cancel every method, and a wait within it, raises `SourceCancelled`.
    """

    def __init__(self, source: FromSourceFunction, split: FunctionSplit) -> None:
        self._source = source
        self._name = source.name
        self._function = function = source.make()
        if isinstance(function, ParallelSourceFunction):
            function.runtime_context = RuntimeContext(source.name, split.subtask, source.parallelism)
        if split.start is not None and isinstance(function, CheckpointedSource):
            version, state = split.start
            function.restore_state(source.serializer.from_json(version, state))
        # Under the lock, which the function's threads alone take: the section at hand, and event time.
        self._lock = threading.RLock()
        self._depth = 0
        self._section: list[Any] = []
        self._watermark: float | None = None
        self._latest: float | None = None
        self.is_idle = False
        """True if the source has marked itself as idle and emitted nothing since."""
        self._stop = threading.Event()
        # Guards what follows, which is of sections that have ended; notified where a wait may end.
        self._changed = threading.Condition(threading.Lock())
        self._records: list[Any] = []
        self._position = split.start
        self._event_time: tuple[float | None, bool] = (None, False)
        self._has_news = self._ended = False
        self._error: BaseException | None = None
        name = f"pillarbox-source {source.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(self._thread)

    # -- for the function; any of its threads ----------------------------------------------------------

    @property
    def checkpoint_lock(self) -> AbstractContextManager[None]:
        """Makes what is done within one step for checkpoints; for `with`, reentrant. Waits for room."""
        return self._in_section()

    def collect(self, value: object) -> None:
        """Emit a record. Raises `SourceCancelled`, and RuntimeError for more than a section may emit."""
        with self._in_section():
            if len(self._section) >= self._source.capacity:
                raise RuntimeError(
                    f"source {self._name} emits more than capacity={self._source.capacity} records under one "
                    "taking of checkpoint_lock: give the lock back between them, or give a larger capacity"
                )
            self.is_idle = False
            self._section.append(value)

    def collect_with_timestamp(self, value: object, timestamp: float) -> None:
        """As `collect`, with the event time in seconds. Raises TypeError or ValueError for what is none."""
        timestamp = check_moment("timestamp", timestamp)
        with self._in_section():
            self.collect(value)
            self._latest = timestamp if self._latest is None else max(self._latest, timestamp)

    def emit_watermark(self, timestamp: float) -> None:
        """Say that no record of this event time, in seconds, or an earlier one follows."""
        # The end of time is what a function says when it ends: no moment, but allowed.
        if timestamp != float("inf"):
            timestamp = check_moment("timestamp", timestamp)
        with self._in_section():
            self.is_idle = False
            self._watermark = timestamp

    def mark_as_temporarily_idle(self) -> None:
        """Have nobody wait for the source until its next record or watermark. Raises `SourceCancelled`."""
        with self._in_section():
            self.is_idle = True

    @property
    def is_cancelled(self) -> bool:
        """True if the source should end."""
        return self._stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the source is cancelled, and return True if it is."""
        return self._stop.wait(check_duration("seconds", seconds))

    @contextmanager
    def _in_section(self) -> Iterator[None]:
        with self._lock:
            with self._changed:
                while not (self._depth or self._stop.is_set() or len(self._records) < self._source.capacity):
                    self._changed.wait()
            if self._stop.is_set():
                raise SourceCancelled
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            # A section that has raised is not whole: what it has emitted goes out with the next one.
            if not self._depth:
                self._publish()

    def _publish(self) -> None:
        """Hand over what the section has emitted, with the state behind it."""
        position, records, function = self._position, self._section, self._function
        if records and isinstance(function, CheckpointedSource):
            serializer = self._source.serializer
            # Written at once: the function may go on with the very object.
            position = [serializer.version, serializer.to_json(function.snapshot_state())]
        self._section = []
        latest = self._latest if self._watermark is None else self._watermark
        with self._changed:
            if self._stop.is_set():
                raise SourceCancelled
            self._records += records
            self._position, self._event_time, self._has_news = position, (latest, self.is_idle), True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._function.run(self)
        except BaseException as error:
            if not self.is_cancelled:
                self._error = error
            elif not isinstance(error, SourceCancelled):
                log.info("source %s ended with an error after its cancel", self._name, exc_info=error)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- for who takes the rows ------------------------------------------------------------------------

    def _take(self, split_id: str) -> tuple[Fetched, bool]:
        """Wait for news; give what was emitted since the last call, and True if the function has ended.

        Raises what the function has raised, behind the rows before it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_news or self._ended)
            records, self._records = self._records, []
            self._has_news = False
            self._changed.notify_all()
            if not records and self._error is not None:
                raise self._error
            ended = self._ended and self._error is None
            return Fetched(split_id, records, self._position, False, *self._event_time), ended

    def _wake_up(self) -> None:
        """End a wait; the next one, if there is none. Any thread."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel the function, and wait for its end. Idempotent.

        One that has not ended in time is logged by its name and left alone: all it emits raises
        `SourceCancelled` in it. What its `cancel` raises is logged.
        """
        thread, grace = self._thread, self._source.grace
        with self._changed:
            if self._stop.is_set() or self._ended:
                return
            self._stop.set()
            self._changed.notify_all()
        try:
            self._function.cancel()
        except Exception:
            log.exception("the cancel of source %s raised", self._name)
        thread.join(min(grace, threading.TIMEOUT_MAX))
        if thread.is_alive():
            text = "source %s has not ended within %g s of its cancel; it is left alone and can emit nothing"
            log.warning(text, self._name, grace)


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
        self._context: SourceContext | None = None

    def wake_up(self) -> None:
        # In this order: a function that begins meanwhile looks whether it was woken.
        super().wake_up()
        if (context := self._context) is not None:
            context._wake_up()

    def _rows_of(self, split: FunctionSplit) -> Iterator[Yielded]:
        with closing(SourceContext(self._source, split)) as self._context:
            context = self._context
            if self._woken.is_set():
                context._wake_up()
            told: tuple[float | None, bool] = (None, False)
            ended = False
            while not ended:
                fetched, ended = context._take(split.split_id)
                news = fetched.timestamp, fetched.idle
                if fetched.records or news != told:
                    told = news
                    yield fetched
                else:
                    yield None


# -- formats ----------------------------------------------------------------------------------------


class InputStatistics(NamedTuple):
    """The size of an input, or about its size; None is unknown. Flink's `BaseStatistics`."""

    nbytes: int | None = None
    records: int | None = None


class InputFormat(ABC, Generic[S, T]):
    """Divides an input into splits of type S, and reads records of type T from one split after the other.

    Calls come in this order: `configure`; then `statistics`, `create_input_splits` and `choose`, where splits
    are handed out, or, where they are read, for each split `open`, then `reached_end` and `next_record`
    in turn, then `close`. Confined to who uses it. A split that has `hosts`, names of machines, goes to
    a reader on one of them if it can.
    """

    def configure(self, parameters: Mapping[str, Any]) -> None:
        """Take the job's parameters. Called before everything else."""

    def statistics(self) -> InputStatistics | None:
        """The size of the whole input, for planning; None if it is unknown."""
        return None

    @abstractmethod
    def create_input_splits(self, min_splits: int) -> Sequence[S]:
        """Divide the input into splits, `min_splits` or more if that can be."""

    def choose(self, splits: Sequence[S], subtask: int) -> S | None:
        """The one of the `splits` that wait for a reader that asks; None: one near to it, or the first."""
        return None

    @abstractmethod
    def open(self, split: S) -> None:
        """Begin to read a split, which may be one that was given back unread, or read in part, before."""

    @abstractmethod
    def reached_end(self) -> bool:
        """True if the split has no more records."""

    @abstractmethod
    def next_record(self) -> T | None:
        """The next record; None if there is none after all, which need not be the end of the split."""

    @abstractmethod
    def close(self) -> None:
        """End with the split. Called after every `open`, also after one that has raised."""


class RichInputFormat(InputFormat[S, T]):
    """A format that holds something over many splits, such as a connection, and knows who reads with it."""

    runtime_context = RuntimeContext()
    """Set before `open_input_format`. How many readers there will be is not known: `subtask` + 1 at least."""

    def open_input_format(self) -> None:
        """Get what is needed for all splits. Called once by a reader, before the first `open`."""

    def close_input_format(self) -> None:
        """Let go of it. Called once by a reader, after the last `close`, also if something has raised."""


@dataclass(frozen=True)
class ReplicatingInputFormat(Generic[S, T]):
    """Has every reader read all splits of `format`, as for the small side of a join."""

    format: InputFormat[S, T]


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


@dataclass(eq=False, repr=False)
class FromInputFormat(Source[FormatSplit, Any]):
    """The bounded source that reads the splits of an `InputFormat`, in tasks and in Spark's batches.

    make: makes the format, one for each who uses it; it must pickle where the source travels. With a
        `ReplicatingInputFormat` each reader reads all splits, in tasks; so it is refused with a schema.
    parameters: for `configure`. min_splits: for `create_input_splits`, called once, on the discovery thread.
    schema: the columns of its records, for Spark. A record that is not a tuple is then a row of one column.
    serializer: how splits are written; by default they are what JSON can hold. batch: records of one fetch.

    Splits go to who asks, one near to them if there is one, or as the format's `choose` says. Calls `make()`
    once, at once. Raises TypeError or ValueError for a bad argument.
    """

    make: Callable[[], Any]
    _: KW_ONLY
    schema: pa.Schema | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    min_splits: int = 1
    serializer: Serializer[Any] = field(default_factory=JsonSerializer)
    batch: int = MAX_FETCH_RECORDS

    split_type = FormatSplit
    boundedness = Boundedness.BOUNDED

    def __post_init__(self) -> None:
        _check_made(self.make, self.serializer)
        made = self.make()
        self.replicated = isinstance(made, ReplicatingInputFormat)
        if not (self.replicated or isinstance(made, InputFormat)):
            raise TypeError(f"make={self.make!r}: must make an InputFormat, not {type(made).__name__}")
        if self.replicated and self.schema is not None:
            what = f"make={self.make!r}: makes a ReplicatingInputFormat, for tasks, and has a schema"
            raise ValueError(
                f"{what}, for Spark, whose tasks share all rows: give the format within, or no schema"
            )
        check_positive_int("min_splits", self.min_splits)
        check_positive_int("batch", self.batch)

    def make_configured(self) -> InputFormat[Any, Any]:
        """A format that was told the parameters."""
        made = self.make()
        format = made.format if isinstance(made, ReplicatingInputFormat) else made
        format.configure(self.parameters)
        return format

    def own_split(self, split: FormatSplit) -> Any:
        """The format's own split."""
        return self.serializer.from_json(*split.payload)

    def arrow_schema(self) -> pa.Schema:
        """The columns that were given. Raises TypeError if none were."""
        return super().arrow_schema() if self.schema is None else self.schema

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: Any = None) -> _FormatEnumerator:
        """The enumerator of a run; `checkpoint` is the splits that were not found yet, None at first."""
        return _FormatEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[FormatSplit]:
        """Reads one split after the other."""
        return FetchingReader(context, partial(_FormatReader, self, context))


class _FormatEnumerator(SplitEnumerator[FormatSplit, Any]):
    """Asks the format for its splits, once; knows those that it has not given out."""

    def __init__(self, context: EnumeratorContext[Any], checkpoint: object, source: FromInputFormat) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self._format = source.make_configured()

    def discover(self, checkpoint: Any, most: int) -> tuple[list[FormatSplit], list[Any]]:
        serializer = self._source.split_serializer
        if checkpoint is None:
            checkpoint = [serializer.to_json(split) for split in self._create()]
        return [serializer.from_json(1, each) for each in checkpoint[:most]], checkpoint[most:]

    def _create(self) -> Iterator[FormatSplit]:
        # A format of its own: the enumerator's is asked by another thread, to choose.
        source, format = self._source, self._source.make_configured()
        total = format.statistics() or InputStatistics()
        created = format.create_input_splits(source.min_splits)
        nbytes, rows = (None if each is None else round(each / max(1, len(created))) for each in total)
        for number, own in enumerate(created):
            payload = [source.serializer.version, source.serializer.to_json(own)]
            hosts = [*getattr(own, "hosts", ())]
            split = FormatSplit(str(number), payload=payload, rows=rows, nbytes=nbytes, hosts=hosts)
            if source.replicated:
                for reader in range(self.context.parallelism):
                    yield replace(split, split_id=f"{number}@{reader}", subtask=reader)
            else:
                yield split

    def assigned_to(self, split: FormatSplit) -> int | None:
        return split.subtask

    def choose(self, pending: Sequence[FormatSplit], reader: ReaderInfo) -> int:
        if type(self._format).choose is not InputFormat.choose:
            own = [self._source.own_split(split) for split in pending]
            chosen = self._format.choose(own, reader.subtask)
            if chosen is not None:
                return own.index(chosen)
        return super().choose(pending, reader)


class _FormatReader(LoopReader[FormatSplit]):
    """Reads the splits of a format, one after the other."""

    def __init__(self, source: FromInputFormat, context: ReaderContext) -> None:
        super().__init__(source, context.schema, self._rows_of)
        self._source = source
        self._format = format = source.make_configured()
        self._is_open = self._is_rich_open = False
        # Ends with the reader, also where the end of its split raises.
        self._ends = ExitStack()
        if isinstance(format, RichInputFormat):
            format.runtime_context = RuntimeContext("source", context.subtask, context.subtask + 1)

    def close(self) -> None:
        with self._ends:
            super().close()

    def _rows_of(self, split: FormatSplit) -> Iterator[Yielded]:
        source, format, rows, read = self._source, self._format, list[Any](), 0
        if isinstance(format, RichInputFormat) and not self._is_rich_open:
            self._is_rich_open = True
            self._ends.callback(format.close_input_format)
            format.open_input_format()
        self._is_open = True
        format.open(source.own_split(split))
        while not format.reached_end():
            record = format.next_record()
            if record is not None:
                read += 1
                if read > (split.start or 0):
                    is_row = source.schema is None or isinstance(record, tuple)
                    rows.append(record if is_row else (record,))
            if len(rows) >= source.batch or self._woken.is_set():
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
