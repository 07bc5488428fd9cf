"""Gives each test of the transport a thread of connections of its own."""

from __future__ import annotations

import pytest

from pillarbox import loop_thread


@pytest.fixture(autouse=True)
def _own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    # The process has one, and Spark's session, of tests before, uses it to its end.
    monkeypatch.setattr(loop_thread, "_connections", None)
    monkeypatch.setattr(loop_thread, "_users", 0)
