"""Micro-batches for tests that plan them without Spark, one after the other, as Spark asks for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pillarbox.sources import Source
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.spark.micro_batches import MicroBatches, Offset, OffsetCodec

LONG = 20.0

_opened: list[MicroBatches[Any, Any]] = []


@pytest.fixture(autouse=True)
def all_are_closed() -> Iterator[None]:
    """For each module that plans: imported there, no thread of an enumerator outlives a test."""
    yield
    while _opened:
        _opened.pop().close()


def look(batches: MicroBatches[Any, Any], *, anew: bool = False) -> None:
    """Have a discovery that is due end, so that the next plan has what it finds. anew: one is due now."""
    if batches._frozen is not None:
        return
    thread = batches.thread

    def begin() -> None:
        if anew:
            thread._due = 0.0
        if batches._backlog() < batches._max_splits:
            thread.look(batches._max_splits)

    thread.call(begin)
    thread.caught_up().result(LONG)


class Stream:
    """A stream of a source: its offset goes through JSON, as the log holds it. given: for `MicroBatches`."""

    def __init__(
        self,
        source: Source[Any, Any],
        *,
        available_now: bool = False,
        parallelism: int = 2,
        **given: Any,
    ) -> None:
        self.source = source
        self.given = given
        self.available_now = available_now
        self.parallelism = parallelism
        self.codec: OffsetCodec[Any, Any] = OffsetCodec(source)
        self.offset: dict[str, Any] = self.codec.to_json(Offset())
        self.read: list[tuple[str, int]] = []
        self.start()

    def start(self) -> MicroBatches[Any, Any]:
        """As a new process: nothing is known but the offset."""
        if hasattr(self, "batches"):
            self.batches.close()
        self.batches: MicroBatches[Any, Any] = MicroBatches(self.source, self.parallelism, **self.given)
        _opened.append(self.batches)
        if self.available_now:
            self.batches.only_what_is_there(ReadLimit())
        self.take_up(self.offset)
        return self.batches

    def take_up(self, offset: dict[str, Any]) -> None:
        """Go on from an offset: the plans behind it were dropped."""
        self.batches.take_up(self.codec.from_json(json.loads(json.dumps(offset))))

    def plan(self, *, waits: bool = True, **limit: int | None) -> list[Any] | None:
        """The slices of the next micro-batch. waits: whether a discovery that is due ends before."""
        if waits:
            look(self.batches)
        planned = self.batches.plan(ReadLimit(**limit))
        if planned is None:
            return None
        end = json.loads(json.dumps(self.codec.to_json(planned)))
        slices = self.codec.slices(self.offset, end)
        self.offset = end
        return list(slices)
