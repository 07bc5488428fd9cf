"""Random operations on the mailbox and the queues, compared step by step with plain Python models.

The models are written from the contracts and share nothing with the kernel: one list in put order, searched
anew by every operation.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pillarbox.kernel import (
    WATERMARK,
    CapacityError,
    Mail,
    MailboxClosedError,
    OrderedQueue,
    TaskMailbox,
    UnorderedQueue,
)

MANY = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

priorities = st.integers(-1, 3)
mails = st.builds(
    lambda priority, urgent, deferrable: Mail(print, priority=priority, urgent=urgent, deferrable=deferrable),
    priorities,
    st.booleans(),
    st.booleans(),
)

BURST = 3


class MailboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.mailbox = TaskMailbox(urgent_burst=BURST)
        self.state = "OPEN"
        self.waiting: list[Mail] = []
        self.batch: set[int] = set()
        self.urgent_in_a_row = 0
        self.accepted = self.taken = self.rejected = 0

    def pick(self, least: int = -1, skip_deferrable: bool = False, of_batch: bool = False) -> Mail | None:
        """What the contract says a take gives now; takes it out of the model."""
        accepted = [m for m in self.waiting if m.priority >= least and not (skip_deferrable and m.deferrable)]
        urgent = [m for m in accepted if m.urgent]
        ordinary = [m for m in accepted if not m.urgent and (not of_batch or id(m) in self.batch)]
        if not urgent and not ordinary:
            return None
        owed = self.urgent_in_a_row >= BURST
        picked = ordinary[0] if ordinary and (owed or not urgent) else urgent[0]
        self.urgent_in_a_row = self.urgent_in_a_row + 1 if picked.urgent else 0
        self.waiting.remove(picked)
        return picked

    def pick_all(self) -> list[Mail]:
        return list(iter(self.pick, None))

    @rule(new=st.lists(mails, max_size=4), together=st.booleans())
    def put(self, new: list[Mail], together: bool) -> None:
        try:
            if together:
                self.mailbox.put_all(new)
            else:
                for mail in new:
                    self.mailbox.put(mail)
        except MailboxClosedError:
            assert self.state != "OPEN"
            self.rejected += len(new) if together else 1
        else:
            assert self.state == "OPEN" or (not together and not new)
            self.waiting += new
            self.accepted += len(new)

    @rule(mail=mails)
    def try_put(self, mail: Mail) -> None:
        assert self.mailbox.try_put(mail) is (self.state == "OPEN")
        if self.state == "OPEN":
            self.waiting.append(mail)
            self.accepted += 1
        else:
            self.rejected += 1

    @precondition(lambda self: self.state != "CLOSED")
    @rule(least=priorities, skip=st.booleans())
    def try_take(self, least: int, skip: bool) -> None:
        expected = self.pick(least, skip)
        self.taken += expected is not None
        assert self.mailbox.try_take(least, skip_deferrable=skip) is expected

    @precondition(lambda self: self.state != "CLOSED")
    @rule(least=priorities, skip=st.booleans())
    def take(self, least: int, skip: bool) -> None:
        expected = self.pick(least, skip)
        self.taken += expected is not None
        try:
            assert self.mailbox.take(least, 0, skip_deferrable=skip) is expected
        except MailboxClosedError:
            assert self.state == "QUIESCED" and expected is None
        else:
            assert self.state == "OPEN" or expected is not None

    @precondition(lambda self: self.state != "CLOSED")
    @rule()
    def create_batch(self) -> None:
        self.batch = {id(mail) for mail in self.waiting}
        assert self.mailbox.create_batch() is bool(self.waiting)

    @precondition(lambda self: self.state != "CLOSED")
    @rule()
    def try_take_from_batch(self) -> None:
        expected = self.pick(of_batch=True)
        self.taken += expected is not None
        assert self.mailbox.try_take_from_batch() is expected

    @rule()
    def drain(self) -> None:
        expected = self.pick_all()
        self.taken += len(expected)
        assert self.mailbox.drain() == expected

    @rule()
    def quiesce(self) -> None:
        self.mailbox.quiesce()
        self.state = "QUIESCED" if self.state == "OPEN" else self.state

    @rule()
    def close(self) -> None:
        assert self.mailbox.close() == self.pick_all()
        self.state = "CLOSED"

    @rule()
    def arm_wakeup(self) -> None:
        assert self.mailbox.arm_wakeup(print_nothing) is (self.state == "OPEN" and not self.waiting)

    @invariant()
    def agrees(self) -> None:
        assert self.mailbox.state.name == self.state
        assert len(self.mailbox) == len(self.waiting)
        assert self.mailbox.has_mail() is bool(self.waiting)
        statistics = self.mailbox.statistics()
        in_batch = sum(id(mail) in self.batch and not mail.urgent for mail in self.waiting)
        assert (statistics.batch, statistics.queued) == (in_batch, len(self.waiting) - in_batch)
        assert statistics[3:5] == (self.accepted, self.taken)
        assert statistics.rejected == self.rejected


def print_nothing() -> None:
    pass


@dataclass
class Entry:
    element: object
    handle: int
    result: Any = None
    finished_as: int | None = None


CAPACITY = 6


class QueueMachine(RuleBasedStateMachine):
    queue_type: type[OrderedQueue] | type[UnorderedQueue]

    def __init__(self) -> None:
        super().__init__()
        self.queue = self.queue_type(CAPACITY)
        self.held: list[Entry] = []
        self.stale: list[int] = [0, -1]
        self.numbers = 0
        self.late = 0

    def next_out(self) -> Entry | None:
        raise NotImplementedError

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    @rule(watermark=st.booleans())
    def put(self, watermark: bool) -> None:
        element = self.number()
        try:
            if watermark:
                self.queue.put_watermark(element)
                self.held.append(Entry(WATERMARK, 0, element, 0))
            else:
                self.held.append(Entry(element, self.queue.put(element)))
        except CapacityError:
            assert len(self.held) == CAPACITY
        else:
            assert len(self.held) <= CAPACITY

    def running(self) -> list[Entry]:
        return [entry for entry in self.held if entry.finished_as is None]

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.running()))
        entry.result, entry.finished_as = -self.numbers, self.number()
        self.stale.append(entry.handle)
        assert self.queue.complete(entry.handle, entry.result) is True

    @rule(data=st.data())
    def complete_late(self, data: st.DataObject) -> None:
        self.late += 1
        assert self.queue.complete(data.draw(st.sampled_from(self.stale)), "late") is False

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.running()))
        self.stale.append(entry.handle)
        entry.handle = self.queue.renew(entry.handle)

    @rule()
    def emit(self) -> None:
        entry = self.next_out()
        assert self.queue.has_completed() is (entry is not None)
        if entry is None:
            assert self.queue.emit() is None
        else:
            self.held.remove(entry)
            assert self.queue.emit() == (entry.element, entry.result)

    @rule(limit=st.none() | st.integers(0, CAPACITY))
    def emit_many(self, limit: int | None) -> None:
        expected = []
        while (limit is None or len(expected) < limit) and (entry := self.next_out()):
            self.held.remove(entry)
            expected.append((entry.element, entry.result))
        assert self.queue.emit_many(limit) == expected

    @rule()
    def clear(self) -> None:
        self.stale += [entry.handle for entry in self.running()]
        assert self.queue.clear() == [entry.element for entry in self.held if entry.element is not WATERMARK]
        self.held = []

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.held)
        assert self.queue.in_flight == len(self.running())
        assert self.queue.is_full is (len(self.held) == CAPACITY)
        assert self.queue.is_empty is (not self.held)
        assert self.queue.statistics().late == self.late
        expected = [(entry.element, entry.finished_as is not None, entry.result) for entry in self.held]
        assert self.queue.elements() == expected


class OrderedMachine(QueueMachine):
    queue_type = OrderedQueue

    def next_out(self) -> Entry | None:
        return self.held[0] if self.held and self.held[0].finished_as is not None else None


class UnorderedMachine(QueueMachine):
    queue_type = UnorderedQueue

    def next_out(self) -> Entry | None:
        segment = []
        for entry in self.held:
            if entry.element is WATERMARK:
                break
            segment.append(entry)
        if not segment:
            return self.held[0] if self.held else None
        finished = [entry for entry in segment if entry.finished_as is not None]
        return min(finished, key=lambda entry: entry.finished_as or 0, default=None)


TestMailbox = MailboxMachine.TestCase
TestMailbox.settings = MANY
TestOrderedQueue = OrderedMachine.TestCase
TestOrderedQueue.settings = MANY
TestUnorderedQueue = UnorderedMachine.TestCase
TestUnorderedQueue.settings = MANY
