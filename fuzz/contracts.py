"""Contracts of the pure functions, for CrossHair: what must hold for all arguments.

Each function here calls the one that it is about; its docstring is the contract. `fuzz.contracts_run` checks
them.
"""

from __future__ import annotations

from typing import NamedTuple

from pillarbox.aio.retry import Retry
from pillarbox.testing.models import HandoverModel, choose
from pillarbox.testing.models.handover import Item
from pillarbox.testing.models.mailbox import accepts

# As in the kernel: a handle is the number of an attempt above the number of a slot. A test compares.
SLOT_BITS = 24


class Letter(NamedTuple):
    """A mail of which only its kind matters."""

    priority: int
    urgent: bool
    deferrable: bool


def accepted(letter: Letter, p: int, skip: bool) -> bool:
    """Whether a take accepts the mail."""
    return accepts(letter, p, skip)


def handle_of(attempt: int, slot: int) -> int:
    """The handle of an attempt in a slot."""
    return attempt << SLOT_BITS | slot


def attempt_and_slot(handle: int) -> tuple[int, int]:
    """The attempt and the slot of a handle."""
    return handle >> SLOT_BITS, handle & (1 << SLOT_BITS) - 1


def a_take_gets_the_oldest_that_it_accepts(
    first: Letter, second: Letter, batch: int, streak: int, p: int, skip: bool, of_batch: bool
) -> int | None:
    """Of two mails of one urgency the first one, if it is accepted.

    pre: first.urgent == second.urgent
    pre: 0 <= batch <= 2 and 0 <= streak <= 2
    post: __return__ != 0 or accepted(first, p, skip)
    post: __return__ != 1 or accepted(second, p, skip)
    post: __return__ != 1 or not accepted(first, p, skip)
    post: __return__ is not None or of_batch or not (accepted(first, p, skip) or accepted(second, p, skip))
    """
    return choose((first, second), batch, streak, 2, p, skip, of_batch)


def an_urgent_mail_comes_first_unless_the_burst_is_over(
    ordinary: Letter, urgent: Letter, ordinary_is_first: bool, streak: int, burst: int, p: int
) -> bool:
    """Whether the urgent one of two mails, both accepted, is chosen.

    pre: urgent.urgent and not ordinary.urgent
    pre: ordinary.priority >= p and urgent.priority >= p
    pre: burst >= 1 and 0 <= streak <= burst
    post: __return__ == (streak < burst)
    """
    waiting = (ordinary, urgent) if ordinary_is_first else (urgent, ordinary)
    chosen = choose(waiting, 0, streak, burst, p)
    return chosen is not None and waiting[chosen].urgent


def a_batch_gives_what_is_in_it_and_urgent_mails(kinds: list[Letter], batch: int, streak: int) -> int | None:
    """What a take from the batch chooses.

    pre: len(kinds) <= 3 and 0 <= batch <= len(kinds) and 0 <= streak <= 2
    post: __return__ is None or kinds[__return__].urgent or __return__ < batch
    """
    return choose(kinds, batch, streak, 2, of_batch=True)


def a_pause_is_never_longer_than_the_maximum(initial: float, maximum: float, attempt: int) -> float:
    """The bound of a pause that doubles.

    pre: 0.0 <= initial <= 1000.0 and 0.0 <= maximum <= 1000.0
    pre: 1 <= attempt <= 8
    post: 0.0 <= __return__ <= maximum
    post: __return__ <= initial * 2.0 ** (attempt - 1)
    """
    return Retry(initial=initial, maximum=maximum).bound(attempt)


def pauses_do_not_get_shorter(initial: float, maximum: float, attempt: int) -> bool:
    """Whether the bound of the next pause is at least as long.

    pre: 0.0 <= initial <= 1000.0 and 0.0 <= maximum <= 1000.0
    pre: 1 <= attempt <= 8
    post: __return__
    """
    retry = Retry(initial=initial, maximum=maximum)
    return retry.bound(attempt) <= retry.bound(attempt + 1)


def attempts_are_bounded(attempts: int, attempt: int) -> bool:
    """Whether another attempt follows.

    pre: 1 <= attempts and 1 <= attempt
    post: __return__ == (attempt < attempts)
    """
    return Retry(attempts).applies(attempt, ValueError())


def a_handle_tells_its_attempt_and_slot(attempt: int, slot: int) -> tuple[int, int]:
    """There and back.

    pre: 1 <= attempt < 1 << 39 and 0 <= slot < 1 << SLOT_BITS
    post: __return__ == (attempt, slot)
    """
    return attempt_and_slot(handle_of(attempt, slot))


def an_empty_handover_takes_any_item_and_no_other_exceeds_its_bytes(
    waiting: list[int], nbytes: int, max_items: int, max_bytes: int
) -> bool:
    """Whether there is room.

    pre: len(waiting) <= 2 and all(size >= 0 for size in waiting)
    pre: nbytes >= 0 and max_items >= 1 and max_bytes >= 1
    post: __return__ if not waiting else not __return__ or sum(waiting) + nbytes <= max_bytes
    post: not __return__ or len(waiting) < max_items
    """
    return HandoverModel(max_items, max_bytes, tuple(Item("x", size) for size in waiting)).has_room(nbytes)
