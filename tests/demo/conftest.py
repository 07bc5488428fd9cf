"""Fixtures of the demo's tests."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import pytest

START_TIMEOUT_S = 30.0
"""Seconds that a process may take to end."""


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Waits for a process, which need not be a child of ours, to end; False if it does not."""

    def wait(pid: int) -> bool:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(START_TIMEOUT_S * 1_000))
        finally:
            os.close(handle)

    return wait
