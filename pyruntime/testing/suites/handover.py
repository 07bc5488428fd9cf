"""The hand-over suite: any bounded hand-over between two threads against the reference model.

`handover_suite` is for the tests of others, and for our own. It runs in the thread of the test runner.
"""

# Why sizes are drawn up to more than all bytes that may wait: into an empty hand-over any item goes, and
# that rule is only seen with one that is too large.
#
# Why `fill` puts several small items: with random sizes a hand-over is seldom full by their number, and the
# bound on items would go untested behind the one on bytes.

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from pillarbox.testing.models import HandoverModel
from pillarbox.testing.suites.machine import (
    SOON_S,
    WAIT_LIMIT_S,
    Disagreement,
    SuiteMachine,
    as_test_case,
    may_end,
    step,
)


class Failure(Exception):
    """The failure of this suite's producer."""


def handover_suite(
    make: Callable[[], Any],
    *,
    max_items: int,
    max_bytes: int | None = None,
    settings: settings | None = None,
    name: str = "HandoverSuite",
) -> Any:
    """A test case, for unittest or pytest, that holds hand-overs against the contract of `Handover`.

    make: gives a new, empty hand-over with these bounds; 1 to 5 items and 10 bytes find most. As for
    `mailbox_suite` it has the methods of ours.
    """
    return as_test_case(_HandoverMachine, name, settings, make, empty=HandoverModel(max_items, max_bytes))


class _HandoverMachine(SuiteMachine[HandoverModel]):
    """The rules of the hand-over suite. The test's thread is the consumer, or also the producer."""

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

    def account(self, before: HandoverModel, operation: str, arguments: tuple[Any, ...], got: Any) -> None:
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
        """Take everything, after some more was put: it shows what goes wrong with many."""
        for _ in range(more):
            self.check("try_put", *self.sized(0))
        self.check("take_all")

    @rule()
    def arm_consumer(self) -> None:
        self.check("arm_wakeup_consumer", lambda: self.count_call("consumer"))

    @rule(nbytes=st.integers(0, 12))
    def arm_producer(self, nbytes: int) -> None:
        self.check("arm_wakeup_producer", lambda: self.count_call("producer"), nbytes)

    def count_call(self, who: str) -> None:
        self.calls[who] += 1

    # ---- waiting

    def must_wait(self) -> bool:
        """True if a take would wait."""
        return not self.model.items and self.model.end == "RUNNING" and not self.model.woken

    @precondition(lambda self: self.must_wait())
    @rule()
    def take_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("take", SOON_S)

    @precondition(lambda self: not self.must_wait())
    @rule(elsewhere=st.booleans())
    def take_at_once(self, elsewhere: bool) -> None:
        got = self.at_once("take", self.called("take", WAIT_LIMIT_S), elsewhere)
        self.follow(got, "take", WAIT_LIMIT_S)

    @precondition(lambda self: self.no_room())
    @rule()
    def put_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("put", *self.sized(1), timeout=SOON_S)

    def wait_for(
        self, waits: str, words: tuple[Any, ...], acts: str, *arguments: Any, elsewhere: bool
    ) -> None:
        self.wait_meets(waits, words, acts, *arguments, in_worker=elsewhere, timeout=WAIT_LIMIT_S)

    @precondition(lambda self: self.must_wait())
    @rule(elsewhere=st.booleans())
    def take_meets_put(self, elsewhere: bool) -> None:
        self.wait_for("take", (), "put", *self.sized(1), elsewhere=elsewhere)

    @precondition(lambda self: self.must_wait() and not self.model.armed_consumer)
    @rule(
        operation=st.sampled_from(["wake_up", "finish", "fail", "close"]),
        elsewhere=st.booleans(),
    )
    def take_meets(self, operation: str, elsewhere: bool) -> None:
        if operation == "wake_up" or may_end(self):
            arguments = (Failure(),) if operation == "fail" else ()
            self.wait_for("take", (), operation, *arguments, elsewhere=elsewhere)

    def no_room(self) -> bool:
        return self.model.end == "RUNNING" and not self.model.has_room(1)

    @precondition(lambda self: self.no_room())
    @rule(
        operation=st.sampled_from(["take_all", "take", "finish", "fail", "close"]),
        elsewhere=st.booleans(),
    )
    def put_meets(self, operation: str, elsewhere: bool) -> None:
        arguments = {"fail": (Failure(),), "take": (0,)}.get(operation, ())
        after = self.model.apply(operation, *arguments)[0]
        # One take may leave too many bytes.
        if after.has_room(1) if operation.startswith("take") else may_end(self):
            self.wait_for("put", self.sized(1), operation, *arguments, elsewhere=elsewhere)

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
