"""Old functions and formats as a `Source`: for `StreamTask`, and for Spark, batch and streaming.

*A function* is a split for each of its instances. A position is a state of the function and how many rows
came since; a reader takes the rows together with the state, under the checkpoint lock. For micro-batches the
enumerator runs it too, ahead, to know how far it comes: one is so many rows from a state, which a task reads.

*A format* has its own splits, or one for each file of a folder. A position is how many records of the split
were read: after a restart so many are read and dropped.

Both are read by generators, as a `SimpleSource` is.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.files.discovery import FileEnumerator
from pillarbox.sources.connectors.files.source import FileSource
from pillarbox.sources.connectors.files.split import END
from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, ReadLimit, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import Fetched, ReaderContext
from pillarbox.sources.serializer import named_serializer
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
MAX_MICRO_BATCH_ROWS = 100_000
FIRST_ROW_TIMEOUT_S = 1.0
"""A micro-batch waits so long for the first row of a function that was just started."""
NEXT_ROW_TIMEOUT_S = 0.05
"""A micro-batch takes what has come if nothing follows for so long."""
MAX_FETCH_RECORDS = 1_000


@dataclass(eq=False, repr=False)
class _LegacySource(Source[Any, Any]):
    """Rows and their schema, and how states or splits are written."""

    make: Callable[[], Any]
    _: KW_ONLY
    schema: pa.Schema | None = None
    serializer: Any = "json"

    boundedness = Boundedness.BOUNDED

    def __post_init__(self) -> None:
        check_callable("make", self.make)
        self.serializer = named_serializer(self.serializer)

    def arrow_schema(self) -> pa.Schema:
        """The columns that were given. Raises TypeError if none were."""
        return super().arrow_schema() if self.schema is None else self.schema

    def row_of(self, record: Any) -> Any:
        """The record itself; where there is a schema, one that is not a tuple is a row of one column."""
        return record if self.schema is None or isinstance(record, tuple) else (record,)


# -- functions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionSplit(Split):
    """The rows that one instance of a function emits, or a part of them.

    A position is `count` rows from the beginning, found by running from `state`, taken after `base` rows.
    """

    subtask: int = 0

    @property
    def rows(self) -> int | None:
        """Rows up to `stop`."""
        return None if self.stop is None else int(self.stop["count"] - self.begin["count"])

    @property
    def begin(self) -> dict[str, Any]:
        """The position to run from."""
        return self.start or {"count": 0, "base": 0, "state": None}


@dataclass(eq=False, repr=False, kw_only=True)
class FromSourceFunction(_LegacySource):
    """The source that runs a `SourceFunction`.

    make: makes the function, one for each run of it; it must pickle where the source travels. A restart, or
        a task of a micro-batch, goes on from a state of it, and must then get the same rows. One without
        both `snapshot_state` and `restore_state` starts over after a restart, and is for tasks only.
    bounded: True if the function comes to an end of its own.
    parallelism: how many instances run, each a split; more than 1 for a `ParallelSourceFunction` only.
    schema: the columns of its rows, for Spark. A record that is not a tuple is then a row of one column.
    serializer: how states are written: "json", a name that `register_serializer` knows, a `PickleSerializer`.
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
        if self.schema is not None and not isinstance(function, legacy.CheckpointedSource):
            what = f"make={self.make!r}: makes a {name}, which cannot go on after a restart, as Spark needs"
            raise ValueError(f"{what}: it must have both snapshot_state and restore_state")
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
        return _FunctionEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[FunctionSplit]:
        """Runs the functions, each with a thread that takes its rows."""
        reader = partial(_FunctionReader, self, context.schema)
        return FetchingReader(context, reader, threading=Threading.SPLIT_PER_THREAD, grace=self.grace)


class FunctionRun(legacy.SourceContext):
    """Runs a function in a daemon thread, from where a split starts, until its end or `close`.

    It is the function's context. Confined to one thread, which takes the rows, but for `wake_up` and what the
    function calls.

    begun, count: rows from the beginning of the split to where the run begins, and to behind what was taken;
    position, timestamp, idle, ended: there. The timestamp is the latest watermark, without any the latest
    event time.
    """

    def __init__(self, source: FromSourceFunction, split: FunctionSplit) -> None:
        self._source = source
        self._function = function = source.make()
        if isinstance(function, legacy.ParallelSourceFunction):
            function.runtime_context = legacy.RuntimeContext(source.name, split.subtask, source.parallelism)
        position = split.begin
        if position["state"] is not None and isinstance(function, legacy.CheckpointedSource):
            function.restore_state(source.serializer.read(position["state"]))
        super().__init__(source.capacity, atomic_sections=function.atomic_sections, name=source.name)
        self.begun = self.count = position["base"]
        self.position = {**position, "count": self.count}
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
        function, serializer = self._function, self._source.serializer
        with self._lock:
            with self._changed:
                records, self._records = self._records, []
                self._has_news, self.ended = False, self._ended
                self._changed.notify_all()
            if self._error is not None:
                raise self._error
            self.timestamp = self._latest if self._watermark is None else self._watermark
            self.idle = self.is_idle
            self.count += len(records)
            if records and isinstance(function, legacy.CheckpointedSource):
                state = serializer.write(function.snapshot_state())
                self.position = {"count": self.count, "base": self.count, "state": state}
        return [self._source.row_of(record) for record in records]

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
    """Finds a split for each instance; for micro-batches runs the function ahead of the readers. Confined."""

    def __init__(self, context: EnumeratorContext[Any], checkpoint: int, source: FromSourceFunction) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        # The run of each split, and its positions behind what the latest micro-batch has read.
        self._ahead: dict[str, tuple[FunctionRun, list[dict[str, Any]]]] = {}

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[FunctionSplit], int]:
        numbers = range(self._source.parallelism)[checkpoint : checkpoint + most]
        return [FunctionSplit(f"function-{n}", subtask=n) for n in numbers], checkpoint + len(numbers)

    def advance(self, split: FunctionSplit, limit: ReadLimit) -> FunctionSplit | None:
        start, most = split.begin, MAX_MICRO_BATCH_ROWS
        wanted = start["count"] + (most if limit.rows is None else min(max(limit.rows, 1), most))
        run, marks = self._ahead.get(split.split_id, (None, []))
        timeout = NEXT_ROW_TIMEOUT_S
        if run is None or not run.begun <= start["count"] <= run.count:
            if run is not None:
                run.close()
            run, marks, timeout = FunctionRun(self._source, split), [], FIRST_ROW_TIMEOUT_S
        deadline = time.monotonic() + timeout
        while run.count < wanted and not run.ended and (left := deadline - time.monotonic()) > 0.0:
            if run.wait_for_news(left) and run.take_rows():
                marks.append(run.position)
                deadline = time.monotonic() + NEXT_ROW_TIMEOUT_S
        # A position behind `start` has its state, or that of a mark in between: there is none amid a section.
        marks = [start, *(mark for mark in marks if mark["count"] > start["count"])]
        self._ahead[split.split_id] = run, marks
        if run.ended and run.count <= wanted:
            return split
        latest = [mark for mark in marks if mark["count"] <= wanted][-1]
        count = min(run.count, wanted)
        return split.up_to({**latest, "count": count}) if count > start["count"] else None

    def close(self) -> None:
        while self._ahead:
            self._ahead.popitem()[1][0].close()


class _FunctionReader(LoopReader[FunctionSplit]):
    """Gives what a function emits, with its state behind that."""

    def __init__(self, source: FromSourceFunction, wanted: pa.Schema | None) -> None:
        super().__init__(source, wanted, self._rows_of)
        self._source = source
        self._run: FunctionRun | None = None

    def wake_up(self) -> None:
        # In this order: a run that begins meanwhile looks whether it was woken.
        super().wake_up()
        if (run := self._run) is not None:
            run.wake_up()

    def _rows_of(self, split: FunctionSplit) -> Iterator[Yielded]:
        given, left = split.begin["count"], sys.maxsize if split.rows is None else split.rows
        with closing(FunctionRun(self._source, split)) as self._run:
            run = self._run
            if self._woken.is_set():
                run.wake_up()
            told: tuple[float | None, bool] = (None, False)
            while left and not run.ended:
                run.wait_for_news()
                before = run.count
                # Those between the state and the start were read before.
                rows = run.take_rows()[max(0, given - before) :][:left]
                given, left = given + len(rows), left - len(rows)
                news = run.timestamp, run.idle
                # In front of the start there is no position to tell.
                if rows or (news != told and run.count >= given):
                    told = news
                    yield Fetched(split.split_id, rows, run.position, False, run.timestamp, run.idle)
                else:
                    yield None
        if left and split.stop is not None:
            what = f"source {self._source.name} has emitted {left} rows less than before"
            raise ValueError(f"{what}: from a state that is restored it must emit the same rows again")


# -- formats ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FormatSplit(Split):
    """A split of a format; `start` is how many records were read. subtask: its only reader, if replicated."""

    stop: Any = END
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
    schema, serializer: as for `FromSourceFunction`, for splits. batch: records of one fetch.

    Splits go to who asks, one near to them if there is one, or as the format's `choose` says. Calls `make()`
    once, at once. Raises TypeError or ValueError for a bad argument.
    """

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

    def payload(self, split: Any) -> Any:
        """The split as the format opens it."""
        return self.serializer.read(split.payload)

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
            written, hosts = source.serializer.write(split), [*getattr(split, "hosts", ())]
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
            own = [self._source.payload(split) for split in pending]
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
        format.open(self._source.payload(split))
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


class FromFolder(FromInputFormat):
    """The source that watches a folder, and reads each new file by an `InputFormat`.

    path: a file, a folder, a pattern, or a URI that Arrow's file systems know. What `open` of the format gets
        is a path in that file system.
    make, parameters, schema, batch: as for `FromInputFormat`.
    interval: seconds between two looks; None: one look, then the source is bounded.
    options: of `FileSource`, which finds the files: what it says of files that come late, grow or change, and
        raises, holds here. recursive: False unless folders in the folder count.
    """

    def __init__(self, path: str, make: Any, *, interval: float | None = 1.0, **options: Any) -> None:
        own = {name: options.pop(name) for name in ("parameters", "schema", "batch") if name in options}
        super().__init__(make, **own)
        if self.replicated:
            raise ValueError(f"make={make!r}: makes a ReplicatingInputFormat; each file goes to one reader")
        if interval is not None:
            check_duration("interval", interval, above_zero=True)
        # Each file as a whole, as it is: its format is none of `FileSource`.
        options = {"recursive": False} | options | {"format": "text", "split_bytes": sys.maxsize}
        self._files = FileSource(path, discovery_interval=interval, **options)
        self.split_type, self.boundedness = self._files.split_type, self._files.boundedness

    def __repr__(self) -> str:
        return f"FromFolder({shown_address(self._files.path)!r})"

    split_serializer = property(lambda self: self._files.split_serializer)
    checkpoint_serializer = property(lambda self: self._files.checkpoint_serializer)

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: Any = None) -> Any:
        """Finds files as `FileSource` does, and gives each as a whole."""
        return _WholeFiles(context, checkpoint, self._files)

    restore_enumerator = create_enumerator

    def payload(self, split: Any) -> str:
        """The path."""
        return str(split.path)


class _WholeFiles(FileEnumerator):
    """Finds files and gives each as a whole: positions are records, and only the format knows how many."""

    advance = SplitEnumerator.advance

    def discover(self, checkpoint: Any, most: int) -> Any:
        found, known = super().discover(checkpoint, most)
        return [replace(split, stop=END, weight=None) for split in found], known
