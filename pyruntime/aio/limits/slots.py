"""Slots that the tasks of a job share: the accounts of the coordinator, its service, and their messages.

A `SlotAllocator` has neither a socket nor a clock of its own. It and `SlotService` are confined to the thread
of the server's loop; messages are values, for any thread.
"""

# A slot is a lease that lasts as long as the connection of its task, and some time longer. It is not a number
# of calls, as the leases of `quota` are: a call takes a slot and gives it back. So what a task holds is said
# in differences, "two more", "one back", over a connection that keeps their order, and anew in full by the
# task when it connects again: what was on its way to it then has not reached it.
#
# Slots are asked back, and not taken: a call that runs is in its slot. Who holds more than a fair share is
# asked for as much as those lack who have less. Where there are fewer slots than before, each task is asked
# for all that are too many, as it is not known where a call ends next; once they are back, the others keep
# theirs. With more tasks than slots these go round: who has held one
# for long is asked for it while another has none.
#
# Calls that seem never to end must not use up a number that is found: they have slots beside it. So a task
# says how many of its calls seem so. A slot of such a call does not count as a share of its task, and cannot
# be asked for: both sides drop a request that only such a call could meet. When the call ends after all, or
# the lease of its task does, there is a slot too many, which is asked back as others are.

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pillarbox.aio.adaptive import Adaptive
from pillarbox.aio.limits.outcomes import JobCapacity, Outcomes
from pillarbox.aio.limits.rate import MAX_NAMES, check_name
from pillarbox.aio.limits.shared import MAX_SLOTS
from pillarbox.rpc.codec import Codec
from pillarbox.rpc.connection import Connection
from pillarbox.rpc.server import Service, next_message
from pillarbox.validate import Amount, Count

SLOTS = "slots"
"""The name under which a coordinator serves them."""
LEASE_S = 30.0
"""Seconds after the end of its connection in which a task may come back to its slots. A task whose cable is
pulled notices that up to 25 s later than the coordinator (heartbeats), and begins no call after 5 s more."""
ROUND_S = 1.0
"""Seconds that a task keeps a slot while others have none."""
TOLD_TIMES = 2.0
"""Times by which a round trip differs from the one that tasks know until they are told."""


class Rule(NamedTuple):
    """Rule by which the number of slots is found: see `Adaptive`."""

    start: Count
    least: Count
    most: Count


class OpenSlots(NamedTuple):
    """A task is there, first or again: it holds and wants so many slots, of `total` or of a number found."""

    name: str
    total: Count
    client: str
    held: Count
    wanted: Count
    rule: Rule | None = None
    """For a number that is found, `total` at most."""
    stuck: Count = 0
    """Of those that it holds, slots of calls that seem never to end, where the number is found."""


class OpenedSlots(NamedTuple):
    """The coordinator has the task in its accounts."""


class WantSlots(NamedTuple):
    """A task wants so many slots in all."""

    slots: Count


class SlotsBack(NamedTuple):
    """A task gives so many slots back."""

    slots: Count


class SlotsGranted(NamedTuple):
    """A task has so many slots more."""

    slots: Count


class SlotsAsked(NamedTuple):
    """A task is asked to hold so many slots only, as soon as calls have ended; `MAX_SLOTS`: not any more."""

    slots: Count


class SlotsLeft(NamedTuple):
    """A task ends, with no call in flight; and the answer to it."""


class SlotsStuck(NamedTuple):
    """So many calls of a task seem never to end."""

    calls: Count


class RoundTrip(NamedTuple):
    """A call takes so many seconds: of those of all tasks, where the number of slots is found."""

    seconds: Amount


TO_SLOTS = Codec(OpenSlots, WantSlots, SlotsBack, SlotsStuck, SlotsLeft, Outcomes)
TO_HOLDER = Codec(OpenedSlots, SlotsGranted, SlotsAsked, RoundTrip, SlotsLeft)


@dataclass
class Holder:
    """One task, as the coordinator sees it. asked: the slots that it is to have, at most."""

    held: int = 0
    wanted: int = 0
    asked: float = math.inf
    since: float = 0.0
    """The time at which it got its last slot, or began to want one."""
    gone_until: float | None = None
    """The time at which it is given up, of one that is not connected."""
    is_for_all: bool = False
    """True if all tasks are asked for the same slots, which are too many."""
    stuck: int = 0
    """Of its slots, those of calls that seem never to end."""

    @property
    def used(self) -> int:
        """Slots in which calls end."""
        return self.held - self.stuck

    @property
    def kept(self) -> int:
        """Of these, as many as it has when what it is asked for is back."""
        return int(min(self.held, self.asked)) - self.stuck

    def hang(self, calls: int) -> None:
        """Note how many of its calls seem never to end: their slots are not asked for."""
        self.stuck = min(calls, self.held)
        self.asked = max(self.asked, self.stuck)
        if self.held <= self.asked:
            self.asked = math.inf


class SlotAllocator:
    """The accounts of `total` slots. `clock` gives seconds and never goes back.

    Never more are held than there are, but for calls that outlive the lease of their task; where their number
    has become smaller, never more than before. quiet_s: seconds in which nothing is granted: after a restart,
    tasks that are cut off have slots of which nothing is known. beside: gives the slots beside `total` for so
    many calls that seem never to end.
    """

    def __init__(
        self,
        total: int,
        clock: Callable[[], float],
        lease_s: float = LEASE_S,
        quiet_s: float = 0.0,
        beside: Callable[[int], int] = lambda stuck: 0,
    ) -> None:
        self.total = total
        self._beside = beside
        self.holders: dict[str, Holder] = {}
        self._clock = clock
        self._lease_s = lease_s
        self._quiet_until = clock() + quiet_s

    @property
    def held(self) -> int:
        """Slots that are held, those of tasks that may come back among them."""
        return sum(holder.held for holder in self.holders.values())

    @property
    def used(self) -> int:
        """Of these, the slots in which calls end."""
        return sum(holder.used for holder in self.holders.values())

    @property
    def room(self) -> int:
        """All slots that there are, those beside `total` among them."""
        return self.total + self._beside(self.held - self.used)

    def register(self, name: str, held: int, wanted: int, stuck: int = 0) -> int | None:
        """A task is there, first or again, and holds no more than it says, `stuck` for calls that hang.

        Returns the slots to which it is asked to come down, where others have got those that it had.
        """
        # spec: SlotLease!Register
        holder = self.holders.setdefault(name, Holder())
        holder.held, holder.wanted, holder.asked = held, wanted, math.inf
        holder.stuck = min(stuck, held)
        holder.gone_until, holder.since = None, self._clock()
        excess = self.held - self.room
        if excess <= 0 or not holder.used:
            return None
        holder.asked = max(holder.stuck, held - excess)
        return int(holder.asked)

    def hang(self, name: str, calls: int) -> None:
        """So many calls of a task seem never to end."""
        # spec: SlotLease!Find
        holder = self.holders[name]
        if calls > holder.stuck:
            # It had a slot until now: others have waited longer for those beside.
            holder.since = self._clock()
        holder.hang(calls)

    def want(self, name: str, count: int) -> None:
        """A task wants so many slots in all."""
        holder = self.holders[name]
        if count > holder.held >= holder.wanted:
            holder.since = self._clock()
        holder.wanted = count

    def give_back(self, name: str, count: int) -> None:
        """A task has given so many slots back."""
        # spec: SlotLease!TakeBack
        holder = self.holders[name]
        holder.held = max(0, holder.held - count)
        # A call whose slot came back has ended after all.
        holder.hang(holder.stuck)

    def lost(self, name: str) -> None:
        """The connection of a task has ended: its slots stay its own until its lease is over."""
        # spec: SlotLease!Notice
        if name in self.holders:
            self.holders[name].gone_until = self._clock() + self._lease_s
            self.holders[name].wanted = 0

    def leave(self, name: str) -> None:
        """A task ends, with no call in flight."""
        # spec: SlotLease!Leave
        self.holders.pop(name, None)

    def allocate(self) -> tuple[dict[str, int], dict[str, int], float]:
        """Give slots to those who want some, the poorest first; ask for some where they are held unfairly.

        Returns the slots granted, the slots to which tasks are asked to come down, both by name, and the
        seconds after which to ask again.
        """
        now = self._clock()
        for name in [name for name, each in self.holders.items() if (each.gone_until or math.inf) <= now]:
            # spec: SlotLease!Expire
            del self.holders[name]
        next_end = min(
            [each.gone_until for each in self.holders.values() if each.gone_until], default=math.inf
        )
        if now < self._quiet_until:
            return {}, {}, min(next_end, self._quiet_until) - now
        granted: dict[str, int] = {}
        free = self.room - self.held
        hungry = [(name, each) for name, each in self.holders.items() if each.held < each.wanted]
        while free > 0 and hungry:
            # spec: SlotLease!Grant
            name, holder = min(hungry, key=lambda pair: (pair[1].used, pair[1].since))
            holder.held, holder.since, free = holder.held + 1, now, free - 1
            granted[name] = granted.get(name, 0) + 1
            hungry = [pair for pair in hungry if pair[1].held < pair[1].wanted]
        if self.held > self.room:
            return granted, self._ask_for_excess(), next_end - now
        lifted = self._lift()
        asked, wait = self._ask_back([each for _, each in hungry], now) if hungry else ({}, math.inf)
        return granted, {**lifted, **asked}, min(next_end - now, wait)

    def _ask_for_excess(self) -> dict[str, int]:
        """Ask each task for all slots that are too many: those that are free first go."""
        # spec: SlotLease!AskBack
        asked: dict[str, int] = {}
        excess = self.held - self.room
        for name, holder in self.holders.items():
            left = max(holder.stuck, holder.held - excess)
            if holder.gone_until is None and left < holder.asked and left < holder.held:
                holder.asked = asked[name] = left
                holder.is_for_all = True
        return asked

    def _lift(self) -> dict[str, int]:
        """Ask for no more: others have given back what was too many."""
        # spec: SlotLease!Lift
        lifted: dict[str, int] = {}
        for name, holder in self.holders.items():
            if holder.is_for_all:
                holder.is_for_all = False
                if holder.gone_until is None and holder.asked < math.inf:
                    lifted[name] = MAX_SLOTS
                holder.asked = math.inf
        return lifted

    def _ask_back(self, hungry: list[Holder], now: float) -> tuple[dict[str, int], float]:
        """Ask for slots for those who have less than others; and the seconds until one may be asked again."""
        # spec: SlotLease!AskBack
        asked: dict[str, int] = {}
        there = {name: each for name, each in self.holders.items() if each.gone_until is None}
        coming = self.room - sum(each.kept + each.stuck for each in self.holders.values())
        poor = sorted(hungry, key=lambda each: (each.used, each.since))
        # What is asked for already is on its way to the poorest.
        for poorest in poor[coming:]:
            name, rich = max(there.items(), key=lambda pair: pair[1].kept)
            if rich.kept < poorest.used + 2:
                break
            rich.asked = asked[name] = rich.kept + rich.stuck - 1
        if asked or coming > 0 or poor[0].used > 0:
            return asked, math.inf
        # More tasks than slots: each has its turn.
        name, oldest = min(
            [(name, each) for name, each in there.items() if each.kept > 0],
            key=lambda pair: pair[1].since,
            default=("", None),
        )
        if oldest is None:
            return asked, math.inf
        wait = oldest.since + ROUND_S - now
        if wait <= 0.0:
            oldest.asked = asked[name] = oldest.kept + oldest.stuck - 1
            return asked, math.inf
        return asked, wait


@dataclass
class SlotAccount:
    """The slots of one name, and the connections of the tasks that share them.

    rule: how their number is found. capacity: finds it. Both are None where it is given. told_trip: the
    seconds of a call that tasks know, where it is found.
    """

    allocator: SlotAllocator
    rule: Rule | None = None
    capacity: JobCapacity | None = None
    told_trip: float = math.inf
    connections: dict[str, Connection] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class SlotService(Service):
    """Serves the slots of any number of names. Confined to the thread of the server's loop.

    quiet_s: see `SlotAllocator`. clock: seconds, which never go back.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, lease_s: float = LEASE_S, quiet_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._quiet_until = clock() + quiet_s
        self.accounts: dict[str, SlotAccount] = {}

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `Service`."""
        opening: OpenSlots = TO_SLOTS.from_json([OpenSlots.__name__, *hello])
        account = self._open(connection, opening)
        if account is None:
            return
        client, allocator = opening.client, account.allocator
        try:
            while True:
                message = await next_message(connection, account.connections, client, TO_SLOTS, OpenSlots)
                if isinstance(message, SlotsLeft):
                    allocator.leave(client)
                    del account.connections[client]
                    connection.send(*TO_HOLDER.to_json(message))
                elif isinstance(message, SlotsBack):
                    allocator.give_back(client, message.slots)
                elif isinstance(message, Outcomes | SlotsStuck):
                    if account.capacity is None:
                        raise ValueError(f"{message!r:.200}: the number of slots is given")
                    if isinstance(message, Outcomes):
                        account.capacity.report(message)
                    else:
                        allocator.hang(client, message.calls)
                else:
                    allocator.want(client, message.slots)
                self._pump(account)
        finally:
            if account.connections.get(client) is connection:
                allocator.lost(client)
                del account.connections[client]
                self._pump(account)

    def _open(self, connection: Connection, opening: OpenSlots) -> SlotAccount | None:
        name, client = check_name(opening.name), check_name(opening.client)
        if not 0 < opening.total <= MAX_SLOTS or opening.held > opening.total:
            raise ValueError(f"{opening!r:.200}: slots from 1 to {MAX_SLOTS}")
        if opening.stuck and opening.rule is None:
            raise ValueError(f"{opening!r:.200}: the number of slots is given")
        if len(self.accounts) >= MAX_NAMES:
            self.accounts = {each: known for each, known in self.accounts.items() if known.allocator.holders}
        account = self.accounts.get(name)
        quiet_s = max(0.0, self._quiet_until - self._clock())
        asked_for = opening.rule or opening.total
        if account is not None and asked_for != (account.rule or account.allocator.total):
            if account.allocator.holders:
                there = _shown(account.rule or account.allocator.total)
                why = f"capacity={_shown(asked_for)}: the slots of {name!r} are shared, and are {there}"
                connection.send("no", why)
                return None
            account = None
        if account is None:
            times = self._clock, self._lease_s, quiet_s
            if opening.rule is None:
                account = SlotAccount(SlotAllocator(opening.total, *times))
            else:
                capacity = JobCapacity(Adaptive(*opening.rule), self._clock)
                allocator = SlotAllocator(opening.total, *times, capacity.beside)
                account = SlotAccount(allocator, opening.rule, capacity)
            self.accounts[name] = account
        if account.capacity is not None and quiet_s > 0.0:
            account.capacity.resume(account.allocator.used + opening.held - opening.stuck)
            account.allocator.total = account.capacity.limit
        old = account.connections.get(client)
        if old is not None:
            old.abort()
        account.connections[client] = connection
        asked = account.allocator.register(client, opening.held, opening.wanted, opening.stuck)
        connection.send(*TO_HOLDER.to_json(OpenedSlots()))
        if account.told_trip < math.inf:
            connection.send(*TO_HOLDER.to_json(RoundTrip(account.told_trip)))
        if asked is not None:
            connection.send(*TO_HOLDER.to_json(SlotsAsked(asked)))
        self._pump(account)
        return account

    def _pump(self, account: SlotAccount) -> None:
        """Give what may be given, ask for what is held unfairly, and come back when there may be more."""
        if account.timer is not None:
            account.timer.cancel()
            account.timer = None
        next_s = math.inf
        if account.capacity is not None:
            next_s = account.capacity.judge()
            # spec: SlotLease!Resize
            account.allocator.total = account.capacity.limit
            self._tell_round_trip(account, account.capacity.round_trip)
        granted, asked, wait = account.allocator.allocate()
        wait = min(wait, next_s)
        for client, count in granted.items():
            account.connections[client].send(*TO_HOLDER.to_json(SlotsGranted(count)))
        for client, count in asked.items():
            account.connections[client].send(*TO_HOLDER.to_json(SlotsAsked(count)))
        if wait < math.inf:
            loop = asyncio.get_running_loop()
            account.timer = loop.call_later(max(wait, 0.001), self._pump, account)

    def _tell_round_trip(self, account: SlotAccount, trip: float) -> None:
        """Have tasks know it, whose own calls may all hang."""
        told = account.told_trip
        if trip == math.inf or told / TOLD_TIMES <= trip <= told * TOLD_TIMES:
            return
        account.told_trip = trip
        for connection in account.connections.values():
            connection.send(*TO_HOLDER.to_json(RoundTrip(trip)))


def _shown(slots: int | Rule) -> str:
    return f"Shared({slots!r})" if isinstance(slots, int) else f"Shared(Adaptive{tuple(slots)})"
