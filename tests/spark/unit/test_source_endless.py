"""A connector of one's own whose discovery has no end, in every use of a source: an error, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from pillarbox.sources import Source, SourceCoordinator, Split
from pillarbox.sources.enumerator import Failed
from pillarbox.spark.data_source import BatchReader, Read
from tests.sources.unit.found import Findable, Finder, World
from tests.sources.unit.test_coordinator import Reader
from tests.spark.unit import plans

all_are_closed = plans.all_are_closed

MAX_PLANS = 30
SERVED = 0.001
"""Seconds; a stream has an interval."""


class Endless(Findable):
    """Its discovery gives what `found` does."""

    def __init__(self, found: Callable[[int], Any], interval: float | None = None) -> None:
        super().__init__(World(), interval)
        self.found = found

    def restore_enumerator(self, context: Any, checkpoint: int) -> Finder:
        enumerator = EndlessFinder(context, checkpoint, self.world)
        enumerator.discovery_interval = self.interval
        enumerator.found = self.found
        return enumerator


class EndlessFinder(Finder):
    found: Callable[[int], Any]
    max_planned_splits = 100

    def discover(self, checkpoint: int, most: int) -> Any:
        return self.found(checkpoint)


def in_a_task(source: Source[Any, Any]) -> None:
    with SourceCoordinator(source, 1) as coordinator, closing(coordinator.link(0)) as link:
        reader = Reader(link).open()
        link.request_split()
        raise reader.wait(Failed).error


def in_a_batch(source: Source[Any, Any]) -> None:
    BatchReader(Read.of(source, {"partitions": "1"})).partitions()


def in_a_stream(source: Source[Any, Any]) -> None:
    stream = plans.Stream(source)
    for _ in range(MAX_PLANS):
        stream.plan(waits=False)


def in_a_stream_of_what_is_there(source: Source[Any, Any]) -> None:
    plans.Stream(source, available_now=True)


BOUNDED = [in_a_task, in_a_batch]
STREAMS = [in_a_stream, in_a_stream_of_what_is_there]


def forgets(known: int) -> Any:
    return [Split("a", 0, 10)], known


def finds_again(known: int) -> Any:
    return [Split("a", 0, 10)], known + 1


def no_pair(known: int) -> Any:
    return [Split("a", 0, 10)]


@pytest.mark.contract("A discovery without an end is an error that names class, method and rule.")
@pytest.mark.parametrize("use", [*BOUNDED, *STREAMS])
@pytest.mark.parametrize(
    ("found", "rule"),
    [
        (forgets, "must give a new one that knows them"),
        (finds_again, "must not find what its checkpoint knows"),
        (no_pair, "must give a tuple of splits and a checkpoint"),
    ],
)
def test_a_discovery_that_never_comes_to_its_end_is_an_error(
    use: Callable[[Source[Any, Any]], None], found: Callable[[int], Any], rule: str
) -> None:
    source = Endless(found, SERVED if use in STREAMS else None)
    with pytest.raises(ValueError, match=f"^EndlessFinder.discover .*{rule}"):
        use(source)


def test_a_split_that_a_stream_finds_anew_at_each_look_is_not_read_again() -> None:
    stream = plans.Stream(Endless(finds_again, SERVED))

    def read() -> None:
        while stream.plan():
            assert stream.offset["number"] == 1

    with pytest.raises(ValueError, match="must not find what its checkpoint knows"):
        read()


@pytest.mark.parametrize("use", [in_a_batch, in_a_stream_of_what_is_there])
def test_one_that_finds_others_for_ever_is_an_error_where_all_are_found_before_any_is_read(
    use: Callable[[Source[Any, Any]], None],
) -> None:
    source = Endless(
        lambda known: ([Split(f"s{known}", 0, 10)], known + 1), SERVED if use in STREAMS else None
    )
    with pytest.raises(ValueError, match=r"EndlessFinder.discover has found more than 100 splits"):
        use(source)


def test_a_split_that_was_made_anew_once_discovery_had_come_to_an_end_is_read_as_often_as_it_comes() -> None:
    source = Endless(lambda known: ([Split("a", 0, 10)] if known % 2 == 0 else [], known + 1), SERVED)
    stream = plans.Stream(source)
    read = 0
    while read < 20:
        read += len(stream.plan() or ())
