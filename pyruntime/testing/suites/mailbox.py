"""The mailbox suite: any mailbox against the reference model.

`mailbox_suite` is for the tests of others, and for our own. It runs in the thread of the test runner.
"""

# Why some runs have their subject owned by a second thread: a wait of the main thread is cut into slices,
# so that Ctrl-C gets through, and a slice that ends hides a wake-up that was lost.
#
# Why some mails are put in the shape of a full batch (`take_a_batch`). Random steps seldom make a batch of
# more than three and take all of it, and what a batch leaves out shows at its end only.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from pillarbox.kernel import Mail
from pillarbox.testing.models import MailboxModel, Raised
from pillarbox.testing.suites.machine import (
    SOON_S,
    WAIT_LIMIT_S,
    Disagreement,
    SuiteMachine,
    as_test_case,
    may_end,
    step,
)

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
        self.wait_meets("take", (0, WAIT_LIMIT_S), operation, *arguments, in_worker=self.owned_by_worker)

    def nothing_to_take(self) -> bool:
        return self.model.state == "OPEN" and self.model.apply("try_take", 0)[1] is None

    @precondition(lambda self: self.nothing_to_take())
    @rule()
    def take_until_the_time_is_over(self) -> None:
        self.check_to_the_limit("take", 0, SOON_S)

    @precondition(lambda self: not self.nothing_to_take())
    @rule()
    def take_at_once(self) -> None:
        take = self.called("take", 0, WAIT_LIMIT_S)
        self.follow(self.at_once("take", take, self.owned_by_worker), "take", 0, WAIT_LIMIT_S)

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
