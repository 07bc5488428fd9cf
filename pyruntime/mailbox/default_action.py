"""What a task does when no mail asks for anything else: the default action, its controller, its suspensions.

The default action is called by the mailbox processor on the mailbox thread. A suspension may be
resumed from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from pillarbox.kernel import MAX_PRIORITY, Mail, MailboxClosedError

if TYPE_CHECKING:
    from pillarbox.mailbox.processor import MailboxProcessor

DefaultAction: TypeAlias = "Callable[[Controller], None]"
"""Does one bounded piece of the task's work; it never blocks, it suspends itself instead."""


class Suspension:
    """One reason for which the default action does not run. Thread-safe.

    The default action runs again when every suspension has been resumed. Built only by
    `Controller.suspend_default_action`.
    """

    __slots__ = ("_processor", "_resumed")

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor
        self._resumed = False

    def resume(self) -> None:
        """Take this reason away. Any thread; the second and later calls have no effect.

        From the mailbox thread it takes effect at once, from another one as an urgent mail. After
        the mailbox was quiesced it has no effect, as nothing is left to resume.
        """
        mailbox = self._processor.mailbox
        if mailbox.is_mailbox_thread:
            self._resume()
            return
        mail = Mail(self._resume, priority=MAX_PRIORITY, urgent=True, description="resume the default action")
        try:
            mailbox.put(mail)
        except MailboxClosedError:
            return

    def _resume(self) -> None:
        if not self._resumed:
            self._resumed = True
            self._processor._suspensions -= 1


class Controller:
    """What the default action may say to its processor. Confined to the mailbox thread."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def suspend_default_action(self) -> Suspension:
        """Stop calling the default action until the returned suspension is resumed.

        Suspensions are counted: with several of them, all must be resumed. Raises `WrongThreadError`
        from another thread.
        """
        self._processor.mailbox.check_is_mailbox_thread()
        self._processor._suspensions += 1
        return Suspension(self._processor)

    def all_actions_completed(self) -> None:
        """End the loop after the mail that is running: the task has no more to do."""
        self._processor.all_actions_completed()
