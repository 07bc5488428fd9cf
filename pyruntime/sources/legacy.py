"""A `SourceFunction`, which is one loop, as a `Source`: for `StreamTask`, and for Spark, batch and streaming.

One split, whose positions are states of the function. The reader runs the function in a thread of its own and
takes what it has emitted together with its state, under the checkpoint lock. For micro-batches the enumerator
runs it too, ahead, to know how far it comes: a micro-batch is so many rows from a state, which a task reads.
"""

from __future__ import annotations

import base64
import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pillarbox.mailbox.check import check_positive_int
from pillarbox.sources.enumerator import EnumeratorContext, ReadLimit, SplitEnumerator
from pillarbox.sources.fetching import FetchingReader
from pillarbox.sources.legacy_format import FromFolder, FromInputFormat
from pillarbox.sources.legacy_rows import row_of
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
from pillarbox.task.checkpoint import CheckpointBarrier
from pillarbox.task.legacy import GRACE, CheckpointedSource, SourceFunction, Timestamped
from pillarbox.task.legacy_input import LegacyInputState, LegacySourceInput
from pillarbox.task.moments import check_callable, check_duration
from pillarbox.task.status import InputStatus

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FromFolder", "FromInputFormat", "FromSourceFunction", "FunctionSplit"]

CAPACITY = 1_000
MOST_ROWS = 100_000
"""Rows of a micro-batch for which nobody has set a limit."""
PATIENCE = 1.0
"""Seconds that a micro-batch waits for the first row of a function that was just started."""
SETTLE = 0.05
"""Seconds without a row after which a micro-batch takes what has come."""
SPLIT_ID = "function"
BEGINNING: dict[str, Any] = {"count": 0, "base": 0, "state": None}


@dataclass(frozen=True)
class FunctionSplit(Split):
    """All that the function emits, or a part of it.

    A position is `count` rows from the beginning, found by running from `state`, which was taken after `base`
    rows. The state is pickled.
    """

    @property
    def rows(self) -> int | None:
        """Rows from `start` to `stop`."""
        return None if self.stop is None else int(self.stop["count"] - (self.start or BEGINNING)["count"])


class FromSourceFunction(Source[FunctionSplit, bool]):
    """The source that runs a `SourceFunction`.

    make: makes the function, one for each run of it; it must pickle where the source travels. The function
        must have `snapshot_state` and `restore_state`, and a state must pickle: a restart, or a task of
        a micro-batch, goes on from one, and must then get the same rows.
    bounded: whether the function comes to an end of its own.
    schema: the columns of its rows, for Spark. A record that is no tuple is then a row of one column.
    capacity: records that the function may be ahead. grace: seconds that it has to end after its `cancel`.

    The times of `collect_with_timestamp`, or else the function's latest watermark, are the event time of what
    it has emitted. Its idleness is left to a `WatermarkStrategy`.

    Calls `make()` once, at once. Raises TypeError for what does not make a SourceFunction, ValueError for one
    that cannot be restored, TypeError or ValueError for other bad arguments.
    """

    split_type = FunctionSplit

    def __init__(
        self,
        make: Callable[[], SourceFunction],
        *,
        bounded: bool = False,
        schema: pa.Schema | None = None,
        capacity: int = CAPACITY,
        grace: float = GRACE,
    ) -> None:
        check_callable("make", make)
        function = make()
        if not isinstance(function, SourceFunction):
            raise TypeError(f"make={make!r}: must make a SourceFunction, not {type(function).__name__}")
        if not isinstance(function, CheckpointedSource):
            raise ValueError(
                f"make={make!r}: makes a {type(function).__name__}, which cannot go on after a restart: it "
                "must have both snapshot_state and restore_state"
            )
        self.name = type(function).__qualname__
        """The name of the function, for messages."""
        self.make = make
        """Makes the function."""
        self.bounded = bounded
        self.schema = schema
        self.capacity = check_positive_int("capacity", capacity)
        self.grace = check_duration("grace", grace)

    @property
    def boundedness(self) -> Boundedness:
        """As it was said."""
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context: EnumeratorContext[FunctionSplit]) -> FunctionEnumerator:
        """Knows nothing yet."""
        return FunctionEnumerator(context, False, self)

    def restore_enumerator(
        self, context: EnumeratorContext[FunctionSplit], checkpoint: bool
    ) -> FunctionEnumerator:
        """Knows whether the split was found."""
        return FunctionEnumerator(context, checkpoint, self)

    def create_reader(self, context: ReaderContext) -> SourceReader[FunctionSplit]:
        """Runs the function."""
        return FetchingReader(context, lambda: FunctionReader(self), grace=self.grace)

    def arrow_schema(self) -> pa.Schema:
        """The columns that were given. Raises TypeError if none were."""
        return super().arrow_schema() if self.schema is None else self.schema


class FunctionEnumerator(SplitEnumerator[FunctionSplit, bool]):
    """Finds the one split; for micro-batches it runs the function ahead of the readers. Confined."""

    def __init__(
        self, context: EnumeratorContext[FunctionSplit], checkpoint: bool, source: FromSourceFunction
    ) -> None:
        super().__init__(context, checkpoint)
        self._source = source
        self._ahead: FunctionRun | None = None
        # Where the function stood, each time that it was asked, behind what the latest micro-batch has read.
        self._marks: deque[dict[str, Any]] = deque()

    def discover(self, checkpoint: bool, most: int) -> tuple[Sequence[FunctionSplit], bool]:
        """The split, once."""
        return ([] if checkpoint else [FunctionSplit(SPLIT_ID)]), True

    def advance(self, split: FunctionSplit, limit: ReadLimit) -> FunctionSplit | None:
        """What the function has emitted behind `split.start`, within the limit of rows; its end, if it ends.

        Waits a little for the first rows of a function that was just started, and raises what it has raised.
        """
        start = split.start or BEGINNING
        most = MOST_ROWS if limit.rows is None else min(max(limit.rows, 1), MOST_ROWS)
        wanted = start["count"] + most
        run, patience = self._run_from(start)
        while run.count < wanted and not run.ended:
            if run.take():
                self._marks.append(run.position)
                patience = SETTLE
            elif not run.ended and not run.wait(patience):
                break
        if run.ended and run.count <= wanted:
            return split
        if run.count <= start["count"]:
            return None
        while self._marks and self._marks[0]["count"] <= start["count"]:
            self._marks.popleft()
        fitting = [mark for mark in self._marks if start["count"] < mark["count"] <= wanted]
        # Of a section that is longer than the limit there is no state in the middle.
        return split.up_to(fitting[-1] if fitting else {**start, "count": wanted})

    def close(self) -> None:
        """End the function."""
        run, self._ahead = self._ahead, None
        if run is not None:
            run.close()

    def _run_from(self, start: dict[str, Any]) -> tuple[FunctionRun, float]:
        run = self._ahead
        if run is not None and run.begun <= start["count"] <= run.count:
            return run, SETTLE
        self.close()
        self._marks.clear()
        self._ahead = run = FunctionRun(self._source, start)
        return run, PATIENCE


class FunctionReader(SplitReader[FunctionSplit]):
    """Runs the function and gives what it emits, with its state behind that."""

    def __init__(self, source: FromSourceFunction) -> None:
        self._source = source
        self._split: FunctionSplit | None = None
        self._run: FunctionRun | None = None
        self._given = 0
        self._guard = threading.Lock()
        self._woken: Future[None] = Future()

    def handle_splits_changes(self, change: SplitsChange[FunctionSplit]) -> None:
        """Begin to run from the split's start, or end."""
        self.close()
        if isinstance(change, SplitsAdded):
            (self._split,) = change.splits
            start = self._split.start or BEGINNING
            self._given = start["count"]
            self._run = FunctionRun(self._source, start)

    def fetch(self) -> Sequence[Fetched]:
        """What the function has emitted; waits for it."""
        run, split = self._run, self._split
        assert run is not None and split is not None
        rows: list[Any] = []
        while not rows and not run.ended and not self._woken.done():
            # What lies between the state and the start was read before.
            skip = max(0, self._given - run.count)
            rows = run.take()[skip:]
            if not rows and not run.ended:
                run.wait(None, self._woken)
        with self._guard:
            if self._woken.done():
                self._woken = Future()
        return self._fetched(run, split, rows)

    def _fetched(self, run: FunctionRun, split: FunctionSplit, rows: list[Any]) -> Sequence[Fetched]:
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
        if not rows and not finished:
            return []
        self._given += len(rows)
        return [Fetched(split.split_id, rows, run.position, finished, run.timestamp)]

    def wake_up(self) -> None:
        """End the wait for the function. Any thread."""
        with self._guard:
            if not self._woken.done():
                self._woken.set_result(None)

    def close(self) -> None:
        """End the function."""
        run, self._run, self._split = self._run, None, None
        if run is not None:
            run.close()


class FunctionRun:
    """One run of the function, from a position. Confined to whoever takes from it.

    position: behind the rows that were taken. count: how many that are, from the beginning of the source.
    """

    def __init__(self, source: FromSourceFunction, position: dict[str, Any]) -> None:
        self._schema = source.schema
        self._capacity = source.capacity
        self._input = LegacySourceInput(
            source.make(), capacity=source.capacity, grace=source.grace, name=source.name
        )
        if position["state"] is not None:
            state = pickle.loads(base64.b64decode(position["state"]))
            self._input.restore_state(LegacyInputState(state, (), False))
        self.begun = self.count = position["base"]
        self.position = {**position, "count": position["base"]}
        self.ended = False
        self.timestamp: float | None = None
        """The latest event time of what was taken."""
        self._elements: list[Any] = []
        self._watermark: float | None = None

    def take(self) -> list[Any]:
        """The rows that it has emitted since, up to a moment at which its state is known; empty for none.

        Does not wait. Raises what the function has raised; what it had emitted behind its last known state
        is then dropped, as it will be emitted again.
        """
        status = InputStatus.MORE_AVAILABLE
        while status is InputStatus.MORE_AVAILABLE and len(self._elements) < self._capacity:
            status = self._input.emit_next(self)
        if status is InputStatus.END_OF_INPUT:
            self.ended = True
        if not self._elements:
            return []
        # In one moment: its state, and what it has emitted up to that and nobody has taken.
        state = self._input.snapshot_state()
        for _ in state.pending:
            before = len(self._elements)
            while len(self._elements) == before:
                self._input.emit_next(self)
        return self._rows(state.source)

    def wait(self, seconds: float | None, woken: Future[None] | None = None) -> bool:
        """Wait until it has emitted something or has ended, and say so; or `seconds`, or until `woken`."""
        more = self._input.available()
        if more is None:
            return True
        futures: list[Future[Any]] = [more] if woken is None else [more, woken]
        return more in wait(futures, seconds, FIRST_COMPLETED).done

    def close(self) -> None:
        """Cancel the function, and wait for its end."""
        self._input.close()

    def _rows(self, state: Any) -> list[Any]:
        elements, self._elements = self._elements, []
        times = [element.timestamp for element in elements if type(element) is Timestamped]
        rows = [
            row_of(element.value if type(element) is Timestamped else element, self._schema)
            for element in elements
            if type(element) is not _Mark
        ]
        self.timestamp = max(times) if times else self._watermark
        if rows:
            self.count += len(rows)
            written = base64.b64encode(pickle.dumps(state)).decode()
            self.position = {"count": self.count, "base": self.count, "state": written}
        return rows

    # -- as the output of the function's input ----------------------------------------------------

    is_available = True

    def collect(self, record: Any) -> None:
        """A record comes."""
        self._elements.append(record)

    def emit_watermark(self, timestamp: float) -> None:
        """A watermark comes. It is counted, as it is one of what the snapshot holds."""
        self._watermark = timestamp
        self._elements.append(_Mark())

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """No barrier comes from a function."""
        raise TypeError(f"{barrier!r}: no barrier can come from a source function")

    def available(self) -> Future[Any]:
        """There is always room."""
        room: Future[Any] = Future()
        room.set_result(None)
        return room


class _Mark:
    """The place of a watermark."""
