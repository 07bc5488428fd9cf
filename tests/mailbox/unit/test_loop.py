"""The loop of a processor: suspend and run again, who may call what, what is raised, what runs last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pillarbox.kernel import Mail, MailboxClosedError, WrongThreadError
from pillarbox.mailbox.processor import Controller, MailboxProcessor, Suspension


def elsewhere(fn: Callable[..., Any], *args: Any) -> Any:
    """Have another thread call `fn(*args)`; return what it returns, or the error that it raises."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(fn(*args))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return results[0]


def idle(controller: Controller) -> None:
    """A default action that has nothing to do."""
    controller.suspend_default_action()


@pytest.mark.contract
def test_a_suspended_loop_returns_and_goes_on_when_it_is_run_again() -> None:
    log: list[str] = []

    def action(controller: Controller) -> None:
        log.append("action")
        if len(log) % 3 == 0:
            processor.suspend()
        if len(log) == 9:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    for run in range(1, 3):
        processor.run_mailbox_loop()
        assert len(log) == 3 * run
        assert not processor.is_running
    processor.run_mailbox_loop()
    processor.run_mailbox_loop()
    assert len(log) == 9


@contextmanager
def later(act: Callable[[MailboxProcessor], object]) -> Iterator[MailboxProcessor]:
    """A processor whose loop waits for mail soon; then another thread calls `act` with it."""
    waits = threading.Event()

    def action(controller: Controller) -> None:
        controller.suspend_default_action()
        waits.set()

    processor = MailboxProcessor(action)

    def act_then() -> None:
        waits.wait(30)
        act(processor)

    thread = threading.Thread(target=act_then)
    thread.start()
    yield processor
    thread.join()


@pytest.mark.contract
def test_another_thread_suspends_a_loop_that_waits_for_mail() -> None:
    with later(MailboxProcessor.suspend) as processor:
        processor.run_mailbox_loop()
    assert not processor.is_running
    assert not processor.is_default_action_available


def test_another_thread_suspends_a_loop_that_never_waits() -> None:
    begun = threading.Event()
    processor = MailboxProcessor(lambda controller: begun.set())

    def suspend() -> None:
        begun.wait(30)
        processor.suspend()

    thread = threading.Thread(target=suspend)
    thread.start()
    processor.run_mailbox_loop()
    thread.join()
    assert not processor.is_running


def test_mail_behind_a_suspension_runs_when_the_loop_is_run_again() -> None:
    log: list[str] = []
    processor = MailboxProcessor(idle)
    executor = processor.executor()
    executor.execute(lambda: processor.suspend())
    executor.execute(log.append, "behind")
    processor.run_mailbox_loop()
    assert log == []
    executor.execute(processor.suspend)
    processor.run_mailbox_loop()
    assert log == ["behind"]


@pytest.mark.contract(convicts=["suspend_promises_too_much"])
def test_suspending_a_mailbox_that_is_closed_says_that_it_has_no_effect() -> None:
    said: list[bool] = []

    def action(controller: Controller) -> None:
        said.append(elsewhere(processor.suspend))
        said.append(processor.suspend())

    processor = MailboxProcessor(action)
    processor.prepare_close()
    assert elsewhere(processor.suspend) is False
    assert processor.suspend() is False
    assert processor.is_running
    for _ in range(2):
        processor.run_mailbox_loop()
        assert not processor.is_running
        assert processor.suspend() is False
    assert said == [False, True] * 2
    processor.close()
    assert processor.suspend() is False


def test_a_step_goes_on_after_a_suspension() -> None:
    processor = MailboxProcessor(lambda controller: None)
    processor.suspend()
    assert processor.run_mailbox_step() is False
    assert processor.default_actions == 0
    assert processor.run_mailbox_step() is True
    assert processor.default_actions == 1


def test_a_suspended_action_and_a_suspended_loop_are_apart() -> None:
    suspended: list[Suspension] = []

    def action(controller: Controller) -> None:
        if suspended:
            controller.all_actions_completed()
            return
        suspended.append(controller.suspend_default_action("back_pressured"))
        processor.suspend()

    processor = MailboxProcessor(action)
    processor.run_mailbox_loop()
    assert processor.default_actions == 1
    elsewhere(suspended[0].resume)
    processor.run_mailbox_loop()
    assert processor.default_actions == 2
    assert suspended[0].reason == "back_pressured"


def test_a_resumption_overtakes_ordinary_mail() -> None:
    log: list[str] = []
    held: list[Suspension] = []

    def action(controller: Controller) -> None:
        log.append("action")
        if held:
            controller.all_actions_completed()
        held.append(controller.suspend_default_action())

    processor = MailboxProcessor(action)
    processor.run_mailbox_step()
    executor = processor.executor()
    executor.execute(lambda: log.append(f"available {processor.is_default_action_available}"))
    elsewhere(held[0].resume)
    processor.run_mailbox_loop()
    assert log == ["action", "available True", "action"]


@pytest.mark.contract
def test_a_resumption_after_the_end_of_any_kind_is_ignored() -> None:
    for end in ("prepare_close", "close"):
        held: list[Suspension] = []
        processor = MailboxProcessor(lambda controller: held.append(controller.suspend_default_action()))  # noqa: B023
        processor.run_mailbox_step()
        getattr(processor, end)()
        assert elsewhere(held[0].resume) is None
        held[0].resume()
        assert processor.suspensions == 0


def test_a_suspension_names_one_of_two_reasons() -> None:
    def action(controller: Controller) -> None:
        controller.suspend_default_action("tired")  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="reason must be one of idle, back_pressured, not 'tired'"):
        MailboxProcessor(action).run_mailbox_step()


def test_the_loop_cannot_be_run_from_within_itself() -> None:
    def action(controller: Controller) -> None:
        processor.run_mailbox_loop()

    processor = MailboxProcessor(action)
    with pytest.raises(RuntimeError, match="runs already"):
        processor.run_mailbox_loop()
    # The failure has ended the loop, which may be run again.
    processor.executor().execute(processor.all_actions_completed)
    processor.run_mailbox_loop()


def test_a_loop_that_an_error_has_ended_goes_on_when_it_is_run_again() -> None:
    log: list[str] = []
    processor = MailboxProcessor(idle)

    def fail() -> None:
        raise LookupError("once")

    for mail in (fail, lambda: log.append("next"), processor.all_actions_completed):
        processor.executor().execute(mail)
    with pytest.raises(LookupError, match="once"):
        processor.run_mailbox_loop()
    assert processor.is_running
    processor.run_mailbox_loop()
    assert log == ["next"]


def test_no_action_and_no_mail_runs_after_all_actions_are_completed() -> None:
    log: list[str] = []
    processor = MailboxProcessor(lambda controller: log.append("action"))
    processor.executor().execute(processor.all_actions_completed)
    processor.executor().execute(log.append, "mail")
    processor.run_mailbox_loop()
    assert log == []
    assert len(processor.mailbox) == 1


@pytest.mark.contract
def test_a_loop_that_no_mail_can_wake_ends_with_an_error() -> None:
    processor = MailboxProcessor(idle)
    processor.executor().execute(processor.prepare_close)
    with pytest.raises(MailboxClosedError, match="no more can come"):
        processor.run_mailbox_loop()


def test_another_thread_that_quiesces_wakes_a_loop_that_waits_for_mail() -> None:
    with (
        later(MailboxProcessor.prepare_close) as processor,
        pytest.raises(MailboxClosedError, match="QUIESCED"),
    ):
        processor.run_mailbox_loop()


@pytest.mark.contract(convicts=["resumed_twice", "suspended_action_runs"])
def test_a_suspension_that_many_threads_resume_is_resumed_once() -> None:
    held: list[Suspension] = []

    def action(controller: Controller) -> None:
        held.extend([controller.suspend_default_action(), controller.suspend_default_action()])

    processor = MailboxProcessor(action)
    processor.run_mailbox_step()
    threads = [threading.Thread(target=held[0].resume) for _ in range(8)]
    for thread in threads:
        thread.start()
    held[0].resume()
    for thread in threads:
        thread.join()
    processor.run_mailbox_step()
    assert processor.suspensions == 1
    assert processor.default_actions == 1


@pytest.mark.contract
def test_a_quiesced_mailbox_does_not_stop_the_default_action() -> None:
    def action(controller: Controller) -> None:
        if processor.default_actions == 10:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    processor.prepare_close()
    processor.run_mailbox_loop()
    assert processor.default_actions == 10


def test_closing_within_an_action_ends_the_loop() -> None:
    log: list[str] = []

    def action(controller: Controller) -> None:
        log.append("action")
        processor.close()

    processor = MailboxProcessor(action)
    processor.run_mailbox_loop()
    assert log == ["action"]


@pytest.mark.contract
def test_what_is_confined_refuses_other_threads_and_leaves_no_trace() -> None:
    processor = MailboxProcessor(lambda controller: controller.all_actions_completed())
    executor = processor.executor()
    for confined in (
        processor.run_mailbox_loop,
        processor.run_mailbox_step,
        processor.all_actions_completed,
        processor.drain,
        processor.close,
        executor.yield_,
        executor.try_yield,
    ):
        assert isinstance(elsewhere(confined), WrongThreadError), confined
    processor.run_mailbox_loop()
    assert processor.default_actions == 1


@pytest.mark.contract
def test_ctrl_c_ends_the_loop_and_loses_no_mail() -> None:
    processor = MailboxProcessor(idle)
    log: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    processor.executor().execute(interrupt)
    processor.executor().execute(log.append, "behind")
    with pytest.raises(KeyboardInterrupt):
        processor.run_mailbox_loop()
    processor.drain()
    assert log == ["behind"]


def test_a_drain_that_fails_leaves_what_is_behind_it() -> None:
    processor = MailboxProcessor(idle)
    log: list[str] = []

    def fail() -> None:
        raise LookupError("drained")

    processor.executor().execute(fail)
    processor.executor().execute(log.append, "behind")
    last = processor.executor().submit(log.append, "last")
    processor.prepare_close()
    with pytest.raises(LookupError, match="drained"):
        processor.drain()
    assert len(processor.mailbox) == 2
    processor.drain()
    assert log == ["behind", "last"]
    assert last.done()


def test_a_processor_names_what_is_wrong_with_its_arguments() -> None:
    with pytest.raises(TypeError, match="default_action must be callable"):
        MailboxProcessor(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="latency_interval must be None or more than 0 seconds, not -1"):
        MailboxProcessor(idle, latency_interval=-1)
    processor = MailboxProcessor(idle)
    with pytest.raises(TypeError, match="priority must be an int, not 'high'"):
        processor.executor("high")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="priority must be -1 to .*, not -2"):
        processor.executor(-2)


def test_mail_of_others_runs_however_short_the_default_action_is() -> None:
    processor = MailboxProcessor(lambda controller: None)
    threads = [
        threading.Thread(target=lambda: [processor.mailbox.put(Mail(int)) for _ in range(500)])
        for _ in range(4)
    ]

    def end() -> None:
        for thread in threads:
            thread.join()
        processor.executor().execute(processor.all_actions_completed)

    ending = threading.Thread(target=end)
    for thread in [*threads, ending]:
        thread.start()
    processor.run_mailbox_loop()
    ending.join()
    assert processor.metrics.snapshot().mails == 2001
