"""Has an operator make no more calls than it has slots of a capacity that tasks share.

Confined to the mailbox thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pillarbox.aio.adaptive import CapacityFinder
from pillarbox.aio.calls import Call
from pillarbox.aio.limits.shared import SharedSlots
from pillarbox.aio.policy import PolicyServices
from pillarbox.aio.policy_parts import OptionPolicy, PolicyParts


class SlotPolicy(OptionPolicy):
    """Asks for slots as rows need them, and gives back what is asked back.

    The runner keeps to `limit`; the gate holds calls back while no slot is left to calls that end.
    """

    def __init__(self, slots: SharedSlots) -> None:
        self._slots = slots

    @classmethod
    def of(cls, parts: PolicyParts) -> SlotPolicy:
        """See `OptionPolicy.of`."""
        slots = parts.options.shared_slots()
        assert slots is not None
        policy = cls(slots)
        if policy.finder is not None:
            parts.load.find_by(policy.finder, policy.hang)
        return policy

    def open(self, services: PolicyServices) -> None:
        """Take what the operator gives."""
        self._services = services

    def start(self) -> None:
        """Connect."""
        self._slots.start(self._services.in_flight, self._changed, self._services.stop)

    @property
    def finder(self) -> CapacityFinder | None:
        """Takes the outcomes of calls, where the number of slots is found by them."""
        return self._slots.finder

    @property
    def limit(self) -> int:
        """Calls that may be in flight; one beside those that hang at least, so that the gate is asked."""
        return max(self._slots.stuck + 1, self._slots.limit)

    def hang(self, calls: int) -> None:
        """Note that so many calls in flight seem never to end."""
        self._slots.hang(calls)

    def may_begin(self, calls: Sequence[Call]) -> float:
        """Let a call begin if there is a slot; ask for more with the last one."""
        limit = self._slots.limit
        if self._services.in_flight() + 1 >= limit:
            self._slots.want()
        return 0.0 if limit > self._slots.stuck else math.inf

    def ended(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Give back the slot of a call that has ended, if it is asked back."""
        # It holds its slot until the runner has heard of its end.
        self._services.loop.call_soon(self._slots.release)

    async def closed(self) -> None:
        """Give all slots back."""
        await self._slots.close()

    def _changed(self) -> None:
        self._services.changed()
        self._services.wake()
