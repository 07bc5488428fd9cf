"""Threads of blocking functions: their answers are one mail for all that have come until it runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pillarbox.aio.call_threads import CallThreads
from pillarbox.kernel import TaskMailbox
from tests.waiting import wait_until

CALLS = 5


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.new_event_loop()) as loop:
        yield loop


def threads_of(loop: asyncio.AbstractEventLoop, mailbox: TaskMailbox, gate: threading.Event) -> CallThreads:
    def call(row: int) -> int:
        assert gate.wait(60)
        return 2 * row

    return CallThreads(call, lambda row, result: result, "call", loop, mailbox, 0)


def begin(loop: asyncio.AbstractEventLoop, threads: CallThreads) -> list[asyncio.Task[Any]]:
    async def begun() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.ensure_future(threads(row)) for row in range(CALLS)]
        await asyncio.sleep(0)
        return tasks

    assert threads.reserve(CALLS)
    return loop.run_until_complete(begun())


SOON_S = 10.0
"""Seconds after which what should have come at once does not come any more."""


def ended(loop: asyncio.AbstractEventLoop, tasks: list[asyncio.Task[Any]]) -> list[Any]:
    """The results of calls; TimeoutError for those that do not end."""

    async def all_of_them() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*tasks), SOON_S)

    return loop.run_until_complete(all_of_them())


@pytest.mark.contract(
    "Answers of threads reach the mailbox thread as one mail for all that have come until it runs.",
    convicts=["answers_put_no_second_mail"],
)
def test_answers_that_come_before_the_mail_runs_have_one_mail(loop: asyncio.AbstractEventLoop) -> None:
    mailbox, gate = TaskMailbox(), threading.Event()
    threads = threads_of(loop, mailbox, gate)
    tasks = begin(loop, threads)
    gate.set()
    wait_until(lambda: len(threads._ended) == CALLS)
    assert len(mailbox) == 1 and mailbox.statistics().put == 1
    mail = mailbox.try_take()
    assert mail is not None
    mail.run()
    assert ended(loop, tasks) == [2 * row for row in range(CALLS)]
    # The next answer puts the mail again.
    again = loop.create_task(threads(7))
    loop.run_until_complete(asyncio.sleep(0))
    end = time.monotonic() + SOON_S
    wait_until(lambda: len(mailbox) == 1 or time.monotonic() > end)
    mail = mailbox.try_take()
    assert mail is not None
    mail.run()
    assert loop.run_until_complete(again) == 14
    threads.close()


@pytest.mark.contract(convicts=["given_up_answer_waits_for_mail"])
@pytest.mark.parametrize("when", ["while they run", "with answers in mail", "with a closed mailbox"])
def test_calls_that_were_given_up_end_though_no_mail_runs(loop: asyncio.AbstractEventLoop, when: str) -> None:
    mailbox, gate = TaskMailbox(), threading.Event()
    threads = threads_of(loop, mailbox, gate)
    tasks = begin(loop, threads)
    if when == "with answers in mail":
        gate.set()
        wait_until(lambda: len(threads._ended) == CALLS)
    elif when == "with a closed mailbox":
        mailbox.close()
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    gate.set()
    assert ended(loop, tasks) == [2 * row for row in range(CALLS)]
    threads.close()


def test_the_answer_to_a_mailbox_that_is_closed_comes_by_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    mailbox, gate = TaskMailbox(), threading.Event()
    threads = threads_of(loop, mailbox, gate)
    tasks = begin(loop, threads)
    mailbox.quiesce()
    gate.set()
    assert ended(loop, tasks) == [2 * row for row in range(CALLS)]
    threads.close()
