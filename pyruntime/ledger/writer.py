"""Group commit: makes finished calls durable, many at a time, each key once, whoever else writes meanwhile.

A thread of a `LedgerWriter` waits until a commit is due, by time, by rows, by bytes or because somebody asks.
Under the folder's lock a commit first reads what other attempts have committed, leaves out what they have,
and appends the rest to a segment of its own; the wait for the disk comes after the lock. So each key has one
record, and the rows of all attempts get the same result. Idea: group commit (Gawlick, IMS Fast Path; DeWitt
et al. 1984).
"""

# The alternatives to segments that are appended to under a lock, and why each of them is worse:
#
# - A transactional database. SQLite has one writer at a time, no place in a bucket, and its file is not safe
#   on NFS; it takes twice the CPU of a frame. A server is one more thing to run, to secure and to wait for.
# - Spark's checkpoint. It is written once a micro-batch, after its last row: whatever dies before that pays
#   for every call again. A batch job has none.
# - Delta, Iceberg, or Parquet files. A commit is a file with a footer and an entry in a table's log: several
#   round trips for a hundred results. Tables resolve conflicts by aborting one writer, and here both have
#   paid. `pillarbox ledger export` writes Parquet from what is kept here.
# - Locks alone, held while a call runs. A lock that a stopped process holds stops all others, and one that
#   times out is no longer a lock. So the lock is held for a write into the page cache only, and who calls is
#   decided by a lease, which may be lost at any time: two holders cost money, never a wrong answer.
# - No lock, and records that are compared when they are read. No protocol of reads and writes makes two
#   attempts agree (Herlihy, "Wait-Free Synchronization", 1991): both would emit results of their own. That is
#   what remains in an object store, which has nothing else.
# - A file for each commit, written aside, synced and renamed. It is atomic without checksums, and costs two
#   fsyncs, one of them of the folder, and an inode for each commit. Appending costs one fsync, and checksums
#   find what a kill has torn. A merge, which replaces whole segments, does rename.

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from pillarbox.ledger.errors import LedgerClosedError, LedgerConflictError, LedgerError, LedgerValueError
from pillarbox.ledger.folders import Folder, OpenSegment
from pillarbox.ledger.format import (
    ERROR,
    VALUE,
    Frame,
    Record,
    Row,
    RowBlock,
    encode_frame,
    header,
    message_of,
    owner_of,
    size_of,
    to_batch,
)
from pillarbox.ledger.keys import KEY_BYTES, Scope
from pillarbox.ledger.lease import RENEWAL_INTERVAL_S, Lease
from pillarbox.ledger.local_folder import SUFFIX, LocalFolder
from pillarbox.ledger.reader import LedgerReader
from pillarbox.ledger.values import encode_all, encode_vectors
from pillarbox.thread_start import start_thread

COMMIT_LOCK_TIMEOUT_S = 30.0
"""Seconds that a commit waits for the folder's lock."""
FRAME_BYTES = 2**16
"""Bytes of a frame, about: to read one record is to read its frame."""
BLOCK_FRAME_BYTES = 2**18
"""Bytes of a frame of vectors, about: they come in blocks, and most are found again in their order."""
MAX_ADOPTION_TRIES = 10
Numbered: TypeAlias = "dict[int, Row | RowBlock]"
"""Entries by their numbers, blocks by that of their first one."""

EncodedFrame: TypeAlias = tuple[Frame, bytes, tuple[bytes | memoryview, ...]]
"""A frame, its keys and its messages, in parts."""


class Committer:
    """Commits to one scope, into a segment of its own. For one thread.

    about: what the header of the segment says. most_rows: of a frame. execution: what every record says of
    who called. one_input: a key has one input in an execution; else several are allowed.
    """

    def __init__(
        self,
        folder: Folder,
        reader: LedgerReader,
        about: Mapping[str, str],
        most_rows: int,
        execution: bytes,
        one_input: bool = True,
        lock_timeout: float = COMMIT_LOCK_TIMEOUT_S,
    ) -> None:
        self.folder = folder
        self.reader = reader
        self._about = dict(about)
        self._owner = owner_of(about)
        self._execution = execution
        self._one_input = one_input
        self._lock_timeout = lock_timeout
        self.most_rows = most_rows
        self._segment: OpenSegment | None = None
        self.segment_id = ""
        self._begin = b""

    def close(self) -> None:
        """Let others merge the segment."""
        if self._segment is not None:
            self._segment.close()

    def commit(self, left: Numbered) -> dict[int, Record]:
        """Make entries durable; returns what others have for some, by their numbers.

        Raises LedgerConflictError if this execution has a record of one of the keys for another input,
        LedgerFullError, LedgerError if the scope has expired or its lock cannot be had, and OSError.
        """
        adopted: dict[int, Record] = {}
        for _ in range(MAX_ADOPTION_TRIES):
            left = self._adopt(self._put(left), left, adopted)
            if not left:
                return adopted
        raise LedgerError(f"records in {self.folder.path} go while they are adopted, time and again")

    def _put(self, entries: Numbered) -> set[int]:
        """Make those entries durable for whose key nobody has a record; returns the numbers of the others."""
        # What can be done before the lock is: others wait for it.
        state = self.reader.state
        theirs = self._theirs(entries)
        frames = self._encoded(entries, theirs)
        # spec: Ledger!Write
        with self.folder.lock(self._lock_timeout) as lock:
            self.reader.catch_up(lock)
            # Others may have used the reader as well, since it was looked at.
            if self.reader.state != state:
                theirs_now = self._theirs(entries)
                if theirs_now != theirs:
                    theirs = theirs_now
                    frames = self._encoded(entries, theirs)
            if frames:
                self._write(frames, lock)
        if frames:
            self._sync([(frame, keys) for frame, keys, _ in frames])
        return theirs

    def _theirs(self, entries: Numbered) -> set[int]:
        """The numbers of entries whose key has a record already, of others or of this writer."""
        keys: list[bytes] = []
        for entry in entries.values():
            keys += entry.keys if isinstance(entry, RowBlock) else entry[:1]
        if len(set(keys)) == len(keys) and not self.reader.may_have_any(keys):
            # As in nearly every commit.
            return set()
        found: set[int] = set()
        singles = _one_by_one(entries)
        pairs = [(entry[0], entry[9]) for entry in singles.values()]
        known, conflicts = self.reader.kinds_of(pairs, self._execution)
        if conflicts and self._one_input:
            # spec: Ledger!Refuse
            (key, input), other = next(iter(conflicts.items()))
            raise LedgerConflictError(key, input, other.input)
        new: dict[tuple[bytes, bytes], str] = {}
        accepts_errors = self.reader.accepts_errors
        for number, pair in zip(singles, pairs, strict=True):
            kind = singles[number][1]
            before = new.get(pair) or known.get(pair)
            # Where failed rows are called again, what comes of that is kept as well.
            if before is None or (before == ERROR and not accepts_errors):
                new[pair] = kind
            else:
                found.add(number)
        return found

    def _adopt(self, theirs: set[int], entries: Numbered, adopted: dict[int, Record]) -> Numbered:
        """Get the records that others have; returns the entries whose records have gone in the meantime."""
        if not theirs:
            return {}
        singles = _one_by_one(entries)
        for number in theirs:
            record = self.reader.get(singles[number][0], errors=True, input=singles[number][9])
            if record is not None:
                adopted[number] = record
        return {number: singles[number] for number in sorted(theirs - adopted.keys())}

    def _encoded(self, entries: Numbered, theirs: set[int]) -> list[EncodedFrame]:
        """Frames, with their keys and their messages, for the end of the segment as it is."""
        if theirs:
            singles = _one_by_one(entries)
            mine: list[Row | RowBlock] = [singles[number] for number in singles if number not in theirs]
        else:
            mine = [*entries.values()]
        if not mine:
            return []
        if self._segment is None:
            self.segment_id = secrets.token_hex(8)
            self._begin = header(self.segment_id, self._about)
        end = len(self._begin) if self._segment is None else self._segment.end
        frames = []
        for piece in self._pieces(mine):
            if isinstance(piece, RowBlock):
                message = piece.message(self.reader.version, self._execution)
            else:
                message = message_of(to_batch(piece, self.reader.version, self._execution))
            frame, parts = encode_frame(message, self.segment_id, end, self._owner)
            frames.append((frame, message.keys, parts))
            end = frame.end
        return frames

    def _write(self, frames: list[EncodedFrame], lock: int) -> None:
        if isinstance(self.folder, LocalFolder):
            self.folder.announce(lock, self.segment_id + SUFFIX)
        if self._segment is None:
            self._segment = self.folder.create(self.segment_id + SUFFIX, self._begin)
        self._segment.append(*[part for _, _, parts in frames for part in parts])

    def _sync(self, frames: list[tuple[Frame, bytes]]) -> None:
        assert self._segment is not None
        end = self._segment.end
        # spec: Ledger!Sync
        self._segment.sync()
        self.reader.take_in(frames)
        self.reader.is_durable(self.segment_id + SUFFIX, end)
        if not self.folder.appends:
            self._segment = None

    def _pieces(self, entries: list[Row | RowBlock]) -> Iterator[list[Row] | RowBlock]:
        """Entries of a frame each: whoever looks for one record reads its frame."""
        piece: list[Row] = []
        size = 0
        for entry in entries:
            if isinstance(entry, RowBlock):
                if piece:
                    yield piece
                    piece, size = [], 0
                yield from entry.parts(max(1, min(self.most_rows, BLOCK_FRAME_BYTES // entry.width)))
                continue
            piece.append(entry)
            size += size_of(entry) if entry[3] or entry[4] else len(entry[2])
            if len(piece) >= self.most_rows or size >= FRAME_BYTES:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece


def _one_by_one(entries: Numbered) -> dict[int, Row]:
    """The same entries, those of blocks one by one."""
    singles: dict[int, Row] = {}
    for first, entry in entries.items():
        if isinstance(entry, RowBlock):
            singles.update(enumerate(entry.entries(), first))
        else:
            singles[first] = entry
    return singles


def _of_another_process() -> LedgerClosedError:
    # Its thread is not in a fork, and another thread may have held the condition.
    return LedgerClosedError("the ledger's writer belongs to the process that this one was forked from")


def _too_large(size: int, allowed: int) -> LedgerValueError:
    return LedgerValueError(f"a result of {size:,} bytes cannot be kept in a ledger: {allowed:,} are allowed")


LOSS_WINDOW_FILLING_SHARE = 0.5
"""The part of the loss window for which the first result of a commit waits; the rest is for writing it."""
MAX_RESULT_BYTES = 2**28
"""Bytes of a result, at most: Arrow's lists and texts end at 2**31."""


class WriterLimits(NamedTuple):
    """Times and sizes of a writer."""

    lock_timeout: float = COMMIT_LOCK_TIMEOUT_S
    """Seconds that a commit waits for the folder's lock."""
    renewal_interval: float = RENEWAL_INTERVAL_S
    """Seconds between two renewals of a lease that is held."""
    max_result_bytes: int = MAX_RESULT_BYTES


WRITER_LIMITS = WriterLimits()


class Commit(NamedTuple):
    """The results that a commit has made durable."""

    through: int
    """Every result up to this number, as `append` gave it, is durable."""
    adopted: dict[int, Record]
    """The numbers of those that another attempt had kept before, with what it kept: that is the result."""


Answer: TypeAlias = tuple[bytes, str, Any, int, float, float, int, bytes]
"""The result of a call: a `Row`, but with the value in place of the three parts of its kept form."""


class Answers(list[Answer]):
    """Answers whose values have no kept form yet, in order."""


Entry: TypeAlias = "Row | RowBlock | Answers"


class CommitQueue:
    """The results that wait for their commit, and when that is due. Guarded by `lock`.

    loss_window, in seconds, commit_rows and commit_bytes: as `Ledger` has them. `answers` are those of which
    nobody has made the kept form yet: they stand behind `waiting`.
    """

    __slots__ = (
        *("answers", "answers_of_commit", "appended", "asked", "behind_from", "lock", "waiting"),
        *("waiting_bytes", "writing_bytes", "_commit_bytes", "_commit_rows", "_loss_window", "_since"),
        "_waiting_rows",
    )

    def __init__(self, loss_window: float, commit_rows: int, commit_bytes: int) -> None:
        self._loss_window = loss_window
        self._commit_rows, self._commit_bytes = commit_rows, commit_bytes
        self.lock = threading.Lock()
        self.answers = Answers()
        self.answers_of_commit = commit_rows
        """Answers of which a commit is made at once, by what those of the last one took."""
        self.waiting: list[Entry] = []
        self._waiting_rows = 0
        self.waiting_bytes = self.writing_bytes = 0
        # When the first of these came; None where none waits.
        self._since: float | None = None
        self.behind_from = math.inf
        """The time from which the first result that is not durable has waited for the loss window."""
        self.appended = 0
        self.asked = 0
        """The number of the last result that is to be committed without waiting for company."""

    def begin(self, now: float) -> None:
        """Note that something waits."""
        if self._since is None:
            self._since = now
            self.behind_from = min(self.behind_from, now + self._loss_window)

    def add(self, entry: Row | RowBlock, rows: int, size: int, now: float) -> bool:
        """Add a result, or a block of them; returns True if the writer's thread is to look at it."""
        self.gather()
        self.begin(now)
        waiting = self.waiting
        waiting.append(entry)
        self._waiting_rows += rows
        self.waiting_bytes += size
        self.appended += rows
        return (
            len(waiting) == 1
            or self._waiting_rows >= self._commit_rows
            or self.waiting_bytes >= self._commit_bytes
        )

    def gather(self) -> None:
        """Give the answers so far their numbers."""
        if answers := self.answers:
            self.waiting.append(answers)
            self._waiting_rows += len(answers)
            self.appended += len(answers)
            self.answers = Answers()

    def due(self, now: float) -> float | None:
        """The time of the next commit, on the monotonic clock; 0 for now, None where nothing waits."""
        if not self.waiting and not self.answers:
            return None
        self.begin(now)
        rows = self._waiting_rows + len(self.answers)
        is_full = rows >= self._commit_rows or self.waiting_bytes >= self._commit_bytes
        if is_full or self.appended - self._waiting_rows < self.asked:
            return 0.0
        assert self._since is not None
        return self._since + LOSS_WINDOW_FILLING_SHARE * self._loss_window

    def take(self) -> tuple[int, list[Entry]]:
        """Take what waits, which is written now, and the number of its first result."""
        self.gather()
        entries, self.waiting = self.waiting, []
        first = self.appended - self._waiting_rows + 1
        self.writing_bytes = self.waiting_bytes
        self._waiting_rows = self.waiting_bytes = 0
        self._since = None
        return first, entries

    def committed(self) -> None:
        """Know that what was taken is durable."""
        self.behind_from = math.inf if self._since is None else self._since + self._loss_window

    def note_sizes(self, answers: int, size: int) -> None:
        """Note what the answers of a commit took."""
        self.writing_bytes += size
        rows = self._commit_bytes * answers // size if size else self._commit_rows
        self.answers_of_commit = max(1, min(self._commit_rows, rows))


class LedgerWriter:
    """Appends to one scope. `append` from any thread.

    Of what is put into `queue.answers` the writer's thread makes the kept form, when it commits them. One
    thread may do that, with `queue.lock`, and no other appends then; behind the first one it calls `expect`.
    `on_commit` and `on_failure` are called on the writer's own. A failure ends the writer: what was not
    durable by then will be called again, by another attempt. folder: that of `scope`. loss_window, in
    seconds, commit_rows and commit_bytes: as `Ledger` has them.
    """

    def __init__(
        self,
        folder: Folder,
        scope: Scope,
        reader: LedgerReader,
        *,
        loss_window: float,
        commit_rows: int,
        commit_bytes: int,
        execution: bytes,
        one_input: bool = True,
        on_commit: Callable[[Commit], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        limits: WriterLimits = WRITER_LIMITS,
    ) -> None:
        self._limits = limits
        self._committer = Committer(
            folder, reader, scope.about, commit_rows, execution, one_input, limits.lock_timeout
        )
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._lease: Lease | None = None
        self._next_renewal = 0.0
        self._process = os.getpid()
        # What follows is guarded by the lock of the queue.
        self.queue = CommitQueue(loss_window, commit_rows, commit_bytes)
        self._changed = threading.Condition(self.queue.lock)
        self._through = 0
        self._closing = False
        self._failure: BaseException | None = None
        folder.make()
        self._thread = threading.Thread(target=self._run, name="pillarbox-ledger", daemon=True)
        start_thread(self._thread)

    def append(
        self,
        key: bytes,
        value: object,
        *,
        is_error: bool = False,
        input: bytes = b"",
        attempts: int = 1,
        latency: float = 0.0,
        cost: float = 0.0,
    ) -> int:
        """Keep what a call gave; returns the result's number, which `Commit.through` will reach. Any thread.

        key, input: 16 bytes and the fingerprint of the row's input, of a `RowIdentity`. is_error: the row has
        failed for good, and the value is what is said about it. latency: seconds.
        Never waits for the disk. A key that this execution has for another input ends the writer, with
        LedgerConflictError.
        Raises LedgerValueError for a value that cannot be kept, LedgerClosedError.
        """
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise ValueError(f"key={key!r}: must be {KEY_BYTES} bytes, as a KeyMaker makes them")
        kind, at = ERROR if is_error else VALUE, time.time_ns() // 1000
        (entry,), size = self._written([(key, kind, value, attempts, latency, cost, at, input)])
        if isinstance(entry, LedgerValueError):
            raise entry
        return self._take(entry, 1, size)

    def append_vectors(
        self,
        keys: Sequence[bytes],
        vectors: object,
        *,
        in_tuple: bool,
        inputs: Sequence[bytes],
        attempts: Sequence[int],
        latency: float,
        costs: Sequence[float],
    ) -> int:
        """Keep the rows of a matrix, each what one call gave, as `append` keeps one; returns the last number.

        vectors: of NumPy, a row for each key, of numbers in one piece of memory; not to be changed any more.
        in_tuple: a value is a tuple of the vector. latency: of all of them. Any thread. Raises as `append`.
        """
        if set(map(len, keys)) != {KEY_BYTES}:
            raise ValueError(f"keys: must be of {KEY_BYTES} bytes each, as a KeyMaker makes them")
        text, content = encode_vectors(vectors, in_tuple)
        now = time.time_ns() // 1000
        block = RowBlock(keys, inputs, text, content, attempts, latency, costs, now)
        if block.width > (allowed := self._limits.max_result_bytes):
            raise _too_large(block.width, allowed)
        return self._take(block, len(block), len(content))

    def _written(self, answers: Sequence[Answer]) -> tuple[list[Row | LedgerValueError], int]:
        """Answers with their kept forms, or the error of one that has none; and the bytes of all forms."""
        allowed = self._limits.max_result_bytes
        rows: list[Row | LedgerValueError] = []
        total = 0
        for (key, kind, _, *more), form in zip(
            answers, encode_all([each[2] for each in answers]), strict=True
        ):
            if isinstance(form, LedgerValueError):
                rows.append(form)
                continue
            row: Any = (key, kind, *form, *more)
            # Most have their JSON alone.
            size = size_of(row) if form.floats or form.blobs else len(form.json)
            total += size
            rows.append(row if size <= allowed else _too_large(size, allowed))
        return rows, total

    def _take(self, entry: Row | RowBlock, rows: int, size: int) -> int:
        """Have results committed. size: their bytes, together."""
        self._check_process()
        now = time.monotonic()
        queue = self.queue
        with self._changed:
            if self._closing or self._failure is not None:
                self._refuse()
            if queue.add(entry, rows, size, now):
                self._changed.notify_all()
            return queue.appended

    def expect(self) -> None:
        """Know that there is an answer in `queue.answers` where there was none. Raises LedgerClosedError."""
        self._check_process()
        with self._changed:
            if self._closing or self._failure is not None:
                self._refuse()
            # Unless it has been taken by now.
            if self.queue.answers:
                self.queue.begin(time.monotonic())
                self._changed.notify_all()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of results that are in the form in which they are kept, and not yet written. Any thread."""
        return self.queue.waiting_bytes + self.queue.writing_bytes

    @property
    def durable_through(self) -> int:
        """Every result up to this number is durable. Any thread."""
        return self._through

    @property
    def is_behind(self) -> bool:
        """True if a result has waited longer than the loss window: hold new calls back until it has not.

        So a disk that is slow costs time, not more calls after a kill. Any thread, as an estimate.
        """
        return time.monotonic() > self.queue.behind_from

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the writer; None while it works. Any thread."""
        return self._failure

    def hurry(self) -> None:
        """Commit what was appended so far as soon as the thread is free; returns at once. Any thread.

        For when rows wait for nothing but their commit. What is appended later waits for company as ever. A
        second time, or with nothing to commit, or after the end, it does nothing. Never raises.
        """
        if self._process != os.getpid():
            return
        with self._changed:
            queue = self.queue
            queue.gather()
            if queue.asked < queue.appended:
                queue.asked = queue.appended
                self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended so far is durable. Any thread but the writer's.

        Raises what ended the writer, and TimeoutError after `timeout` seconds.
        """
        self._check_process()
        with self._changed:
            self.queue.gather()
            through = self.queue.asked = self.queue.appended
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._through >= through or self._failure is not None, timeout)
            if self._through >= through:
                return
            if self._failure is not None:
                raise self._failure
            raise TimeoutError(f"timeout={timeout!r}: {through - self._through} results are not durable yet")

    def hold(self, lease: Lease) -> None:
        """Renew a lease from now on, on the writer's thread, and let go of it with the end. Any thread."""
        with self._changed:
            self._lease = lease
            self._changed.notify_all()
        if not self._thread.is_alive():
            lease.release()

    def close(self, timeout: float | None = None) -> None:
        """Make what was appended durable, and end. Any thread but the writer's; a second time does nothing.

        Raises what ended the writer, and TimeoutError after `timeout` seconds.
        """
        self._check_process()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"timeout={timeout!r}: the last results are not durable yet")
        if self._failure is not None and self._through < self.queue.appended + len(self.queue.answers):
            raise self._failure

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the writer's thread ------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise _of_another_process()

    def _refuse(self) -> NoReturn:
        if self._failure is not None:
            raise LedgerClosedError(f"the ledger's writer has failed: {self._failure}") from self._failure
        raise LedgerClosedError("the ledger's writer is closed")

    def _pause(self) -> float | None:
        """Seconds until there is something to do; 0 for now."""
        due = self.queue.due(time.monotonic())
        if self._closing or due == 0.0:
            return 0.0
        if self._lease is not None and (due is None or self._next_renewal < due):
            due = self._next_renewal
        return None if due is None else max(0.0, due - time.monotonic())

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            if self._on_failure is not None:
                self._on_failure(error)
        finally:
            if self._lease is not None:
                self._lease.release()
            self._committer.close()

    def _step(self) -> bool:
        """Wait for something to do and do it; False at the end."""
        with self._changed:
            while (pause := self._pause()) is None or pause > 0:
                self._changed.wait(pause)
            first, entries = self.queue.take()
            through = self.queue.appended
            lease = self._lease
            closing = self._closing
        if lease is not None and time.monotonic() >= self._next_renewal:
            lease.renew()
            self._next_renewal = time.monotonic() + self._limits.renewal_interval
        if entries:
            self._commit(first, through, entries)
        return bool(entries) or not closing

    def _commit(self, first: int, through: int, entries: list[Entry]) -> None:
        """Make entries durable. Raises LedgerValueError where a value cannot be kept, after the others."""
        rows: Numbered = {}
        refused: LedgerValueError | None = None
        answers = size = 0
        for entry in entries:
            if not isinstance(entry, Answers):
                rows[first] = entry
                first += len(entry) if isinstance(entry, RowBlock) else 1
                continue
            written, bytes_of_it = self._written(entry)
            answers, size = answers + len(entry), size + bytes_of_it
            for row in written:
                if not isinstance(row, LedgerValueError):
                    rows[first] = row
                elif refused is None:
                    refused, through = row, first - 1
                first += 1
        if answers:
            self.queue.note_sizes(answers, size)
        adopted = self._committer.commit(rows)
        self.queue.writing_bytes = 0
        self._acknowledge(through, adopted)
        if refused is not None:
            raise refused

    def _acknowledge(self, through: int, adopted: dict[int, Record]) -> None:
        with self._changed:
            self._through = through
            self.queue.committed()
            self._changed.notify_all()
        if self._on_commit is not None:
            self._on_commit(Commit(through, adopted))
