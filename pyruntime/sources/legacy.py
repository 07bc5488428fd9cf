"""Old loops as a `Source` of tasks: a `SourceFunction` runs on a thread of its own, and its rows are read.

The interfaces are Flink's of these names, which FLIP-27 has replaced. A function is a split for each of its
instances, and a position is a state of it. Read by a generator, as a `SimpleSource` is.
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

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from pillarbox.sources.enumerator import EnumeratorContext, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import Fetched, ReaderContext
from pillarbox.sources.simple import LoopReader, Yielded
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import ExactJsonSerializer, Serializer, Split
from pillarbox.validate import check_callable, check_duration, check_moment, check_positive_int

log = logging.getLogger("pillarbox")

MAX_RECORDS_AHEAD = 1_000
CANCEL_TIMEOUT_S = 5.0


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
    """The place of a function among its parallel instances: a name, its number from 0, of how many."""

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
    serializer: Serializer[Any] = field(default_factory=ExactJsonSerializer)
    capacity: int = MAX_RECORDS_AHEAD
    grace: float = CANCEL_TIMEOUT_S

    split_type = FunctionSplit
    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __post_init__(self) -> None:
        check_callable("make", self.make)
        if not all(hasattr(self.serializer, name) for name in ("version", "to_json", "from_json")):
            what = "must be a Serializer, such as DataclassSerializer(State)"
            raise TypeError(f"serializer={self.serializer!r}: {what}")
        function = self.make()
        self.name = name = type(function).__qualname__
        if not isinstance(function, SourceFunction):
            raise TypeError(f"make={self.make!r}: must make a SourceFunction, not {name}")
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
        self._thread.start()

    # -- for the function; any of its threads ----------------------------------------------------------

    @property
    def checkpoint_lock(self) -> AbstractContextManager[None]:
        """Makes what is done within one step for checkpoints; for `with`, reentrant. Waits for room."""
        return self._in_section()

    def collect(self, value: Any) -> None:
        """Emit a record. Raises `SourceCancelled`, and RuntimeError for more than a section may emit."""
        with self._in_section():
            if len(self._section) >= self._source.capacity:
                raise RuntimeError(
                    f"source {self._name} emits more than capacity={self._source.capacity} records under one "
                    "taking of checkpoint_lock: give the lock back between them, or give a larger capacity"
                )
            self.is_idle = False
            self._section.append(value)

    def collect_with_timestamp(self, value: Any, timestamp: float) -> None:
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
