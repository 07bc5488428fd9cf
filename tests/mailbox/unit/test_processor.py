"""The mailbox processor: rounds of mail and default action, suspension, errors, the end."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox, WrongThreadError
from pillarbox.mailbox.processor import Controller, MailboxProcessor, Suspension


def ends_after(rounds: int, log: list[str]) -> Any:
    def action(controller: Controller) -> None:
        log.append("action")
        if log.count("action") == rounds:
            controller.all_actions_completed()

    return action


def suspends_once(suspended: list[Suspension]) -> Any:
    def action(controller: Controller) -> None:
        if suspended:
            controller.all_actions_completed()
        else:
            suspended.append(controller.suspend_default_action())

    return action


@pytest.mark.contract
def test_the_default_action_runs_until_it_says_that_all_is_done() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(3, log))
    processor.run_mailbox_loop()
    assert log == ["action"] * 3
    assert not processor.is_running


@pytest.mark.contract
def test_mail_runs_before_the_default_action_of_its_round() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(1, log))
    for i in range(3):
        processor.executor().execute(log.append, f"mail {i}")
    processor.run_mailbox_loop()
    assert log == ["mail 0", "mail 1", "mail 2", "action"]


@pytest.mark.contract
def test_a_mail_that_puts_itself_again_does_not_starve_the_default_action() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(3, log))
    executor = processor.executor()

    def again() -> None:
        log.append("mail")
        executor.execute(again)

    executor.execute(again)
    processor.run_mailbox_loop()
    assert log == ["mail", "action"] * 3


def test_not_even_an_urgent_mail_that_puts_itself_again_starves_it() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(3, log))
    executor = processor.executor()

    def again() -> None:
        executor.execute(again, urgent=True)

    executor.execute(again, urgent=True)
    processor.run_mailbox_loop()
    assert log == ["action"] * 3


@pytest.mark.contract
def test_a_mail_that_raises_ends_the_loop_with_its_error() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(10, log))

    def fail() -> None:
        raise LookupError("mail")

    processor.executor().execute(fail)
    late = processor.executor().submit(log.append, "late")
    with pytest.raises(LookupError, match="mail"):
        processor.run_mailbox_loop()
    processor.close()
    assert log == []
    assert late.cancelled()
    with pytest.raises(CancelledError):
        late.result()


def test_a_default_action_that_raises_ends_the_loop_with_its_error() -> None:
    def fail(controller: Controller) -> None:
        raise LookupError("action")

    with pytest.raises(LookupError, match="action"):
        MailboxProcessor(fail).run_mailbox_loop()


def test_a_suspended_default_action_runs_again_when_another_thread_resumes_it() -> None:
    suspended: list[Suspension] = []
    processor = MailboxProcessor(suspends_once(suspended))
    processor.run_mailbox_step()
    assert processor.suspensions == 1
    thread = threading.Thread(target=suspended[0].resume)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()
    assert processor.default_actions == 2


@pytest.mark.contract
def test_suspensions_are_counted_and_each_is_resumed_once() -> None:
    held: list[Suspension] = []

    def action(controller: Controller) -> None:
        if not held:
            held.extend([controller.suspend_default_action(), controller.suspend_default_action()])

    processor = MailboxProcessor(action)
    assert processor.run_mailbox_step() is False
    held[0].resume()
    held[0].resume()
    assert processor.run_mailbox_step() is False
    assert processor.default_actions == 1
    held[1].resume()
    assert processor.run_mailbox_step() is True
    assert processor.default_actions == 2


def test_a_suspension_may_be_resumed_after_the_end() -> None:
    suspended: list[Suspension] = []
    processor = MailboxProcessor(suspends_once(suspended))
    processor.run_mailbox_step()
    processor.prepare_close()
    processor.close()
    thread = threading.Thread(target=suspended[0].resume)
    thread.start()
    thread.join()


@pytest.mark.contract
def test_an_error_reported_by_another_thread_ends_the_loop() -> None:
    processor = MailboxProcessor(suspends_once([]))
    thread = threading.Thread(target=processor.report_error, args=(LookupError("elsewhere"),))
    thread.start()
    with pytest.raises(LookupError, match="elsewhere"):
        processor.run_mailbox_loop()
    thread.join()


def test_only_the_mailbox_thread_may_run_it() -> None:
    processor = MailboxProcessor(ends_after(1, []))
    caught: list[BaseException] = []

    def run() -> None:
        for confined in (
            processor.run_mailbox_step,
            processor.all_actions_completed,
            processor.executor().yield_,
        ):
            try:
                confined()
            except WrongThreadError as error:
                caught.append(error)

    thread = threading.Thread(target=run, name="intruder")
    thread.start()
    thread.join()
    assert len(caught) == 3
    assert all("intruder" in str(error) for error in caught)


@pytest.mark.contract
def test_prepare_close_refuses_new_mail_and_lets_what_is_there_be_drained() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(1, log))
    processor.executor().execute(log.append, "before", deferrable=True)
    processor.prepare_close()
    with pytest.raises(MailboxClosedError):
        processor.executor().execute(log.append, "after")
    processor.drain()
    assert log == ["before"]


@pytest.mark.contract
def test_close_cancels_the_futures_of_dropped_mails() -> None:
    processor = MailboxProcessor(ends_after(1, []))
    futures = [processor.executor().submit(int, "1") for _ in range(3)]
    processor.close()
    processor.close()
    assert all(future.cancelled() for future in futures)


def test_submit_gives_the_result_or_the_error_of_the_work() -> None:
    processor = MailboxProcessor(ends_after(1, []))
    good, bad = processor.executor().submit(int, "7"), processor.executor().submit(int, "x")
    cancelled = processor.executor().submit(int, "8")
    assert cancelled.cancel()
    processor.run_mailbox_loop()
    assert good.result(0) == 7
    assert isinstance(bad.exception(0), ValueError)


@pytest.mark.contract
def test_a_yield_runs_mail_of_its_priority_or_higher_only() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(1, log))
    low, high = processor.executor(1), processor.executor(5)
    low.execute(log.append, "low")
    high.execute(log.append, "high")
    assert high.try_yield()
    assert not high.try_yield()
    assert log == ["high"]
    low.yield_()
    assert log == ["high", "low"]


def test_a_mail_may_wait_for_a_later_one_by_yielding() -> None:
    log: list[str] = []
    processor = MailboxProcessor(ends_after(1, log))
    executor = processor.executor()

    def first() -> None:
        while "second" not in log:
            executor.yield_()
        log.append("first")

    executor.execute(first)
    executor.execute(log.append, "second")
    processor.run_mailbox_loop()
    assert log == ["second", "first", "action"]


def test_one_mailbox_takes_mail_of_many_threads() -> None:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1

    def action(controller: Controller) -> None:
        if done == 4000:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)

    def produce() -> None:
        for _ in range(1000):
            processor.mailbox.put(Mail(count))

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    processor.run_mailbox_loop()
    for thread in threads:
        thread.join()
    assert done == processor.metrics.snapshot().mails == 4000


@pytest.mark.contract(
    "A mail that ends the loop is the last one of its batch that runs, and each that has run is counted."
)
def test_a_mail_that_ends_the_loop_is_the_last_of_its_batch_that_runs_and_each_is_counted() -> None:
    said: list[object] = []
    processor = MailboxProcessor(lambda _: said.append("default action"), latency_interval=None)
    counted = lambda: said.append(processor.metrics.snapshot().mails)  # noqa: E731
    processor.mailbox.put_all([Mail(counted), Mail(processor.suspend), Mail(counted), Mail(counted)])
    processor.run_mailbox_loop()
    # `suspend` is urgent: it comes before what waits.
    assert said == [1]
    processor.mailbox.put(Mail(processor.all_actions_completed))
    processor.mailbox.put(Mail(counted))
    processor.run_mailbox_loop()
    assert said == [1, 4, 5]
    assert processor.metrics.snapshot().mails == 6
    assert len(processor.mailbox) == 1


def test_a_processor_counts_no_mail_that_its_mailbox_has_run_before() -> None:
    mailbox = TaskMailbox()
    mailbox.put_all([Mail(int), Mail(int)])
    assert mailbox.run_batch() == 2
    processor = MailboxProcessor(lambda _: None, mailbox, latency_interval=None)
    assert processor.metrics.snapshot().mails == 0
    mailbox.put(Mail(int))
    processor.run_mailbox_step()
    assert processor.metrics.snapshot().mails == processor.metrics.snapshot().mails == 1


@pytest.mark.contract("A mail that the loop runs crosses the border between Python and the kernel once.")
def test_a_mail_that_the_loop_runs_crosses_the_border_between_python_and_the_kernel_once() -> None:
    def crossings(mails: int) -> int:
        processor = MailboxProcessor(lambda _: None, latency_interval=None)
        processor.mailbox.put_all([Mail(nothing) for _ in range(mails)])
        events: list[str] = []

        def note(_: object, event: str, __: object) -> None:
            events.append(event)

        sys.setprofile(note)
        try:
            processor.run_mailbox_step()
        finally:
            sys.setprofile(None)
        assert processor.metrics.snapshot().mails == mails
        return events.count("call") + events.count("c_call")

    def nothing() -> None:
        """Do nothing: the body of the mails."""

    assert crossings(110) - crossings(10) == 100
