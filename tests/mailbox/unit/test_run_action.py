"""The function that runs each mail and each default action."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.mailbox.processor import Controller, MailboxProcessor


class WatchedLock:
    """A reentrant lock that says whether it is held."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.depth = 0
        self.entered = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1
        self.entered += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        self._lock.release()

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        with self:
            return fn(*args)


@pytest.mark.contract
def test_each_mail_and_each_default_action_runs_in_the_action_of_its_processor() -> None:
    lock = WatchedLock()
    held: list[tuple[str, int]] = []

    def see(what: str) -> Callable[..., None]:
        return lambda *_: held.append((what, lock.depth))

    def action(controller: Controller) -> None:
        see("action")()
        executor.execute(see("yielded"))
        executor.execute(see("tried"))
        executor.yield_()
        executor.try_yield()
        controller.all_actions_completed()

    processor = MailboxProcessor(action, run_action=lock.run)
    executor = processor.executor()
    executor.execute(see("mail"))
    processor.run_mailbox_loop()
    executor.execute(see("drained"))
    processor.drain()
    assert held == [("mail", 1), ("action", 1), ("yielded", 2), ("tried", 2), ("drained", 1)]
    assert lock.depth == 0


def test_an_error_gives_the_lock_back_and_ends_the_loop() -> None:
    lock = WatchedLock()
    processor = MailboxProcessor(lambda _: None, run_action=lock.run)
    processor.report_error(LookupError("mail"))
    with pytest.raises(LookupError, match="mail"):
        processor.run_mailbox_loop()
    assert lock.depth == 0
