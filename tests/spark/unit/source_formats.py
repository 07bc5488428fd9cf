"""An old input format, for tests of Spark."""

from __future__ import annotations

from collections.abc import Sequence

from pillarbox.sources.legacy import InputFormat, InputStatistics


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
