"""The hand-over suite: any bounded hand-over between two threads against the reference model.

`handover_suite` is for the tests of others, and for our own. It runs in the thread of the test runner.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from pillarbox.testing.models import HandoverModel
from pillarbox.testing.suites.machine import (
    SOON_S,
    WAIT_LIMIT_S,
    Disagreement,
    Subject,
    SuiteMachine,
    as_test_case,
    has,
    may_end,
)


class Failure(Exception):
    """What the producer of this suite fails with."""


def handover_suite(
    make: Callable[[], Any],
    *,
    max_items: int,
    max_bytes: int | None = None,
    without: Collection[str] = (),
    errors: Mapping[str, type[BaseException]] | None = None,
    settings: settings | None = None,
    name: str = "HandoverSuite",
) -> Any:
    """A test case, for unittest or pytest, that holds hand-overs against the contract of `Handover`.

    make: gives a new, empty hand-over with these bounds; 1 to 5 items and 10 bytes find most.
    The rest as for `mailbox_suite`; the error is "HandoverClosedError". `nbytes` in `without` keeps all sizes
    at 0.
    """
    extra = {"model": HandoverModel(max_items, max_bytes)}
    subject = Subject(make, frozenset(without), errors or {}, False, extra)
    machine = type(name, (_HandoverMachine,), {"subject_kind": subject})
    return as_test_case(machine, name, settings)


class _HandoverMachine(SuiteMachine[HandoverModel]):
    """The rules of the hand-over suite. The test's thread is the consumer, or also the producer."""

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
        model: HandoverModel = self.subject_kind.extra["model"]
        return model

    def sized(self, nbytes: int) -> tuple[Any, ...]:
        """The arguments of a put of a new item."""
        item = f"item {next(self.numbers)}"
        return (item, nbytes) if has("nbytes")(self) else (item,)

    def check(self, operation: str, *arguments: Any, elsewhere: bool = False, **keywords: Any) -> Any:
        before = self.model
        got = super().check(operation, *arguments, elsewhere=elsewhere, **keywords)
        self.account(before, operation)
        return got

    def account(self, before: HandoverModel, operation: str) -> None:
        """Count the wake-ups that the step called, and the items that it moved."""
        after = self.model
        # Whatever takes an armed wake-up away has called it, but for close, which drops the consumer's.
        if before.armed_consumer and not after.armed_consumer and operation != "close":
            self.expected_calls["consumer"] += 1
        if before.armed_producer is not None and after.armed_producer is None:
            self.expected_calls["producer"] += 1
        moved = len(after.items) - len(before.items)
        if operation != "close":
            self.accepted += max(moved, 0)
            self.taken += max(-moved, 0)

    # ---- without waiting

    @precondition(has("put"))
    @rule(nbytes=st.integers(0, 12), elsewhere=st.booleans())
    def put(self, nbytes: int, elsewhere: bool) -> None:
        self.check("put", *self.sized(nbytes), timeout=0, elsewhere=elsewhere)

    @precondition(has("try_put"))
    @rule(nbytes=st.integers(0, 12), elsewhere=st.booleans())
    def try_put(self, nbytes: int, elsewhere: bool) -> None:
        self.check("try_put", *self.sized(nbytes), elsewhere=elsewhere)

    @precondition(has("put"))
    @rule(nbytes=st.integers(0, 2), count=st.integers(2, 8))
    def fill(self, nbytes: int, count: int) -> None:
        """Put several small items: random sizes seldom fill it up."""
        for _ in range(count):
            self.check("put", *self.sized(nbytes), timeout=0)

    @precondition(has("take"))
    @rule(elsewhere=st.booleans())
    def take(self, elsewhere: bool) -> None:
        self.check("take", 0, elsewhere=elsewhere)

    @precondition(has("try_take"))
    @rule(elsewhere=st.booleans())
    def try_take(self, elsewhere: bool) -> None:
        self.check("try_take", elsewhere=elsewhere)

    @precondition(has("take_all"))
    @rule(more=st.integers(0, 6))
    def take_all(self, more: int) -> None:
        """Take everything, after some more was put: it shows what goes wrong with many."""
        for _ in range(more if has("try_put")(self) else 0):
            self.check("try_put", *self.sized(0))
        self.check("take_all")

    @precondition(may_end("finish"))
    @rule(elsewhere=st.booleans())
    def finish(self, elsewhere: bool) -> None:
        self.check("finish", elsewhere=elsewhere)

    @precondition(may_end("fail"))
    @rule(elsewhere=st.booleans())
    def fail(self, elsewhere: bool) -> None:
        self.check("fail", Failure(), elsewhere=elsewhere)

    @precondition(may_end("close"))
    @rule(elsewhere=st.booleans())
    def close(self, elsewhere: bool) -> None:
        self.check("close", elsewhere=elsewhere)

    @precondition(has("wake_up"))
    @rule(elsewhere=st.booleans())
    def wake_up(self, elsewhere: bool) -> None:
        self.check("wake_up", elsewhere=elsewhere)

    @precondition(has("arm_wakeup_consumer"))
    @rule()
    def arm_consumer(self) -> None:
        self.check("arm_wakeup_consumer", lambda: self.count_call("consumer"))

    @precondition(has("arm_wakeup_producer"))
    @rule(nbytes=st.integers(0, 12))
    def arm_producer(self, nbytes: int) -> None:
        sizes = (nbytes,) if has("nbytes")(self) else ()
        self.check("arm_wakeup_producer", lambda: self.count_call("producer"), *sizes)

    def count_call(self, who: str) -> None:
        self.calls[who] += 1

    # ---- waiting

    def must_wait(self) -> bool:
        """Whether a take would wait."""
        return not self.model.items and self.model.end == "RUNNING" and not self.model.woken

    @precondition(lambda self: has("take")(self) and self.must_wait())
    @rule()
    def take_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("take", SOON_S)

    @precondition(lambda self: has("take")(self) and not self.must_wait())
    @rule(elsewhere=st.booleans())
    def take_at_once(self, elsewhere: bool) -> None:
        got = self.at_once("take", self.called("take", WAIT_LIMIT_S), elsewhere)
        self.follow("take", (WAIT_LIMIT_S,), {}, got)

    @precondition(lambda self: has("put")(self) and self.no_room())
    @rule()
    def put_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("put", *self.sized(1), timeout=SOON_S)

    def follow(self, operation: str, words: tuple[Any, ...], keywords: dict[str, Any], got: object) -> None:
        """Do on the model what has been done on the subject, and compare the outcomes."""
        before = self.model
        self.model, expected = before.apply(operation, *words, **keywords)
        self.expect(operation, words, got, expected, keywords)
        self.account(before, operation)

    def wait_meets(
        self, wait: tuple[str, tuple[Any, ...]], act: tuple[str, tuple[Any, ...]], elsewhere: bool
    ) -> None:
        """One thread waits, with a time limit; the other one does what ends the wait."""
        (waits, waiting), (acts, acting) = wait, act
        limit = {"timeout": WAIT_LIMIT_S}
        got, acted = self.meet(
            f"{waits} while another thread does {acts}",
            self.called(waits, *waiting, **limit),
            self.called(acts, *acting),
            elsewhere,
        )
        self.follow(acts, acting, {}, acted)
        self.follow(waits, waiting, limit, got)

    @precondition(lambda self: has("take", "put")(self) and self.must_wait())
    @rule(elsewhere=st.booleans())
    def take_meets_put(self, elsewhere: bool) -> None:
        self.wait_meets(("take", ()), ("put", self.sized(1)), elsewhere)

    @precondition(lambda self: self.must_wait() and not self.model.armed_consumer)
    @rule(
        operation=st.sampled_from(["wake_up", "finish", "fail", "close"]),
        elsewhere=st.booleans(),
    )
    def take_meets(self, operation: str, elsewhere: bool) -> None:
        if has("take", operation)(self) and (operation == "wake_up" or may_end()(self)):
            arguments = (Failure(),) if operation == "fail" else ()
            self.wait_meets(("take", ()), (operation, arguments), elsewhere)

    def no_room(self) -> bool:
        return self.model.end == "RUNNING" and not self.model.has_room(1)

    @precondition(lambda self: has("put")(self) and self.no_room())
    @rule(
        operation=st.sampled_from(["take_all", "take", "finish", "fail", "close"]),
        elsewhere=st.booleans(),
    )
    def put_meets(self, operation: str, elsewhere: bool) -> None:
        arguments = {"fail": (Failure(),), "take": (0,)}.get(operation, ())
        after = self.model.apply(operation, *arguments)[0]
        # One take may leave too many bytes.
        if has(operation)(self) and (after.has_room(1) if operation.startswith("take") else may_end()(self)):
            self.wait_meets(("put", self.sized(1)), (operation, arguments), elsewhere)

    # ---- after every step

    @invariant()
    def agrees(self) -> None:
        self.check_all("len", "ended")
        if self.calls != self.expected_calls:
            raise Disagreement("wake-ups", "", f"{self.calls} calls", f"{self.expected_calls} calls")

    @precondition(has("statistics"))
    @invariant()
    def counts(self) -> None:
        statistics = self.subject.statistics()
        expected = {
            "items": len(self.model.items),
            "nbytes": sum(item.nbytes for item in self.model.items),
            "put": self.accepted,
            "taken": self.taken,
        }
        self.expect("statistics", (), {name: getattr(statistics, name) for name in expected}, expected)
