"""Every case of few mails, entries and items, beside what a line of plain Python says of it."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from pillarbox.kernel import Handover, Mail, OrderedQueue, TaskMailbox, UnorderedQueue

pytestmark = pytest.mark.usefixtures("each_backend")

PRIORITIES = (-1, 0, 1)
BOTH = (False, True)


class Kind(NamedTuple):
    """A mail of which only its kind matters."""

    priority: int
    urgent: bool
    deferrable: bool

    def is_accepted(self, p: int, skip: bool = False) -> bool:
        """True if a take accepts the mail."""
        return self.priority >= p and not (skip and self.deferrable)

    def mail(self) -> Mail:
        return Mail(nothing, priority=self.priority, urgent=self.urgent, deferrable=self.deferrable)


KINDS = [Kind(*kind) for kind in product(PRIORITIES, BOTH, BOTH)]


def nothing() -> None:
    """Do nothing: the body of a mail."""


@pytest.mark.contract(
    "Of mails of one urgency a take gets the oldest that it accepts, and none only if it accepts none.",
    convicts=["priority_excluded", "deferrable_not_skipped"],
)
def test_a_take_gets_the_oldest_mail_that_it_accepts() -> None:
    cases = 0
    for kinds in product(KINDS, KINDS):
        if kinds[0].urgent != kinds[1].urgent:
            continue
        for in_batch, p, skip in product(BOTH, PRIORITIES, BOTH):
            mailbox, mails = TaskMailbox(), [kind.mail() for kind in kinds]
            mailbox.put(mails[0])
            if in_batch:
                mailbox.create_batch()
            mailbox.put(mails[1])
            accepted = [mail for mail, kind in zip(mails, kinds, strict=True) if kind.is_accepted(p, skip)]
            taken = mailbox.try_take(p, skip_deferrable=skip)
            assert taken is (accepted[0] if accepted else None), (kinds, in_batch, p, skip)
            cases += 1
    assert cases == 864


@pytest.mark.contract(
    "An urgent mail is taken before an ordinary one until a burst of urgent ones is over.",
    convicts=["urgent_starves", "burst_too_long"],
)
def test_an_urgent_mail_comes_first_until_the_burst_is_over() -> None:
    cases = 0
    ordinary, urgent = ([kind for kind in KINDS if kind.urgent is is_urgent] for is_urgent in BOTH)
    for slow, fast, p in product(ordinary, urgent, PRIORITIES):
        if not (slow.is_accepted(p) and fast.is_accepted(p)):
            continue
        for burst, slow_is_first in product((1, 2, 3), BOTH):
            for streak in range(burst + 1):
                mailbox = TaskMailbox(urgent_burst=burst)
                for _ in range(streak):
                    mailbox.put(fast.mail())
                    mailbox.try_take()
                mails = [slow.mail(), fast.mail()]
                mailbox.put_all(mails if slow_is_first else mails[::-1])
                assert mailbox.try_take(p) is mails[streak < burst], (slow, fast, p, burst, streak)
                cases += 1
    assert cases == 1008


@pytest.mark.contract(
    "A take from a batch gets what was put before the batch was made, or urgent mail.",
    convicts=["batch_grows", "batch_stops_short"],
)
def test_a_batch_gives_what_is_in_it_and_urgent_mails() -> None:
    cases = 0
    for length in range(4):
        for kinds in product(KINDS, repeat=length):
            for in_batch in range(length + 1):
                mailbox, mails = TaskMailbox(), [kind.mail() for kind in kinds]
                mailbox.put_all(mails[:in_batch])
                mailbox.create_batch()
                mailbox.put_all(mails[in_batch:])
                urgent = [mail for mail, kind in zip(mails, kinds, strict=True) if kind.urgent]
                plain = [mail for mail in mails[:in_batch] if mail not in urgent]
                taken = [*iter(mailbox.try_take_from_batch, None)]
                assert taken == urgent + plain, (kinds, in_batch)
                cases += 1
    assert cases == 7369


@pytest.mark.contract(
    "A result counts under the handle of an entry's present attempt, and under no other of its handles.",
    convicts=["earlier_attempt_accepted"],
)
def test_a_handle_names_one_attempt_of_one_entry() -> None:
    cases = 0
    for make, entries, attempts in product((OrderedQueue, UnorderedQueue), (1, 2, 3), (1, 2, 3)):
        for renewed, named in product(range(entries), range(attempts)):
            queue = make(entries)
            handles = [[queue.put(entry)] for entry in range(entries)]
            for _ in range(attempts - 1):
                handles[renewed].append(queue.renew(handles[renewed][-1]))
            assert len({handle for given in handles for handle in given}) == entries + attempts - 1
            counts = queue.complete(handles[renewed][named], "result")
            assert counts is (named == attempts - 1), (make, entries, attempts, renewed, named)
            assert [done for _, done, _ in queue.snapshot()].count(True) == counts
            cases += 1
    assert cases == 72


@pytest.mark.contract(
    "Into an empty hand-over any item goes; into another no more than its bounds of items and bytes.",
    convicts=["bytes_not_counted", "one_item_too_many"],
)
def test_an_empty_handover_takes_any_item_and_no_other_exceeds_its_bounds() -> None:
    cases = 0
    for max_items, max_bytes, nbytes in product((1, 2, 3), (1, 2, 3, 4), range(6)):
        for length in range(max_items + 1):
            for waiting in product(range(5), repeat=length):
                if length > 1 and sum(waiting) > max_bytes:
                    continue
                handover = Handover(max_items, max_bytes)
                assert all(handover.try_put("waits", size) for size in waiting)
                has_room = length < max_items and sum(waiting) + nbytes <= max_bytes
                assert handover.try_put("another", nbytes) is (length == 0 or has_room), (waiting, nbytes)
                cases += 1
    assert cases > 1000
