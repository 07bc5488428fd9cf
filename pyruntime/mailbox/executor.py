"""The way to a task from outside and from within: put work as mail, and yield to it.

`execute`, `submit` and `shutdown` are for any thread; the yields are for the mailbox thread.
"""

# Why an executor of `concurrent.futures`. `asyncio.wrap_future`, `wait` and `as_completed` work with it as
# it is. What that interface cannot say is added beside it: mail without a future (`execute`), which costs
# half, and the yields.
#
# Why `yield_` runs mail of its priority or higher only. A yield runs in the middle of an operator's work:
# mail of an operator in front could put an element into the one that waits.

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, TaskMailbox

if TYPE_CHECKING:
    from pillarbox.mailbox.processor import MailboxProcessor

T = TypeVar("T")
P = ParamSpec("P")


class FutureMail(Mail):
    """A mail whose outcome goes to a future; dropping the mail cancels the future."""

    def __init__(self, future: Future[Any], fn: Callable[[], Any], **options: Any) -> None:
        super().__init__(_run_into, future, fn, **options)
        self._future = future

    def cancel(self) -> None:
        """Cancel the future of this mail, which was dropped. Any thread."""
        if self._future.cancel():
            # Without this, `concurrent.futures.wait` and `as_completed` would wait for ever.
            self._future.set_running_or_notify_cancel()


def _run_into(future: Future[Any], fn: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn()
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        future.set_result(result)


class MailboxExecutor(futures.Executor):
    """Puts work of one priority into a task's mailbox and lets the task yield to such work.

    A `concurrent.futures.Executor` with one worker, the mailbox thread. On that thread wait by `yield_`,
    never by `Future.result()`: the result could not come. Built only by `MailboxProcessor.executor`.

    The idea of a yield is Flink's: a mail that must wait for what a later mail does runs that one
    in the meantime, and only work of its own priority or higher, so that an operator never runs the
    work of those before it. Deferrable mail, which can wait, it leaves for the loop: what the yield waits for
    is seen the sooner. Who waits for what deferrable mail does asks for it.
    """

    def __init__(self, processor: MailboxProcessor, priority: int) -> None:
        if not isinstance(priority, int):
            raise TypeError(f"priority must be an int, not {priority!r}")
        if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
            raise ValueError(f"priority must be {MIN_PRIORITY} to {MAX_PRIORITY}, not {priority!r}")
        self._processor = processor
        self._mailbox = processor.mailbox
        self._priority = priority
        self._lock = threading.Lock()
        self._shut_down = False
        self._pending: set[Future[Any]] = set()

    @property
    def priority(self) -> int:
        """The priority of the mail that this executor puts, and the least that it yields to. Any thread."""
        return self._priority

    @property
    def mailbox(self) -> TaskMailbox:
        """The mailbox of the task. Any thread."""
        return self._mailbox

    def __repr__(self) -> str:
        state = "shut down" if self._shut_down else f"mailbox {self._mailbox.state.name}"
        return f"<MailboxExecutor priority={self._priority}, {state}>"

    # -- any thread: putting work ----------------------------------------------------------------

    def execute(self, fn: Callable[..., object], *args: Any, **options: Any) -> None:
        """Have `fn(*args)` run on the mailbox thread. Any thread.

        options: `urgent`, `deferrable` and `description` of the `Mail`. An exception of `fn` ends the task.
        `deferrable` work is left by a yield that does not ask for it, and by nothing else. A `description`
        that is a function is called only when it is shown. Raises `MailboxClosedError` once the mailbox is
        quiesced, RuntimeError once this executor was shut down.
        """
        mail = Mail(fn, *args, priority=self._priority, **options)
        if self._shut_down:
            raise self._refused(mail)
        self._mailbox.put(mail)

    def try_execute(self, fn: Callable[..., object], *args: Any, **options: Any) -> bool:
        """As `execute`, with its options, but returns whether the work was accepted. Any thread.

        For completions, which may come after the end: no error, they are ignored. What a quiesced
        mailbox refuses is counted as rejected in its statistics.
        """
        return self.try_put(Mail(fn, *args, priority=self._priority, **options))

    def try_put(self, mail: Mail) -> bool:
        """Put a mail of one's own, once more when it has run; False where none is taken. Any thread."""
        return not self._shut_down and self._mailbox.try_put(mail)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn(*args, **kwargs)` run on the mailbox thread; its outcome goes to the future. Any thread.

        An exception of `fn` goes to the future only. Raises `MailboxClosedError` once the mailbox is
        quiesced, RuntimeError once this executor was shut down. The future is cancelled when the task
        closes before the work has run. `asyncio.wrap_future` makes it one to await.
        """
        future: Future[T] = Future()
        work = partial(fn, *args, **kwargs)
        # The name of `fn`, for a partial has none.
        mail = FutureMail(future, work, priority=self._priority, description=partial(_name, fn))
        with self._lock:
            if self._shut_down:
                raise self._refused(mail)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        try:
            self._mailbox.put(mail)
        except BaseException:
            # A shutdown that has seen the future must not wait for it.
            mail.cancel()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse work from now on; the mailbox itself and its other executors go on. Any thread.

        wait: return when all work submitted through this executor has ended. The mailbox thread yields
        meanwhile, to deferrable mail too, and does not wait for work that it is in the middle of. Another
        thread waits for as long as nothing runs or closes the mailbox.
        cancel_futures: cancel the work submitted through this executor that has not begun.
        """
        with self._lock:
            self._shut_down = True
            pending = list(self._pending)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if not wait:
            return
        if not self._mailbox.is_mailbox_thread:
            futures.wait(pending)
            return
        # What runs now is further up this very stack.
        for future in pending:
            while not future.done() and not future.running():
                self.yield_(deferrable=True)

    def _refused(self, mail: Mail) -> RuntimeError:
        return RuntimeError(
            f"this executor of priority {self._priority} was shut down, it accepts no work; refused: {mail!r}"
        )

    # -- mailbox thread: giving way --------------------------------------------------------------

    def yield_(self, *, deferrable: bool = False) -> None:
        """Run one mail of this executor's priority or higher, waiting for it. Mailbox thread.

        deferrable: whether deferrable mail counts. Ask for it where nothing else may bring what you wait for.
        Raises what the mail raises, `WrongThreadError` elsewhere, and `MailboxClosedError` when none of these
        mails is left and none can come.
        """
        mail = self._mailbox.take(self._priority, skip_deferrable=not deferrable)
        if mail is not None:
            self._processor._run_in_yield(mail)

    def try_yield(self, *, deferrable: bool = False) -> bool:
        """Run one mail of this executor's priority or higher if there is one. Mailbox thread; never blocks.

        deferrable: whether deferrable mail counts. Returns whether one ran. Raises what the mail raises, and
        `WrongThreadError` elsewhere.
        """
        mail = self._mailbox.try_take(self._priority, skip_deferrable=not deferrable)
        if mail is None:
            return False
        self._processor._run_in_yield(mail)
        return True


def _name(fn: Callable[..., object]) -> str:
    return str(getattr(fn, "__qualname__", fn))
