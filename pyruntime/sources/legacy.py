"""Old functions and formats as a `Source`: for `StreamTask`, and for Spark, batch and streaming.

*A function* is a split for each of its instances. A position is a state of the function and how many rows
came since; a reader takes the rows together with the state, under the checkpoint lock. For micro-batches the
enumerator runs it too, ahead, to know how far it comes: one is so many rows from a state, which a task reads.

*A format* has its own splits, or one for each file of a folder. A position is how many records of the split
were read: after a restart so many are read and dropped.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox.mailbox.check import check_positive_int
from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.files.discovery import FileEnumerator
from pillarbox.sources.connectors.files.source import FileSource
from pillarbox.sources.connectors.files.split import END
from pillarbox.sources.enumerator import EnumeratorContext, ReaderInfo, ReadLimit, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader, Threading
from pillarbox.sources.reader import Fetched, ReaderContext, SplitReader, SplitsAdded, SplitsChange
from pillarbox.sources.serializer import PickleSerializer, named_serializer
from pillarbox.sources.source import Boundedness, Source
from pillarbox.sources.split import Split
from pillarbox.task.failures import Failures
from pillarbox.task.legacy import (
    CheckpointedSource,
    FunctionThread,
    InputFormat,
    InputStatistics,
    ParallelSourceFunction,
    ReplicatingInputFormat,
    RichInputFormat,
    RuntimeContext,
    SourceFunction,
    Timestamped,
)
from pillarbox.task.moments import check_callable, check_duration
from pillarbox.task.output import Idleness, Watermark

if TYPE_CHECKING:
    import pyarrow as pa

MAX_RECORDS_AHEAD = 1_000
CANCEL_TIMEOUT_S = 5.0
MAX_MICRO_BATCH_ROWS = 100_000
FIRST_ROW_TIMEOUT_S = 1.0
"""A micro-batch waits so long for the first row of a function that was just started."""
NEXT_ROW_TIMEOUT_S = 0.05
"""A micro-batch takes what has come if nothing follows for so long."""
MAX_FETCH_RECORDS = 1_000


class _LegacySource(Source[Any, Any]):
    """Rows and their schema, and how states or splits are written."""

    boundedness = Boundedness.BOUNDED

    def __init__(self, schema: pa.Schema | None, serializer: str | PickleSerializer) -> None:
        self.schema = schema
        self.serializer = named_serializer(serializer)

    def arrow_schema(self) -> pa.Schema:
        """The columns that were given. Raises TypeError if none were."""
        return super().arrow_schema() if self.schema is None else self.schema

    def row_of(self, record: Any) -> Any:
        """The record itself; where there is a schema, one that is not a tuple is a row of one column."""
        return record if self.schema is None or isinstance(record, tuple) else (record,)


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

    split_type = FunctionSplit

    def __init__(
        self,
        make: Callable[[], SourceFunction],
        *,
        bounded: bool = False,
        parallelism: int = 1,
        schema: pa.Schema | None = None,
        serializer: str | PickleSerializer = "json",
        capacity: int = MAX_RECORDS_AHEAD,
        grace: float = CANCEL_TIMEOUT_S,
    ) -> None:
        check_callable("make", make)
        function = make()
        if not isinstance(function, SourceFunction):
            raise TypeError(f"make={make!r}: must make a SourceFunction, not {type(function).__name__}")
        self.name = type(function).__qualname__
        if schema is not None and not isinstance(function, CheckpointedSource):
            what = f"make={make!r}: makes a {self.name}, which cannot go on after a restart, as Spark needs"
            raise ValueError(f"{what}: it must have both snapshot_state and restore_state")
        self.parallelism = check_positive_int("parallelism", parallelism)
        if parallelism > 1 and not isinstance(function, ParallelSourceFunction):
            raise ValueError(
                f"parallelism={parallelism}: must be 1, {self.name} is no ParallelSourceFunction"
            )
        super().__init__(schema, serializer)
        self.make = make
        if not bounded:
            self.boundedness = Boundedness.CONTINUOUS_UNBOUNDED
        self.capacity = check_positive_int("capacity", capacity)
        self.grace = check_duration("grace", grace)

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: int = 0) -> _FunctionEnumerator:
        """The enumerator of a run in which so many splits were found."""
        return _FunctionEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[FunctionSplit]:
        """Runs the functions, each with a thread that takes its rows."""
        reader = partial(_FunctionReader, self)
        return FetchingReader(context, reader, threading=Threading.SPLIT_PER_THREAD, grace=self.grace)


class _FunctionRun(FunctionThread):
    """One run of a function, from where a split starts. Confined to who takes from it.

    begun, count: rows from the beginning of the split to where the run begins, and to behind what was taken;
    position, timestamp, idle: there. The timestamp is the watermark, without one the latest event time.
    """

    def __init__(self, source: FromSourceFunction, split: FunctionSplit) -> None:
        self._source = source
        function = source.make()
        if isinstance(function, ParallelSourceFunction):
            function.runtime_context = RuntimeContext(source.name, split.subtask, source.parallelism)
        position = split.begin
        if position["state"] is not None and isinstance(function, CheckpointedSource):
            function.restore_state(source.serializer.read(position["state"]))
        self.begun = self.count = position["base"]
        self.position = {**position, "count": self.count}
        self.ended = False
        self.idle = False
        self.timestamp: float | None = None
        # Of times; a function with watermarks goes by these alone.
        self._latest = -math.inf
        super().__init__(function, capacity=source.capacity, grace=source.grace, name=source.name)

    def take_rows(self) -> list[Any]:
        """The rows emitted since; none if there are none. Raises what the function raises."""
        elements, state, self.ended = self.take()
        rows = []
        for each in elements:
            self.idle = type(each) is Idleness
            if type(each) is Watermark:
                self.timestamp, self._latest = each.timestamp, math.inf
            elif type(each) is Timestamped:
                if each.timestamp > self._latest:
                    self.timestamp = self._latest = each.timestamp
                rows.append(self._source.row_of(each.value))
            elif not self.idle:
                rows.append(self._source.row_of(each))
        self.count += len(rows)
        if rows and isinstance(self._function, CheckpointedSource):
            written = self._source.serializer.write(state)
            self.position = {"count": self.count, "base": self.count, "state": written}
        return rows


class _FunctionEnumerator(SplitEnumerator[FunctionSplit, int]):
    """Finds a split for each instance; for micro-batches runs the function ahead of the readers. Confined."""

    def __init__(self, context: EnumeratorContext[Any], checkpoint: int, source: FromSourceFunction) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        # The run of each split, and its positions behind what the latest micro-batch has read.
        self._ahead: dict[str, tuple[_FunctionRun, deque[dict[str, Any]]]] = {}

    def discover(self, checkpoint: int, most: int) -> tuple[Sequence[FunctionSplit], int]:
        end = max(checkpoint, min(checkpoint + most, self._source.parallelism))
        return [FunctionSplit(f"function-{each}", subtask=each) for each in range(checkpoint, end)], end

    def advance(self, split: FunctionSplit, limit: ReadLimit) -> FunctionSplit | None:
        start = split.begin
        most = MAX_MICRO_BATCH_ROWS if limit.rows is None else min(max(limit.rows, 1), MAX_MICRO_BATCH_ROWS)
        wanted = start["count"] + most
        run, marks = self._ahead.get(split.split_id, (None, deque()))
        deadline = time.monotonic() + NEXT_ROW_TIMEOUT_S
        if run is None or not run.begun <= start["count"] <= run.count:
            if run is not None:
                run.close()
            run, marks = self._ahead[split.split_id] = _FunctionRun(self._source, split), deque()
            deadline = time.monotonic() + FIRST_ROW_TIMEOUT_S
        while run.count < wanted and not run.ended:
            left = deadline - time.monotonic()
            if not run.wait(max(left, 0.0)):
                break
            if run.take_rows():
                marks.append(run.position)
                deadline = time.monotonic() + NEXT_ROW_TIMEOUT_S
            elif left <= 0.0:
                break
        if run.ended and run.count <= wanted:
            return split
        if run.count <= start["count"]:
            return None
        while marks and marks[0]["count"] <= start["count"]:
            marks.popleft()
        # Amid the records of one section there is no state.
        fitting = [mark for mark in marks if mark["count"] <= wanted]
        return split.up_to(fitting[-1] if fitting else {**start, "count": wanted})

    def close(self) -> None:
        while self._ahead:
            self._ahead.popitem()[1][0].close()


class _FunctionReader(SplitReader[FunctionSplit]):
    """Runs a function and gives what it emits, with its state behind that."""

    def __init__(self, source: FromSourceFunction) -> None:
        self._source = source
        self._run: _FunctionRun | None = None

    def handle_splits_changes(self, change: SplitsChange[FunctionSplit]) -> None:
        self.close()
        if isinstance(change, SplitsAdded):
            (self._split,) = change.splits
            self._given = self._split.begin["count"]
            self._said: tuple[float | None, bool] = (None, False)
            self._run = _FunctionRun(self._source, self._split)

    def fetch(self) -> Sequence[Fetched]:
        run, split = self._run, self._split
        assert run is not None
        run.wait()
        before = run.count
        # Those between the state and the start were read before.
        rows = run.take_rows()[max(0, self._given - before) :]
        finished = run.ended
        if split.stop is not None:
            left = split.stop["count"] - self._given
            finished = len(rows) >= left
            rows = rows[:left]
            if run.ended and not finished:
                raise ValueError(
                    f"source {self._source.name} has emitted {left - len(rows)} rows less than before: from "
                    "a state that is restored it must emit the same rows again"
                )
        self._given += len(rows)
        said, self._said = self._said, (run.timestamp, run.idle)
        if not (rows or finished or said != self._said):
            return []
        return [Fetched(split.split_id, rows, run.position, finished, run.timestamp, run.idle)]

    def wake_up(self) -> None:
        run = self._run
        if run is not None:
            run.wake_up()

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()


@dataclass(frozen=True)
class FormatSplit(Split):
    """A split of a format; `start` is how many records were read. subtask: its only reader, if replicated."""

    payload: Any = None
    near: list[str] = field(default_factory=list)
    subtask: int | None = None
    statistics: list[int | None] = field(default_factory=lambda: [None, None])

    nbytes = property(lambda self: self.statistics[0])
    rows = property(lambda self: self.statistics[1])
    hosts = property(lambda self: tuple(self.near))


class FromInputFormat(_LegacySource):
    """The bounded source that reads the splits of an `InputFormat`.

    make: makes the format, one for each who uses it; it must pickle where the source travels. With a
        `ReplicatingInputFormat` each reader reads all splits, in tasks; so it is refused with a schema.
    parameters: for `configure`. min_splits: for `create_input_splits`, called once, on the discovery thread.
    schema, serializer: as for `FromSourceFunction`, for splits. batch: records of one fetch.

    Splits go to who asks, one near to them if there is one, or as the format's `choose` says. Calls `make()`
    once, at once. Raises TypeError or ValueError for a bad argument.
    """

    split_type: type[Any] = FormatSplit

    def __init__(
        self,
        make: Callable[[], InputFormat[Any, Any] | ReplicatingInputFormat[Any, Any]],
        *,
        parameters: Mapping[str, Any] | None = None,
        min_splits: int = 1,
        schema: pa.Schema | None = None,
        serializer: str | PickleSerializer = "json",
        batch: int = MAX_FETCH_RECORDS,
    ) -> None:
        check_callable("make", make)
        super().__init__(schema, serializer)
        self.make = make
        self.replicated = isinstance(make(), ReplicatingInputFormat)
        format = self._make()
        if not isinstance(format, InputFormat):
            raise TypeError(f"make={make!r}: must make an InputFormat, not {type(format).__name__}")
        if self.replicated and schema is not None:
            raise ValueError(
                f"make={make!r}: makes a ReplicatingInputFormat, for tasks, and has a schema, for Spark, "
                "whose tasks share the rows of a source: give the format within, or no schema"
            )
        self.parameters = {} if parameters is None else dict(parameters)
        self.min_splits = check_positive_int("min_splits", min_splits)
        self.batch = check_positive_int("batch", batch)

    def make_configured(self) -> InputFormat[Any, Any]:
        """A format that was told the parameters."""
        format = self._make()
        format.configure(self.parameters)
        return format

    def _make(self) -> InputFormat[Any, Any]:
        made = self.make()
        return made.format if isinstance(made, ReplicatingInputFormat) else made

    def payload(self, split: Any) -> Any:
        """The split as the format opens it."""
        return self.serializer.read(split.payload)

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: Any = None) -> Any:
        """The enumerator of a run; `checkpoint` is the splits that were not found yet, None at first."""
        return _FormatEnumerator(context, checkpoint, self)

    restore_enumerator = create_enumerator

    def create_reader(self, context: ReaderContext) -> FetchingReader[Any]:
        """Reads one split after the other."""
        # Nobody knows how many readers there will be.
        place = RuntimeContext("source", context.subtask, context.subtask + 1)
        return FetchingReader(context, partial(_FormatReader, self, place))


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

    def _create(self) -> Sequence[FormatSplit]:
        source, format = self._source, self._source.make_configured()
        statistics = format.statistics() or InputStatistics()
        created = format.create_input_splits(source.min_splits)
        share = [None if each is None else round(each / max(1, len(created))) for each in statistics]
        readers = range(self.context.parallelism) if source.replicated else [None]
        return [
            FormatSplit(
                str(number) if subtask is None else f"{number}@{subtask}",
                payload=source.serializer.write(split),
                near=[*getattr(split, "hosts", ())],
                subtask=subtask,
                statistics=share,
            )
            for number, split in enumerate(created)
            for subtask in readers
        ]

    def assigned_to(self, split: FormatSplit) -> int | None:
        return split.subtask

    def choose(self, pending: Sequence[FormatSplit], reader: ReaderInfo) -> int:
        if type(self._format).choose is not InputFormat.choose:
            own = [self._source.payload(split) for split in pending]
            chosen = self._format.choose(own, reader.subtask)
            if chosen is not None:
                return own.index(chosen)
        return super().choose(pending, reader)

    def advance(self, split: FormatSplit, limit: ReadLimit) -> FormatSplit | None:
        return split


class _FormatReader(SplitReader[Any]):
    """Reads the splits of a format, one after the other."""

    def __init__(self, source: FromInputFormat, place: RuntimeContext) -> None:
        self._source = source
        self._format = format = source.make_configured()
        self._split: Any = None
        self._opened = False
        self._read = 0
        self._woken = False
        if isinstance(format, RichInputFormat):
            format.runtime_context = place
            try:
                format.open_input_format()
            except BaseException as error:
                Failures(error).run("closing the format", format.close_input_format)
                raise

    def handle_splits_changes(self, change: SplitsChange[Any]) -> None:
        self._leave()
        self._split = change.splits[0] if isinstance(change, SplitsAdded) else None

    def fetch(self) -> Sequence[Fetched]:
        split, format, row_of = self._split, self._format, self._source.row_of
        if not self._opened:
            self._opened, self._read = True, 0
            format.open(self._source.payload(split))
        rows: list[Any] = []
        before = split.start or 0
        finished = False
        while len(rows) < self._source.batch and not self._woken and not (finished := format.reached_end()):
            record = format.next_record()
            if record is not None:
                self._read += 1
                if self._read > before:
                    rows.append(row_of(record))
        self._woken = False
        if finished:
            self._leave()
        return [Fetched(split.split_id, rows, self._read, finished)] if rows or finished else []

    def wake_up(self) -> None:
        self._woken = True

    def close(self) -> None:
        failures = Failures()
        failures.run("closing the split", self._leave)
        if isinstance(self._format, RichInputFormat):
            failures.run("closing the format", self._format.close_input_format)
        if failures.first is not None:
            raise failures.first

    def _leave(self) -> None:
        if self._opened:
            self._opened = False
            self._format.close()


class FromFolder(FromInputFormat):
    """The source that watches a folder, and reads each new file by an `InputFormat`.

    path: a file, a folder, a pattern, or a URI that Arrow's file systems know. What `open` of the format gets
        is a path in that file system.
    make, parameters, schema, batch: as for `FromInputFormat`.
    interval: seconds between two looks; None: one look, then the source is bounded.
    recursive: True if folders in the folder count. options: others of `FileSource`, which finds the files:
        what it says of files that come late, grow or change, and raises, holds here.
    """

    def __init__(
        self,
        path: str,
        make: Callable[[], InputFormat[Any, Any]],
        *,
        parameters: Mapping[str, Any] | None = None,
        interval: float | None = 1.0,
        recursive: bool = False,
        schema: pa.Schema | None = None,
        batch: int = MAX_FETCH_RECORDS,
        **options: Any,
    ) -> None:
        super().__init__(make, parameters=parameters, schema=schema, batch=batch)
        if self.replicated:
            raise ValueError(f"make={make!r}: makes a ReplicatingInputFormat; each file goes to one reader")
        if interval is not None:
            check_duration("interval", interval, above_zero=True)
        options.update(format="text", recursive=recursive, split_bytes=sys.maxsize)
        self._files = FileSource(path, discovery_interval=interval, **options)
        self.split_type, self.boundedness = self._files.split_type, self._files.boundedness

    def __repr__(self) -> str:
        return f"FromFolder({shown_address(self._files.path)!r})"

    split_serializer = property(lambda self: self._files.split_serializer)
    checkpoint_serializer = property(lambda self: self._files.checkpoint_serializer)

    def create_enumerator(self, context: EnumeratorContext[Any], checkpoint: Any = None) -> Any:
        """Finds files as `FileSource` does, and gives each as a whole."""
        known = self._files.create_enumerator(context).checkpoint if checkpoint is None else checkpoint
        return _WholeFiles(context, known, self._files)

    restore_enumerator = create_enumerator

    def payload(self, split: Any) -> str:
        """The path."""
        return str(split.path)


class _WholeFiles(FileEnumerator):
    """Finds files and gives each as a whole: positions are records, and only the format knows how many."""

    def discover(self, checkpoint: Any, most: int) -> Any:
        found, known = super().discover(checkpoint, most)
        return [replace(split, stop=END, weight=None) for split in found], known

    def advance(self, split: Any, limit: ReadLimit) -> Any:
        return split
