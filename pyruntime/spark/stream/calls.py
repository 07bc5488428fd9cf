"""The calls of a stream in one worker process, which go on between micro-batches.

One `Engine` for each stream and process: an operator whose input never ends, and the entries of each bucket.
Methods are for the task's thread, one at a time, unless they say that they are for the loop's. A task waits
for calls here, but never longer than it says, and takes up those that its state names.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.aio.calls import ResultConverter
from pillarbox.aio.errors import CallFailed, TooManyFailures
from pillarbox.aio.journal import Journal
from pillarbox.aio.task_run import TaskRun
from pillarbox.spark.record import RECORD_BYTES
from pillarbox.spark.stream.entry import Entry, counted
from pillarbox.spark.stream.feed import Feed
from pillarbox.spark.stream.state import Held, Ticket
from pillarbox.spark.work import Work
from pillarbox.spark.worker import Worker, worker
from pillarbox.task import CheckpointBarrier, RowBatch

if TYPE_CHECKING:
    from pillarbox.aio.task_io import Chunk

log = logging.getLogger("pillarbox")

KEEP = 60.0
"""Seconds for which calls go on although no task has asked for their bucket; Spark ends idle workers then."""

LATE = 2
"""Attempts before, in processes that are gone, after which a call is waited for."""

LOOK = 5.0
"""Seconds between two looks for calls that nobody asks for."""


class _Bucket:
    """The entries of a bucket that are here, by ticket, and when a task or a process last asked."""

    def __init__(self) -> None:
        self.entries: dict[Ticket, Entry] = {}
        self.asked = time.monotonic()


class Flushed(NamedTuple):
    """A bucket's share of one execution of a micro-batch: what leaves, and what becomes the state.

    leaving: rows with their results, in the order in which they leave. converted: rows that got their output
    in it and stay for their order. state: the blob, None for none. is_new: it is another than before.
    """

    batch: int
    stage: int
    leaving: list[Entry]
    converted: list[Entry]
    state: bytes | None
    is_new: bool


class Engine:
    """Makes the calls of one stream in this process. See the module for threads.

    name: tells streams apart, also between processes. fetch: asks another process of this machine for calls
    that it makes: it takes the engine, that process, and entries; what it cannot get, it gives to `call`.
    convert: makes of results the form in which they are written; None for results that nobody writes.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        journal: Journal | None,
        fetch: Callable[[Engine, bytes, list[Entry]], None],
        convert: ResultConverter | None = None,
    ) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self.process = process()
        self.identity = uuid.uuid4().hex
        """Tells this engine from all others, those before it in this process too."""
        self._flushed: dict[int, Flushed] = {}
        self._work = work
        self._fetch = fetch
        self._worker: Worker = worker()
        self.loop_thread = self._worker.loop_thread
        self._changed = threading.Condition()
        self._buckets: dict[int, _Bucket] = {}
        self._used = time.monotonic()
        self._ending = self._ended = False
        self._users = 0
        self._journal = journal
        self._convert = convert
        self._feed = Feed()
        self._run: TaskRun | None = None
        fn = self._worker.acquire(work.token, work.fn)
        self._fn = counted(fn, in_batches=work.options.batch is not None)
        context = contextvars.copy_context()
        self.loop_thread.call(lambda: self._start(context, journal))

    # -- for the task's thread --------------------------------------------------------------------

    def acquire(self) -> bool:
        """Note that a task uses it, until it says `release`; False if it is about to end.

        Raises what ended the operator between two micro-batches, once: the next task begins anew.
        """
        with self._changed:
            if self._ending:
                return False
        self.check()
        if self._journal is not None:
            # The calls that this task would make again may have been those of another process.
            self._journal.refresh()
        with self._changed:
            self._users += 1
        return True

    def release(self) -> None:
        """A task that has acquired it has come to its end. One that died has taken its process along."""
        with self._changed:
            self._users -= 1
            self._used = time.monotonic()
            for bucket in self._buckets.values():
                bucket.asked = self._used

    def open(self, bucket: int, held: Sequence[Held]) -> list[Entry]:
        """The entries of what a bucket's committed state has, with their calls: adopted, fetched, or made.

        Calls of the bucket that the state does not name belong to a micro-batch that failed: they are let go.
        """
        # spec: Stream!Open
        entries: list[Entry] = []
        elsewhere: dict[bytes, list[Entry]] = {}
        again: list[Entry] = []
        with self._changed:
            before = self._buckets.get(bucket, _Bucket()).entries
            kept = self._buckets[bucket] = _Bucket()
            for each in held:
                ticket = each.ticket
                entry = None if ticket is None else before.pop(ticket, None)
                if entry is not None:
                    entry.is_committed = True
                if entry is None:
                    entry = Entry(*each)
                    entry.bucket = bucket
                    if entry.done:
                        entries.append(entry)
                        continue
                    if ticket is None or ticket.process == self.process:
                        again.append(entry)
                    else:
                        elsewhere.setdefault(ticket.process, []).append(entry)
                if entry.ticket is not None:
                    kept.entries[entry.ticket] = entry
                entries.append(entry)
            for entry in before.values():
                entry.dropped = True
        if before:
            self.loop_thread.call(self._let_go)
        self.call(bucket, again)
        for owner, theirs in elsewhere.items():
            self._fetch(self, owner, theirs)
        return entries

    def call(self, bucket: int, entries: list[Entry]) -> None:
        """Have the calls of `entries` made, in their order, each under a new ticket. Any thread."""
        if not entries:
            return
        with self._changed:
            place = self._buckets.setdefault(bucket, _Bucket())
            for entry in entries:
                entry.bucket = bucket
                entry.is_late = entry.attempts_before >= LATE
                if entry.ticket is not None:
                    place.entries.pop(entry.ticket, None)
                entry.ticket = Ticket(self.process, next(_numbers))
                place.entries[entry.ticket] = entry
        batch = entries[0].record._columns.batch
        size = batch.nbytes // max(1, batch.num_rows) + RECORD_BYTES
        self.loop_thread.call(lambda: self._feed.add(entries, size))

    def wait(self, entries: Iterable[Entry], deadline: float) -> None:
        """Wait until all of them have finished, but not beyond `deadline`, on the monotonic clock.

        Those that were begun again and again, as their processes had gone, are waited for: they would never
        come out where micro-batches follow one another more slowly than Spark ends idle workers.

        Raises what ended the operator.
        """
        # spec: Stream!TimeUp
        entries = list(entries)
        with self._changed:
            self._used = max(time.monotonic(), deadline)
            for bucket in {entry.bucket for entry in entries}:
                self._buckets.setdefault(bucket, _Bucket()).asked = self._used
            for entry in entries:
                while not entry.done and self.failure is None:
                    left = deadline - time.monotonic()
                    if left <= 0 and not entry.is_late:
                        break
                    self._changed.wait(left if left > 0 else None)
        self.check()

    def check(self) -> None:
        """Raise what ended the operator, if anything has."""
        error = self.failure
        if error is None:
            return
        # Who comes after it begins anew.
        _let_go(self)
        # Spark drops the cause of an error that it shortens, and keeps its text.
        if isinstance(error, CallFailed):
            raise error.with_trace() from None
        if isinstance(error, TooManyFailures):
            last = error.cause.with_trace() if isinstance(error.cause, CallFailed) else error.cause
            raise TooManyFailures(error.failed, error.finished, error.limit, last) from None
        raise self._work.options.redaction.sealed(error)

    def finished(self, entries: Sequence[Entry]) -> list[bool]:
        """Which of them have finished, at one moment."""
        with self._changed:
            return [entry.done for entry in entries]

    def leave(self, bucket: int, entries: Iterable[Entry]) -> None:
        """Forget entries of a bucket: they are emitted, or have their output in the state."""
        with self._changed:
            place = self._buckets.setdefault(bucket, _Bucket()).entries
            for entry in entries:
                # The replay of a micro-batch that fails finds what the committed state names.
                if entry.ticket is not None and not entry.is_committed:
                    place.pop(entry.ticket, None)

    def remember(self, bucket: int, flushed: Flushed) -> None:
        """Keep what a bucket gave for further executions of its micro-batch, until a later one flushes."""
        for each in [number for number, old in self._flushed.items() if old.batch != flushed.batch]:
            del self._flushed[each]
        self._flushed[bucket] = flushed

    def remembered(self, bucket: int) -> Flushed | None:
        """The bucket's share of the last execution here; None if there was none."""
        return self._flushed.get(bucket)

    def snapshot(self, entries: Iterable[Entry]) -> list[Held]:
        """What the state keeps of entries."""
        with self._changed:
            return [entry.held() for entry in entries]

    # -- for the loop's thread --------------------------------------------------------------------

    def call_here(self, entries: list[Entry]) -> None:
        """Make calls that another process was thought to make, unless nobody waits for them any more."""
        for entry in entries:
            if not entry.dropped and not entry.done:
                self.call(entry.bucket, [entry])

    def finish(self, entry: Entry, result: Any) -> None:
        """`entry` has its result from another process."""
        with self._changed:
            if entry.done:
                return
            entry.finish(result, elsewhere=True)
            self._changed.notify_all()
        for watch in entry.watchers:
            watch(entry)

    def find(self, number: int) -> Entry | None:
        """The entry whose call has this number here; its bucket has been asked for."""
        ticket = Ticket(self.process, number)
        with self._changed:
            for bucket in self._buckets.values():
                entry = bucket.entries.get(ticket)
                if entry is not None:
                    bucket.asked = time.monotonic()
                    return entry
        return None

    def emit(self, results: Chunk) -> None:
        """Take the results of the task."""
        # spec: Stream!Finish
        with self._changed:
            watched = []
            for call, result in results:
                entry: Entry = call.row
                entry.finish(result)
                if entry.watchers:
                    watched.append(entry)
            self._changed.notify_all()
        for entry in watched:
            for watch in entry.watchers:
                watch(entry)

    def finish_all(self) -> None:
        """The task has ended."""
        self.fail(RuntimeError("the calls of this stream have been ended: nobody asked for them"))

    def fail(self, error: BaseException) -> None:
        """The task has ended with `error`."""
        with self._changed:
            self.failure = error
            self._changed.notify_all()
        self._forget()

    def _start(self, context: contextvars.Context, journal: Journal | None) -> None:
        try:
            self._run = TaskRun(
                self._fn,
                self._work.options.spread(),
                self._feed,
                _Output(self),
                loop=self.loop_thread.loop,
                context=context,
                journal=journal,
                watched=True,
                convert=self._convert,
            )
            self._run.start()
            self.loop_thread.loop.call_later(LOOK, self._look)
        except BaseException as error:
            self.fail(error)

    def _look(self) -> None:
        if self._ended:
            return
        now = time.monotonic()
        with self._changed:
            if self._users:
                self._used = now
            dropped = False
            for number, bucket in list(self._buckets.items()):
                watched = any(entry.watchers for entry in bucket.entries.values())
                if not watched and not self._users and now - bucket.asked > KEEP:
                    for entry in bucket.entries.values():
                        entry.dropped = dropped = True
                    del self._buckets[number]
            self._ending = not self._buckets and now - self._used > KEEP
        if dropped:
            self._let_go()
        if self._ending and self._run is not None:
            self._run.stop()
        else:
            self.loop_thread.loop.call_later(LOOK, self._look)

    def _let_go(self) -> None:
        if self._run is not None:
            self._feed.let_go()
            self._run.operator.discard(lambda entry: entry.dropped)

    def _forget(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._ending:
            _let_go(self)
        # Releasing waits for the loop, so not on it.
        token, here = self._work.token, self._worker
        threading.Thread(
            target=lambda: here.release(token, False), name="pillarbox-close", daemon=True
        ).start()


class _Output:
    """The engine as the output of its task; it takes results whenever they come. For the loop's thread."""

    is_available = True
    has_ended = True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.finish = engine.finish_all
        self.fail = engine.fail

    def collect(self, batch: RowBatch) -> None:
        self._engine.emit(batch.rows)

    def available(self) -> Future[Any]:
        raise AssertionError("there is always room")

    def emit_watermark(self, timestamp: float) -> None:
        """Event time is Spark's here."""

    def emit_barrier(self, barrier: CheckpointBarrier) -> None:
        """The state of a micro-batch is taken by bucket."""


_numbers = itertools.count(1)
_lock = threading.Lock()
_engines: dict[str, Engine] = {}
_process = (0, b"")


def process() -> bytes:
    """What tells this process apart from all others, on all machines. Any thread."""
    global _process
    with _lock:
        if _process[0] != os.getpid():
            # A fork has none of its parent's threads, and so none of its calls.
            _process = (os.getpid(), uuid.uuid4().bytes)
            _engines.clear()
        return _process[1]


def engine(name: str) -> Engine | None:
    """The engine of this name in this process. Any thread."""
    process()
    with _lock:
        return _engines.get(name)


def _let_go(ended: Engine) -> None:
    with _lock:
        if _engines.get(ended.name) is ended:
            del _engines[ended.name]


def acquire_engine(name: str, make: Callable[[], Engine]) -> Engine:
    """The engine of this name, made if there is none, for the task that begins."""
    found = engine(name)
    if found is None or not found.acquire():
        found = make()
        found.acquire()
        with _lock:
            _engines[name] = found
    return found
