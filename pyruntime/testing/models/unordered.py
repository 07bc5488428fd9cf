"""The reference model of the unordered result queue: entries go as they finish, none passes a watermark.

A value: any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.testing.models.queue import Entry, QueueModel


@dataclass(frozen=True)
class UnorderedModel(QueueModel):
    """See `QueueModel`."""

    def next_out(self) -> Entry | None:
        """Before the first watermark, what finished first; after all of that, the watermark."""
        segment = []
        for entry in self.held:
            if entry.element is self.watermark:
                break
            segment.append(entry)
        if not segment:
            return self.held[0] if self.held else None
        finished = [entry for entry in segment if entry.finished]
        return min(finished, key=lambda entry: self.done.index(entry.attempt), default=None)
