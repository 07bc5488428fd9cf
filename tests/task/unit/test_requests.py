"""Requests to a task are answered once, whoever comes to know first that the task has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.mailbox.processor import MailboxProcessor
from pillarbox.task import checkpointing
from pillarbox.task.checkpoint import CheckpointDeclined
from pillarbox.task.checkpointing import Requests


def describe() -> str:
    return "a request"


def leave(future: Future[Any]) -> None:
    """An answer that comes later, or never."""


@pytest.fixture
def processor() -> MailboxProcessor:
    return MailboxProcessor(lambda controller: None)


def test_a_request_that_the_end_of_the_task_overtakes_is_declined_by_one_thread_only(
    processor: MailboxProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, executor = Requests(), processor.executor()
    declining, go_on = threading.Event(), threading.Event()
    decline, threads, found = checkpointing.decline, [], []

    def slowly(future: Future[Any], error: CheckpointDeclined) -> None:
        threads.append(threading.current_thread())
        declining.set()
        if threading.current_thread() is other:
            assert go_on.wait(60)
        decline(future, error)

    monkeypatch.setattr(checkpointing, "decline", slowly)
    other = threading.Thread(target=lambda: found.append(asked.put(executor, 1, leave, describe)))
    processor.close()
    other.start()
    assert declining.wait(60)
    # The other thread stands before its future, which this one must leave to it.
    asked.end()
    go_on.set()
    other.join()
    assert threads == [other]
    assert isinstance(found[0].exception(0), CheckpointDeclined)


def raising(error: BaseException) -> Callable[[Future[Any]], None]:
    def callback(future: Future[Any]) -> None:
        raise error

    return callback


def test_a_callback_that_raises_does_not_keep_other_requests_from_their_answer(
    processor: MailboxProcessor,
) -> None:
    asked, executor = Requests(), processor.executor()
    futures = [asked.put(executor, i, leave, describe) for i in range(3)]
    futures[0].add_done_callback(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        asked.end()
    assert all(isinstance(future.exception(0), CheckpointDeclined) for future in futures)
    asked.end()
