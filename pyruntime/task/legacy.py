"""Legacy sources: a function that loops and emits, in a thread of its own beside the task.

Such a loop cannot take turns with the mailbox, so it runs elsewhere and shares a fair lock with the task. New
sources do without. `LegacySourceThread` is made, started and closed on the mailbox thread; `cancel` and
`done` are for any thread.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any, ClassVar, Protocol, runtime_checkable

from pillarbox.task.fair_lock import FairLock
from pillarbox.task.moments import check_duration
from pillarbox.task.source_context import (
    CheckpointLock,
    SourceCancelled,
    SourceContext,
    SourceOutput,
    Timestamped,
)

__all__ = [
    "CheckpointLock",
    "CheckpointedSource",
    "FairLock",
    "LegacySourceThread",
    "SourceCancelled",
    "SourceContext",
    "SourceFunction",
    "SourceOutput",
    "Timestamped",
]

log = logging.getLogger("pillarbox")

GRACE = 5.0
"""Seconds that a source has to end after its cancel."""


class SourceFunction(ABC):
    """A source that is one loop. The idea is Flink's `SourceFunction`, which its FLIP-27 sources replace."""

    atomic_sections: ClassVar[bool] = False
    """True for a source that emits several records under one taking of the lock as one step with its state,
    or changes its state before it emits: see `SourceContext`. Such a source must give the lock up soon."""

    @abstractmethod
    def run(self, context: SourceContext) -> None:
        """Emit through `context` until the input ends or `cancel` is called. In the source's thread, once.

        What it raises ends the task, but for what it raises after it was cancelled.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Have `run` return soon. Called once, by another thread than that of `run`; must not block.

        Waits in the context end by themselves; it must end a wait elsewhere, in a read or for an event.
        """


@runtime_checkable
class CheckpointedSource(Protocol):
    """What a source has besides, if checkpoints are to hold its position. Called under the lock."""

    def snapshot_state(self) -> Any:
        """The position after the last record emitted. Mailbox thread. The caller keeps what is returned."""

    def restore_state(self, state: Any) -> None:
        """Go to the position that a `snapshot_state` returned. Mailbox thread, before `run`."""


class LegacySourceThread:
    """Runs a source in a daemon thread of its own, and ends it.

    Made, started and closed on the mailbox thread. output: gets what the source emits, under `lock`, in the
    threads of the source. lock: shared with the task. name: of the source, for messages and for the thread.

    `done` is a future that is done when the source emits nothing any more: with an exception when `run` has
    raised it, unless after a cancel, with None otherwise. It cannot be cancelled.
    """

    def __init__(
        self, source: SourceFunction, output: SourceOutput, lock: FairLock, *, name: str | None = None
    ) -> None:
        if not isinstance(source, SourceFunction):
            raise TypeError(f"source={source!r}: must be a SourceFunction, not {type(source).__name__}")
        if not isinstance(lock, FairLock):
            raise TypeError(f"lock={lock!r}: must be a FairLock, not {type(lock).__name__}")
        self.name = type(source).__qualname__ if name is None else name
        self.context = SourceContext(output, lock, atomic_sections=source.atomic_sections, name=self.name)
        """What the source emits through."""
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()
        self._source = source
        self._lock = lock
        self._guard = threading.Lock()
        self._cancelled = False
        self._finished = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"pillarbox-source {self.name}", daemon=True)

    def start(self) -> None:
        """Begin to run the source; one that was cancelled before does not run. Mailbox thread, once."""
        self._thread.start()

    def cancel(self) -> None:
        """Have the source end: call its `cancel`, and end its waits for the lock and for room. Any thread.

        Idempotent; does not wait. What the source's `cancel` raises is logged.
        """
        with self._guard:
            if self._cancelled or self._finished:
                return
            self._cancelled = True
        self.context.cancel()
        try:
            self._source.cancel()
        except Exception:
            log.exception("the cancel of source %s raised", self.name)

    def close(self, grace: float = GRACE) -> bool:
        """Cancel the source and wait for its end, for `grace` seconds; whether it has ended. Mailbox thread.

        While it waits this thread does not hold the checkpoint lock. A source that has not ended is logged by
        its name and left alone: its thread is a daemon, the lock is taken from it, and all it emits raises
        `SourceCancelled` in it. Idempotent. Raises TypeError or ValueError for a bad `grace`.
        """
        grace = check_duration("grace", grace)
        thread = self._thread
        with self._lock.given_up():
            self.cancel()
            if thread.ident is None:
                self._finish(None)
                return True
            if not self._abandoned:
                thread.join(min(grace, threading.TIMEOUT_MAX))
                if thread.is_alive():
                    self._abandon(thread.ident, grace)
        return not thread.is_alive()

    def _abandon(self, ident: int, grace: float) -> None:
        self._abandoned = True
        self._lock.revoke(ident)
        self._finish(None)
        log.warning(
            "source %s has not ended within %g s of its cancel; its thread goes on as a daemon, "
            "which can emit nothing",
            self.name,
            grace,
        )

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            if not self._cancelled:
                self._source.run(self.context)
        except SourceCancelled as cancelled:
            error = None if self._cancelled else cancelled
        except BaseException as caught:
            error = caught
        if self._lock.revoke(threading.get_ident()):
            log.warning("source %s ended without giving the checkpoint lock back", self.name)
        if error is not None and self._cancelled:
            log.info("source %s ended with an error after its cancel", self.name, exc_info=error)
            error = None
        self._finish(error)

    def _finish(self, error: BaseException | None) -> bool:
        with self._guard:
            if self._finished:
                return False
            self._finished = True
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        return True
