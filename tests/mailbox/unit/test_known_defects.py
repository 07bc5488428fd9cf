"""Defects that other mailboxes are known for, one test each that it does not happen here.

A yield that blocks a checkpoint is in tests/task/unit/test_checkpoints.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.kernel import MailboxClosedError, TaskMailbox
from pillarbox.mailbox.processor import MAX_URGENT_MAILS_PER_ROUND, Controller, MailboxProcessor, Suspension


class Unprintable(Exception):
    """An error that cannot even be described."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def in_thread(fn: Callable[..., Any], *args: Any) -> None:
    """Have another thread call `fn(*args)`, and raise here what it raises there."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            fn(*args)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    future.result(0)


def idle(controller: Controller) -> None:
    controller.suspend_default_action()


# ---- mail that starves


def test_mails_that_put_themselves_again_twice_over_do_not_starve_the_input() -> None:
    # They double each round: a loop that ran until the mailbox is empty would never come to the input.
    mails = 0

    def action(controller: Controller) -> None:
        if processor.default_actions == 8:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    executor = processor.executor()

    def twice() -> None:
        nonlocal mails
        mails += 1
        executor.execute(twice)
        executor.execute(twice)

    executor.execute(twice)
    processor.run_mailbox_loop()
    assert mails == 2**8 - 1


@pytest.mark.contract
@pytest.mark.parametrize("behind", [1, 5, 200])
def test_urgent_mail_without_end_starves_neither_timers_nor_the_default_action(behind: int) -> None:
    log: list[str] = []

    def action(controller: Controller) -> None:
        log.append("action")
        if log.count("timer") == behind:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    executor = processor.executor()

    def urgent() -> None:
        log.append("urgent")
        executor.execute(urgent, urgent=True)

    executor.execute(urgent, urgent=True)
    for _ in range(behind):
        executor.execute(log.append, "timer")
    processor.run_mailbox_loop()
    assert log.count("timer") == behind
    between = "".join(entry[0] for entry in log).split("a")
    assert max(map(len, between)) <= behind + 1 + MAX_URGENT_MAILS_PER_ROUND
    # Between two timers at most a burst of urgent mail, however many rounds that takes.
    assert (
        max(map(len, "".join(entry[0] for entry in log if entry != "action").split("t")))
        <= MAX_URGENT_MAILS_PER_ROUND
    )


def test_urgent_mail_without_end_does_not_starve_timers_of_a_suspended_action() -> None:
    processor = MailboxProcessor(idle)
    executor = processor.executor()

    def urgent() -> None:
        executor.execute(urgent, urgent=True)

    executor.execute(urgent, urgent=True)
    executor.execute(processor.all_actions_completed)
    processor.run_mailbox_loop()
    assert processor.metrics.snapshot().mails <= 2 + MAX_URGENT_MAILS_PER_ROUND


def test_a_resumption_gets_through_mail_without_end() -> None:
    held: list[Suspension] = []

    def action(controller: Controller) -> None:
        if held:
            controller.all_actions_completed()
        else:
            held.append(controller.suspend_default_action())

    processor = MailboxProcessor(action)
    executor = processor.executor()
    ran = threading.Event()

    def again() -> None:
        if held:
            ran.set()
        executor.execute(again)

    def resume() -> None:
        ran.wait(30)
        held[0].resume()

    executor.execute(again)
    thread = threading.Thread(target=resume)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()


class CountingMailbox:
    """A mailbox that counts which of its takes are called."""

    def __init__(self) -> None:
        self._mailbox = TaskMailbox()
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(self._mailbox, name)

    def run_batch(self, **options: int) -> int:
        # The processor fetches this once and for all.
        self.calls["run_batch"] = self.calls.get("run_batch", 0) + 1
        return self._mailbox.run_batch(**options)

    def __len__(self) -> int:
        return len(self._mailbox)


def test_the_hot_path_does_not_take_mail_one_by_one_until_none_is_left() -> None:
    # `while try_yield()` before each record pays for a take per record, and mail without end never
    # lets it go. The loop asks for a batch only, and fetches the takes of one when there is one.
    mailbox = CountingMailbox()

    def action(controller: Controller) -> None:
        if processor.default_actions == 1000:
            controller.all_actions_completed()

    processor = MailboxProcessor(action, mailbox, latency_interval=None)  # type: ignore[arg-type]
    processor.run_mailbox_loop()
    assert mailbox.calls.keys() & {"try_take", "take", "try_take_from_batch", "run_batch", "drain"} == set()


# ---- the end


@pytest.mark.contract
def test_a_drain_skips_no_deferrable_mail() -> None:
    log: list[int] = []
    processor = MailboxProcessor(idle)
    for i in range(6):
        processor.executor(i % 2).execute(log.append, i, deferrable=i % 3 == 0, urgent=i == 5)
    processor.prepare_close()
    processor.drain()
    assert log == [5, 0, 1, 2, 3, 4]
    assert len(processor.mailbox) == 0


def test_deferrable_mail_is_run_by_the_loop_although_the_input_never_pauses() -> None:
    processor = MailboxProcessor(lambda controller: None)
    processor.executor().execute(processor.all_actions_completed, deferrable=True)
    processor.run_mailbox_loop()


@pytest.mark.parametrize("end", ["prepare_close", "close"])
def test_a_poison_mail_to_a_closed_mailbox_harms_nobody(end: str) -> None:
    processor = MailboxProcessor(idle)
    getattr(processor, end)()
    in_thread(processor.suspend)
    processor.all_actions_completed()
    processor.run_mailbox_loop()


@pytest.mark.contract("A poison mail that races with the close of its mailbox harms nobody.")
def test_a_poison_mail_races_with_the_close_of_its_mailbox() -> None:
    for _ in range(50):
        processor = MailboxProcessor(idle)
        ready = threading.Barrier(2)

        def poison(processor: MailboxProcessor = processor, ready: threading.Barrier = ready) -> None:
            ready.wait(30)
            processor.suspend()
            processor.report_error(LookupError("late"))

        errors: list[BaseException] = []

        def guarded(poison: Callable[[], None] = poison, errors: list[BaseException] = errors) -> None:
            try:
                poison()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        ready.wait(30)
        processor.prepare_close()
        processor.close()
        thread.join()
        assert errors == []


@pytest.mark.contract
def test_a_completion_into_a_closed_mailbox_is_ignored_and_counted() -> None:
    processor = MailboxProcessor(idle)
    executor = processor.executor()
    call: Future[int] = Future()
    accepted: list[bool] = []
    call.add_done_callback(lambda done: accepted.append(executor.try_execute(print, done)))
    processor.prepare_close()
    processor.close()
    in_thread(call.set_result, 1)
    assert accepted == [False]
    assert processor.mailbox.statistics().rejected == 1


@pytest.mark.contract
def test_work_that_a_close_drops_wakes_all_that_wait_for_it() -> None:
    from concurrent.futures import wait

    processor = MailboxProcessor(idle)
    futures = [processor.executor().submit(int) for _ in range(3)]
    futures[0].cancel()
    waited: list[Any] = []
    thread = threading.Thread(target=lambda: waited.append(wait(futures, timeout=30)))
    thread.start()
    processor.close()
    thread.join(30)
    assert waited[0].not_done == set()
    assert all(future.cancelled() for future in futures)


# ---- an exception in the error report itself


def test_an_error_that_cannot_be_described_ends_the_loop_all_the_same() -> None:
    processor = MailboxProcessor(idle)
    in_thread(processor.report_error, Unprintable())
    with pytest.raises(Unprintable):
        processor.run_mailbox_loop()


def test_a_report_of_what_is_no_error_ends_the_loop() -> None:
    processor = MailboxProcessor(idle)
    processor.report_error("disk full")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an object of type str was reported"):
        processor.run_mailbox_loop()


def test_an_error_reported_to_a_quiesced_mailbox_is_raised_at_the_end_of_the_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processor = MailboxProcessor(idle)
    log: list[str] = []
    processor.executor().execute(log.append, "mail")
    processor.prepare_close()
    in_thread(processor.report_error, LookupError("late"))
    with pytest.raises(LookupError, match="late"):
        processor.drain()
    assert log == ["mail"]
    processor.drain()
    assert "takes no mail any more" in caplog.text


@pytest.mark.contract
def test_an_error_reported_to_a_quiesced_mailbox_is_raised_at_the_end_of_the_loop() -> None:
    def action(controller: Controller) -> None:
        processor.prepare_close()
        processor.report_error(LookupError("late"))
        controller.all_actions_completed()

    processor = MailboxProcessor(action)
    with pytest.raises(LookupError, match="late"):
        processor.run_mailbox_loop()


def test_a_late_error_is_raised_rather_than_that_no_mail_can_come() -> None:
    def action(controller: Controller) -> None:
        controller.suspend_default_action()
        processor.prepare_close()
        processor.report_error(LookupError("late"))

    processor = MailboxProcessor(action)
    with pytest.raises(LookupError, match="late") as caught:
        processor.run_mailbox_loop()
    assert isinstance(caught.value.__context__, MailboxClosedError)


@pytest.mark.contract
def test_an_error_behind_the_first_one_is_logged_by_the_close(caplog: pytest.LogCaptureFixture) -> None:
    processor = MailboxProcessor(idle)
    for number in (1, 2):
        processor.report_error(LookupError(f"error {number}"))
    with pytest.raises(LookupError, match="error 1"):
        processor.run_mailbox_loop()
    processor.close()
    assert "error 2" in caplog.text
    assert "error 1" not in caplog.text


class BadHandler(logging.Handler):
    """A handler of the user's that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the disk of the log is full")


def test_a_log_that_fails_does_not_fail_the_report_and_the_error_is_kept() -> None:
    log = logging.getLogger("pillarbox")
    handler = BadHandler()
    log.addHandler(handler)
    try:
        processor = MailboxProcessor(idle)
        processor.prepare_close()
        in_thread(processor.report_error, Unprintable())
        with pytest.raises(Unprintable):
            processor.drain()
    finally:
        log.removeHandler(handler)


def test_an_error_in_what_handles_an_error_ends_the_loop_with_both() -> None:
    processor = MailboxProcessor(idle)

    def fail() -> None:
        try:
            raise LookupError("first")
        except LookupError as error:
            processor.report_error(error)
            raise OSError("second") from error

    processor.executor().execute(fail)
    with pytest.raises(OSError, match="second") as caught:
        processor.run_mailbox_loop()
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(LookupError, match="first"):
        processor.run_mailbox_loop()
