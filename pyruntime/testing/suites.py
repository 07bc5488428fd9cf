"""The suites: any mailbox or result queue against its reference model, in random steps, with two threads.

`mailbox_suite` and `queue_suite` are for the tests of others, and for our own. A suite runs in the thread of
the test. The subject's owner is that thread, or, once it has adopted the subject, a second one; confined
operations go to the owner, and from the other thread they must be refused.
"""

# Why waits are judged by how often the other thread could have gone on, and not by a time. A time that no
# busy machine exceeds is too long for a wake-up that is lost in one run of a thousand; the other thread's
# turns are time in which the waiting one could have had the processor too.
#
# Why operations that do one thing are made by `step` and not written out. Every one of them is a rule of
# its own all the same, because Hypothesis draws among rules, and shrinks by leaving rules out.
#
# Why a subject lives for a number of steps before it may be ended. Quiesce and close are as likely as any
# other rule; without this half of all runs would end before a queue was full once.
#
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

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from hypothesis import HealthCheck, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pillarbox.kernel import WATERMARK, Mail
from pillarbox.testing.identity import Alike, told_apart
from pillarbox.testing.models import (
    MailboxModel,
    Model,
    OrderedModel,
    QueueModel,
    Raised,
    UnorderedModel,
    outcome_of,
)

M = TypeVar("M", bound=Model)

DEFAULT = settings(
    deadline=None, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)


# The time limit of a wait that must be ended by another thread, or must not begin at all.
WAIT_LIMIT_S = 0.9
# A wake-up is lost if the thread that was to be woken has not come back when the other one has slept so
# often, each time for so long: half a second at least, and longer where threads get the processor late.
WAKE_LOOKS, LOOK_INTERVAL_S = 50, 0.01
# For one thread to begin its wait before the other one ends it; no subject can be asked whether it has.
HEAD_START_S = 0.003
# A time limit that is over soon.
SOON_S = 0.003


class Disagreement(AssertionError):
    """The subject does not do what the contract says. `operation` is the one that showed it."""

    def __init__(self, operation: str, arguments: str, got: object, expected: object) -> None:
        self.operation = operation
        super().__init__(
            f"{operation}({arguments}): the subject gave {got!r}, the contract says {expected!r}"
        )


# Steps before which a subject is not ended: otherwise most runs would be too short to show much.
LIVES = st.integers(0, 30)


def may_end(machine: SuiteMachine[Any]) -> bool:
    """For `precondition` of what ends a subject: whether it is old enough."""
    return machine.steps >= machine.life


def step(
    operation: str,
    words: Callable[..., tuple[Any, ...]] | None = None,
    *,
    elsewhere: bool = False,
    ends: bool = False,
    **drawn: Any,
) -> Any:
    """A rule that does one operation on the subject and on the model, and compares the outcomes.

    words: makes the arguments of what is drawn. elsewhere: in either thread. ends: it ends the subject.
    """
    if elsewhere:
        drawn["elsewhere"] = st.booleans()

    def do(self: SuiteMachine[Any], *, elsewhere: bool = False, **values: Any) -> None:
        self.check(operation, *(words(self, **values) if words else ()), elsewhere=elsewhere)

    do.__name__ = operation
    as_rule: Any = rule(**drawn)
    made = as_rule(do)
    return precondition(may_end)(made) if ends else made


class SuiteMachine(RuleBasedStateMachine, Generic[M]):
    """Base of the suites' machines."""

    make: ClassVar[Any]
    """Gives a new subject, owned by the calling thread."""
    # Operations that are attributes or built-in functions of the subject, by the model's name.
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.steps = self.life = 0
        self.worker: ThreadPoolExecutor | None = None
        self.owned_by_worker = False
        self.subject = self.make()
        self.model: M = self.new_model()

    def new_model(self) -> M:
        """The model of a new subject."""
        raise NotImplementedError

    @initialize(life=LIVES)
    def begin(self, life: int) -> None:
        """Decide how long the subject lives at least."""
        self.life = life

    @invariant()
    def one_more_step(self) -> None:
        """Count the steps."""
        self.steps += 1

    # ---- calls

    def second_thread(self) -> ThreadPoolExecutor:
        """The thread that is not the test's."""
        if self.worker is None:
            self.worker = ThreadPoolExecutor(1, "the suite's second thread")
        return self.worker

    def in_owner(self, call: Callable[[], Any]) -> Any:
        """Run in the thread that owns the subject."""
        return self.second_thread().submit(call).result() if self.owned_by_worker else call()

    def in_other(self, call: Callable[[], Any]) -> Any:
        """Run in a thread that does not."""
        return call() if self.owned_by_worker else self.second_thread().submit(call).result()

    def called(self, operation: str, *arguments: Any, **keywords: Any) -> Callable[[], Any]:
        """A call of the subject that gives its outcome."""
        reader = self.readers.get(operation)
        if reader is not None:
            return lambda: outcome_of(lambda: reader(self.subject))
        method = getattr(self.subject, operation)
        return lambda: outcome_of(lambda: method(*arguments, **keywords))

    def check(self, operation: str, *arguments: Any, elsewhere: bool = False, **keywords: Any) -> Any:
        """Do the operation on both, compare the outcomes, go on with the model after it."""
        call = self.called(operation, *arguments, **keywords)
        got = self.in_other(call) if elsewhere else self.in_owner(call)
        self.follow(got, operation, *arguments, **keywords)
        return got

    def follow(self, got: object, operation: str, *arguments: Any, **keywords: Any) -> None:
        """Do on the model what was done on the subject, and compare the outcomes."""
        before = self.model
        after, expected = before.apply(operation, *arguments, **keywords)
        self.expect(operation, arguments, got, expected, keywords)
        self.model = after
        self.account(before, operation, arguments, got)

    def account(self, before: M, operation: str, arguments: tuple[Any, ...], got: Any) -> None:
        """Count what an operation has moved. For a subclass."""

    def expect(
        self,
        operation: str,
        arguments: Collection[Any],
        got: object,
        expected: object,
        keywords: Mapping[str, Any] | None = None,
    ) -> None:
        """The one place that compares; `Disagreement` if they differ, in value or in being a bool."""
        if got != expected or isinstance(got, bool) != isinstance(expected, bool):
            words = [
                *map(repr, arguments),
                *(f"{name}={value!r}" for name, value in (keywords or {}).items()),
            ]
            raise Disagreement(operation, ", ".join(words), got, expected)

    def meet(self, operation: str, wait: Callable[[], Any], act: Callable[[], Any]) -> tuple[Any, Any]:
        """The outcomes of a call of the owner, which waits for WAIT_LIMIT_S at most, and of what ends that.

        Raises Disagreement if nobody ends the wait.
        """
        begun, acts, ended = threading.Event(), threading.Event(), threading.Event()

        def waiting() -> tuple[Any, float]:
            begun.set()
            try:
                while True:
                    start = time.monotonic()
                    outcome = wait()
                    passed = time.monotonic() - start
                    # The other thread may get the processor after the limit: then this has shown nothing.
                    if passed < WAIT_LIMIT_S or acts.is_set():
                        return outcome, passed
            finally:
                ended.set()

        def acting() -> tuple[Any, bool]:
            begun.wait()
            time.sleep(HEAD_START_S)
            acts.set()
            outcome = act()
            return outcome, any(ended.wait(LOOK_INTERVAL_S) for _ in range(WAKE_LOOKS))

        here, there = (acting, waiting) if self.owned_by_worker else (waiting, acting)
        other = self.second_thread().submit(there)
        outcomes = here(), other.result()
        (acted, woken), (got, seconds) = outcomes if self.owned_by_worker else outcomes[::-1]
        if not woken:
            late = f"nothing for {WAKE_LOOKS * LOOK_INTERVAL_S} s at least"
            raise Disagreement(operation, "", late, "an outcome at once")
        if seconds >= WAIT_LIMIT_S:
            reject()  # which of the two came first cannot be told
        return got, acted

    def check_all(self, *operations: str) -> None:
        """Compare what these operations say; they change nothing."""
        calls = [self.called(operation) for operation in operations]
        outcomes = self.in_owner(lambda: [call() for call in calls])
        for operation, got in zip(operations, outcomes, strict=True):
            self.expect(operation, (), got, self.model.apply(operation)[1])

    def check_statistics(self, **expected: int) -> None:
        """Compare counts of the subject's `statistics()`, if it has any."""
        if not hasattr(self.subject, "statistics"):
            return
        statistics = self.subject.statistics()
        self.expect("statistics", (), {name: getattr(statistics, name) for name in expected}, expected)

    def check_wrong_thread(self, operation: str, *arguments: Any, **keywords: Any) -> None:
        """The operation from the thread that does not own the subject: it must be refused."""
        got = self.in_other(self.called(operation, *arguments, **keywords))
        self.expect(f"{operation} from another thread", arguments, got, Raised("WrongThreadError"), keywords)

    def check_adopt(self, must: bool | None) -> None:
        """Have the other thread adopt the subject, if it can be. must: succeed; None: either is right."""
        if not hasattr(self.subject, "adopt"):
            return
        got = self.in_other(self.called("adopt"))
        if must is True or (must is None and got is None):
            self.expect("adopt", (), got, None)
        else:
            self.expect("adopt", (), got, Raised("WrongThreadError"))
        if got is None:
            self.owned_by_worker = not self.owned_by_worker

    def teardown(self) -> None:
        """End the second thread."""
        if self.worker is not None:
            self.worker.shutdown()


def as_test_case(
    machine: type[SuiteMachine[Any]], name: str, how: settings | None, make: Callable[[], Any], **more: Any
) -> Any:
    """The machine, with `make` and `more` attributes, as a class that unittest and pytest collect."""
    made: Any = type(name, (machine,), {"make": staticmethod(make), **more})
    case = made.TestCase
    case.__name__ = case.__qualname__ = name
    case.settings = how or DEFAULT
    return case


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

    def account(self, before: MailboxModel, operation: str, arguments: tuple[Any, ...], got: Any) -> None:
        # Whatever takes an armed wake-up away has called it, but for close, which drops it.
        self.expected_calls += before.armed and not self.model.armed and operation != "close"
        if operation in ("put", "put_all", "try_put"):
            count = len(arguments[0]) if operation == "put_all" else 1
            if got is None or got is True:
                self.accepted += count
            else:
                self.rejected += count
        elif operation in ("try_take", "take", "try_take_from_batch", "drain"):
            outcomes = got if isinstance(got, list) else [got]
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

    def take_meets(self, operation: str, *arguments: Any) -> None:
        """Have the owner take, with a time limit, and the other thread do what lets the take end."""
        take, act = self.called("take", 0, WAIT_LIMIT_S), self.called(operation, *arguments)
        got, acted = self.meet(f"take while another thread does {operation}", take, act)
        self.follow(acted, operation, *arguments)
        self.follow(got, "take", 0, WAIT_LIMIT_S)

    def nothing_to_take(self) -> bool:
        return self.model.state == "OPEN" and self.model.apply("try_take", 0)[1] is None

    @precondition(lambda self: self.nothing_to_take())
    @rule()
    def take_until_the_time_is_over(self) -> None:
        take = self.called("take", 0, SOON_S)

        def timed() -> tuple[Any, float]:
            start = time.monotonic()
            return take(), time.monotonic() - start

        got, passed = self.in_owner(timed)
        self.follow(got, "take", 0, SOON_S)
        if passed < 0.9 * SOON_S:
            raise Disagreement("take", "", f"{got!r} after {passed:.6f} s", f"a wait of {SOON_S} s")

    @precondition(lambda self: not self.nothing_to_take())
    @rule()
    def take_at_once(self) -> None:
        take = self.called("take", 0, WAIT_LIMIT_S)
        got, _ = self.meet("take that need not wait", take, lambda: None)
        self.follow(got, "take", 0, WAIT_LIMIT_S)

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

    def follow(self, got: Any, operation: str, *arguments: Any, **keywords: Any) -> None:
        expected = self.model.apply(operation, *arguments)[1]
        if operation in ("put", "renew") and not isinstance(expected, Raised):
            got = self.learn(operation, expected, got)
        elif operation == "admit_restored" and expected and isinstance(got, tuple) and len(got) == 2:
            got = self.learn(operation, expected[0], got[0]), got[1]
        super().follow(got, operation, *arguments, **keywords)

    def learn(self, operation: str, number: int, handle: Any) -> int:
        """The subject gave a handle for an attempt. No other, earlier or later, may be equal to it."""
        if isinstance(handle, Raised) or handle in self.handles.values():
            self.expect(operation, (), handle, "a new handle")
        self.handles[number] = handle
        return number

    def account(self, before: QueueModel, operation: str, arguments: tuple[Any, ...], got: Any) -> None:
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
