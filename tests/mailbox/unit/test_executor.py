"""The executor of a mailbox: one of `concurrent.futures`, its worker the mailbox thread; and its yields."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import CancelledError, Executor, Future, as_completed, wait
from typing import Any

import pytest

from pillarbox.kernel import MAX_PRIORITY, MailboxClosedError
from pillarbox.mailbox.processor import Controller, MailboxExecutor, MailboxProcessor


def idle(controller: Controller) -> None:
    controller.suspend_default_action()


@pytest.fixture
def processor() -> MailboxProcessor:
    return MailboxProcessor(idle)


class Task:
    """A processor whose loop runs in a thread of its own until the end of the `with`."""

    def __enter__(self) -> MailboxProcessor:
        made = threading.Event()

        def run() -> None:
            self.processor = MailboxProcessor(idle)
            made.set()
            self.processor.run_mailbox_loop()
            self.processor.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        made.wait(30)
        return self.processor

    def __exit__(self, *error: object) -> None:
        # The test may have ended it already.
        self.processor.executor().try_execute(self.processor.all_actions_completed)
        self._thread.join()


# ---- as concurrent.futures has it


@pytest.mark.contract("The executor of a mailbox is one of the standard library.")
def test_it_is_an_executor_of_the_standard_library(processor: MailboxProcessor) -> None:
    assert isinstance(processor.executor(), Executor)


@pytest.mark.contract
def test_work_of_other_threads_runs_on_the_mailbox_thread() -> None:
    with Task() as processor, processor.executor() as executor:
        ident = executor.submit(threading.get_ident).result(30)
        assert ident not in (None, threading.get_ident())
        assert list(executor.map(pow, [2, 3], [3, 2], timeout=30)) == [8, 9]


def test_submit_passes_positional_and_named_arguments(processor: MailboxProcessor) -> None:
    future = processor.executor().submit(int, "11", base=3)
    named = processor.executor().submit(dict, fn=1, self=2, description="x")
    processor.drain()
    assert future.result(0) == 4
    assert named.result(0) == {"fn": 1, "self": 2, "description": "x"}


def test_a_submission_shows_the_name_of_its_function(processor: MailboxProcessor) -> None:
    processor.executor().submit(int, "1")
    processor.executor().submit(MailboxProcessor.drain, processor)
    assert [mail.description for mail in processor.mailbox.drain()] == ["int", "MailboxProcessor.drain"]


@pytest.mark.contract
def test_an_error_of_submitted_work_goes_to_its_future_only(processor: MailboxProcessor) -> None:
    bad = processor.executor().submit(int, "x")
    good = processor.executor().submit(int, "1")
    processor.executor().execute(processor.all_actions_completed)
    processor.run_mailbox_loop()
    assert isinstance(bad.exception(0), ValueError)
    assert good.result(0) == 1


@pytest.mark.contract(
    "An executor keeps nothing of work that has ended: neither its future nor its result.",
    convicts=["submitted_futures_kept", "refused_future_waits"],
)
@pytest.mark.parametrize("end", ["result", "error", "cancelled", "refused"])
def test_an_executor_keeps_nothing_of_work_that_has_ended(processor: MailboxProcessor, end: str) -> None:
    class Large:
        """A result."""

    def work() -> Large:
        if end == "error":
            raise LookupError
        result = Large()
        seen.append(weakref.ref(result))
        return result

    seen: list[weakref.ref[Any]] = []
    executor = processor.executor()
    if end == "refused":
        processor.prepare_close()
        gc.collect()
        before = sum(type(each) is Future for each in gc.get_objects())
        for _ in range(10):
            with pytest.raises(MailboxClosedError):
                executor.submit(work)
        gc.collect()
        assert sum(type(each) is Future for each in gc.get_objects()) == before
        return
    futures = [executor.submit(work) for _ in range(10)]
    seen += map(weakref.ref, futures)
    if end == "cancelled":
        assert all(future.cancel() for future in futures)
    processor.run_mailbox_step()
    assert all(future.done() for future in futures)
    del futures
    gc.collect()
    assert len(seen) == (20 if end == "result" else 10)
    assert [ref() for ref in seen] == [None] * len(seen)


@pytest.mark.contract(convicts=["interrupt_goes_to_future"])
def test_an_interrupt_in_submitted_work_goes_to_the_loop_too(processor: MailboxProcessor) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    future = processor.executor().submit(interrupt)
    # Were the interrupt lost, the loop would end, and not wait for more.
    processor.executor().execute(processor.all_actions_completed)
    with pytest.raises(KeyboardInterrupt):
        processor.run_mailbox_loop()
    assert isinstance(future.exception(0), KeyboardInterrupt)


@pytest.mark.contract
def test_a_future_that_is_cancelled_in_time_does_not_run(processor: MailboxProcessor) -> None:
    log: list[str] = []
    future = processor.executor().submit(log.append, "cancelled")
    assert future.cancel()
    processor.drain()
    assert log == []
    assert list(as_completed([future], timeout=30)) == [future]


def test_a_future_is_one_for_a_coroutine_to_await() -> None:
    async def main(executor: MailboxExecutor) -> tuple[int, str]:
        number = await asyncio.wait_for(asyncio.wrap_future(executor.submit(int, "7")), 30)
        try:
            await asyncio.wait_for(asyncio.wrap_future(executor.submit(int, "x")), 30)
        except ValueError as error:
            return number, str(error)
        raise AssertionError("the error of the work does not reach the coroutine")

    with Task() as processor:
        number, error = asyncio.run(main(processor.executor()))
    assert number == 7
    assert "'x'" in error


def test_a_coroutine_that_is_cancelled_cancels_its_work(processor: MailboxProcessor) -> None:
    log: list[str] = []

    async def main() -> None:
        future = asyncio.wrap_future(processor.executor().submit(log.append, "work"))
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        # The cancellation travels to the other future in a callback of the event loop.
        await asyncio.sleep(0)
        processor.drain()

    asyncio.run(main())
    assert log == []


# ---- after the end


@pytest.mark.contract
@pytest.mark.parametrize("end", ["prepare_close", "close"])
def test_work_is_refused_after_the_end_with_an_error_that_says_so(
    processor: MailboxProcessor, end: str
) -> None:
    executor = processor.executor()
    getattr(processor, end)()
    state = "QUIESCED" if end == "prepare_close" else "CLOSED"
    with pytest.raises(MailboxClosedError, match=f"mailbox is {state}, .* refused: <Mail a timer>"):
        executor.execute(print, description="a timer")
    with pytest.raises(MailboxClosedError, match=f"mailbox is {state}, .* refused: <Mail int>"):
        executor.submit(int)
    assert executor.try_execute(print) is False
    assert processor.mailbox.statistics().rejected == 3
    executor.shutdown()


@pytest.mark.contract(convicts=["executes_after_shutdown"])
def test_a_shut_down_executor_refuses_work_and_leaves_the_mailbox_open(processor: MailboxProcessor) -> None:
    shut_down, other = processor.executor(3), processor.executor(3)
    shut_down.shutdown()
    with pytest.raises(RuntimeError, match="executor of priority 3 was shut down.*refused: <Mail int"):
        shut_down.submit(int)
    with pytest.raises(RuntimeError, match="was shut down"):
        shut_down.execute(int)
    assert not shut_down.try_execute(int)
    other.execute(int)
    assert shut_down.try_yield()
    assert "shut down" in repr(shut_down)
    assert "OPEN" in repr(other)


@pytest.mark.contract
def test_a_shutdown_waits_for_what_was_submitted() -> None:
    with Task() as processor:
        log: list[int] = []
        executor = processor.executor()
        futures = [executor.submit(log.append, i) for i in range(100)]
        executor.shutdown()
        assert log == list(range(100))
        assert all(future.done() for future in futures)


def test_a_shutdown_on_the_mailbox_thread_runs_what_was_submitted(processor: MailboxProcessor) -> None:
    executor = processor.executor(2)
    with executor:
        future = executor.submit(int, "5")
        processor.executor(1).execute(pytest.fail, "of a lower priority")
    assert future.result(0) == 5
    assert len(processor.mailbox) == 1


@pytest.mark.contract
def test_a_shutdown_on_the_mailbox_thread_runs_deferrable_mail_with_nothing_else_left() -> None:
    processor = MailboxProcessor(idle)
    executor = processor.executor()
    future = executor.submit(int, "5")
    # What does the work is now in deferrable mail, and in a mailbox into which nothing else can come.
    (mail,) = processor.mailbox.drain()
    executor.execute(mail.run, deferrable=True)
    processor.prepare_close()
    executor.shutdown(wait=True)
    assert future.result(0) == 5


def test_a_shutdown_does_not_wait_for_the_work_that_asks_for_it(processor: MailboxProcessor) -> None:
    executor = processor.executor()
    first = executor.submit(executor.shutdown)
    second = executor.submit(int, "2")
    processor.executor().execute(processor.all_actions_completed)
    processor.run_mailbox_loop()
    assert first.result(0) is None
    assert second.result(0) == 2


def test_a_shutdown_may_cancel_what_has_not_begun(processor: MailboxProcessor) -> None:
    executor = processor.executor()
    futures = [executor.submit(pytest.fail, "runs") for _ in range(3)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in futures)
    processor.drain()
    assert wait(futures, timeout=30).not_done == set()


@pytest.mark.contract(convicts=["batch_runs_on"])
def test_a_shutdown_that_waits_returns_when_the_task_closes() -> None:
    with Task() as processor:
        executor = processor.executor()
        release = threading.Event()
        processor.executor().execute(release.wait, 30)
        processor.executor().execute(processor.all_actions_completed)
        future = executor.submit(pytest.fail, "runs")
        thread = threading.Thread(target=executor.shutdown)
        thread.start()
        release.set()
        thread.join(30)
        assert not thread.is_alive()
        with pytest.raises(CancelledError):
            future.result(0)
        assert future.cancelled()


@pytest.mark.contract
def test_submissions_that_race_with_a_shutdown_all_end() -> None:
    with Task() as processor:
        for _ in range(30):
            executor = processor.executor()
            futures: list[Future[int]] = []

            def submit(executor: MailboxExecutor = executor, futures: list[Future[int]] = futures) -> None:
                try:
                    while True:
                        futures.append(executor.submit(int))
                except RuntimeError:
                    return

            thread = threading.Thread(target=submit)
            thread.start()
            while not futures:
                processor.executor().submit(int).result(30)
            executor.shutdown()
            thread.join(30)
            assert wait(futures, timeout=30).not_done == set()
            assert all(future.result() == 0 for future in futures)


# ---- descriptions


def test_a_description_is_made_only_when_it_is_shown(processor: MailboxProcessor) -> None:
    shown: list[int] = []

    def describe() -> str:
        shown.append(1)
        return "a checkpoint"

    executor = processor.executor(2)
    executor.execute(int, description=describe)
    executor.execute(int, description=describe)
    assert executor.try_yield()
    assert shown == []
    (mail,) = processor.mailbox.drain()
    assert (mail.description, mail.priority) == ("a checkpoint", 2)
    assert shown == [1]


# ---- yields


@pytest.mark.contract
def test_a_yield_leaves_deferrable_mail_where_it_is() -> None:
    log: list[str] = []
    processor = MailboxProcessor(idle)
    executor = processor.executor(1)
    executor.execute(log.append, "deferrable", deferrable=True)
    executor.execute(log.append, "urgent and deferrable", deferrable=True, urgent=True)
    executor.execute(log.append, "first")
    executor.execute(log.append, "second")
    assert executor.try_yield()
    executor.yield_()
    assert log == ["first", "second"]
    assert not executor.try_yield()
    assert len(processor.mailbox) == 2
    processor.run_mailbox_step()
    assert log == ["first", "second", "urgent and deferrable", "deferrable"]


@pytest.mark.contract
def test_a_yield_that_asks_for_deferrable_mail_runs_what_has_waited_longest() -> None:
    log: list[str] = []
    processor = MailboxProcessor(idle)
    executor = processor.executor(1)
    for text, deferrable in (("a", True), ("b", False), ("c", True)):
        executor.execute(log.append, text, deferrable=deferrable)
    processor.executor(0).execute(log.append, "low", deferrable=True)
    assert executor.try_yield(deferrable=True)
    executor.yield_(deferrable=True)
    executor.yield_(deferrable=True)
    assert not executor.try_yield(deferrable=True)
    assert log == ["a", "b", "c"]
    processor.drain()
    assert log[-1] == "low"


@pytest.mark.contract
def test_a_yield_to_which_deferrable_mail_alone_is_left_raises_once_no_other_can_come() -> None:
    log: list[str] = []
    processor = MailboxProcessor(idle)
    executor = processor.executor()
    executor.execute(log.append, "deferrable", deferrable=True)
    processor.prepare_close()
    with pytest.raises(MailboxClosedError, match="no more can come"):
        executor.yield_()
    executor.yield_(deferrable=True)
    assert log == ["deferrable"]


@pytest.mark.contract
def test_a_yield_waits_for_mail_of_another_thread(processor: MailboxProcessor) -> None:
    log: list[str] = []
    thread = threading.Thread(target=processor.executor().execute, args=(log.append, "mail"))
    thread.start()
    processor.executor().yield_()
    thread.join()
    assert log == ["mail"]


@pytest.mark.contract
def test_a_yield_raises_what_its_mail_raises(processor: MailboxProcessor) -> None:
    def fail() -> None:
        raise LookupError("of the mail")

    executor = processor.executor()
    executor.execute(fail)
    executor.execute(fail)
    with pytest.raises(LookupError, match="of the mail"):
        executor.yield_()
    with pytest.raises(LookupError, match="of the mail"):
        executor.try_yield()


def test_a_yield_that_no_mail_can_end_raises(processor: MailboxProcessor) -> None:
    processor.executor(0).execute(int)
    processor.prepare_close()
    with pytest.raises(MailboxClosedError, match="no more can come"):
        processor.executor(1).yield_()


def test_the_mails_of_yields_count(processor: MailboxProcessor) -> None:
    executor = processor.executor()
    for _ in range(2):
        executor.execute(int)
    executor.yield_()
    executor.try_yield()
    assert processor.metrics.snapshot().mails == 2


def test_mail_of_the_highest_priority_is_run_by_every_yield(processor: MailboxProcessor) -> None:
    log: list[str] = []
    processor.executor(MAX_PRIORITY).execute(log.append, "notice")
    assert processor.executor(MAX_PRIORITY).try_yield()
    assert log == ["notice"]
