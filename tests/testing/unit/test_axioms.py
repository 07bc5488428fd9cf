"""The axioms: real threads keep them, each corrupted history breaks the one that is meant and no other."""

from __future__ import annotations

import time

import pytest

from pillarbox.kernel import BACKENDS, Mail
from pillarbox.testing.axioms import handover_violations, mailbox_violations
from pillarbox.testing.history import Event
from pillarbox.testing.models.model import Raised
from tests.testing.conftest import Record

CLOSED = Raised("MailboxClosedError")
ENDED = Raised("HandoverClosedError")
# A bound for a busy machine; the check itself takes about two seconds.
SECONDS = 60.0


def mail(*, urgent: bool = False, priority: int = 0, deferrable: bool = False) -> Mail:
    return Mail(print, urgent=urgent, priority=priority, deferrable=deferrable)


def one_by_one(*steps: tuple[str, str, tuple[object, ...], object]) -> list[Event]:
    """A history in which nothing overlaps."""
    return [Event(*step, 2 * number, 2 * number + 1) for number, step in enumerate(steps)]


def put(thread: str, item: object, result: object = None) -> tuple[str, str, tuple[object, ...], object]:
    return thread, "put", (item,), result


def take(result: object, p: int = -1, skip: bool = False) -> tuple[str, str, tuple[object, ...], object]:
    return "c", "try_take", (p, skip), result


QUIESCE = ("q", "quiesce", (), None)
A, B, C = mail(), mail(), mail()
U, V = mail(urgent=True), mail(urgent=True)
HIGH, LATER = mail(priority=1), mail(deferrable=True)


def close(*left: object) -> tuple[str, str, tuple[object, ...], object]:
    return "c", "close", (), list(left)


def of_batch(result: object) -> tuple[str, str, tuple[object, ...], object]:
    return "c", "try_take_from_batch", (), result


BATCH = ("c", "create_batch", (), True)

RIGHT = {
    "in order": one_by_one(put("a", A), put("b", B), take(A), take(B), take(None), close()),
    "urgent first": one_by_one(put("a", A), put("a", U), put("b", V), take(U), take(V), take(A), close()),
    "priority selects": one_by_one(
        put("a", A), put("a", HIGH), take(HIGH, 1), take(None, 1), take(A), close()
    ),
    "deferrable skipped": one_by_one(put("a", LATER), put("a", A), take(A, -1, True), take(LATER), close()),
    "batch": one_by_one(put("a", A), BATCH, put("a", B), of_batch(A), of_batch(None), take(B), close()),
    "urgent joins the batch": one_by_one(put("a", A), BATCH, put("a", U), of_batch(U), of_batch(A), close()),
    "rest": one_by_one(put("a", A), put("b", B), QUIESCE, put("a", C, CLOSED), take(A), close(B)),
    "put_all": one_by_one(("a", "put_all", ((A, U, B),), None), take(U), take(A), take(B), close()),
    "again": one_by_one(put("a", A), take(A), put("b", B), put("a", A), take(B), take(A), close()),
    "drained": one_by_one(
        put("a", A), put("a", B), ("c", "drain", (), [A, B]), ("c", "drain", (), []), close()
    ),
}

WRONG = {
    "lost": one_by_one(put("a", A), put("a", B), take(A)),
    "duplicate": one_by_one(put("a", A), take(A), take(A), close()),
    "from nowhere": one_by_one(put("a", A), take(A), take(B), close()),
    "taken before put": one_by_one(take(A), put("a", A), close()),
    "put after the end": one_by_one(QUIESCE, put("a", A), take(A), close()),
    "refused while open": one_by_one(put("a", A, CLOSED), QUIESCE, close()),
    "close returns the rest": one_by_one(put("a", A), put("a", B), close(A)),
    "first in, first out": one_by_one(put("a", A), put("b", B), take(B), take(A), close()),
    "false empty": one_by_one(put("a", A), take(None), take(A), close()),
}

ALSO_WRONG = [
    ("first in, first out", one_by_one(put("a", U), put("b", V), take(V), take(U), close())),
    ("first in, first out", one_by_one(put("a", A), put("b", B), close(B, A))),
    ("first in, first out", one_by_one(put("a", HIGH), put("b", A), take(A), take(HIGH), close())),
    ("first in, first out", one_by_one(("a", "put_all", ((A, B),), None), take(B), take(A), close())),
    ("false empty", one_by_one(put("a", HIGH), take(None, 1), take(HIGH), close())),
    ("false empty", one_by_one(put("a", A), BATCH, of_batch(None), take(A), close())),
    ("false empty", one_by_one(put("a", U), of_batch(None), take(U), close())),
    ("false empty", one_by_one(put("a", A), ("c", "has_mail", (), False), take(A), close())),
    ("false empty", one_by_one(put("a", A), ("c", "drain", (), []), take(A), close())),
    ("false empty", one_by_one(put("a", A), QUIESCE, ("c", "take", (-1, None, False), CLOSED), close(A))),
    ("refused while open", one_by_one(("a", "try_put", (A,), False), QUIESCE, close())),
    ("put after the end", one_by_one(close(), put("a", A), take(A))),
]


def axioms(events: list[Event], **options: bool) -> set[str]:
    return {violation.axiom for violation in mailbox_violations(events, **options)}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_breaks_none(name: str) -> None:
    assert mailbox_violations(RIGHT[name], all_taken=True) == []


@pytest.mark.parametrize("axiom", WRONG)
def test_each_axiom_finds_its_corrupted_history_and_no_other_does(axiom: str) -> None:
    assert axioms(WRONG[axiom], all_taken=True) == {axiom}
    shown = mailbox_violations(WRONG[axiom], all_taken=True)[0]
    assert shown.events and all(event in WRONG[axiom] for event in shown.events)


@pytest.mark.parametrize(("axiom", "events"), ALSO_WRONG)
def test_the_other_ways_to_break_it(axiom: str, events: list[Event]) -> None:
    assert axioms(events) == {axiom}


@pytest.mark.parametrize("axiom", ["first in, first out", "false empty", "put after the end"])
def test_what_overlaps_is_not_held_against_a_history(axiom: str) -> None:
    events = WRONG[axiom]
    first, second = events[0], events[1]
    overlapping = [first._replace(end=second.start), second, *events[2:]]
    assert axioms(overlapping) == set()


def test_without_a_close_a_loss_is_one_only_if_nothing_is_left() -> None:
    assert axioms(WRONG["lost"]) == set()


def test_only_one_thread_may_take() -> None:
    events = one_by_one(put("a", A), take(A), ("d", "drain", (), []))
    with pytest.raises(ValueError, match="one thread that takes, these do: c, d"):
        mailbox_violations(events)


@pytest.mark.contract
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_real_threads_did_keeps_every_axiom(record: Record, backend: str) -> None:
    events = record(backend, operations=3000)
    # Three producers with 3,000 operations each.
    assert len(events) > 9_000
    assert mailbox_violations(events) == []
    without = [event for event in events if event.operation != "take"]
    assert {"close returns the rest"} <= axioms(without)


@pytest.mark.slow
def test_a_history_of_a_hundred_thousand_operations_takes_seconds() -> None:
    """Producers far ahead of the consumer, batches, priorities, and one mistake near the end."""
    mails = [mail(urgent=n % 7 == 0, priority=n % 3, deferrable=n % 5 == 0) for n in range(40_000)]
    steps = [put(f"p{n % 3}", each) for n, each in enumerate(mails)]
    ordinary = [each for each in mails if not each.urgent]
    steps += [take(each) for each in mails if each.urgent]
    for each in ordinary[: len(ordinary) // 2]:
        steps += [BATCH, take(each)]
    steps += [take(each) for each in ordinary[len(ordinary) // 2 : -2]]
    begun = time.monotonic()
    right = one_by_one(*steps, take(ordinary[-2]), take(ordinary[-1]), close())
    wrong = one_by_one(*steps, take(ordinary[-1]), take(ordinary[-2]), close())
    assert len(right) > 95_000
    assert mailbox_violations(right) == []
    assert axioms(wrong) == {"first in, first out"}
    assert time.monotonic() - begun < SECONDS


# ---- hand-overs


def given(item: object, result: object = True) -> tuple[str, str, tuple[object, ...], object]:
    return "p", "put", (item, 0, None), result


def taken(result: object) -> tuple[str, str, tuple[object, ...], object]:
    return "c", "take", (None,), result


FINISH = ("p", "finish", (), True)
HANDOVERS = {
    "": one_by_one(given(1), given(2), taken(1), FINISH, taken(2), taken(ENDED), close()),
    "lost": one_by_one(given(1), given(2), taken(1)),
    "duplicate": one_by_one(given(1), taken(1), taken(1), close()),
    "from nowhere": one_by_one(given(1), taken(1), taken(2), close()),
    "taken before put": one_by_one(taken(1), given(1), close()),
    "put after the end": one_by_one(FINISH, given(1), taken(1), close()),
    "refused while open": one_by_one(given(1, ENDED), FINISH, close()),
    "close returns the rest": one_by_one(given(1), given(2), close(1)),
    "first in, first out": one_by_one(given(1), given(2), ("c", "take_all", (), [2, 1]), close()),
    "false empty": one_by_one(given(1), taken(None), taken(1), close()),
    "over the bound": one_by_one(given(1), given(2), given(3), ("c", "take_all", (), [1, 2, 3]), close()),
}


@pytest.mark.parametrize("axiom", HANDOVERS)
def test_each_axiom_of_a_handover_finds_its_corrupted_history_and_no_other_does(axiom: str) -> None:
    events = HANDOVERS[axiom]
    found = {violation.axiom for violation in handover_violations(events, max_items=2, all_taken=True)}
    assert found == ({axiom} if axiom else set())


def test_a_handover_that_ends_before_its_items_is_found() -> None:
    events = one_by_one(given(1), FINISH, taken(ENDED), close(1))
    assert [v.axiom for v in handover_violations(events)] == ["false empty"]
