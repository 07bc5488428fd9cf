"""Work in steps that wait for futures in between, without blocking the mailbox. On the mailbox thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from pillarbox.kernel import MailboxClosedError
from pillarbox.mailbox import MailboxExecutor


class Steps:
    """Runs `steps`, which gives futures to wait for, and then `then()`. Confined.

    Each step after a future is a mail of `executor`, so other mail runs while one is waited for. What a step
    or a future raises ends the task.
    """

    __slots__ = ("_executor", "_steps", "_then")

    def __init__(
        self, steps: Iterator[Future[Any]], executor: MailboxExecutor, then: Callable[[], None]
    ) -> None:
        self._steps = steps
        self._executor = executor
        self._then = then

    def advance(self) -> None:
        """Go on to the next future that is not done. Mailbox thread."""
        for future in self._steps:
            if not future.done():
                future.add_done_callback(partial(_put, self._executor, self._go_on))
                return
            raise_of(future)
        self._then()

    def _go_on(self, future: Future[Any]) -> None:
        raise_of(future)
        self.advance()


def raise_of(future: Future[Any]) -> None:
    """Raise the error of a future that is done; a cancelled one has none. Any thread."""
    if not future.cancelled() and (error := future.exception()) is not None:
        raise error


def _put(executor: MailboxExecutor, fn: Callable[[Future[Any]], None], future: Future[Any]) -> None:
    """Any thread."""
    try:
        executor.execute(fn, future, description="go on with the end of the task")
    except MailboxClosedError:
        # The task was closed meanwhile: nobody waits.
        return
