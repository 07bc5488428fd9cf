"""The loop of one task: run the mails that have come, then one default action, and again.

Created on the mailbox thread, which alone may run it. Other threads reach it through the mailbox, by an
executor: its `execute`, `submit` and `shutdown` are for any thread, its yields for the mailbox thread.
"""

# Why what ends, suspends or resumes the loop travels as mail. A flag that other threads set would have to
# be read between any two mails and before each default action, and a thread that sets it while the loop
# sleeps would have to wake it besides. As mail it does both, and comes in its order among the others.
#
# Why a round is a batch. A loop that took mail until there is none would never come to the default action
# while mails put mails; one that took a single mail before each action would let completions wait behind
# input.
#
# Park and wake. A guest of an event loop has one thread for the loop and the task, so it must sleep in the
# loop's selector, or sockets are not served. When a step has found nothing it parks: it arms a callback in
# the mailbox, and the next put calls that, once, and schedules one more step. `arm_wakeup` looks again after
# it has armed: a put that came between the last look and the arming has called nobody, and its mail would
# lie there until some later put. So it answers False where there is mail, and the guest goes on.
#
# What is worse:
# - To look first and arm behind it, without the second look: the put in between is the lost wake-up above.
#   It is lost once in thousands of rounds, and then the task hangs with work in its mailbox.
# - To have every put call `call_soon_threadsafe`: a system call and a wake-up of the selector for each mail,
#   where now the first one pays and those that come until the step has run do not.
# - A lock or condition around look and sleep: the loop's thread would have to wait for it, and sleep in it,
#   while sockets are ready; and each put would take it, contended or not.
# - A thread that waits in `take` and hands each mail to the loop: two switches of threads for each mail, and
#   one more thread for each task.
# - To look every few milliseconds: an idle task costs time, a busy one is late by half the interval.
# - An `asyncio.Event` that the loop awaits: it is set on the loop's thread only, so that it needs the call of
#   `call_soon_threadsafe` besides, and a future for each round.
#
# What is armed is called once and is gone, so that a spurious step can come but no second one can queue up
# behind it. A wake-up by the loop's own thread, the usual one, is a plain `call_soon`. Suspensions that the
# loop's thread takes back itself put no mail, hence `_sleeps_elsewhere`: only a guest that is parked is sent
# an empty mail.
#
# Why an executor of `concurrent.futures`. `asyncio.wrap_future`, `wait` and `as_completed` work with it as
# it is. What that interface cannot say is added beside it: mail without a future (`execute`), which costs
# half, and the yields.
#
# Why `yield_` runs mail of its priority or higher only. A yield runs in the middle of an operator's work:
# mail of an operator in front could put an element into the one that waits.

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import repeat
from threading import get_ident
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxClosedError, MailboxState, TaskMailbox
from pillarbox.mailbox.metrics import Doing, MailboxMetrics

log = logging.getLogger("pillarbox")

T = TypeVar("T")
P = ParamSpec("P")

MAX_URGENT_MAILS_PER_ROUND = 64
"""Mails that a round runs besides those that had come when it began: urgent ones that came meanwhile."""

# Names of this module, for a look-up in an enumeration costs as much as a call.
BUSY, IDLE, BACK_PRESSURED = Doing.BUSY, Doing.IDLE, Doing.BACK_PRESSURED


DefaultAction: TypeAlias = "Callable[[Controller], None]"
"""Does one bounded piece of the task's work; it never blocks, it suspends itself instead."""

Reason: TypeAlias = Literal["idle", "back_pressured"]
"""The reason of a suspended default action: no input, or no room for output. For the metrics."""

REASONS: tuple[Reason, ...] = ("idle", "back_pressured")


class Suspension:
    """One reason for which the default action does not run. Thread-safe.

    The default action runs again when every suspension has been resumed. Built only by
    `Controller.suspend_default_action`.
    """

    __slots__ = ("_processor", "_resumed", "reason")

    def __init__(self, processor: MailboxProcessor, reason: Reason) -> None:
        self._processor = processor
        self._resumed = False
        self.reason = reason
        """The reason: "idle" or "back_pressured"."""

    def resume(self) -> None:
        """Take this reason away. Any thread; the second and later calls have no effect.

        From the mailbox thread it takes effect at once, from another one as an urgent mail. After
        the mailbox was quiesced it has no effect from another thread, as nothing is left to resume.
        """
        mailbox = self._processor.mailbox
        if mailbox.is_mailbox_thread:
            self._resume()
            return
        mail = Mail(self._resume, priority=MAX_PRIORITY, urgent=True, description="resume the default action")
        mailbox.try_put(mail)

    def _resume(self) -> None:
        if not self._resumed:
            self._resumed = True
            self._processor._default_action_resumed(self.reason)


class Controller:
    """The requests of a default action to its processor. Confined to the mailbox thread."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def suspend_default_action(self, reason: Reason = "idle") -> Suspension:
        """Stop calling the default action until the returned suspension is resumed.

        Suspensions are counted: with several of them, all must be resumed. The metrics count the
        time for `reason`. Raises `WrongThreadError` from another thread, ValueError for another reason.
        """
        self._processor.mailbox.check_is_mailbox_thread()
        if reason not in REASONS:
            raise ValueError(f"reason must be one of {', '.join(REASONS)}, not {reason!r}")
        self._processor._default_action_suspended(reason)
        return Suspension(self._processor, reason)

    def all_actions_completed(self) -> None:
        """End the loop after the mail or the action that is running: the task has no more to do."""
        self._processor.all_actions_completed()


class MailboxProcessor:
    """Run mails and the default action of a task on one thread.

        >>> from pillarbox.mailbox.processor import MailboxProcessor
        >>> processor = MailboxProcessor(lambda controller: processor.all_actions_completed())
        >>> processor.executor().execute(print, "mail")
        >>> processor.run_mailbox_loop(); processor.close()
        mail

    1. Mails that have arrived when a round begins run in that round, later ones in the next, except a bounded
       number of urgent ones; so a mail that puts itself again never starves the default action.
    2. The default action runs once a round, unless it is suspended; then the loop sleeps until mail arrives.
    3. Only mail changes the state of the loop, so nothing else is checked between two mails.
    4. A mail or a default action that raises ends the loop with that error; so does a mail that a yield runs,
       even if the action that yields catches the error.

    default_action: called with a `Controller`; does one bounded piece of work. mailbox: one that this thread
        owns; None for a new one. run_action: calls a function and returns its result: each mail and each
        default action runs in it, such as the `run` of a chain. None for a plain call.
    clock: seconds, for the metrics; monotonic. latency_interval: seconds between two measurements of the
        latency of mail; None for none.

    Confined to the mailbox thread, except `executor`, `suspend`, `report_error`, `prepare_close` and
    `metrics`. The model is Flink's `MailboxProcessor`.
    """

    def __init__(
        self,
        default_action: DefaultAction,
        mailbox: TaskMailbox | None = None,
        *,
        run_action: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        latency_interval: float | None = 1.0,
    ) -> None:
        if not callable(default_action):
            raise TypeError(f"default_action must be callable with a Controller, not {default_action!r}")
        self.mailbox = TaskMailbox() if mailbox is None else mailbox
        self.metrics = MailboxMetrics(self.mailbox, self._count, clock, latency_interval)
        """The metrics of this processor; `metrics.snapshot()` is for any thread."""
        self._run_action = run_action
        # Without it the kernel runs a batch: between two mails nothing here is called.
        self._run_batch: Callable[[], object] = (
            partial(self.mailbox.run_batch, meanwhile=MAX_URGENT_MAILS_PER_ROUND)
            if run_action is None
            else self._run_batch_in_action
        )
        self._action: Callable[[Controller], object] = (
            default_action if run_action is None else partial(run_action, default_action)
        )
        self._controller = Controller(self)
        # Errors that were reported when the mailbox took no mail any more.
        self._kept: list[BaseException] = []
        # What a mail raised in a yield: the action that yielded may keep it to itself.
        self._failure: BaseException | None = None
        self.suspensions = self._back_pressured = 0
        """Suspensions of the default action that hold now. Any thread."""
        self._completed = self._paused = self._looping = self._sleeps_elsewhere = False
        # What is read between two mails, and what is read before a default action.
        self._stopped = self._held = False
        # What the mailbox has run before is nobody's of this processor.
        self._mails = -self.mailbox.mails_run
        self.default_actions = 0
        """Calls of the default action since this was made. Any thread."""

    @property
    def is_running(self) -> bool:
        """False once all actions are completed, and till the next run after `suspend` or an error in a yield.

        Any thread.
        """
        return not self._stopped

    @property
    def is_default_action_available(self) -> bool:
        """True if no suspension holds the default action back. Any thread; elsewhere an estimate."""
        return not self.suspensions

    def executor(self, priority: int = 0) -> MailboxExecutor:
        """An executor that puts mail of `priority` into this task's mailbox. Any thread.

        Raises TypeError or ValueError for what is not a priority, MIN_PRIORITY (-1) to MAX_PRIORITY.
        """
        return MailboxExecutor(self, priority)

    # -- running ----------------------------------------------------------------------------------

    def run_mailbox_loop(self) -> None:
        """Run until all actions are completed or `suspend` is called; sleep while there is nothing to do.

        Run again after a `suspend` or an error it goes on where it was. Raises what a mail or the default
        action raises and what was reported, `WrongThreadError` from another thread, RuntimeError within the
        loop itself, and `MailboxClosedError` when the mailbox is quiesced or closed under a suspended
        default action.
        """
        with self._running():
            while not self._stopped:
                if self.suspensions:
                    self._run_suspended_rounds()
                else:
                    self._run_rounds()

    async def run_async(self) -> None:
        """As `run_mailbox_loop`, beside the other coroutines of an asyncio loop. On the mailbox thread.

        Each round is one callback of the event loop, so coroutines and the task take turns. Cancelling it
        suspends the task after the round; run again, it goes on. Raises as `run_mailbox_loop` does.
        """
        with self._running():
            guest = _Guest(self)
            try:
                guest.start()
                await guest.ended
            except asyncio.CancelledError:
                # The error came first, but the cancellation is what the caller gets.
                if guest.error is not None:
                    self.report_error(guest.error)
                raise
            finally:
                guest.stop()
            if guest.error is not None:
                raise guest.error

    def run_mailbox_step(self) -> bool:
        """Run the mails that have come, then the default action once. Never blocks.

        Returns True when another step would find work at once, False when only new mail can bring some.
        """
        if self._stopped:
            self._go_on()
        times = self.metrics.times
        if times.doing is not BUSY and not self._stopped:
            times.switch(BUSY)
        if self.mailbox.create_batch() and not self._stopped:
            self._run_batch()
        if not self._held:
            self.default_actions += 1
            self._action(self._controller)
        if self._stopped:
            times.switch(None)
            self._raise_failure()
            return False
        if not self.suspensions or self.mailbox.has_mail():
            return True
        times.switch(self._waits_for())
        return False

    def _run_rounds(self) -> None:
        # The hot path: a call into the kernel, one word, and the action.
        create_batch, action, controller = self.mailbox.create_batch, self._action, self._controller
        for _ in repeat(None, self.metrics.rounds):
            if create_batch():
                self._run_batch()
                if self._held:
                    return
            self.default_actions += 1
            action(controller)
            if self._held:
                return
        self.metrics.look()

    def _run_suspended_rounds(self) -> None:
        mailbox, times = self.mailbox, self.metrics.times
        for _ in repeat(None, self.metrics.rounds):
            if mailbox.create_batch():
                self._run_batch()
            else:
                times.switch(self._waits_for())
                try:
                    mail = mailbox.take(MIN_PRIORITY)
                finally:
                    now = times.switch(BUSY)
                if mail is not None:
                    self._run(mail)
                self.metrics.measure(now)
            if self._stopped or not self.suspensions:
                return
        self.metrics.look()

    def _run_batch_in_action(self) -> None:
        mailbox, run_action = self.mailbox, self._run_action
        assert run_action is not None
        take = mailbox.try_take_from_batch
        # Urgent mails join a batch while it runs; an endless row of them must not keep the
        # default action waiting.
        for _ in repeat(None, len(mailbox) + MAX_URGENT_MAILS_PER_ROUND):
            if self._stopped or (mail := take()) is None:
                return
            self._mails += 1
            run_action(mail.run)

    def _run(self, mail: Mail) -> None:
        self._mails += 1
        if self._run_action is None:
            mail.run()
        else:
            self._run_action(mail.run)

    def _run_in_yield(self, mail: Mail) -> None:
        """Run a mail; what it raises ends the loop too, even if the action that yields catches it."""
        before = self._failure
        try:
            self._run(mail)
        except BaseException as error:
            if self._failure is None:
                self._failure = error
                self._update()
                self._wake()
            raise
        # A yield within this mail may have failed, and the mail have caught it.
        if self._failure is not before:
            self._raise_failure()

    def _raise_kept(self) -> None:
        if self._kept:
            first = self._kept[0]
            self._kept.clear()
            raise first

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _running(self) -> Iterator[None]:
        self.mailbox.check_is_mailbox_thread()
        if self._looping:
            raise RuntimeError(
                "the loop of this processor runs already; an action that waits for mail yields"
            )
        self._looping = True
        self._go_on()
        self.metrics.times.switch(BUSY)
        try:
            try:
                yield
            except MailboxClosedError:
                self._raise_kept()
                self._raise_failure()
                raise
            self._raise_failure()
            self._raise_kept()
        finally:
            self._looping = False
            self.metrics.times.switch(None)

    # -- control ----------------------------------------------------------------------------------

    def suspend(self) -> bool:
        """Have the loop return; run again, it goes on. Any thread.

        It travels as urgent mail, so it comes after what is urgent already, and ends a run that begins
        later. Returns whether it will have an effect: in a quiesced mailbox only from the mailbox thread,
        while the loop runs.
        """
        mail = Mail(self._pause, priority=MAX_PRIORITY, urgent=True, description="suspend the loop")
        if self.mailbox.try_put(mail):
            return True
        if self.mailbox.state is MailboxState.CLOSED or not self.mailbox.is_mailbox_thread:
            return False
        if self.metrics.times.doing is None:
            # No mail can wait for the next run, and a pause would be over when that begins.
            return False
        self._pause()
        return True

    def all_actions_completed(self) -> None:
        """End the loop for good: no mail and no default action runs after the one that is running."""
        self.mailbox.check_is_mailbox_thread()
        self._completed = True
        self._update()
        self._wake()

    def report_error(self, error: BaseException) -> None:
        """End the loop with `error`. Any thread; never raises.

        If the mailbox takes no mail any more, the error is logged, and raised when the loop or `drain`
        comes to its end. One that nothing raises, as another was first, is logged by `close`.
        """
        if not isinstance(error, BaseException):
            error = TypeError(
                f"an object of type {type(error).__name__} was reported, which is not an exception"
            )
        try:
            if self.mailbox.try_put(ErrorMail(error)):
                return
        except Exception as trouble:
            # Such as that of a forked process. What was reported counts, not what became of the report.
            _log("an error could not be reported to its task: %s", trouble)
        self._kept.append(error)
        _log("an error was reported to a task that takes no mail any more: %s", error)

    def prepare_close(self) -> None:
        """Quiesce: refuse mail from now on; waiting mail can still be run. Any thread."""
        self.mailbox.quiesce()

    def drain(self) -> None:
        """Run every mail that is left, deferrable ones included.

        A mail that raises ends it; those behind it are left for another `drain` or for `close`. Raises at
        its end what was reported after `prepare_close`. In a mailbox that is still open, a mail that puts
        itself again keeps it from ending.
        """
        if not self._looping:
            self._forget_failure()
        while (mail := self.mailbox.try_take(MIN_PRIORITY)) is not None:
            self._run(mail)
            self._raise_failure()
        self._raise_kept()

    def close(self) -> None:
        """Close the mailbox and cancel the futures of the mails that are dropped. Idempotent."""
        self.mailbox.check_is_mailbox_thread()
        self._completed = True
        self._update()
        with ExitStack() as dropped:
            # All are cancelled, the first first, also if a callback of one future raises.
            for mail in reversed(self.mailbox.close()):
                cancel = getattr(mail, "cancel", None)
                if cancel is not None:
                    dropped.callback(cancel)

    # -- what the controller, its suspensions, executors and guests say; mailbox thread ------------

    def _default_action_suspended(self, reason: Reason) -> None:
        self.suspensions += 1
        self._back_pressured += reason == "back_pressured"
        self._update()

    def _default_action_resumed(self, reason: Reason) -> None:
        self.suspensions -= 1
        self._back_pressured -= reason == "back_pressured"
        self._update()
        self._wake()

    def _pause(self) -> None:
        self._paused = True
        self._update()
        self._wake()

    def _go_on(self) -> None:
        self._paused = False
        self._forget_failure()

    def _forget_failure(self) -> None:
        # The run in which it came has raised it, or whoever yielded outside of every run.
        self._failure = None
        self._update()

    def _update(self) -> None:
        self._stopped = self._completed or self._paused or self._failure is not None
        self._held = self._stopped or self.suspensions > 0
        if self._stopped:
            self.mailbox.leave_batch()

    def _wake(self) -> None:
        # A coroutine on the mailbox thread may say so while the guest sleeps in its event loop.
        if self._sleeps_elsewhere:
            self._sleeps_elsewhere = False
            self.mailbox.try_put(Mail(_nothing, priority=MAX_PRIORITY, description="wake the loop"))

    def _waits_for(self) -> Doing:
        return BACK_PRESSURED if self._back_pressured else IDLE

    def _count(self) -> int:
        return self._mails + self.mailbox.mails_run - self.metrics.measured


def _nothing() -> None:
    """Do nothing: the mail only wakes."""


class _Guest:
    """Steps a processor inside the running asyncio loop until the processor ends. Confined to its thread."""

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        # Not through the future, for it refuses some errors, and nobody would be woken.
        self.error: BaseException | None = None

    def start(self) -> None:
        """Schedule the first step, and the mail that measures."""
        self._measure_later()
        self._loop.call_soon(self._step)

    def stop(self) -> None:
        """Take no more steps."""
        self._stopped = True
        self._processor._sleeps_elsewhere = False
        if self._timer is not None:
            self._timer.cancel()

    def _step(self) -> None:
        if self._stopped:
            return
        processor = self._processor
        processor._sleeps_elsewhere = False
        try:
            # A waker of the loop waits for the GIL until this thread sleeps again: the step is kept short.
            more = not processor._stopped and processor.run_mailbox_step()
            if not (processor._stopped or more):
                processor._sleeps_elsewhere = True
                if processor.mailbox.arm_wakeup(self._wake):
                    return
                processor._sleeps_elsewhere = False
                state = processor.mailbox.state
                # What came in between is still to be run.
                if state is not MailboxState.OPEN and not processor.mailbox.has_mail():
                    raise MailboxClosedError(state)
            elif not more:
                # A coroutine may have yielded to a mail that raised, and have kept that to itself.
                processor._raise_failure()
        except BaseException as error:
            self.error = error
            self._end()
            return
        if processor.is_running:
            self._loop.call_soon(self._step)
        else:
            self._end()

    def _end(self) -> None:
        self._stopped = True
        self._processor.metrics.times.switch(None)
        if not self.ended.done():
            self.ended.set_result(None)

    def _wake(self) -> None:
        if self._stopped:
            return
        try:
            # The self-pipe of call_soon_threadsafe is a system call; a mail put by the loop's own
            # thread, the usual one, does without it.
            if get_ident() == self._thread:
                self._loop.call_soon(self._step)
            else:
                self._loop.call_soon_threadsafe(self._step)
        except RuntimeError:
            # The loop was closed: the task has ended and nobody is left to wake.
            return

    def _measure_later(self) -> None:
        interval = self._processor.metrics.interval
        if interval:
            self._timer = self._loop.call_later(interval, self._measure)

    def _measure(self) -> None:
        self._processor.metrics.measure_now()
        self._measure_later()


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
    """Executor of work of one priority on a task's mailbox thread, which may yield to such work.

        >>> from pillarbox.mailbox.processor import MailboxProcessor
        >>> executor = MailboxProcessor(print).executor()
        >>> answer = executor.submit(sum, [1, 2, 3])
        >>> executor.yield_()
        >>> answer.result()
        6

    A `concurrent.futures.Executor` with one worker, the mailbox thread. On that thread wait by `yield_`,
    never by `Future.result()`: the result could not come. Only `MailboxProcessor.executor` makes one.

    A yield, as in Flink, runs only work of its own priority or higher, so that an operator never runs the
    work of previous ones. Deferrable mail remains for the loop, unless the yield asks for it.
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

    def execute(self, fn: Callable[..., object], *args: object, **options: Any) -> None:
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

    def try_execute(self, fn: Callable[..., object], *args: object, **options: Any) -> bool:
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
        mail = FutureMail(future, work, priority=self._priority, description=partial(_name_of, fn))
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


def _name_of(fn: Callable[..., object]) -> str:
    return str(getattr(fn, "__qualname__", fn))


class ErrorMail(Mail):
    """Raises an error on the mailbox thread; dropped, it leaves the error in the log."""

    def __init__(self, error: BaseException) -> None:
        # The description names no error: to describe one runs its code, which may raise in its turn.
        super().__init__(_raise, error, priority=MAX_PRIORITY, urgent=True, description="report an error")

    def cancel(self) -> None:
        """Log the error that the task has ended without. Any thread; never raises."""
        _log("an error was reported to a task that ended before it could raise it: %s", self.args[0])


def _log(message: str, error: BaseException) -> None:
    # A handler of the user's may raise, and the thread that reports has its own work to end.
    with suppress(Exception):
        log.error(message, type(error).__qualname__, exc_info=error)


def _raise(error: BaseException) -> None:
    raise error
