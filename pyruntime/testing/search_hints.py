"""Hints from the contract of a mailbox to the search for a linearization: long histories then take seconds.

Each thing said here follows from the contract, and only that makes it safe; the argument stands beside it. A
test compares the search with and without on random small histories, true and corrupted. Values only: any
thread.
"""

# Why hints, and not a faster search. Of three producers with 300 puts each the search without them has to
# find out by trial which put came first, and there are more orders than states that fit into memory. The
# contract says it: a take that gave one mail and accepts another one shows which was put before. Hints that
# are wrong refuse a witness, so each has its proof beside it, and the search goes once more without them
# before it says no.
#
# Why a hint may only refuse or settle, and not choose. One that chose the next event would be believed
# where it is wrong; one that refuses too much is found out, because the search without it gets through.

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from pillarbox.testing.history import Event
from pillarbox.testing.history_view import PUTS, Out, accepted, mails_of, of_mailbox
from pillarbox.testing.linearizability import programs
from pillarbox.testing.models.mailbox import MailboxModel, MailLike, accepts
from pillarbox.testing.models.model import Model

OTHERS = PUTS | {"quiesce"}


def mailbox_hints(events: Sequence[Event]) -> MailboxHints | None:
    """The hints of a history of a mailbox; None if others than one thread do more than put and quiesce."""
    consumers = {event.thread for event in events if event.operation not in OTHERS}
    return MailboxHints(events, consumers.pop()) if len(consumers) == 1 else None


class MailboxHints:
    """See `SearchHints`. `consumer` is the one thread that does more than put and quiesce."""

    def __init__(self, events: Sequence[Event], consumer: str) -> None:
        self.threads = sorted({event.thread for event in events})
        self._events = events
        self._consumer = consumer
        place = {
            index: (thread, position + 1)
            for thread, program in enumerate(programs(events, self.threads))
            for position, index in enumerate(program)
        }
        self._place = place
        program = programs(events, self.threads)[self.threads.index(consumer)]
        outs = of_mailbox(events).outs
        put_by = put_events(events)
        self._each_once = len(put_by) == sum(
            len(mails_of(event)) for event in events if event.operation in PUTS and accepted(event)
        )
        # For each event, and each thread: how many events of the thread must have been placed before it.
        self._needs: dict[int, list[int]] = {}
        self._order_of_puts(outs, put_by)
        self._contents_of_batches(program, outs, put_by)
        turn = {out.thing: number for number, out in enumerate(outs)}
        never = len(outs)
        self._turn = {
            index: min((turn.get(mail, never) for mail in mails_of(events[index])), default=never)
            for index in place
            if events[index].operation in PUTS
        }

    def rank(self, index: int) -> Any:
        """The consumer first, then puts in the order in which their mails come out, then quiesce."""
        if self._events[index].thread == self._consumer:
            return (0, 0)
        turn = self._turn.get(index)
        return (2, 0) if turn is None else (1, turn)

    def allowed(self, index: int, done: Sequence[int]) -> bool:
        """False if another event must come first: see `_order_of_puts` and `_contents_of_batches`."""
        needs = self._needs.get(index)
        return needs is None or all(has >= need for has, need in zip(done, needs, strict=True))

    def settled(self, index: int, before: Model, after: Model) -> bool:
        """True for what the consumer does, and for what changes nothing.

        Take any witness that has this event later. Between now and then only other threads do something, and
        they only put and quiesce. Move the event here. *It keeps its outcome*, because it has that outcome
        now. *The rest keeps its own*: a take that finds its mail, or none, now, takes the same mail out of
        fewer. A drain, close, `len`, or `arm_wakeup` with the same outcome now and later means that nothing
        was put between. A batch made earlier is smaller by mails that no take from it returns: `allowed` has
        seen to it that those are in. And what changes nothing, a put that is refused or a second quiesce,
        would change nothing later either.
        """
        event = self._events[index]
        if event.operation == "create_batch" and not self._each_once:
            # Then `allowed` does not know which put of a mail the batch has to hold.
            return False
        if event.thread == self._consumer and event.operation not in OTHERS:
            return True
        return before == after

    def key(self, model: Model) -> Hashable:
        """State, streak, wake-ups and the batch: after the same events the same mails wait.

        Not the order of the puts: where a take can tell two mails of one urgency apart, `allowed` has left
        them only one order. Two others, neighbours in put order, can change places: the first take that gives
        one of them does not accept the other one.
        """
        if not self._each_once or not isinstance(model, MailboxModel):
            return model.key()
        batch = frozenset(mail for mail in model.waiting[: model.batch] if not mail.urgent)
        return model.state, model.streak, model.armed, model.lent, batch

    def _need(self, index: int, place: tuple[int, int]) -> None:
        needs = self._needs.setdefault(index, [0] * len(self.threads))
        thread, count = place
        # A thread's own events are in order anyway, and the mails of one put_all are too.
        if self._place[index][0] != thread:
            needs[thread] = max(needs[thread], count)

    def _order_of_puts(self, outs: list[Out], put_by: dict[MailLike, int]) -> None:
        """A take that gave `a` and accepts `b`, of one urgency and not out yet: `a` was put before `b`.

        Otherwise `b`, which was there, would have been given. That holds for takes from a batch too: if `b`
        was put before `a` and `a` is in the batch, so is `b`.
        """
        # By what a take accepts and by urgency: for each thread the last of its puts whose mail such a take
        # gave.
        given: dict[tuple[bool, int, bool], dict[int, int]] = {}

        def constrain(mail: MailLike) -> None:
            index = put_by.get(mail)
            if index is None:
                return
            for (urgent, p, skip), puts in given.items():
                if urgent == mail.urgent and accepts(mail, p, skip):
                    for thread, count in puts.items():
                        self._need(index, (thread, count))

        for out in outs:
            constrain(out.thing)
            index = put_by.get(out.thing)
            if index is not None:
                puts = given.setdefault((out.thing.urgent, out.wanted.p, out.wanted.skip_deferrable), {})
                thread, count = self._place[index]
                puts[thread] = max(puts.get(thread, 0), count)
        came_out = {out.thing for out in outs}
        for index, event in enumerate(self._events):
            if event.operation in PUTS:
                for mail in mails_of(event):
                    if mail not in came_out and put_by.get(mail) == index:
                        constrain(mail)

    def _contents_of_batches(self, program: list[int], outs: list[Out], put_by: dict[MailLike, int]) -> None:
        """An ordinary mail that came out of a batch had been put when that batch was made."""
        taken = {out.event: out.thing for out in outs if out.wanted.of_batch}
        made: int | None = None
        for index in program:
            if self._events[index].operation == "create_batch":
                made = index
            mail = taken.get(index)
            if mail is not None and not mail.urgent and made is not None and mail in put_by:
                self._need(made, self._place[put_by[mail]])


def put_events(events: Sequence[Event]) -> dict[MailLike, int]:
    """By mail the index of the put that was accepted; mails that were put more than once are not in it."""
    found = [
        (mail, index)
        for index, event in enumerate(events)
        if event.operation in PUTS and accepted(event)
        for mail in mails_of(event)
    ]
    times = Counter(mail for mail, _ in found)
    return {mail: index for mail, index in found if times[mail] == 1}
