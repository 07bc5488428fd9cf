"""Records what the buckets of a stream do: in their tasks, and in the process that holds their calls.

`RecordedProcessor` stands for `BucketProcessor`, and starts a process for calls that records as well; nothing
of what ships knows of it. Each event is a line of JSON, appended in one write to one file by all processes:
the order of the lines is that of the events, as a process writes its own under the lock of its calls.
`spec.stream_trace` reads them. Rows are named by their identities, outputs by `output_of`.

    start     a task has read the committed state of a bucket; ticked: the clock has moved
    advance   it asks for the calls of these rows
    attach    a process has begun to make the calls of a stream
    open      it has opened a bucket, and holds these rows; or has refused it (late)
    begin     it has begun the calls of these rows
    finish    calls have ended
    read      a task is told of results: row and output
    record    it has emitted outputs, and has written a state
    refused   it was not let in

A driver adds plan, batch, take, skip, log, restart and kill, see `spec.stream_trace`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from pillarbox.spark.ledger_plan import QUERY
from pillarbox.spark.records import from_ipc
from pillarbox.spark.stream import call_client, call_process
from pillarbox.spark.stream.bucket_state import IDENTITY, BucketState, Finished, decode
from pillarbox.spark.stream.buckets import JOB_GROUP, ROWS, TIME, BucketProcessor
from pillarbox.spark.stream.call_client import CallClient
from pillarbox.spark.stream.held_calls import HeldCalls, LateExecutionError

from .recorded import append

if TYPE_CHECKING:
    import pandas as pd

    from pillarbox.spark.stream.bucket_state import StreamPlan

ACTION = "pillarbox.test.action"
"""The local property with the number of the action that a task belongs to; see `Input` of `StreamState`."""

CALL = "call"
"""The column of results with a name of the call, which columns that are kept stand beside or not."""

_numbers = itertools.count(1)

# Of a process that is started, as `call_client._DETACHED` is, with the file of the record in front.
_DETACHED = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); "
    "from spec.stream_recorder import main; main({path!r}, *sys.argv[1:])"
)


def label_of(plan: StreamPlan) -> str:
    """The label of a stream in the record: what its driver has put in front of its name."""
    return plan.name.partition(".")[0]


def output_of(row: dict[str, Any]) -> str:
    """The name of an output: calls have to give each another one, in the column `CALL`."""
    return hashlib.blake2b(row[CALL].encode(), digest_size=8).hexdigest()


def outputs_of(batch: pa.RecordBatch | None) -> list[str]:
    """The names of the outputs of a batch."""
    return [] if batch is None else [output_of(row) for row in batch.to_pylist()]


def identities_of(rows: pa.RecordBatch | None) -> list[str]:
    """The identities of rows, in words."""
    return [] if rows is None else [each.hex() for each in rows.column(IDENTITY).to_pylist()]


def described(state: BucketState) -> dict[str, list[str]]:
    """The content of a state: rows that wait, and outputs, each in its order."""
    leaving = [output for blob in state.leaving for batch in from_ipc(blob) for output in outputs_of(batch)]
    return {
        "waiting": identities_of(state.waiting),
        "blocked": outputs_of(state.blocked),
        "leaving": leaving,
    }


# -- in a task -------------------------------------------------------------------------------------


class _RecordedState:
    """The state of a bucket, and what is read from it and written to it last."""

    def __init__(self, state: Any, when_read: Callable[[bytes | None], None]) -> None:
        self._state = state
        self._when_read = when_read
        self.written: bytes | None = None

    def get(self) -> Any:
        found = self._state.get()
        self.written = None
        self._when_read(None if found is None else bytes(found[0]))
        return found

    def update(self, value: tuple[bytes]) -> None:
        self.written = value[0]
        self._state.update(value)

    def clear(self) -> None:
        self._state.clear()


class RecordedClient(CallClient):
    """The way to a process that records, for the task of the name `task`."""

    def __init__(self, plan: StreamPlan, query: str | None, run: str | None, path: str, task: str) -> None:
        self._path, self._task = path, task
        call_client._DETACHED = _DETACHED.format(path=path)
        super().__init__(plan, query, run)

    def advance(
        self, bucket: int, time_ms: int, rows: pa.RecordBatch | None, waiting: int, *, ticked: bool
    ) -> Finished:
        """Also say which rows are asked for, and whether the task was let in."""
        words = {"stream": label_of(self._plan), "task": self._task, "bucket": bucket}
        append(self._path, "advance", **words, rows=identities_of(rows), waiting=waiting)
        try:
            return super().advance(bucket, time_ms, rows, waiting, ticked=ticked)
        except LateExecutionError as error:
            append(self._path, "refused", **words, error=str(error))
            raise

    def _attach(self, name: str, time_ms: int, *, starts: bool) -> bool:
        is_new = name not in self._connections
        found = super()._attach(name, time_ms, starts=starts)
        if is_new and found:
            try:
                call_client._ask(self._connections[name], "task", self._task)
            except (EOFError, ConnectionError):
                self._disconnect(name)
                raise
        return found


class RecordedProcessor(BucketProcessor):
    """A bucket's processor that records into the file `path`."""

    def __init__(self, plan: StreamPlan, path: str) -> None:
        super().__init__(plan)
        self._path = path

    def init(self, handle: Any) -> None:
        """Name the task."""
        super().init(handle)
        self._task = f"{os.getpid()}-{next(_numbers)}"
        self._words: dict[str, Any] = {}
        self._state: Any = _RecordedState(self._state, self._begin)

    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Also say what the bucket had, has emitted and has written."""
        words = {"stream": label_of(self._plan), "task": self._task, "bucket": int(key[0])}
        self._words = words | {"action": self._action(), "ticked": False}

        def timed() -> Iterator[pd.DataFrame]:
            for each in rows:
                self._words["time"] = int(each[TIME].iloc[0])
                self._words["ticked"] |= bool(each[ROWS].isna().any())
                yield each

        emitted: list[str] = []
        for frame in super().handleInputRows(key, timed(), timerValues):
            for blob in frame[ROWS]:
                emitted += [output for batch in from_ipc(blob) for output in outputs_of(batch)]
            yield frame
        append(self._path, "record", **words, emitted=emitted, state=self._described(self._state.written))

    def _action(self) -> int:
        """The number of the action that this task belongs to, 0 for one that is not told."""
        context = TaskContext.get()
        assert context is not None
        return int(context.getLocalProperty(ACTION) or 0)

    def _calls(self) -> CallClient:
        if self._client is None:
            context = TaskContext.get()
            assert context is not None
            query, run = context.getLocalProperty(QUERY), context.getLocalProperty(JOB_GROUP)
            self._client = RecordedClient(self._plan, query, run, self._path, self._task)
        return self._client

    def _begin(self, blob: bytes | None) -> None:
        append(self._path, "start", **self._words, state=self._described(blob))

    def _described(self, blob: bytes | None) -> dict[str, list[str]]:
        return described(decode(blob, self._plan.columns, self._plan.output)[0])


# -- in the process that holds the calls -----------------------------------------------------------


class RecordedCalls(HeldCalls):
    """The calls of a stream, with what happens to them. `record_into` comes first."""

    def record_into(self, path: str, plan: StreamPlan, executor: int) -> None:
        """Record into the file `path`; each of these has a life of its own there."""
        self._path = path
        self._words = {"stream": label_of(plan), "life": f"{os.getpid()}-{next(_numbers)}"}
        append(path, "attach", **self._words, executor=executor, plan=plan.name)

    def open(self, bucket: int, time: int, wanted: Any, *, ticked: bool = False) -> list[int]:
        """Also say what is held then."""
        with self._changed:
            missing = super().open(bucket, time, wanted, ticked=ticked)
            self._append("open", bucket, time=time, held=self._held(bucket))
        return missing

    def begin(self, bucket: int, time: int, rows: pa.RecordBatch) -> None:
        """Also say which calls have begun."""
        with self._changed:
            before = self._held(bucket)
            super().begin(bucket, time, rows)
            held = self._held(bucket)
            self._append("begin", bucket, held=held, begun=[each for each in held if each not in before])

    def read(self, bucket: int, time: int, wanted: Any) -> Finished:
        """Also say which results are there."""
        with self._changed:
            known = super().read(bucket, time, wanted)
            ended = [wanted[place].hex() for place in known.places]
            self._append("read", bucket, results=list(zip(ended, outputs_of(known.outputs), strict=True)))
        return known

    def emit(self, results: Any) -> None:
        """Also say which calls have ended."""
        with self._changed:
            super().emit(results)
            ended = [call.row.identity.hex() for call, _ in results if not call.row.released]
            append(self._path, "finish", **self._words, rows=ended)

    def _place(self, bucket: int, time: int) -> Any:
        try:
            return super()._place(bucket, time)
        except LateExecutionError:
            self._append("late", bucket, time=time)
            raise

    def _held(self, bucket: int) -> list[str]:
        return [identity.hex() for identity in self._buckets[bucket].rows]

    def _append(self, what: str, bucket: int, **words: Any) -> None:
        append(self._path, what, **self._words, task=_connection.task, bucket=bucket, **words)


class _Connection(threading.local):
    """Of a connection's thread: the task whose it is."""

    task = ""


_connection = _Connection()


def main(path: str, socket: str, executor: str) -> None:
    """Answer at `socket` until the process `executor` has ended, and record into the file `path`."""

    class Stream(call_process._Stream):
        def __init__(self, plan: StreamPlan, *words: Any) -> None:
            super().__init__(plan, *words)
            assert isinstance(self.calls, RecordedCalls)
            self.calls.record_into(path, plan, int(executor))

    class Process(call_process.CallProcess):
        def _advance(self, stream: call_process._Stream, *words: Any) -> tuple[Any, ...]:
            if words[0] == "task":
                _connection.task = words[1]
                return ("task",)
            return super()._advance(stream, *words)

    module: Any = call_process
    module.HeldCalls = RecordedCalls
    module._Stream = Stream
    module.CallProcess = Process
    call_process.main(socket, int(executor))
