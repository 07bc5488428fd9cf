"""Suspends the default action of a task until a future is done. Called on the mailbox thread."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any

from pillarbox.mailbox import Controller, MailboxProcessor, Suspension
from pillarbox.mailbox.processor import Reason


def suspend_until(
    future: Future[Any] | None, controller: Controller, processor: MailboxProcessor, reason: Reason
) -> None:
    """Suspend the default action for `reason` until `future` is done; None is done. Mailbox thread.

    Any thread may complete the future. Its error ends the task; a cancelled one is just done.
    """
    if future is not None:
        suspension = controller.suspend_default_action(reason)
        future.add_done_callback(partial(_resume, suspension, processor))


def _resume(suspension: Suspension, processor: MailboxProcessor, future: Future[Any]) -> None:
    """Any thread."""
    if not future.cancelled() and (error := future.exception()) is not None:
        processor.report_error(error)
    suspension.resume()
