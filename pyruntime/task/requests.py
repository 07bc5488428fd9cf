"""What others have asked of a task's checkpoints and wait for: none of them is left waiting. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pillarbox.kernel import MailboxClosedError
from pillarbox.mailbox import MailboxExecutor
from pillarbox.task.checkpoint import CheckpointDeclined
from pillarbox.task.failures import Failures

T = TypeVar("T")


class Requests:
    """Puts requests as mail and keeps their futures until they are answered. Thread-safe."""

    __slots__ = ("_lock", "_open")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Future[Any], int] = {}

    def put(
        self,
        executor: MailboxExecutor,
        checkpoint_id: int,
        answer: Callable[[Future[T]], object],
        description: Callable[[], str],
        *,
        urgent: bool = False,
    ) -> Future[T]:
        """Have `answer(future)` run as mail, which completes the future, then or later. Any thread.

        The future gets `CheckpointDeclined` if the task ends before. A future that is cancelled before its
        mail runs has no effect.
        """
        future: Future[T] = Future()
        with self._lock:
            self._open[future] = checkpoint_id
        future.add_done_callback(self._forget)
        try:
            executor.execute(self._run, answer, future, description=description, urgent=urgent)
        except MailboxClosedError as error:
            self._decline(future, checkpoint_id, f"the task has ended; its mailbox is {error.state}")
        return future

    def end(self) -> None:
        """Decline whatever is not answered: the task has ended. Mailbox thread.

        All of it is declined, also if a callback of one future raises; then raises what that raised first.
        """
        with self._lock:
            left = list(self._open.items())
        failures = Failures()
        for future, checkpoint_id in left:
            failures.run("declining a checkpoint", self._decline, future, checkpoint_id, "the task has ended")
        if failures.first is not None:
            raise failures.first

    def _decline(self, future: Future[Any], checkpoint_id: int, why: str) -> None:
        """Any thread."""
        # `put` and `end` may both come here; whoever takes the future out resolves it.
        with self._lock:
            if future not in self._open:
                return
            del self._open[future]
        decline(future, CheckpointDeclined(checkpoint_id, why))

    @staticmethod
    def _run(answer: Callable[[Future[T]], object], future: Future[T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            answer(future)
        except BaseException as error:
            # Both who asked and the task must hear of it.
            if not future.done():
                future.set_exception(error)
            raise

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.pop(future, None)


def decline(future: Future[Any], error: CheckpointDeclined) -> None:
    """Give `error` to a future unless it is done or cancelled. One thread at a time, whichever it is."""
    if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
        future.set_exception(error)
