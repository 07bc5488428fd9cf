"""Executions: calls under way in a task of the event loop. Confined to its thread."""

from __future__ import annotations

import asyncio
import math

from pillarbox.aio.calls import Call
from pillarbox.aio.current_call import CallServices, CurrentCall


class Execution:
    """Calls under way in a task. `timer` abandons the task after the last row has left it.

    `started` says that the task has had its first step.
    """

    __slots__ = ("abandoned", "task", "timer")

    started: bool

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.abandoned = False

    def began(self) -> float:
        """Seconds on the clock of the operator when its call began; infinity before."""
        raise NotImplementedError

    def release(self, call: Call) -> bool:
        """Take away `call`, whose row waits for it no longer; returns True if that was the last one."""
        raise NotImplementedError

    def release_all(self) -> None:
        """Take away all calls that are left: the job has ended."""
        raise NotImplementedError


class Worker(Execution):
    """A task and the call that it carries now; `call` is None once that call was taken from it.

    `revoked` is the call that was taken from it, whose function may go on for a while.
    """

    __slots__ = ("call", "revoked", "services")

    # It has no call before it runs.
    started = True

    def __init__(self, services: CallServices) -> None:
        super().__init__()
        self.services = services
        self.call: Call | None = None
        self.revoked: Call | None = None

    def began(self) -> float:
        """See `Execution.began`; a call that was taken away runs still."""
        call = self.call or self.revoked
        return math.inf if call is None else call.began

    def release(self, call: Call) -> bool:
        """Take away `call`, the only one."""
        self.call = None
        self.revoked = call
        return True

    def release_all(self) -> None:
        """Take away the call, if it carries one."""
        if self.call is not None:
            self.release(self.call)

    @property
    def error(self) -> BaseException | None:
        """The error of the previous attempt of the call that it carries."""
        call = self.call or self.revoked
        return None if call is None else call.error

    def current(self) -> CurrentCall | None:
        """The call that it carries."""
        call = self.call or self.revoked
        return None if call is None else CurrentCall(self.services, (call,))
