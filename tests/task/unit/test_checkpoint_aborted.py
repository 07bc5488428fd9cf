"""A checkpoint that is aborted while the task takes it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from pillarbox.task.checkpoint import CheckpointBarrier, CheckpointDeclined, OperatorSnapshot, TaskSnapshot
from tests.task.unit.operators import Logging, Map, Rig


@pytest.mark.contract(convicts=["abort_of_newest_ignored"])
def test_a_checkpoint_that_is_aborted_while_it_is_taken_sends_no_barrier() -> None:
    class Yields(Map):
        def process(self, record: Any) -> None:
            # What a restore has left in front of it is worked off by an aligned checkpoint.
            aborts.append(rig.task.notify_checkpoint_aborted_async(1))
            self.context.executor.yield_()

    log: list[str] = []
    aborts: list[Future[Any]] = []
    rig = Rig(Yields(str, "yields"), Logging("b", log))
    states = {"yields": OperatorSnapshot(None, ("x",)), "b": OperatorSnapshot(None, ())}
    rig.task.restore(TaskSnapshot(CheckpointBarrier(0, 0.0), None, states))
    aborted = rig.task.trigger_checkpoint_async(1)
    later = rig.task.trigger_checkpoint_async(2)
    rig.run()
    with pytest.raises(CheckpointDeclined, match="it was aborted while it was taken"):
        aborted.result(timeout=0)
    assert later.result(timeout=0).barrier.id == 2
    assert [each.id for each in rig.output.elements if isinstance(each, CheckpointBarrier)] == [2]
    assert "b snapshot 1" not in log
