"""What the kernel's tests share: a call made by another thread."""

import threading
from collections.abc import Callable
from typing import Any

import pytest


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
