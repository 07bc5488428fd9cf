"""Keeps finished calls: many in one commit, by a thread of its own, and says from when on they are durable.

The thread waits until a commit is due, by time, by rows, by bytes or because somebody asks; `commits.py` is
what it does then. Thread-safe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pillarbox.ledger.commits import Committer
from pillarbox.ledger.errors import LedgerClosedError, LedgerValueError
from pillarbox.ledger.keys import KEY_BYTES
from pillarbox.ledger.lease import BEAT, Lease
from pillarbox.ledger.reader import Folder, LedgerReader
from pillarbox.ledger.records import ERROR, VALUE, Record, Row, size_of
from pillarbox.ledger.values import Encoded, encode

FILLING = 0.5
"""The part of the loss window for which the first result of a commit waits; the rest is for writing it."""
LARGEST = 2**28
"""Bytes of a result, at most: Arrow's lists and texts end at 2**31."""


class Commit(NamedTuple):
    """What a commit has made durable."""

    through: int
    """Every result up to this number, as `append` gave it, is durable."""
    adopted: dict[int, Record]
    """The numbers of those that another attempt had kept before, with what it kept: that is the result."""


class Limits(NamedTuple):
    """When a commit is due."""

    loss_window: float
    rows: int
    size: int


class LedgerWriter:
    """Appends to one scope. `append` from any thread.

    `on_commit` and `on_failure` are called on the writer's own. A failure ends the writer: what was not
    durable by then will be called again, by another attempt.
    """

    def __init__(
        self,
        folder: Folder,
        reader: LedgerReader,
        limits: Limits,
        *,
        about: Mapping[str, str],
        execution: bytes,
        one_input: bool = True,
        allow_pickle: bool = False,
        on_commit: Callable[[Commit], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._committer = Committer(folder, reader, about, limits.rows, execution, one_input)
        self._limits = limits
        self._allow_pickle = allow_pickle
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._lease: Lease | None = None
        self._next_beat = 0.0
        self._process = os.getpid()
        # What follows is guarded by the condition.
        self._changed = threading.Condition(threading.Lock())
        self._waiting: list[Row] = []
        self._waiting_bytes = 0
        self._since = 0.0
        self._oldest: float | None = None
        self._appended = 0
        self._through = 0
        self._asked = 0
        self._closing = False
        self._failure: BaseException | None = None
        folder.make()
        self._thread = threading.Thread(target=self._run, name="pillarbox-ledger", daemon=True)
        self._thread.start()

    def append(
        self,
        key: bytes,
        value: Any,
        *,
        input: bytes = b"",
        attempts: int = 1,
        latency: float = 0.0,
        cost: float = 0.0,
    ) -> int:
        """Keep what a call gave; returns the result's number, which `Commit.through` will reach. Any thread.

        key, input: 16 bytes and the fingerprint of the row's input, of a `RowIdentity`. latency: seconds.
        Never waits for the disk. A key that this execution has for another input ends the writer, with
        LedgerConflictError.
        Raises LedgerValueError for a value that cannot be kept, LedgerClosedError.
        """
        return self._append(key, VALUE, encode(value, self._allow_pickle), attempts, latency, cost, input)

    def append_error(
        self,
        key: bytes,
        error: Mapping[str, Any],
        *,
        input: bytes = b"",
        attempts: int = 1,
        latency: float = 0.0,
        cost: float = 0.0,
    ) -> int:
        """Keep that a row failed for good, and what is said about it. Otherwise as `append`."""
        encoded = encode(dict(error), self._allow_pickle)
        return self._append(key, ERROR, encoded, attempts, latency, cost, input)

    def _append(
        self,
        key: bytes,
        kind: str,
        encoded: Encoded,
        attempts: int,
        latency: float,
        cost: float,
        input: bytes,
    ) -> int:
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise ValueError(f"key={key!r}: must be {KEY_BYTES} bytes, as a KeyMaker makes them")
        entry = (key, kind, *encoded, attempts, latency, cost, time.time_ns() // 1000, input)
        size = size_of(entry)
        if size > LARGEST:
            raise LedgerValueError(
                f"a result of {size:,} bytes cannot be kept in a ledger: {LARGEST:,} are allowed"
            )
        now = time.monotonic()
        self._check_process()
        with self._changed:
            self._check()
            if not self._waiting:
                self._since = now
            if self._oldest is None:
                self._oldest = now
            self._waiting.append(entry)
            self._waiting_bytes += size
            self._appended += 1
            if len(self._waiting) == 1 or self._is_full():
                self._changed.notify_all()
            return self._appended

    @property
    def durable_through(self) -> int:
        """Every result up to this number is durable. Any thread."""
        return self._through

    @property
    def is_behind(self) -> bool:
        """Whether a result has waited longer than the loss window: hold new calls back until it has not.

        So a disk that is slow costs time, not more calls after a kill. Any thread, as an estimate.
        """
        oldest = self._oldest
        return oldest is not None and time.monotonic() - oldest > self._limits.loss_window

    @property
    def failure(self) -> BaseException | None:
        """What ended the writer; None while it works. Any thread."""
        return self._failure

    def hurry(self) -> None:
        """Commit what was appended so far as soon as the thread is free; returns at once. Any thread.

        For when rows wait for nothing but their commit. What is appended later waits for company as ever. A
        second time, or with nothing to commit, or after the end, it does nothing. Never raises.
        """
        if self._process != os.getpid():
            return
        with self._changed:
            if self._asked < self._appended:
                self._asked = self._appended
                self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended so far is durable. Any thread but the writer's.

        Raises what ended the writer, and TimeoutError after `timeout` seconds.
        """
        self._check_process()
        with self._changed:
            through = self._asked = self._appended
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._through >= through or self._failure is not None, timeout)
            if self._through >= through:
                return
            if self._failure is not None:
                raise self._failure
            raise TimeoutError(f"timeout={timeout!r}: {through - self._through} results are not durable yet")

    def keep(self, lease: Lease) -> None:
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
        if self._failure is not None and self._through < self._appended:
            raise self._failure

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the writer's thread ------------------------------------------------------------------

    def _check_process(self) -> None:
        # Its thread is not in a fork, and another thread may have held the condition.
        if self._process != os.getpid():
            raise LedgerClosedError(
                "the ledger's writer belongs to the process that this one was forked from"
            )

    def _check(self) -> None:
        if self._failure is not None:
            raise LedgerClosedError(f"the ledger's writer has failed: {self._failure}") from self._failure
        if self._closing:
            raise LedgerClosedError("the ledger's writer is closed")

    def _is_full(self) -> bool:
        return len(self._waiting) >= self._limits.rows or self._waiting_bytes >= self._limits.size

    def _is_asked(self) -> bool:
        return self._appended - len(self._waiting) < self._asked

    def _pause(self) -> float | None:
        """Seconds until there is something to do; 0 for now."""
        if self._closing or (self._waiting and (self._is_asked() or self._is_full())):
            return 0.0
        now = time.monotonic()
        due = [self._since + FILLING * self._limits.loss_window] if self._waiting else []
        if self._lease is not None:
            due.append(self._next_beat)
        return max(0.0, min(due) - now) if due else None

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
            entries, self._waiting, self._waiting_bytes = self._waiting, [], 0
            first = self._appended - len(entries) + 1
            lease = self._lease
            closing = self._closing
        if lease is not None and time.monotonic() >= self._next_beat:
            lease.beat()
            self._next_beat = time.monotonic() + BEAT
        if entries:
            adopted = self._committer.commit(first, entries)
            self._acknowledge(first + len(entries) - 1, adopted)
        return bool(entries) or not closing

    def _acknowledge(self, through: int, adopted: dict[int, Record]) -> None:
        with self._changed:
            self._through = through
            self._oldest = self._since if self._waiting else None
            self._changed.notify_all()
        if self._on_commit is not None:
            self._on_commit(Commit(through, adopted))
