"""The way to a task from outside and from within: put work as mail, and yield to it.

`execute` and `submit` are for any thread; the yields are for the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pillarbox.kernel import Mail, TaskMailbox

T = TypeVar("T")


class FutureMail(Mail):
    """A mail whose outcome goes to a future; dropping the mail cancels the future."""

    def __init__(
        self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], **options: Any
    ) -> None:
        super().__init__(_run_into, future, fn, args, **options)
        self._future = future

    def cancel(self) -> None:
        """Cancel the future of this mail. Any thread."""
        self._future.cancel()


def _run_into(future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args)
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        future.set_result(result)


class MailboxExecutor:
    """Puts work of one priority into a task's mailbox and lets the task yield to such work.

    The idea of a yield is Flink's: a mail that must wait for what a later mail does runs that one
    in the meantime, and only work of its own priority or higher, so that an operator never runs the
    work of those before it.
    """

    __slots__ = ("_mailbox", "_priority")

    def __init__(self, mailbox: TaskMailbox, priority: int) -> None:
        self._mailbox = mailbox
        self._priority = priority

    def execute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        description: str | Callable[[], str] | None = None,
        urgent: bool = False,
        deferrable: bool = False,
    ) -> None:
        """Have `fn(*args)` run on the mailbox thread. Any thread.

        An exception of `fn` ends the task. Raises `MailboxClosedError` once the mailbox is quiesced.
        """
        mail = Mail(
            fn, *args, priority=self._priority, urgent=urgent, deferrable=deferrable, description=description
        )
        self._mailbox.put(mail)

    def submit(self, fn: Callable[..., T], *args: Any) -> Future[T]:
        """Have `fn(*args)` run on the mailbox thread; its outcome goes to the future. Any thread.

        Raises `MailboxClosedError` once the mailbox is quiesced. The future is cancelled when the task
        closes before the work has run.
        """
        future: Future[T] = Future()
        self._mailbox.put(FutureMail(future, fn, args, priority=self._priority))
        return future

    def yield_(self) -> None:
        """Run one mail of this executor's priority or higher, waiting for it. Mailbox thread.

        Raises `WrongThreadError` elsewhere, and `MailboxClosedError` when none is left and none can come.
        """
        mail = self._mailbox.take(self._priority)
        if mail is not None:
            mail.run()

    def try_yield(self) -> bool:
        """Run one mail of this executor's priority or higher if there is one. Mailbox thread.

        Returns whether one ran. Raises `WrongThreadError` elsewhere.
        """
        mail = self._mailbox.try_take(self._priority)
        if mail is None:
            return False
        mail.run()
        return True
