"""The queue suite: any result queue against the reference model, through snapshots, crashes and restores.

`queue_suite` is for the tests of others, and for our own. It runs in the thread of the test runner. The rules
play an operator: they read numbered input, and hold elements at the door when the queue is full.
"""

# Why there are no books over all lives beside the model. Snapshots are compared with the model's, and the
# model is restored from what the subject gave: what a crash loses or repeats is a difference at the next
# operation, and books that are made of outcomes that agree can only convict the model.
#
# Why a crash goes back to a snapshot and leaves the old queue as it is. A process that dies closes nothing;
# a suite that closed the old queue first would never see what a late completion does to the new one.

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from pillarbox.kernel import WATERMARK
from pillarbox.testing.models import HeldEntry, OrderedModel, QueueModel, Raised, UnorderedModel
from pillarbox.testing.suites.machine import (
    Disagreement,
    SuiteMachine,
    as_test_case,
    may_end,
    step,
)


class CrashPoint(NamedTuple):
    """The state to which a crash goes back: the snapshot, with the door, and the place in the input."""

    entries: list[Any]
    position: int


def queue_suite(
    make: Callable[[], Any],
    *,
    capacity: int,
    ordered: bool,
    owner_completes: bool = False,
    settings: settings | None = None,
    name: str = "QueueSuite",
) -> Any:
    """A test case, for unittest or pytest, that holds result queues against the contract of the kernel's.

    make: gives a new, empty queue of this capacity, in entries, that the calling thread owns; 3 to 8 is
    a capacity that finds most. As for `mailbox_suite` it has the methods of ours.
    ordered: the contract of `OrderedQueue`, or else that of `UnorderedQueue`.
    owner_completes: `complete` is for the owner alone, as in a queue made so; otherwise for any thread.
    """
    empty = (OrderedModel if ordered else UnorderedModel)(capacity, WATERMARK)
    return as_test_case(_QueueMachine, name, settings, make, empty=empty, owner_completes=owner_completes)


class _QueueMachine(SuiteMachine[QueueModel]):
    """The rules of the queue suite."""

    empty: ClassVar[QueueModel]
    owner_completes: ClassVar[bool]
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "len": len,
        "is_full": lambda queue: queue.is_full,
        "is_empty": lambda queue: queue.is_empty,
        "in_flight": lambda queue: queue.in_flight,
        "restoring": lambda queue: queue.restoring,
    }

    def __init__(self) -> None:
        super().__init__()
        # The next number of the input, and the elements that were read and refused.
        self.position = 0
        self.door: list[int] = []
        self.saved: CrashPoint | None = None
        self.numbers = itertools.count()
        self.failed = False
        self.begin_life()

    def new_model(self) -> QueueModel:
        return self.empty

    def begin_life(self) -> None:
        """A queue has been made: it knows no handle, and its counters are zero."""
        self.handles: dict[int, Any] = {}
        self.stale: list[Any] = [0, -1]
        self.late = 0

    def expect(self, operation: str, *rest: Any) -> None:
        try:
            super().expect(operation, *rest)
        except Disagreement:
            self.failed = True
            raise

    # ---- handles: numbers of attempts in the model, whatever the subject makes of them

    def learn(self, operation: str, number: int, handle: Any) -> None:
        """The subject gave a handle for an attempt. No other, earlier or later, may be equal to it."""
        if isinstance(handle, Raised) or handle in self.stale or handle in self.handles.values():
            self.expect(operation, (), handle, "a new handle")
        self.handles[number] = handle

    def retire(self, entry: HeldEntry) -> None:
        self.stale.append(self.handles.pop(entry.attempt))

    def draw(self, data: st.DataObject) -> HeldEntry:
        entry: HeldEntry = data.draw(st.sampled_from(self.model.running()), label="entry")
        return entry

    # ---- in

    @rule(count=st.integers(1, 4))
    def put(self, count: int) -> None:
        for _ in range(count):
            self.put_one()

    def read(self) -> int:
        self.position += 1
        return self.position - 1

    def put_one(self) -> None:
        element = self.door.pop() if self.door else self.read()
        after, expected = self.model.put(element)
        got = self.in_owner(self.called("put", element))
        if isinstance(expected, Raised):
            self.expect("put", (element,), got, expected)
            self.door.append(element)
        else:
            self.learn("put", expected, got)
        self.model = after

    @precondition(lambda self: not self.door)
    @rule()
    def put_watermark(self) -> None:
        if self.check("put_watermark", self.position) is None:
            self.read()

    @precondition(lambda self: self.model.running())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        entry = self.draw(data)
        after, number = self.model.renew(entry.attempt)
        got = self.in_owner(self.called("renew", self.handles[entry.attempt]))
        self.learn("renew", number, got)
        self.retire(entry)
        self.model = after

    @rule(data=st.data())
    def renew_stale(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.stale), label="handle")
        got = self.in_owner(self.called("renew", handle))
        self.expect("renew", (handle,), got, Raised("ValueError"))

    # ---- completion, by any thread

    @precondition(lambda self: self.model.running())
    @rule(data=st.data(), elsewhere=st.booleans())
    def complete(self, data: st.DataObject, elsewhere: bool) -> None:
        self.finish(self.draw(data), elsewhere)

    def finish(self, entry: HeldEntry, elsewhere: bool = False) -> None:
        result = f"result {next(self.numbers)} of {entry.element}"
        handle = self.handles[entry.attempt]
        if elsewhere and self.owner_completes:
            self.refused_elsewhere(handle)
            return
        call = self.called("complete", handle, result)
        after, expected = self.model.complete(entry.attempt, result)
        got = self.in_other(call) if elsewhere else self.in_owner(call)
        self.expect("complete", (handle, result), got, expected)
        self.retire(entry)
        self.model = after

    @rule(data=st.data(), elsewhere=st.booleans())
    def complete_late(self, data: st.DataObject, elsewhere: bool) -> None:
        handle = data.draw(st.sampled_from(self.stale), label="handle")
        if elsewhere and self.owner_completes:
            self.refused_elsewhere(handle)
            return
        call = self.called("complete", handle, "late")
        got = self.in_other(call) if elsewhere else self.in_owner(call)
        self.expect("complete", (handle, "late"), got, False)
        self.late += 1

    def refused_elsewhere(self, handle: Any) -> None:
        self.check_wrong_thread("complete", handle, "elsewhere")

    # ---- out

    emit = step("emit")
    emit_many = step("emit_many", lambda self, limit: (limit,), limit=st.integers(0, 2) | st.none())

    @precondition(may_end)
    @rule()
    def clear(self) -> None:
        self.give_back("clear")

    @precondition(may_end)
    @rule()
    def close(self) -> None:
        self.give_back("close")

    def give_back(self, operation: str) -> None:
        before = self.model
        self.check(operation)
        for entry in before.running():
            self.retire(entry)

    # ---- snapshots

    @rule()
    def snapshot(self) -> None:
        self.saved = CrashPoint(self.check("snapshot", list(self.door)), self.position)

    @precondition(lambda self: self.saved)
    @rule()
    def crash_and_restore(self) -> None:
        assert self.saved is not None
        self.position, self.door = self.saved.position, []
        self.subject = self.in_owner(self.make)
        self.model = self.new_model()
        self.begin_life()
        self.check("restore", self.saved.entries)

    @precondition(lambda self: self.model.done)
    @rule()
    def crash_right_after_a_snapshot(self) -> None:
        self.snapshot()
        self.crash_and_restore()
        self.admit_restored()

    @precondition(lambda self: self.model.held or self.model.waiting)
    @rule()
    def restore_too_late(self) -> None:
        self.check("restore", [("x", False, None)])

    @rule()
    def admit_restored(self) -> None:
        after, expected = self.model.admit_restored()
        got = self.in_owner(self.called("admit_restored"))
        if expected is None or not isinstance(got, tuple) or len(got) != 2:
            self.expect("admit_restored", (), got, expected)
        else:
            number, element = expected
            self.expect("admit_restored", (), got[1], element)
            self.learn("admit_restored", number, got[0])
        self.model = after

    # ---- threads

    @rule(operation=st.sampled_from(sorted(QueueModel.confined)))
    def from_another_thread(self, operation: str) -> None:
        handle = next(iter(self.handles.values()), 0)
        arguments: dict[str, tuple[Any, ...]] = {
            "put": ("x",),
            "put_watermark": ("x",),
            "renew": (handle,),
            "restore": ([],),
        }
        self.check_wrong_thread(operation, *arguments.get(operation, ()))

    @rule()
    def adopt(self) -> None:
        self.check_adopt(False if self.model.held else (not self.model.waiting or None))

    # ---- after every step, and at the end

    @invariant()
    def agrees(self) -> None:
        self.check_all("len", "is_full", "is_empty", "in_flight", "restoring", "has_completed", "snapshot")

    @invariant()
    def counts(self) -> None:
        model = self.model
        self.check_statistics(
            capacity=model.capacity,
            size=len(model.held),
            in_flight=len(model.running()),
            late=self.late,
        )

    def teardown(self) -> None:
        try:
            if not self.failed and not self.model.closed:
                self.finish_everything()
        finally:
            super().teardown()

    def finish_everything(self) -> None:
        while self.model.held or self.model.waiting:
            while self.model.waiting and len(self.model.held) < self.model.capacity:
                self.admit_restored()
            for entry in self.model.running():
                self.finish(entry)
            while self.model.next_out() is not None:
                self.check("emit")
