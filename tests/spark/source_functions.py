"""An old source function for tests of streams: counts, as far as a file says."""

from __future__ import annotations

import threading
from pathlib import Path

from pillarbox.task import SourceContext, SourceFunction


class CountingTo(SourceFunction):
    """Emits 0, 1, 2 and so on, up to the number in a file, which may become higher."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.next = 0
        self.stop = threading.Event()

    def run(self, context: SourceContext) -> None:
        while not self.stop.is_set():
            while self.next < int(self.path.read_text()) and not self.stop.is_set():
                with context.checkpoint_lock:
                    context.collect((self.next, f"n{self.next}"))
                    self.next += 1
            self.stop.wait(0.01)

    def cancel(self) -> None:
        self.stop.set()

    def snapshot_state(self) -> int:
        return self.next

    def restore_state(self, state: int) -> None:
        self.next = state
