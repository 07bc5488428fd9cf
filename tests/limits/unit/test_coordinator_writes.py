"""The messages of a coordinator with a state on disk: they are sent when it has been written down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pillarbox.aio.limits.coordinator import LimitService, Upkeep
from pillarbox.aio.limits.messages import Exhausted
from tests.aio.virtual import play


class Heard:
    """The connection of a task, and what it was sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, *message: Any) -> None:
        self.messages.append(message)


@pytest.mark.contract(
    "What comes while a coordinator writes is sent after the next write, without another change.",
    convicts=["change_during_write_forgotten"],
)
def test_what_comes_while_the_state_is_written_is_written_and_sent_next(tmp_path: Path) -> None:
    async def script() -> None:
        writes: list[asyncio.Future[None]] = []

        async def write() -> None:
            """The disk takes as long as the test says."""
            writes.append(asyncio.get_running_loop().create_future())
            await writes[-1]

        service = LimitService(bytes(32), tmp_path / "state", None, Upkeep(commit_delay_s=0.1))
        service._write = write  # type: ignore[method-assign]
        one: Any = Heard()
        other: Any = Heard()
        writing = asyncio.create_task(service._keep_writing())
        service._send(one, Exhausted("first"), written=True)
        await asyncio.sleep(1)
        assert len(writes) == 1 and not one.messages
        service._send(other, Exhausted("second"), written=True)
        writes[0].set_result(None)
        await asyncio.sleep(1)
        assert len(one.messages) == 1 and not other.messages
        assert len(writes) == 2
        writes[1].set_result(None)
        await asyncio.sleep(1)
        assert len(other.messages) == 1
        assert len(writes) == 2
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        service._disk.shutdown()

    play(script)
