"""Fixtures of the kernel's tests: a call made by another thread, threads that interleave finely, and each
backend of the mailbox.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from fuzz import workload
from pillarbox.kernel import BACKENDS, TaskMailbox


@pytest.fixture(params=BACKENDS)
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For `pytestmark`: what the tests of a module call TaskMailbox has one backend after the other."""
    monkeypatch.setattr(request.module, "TaskMailbox", partial(TaskMailbox, backend=request.param))


@pytest.fixture
def short_switches() -> Iterator[None]:
    """Makes threads interleave finely."""
    with workload.short_switches():
        yield


@pytest.fixture
def elsewhere() -> Callable[[Callable[[], Any]], Any]:
    """Runs a function in another thread, to its end; returns its result or raises its exception."""

    def run(function: Callable[[], Any]) -> Any:
        outcome: dict[str, Any] = {}

        def body() -> None:
            try:
                outcome["result"] = function()
            except BaseException as error:
                outcome["error"] = error

        thread = threading.Thread(target=body, name="elsewhere")
        thread.start()
        thread.join()
        if "error" in outcome:
            raise outcome["error"]
        return outcome["result"]

    return run
