"""The context of an enumerator: one class in every use of a source, and what differs between the uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.sources import Source, SourceCoordinator, Split
from pillarbox.sources.split_coordinator import SplitCoordinator
from pillarbox.spark.data_source import BatchReader, Read
from tests.sources.unit.found import Findable, Finder, World
from tests.spark.unit import plans

all_are_closed = plans.all_are_closed


class Noting(Findable):
    """Keeps the contexts that its enumerators were given."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.contexts: list[Any] = []

    def restore_enumerator(self, context: Any, checkpoint: int) -> Finder:
        self.contexts.append(context)
        return super().restore_enumerator(context, checkpoint)


def task(source: Source[Any, Any]) -> None:
    with SourceCoordinator(source, 3):
        pass


def batch(source: Source[Any, Any]) -> None:
    BatchReader(Read.of(source, {"partitions": "3"})).partitions()


def stream(source: Source[Any, Any]) -> None:
    plans.Stream(source, parallelism=3)


@pytest.mark.parametrize("use", [task, batch, stream])
def test_the_context_is_one_class_in_every_use(use: Callable[[Source[Any, Any]], None]) -> None:
    source = Noting(World(1))
    use(source)
    (context,) = source.contexts
    assert type(context) is SplitCoordinator
    assert context.parallelism == 3
    with pytest.raises(ValueError, match="subtask=3: must be from 0 to 2"):
        context.assign([Split("a")], 3)


@pytest.mark.parametrize("use", [batch, stream])
def test_where_splits_are_dealt_out_by_a_plan_none_is_assigned_to_a_running_reader(
    use: Callable[[Source[Any, Any]], None],
) -> None:
    source = Noting(World(1))
    use(source)
    (context,) = source.contexts
    with pytest.raises(TypeError, match=r"say by assigned_to\(split\) which one is to have it"):
        context.assign([Split("a")], 0)
    # The task of a plan has all of its splits from its beginning, and who is not there hears nothing.
    context.no_more_splits(0)
    assert context.readers == {}
