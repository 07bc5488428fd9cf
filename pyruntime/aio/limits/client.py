"""The gate of a task that asks a coordinator over TCP. Confined to the mailbox thread, whose loop it uses."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

from pillarbox.aio.limits.lease import LeaseGate
from pillarbox.aio.limits.shared import Limits
from pillarbox.wire.connecting import connected
from pillarbox.wire.ending import end
from pillarbox.wire.frames import BEAT, BROKEN, CONNECT, SILENCE, Channel, ProtocolError

FAREWELL = 2.0
"""Seconds for the last report to be taken."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class CoordinatorGate(LeaseGate):
    """A `LeaseGate` whose calls come from a `Coordinator`.

    Connects again for as long as it takes; each time it says anew what it has done. While it is cut off,
    calls begin from what is held, unless their number is bounded. When a call waits and the coordinator has
    not been there for `patience` seconds, the job fails.
    """

    def __init__(
        self,
        addresses: tuple[tuple[str, int], ...],
        secret: bytes,
        name: str,
        limits: Limits,
        patience: float,
    ) -> None:
        super().__init__(limits)
        self._addresses = addresses
        self._secret = secret
        self._name = name
        self._patience = patience
        self._id = uuid.uuid4().hex
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._farewell: tuple[int, float] | None = None
        self._taken = False
        self._heard = 0.0
        self._trouble: BaseException | None = None

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._guarded(self._run()))

    # -- what is said -------------------------------------------------------------------------

    def _say(self, kind: str, **more: Any) -> bool:
        if self._channel is None:
            return False
        return self._channel.send({"is": kind, "report": [*self.report()], **more})

    def _tell_want(self) -> None:
        calls, units = max(0, self._wanted_calls), max(0.0, self._wanted_units)
        self._say("want", calls=calls, units=units, head=self._wanted_head)

    def _tell_report(self) -> bool:
        return self._say("did")

    def _tell_cool_down(self, seconds: float) -> None:
        self._say("cool", seconds=seconds)

    async def _finish(self, unspent: int, units: float) -> None:
        task = self._task
        if task is None:
            return
        self._farewell = unspent, units
        if self._channel is not None:
            self._say_farewell()
        # What was spent and not said would be lost: wait for a coordinator that is just starting again.
        if self._channel is not None or self._received:
            await asyncio.wait([task], timeout=FAREWELL)
        await end(task)

    def _say_farewell(self) -> None:
        assert self._farewell is not None
        unspent, units = self._farewell
        self._say("bye", unspent=unspent, units=units)

    # -- the connection -----------------------------------------------------------------------

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        lost_at = self._clock()
        turn = 0
        while not self._taken:
            host, port = self._addresses[turn % len(self._addresses)]
            turn += 1
            try:
                await self._connect(host, port)
            except BROKEN as error:
                self._trouble = error
            if self.connected:
                self._connection(False)
                lost_at = self._clock()
                pause = FIRST_PAUSE
            if self._taken or self._failure is not None:
                return
            # Full jitter, so that all tasks do not come back at once (Brooker, 2015).
            wait = random.uniform(0.0, pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            if self._held_back:
                left = self._patience - self._held_back_for(lost_at)
                if left <= 0.0:
                    self._fail(f"no coordinator for patience={self._patience:g} s{self._reason()}")
                    return
                wait = min(wait, left)
            await asyncio.sleep(wait)

    def _reason(self) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        trouble = self._trouble
        detail = "" if trouble is None else f" ({str(trouble) or type(trouble).__name__})"
        return f" at {where}{detail}"

    async def _connect(self, host: str, port: int) -> None:
        # Nothing that matters is unsent at the end: the last word is the coordinator's.
        async with connected(host, port, self._secret, direct=True) as channel:
            self._channel = channel
            try:
                await self._talk(channel)
            finally:
                self._channel = None

    async def _talk(self, channel: Channel) -> None:
        before = {} if self._before is None else {"before": [*self._before]}
        self._say("open", gate=self._name, limits=[*self.limits], client=self._id, **before)
        await asyncio.wait_for(self._opened(channel), CONNECT)
        if self._failure is not None:
            return
        self._heard = self._clock()
        self._beat_timer = self._loop.call_later(BEAT, self._beat, channel)
        try:
            self._connection(True)
            cooling = self._cool_until - self._clock()
            if cooling > 0.0:
                self._tell_cool_down(cooling)
            if self._farewell is not None:
                self._say_farewell()
            while not self._taken:
                self._hear(await channel.receive())
                self._heard = self._clock()
        finally:
            self._beat_timer.cancel()

    async def _opened(self, channel: Channel) -> None:
        """Wait until the coordinator has this task on its books."""
        while True:
            message = await channel.receive()
            if message["is"] == "opened":
                return
            if message["is"] == "later":
                raise ProtocolError(str(message["why"]))
            self._hear(message)
            if self._failure is not None:
                return

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["is"]
        if kind == "grant":
            self._granted(int(message["calls"]), float(message["units"]))
        elif kind == "cool":
            self._cooled(float(message["seconds"]))
        elif kind == "over":
            self._over(str(message["why"]))
        elif kind == "no":
            self._fail(str(message["why"]))
        elif kind == "bye":
            self._taken = True

    def _beat(self, channel: Channel) -> None:
        if self._clock() - self._heard > SILENCE:
            channel.abort()
            return
        self._say("beat")
        self._beat_timer = self._loop.call_later(BEAT, self._beat, channel)
