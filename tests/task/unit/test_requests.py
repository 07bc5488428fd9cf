"""Requests to a task are answered once, whoever comes to know first that the task has ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.mailbox.processor import MailboxProcessor
from pillarbox.task.checkpoint import CheckpointDeclined, CheckpointRequest


def ask(processor: MailboxProcessor) -> Future[Any]:
    request = CheckpointRequest(1, lambda: "answered")
    assert processor.executor().try_put(request)
    return request.future


@pytest.fixture
def processor() -> MailboxProcessor:
    return MailboxProcessor(lambda controller: None)


def test_a_request_that_is_cancelled_is_left_alone_by_the_end_of_the_task(
    processor: MailboxProcessor,
) -> None:
    future = ask(processor)
    assert future.cancel()
    processor.close()
    assert future.cancelled()


def raising(error: BaseException) -> Callable[[Future[Any]], None]:
    def callback(future: Future[Any]) -> None:
        raise error

    return callback


def test_a_callback_that_raises_does_not_keep_other_requests_from_their_answer(
    processor: MailboxProcessor,
) -> None:
    futures = [ask(processor) for _ in range(3)]
    futures[0].add_done_callback(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        processor.close()
    assert all(isinstance(future.exception(0), CheckpointDeclined) for future in futures)
