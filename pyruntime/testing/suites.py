"""The suites: a mailbox, result queue or hand-over against its reference model, in random steps.

`mailbox_suite`, `queue_suite` and `handover_suite` are for the tests of users, and for our own. A suite runs
in the thread of the test and has a second thread. The owner of a mailbox or queue is the thread of the test,
or, once it has adopted the subject, the second one; confined operations go to the owner, and from the other
thread they must be refused. A hand-over's producer and consumer may each be either thread.
"""

# Why some runs have their subject owned by a second thread: a wait of the main thread is cut into slices,
# so that Ctrl-C gets through, and a slice that ends hides a wake-up that was lost.
#
# Why some mails are put in the shape of a full batch (`take_a_batch`). Random steps seldom make a batch of
# more than three and take all of it, and what a batch leaves out shows at its end only.
#
# Why a queue has no books over all lives beside the model. Snapshots are compared with the model's, and the
# model is restored from what the subject gave: what a crash loses or repeats is a difference at the next
# operation, and books that are made of outcomes that agree can only convict the model.
#
# Why in some runs all elements of a queue are equal, and all results. A queue that looks an entry up by what
# it holds is right as long as no two are equal; those of users are.
#
# Why a crash goes back to a snapshot and leaves the old queue as it is. A process that dies closes nothing;
# a suite that closed the old queue first would never see what a late completion does to the new one.
#
# Why sizes of a hand-over's items are drawn up to more than all bytes that may wait: an empty hand-over takes
# any item, and only one that is too large shows that rule. Why `fill` puts several small items: with random
# sizes a hand-over is seldom full by their number, and the bound on bytes would hide the bound on items.

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pillarbox.kernel import WATERMARK, Mail
from pillarbox.testing import suite_machine
from pillarbox.testing.identity import Alike, told_apart
from pillarbox.testing.models import (
    HandoverModel,
    MailboxModel,
    OrderedModel,
    QueueModel,
    Raised,
    UnorderedModel,
)
from pillarbox.testing.suite_machine import Disagreement as Disagreement
from pillarbox.testing.suite_machine import (
    SuiteMachine,
    as_test_case,
    may_end,
    step,
)

# -- mailboxes -------------------------------------------------------------------------------------

PRIORITIES = st.sampled_from([0, 1, -1, 3])
MIN_PRIORITIES = st.sampled_from([-1, 0, -1, 1, 3])
KINDS = st.tuples(PRIORITIES, st.booleans(), st.booleans())
Kind = tuple[int, bool, bool]


def nothing() -> None:
    """Do nothing, as the mails of the suites do."""


def mailbox_suite(
    make: Callable[[], Any],
    *,
    urgent_burst: int,
    settings: settings | None = None,
    name: str = "MailboxSuite",
) -> Any:
    """A test case, for unittest or pytest, that holds mailboxes against the contract of `TaskMailbox`.

    make: gives a new, open, empty mailbox that the calling thread owns, with `urgent_burst`. It is called in
        the test's thread and, for some runs, again in another one. It has the methods of ours, of which it
        may leave out `adopt` and `statistics`, and its errors have the names of ours.
    settings: Hypothesis settings. name: of the test case.

    The test case fails with `Disagreement`, after Hypothesis has printed the shortest steps to it. A wake-up
    that is lost is heard within a second.
    """
    return as_test_case(_MailboxMachine, name, settings, make, urgent_burst=urgent_burst)


class _MailboxMachine(SuiteMachine[MailboxModel]):
    """The rules of the mailbox suite; one for each way to use a mailbox."""

    urgent_burst: ClassVar[int]
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "len": len,
        "get_state": lambda mailbox: mailbox.state.name,
    }

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.expected_calls = 0
        self.accepted = self.taken = self.urgent_taken = self.rejected = 0

    def new_model(self) -> MailboxModel:
        return MailboxModel(self.urgent_burst)

    def mail(self, kind: Kind) -> Mail:
        priority, urgent, deferrable = kind
        return Mail(nothing, priority=priority, urgent=urgent, deferrable=deferrable)

    def account(self, before: MailboxModel, operation: str, arguments: tuple[Any, ...], got: object) -> None:
        # Whatever takes an armed wake-up away has called it, but for close, which drops it.
        self.expected_calls += before.armed and not self.model.armed and operation != "close"
        if operation in ("put", "put_all", "try_put"):
            count = len(arguments[0]) if operation == "put_all" else 1
            if got is None or got is True:
                self.accepted += count
            else:
                self.rejected += count
        elif operation in ("try_take", "take", "try_take_from_batch", "drain"):
            outcomes: list[Any] = got if isinstance(got, list) else [got]
            mails = [mail for mail in outcomes if mail is not None and not isinstance(mail, Raised)]
            self.taken += len(mails)
            self.urgent_taken += sum(mail.urgent for mail in mails)

    @initialize(elsewhere=st.sampled_from([False, False, False, True]))
    def begin_in_a_thread(self, elsewhere: bool) -> None:
        """Choose the owner: waits of the main thread may be cut into slices, which hide a lost wake-up."""
        if elsewhere:
            self.owned_by_worker = True
            self.subject = self.in_owner(self.make)

    # ---- any thread

    put = step("put", lambda self, kind: (self.mail(kind),), elsewhere=True, kind=KINDS)
    try_put = step("try_put", lambda self, kind: (self.mail(kind),), elsewhere=True, kind=KINDS)
    put_all = step(
        "put_all",
        lambda self, kinds: ([self.mail(kind) for kind in kinds],),
        elsewhere=True,
        kinds=st.lists(KINDS, min_size=1, max_size=5),
    )
    quiesce = step("quiesce", elsewhere=True, ends=True)

    # ---- the owner

    @rule(least=MIN_PRIORITIES, skip=st.booleans())
    def try_take(self, least: int, skip: bool) -> None:
        self.check("try_take", least, skip_deferrable=skip)

    @rule(least=MIN_PRIORITIES, skip=st.booleans())
    def take(self, least: int, skip: bool) -> None:
        self.check("take", least, 0, skip_deferrable=skip)

    create_batch = step("create_batch")
    try_take_from_batch = step("try_take_from_batch")
    drain = step("drain")
    arm_wakeup = step("arm_wakeup", lambda self: (self.count_call,))

    @rule(kinds=st.lists(KINDS, min_size=3, max_size=6), left=st.integers(0, 2))
    def take_a_batch(self, kinds: list[Kind], left: int) -> None:
        """Make a large batch, and take all of it but a few: what a batch leaves out shows at its end."""
        for kind in kinds:
            self.check("put", self.mail(kind))
        self.check("create_batch")
        for _ in range(len(self.model.waiting) + 1 - left):
            self.check("try_take_from_batch")

    @precondition(may_end)
    @rule(of_batch=st.booleans())
    def close(self, of_batch: bool) -> None:
        """Close, often with a batch, of which close gives back what is left."""
        if of_batch:
            self.check("create_batch")
        self.check("close")

    def count_call(self) -> None:
        self.calls += 1

    # ---- two threads at once

    def take_meets(self, operation: str, *arguments: object) -> None:
        """Have the owner take, with a time limit, and the other thread do what ends the take."""
        self.check_meeting("take", (0, suite_machine.WAIT_LIMIT_S), operation, arguments)

    def nothing_to_take(self) -> bool:
        return self.model.state == "OPEN" and self.model.apply("try_take", 0)[1] is None

    @precondition(lambda self: self.nothing_to_take())
    @rule()
    def take_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("take", 0, suite_machine.SOON_S)

    @precondition(lambda self: not self.nothing_to_take())
    @rule()
    def take_at_once(self) -> None:
        self.check_at_once("take", 0, suite_machine.WAIT_LIMIT_S)

    @precondition(lambda self: self.nothing_to_take() and not self.model.armed)
    @rule(urgent=st.booleans(), priority=st.integers(0, 3))
    def take_meets_put(self, urgent: bool, priority: int) -> None:
        self.take_meets("put", self.mail((priority, urgent, False)))

    @precondition(lambda self: may_end(self) and self.nothing_to_take() and not self.model.armed)
    @rule()
    def take_meets_quiesce(self) -> None:
        self.take_meets("quiesce")

    # ---- wrong threads

    @rule(operation=st.sampled_from(sorted(MailboxModel.confined)))
    def from_another_thread(self, operation: str) -> None:
        arguments: dict[str, tuple[Any, ...]] = {"take": (0, 0), "arm_wakeup": (self.count_call,)}
        self.check_wrong_thread(operation, *arguments.get(operation, ()))

    @rule()
    def adopt(self) -> None:
        model = self.model
        private = any(not mail.urgent for mail in model.waiting[: model.batch])
        free = model.state == "OPEN" and not model.waiting
        self.check_adopt(False if private else (free or None))

    # ---- after every step

    @invariant()
    def agrees(self) -> None:
        self.check_all("len", "has_mail", "get_state")
        if self.calls != self.expected_calls:
            raise Disagreement("arm_wakeup", "", f"{self.calls} calls", f"{self.expected_calls} calls")

    @invariant()
    def counts(self) -> None:
        of_batch = sum(not mail.urgent for mail in self.model.waiting[: self.model.batch])
        self.check_statistics(
            batch=of_batch,
            queued=len(self.model.waiting) - of_batch,
            put=self.accepted,
            taken=self.taken,
            urgent_taken=self.urgent_taken,
            rejected=self.rejected,
        )


# -- result queues ---------------------------------------------------------------------------------


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
        self.door: list[Any] = []
        self.alike = False
        self.saved: CrashPoint | None = None
        self.numbers = itertools.count()
        self.failed = False
        self.begin_life()

    def new_model(self) -> QueueModel:
        return self.empty

    @initialize(alike=st.booleans())
    def choose_elements(self, alike: bool) -> None:
        """Decide whether elements, and results, are equal to each other."""
        self.alike = alike

    def begin_life(self) -> None:
        """A queue has been made: it knows no handle, and its counters are zero."""
        # By the number of the attempt, with those that are over; two that no queue may give.
        self.handles: dict[int, Any] = {0: 0, -1: -1}
        self.late = 0

    def expect(
        self, operation: str, arguments: Collection[Any], got: object, expected: object, *rest: Any
    ) -> None:
        if self.alike:
            got, expected = told_apart(got), told_apart(expected)
        try:
            super().expect(operation, arguments, got, expected, *rest)
        except Disagreement:
            self.failed = True
            raise

    # ---- handles: numbers of attempts in the model, whatever the subject makes of them

    def called(self, operation: str, *arguments: Any, **keywords: Any) -> Callable[[], Any]:
        if operation in ("renew", "complete"):
            arguments = (self.handles[arguments[0]], *arguments[1:])
        return super().called(operation, *arguments, **keywords)

    def follow(self, got: object, operation: str, *arguments: object, **keywords: object) -> None:
        expected = self.model.apply(operation, *arguments)[1]
        if operation in ("put", "renew") and not isinstance(expected, Raised):
            got = self.learn(operation, expected, got)
        elif operation == "admit_restored" and expected and isinstance(got, tuple) and len(got) == 2:
            got = self.learn(operation, expected[0], got[0]), got[1]
        super().follow(got, operation, *arguments, **keywords)

    def learn(self, operation: str, number: int, handle: object) -> int:
        """The subject gave a handle for an attempt. No other, earlier or later, may be equal to it."""
        if isinstance(handle, Raised) or handle in self.handles.values():
            self.expect(operation, (), handle, "a new handle")
        self.handles[number] = handle
        return number

    def account(self, before: QueueModel, operation: str, arguments: tuple[Any, ...], got: object) -> None:
        self.late += operation == "complete" and got is False

    def draw(self, data: st.DataObject, *, is_stale: bool = False) -> int:
        running = [entry.attempt for entry in self.model.running()]
        numbers = [number for number in self.handles if number not in running] if is_stale else running
        return int(data.draw(st.sampled_from(numbers), label="attempt"))

    # ---- in

    @rule(count=st.integers(1, 4))
    def put(self, count: int) -> None:
        for _ in range(count):
            element = self.door.pop() if self.door else self.made(self.read())
            if isinstance(self.check("put", element), Raised):
                self.door.append(element)

    def read(self) -> int:
        self.position += 1
        return self.position - 1

    def made(self, number: int) -> Any:
        return Alike(number) if self.alike else number

    @precondition(lambda self: not self.door)
    @rule()
    def put_watermark(self) -> None:
        if self.check("put_watermark", self.position) is None:
            self.read()

    @precondition(lambda self: self.model.running())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self.check("renew", self.draw(data))

    @rule(data=st.data())
    def renew_stale(self, data: st.DataObject) -> None:
        self.check("renew", self.draw(data, is_stale=True))

    # ---- completion, by any thread

    @precondition(lambda self: self.model.running())
    @rule(data=st.data(), elsewhere=st.booleans())
    def complete(self, data: st.DataObject, elsewhere: bool) -> None:
        self.finish(self.draw(data), elsewhere)

    @rule(data=st.data(), elsewhere=st.booleans())
    def complete_late(self, data: st.DataObject, elsewhere: bool) -> None:
        self.finish(self.draw(data, is_stale=True), elsewhere)

    def finish(self, number: int, elsewhere: bool = False) -> None:
        serial = next(self.numbers)
        result = self.made(serial) if self.alike else f"result {serial}"
        if elsewhere and self.owner_completes:
            self.check_wrong_thread("complete", number, result)
        else:
            self.check("complete", number, result, elsewhere=elsewhere)

    # ---- out

    emit = step("emit")
    emit_many = step("emit_many", lambda self, limit: (limit,), limit=st.integers(0, 2) | st.none())
    clear = step("clear", ends=True)
    close = step("close", ends=True)

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

    admit_restored = step("admit_restored")

    # ---- threads

    @rule(operation=st.sampled_from(sorted(QueueModel.confined)))
    def from_another_thread(self, operation: str) -> None:
        arguments: dict[str, tuple[Any, ...]] = {
            "put": ("x",),
            "put_watermark": ("x",),
            "renew": (0,),
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
                self.check("admit_restored")
            for entry in self.model.running():
                self.finish(entry.attempt)
            while self.model.next_out() is not None:
                self.check("emit")


# -- hand-overs ------------------------------------------------------------------------------------


class Failure(Exception):
    """The failure of the producer in `handover_suite`."""


def handover_suite(
    make: Callable[[], Any],
    *,
    max_items: int,
    max_bytes: int | None = None,
    settings: settings | None = None,
    name: str = "HandoverSuite",
) -> Any:
    """A test case, for unittest or pytest, that checks hand-overs against the contract of `Handover`.

    make: gives a new, empty hand-over with these bounds; 1 to 5 items and 10 bytes find most. As for
    `mailbox_suite` it has the methods of ours, of which it may leave out `statistics`.
    """
    return as_test_case(_HandoverMachine, name, settings, make, empty=HandoverModel(max_items, max_bytes))


class _HandoverMachine(SuiteMachine[HandoverModel]):
    """The rules of the hand-over suite. The test's thread is the consumer, the producer, or both."""

    empty: ClassVar[HandoverModel]
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "len": len,
        "ended": lambda handover: handover.ended,
    }

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.calls = {"consumer": 0, "producer": 0}
        self.expected_calls = {"consumer": 0, "producer": 0}
        self.accepted = self.taken = 0

    def new_model(self) -> HandoverModel:
        return self.empty

    def sized(self, nbytes: int) -> tuple[Any, ...]:
        """The arguments of a put of a new item."""
        return f"item {next(self.numbers)}", nbytes

    def account(self, before: HandoverModel, operation: str, arguments: tuple[Any, ...], got: object) -> None:
        after = self.model
        # What takes an armed wake-up away has called it; close alone drops the consumer's uncalled.
        self.expected_calls["producer"] += before.armed_producer is not None and after.armed_producer is None
        if operation == "close":
            return  # what waits goes back, neither accepted nor taken
        self.expected_calls["consumer"] += before.armed_consumer and not after.armed_consumer
        moved = len(after.items) - len(before.items)
        self.accepted += max(moved, 0)
        self.taken += max(-moved, 0)

    # ---- without waiting

    @rule(nbytes=st.integers(0, 12), elsewhere=st.booleans())
    def put(self, nbytes: int, elsewhere: bool) -> None:
        self.check("put", *self.sized(nbytes), timeout=0, elsewhere=elsewhere)

    try_put = step("try_put", sized, elsewhere=True, nbytes=st.integers(0, 12))
    take = step("take", lambda self: (0,), elsewhere=True)
    try_take = step("try_take", elsewhere=True)
    finish = step("finish", elsewhere=True, ends=True)
    fail = step("fail", lambda self: (Failure(),), elsewhere=True, ends=True)
    close = step("close", elsewhere=True, ends=True)
    wake_up = step("wake_up", elsewhere=True)

    @rule(nbytes=st.integers(0, 2), count=st.integers(2, 8))
    def fill(self, nbytes: int, count: int) -> None:
        """Put several small items: random sizes seldom fill it up."""
        for _ in range(count):
            self.check("put", *self.sized(nbytes), timeout=0)

    @rule(more=st.integers(0, 6))
    def take_all(self, more: int) -> None:
        """Take everything, after some more was put: many items show what a few do not."""
        for _ in range(more):
            self.check("try_put", *self.sized(0))
        self.check("take_all")

    @rule()
    def arm_consumer(self) -> None:
        self.check("arm_wakeup_consumer", lambda: self.count_call("consumer"))

    @rule(nbytes=st.integers(0, 12))
    def arm_producer(self, nbytes: int) -> None:
        self.check("arm_wakeup_producer", lambda: self.count_call("producer"), nbytes)

    def count_call(self, side: str) -> None:
        self.calls[side] += 1

    # ---- two threads at once

    def must_wait(self) -> bool:
        """True if a take would wait."""
        return not self.model.items and self.model.end == "RUNNING" and not self.model.woken

    def meet_take(self, acts: str, words: tuple[Any, ...], elsewhere: bool) -> None:
        """Have one thread take, and the other do what ends the take."""
        limit = suite_machine.WAIT_LIMIT_S
        self.check_meeting("take", (limit,), acts, words, in_second_thread=elsewhere)

    def has_no_room(self) -> bool:
        """True if a put of one byte would wait."""
        return self.model.end == "RUNNING" and not self.model.has_room(1)

    @precondition(lambda self: self.must_wait())
    @rule()
    def take_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("take", suite_machine.SOON_S)

    @precondition(lambda self: not self.must_wait())
    @rule(elsewhere=st.booleans())
    def take_at_once(self, elsewhere: bool) -> None:
        self.check_at_once("take", suite_machine.WAIT_LIMIT_S, in_second_thread=elsewhere)

    @precondition(lambda self: self.has_no_room())
    @rule()
    def put_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("put", *self.sized(1), timeout=suite_machine.SOON_S)

    @precondition(lambda self: self.must_wait())
    @rule(elsewhere=st.booleans())
    def take_meets_put(self, elsewhere: bool) -> None:
        self.check_meeting(
            "take", (suite_machine.WAIT_LIMIT_S,), "put", self.sized(1), in_second_thread=elsewhere
        )

    @precondition(lambda self: self.must_wait() and not self.model.armed_consumer)
    @rule(operation=st.sampled_from(["wake_up", "finish", "fail", "close"]), elsewhere=st.booleans())
    def take_meets(self, operation: str, elsewhere: bool) -> None:
        if operation == "wake_up" or may_end(self):
            words = (Failure(),) if operation == "fail" else ()
            self.check_meeting(
                "take", (suite_machine.WAIT_LIMIT_S,), operation, words, in_second_thread=elsewhere
            )

    @precondition(lambda self: self.has_no_room())
    @rule(operation=st.sampled_from(["take_all", "take", "finish", "fail", "close"]), elsewhere=st.booleans())
    def put_meets(self, operation: str, elsewhere: bool) -> None:
        words: tuple[Any, ...] = {"fail": (Failure(),), "take": (0,)}.get(operation, ())
        after, _ = self.model.apply(operation, *words)
        # One take may leave too many bytes.
        if after.has_room(1) if operation.startswith("take") else may_end(self):
            put = self.sized(1)
            self.check_meeting(
                "put", put, operation, words, in_second_thread=elsewhere, timeout=suite_machine.WAIT_LIMIT_S
            )

    # ---- after every step

    @invariant()
    def agrees(self) -> None:
        self.check_all("len", "ended")
        if self.calls != self.expected_calls:
            raise Disagreement("wake-ups", "", f"{self.calls} calls", f"{self.expected_calls} calls")

    @invariant()
    def counts(self) -> None:
        self.check_statistics(
            items=len(self.model.items),
            nbytes=sum(item.nbytes for item in self.model.items),
            put=self.accepted,
            taken=self.taken,
        )
