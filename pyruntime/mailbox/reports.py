"""Errors that other threads report to a task: they travel as mail, and none gets lost if that cannot be.

Reporting is for any thread; what was kept is raised on the mailbox thread.
"""

from __future__ import annotations

import contextlib
import logging

from pillarbox.kernel import MAX_PRIORITY, Mail, TaskMailbox

log = logging.getLogger("pillarbox")


class ErrorMail(Mail):
    """Raises an error on the mailbox thread; dropped, it leaves the error in the log."""

    def __init__(self, error: BaseException) -> None:
        # The description names no error: to describe one runs its code, which may raise in its turn.
        super().__init__(_raise, error, priority=MAX_PRIORITY, urgent=True, description="report an error")

    def cancel(self) -> None:
        """Log the error that the task has ended without. Any thread; never raises."""
        _log("an error was reported to a task that ended before it could raise it: %s", self.args[0])


class ErrorReports:
    """The errors reported to one mailbox."""

    __slots__ = ("_kept", "_mailbox")

    def __init__(self, mailbox: TaskMailbox) -> None:
        self._mailbox = mailbox
        self._kept: list[BaseException] = []

    def report(self, error: BaseException) -> None:
        """Have `error` raised on the mailbox thread. Any thread; never raises.

        If the mailbox takes no mail any more, the error is logged and kept for `raise_kept`.
        """
        if not isinstance(error, BaseException):
            error = TypeError(f"an object of type {type(error).__name__} was reported, which is no exception")
        try:
            if self._mailbox.try_put(ErrorMail(error)):
                return
        except Exception as trouble:
            # Such as that of a forked process. What was reported counts, not what became of the report.
            _log("an error could not be reported to its task: %s", trouble)
        self._kept.append(error)
        _log("an error was reported to a task that takes no mail any more: %s", error)

    def raise_kept(self) -> None:
        """Raise the first error that was kept, once. Mailbox thread."""
        if self._kept:
            first = self._kept[0]
            self._kept.clear()
            raise first


def _log(message: str, error: BaseException) -> None:
    # A handler of the user's may raise, and the thread that reports has its own work to end.
    with contextlib.suppress(Exception):
        log.error(message, type(error).__qualname__, exc_info=error)


def _raise(error: BaseException) -> None:
    raise error
