"""The reference model of the ordered result queue: an entry goes when all before it have gone.

A value: any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.testing.models.queue import Entry, QueueModel


@dataclass(frozen=True)
class OrderedModel(QueueModel):
    """See `QueueModel`."""

    def next_out(self) -> Entry | None:
        """The oldest entry, if it has finished."""
        return self.held[0] if self.held and self.held[0].finished else None
