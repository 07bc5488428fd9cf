"""The process of an executor that holds the calls of its streams between micro-batches.

Spark gives a partition of the next micro-batch to whichever idle worker comes first, so calls that are to go
on cannot live in a worker. The first task that needs this process starts it; it ends with the executor's Java
process. It listens on a Unix socket in a folder that only its user may enter, and nothing listens on a
network. A message is a tuple, pickled, as Spark's own between its processes are; each connection is one
task's, with a thread of its own.

    python -m pillarbox.spark.stream.call_process SOCKET EXECUTOR_PID
"""

# Where can calls live between two micro-batches? Not in a Python worker: Spark gives the partition to
# whichever is idle. Not on the driver: rows would cross the network twice, and one process would make all
# calls. Not in Spark's state: it holds rows, and a call is a socket that waits. So each executor has a
# process of its own for them, and buckets of rows come to it.
#
# Adoption. The next micro-batch may come to another executor of the same host; then its task finds by a file
# ("holders") which process holds the calls of its bucket, and asks that one. It may also come to another
# host, or the process may have been killed; then the rows are in Spark's state, the process that is asked
# now does not know them ("missing"), and their calls are made anew. Moving calls between processes would
# need the service's sockets to move. So nothing is lost, and a call is made again only where its process
# has died.
#
# A query that is started again comes with another run id, and adopts the calls of the run before by the
# name of its plan; tasks of that run that come late are refused, or two tasks would open one bucket.
#
# Messages do not go over `pillarbox.rpc`: they are rows, up to hundreds of megabytes, between processes of
# one user on one machine (docs/decisions/one-transport.md has the figures). A Unix socket in a folder of
# mode 0700 is the whole of its security: whoever can connect could also read this process's memory. That is
# why pickle is safe here, and would not be on a network.

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Listener
from typing import Any

from pyspark import cloudpickle

from pillarbox.aio.errors import CallFailed, CallTimeout, TooManyFailures
from pillarbox.aio.function import gives_one_row, with_parse
from pillarbox.ledger.keys import fingerprint
from pillarbox.redaction import LOG_FILTER
from pillarbox.spark.outcomes import with_trace
from pillarbox.spark.records import arrow_function, from_ipc, to_ipc
from pillarbox.spark.results import RowEncoder
from pillarbox.spark.stream.bucket_state import IDENTITY, IDENTITY_BYTES, StreamPlan, ledger_key
from pillarbox.spark.stream.buckets import BUCKETS
from pillarbox.spark.stream.call_client import HELD, STARTING, began_at, connected, locked
from pillarbox.spark.stream.held_calls import HeldCalls, LateExecutionError
from pillarbox.spark.worker import worker
from pillarbox.spark.writer import RowWriter
from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

MAX_WAITING_CONNECTIONS = 128

ACCEPT_INTERVAL_S = 1.0
"""Seconds until a task is accepted again, after one could not be."""

IDLE_S = 60.0
"""Seconds after which a stream is ended that nobody asks for and that holds no row."""

MAX_IDLE_WITH_ROWS_S = 3600.0
"""Seconds after which a stream is ended that nobody asks for, whatever it holds: its query has stopped."""

FILE_LIFETIME_S = 86_400.0
"""Seconds for which a file is kept that nobody writes. A clock that has lost a report moves once."""

EXECUTOR_CHECK_INTERVAL_S = 1.0
"""Seconds between two looks whether the executor is there."""


class _Stream:
    """A stream whose calls are made here, and the run of the query that it belongs to.

    asked: when a task was last heard of. tasks: that are connected; under the lock of the process.
    """

    def __init__(
        self,
        plan: StreamPlan,
        query: str | None,
        run: str | None,
        after: Sequence[_Stream] = (),
    ) -> None:
        operator = plan.operator
        self.plan = plan
        self.query = query
        self.run = run
        self.asked = time.monotonic()
        self.tasks = 0
        self._lock = threading.Lock()
        self._time_ms, self._began = -1, 0.0
        self._deadlines: dict[int, float] = {}
        here = worker()
        ledger_session = None
        if operator.options.ledger is not None:
            # Another checkpoint can only share a run that has a name.
            is_shared = operator.options.ledger.run is not None
            assert operator.ledger_plan is not None
            ledger_session = operator.ledger_plan.open_for_stream(
                operator.options,
                lambda row: fingerprint([ledger_key(row.identity, row.batch if is_shared else -1)], "stream"),
            )
        entered = here.acquire(operator.token, operator.fn)
        if operator.options.batch is not None and operator.options.batch.arrow:
            entered = arrow_function(entered, spread=False, in_tuples=True)
        self.calls: HeldCalls = HeldCalls(
            entered,
            operator.options,
            # Columns that are kept do not leave the task: see `Finished.beside`.
            RowWriter(
                [],
                plan.schema,
                operator.time_zone,
                errors=operator.options.errors.mode,
                redact=operator.options.errors.redaction,
            ),
            loop_thread=here.loop_thread,
            ledger_session=ledger_session,
            convert=with_parse(
                operator.fn,
                RowEncoder(plan.schema, operator.time_zone, one_row=gives_one_row(operator.fn)),
                keeps=ledger_session is not None,
            ),
            dead_letters=operator.dead_letters,
            after=[each.calls for each in after],
        )

    # Spark opens the buckets of a task one after the other, and of several tasks at a time. One deadline
    # for each would add up to sixteen times `max_wait`; one for all would be used up by the first bucket with
    # slow calls.
    def deadline_of(self, time_ms: int, bucket: int) -> float:
        """Until when the executions of a micro-batch wait for the calls of a bucket.

        All of them together wait for `max_wait` at most. A bucket does not use up the time of those that come
        after it, whose calls may be fast: Spark gives a task its buckets one by one.
        """
        with self._lock:
            if time_ms != self._time_ms:
                self._time_ms, self._began = time_ms, time.monotonic()
                self._deadlines.clear()
            share = (len(self._deadlines) + 1) / len(BUCKETS)
            return self._deadlines.setdefault(bucket, self._began + self.plan.max_wait * share)

    def has_failed_before(self, time_ms: int) -> bool:
        """True if the calls have failed since a micro-batch before that of `time_ms` opened its buckets.

        That one cannot have been told, and its attempts would make all calls again, time after time.
        """
        with self._lock:
            return self.calls.failure is not None and 0 <= self._time_ms < time_ms

    def belong_to(self, run: str) -> None:
        """Go on in another run of the query, which makes the calls again if they have failed."""
        with self._lock:
            self.run, self._time_ms = run, -1
        self.calls.restart()

    def release(self) -> None:
        """Let go of the function of calls that are closed; what closes it may take its time."""
        start_thread(
            threading.Thread(target=worker().release, args=(self.plan.operator.token, False), daemon=True)
        )


class CallProcess:
    """Answers tasks; see the module. `serve` blocks; the rest is for the threads of connections.

    idle: see `IDLE_S`.
    """

    def __init__(self, path: str, *, idle: float = IDLE_S) -> None:
        self._idle = idle
        self._listener = Listener(path, "AF_UNIX", MAX_WAITING_CONNECTIONS)
        self._lock = threading.Lock()
        self._streams: list[_Stream] = []
        self._ended_runs: set[str] = set()
        self._is_closed = False

    def serve(self) -> None:
        """Accept connections, for ever."""
        while True:
            connection = None
            try:
                connection = self._listener.accept()
                start_thread(threading.Thread(target=self._talk, args=(connection,), daemon=True))
            except (OSError, RuntimeError):
                if self._is_closed:
                    return
                # Files or threads are used up for now. Tasks wait meanwhile, or connect again.
                log.exception("async_stream: a task could not be served")
                if connection is not None:
                    connection.close()
                time.sleep(ACCEPT_INTERVAL_S)

    def end_idle(self) -> None:
        """End streams that nobody has asked for of late and that hold nothing."""
        now = time.monotonic()
        # A function that is being opened may hold it for long.
        if not self._lock.acquire(timeout=EXECUTOR_CHECK_INTERVAL_S):
            return
        try:
            ended = [
                stream
                for stream in self._streams
                if not stream.tasks
                and now - stream.asked > (MAX_IDLE_WITH_ROWS_S if stream.calls.pending else self._idle)
            ]
            self._streams = [each for each in self._streams if each not in ended]
        finally:
            self._lock.release()
        self._end(ended)

    def close(self) -> None:
        """Accept no more connections, and end all calls."""
        self._is_closed = True
        self._listener.close()
        with self._lock:
            ended, self._streams = self._streams, []
        self._end(ended)

    @staticmethod
    def _end(streams: Sequence[_Stream]) -> None:
        for stream in streams:
            # What is cancelled ends on the loop.
            stream.calls.close()
            stream.release()

    def _talk(self, connection: Connection[Any, Any]) -> None:
        # A thread for each connection: `advance` waits for calls, up to `max_wait`, and a task asks for one
        # bucket after the other, so there are as many threads as tasks. It attaches to its stream first.
        stream: _Stream | None = None
        try:
            with connection:
                while True:
                    arguments = connection.recv()
                    reply: tuple[Any, ...]
                    try:
                        if stream is not None:
                            reply = self._advance(stream, *arguments)
                        else:
                            stream = self._attach(*arguments)
                            reply = ("unknown",) if stream is None else ("attached",)
                    except Exception as error:
                        reply = ("failed", _pickled(error))
                    connection.send(reply)
        except (EOFError, OSError):
            return
        finally:
            if stream is not None:
                with self._lock:
                    stream.tasks -= 1
                    stream.asked = time.monotonic()

    def _attach(
        self, name: str, query: str | None, run: str | None, time_ms: int, plan: bytes | None
    ) -> _Stream | None:
        """A stream of this name, begun with its plan where it is not there; None if that is not given.

        query, run: None in a task that Spark does not tell them, as in a thread of foreachBatch. time_ms: of
        the task's micro-batch. Raises what has ended the calls between the micro-batch before and this one.
        """
        with self._lock:
            if run in self._ended_runs:
                raise LateExecutionError(
                    f"query {query} was started again since run {run}, from which this task comes"
                )
            found = self._found(name, query, run)
            if found is not None and found.calls.failure is None:
                found.tasks += 1
                return found
            if found is not None and found.has_failed_before(time_ms):
                assert found.calls.failure is not None
                if found.run is None:
                    # Tasks that know no run could not tell the next one.
                    self._streams.remove(found)
                    found.release()
                raise found.calls.failure
            if plan is None:
                return None
            given: StreamPlan = cloudpickle.loads(plan)
            # Begun with another plan, a query has no use for the calls of the run before.
            ended = [] if found is None else [found]
            if run is not None:
                ended += [
                    each
                    for each in self._streams
                    if each is not found and each.query == query and each.run not in (None, run)
                ]
                self._ended_runs.update(each.run for each in ended if each.run not in (None, run))
            for each in ended:
                self._streams.remove(each)
                # What is cancelled ends on the loop, and is waited for there.
                each.calls.close()
            try:
                begun = _Stream(given, query, run, ended)
            finally:
                for each in ended:
                    each.release()
            begun.tasks = 1
            self._streams.append(begun)
            return begun

    def _found(self, name: str, query: str | None, run: str | None) -> _Stream | None:
        """The stream of a task that knows so much of it."""
        named = [each for each in self._streams if each.plan.name == name]
        if query is None:
            if len(named) > 1:
                raise RuntimeError(
                    "async_stream: two queries run this DataFrame, and Spark tells no task in a thread "
                    "of foreachBatch which is its own: build it anew for each query, or begin the thread as "
                    "pyspark.InheritableThread"
                )
            return named[0] if named else None
        for each in named:
            if each.query is None:
                each.query, each.run = query, run
            if each.query == query:
                if run is not None and each.run != run:
                    # The query was started again, and the calls that it waits for go on.
                    if each.run is not None:
                        self._ended_runs.add(each.run)
                    each.belong_to(run)
                return each
        return None

    def _advance(
        self,
        stream: _Stream,
        bucket: int,
        time_ms: int,
        identities: bytes,
        waiting: int,
        rows: bytes | None,
        ticked: bool,
    ) -> tuple[Any, ...]:
        """Open a bucket, begin what is new, wait for a while, and tell what has finished.

        identities: of the rows of the bucket, those that the committed state has first, so many as `waiting`
        says. rows: those that are to be begun. ticked: the micro-batch opens all buckets. Tells the places of
        rows that are missing here and in `rows`.
        """
        with self._lock:
            if stream not in self._streams:
                raise LateExecutionError("the query of this task was ended, or started again")
        calls = stream.calls
        wanted = [identities[at : at + IDENTITY_BYTES] for at in range(0, len(identities), IDENTITY_BYTES)]
        missing = calls.open(bucket, time_ms, wanted[:waiting], ticked=ticked)
        deadline = stream.deadline_of(time_ms, bucket)
        batch = None if rows is None else next(from_ipc(rows))
        if missing:
            given = set() if batch is None else {*batch.column(IDENTITY).to_pylist()}
            if not given.issuperset(wanted[place] for place in missing):
                return ("missing", missing)
        if batch is not None:
            calls.begin(bucket, time_ms, batch)
        calls.wait(bucket, wanted, waiting, deadline)
        known = calls.read(bucket, time_ms, wanted)
        outputs, dead_letters = (
            None if each is None else to_ipc(each) for each in (known.outputs, known.dead_letters)
        )
        return ("known", known.places, outputs, known.counts, dead_letters)


# Errors of users' functions are of classes that the other process may not have, or that do not survive
# pickle. What Spark shows must name the row and the cause all the same.
def _pickled(error: Exception) -> bytes:
    """An error that another process can raise, with its own text where it cannot travel itself."""
    if isinstance(error, CallFailed | CallTimeout | TooManyFailures):
        error = with_trace(error)
    try:
        data: bytes = cloudpickle.dumps(error)  # type: ignore[no-untyped-call]
        pickle.loads(data)
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def _is_there(pid: int, began: str | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return began is None or began_at(pid) == began


def main(path: str, executor: int) -> None:
    """Answer at `path` until the process `executor` has ended."""
    logging.getLogger("asyncio").addFilter(LOG_FILTER)
    began = began_at(executor)
    # Until this process has ended.
    held = locked(path + HELD, wait=False)
    if held is None:
        raise RuntimeError(f"async_stream: another process answers at {path}")
    remove_stale(os.path.dirname(path))
    process = CallProcess(path)
    start_thread(threading.Thread(target=process.serve, name="pillarbox-calls", daemon=True))
    # Whoever has started it waits for this.
    print("ready", flush=True)
    os.dup2(2, 1)
    while _is_there(executor, began):
        time.sleep(EXECUTOR_CHECK_INTERVAL_S)
        process.end_idle()
    _remove(path)
    # Calls that run, and their threads, go with the executor.
    os._exit(0)


def _remove(path: str) -> None:
    for each in (path, path + HELD, path + STARTING):
        with contextlib.suppress(OSError):
            os.unlink(each)


def remove_stale(folder: str) -> None:
    """Remove sockets of processes that were killed with their executors, and files that nobody needs."""
    sockets = set()
    for entry in os.scandir(folder):
        kind = entry.name.partition("-")[0]
        with contextlib.suppress(OSError):
            if kind == "calls":
                sockets.add(entry.path.removesuffix(STARTING).removesuffix(HELD))
            elif kind in ("clock", "holders") and time.time() - entry.stat().st_mtime >= FILE_LIFETIME_S:
                # What holders are named in it hold nothing any more: see MAX_IDLE_WITH_ROWS_S.
                os.unlink(entry.path)
    for path in sockets:
        with contextlib.suppress(OSError):
            _remove_left(path)


def _remove_left(path: str) -> None:
    """Remove a socket and what lies beside it, unless its process lives or is being started."""
    starting = locked(path + STARTING, wait=False)
    if starting is None:
        return
    with starting:
        is_locked_alive = os.path.exists(path + HELD)
        held = locked(path + HELD, wait=False)
        if held is None:
            return
        with held:
            if not is_locked_alive and (found := connected(path)) is not None:
                # Of a version before, which holds no lock.
                found.close()
                return
            _remove(path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
