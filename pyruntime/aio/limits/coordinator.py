"""What tasks of one job share their rate and their budget through: a small server beside the driver.

`Coordinator` is for any thread of the driver. What travels to the tasks is a `CoordinatorHandle`.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

from pillarbox.aio.limits.client import CoordinatorGate
from pillarbox.aio.limits.messages import SERVICE
from pillarbox.aio.limits.server import LimitServer, SharedStatistics
from pillarbox.aio.limits.shared import SHARED_NAME, Limits, SharedLimits, check_name
from pillarbox.aio.limits.state import read_state
from pillarbox.rpc.client import RpcHandle
from pillarbox.rpc.server import Hosted
from pillarbox.validate import check_duration

PATIENCE = 60.0


class CoordinatorHandle(SharedLimits):
    """The way to a `Coordinator`: where it listens, its secret, and the name of one gate. Safe in any thread.

    Pickles with the secret in it, as it must to reach the tasks. Its text does not show the secret.
    """

    def __init__(
        self, addresses: tuple[tuple[str, int], ...], secret: bytes, name: str | None, patience: float
    ) -> None:
        self.addresses = addresses
        self.name = name
        self._secret = secret
        self._patience = patience

    def open(self, limits: Limits) -> CoordinatorGate:
        """See `SharedLimits.open`."""
        name = SHARED_NAME if self.name is None else self.name
        handle = RpcHandle(self.addresses, self._secret, SERVICE)
        return CoordinatorGate(handle, name, limits, self._patience)

    def named(self, name: str | None = None) -> CoordinatorHandle:
        """See `SharedLimits.named`."""
        if name is None:
            if self.name is not None:
                return self
            name = uuid.uuid4().hex
        return CoordinatorHandle(self.addresses, self._secret, check_name(name), self._patience)

    def __repr__(self) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<coordinator at {where}, gate {self.name!r}>"


class Coordinator(Hosted[LimitServer], SharedLimits):
    """Shares `rate`, `max_calls` and `max_cost` among all tasks of a job. Use it in a `with` block.

    It listens on the thread of all connections of this process. Each task connects, and takes what it needs
    for a tenth of a second at a time, so that a call costs no round trip. A task that ends gives back what it
    has not used; what a task held that died is granted again after about two seconds. If one task is told
    that the service is overloaded, all cool down.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for tasks on others. Whoever
        connects must prove that he knows the secret, which travels with the job. Nothing is encrypted.
    port: 0 for any that is free.
    state: a file that lets another coordinator go on after this one has died: it has the same port, the same
        secret, the same sums. The tasks come back to it by themselves. None keeps all in memory. While it
        cannot be written, nothing is granted, as if there were no coordinator.
    advertise: the name or address by which tasks reach this machine. None for `host`, or, where
        that is every address, for this machine's name.
    patience: seconds for which a task that needs calls waits for a coordinator before the job fails.

    `max_calls` is exact: never more calls begin, whoever dies. Each is said before it begins, which costs
    some microseconds. Calls that did not begin are not lost, except those that a task held which died while
    the coordinator was away or the connection was broken. `max_cost` is known only after a call, so calls
    that are in flight then still cost.

    A name that nobody has used for ten minutes is forgotten, unless it has a budget: that counts as long as
    the coordinator, or its `state`, is there. There may be 10,000 names; a job with one more is refused.

    Raises TypeError or ValueError for a bad argument; `start` raises OSError where it cannot listen.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        state: str | os.PathLike[str] | None = None,
        advertise: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__("coordinator", host, port, advertise)
        seconds = check_duration("patience", patience, above_zero=True)
        self._patience = seconds
        self._path = None if state is None else Path(os.fspath(state)).absolute()
        self._memory: dict[str, Any] | None = None

    def start(self) -> Coordinator:
        """Listen. Any thread, once; again after `close`. Raises OSError; ValueError for a bad state file."""

        def make() -> LimitServer:
            state = self._memory
            if state is None and self._path is not None:
                state = read_state(self._path)
            if state is not None:
                self._secret = bytes.fromhex(state["secret"])
                self._port = self._port or state["port"]
            return LimitServer(self._secret, self._path, state)

        self._begin(make)
        return self

    def close(self) -> None:
        """Stop listening and end every connection. Tasks that need it wait for it. Any thread; idempotent.

        What cannot be written to `state` is logged, and kept for another `start` of this object.
        """
        ended = self._end()
        if ended is not None:
            state, written = ended
            self._memory = None if self._path is not None and written else state

    def statistics(self) -> dict[str, SharedStatistics]:
        """What all tasks together have done, by the names of the gates. Any thread."""
        return self._ask(LimitServer.statistics)

    def handle(self, name: str | None = None) -> CoordinatorHandle:
        """What tasks need. Any thread; raises RuntimeError unless the coordinator has been started."""
        return CoordinatorHandle(self._addresses(), self._secret, name, self._patience)

    def named(self, name: str | None = None) -> CoordinatorHandle:
        """A handle for the gate called `name`: operators that share a name share their limits.

        None gives a new name that is nobody else's. Any thread; raises RuntimeError unless started.
        """
        return self.handle().named(name)

    def open(self, limits: Limits) -> CoordinatorGate:
        """See `SharedLimits.open`."""
        return self.handle().open(limits)

    def __reduce__(self) -> tuple[Any, ...]:
        handle = self.handle()
        return CoordinatorHandle, (handle.addresses, self._secret, None, self._patience)
