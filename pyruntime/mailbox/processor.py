"""The loop of one task: run the mails that have come, then one default action, and again.

Created on the mailbox thread, which alone may run it. Other threads reach it through the mailbox.
"""

from __future__ import annotations

from typing import NamedTuple

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxClosedError, TaskMailbox
from pillarbox.mailbox.default_action import Controller, DefaultAction
from pillarbox.mailbox.executor import MailboxExecutor

URGENT_MAILS = 64
"""Mails that a round runs besides those that had come when it began: urgent ones that came meanwhile."""


class ProcessorStatistics(NamedTuple):
    """Counts of one processor since it was made."""

    mails: int
    """Mails run."""
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
    4. A mail or a default action that raises ends the loop with that error.

    Confined to the mailbox thread, `report_error` and `prepare_close` excepted. The model is Flink's
    `MailboxProcessor`.
    """

    __slots__ = (
        "_controller",
        "_default_action",
        "_default_actions",
        "_mails",
        "_running",
        "_suspensions",
        "mailbox",
    )

    def __init__(self, default_action: DefaultAction, mailbox: TaskMailbox | None = None) -> None:
        self.mailbox = TaskMailbox() if mailbox is None else mailbox
        self._default_action = default_action
        self._controller = Controller(self)
        self._suspensions = 0
        self._running = True
        self._mails = 0
        self._default_actions = 0

    @property
    def is_running(self) -> bool:
        """False once all actions are completed or a suspended loop was asked to return."""
        return self._running

    def executor(self, priority: int = 0) -> MailboxExecutor:
        """An executor that puts mail of `priority` into this task's mailbox."""
        return MailboxExecutor(self.mailbox, priority)

    def run_mailbox_loop(self) -> None:
        """Run until all actions are completed; block while there is neither mail nor a default action.

        Raises what a mail or the default action raises, `WrongThreadError` from another thread, and
        `MailboxClosedError` when the mailbox is quiesced or closed under a suspended default action.
        """
        while self._running:
            if not self.run_mailbox_step() and self._running:
                self._run(self.mailbox.take(MIN_PRIORITY))

    def run_mailbox_step(self) -> bool:
        """Run the mails that have come, then the default action once. Never blocks.

        Returns True when another step would find work at once, False when only new mail can bring some.
        """
        mailbox = self.mailbox
        if mailbox.create_batch():
            take = mailbox.try_take_from_batch
            # Urgent mails join a batch while it runs; an endless row of them must not keep the
            # default action waiting.
            for _ in range(len(mailbox) + URGENT_MAILS):
                if not self._running or (mail := take()) is None:
                    break
                self._mails += 1
                mail.run()
        if self._running and not self._suspensions:
            self._default_actions += 1
            self._default_action(self._controller)
        return self._running and (not self._suspensions or mailbox.has_mail())

    def all_actions_completed(self) -> None:
        """End the loop: no mail and no default action runs after the one that is running."""
        self.mailbox.check_is_mailbox_thread()
        self._running = False

    def report_error(self, error: BaseException) -> None:
        """End the loop with `error`. Any thread; no effect once the mailbox is quiesced."""
        mail = Mail(_raise, error, priority=MAX_PRIORITY, urgent=True, description="report an error")
        try:
            self.mailbox.put(mail)
        except MailboxClosedError:
            return

    def prepare_close(self) -> None:
        """Quiesce: no mail is accepted from now on, what is there can still be run. Any thread."""
        self.mailbox.quiesce()

    def drain(self) -> None:
        """Run every mail that is left, deferrable ones included."""
        while (mail := self.mailbox.try_take(MIN_PRIORITY)) is not None:
            self._run(mail)

    def close(self) -> None:
        """Close the mailbox and cancel the futures of the mails that are dropped. Idempotent."""
        self._running = False
        for mail in self.mailbox.close():
            cancel = getattr(mail, "cancel", None)
            if cancel is not None:
                cancel()

    def statistics(self) -> ProcessorStatistics:
        """Counts so far; a snapshot that does not change."""
        return ProcessorStatistics(self._mails, self._default_actions, self._suspensions)

    def _run(self, mail: Mail | None) -> None:
        if mail is not None:
            self._mails += 1
            mail.run()


def _raise(error: BaseException) -> None:
    raise error
