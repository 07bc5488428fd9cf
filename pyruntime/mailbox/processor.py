"""The loop of one task: run the mails that have come, then one default action, and again.

Created on the mailbox thread, which alone may run it. Other threads reach it through the mailbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import NamedTuple

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxClosedError, MailboxState, TaskMailbox
from pillarbox.mailbox.action_executor import IMMEDIATE, TaskActionExecutor
from pillarbox.mailbox.default_action import Controller, DefaultAction, Reason
from pillarbox.mailbox.executor import MailboxExecutor
from pillarbox.mailbox.guest import run_as_guest
from pillarbox.mailbox.metrics import MailboxMetrics
from pillarbox.mailbox.reports import ErrorReports
from pillarbox.mailbox.times import Doing

URGENT_MAILS = 64
"""Mails that a round runs besides those that had come when it began: urgent ones that came meanwhile."""

# A name of this module, for a look-up in an enumeration costs as much as a call.
BUSY = Doing.BUSY


class ProcessorStatistics(NamedTuple):
    """Counts of one processor since it was made."""

    mails: int
    """Mails run, those of yields included."""
    default_actions: int
    """Calls of the default action."""
    suspensions: int
    """Suspensions of the default action that hold now."""


class MailboxProcessor:
    """Runs mails and the default action of a task on one thread.

    1. Mails that had come when a round begins run in that round, those that come meanwhile in the
       next, but for a bounded number of urgent ones; so a mail that puts itself again never starves
       the default action.
    2. The default action runs once a round, unless it is suspended; then the loop sleeps until mail
       comes.
    3. What the loop reads is changed by mail only, so nothing else is checked between two mails.
    4. A mail or a default action that raises ends the loop with that error; so does a mail that a yield runs,
       even if the action that yields catches the error.

    default_action: called with a `Controller`; does one bounded piece of work.
    mailbox: one that this thread owns; a new one if None.
    action_executor: what mails and default actions run in, such as a lock shared with a source's thread.
    clock: seconds, for the metrics; time that never goes back.
    latency_interval: seconds between two measurements of the latency of mail; None for none.

    Confined to the mailbox thread, but for `executor`, `suspend`, `report_error`, `prepare_close`,
    `statistics` and `metrics`. The model is Flink's `MailboxProcessor`.
    """

    __slots__ = (
        "_action", "_action_executor", "_back_pressured", "_completed", "_controller", "_default_actions",
        "_failure", "_held", "_looping", "_mails", "_paused", "_reports", "_sleeps_elsewhere", "_stopped",
        "_suspensions", "mailbox", "metrics",
    )  # fmt: skip

    def __init__(
        self,
        default_action: DefaultAction,
        mailbox: TaskMailbox | None = None,
        *,
        action_executor: TaskActionExecutor = IMMEDIATE,
        clock: Callable[[], float] = time.monotonic,
        latency_interval: float | None = 1.0,
    ) -> None:
        if not callable(default_action):
            raise TypeError(f"default_action must be callable with a Controller, not {default_action!r}")
        self.mailbox = TaskMailbox() if mailbox is None else mailbox
        self.metrics = MailboxMetrics(self.mailbox, self._count, clock, latency_interval)
        """The metrics of this processor; `metrics.snapshot()` is for any thread."""
        self._action_executor = None if action_executor is IMMEDIATE else action_executor
        self._action: Callable[[Controller], object] = (
            default_action if action_executor is IMMEDIATE else partial(action_executor.run, default_action)
        )
        self._controller = Controller(self)
        self._reports = ErrorReports(self.mailbox)
        # What a mail raised in a yield: the action that yielded may keep it to itself.
        self._failure: BaseException | None = None
        self._suspensions = self._back_pressured = 0
        self._completed = self._paused = self._looping = self._sleeps_elsewhere = False
        # What is read between two mails, and what is read before a default action.
        self._stopped = self._held = False
        self._mails = self._default_actions = 0

    @property
    def is_running(self) -> bool:
        """False once all actions are completed, and till the next run after `suspend` or an error in a yield.

        Any thread.
        """
        return not self._stopped

    @property
    def is_default_action_available(self) -> bool:
        """Whether no suspension holds the default action back. Any thread; elsewhere an estimate."""
        return not self._suspensions

    def executor(self, priority: int = 0) -> MailboxExecutor:
        """An executor that puts mail of `priority` into this task's mailbox. Any thread.

        Raises TypeError or ValueError for what is no priority, MIN_PRIORITY (-1) to MAX_PRIORITY.
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
                if self._suspensions:
                    self._run_suspended_rounds()
                else:
                    self._run_rounds()

    async def run_async(self) -> None:
        """As `run_mailbox_loop`, beside the other coroutines of an asyncio loop. On the mailbox thread.

        Each round is one callback of the event loop, so coroutines and the task take turns. Cancelling it
        suspends the task after the round; run again, it goes on. Raises as `run_mailbox_loop` does.
        """
        with self._running():
            await run_as_guest(self)

    def run_mailbox_step(self) -> bool:
        """Run the mails that have come, then the default action once. Never blocks.

        Returns True when another step would find work at once, False when only new mail can bring some.
        """
        if self._stopped:
            self._go_on()
        times = self.metrics.times
        if times.doing is not BUSY and not self._stopped:
            times.switch(BUSY)
        if self.mailbox.create_batch():
            self._run_batch()
        if not self._held:
            self._default_actions += 1
            self._action(self._controller)
        if self._stopped:
            times.switch(None)
            self._raise_failure()
            return False
        if not self._suspensions or self.mailbox.has_mail():
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
            self._default_actions += 1
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
            if self._stopped or not self._suspensions:
                return
        self.metrics.look()

    def _run_batch(self) -> None:
        mailbox, executor = self.mailbox, self._action_executor
        take = mailbox.try_take_from_batch
        # Urgent mails join a batch while it runs; an endless row of them must not keep the
        # default action waiting.
        for _ in repeat(None, len(mailbox) + URGENT_MAILS):
            if self._stopped or (mail := take()) is None:
                return
            self._mails += 1
            if executor is None:
                mail.run()
            else:
                executor.run(mail.run)

    def _run(self, mail: Mail) -> None:
        self._mails += 1
        if self._action_executor is None:
            mail.run()
        else:
            self._action_executor.run(mail.run)

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
                self._reports.raise_kept()
                self._raise_failure()
                raise
            self._raise_failure()
            self._reports.raise_kept()
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
        self._reports.report(error)

    def prepare_close(self) -> None:
        """Quiesce: no mail is accepted from now on, what is there can still be run. Any thread."""
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
        self._reports.raise_kept()

    def close(self) -> None:
        """Close the mailbox and cancel the futures of the mails that are dropped. Idempotent."""
        self.mailbox.check_is_mailbox_thread()
        self._completed = True
        self._update()
        for mail in self.mailbox.close():
            cancel = getattr(mail, "cancel", None)
            if cancel is not None:
                cancel()

    def statistics(self) -> ProcessorStatistics:
        """Counts so far; a snapshot that does not change. Any thread."""
        return ProcessorStatistics(self._count(), self._default_actions, self._suspensions)

    # -- what the controller, its suspensions, executors and guests say; mailbox thread ------------

    def _default_action_suspended(self, reason: Reason) -> None:
        self._suspensions += 1
        self._back_pressured += reason == "back_pressured"
        self._update()

    def _default_action_resumed(self, reason: Reason) -> None:
        self._suspensions -= 1
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
        self._held = self._stopped or self._suspensions > 0

    def _wake(self) -> None:
        # A coroutine on the mailbox thread may say so while the guest sleeps in its event loop.
        if self._sleeps_elsewhere:
            self._sleeps_elsewhere = False
            self.mailbox.try_put(Mail(_nothing, priority=MAX_PRIORITY, description="wake the loop"))

    def _waits_for(self) -> Doing:
        return Doing.BACK_PRESSURED if self._back_pressured else Doing.IDLE

    def _has_mail(self) -> bool:
        # The mail that measures is nobody's work.
        return self.mailbox.has_mail() and len(self.mailbox) > self.metrics.measuring

    def _count(self) -> int:
        return self._mails - self.metrics.measured


def _nothing() -> None:
    """What a mail does that only wakes."""
