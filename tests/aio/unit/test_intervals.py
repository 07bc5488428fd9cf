"""What happens after times that no user chooses, which these tests make short."""

from __future__ import annotations

import logging
from queue import SimpleQueue

import pytest

from pillarbox import async_map
from pillarbox.aio.options import Intervals
from tests.aio.unit.intervals import options_with


class Session:
    """A resource; says whether it is closed."""

    is_closed = False

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_closed = True

    async def __call__(self, row: int) -> int:
        return row


def test_a_reader_that_hangs_in_its_input_keeps_no_resource_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = options_with(Intervals(close_timeout=0.2))
    queue: SimpleQueue[int | None] = SimpleQueue()
    session = Session()
    queue.put(1)
    results = async_map(iter(queue.get, None), session, options=options)
    with caplog.at_level(logging.WARNING, "pillarbox"), results:
        assert next(results) == 1
    assert session.is_closed
    assert "still waits for input" in caplog.text
    queue.put(None)
