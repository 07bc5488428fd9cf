"""The slots of one task, leased from a coordinator. Confined to the task's mailbox thread."""

# A slot is kept while rows wait for it, so that a call costs no message. What no call has used between two
# looks goes back to others. A task that is cut off goes on for some seconds, as connections break for a
# moment more often than coordinators die; then it begins no call, long before its lease is over.

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable

from pillarbox.aio.adaptive import Adaptive
from pillarbox.aio.limits.outcomes import TaskOutcomes
from pillarbox.aio.limits.rate import WAIT_MARGIN_S, CoordinatorError
from pillarbox.aio.limits.slots import (
    TO_HOLDER,
    TO_SLOTS,
    OpenSlots,
    RoundTrip,
    Rule,
    SlotsAsked,
    SlotsBack,
    SlotsGranted,
    SlotsLeft,
    SlotsStuck,
    WantSlots,
)
from pillarbox.loop_thread import end
from pillarbox.rpc.connection import Connection, Reconnector, RefusedError, RpcHandle

LOOK_S = 0.05
"""Seconds between two looks at slots that are free."""
FIRST_SLOTS = 4
"""Slots to ask for at first; then twice as many as are held."""
CUT_OFF_S = 5.0
"""Seconds without a coordinator after which no call begins: see `LEASE_S`."""
LEAVE_TIMEOUT_S = 2.0
"""Seconds for the last word to be answered."""


class SlotLease:
    """The slots of one task: see `SharedSlots`. `clock` gives seconds and never goes back.

    slots: the number of all tasks together, or the rule by which the coordinator finds it.
    """

    def __init__(
        self,
        handle: RpcHandle,
        name: str,
        slots: int | Adaptive,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._way = Reconnector(handle)
        rule = None if isinstance(slots, int) else Rule(slots.start, slots.least, slots.most)
        total = slots if isinstance(slots, int) else slots.most
        # As at first; it says anew what it holds.
        self._opening = OpenSlots(name, total, uuid.uuid4().hex, 0, 0, rule)
        self.finder = None if rule is None else TaskOutcomes(lambda: self.limit, clock, self._report_later)
        """See `SharedSlots.finder`."""
        self.stuck = 0
        """See `SharedSlots.stuck`."""
        self._patience = patience
        self._clock = clock
        self._held = 0
        self._asked = math.inf
        self._wanted = 0
        self._free = 0
        self._lost_at = clock()
        self._waits_since: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        self._in_flight: Callable[[], int] = lambda: 0
        self._changed: Callable[[], None] = lambda: None
        self._fail: Callable[[BaseException], None] = lambda error: None

    @property
    def limit(self) -> int:
        """See `SharedSlots.limit`."""
        # spec: SlotLease!Begin
        if self._way.connection is None and self._clock() - self._lost_at > CUT_OFF_S:
            return 0
        return int(min(self._held, self._asked))

    def start(
        self,
        in_flight: Callable[[], int],
        changed: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """See `SharedSlots.start`."""
        self._in_flight, self._changed, self._fail = in_flight, changed, fail
        self._lost_at = self._clock()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def want(self) -> None:
        """See `SharedSlots.want`."""
        if self._waits_since is None and self.limit <= self.stuck:
            self._waits_since = self._clock()
        wanted = min(self._opening.total, max(FIRST_SLOTS, 2 * self._held))
        if wanted > self._wanted:
            self._wanted = wanted
            self._say(WantSlots(wanted))

    def release(self) -> None:
        """See `SharedSlots.release`."""
        # spec: SlotLease!GiveBack
        in_flight = self._in_flight()
        if self.stuck > in_flight:
            # Of those that seemed never to end, one has.
            self.hang(in_flight)
        if self._held > self._asked:
            self._give_back(self._held - max(int(self._asked), in_flight))

    def hang(self, calls: int) -> None:
        """See `SharedSlots.hang`."""
        # spec: SlotLease!Find
        stuck = min(calls, self._held)
        if stuck != self.stuck:
            self.stuck = stuck
            self._come_down_to(self._asked)
            self._say(SlotsStuck(stuck))
            self._changed()

    async def close(self) -> None:
        """See `SharedSlots.close`. Takes two seconds at most, where nothing answers."""
        task, self._task = self._task, None
        for timer in (self._timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        self._changed = lambda: None
        if task is None:
            return
        if self._way.connection is not None:
            # spec: SlotLease!Leave
            self._held = self._wanted = 0
            self._say(SlotsLeft())
            await asyncio.wait([task], timeout=LEAVE_TIMEOUT_S)
        await end(task)

    # -- the coordinator ----------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._way.run(self._hello, self._talk, self._patience_left)
            return
        except RefusedError as error:
            why = str(error)
        except Exception as error:
            why = f"sharing the capacity has failed: {type(error).__name__}: {error}"
        self._fail(CoordinatorError(why))

    def _hello(self) -> list[object]:
        # spec: SlotLease!Register
        self._asked = math.inf
        if self._clock() - self._lost_at > CUT_OFF_S:
            # The lease may be over: what runs is in its slot all the same.
            self._held = min(self._held, self._in_flight())
            self.stuck = min(self.stuck, self._held)
        opening = self._opening._replace(held=self._held, wanted=self._wanted, stuck=self.stuck)
        return TO_SLOTS.to_json(opening)[1:]

    async def _talk(self, connection: Connection) -> None:
        if self.limit > self.stuck:
            # It has slots again, which it may have waited for while it was cut off.
            self._waits_since = None
        # What was said while there was no connection.
        connection.send(*TO_SLOTS.to_json(WantSlots(self._wanted)))
        try:
            while not isinstance(message := TO_HOLDER.from_json(await connection.receive()), SlotsLeft):
                if isinstance(message, SlotsGranted):
                    # spec: SlotLease!Receive
                    self._held += message.slots
                    self._waits_since = None
                    self._look_later()
                elif isinstance(message, SlotsAsked):
                    self._come_down_to(message.slots)
                    self.release()
                elif isinstance(message, RoundTrip) and self.finder is not None:
                    # Its own calls may have hung since it was another.
                    self.finder.round_trip = message.seconds
                self._changed()
        finally:
            self._lost_at = self._clock()

    def _come_down_to(self, slots: float) -> None:
        """Hold so many slots only, and those of calls that hang, as soon as calls have ended."""
        self._asked = max(slots, self.stuck)
        if self._held <= self._asked:
            self._asked = math.inf

    def _say(self, message: object) -> None:
        if self._way.connection is not None:
            self._way.say(*TO_SLOTS.to_json(message))

    def _patience_left(self) -> float:
        if self._waits_since is None:
            return self._patience
        left = self._patience - (self._clock() - max(self._lost_at, self._waits_since))
        if left <= WAIT_MARGIN_S:
            raise RefusedError(f"no coordinator for patience={self._patience:g} s at {self._way}")
        return left

    # -- outcomes, for a number that is found ------------------------------------------------------

    def _report_later(self, seconds: float) -> None:
        if self._task is not None:
            if self._report_timer is not None:
                self._report_timer.cancel()
            self._report_timer = asyncio.get_running_loop().call_later(seconds, self._report)

    def _report(self) -> None:
        self._report_timer = None
        if self.finder is not None:
            self._say(self.finder.take())

    # -- slots that are free ------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._timer is None and self._task is not None:
            self._free = 0
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self.release()
        free = self._held - self._in_flight()
        idle, self._free = min(free, self._free), free
        if idle > 0:
            self._give_back(idle)
        if self._held > 0 and self._task is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _give_back(self, count: int) -> None:
        # A task that is cut off says what it holds when it is back.
        if count <= 0:
            return
        self._held -= count
        self._wanted = min(self._wanted, self._held)
        self._free = 0
        if self._held <= self._asked:
            self._asked = math.inf
        # In this order: otherwise it is granted at once what it gives back, as one that wants it.
        self._say(WantSlots(self._wanted))
        self._say(SlotsBack(count))
        self._changed()
