"""Threads start where a system has no limits of memory, and no module that tells of them."""

from __future__ import annotations

import sys
import threading

import pytest

from pillarbox.thread_start import start_thread


def test_a_thread_starts_where_the_system_tells_of_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    start_thread(thread)
    thread.join()
    assert ran.is_set()
