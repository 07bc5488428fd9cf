"""An old source function, which counts as far as a file says, and an old input format, for tests of Spark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from pillarbox.task.legacy import InputFormat, InputStatistics, SourceContext, SourceFunction


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


class Tens(InputFormat[int, int]):
    """Splits are tens, records are numbers."""

    def create_input_splits(self, min_splits: int) -> Sequence[int]:
        return list(range(0, 10 * min_splits, 10))

    def statistics(self) -> InputStatistics:
        return InputStatistics(nbytes=800, records=70)

    def open(self, split: int) -> None:
        self.left = list(range(split, split + 10))

    def reached_end(self) -> bool:
        return not self.left

    def next_record(self) -> int:
        return self.left.pop(0)

    def close(self) -> None:
        self.left = []
