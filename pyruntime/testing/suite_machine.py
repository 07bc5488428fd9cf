"""The machine under the suites: a subject beside its reference model, in random steps, with two threads.

For `pillarbox.testing.suites`, and in the thread of the test. The subject's owner is that thread, or, once it
has adopted the subject, a second one.
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

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, TypeVar

from hypothesis import HealthCheck, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pillarbox.testing.models import Model, Raised, outcome_of

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

    def do(self: SuiteMachine[Any], *, elsewhere: bool = False, **values: object) -> None:
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

    def called(self, operation: str, *arguments: object, **keywords: object) -> Callable[[], Any]:
        """A call of the subject that gives its outcome."""
        reader = self.readers.get(operation)
        if reader is not None:
            return lambda: outcome_of(lambda: reader(self.subject))
        method = getattr(self.subject, operation)
        return lambda: outcome_of(lambda: method(*arguments, **keywords))

    def check(self, operation: str, *arguments: object, elsewhere: bool = False, **keywords: object) -> Any:
        """Do the operation on both, compare the outcomes, go on with the model after it."""
        call = self.called(operation, *arguments, **keywords)
        got = self.in_other(call) if elsewhere else self.in_owner(call)
        self.follow(got, operation, *arguments, **keywords)
        return got

    def follow(self, got: object, operation: str, *arguments: object, **keywords: object) -> None:
        """Do on the model what was done on the subject, and compare the outcomes."""
        before = self.model
        after, expected = before.apply(operation, *arguments, **keywords)
        self.expect(operation, arguments, got, expected, keywords)
        self.model = after
        self.account(before, operation, arguments, got)

    def account(self, before: M, operation: str, arguments: tuple[Any, ...], got: object) -> None:
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

    def meet(
        self,
        operation: str,
        wait: Callable[[], Any],
        act: Callable[[], Any],
        *,
        in_second_thread: bool | None = None,
    ) -> tuple[Any, Any]:
        """The outcomes of a call, which waits for WAIT_LIMIT_S at most, and of the one that ends the wait.

        in_second_thread: True to wait in the second thread and act in the test's, False for the reverse; None
        to wait in the owner. Raises Disagreement if the wait is not ended.
        """
        if in_second_thread is None:
            in_second_thread = self.owned_by_worker
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

        here, there = (acting, waiting) if in_second_thread else (waiting, acting)
        other = self.second_thread().submit(there)
        outcomes = here(), other.result()
        (acted, woken), (got, seconds) = outcomes if in_second_thread else outcomes[::-1]
        if not woken:
            late = f"nothing for {WAKE_LOOKS * LOOK_INTERVAL_S} s at least"
            raise Disagreement(operation, "", late, "an outcome at once")
        if seconds >= WAIT_LIMIT_S:
            reject()  # which of the two came first cannot be told
        return got, acted

    def check_meeting(
        self,
        waits: str,
        words: tuple[Any, ...],
        acts: str,
        arguments: tuple[Any, ...],
        *,
        in_second_thread: bool | None = None,
        **limit: float,
    ) -> None:
        """Have one thread wait in `waits`, the other do `acts`, which ends the wait; compare both outcomes.

        limit: the time limit of `waits`, where it is a keyword. in_second_thread: see `meet`.
        """
        wait, act = self.called(waits, *words, **limit), self.called(acts, *arguments)
        operation = f"{waits} while another thread does {acts}"
        got, acted = self.meet(operation, wait, act, in_second_thread=in_second_thread)
        self.follow(acted, acts, *arguments)
        self.follow(got, waits, *words, **limit)

    def check_at_once(
        self, operation: str, *arguments: object, in_second_thread: bool | None = None, **keywords: object
    ) -> None:
        """As `check`, of an operation that could wait for WAIT_LIMIT_S, and need not."""
        call = self.called(operation, *arguments, **keywords)
        got, _ = self.meet(
            f"{operation} that need not wait", call, lambda: None, in_second_thread=in_second_thread
        )
        self.follow(got, operation, *arguments, **keywords)

    def check_to_the_limit(self, operation: str, *arguments: object, **keywords: object) -> None:
        """As `check` in the owner, of an operation with a time limit of SOON_S, which waits for that long."""
        call = self.called(operation, *arguments, **keywords)

        def timed() -> tuple[Any, float]:
            start = time.monotonic()
            return call(), time.monotonic() - start

        got, passed = self.in_owner(timed)
        self.follow(got, operation, *arguments, **keywords)
        if passed < 0.9 * SOON_S:
            raise Disagreement(operation, "", f"{got!r} after {passed:.6f} s", f"a wait of {SOON_S} s")

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

    def check_wrong_thread(self, operation: str, *arguments: object, **keywords: object) -> None:
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
    machine: type[SuiteMachine[Any]], name: str, how: settings | None, make: Callable[[], Any], **more: object
) -> Any:
    """The machine, with `make` and `more` attributes, as a class that unittest and pytest collect."""
    made: Any = type(name, (machine,), {"make": staticmethod(make), **more})
    case = made.TestCase
    case.__name__ = case.__qualname__ = name
    case.settings = how or DEFAULT
    return case
