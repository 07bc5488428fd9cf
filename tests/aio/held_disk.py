"""A disk that makes nothing durable until a test says so."""

from __future__ import annotations

import os
import threading

import pytest

from tests.waiting import wait_until


class HeldDisk:
    """Stands for `os.fsync`: while it is held, each waits for `let_one_through` or `go_on`. Any thread.

    `waiting` counts those that wait.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting = 0
        self._fsync = os.fsync
        self._permits: int | None = None
        self._changed = threading.Condition()
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, file: int) -> None:
        with self._changed:
            self.waiting += 1
            self._changed.wait_for(lambda: self._permits is None or self._permits > 0)
            self.waiting -= 1
            if self._permits is not None:
                self._permits -= 1
        self._fsync(file)

    def hold(self) -> None:
        """Let nothing through from now on."""
        with self._changed:
            self._permits = 0

    def wait(self) -> None:
        """Wait until something is to be made durable."""
        wait_until(lambda: self.waiting)

    def let_one_through(self) -> None:
        """Make durable what waits, and nothing after it."""
        with self._changed:
            assert self._permits == 0 and self.waiting
            self._permits = 1
            self._changed.notify_all()
        wait_until(lambda: self._permits == 0)

    def go_on(self) -> None:
        """Let everything through."""
        with self._changed:
            self._permits = None
            self._changed.notify_all()
