"""The second phase of a checkpoint: its snapshot is written on another thread, while the task goes on."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from pillarbox.task import InputStatus
from pillarbox.task.checkpoint import CheckpointDeclined, CheckpointOptions, StopAborted, TaskSnapshot
from pillarbox.task.protocols import MAX_WATERMARK, Watermark
from tests.task.unit.operators import Declining, Logging, Map, Rig

UNALIGNED = CheckpointOptions(aligned=False)
END = Watermark(MAX_WATERMARK)


class Storage:
    """Keeps snapshots by their ids. While `may_write` is not set, a write waits."""

    def __init__(self, *fails: int) -> None:
        self.fails = fails
        self.kept: dict[int, TaskSnapshot] = {}
        self.may_write = threading.Event()
        self.may_write.set()
        self.threads: set[threading.Thread] = set()
        self.discarded = threading.Event()

    def write(self, snapshot: TaskSnapshot) -> None:
        self.threads.add(threading.current_thread())
        assert self.may_write.wait(60)
        if snapshot.barrier.id in self.fails:
            raise OSError("no room")
        self.kept[snapshot.barrier.id] = snapshot

    def discard(self, checkpoint_id: int) -> None:
        self.kept.pop(checkpoint_id, None)
        self.discarded.set()


def released_by_the_end(rig: Rig, storage: Storage) -> None:
    """Let `storage` write when the task runs no mail any more."""
    rig.input.close = storage.may_write.set  # type: ignore[method-assign]


def settle(rig: Rig, future: Any) -> Any:
    """Run the task until the checkpoint has come out."""
    while not future.done():
        rig.step()
    return future


def aborted(log: list[str]) -> list[str]:
    return [line for line in log if "aborted" in line]


@pytest.mark.contract(
    "A checkpoint counts as taken when its snapshot is written; the task goes on meanwhile."
)
def test_a_checkpoint_is_taken_when_its_snapshot_is_written_and_the_task_goes_on_meanwhile() -> None:
    storage = Storage()
    storage.may_write.clear()
    rig = Rig(Map(str, "a"), storage=storage)
    rig.push(1)
    rig.step()
    future = rig.task.trigger_checkpoint_async(1, UNALIGNED)
    rig.step()
    rig.push(2)
    rig.step()
    assert rig.output.records == ["1", "2"] and not future.done() and not rig.responses.acknowledged
    storage.may_write.set()
    snapshot = settle(rig, future).result()
    assert storage.kept == {1: snapshot} and rig.responses.acknowledged == [snapshot]
    assert threading.current_thread() not in storage.threads
    rig.task.close()


@pytest.mark.contract(
    "A checkpoint whose snapshot cannot be written is declined, and the task goes on.",
    convicts=["unwritten_snapshot_not_told"],
)
def test_a_checkpoint_whose_snapshot_cannot_be_written_is_declined_and_the_task_goes_on() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), Logging("b", log), storage=(storage := Storage(1)))
    rig.task.restore()
    declined = settle(rig, rig.task.trigger_checkpoint_async(1, UNALIGNED)).exception()
    assert isinstance(declined, CheckpointDeclined) and "not written: OSError: no room" in declined.reason
    assert rig.responses.declined == [declined] and not storage.kept
    assert aborted(log) == ["a aborted 1", "b aborted 1"]
    assert settle(rig, rig.task.trigger_checkpoint_async(2, UNALIGNED)).result() is storage.kept[2]
    assert rig.run("x") == ["x", END] or rig.output.records == ["x"]


@pytest.mark.parametrize("end", ["input", "output"])
@pytest.mark.contract(
    "What the input or the output raises in a snapshot declines it, and the task goes on.",
    convicts=["declined_by_output_not_told"],
)
def test_what_the_input_or_the_output_raises_in_a_snapshot_declines_it(end: str) -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log))
    failing: Any = rig.input if end == "input" else rig.output

    def snapshot_state() -> Any:
        raise ValueError("not now")

    failing.snapshot_state, failing.restore_state = snapshot_state, lambda state: None
    rig.task.restore()
    declined = settle(rig, rig.task.trigger_checkpoint_async(1)).exception()
    assert declined.reason == f"the {end} raised ValueError: not now"
    assert aborted(log) == ([] if end == "input" else ["a aborted 1"])
    assert not [each for each in rig.output.elements if type(each).__name__ == "CheckpointBarrier"]
    rig.run("x")
    assert rig.output.records == ["x"]


@pytest.mark.contract(
    "A checkpoint that is aborted while it is written leaves nothing behind.",
    convicts=["written_after_abort"],
)
def test_a_checkpoint_that_is_aborted_while_it_is_written_leaves_nothing_behind() -> None:
    log: list[str] = []
    rig = Rig(Logging("a", log), storage=(storage := Storage()))
    rig.task.restore()
    storage.may_write.clear()
    future = rig.task.trigger_checkpoint_async(1, UNALIGNED)
    rig.step()
    abort = rig.task.notify_checkpoint_aborted_async(1)
    rig.step()
    assert abort.result(timeout=0) and aborted(log) == ["a aborted 1"]
    assert "aborted while it was written" in future.exception(timeout=0).reason  # type: ignore[union-attr]
    storage.may_write.set()
    # One thread writes and removes: what the second one has asked for is done when the third one is taken.
    for later in (2, 3):
        settle(rig, rig.task.trigger_checkpoint_async(later, UNALIGNED))
    assert sorted(storage.kept) == [2, 3] and len(rig.responses.declined) == 1
    rig.task.close()


@pytest.mark.contract(
    "A checkpoint that is written when the task ends is declined, and leaves nothing behind."
)
def test_a_checkpoint_that_is_written_when_the_task_ends_is_declined_and_leaves_nothing_behind() -> None:
    rig = Rig(Map(str, "a"), storage=(storage := Storage()))
    storage.may_write.clear()
    rig.task.restore()
    future = rig.task.trigger_checkpoint_async(1, UNALIGNED)
    rig.step()
    released_by_the_end(rig, storage)
    rig.run()
    assert "the task has ended" in future.exception(timeout=0).reason  # type: ignore[union-attr]
    assert [each.id for each in rig.responses.declined] == [1]
    assert storage.discarded.is_set() and not storage.kept


@pytest.mark.contract
def test_a_checkpoint_that_is_aborted_while_it_is_written_leaves_nothing_when_the_task_ends_first() -> None:
    rig = Rig(Map(str, "a"), storage=(storage := Storage()))
    storage.may_write.clear()
    rig.task.restore()
    rig.task.trigger_checkpoint_async(1, UNALIGNED)
    rig.step()
    rig.task.notify_checkpoint_aborted_async(1)
    rig.step()
    released_by_the_end(rig, storage)
    rig.run()
    assert storage.discarded.is_set() and not storage.kept


class SlowDisk(Storage):
    """Takes its time for what it removes."""

    def discard(self, checkpoint_id: int) -> None:
        threading.Event().wait(0.05)
        super().discard(checkpoint_id)


@pytest.mark.contract(
    "A task has ended when its storage is used no more.", convicts=["ended_before_the_last_write"]
)
@pytest.mark.parametrize("how", ["run", "run_async", "cancelled"])
def test_a_task_has_ended_when_its_storage_is_used_no_more(how: str) -> None:
    rig = Rig(Map(str, "a"), storage=(storage := SlowDisk()))
    storage.may_write.clear()
    rig.task.restore()
    future = rig.task.trigger_checkpoint_async(1, UNALIGNED)
    rig.step()
    released_by_the_end(rig, storage)
    rig.end()
    if how == "run":
        rig.task.run()
    elif how == "run_async":
        asyncio.run(rig.task.run_async())
    else:

        async def cancelled() -> None:
            running = asyncio.ensure_future(rig.task.run_async())
            while not storage.may_write.is_set():
                await asyncio.sleep(0)
            # It ends as it would have, when the storage is used no more.
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

        asyncio.run(cancelled())
    assert isinstance(future.exception(timeout=0), CheckpointDeclined)
    assert storage.discarded.is_set() and not storage.kept


class NewestOnly(Storage):
    """Keeps one snapshot before the newest one, as `SnapshotFolder` does."""

    def write(self, snapshot: TaskSnapshot) -> None:
        before = sorted(self.kept)[:-1]
        super().write(snapshot)
        for each in before:
            del self.kept[each]


@pytest.mark.contract(
    "The newest checkpoint that was taken outlives those that are written when a task ends."
)
def test_the_newest_checkpoint_that_was_taken_outlives_those_that_are_written_when_a_task_ends() -> None:
    rig = Rig(Map(str, "a"), storage=(storage := NewestOnly()))
    rig.task.restore()
    settle(rig, rig.task.trigger_checkpoint_async(1, UNALIGNED)).result()
    storage.may_write.clear()
    futures = [rig.task.trigger_checkpoint_async(each, UNALIGNED) for each in (2, 3)]
    rig.step()
    released_by_the_end(rig, storage)
    rig.run()
    assert all(isinstance(future.exception(timeout=0), CheckpointDeclined) for future in futures)
    assert [each.id for each in rig.responses.declined] == [2, 3]
    assert sorted(storage.kept) == [1]


@pytest.mark.contract
def test_the_newest_checkpoint_that_was_taken_outlives_one_that_is_aborted_and_one_that_fails() -> None:
    rig = Rig(Map(str, "a"), storage=(storage := NewestOnly(3)))
    rig.task.restore()
    settle(rig, rig.task.trigger_checkpoint_async(1, UNALIGNED)).result()
    storage.may_write.clear()
    futures = [rig.task.trigger_checkpoint_async(each, UNALIGNED) for each in (2, 3)]
    rig.task.notify_checkpoint_aborted_async(2)
    rig.step()
    storage.may_write.set()
    for future in futures:
        assert isinstance(settle(rig, future).exception(), CheckpointDeclined)
    assert sorted(storage.kept) == [1]
    rig.task.close()


def test_several_checkpoints_are_written_one_after_the_other() -> None:
    rig = Rig(Map(str, "a"), storage=(storage := Storage(2)))
    storage.may_write.clear()
    rig.task.restore()
    futures = [rig.task.trigger_checkpoint_async(each, UNALIGNED) for each in (1, 2, 3)]
    rig.step()
    storage.may_write.set()
    for future in futures:
        settle(rig, future)
    assert [future.exception() is None for future in futures] == [True, False, True]
    assert sorted(storage.kept) == [1, 3] and len(storage.threads) == 1
    assert settle(rig, rig.task.notify_checkpoint_complete_async(3)).result()
    rig.task.close()


def test_a_task_whose_savepoint_cannot_be_written_goes_on_and_a_drained_one_cannot() -> None:
    rig = Rig(Map(str, "a"), storage=Storage(1))
    rig.task.restore()
    declined = settle(rig, rig.task.stop_with_savepoint_async(1)).exception()
    assert isinstance(declined, CheckpointDeclined)
    rig.run(1)
    assert rig.output.records == ["1"]
    rig = Rig(Map(str, "a"), storage=Storage(1))
    rig.task.restore()
    future = rig.task.stop_with_savepoint_async(1, drain=True)
    with pytest.raises(StopAborted):
        settle(rig, future)
    assert isinstance(future.exception(timeout=0), CheckpointDeclined)


def test_nothing_leaves_a_task_that_stops_while_its_savepoint_is_written() -> None:
    rig = Rig(Map(str, "a"), storage=(storage := Storage()))
    storage.may_write.clear()
    rig.task.restore()
    future = rig.task.stop_with_savepoint_async(1)
    rig.step()
    rig.push(1)
    rig.step()
    assert not rig.output.records
    storage.may_write.set()
    settle(rig, future).result()
    rig.task.notify_checkpoint_complete_async(1)
    rig.end(InputStatus.END_OF_INPUT)
    rig.task.run()
    assert not rig.output.records


def test_what_declines_in_the_first_phase_is_not_written() -> None:
    rig = Rig(Declining(1), storage=(storage := Storage()))
    rig.task.restore()
    assert settle(rig, rig.task.trigger_checkpoint_async(1)).exception() is not None
    rig.task.close()
    assert not storage.threads
