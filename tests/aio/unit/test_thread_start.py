"""Threads start where there is room for them, also on a system without limits of memory, and only there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
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


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
@pytest.mark.contract(
    "A thread does not begin in a process without memory for its stack and first objects.",
    convicts=["thread_begins_without_memory"],
)
def test_a_thread_does_not_begin_without_memory_for_its_first_objects() -> None:
    program = """
        import resource, threading
        from pillarbox.thread_start import start_thread

        class Begun(threading.Thread):
            def start(self):
                print("begun")

        start_thread(Begun())
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20),) * 2)
        try:
            start_thread(Begun())
        except MemoryError as error:
            print("MemoryError")
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.returncode) == ("begun\nMemoryError\n", 0), found.stderr
