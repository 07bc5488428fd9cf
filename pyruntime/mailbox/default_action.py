"""What a task does when no mail asks for anything else: the default action, its controller, its suspensions.

The default action is called by the mailbox processor on the mailbox thread. A suspension may be
resumed from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from pillarbox.kernel import MAX_PRIORITY, Mail

if TYPE_CHECKING:
    from pillarbox.mailbox.processor import MailboxProcessor

DefaultAction: TypeAlias = "Callable[[Controller], None]"
"""Does one bounded piece of the task's work; it never blocks, it suspends itself instead."""

Reason: TypeAlias = Literal["idle", "back_pressured"]
"""Why a default action is suspended: no input, or no room for output. For the metrics."""

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
        """Why: "idle" or "back_pressured"."""

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
    """What the default action may say to its processor. Confined to the mailbox thread."""

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
