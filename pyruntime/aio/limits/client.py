"""The gate of a task that asks a coordinator over TCP. Confined to the mailbox thread, whose loop it uses."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from pillarbox.aio.limits.lease import LeaseGate
from pillarbox.aio.limits.messages import (
    TO_COORDINATOR,
    TO_TASK,
    CoolDown,
    Did,
    Exhausted,
    Granted,
    Leave,
    Left,
    Open,
    Opened,
    Want,
)
from pillarbox.aio.limits.shared import Limits
from pillarbox.rpc.client import Reconnector, RpcHandle
from pillarbox.rpc.connection import CONNECT_TIMEOUT_S, Connection, RefusedError
from pillarbox.rpc.loop_thread import end

LEAVE_TIMEOUT_S = 2.0
"""For the last report to be taken."""


class CoordinatorGate(LeaseGate):
    """A `LeaseGate` whose calls come from a `Coordinator`.

    Connects again for as long as it takes; each time it says anew what it has done. While it is cut off,
    calls begin from what is held, unless their number is bounded. When a call waits and the coordinator has
    not been there for `patience` seconds, the job fails.
    """

    def __init__(self, handle: RpcHandle, name: str, limits: Limits, patience: float) -> None:
        super().__init__(limits)
        self._way = Reconnector(handle)
        self._name = name
        self._patience = patience
        self._id = uuid.uuid4().hex
        self._channel: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._farewell: tuple[int, float] | None = None
        self._taken = False

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._guarded(self._run()))

    # -- what is said -------------------------------------------------------------------------

    def _say(self, message: Any) -> bool:
        if self._channel is None:
            return False
        return self._channel.send(*TO_COORDINATOR.to_json(message))

    def _tell_want(self) -> None:
        calls, units = max(0, self._wanted_calls), max(0.0, self._wanted_units)
        self._say(Want(self.report(), calls, units, self._wanted_head))

    def _tell_report(self) -> bool:
        return self._say(Did(self.report()))

    def _tell_cool_down(self, seconds: float) -> None:
        self._say(CoolDown(seconds))

    async def _finish(self, unspent: int, units: float) -> None:
        task = self._task
        if task is None:
            return
        self._farewell = unspent, units
        if self._channel is not None:
            self._say_farewell()
        # What was spent and not said would be lost: wait for a coordinator that is just starting again.
        if self._channel is not None or self._received:
            await asyncio.wait([task], timeout=LEAVE_TIMEOUT_S)
        await end(task)

    def _say_farewell(self) -> None:
        assert self._farewell is not None
        self._say(Leave(self.report(), *self._farewell))

    # -- the connection -----------------------------------------------------------------------

    async def _run(self) -> None:
        lost_at = self._clock()
        while not self._taken:
            try:
                # Nothing that matters is unsent at the end: the last word is the coordinator's.
                await self._way.attempt(self._talk, self._hello, direct=True)
            except RefusedError as error:
                self._fail(str(error))
                return
            finally:
                self._channel = None
            if self.connected:
                self._connection(False)
                self._way.connected()
                lost_at = self._clock()
            if self._taken:
                return
            left = self._patience
            if self._held_back:
                left -= self._held_back_for(lost_at)
                if left <= 0.0:
                    self._fail(f"no coordinator for patience={self._patience:g} s at {self._way}")
                    return
            await self._way.pause(left)

    def _hello(self) -> list[Any]:
        opening = Open(self._name, self.limits, self._id, self._before, self.report())
        return TO_COORDINATOR.to_json(opening)[1:]

    async def _talk(self, connection: Connection) -> None:
        self._channel = connection
        await asyncio.wait_for(self._opened(connection), CONNECT_TIMEOUT_S)
        self._connection(True)
        cooling = self._cool_until - self._clock()
        if cooling > 0.0:
            self._tell_cool_down(cooling)
        if self._farewell is not None:
            self._say_farewell()
        while not self._taken:
            self._hear(TO_TASK.from_json(await connection.receive()))

    async def _opened(self, connection: Connection) -> None:
        """Wait until the coordinator has this task on its books."""
        while True:
            message = TO_TASK.from_json(await connection.receive())
            if isinstance(message, Opened):
                return
            self._hear(message)

    def _hear(self, message: Any) -> None:
        if isinstance(message, Granted):
            self._granted(message.calls, message.units)
        elif isinstance(message, CoolDown):
            self._cooled(message.seconds)
        elif isinstance(message, Exhausted):
            self._over(message.why)
        elif isinstance(message, Left):
            self._taken = True
