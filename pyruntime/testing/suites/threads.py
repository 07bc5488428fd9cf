"""A second thread for the suites: it runs what it is given, one thing after the other.

Used by the suites' machines, from the thread of the test.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Worker:
    """A thread that runs functions. `run` and `start` may be called by one thread at a time."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Have the thread call the function; returns what waits for its result, or raises its exception."""
        self._jobs.put(function)
        return self._answer

    def run(self, function: Callable[[], Any]) -> Any:
        """What the function gives or raises in the thread."""
        return self.start(function)()

    def close(self) -> None:
        """End the thread, once it has done what it was given."""
        self._jobs.put(None)
        self._thread.join()

    def _answer(self) -> Any:
        result, error = self._answers.get()
        if error is not None:
            raise error
        return result

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._answers.put((job(), None))
            except BaseException as error:
                self._answers.put((None, error))
            del job
