"""Limits that the tasks of one job share: a small server beside the driver.

`Coordinator` is for any thread of the driver. A `CoordinatorHandle` travels to the tasks. `LimitServer` and
`Account` are confined to the thread of the loop that serves them.
"""

# The state is a file that is replaced as a whole, not a log. It is a few hundred bytes for each name in
# use, and a log of grants would have to be cut from time to time while tasks wait for it. What must be
# known after a restart is said to a task only when it is in the file. So that one write serves all who
# wait, messages are gathered for `COMMIT_DELAY_S`; and since a disk may take its time, the write is a
# thread's of its own: the loop serves the sources' coordinators, too. The file is not forced to the disk:
# it is to outlive the process, not the machine.

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.aio.limits.lease import CoordinatedLimiter
from pillarbox.aio.limits.quota import (
    SERVICE,
    TO_COORDINATOR,
    TO_TASK,
    CoolDown,
    Exhausted,
    Granted,
    Leave,
    Left,
    Open,
    Opened,
    QuotaAllocator,
    Want,
)
from pillarbox.aio.limits.shared import SHARED_NAME, Limits, SharedLimits, check_name, new_name
from pillarbox.ledger.private_files import FILE_MODE, open_own, replacing
from pillarbox.rpc.client import RpcHandle
from pillarbox.rpc.connection import BROKEN, Connection
from pillarbox.rpc.server import Certificate, Hosted, RpcServer
from pillarbox.validate import check_duration

log = logging.getLogger("pillarbox")

STATE_VERSION = 1
MAX_NAMES = 10_000
SWEEP_INTERVAL_S = 5.0
"""Between two looks for names that nobody has used for long."""
IDLE_TIMEOUT_S = 600.0
"""Seconds without a client after which a name is put away: one without sums is forgotten."""
COMMIT_DELAY_S = 0.002
"""Seconds in which grants are gathered, to be written down once."""
REPORT_COMMIT_DELAY_S = 0.05
"""Seconds until reports of clients are written down; they would report it again."""
WRITE_RETRY_INTERVAL_S = 1.0
"""Seconds until a state that could not be written is tried again."""
DEFAULT_PATIENCE_S = 60.0


# -- the state file -----------------------------------------------------------------------------


def write_state(path: Path, text: str) -> None:
    """Replace the state by `text`, JSON with `STATE_VERSION` in it. Raises OSError."""
    with replacing(str(path), FILE_MODE) as file:
        file.write(text.encode())


def read_state(path: Path) -> dict[str, Any] | None:
    """Return what was written last; None if there is no file.

    Raises OSError, PermissionError for a file of another user, who would choose the secret and the sums,
    and for one that others may read; ValueError for another kind of file.
    """
    try:
        descriptor = open_own(str(path), os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise PermissionError(
                f"state={str(path)!r}: belongs to user {found.st_uid}, and this process is of user "
                f"{os.geteuid()}: a coordinator takes its secret and its sums from its own files only. Give "
                "another path, in a folder that only this user may write"
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(
                f"state={str(path)!r}: others may read it, and it holds a secret: chmod 600"
            )
        try:
            value = json.load(file)
        except ValueError:
            raise ValueError(f"state={str(path)!r}: not the state of a coordinator") from None
    if not isinstance(value, dict) or value.get("version") != STATE_VERSION:
        raise ValueError(f"state={str(path)!r}: not the state of a coordinator of this version")
    return value


# -- the server ---------------------------------------------------------------------------------


class SharedStatistics(NamedTuple):
    """Counts of all tasks that share one name, so far."""

    calls: int
    """Calls begun, as far as is known."""
    held: int
    """Calls granted that may still begin."""
    cost: float
    clients: int
    cool_downs: int


class Account:
    """The limits of one name, and the connections of the tasks that share them."""

    def __init__(self, allocator: QuotaAllocator) -> None:
        limits = allocator.limits
        self.allocator = allocator
        self.is_kept = limits.max_calls is not None or limits.max_cost is not None
        """True if it has sums. A sum that is forgotten would be granted a second time."""
        self.connections: dict[str, Connection] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.told_exhausted = False
        self.idle_since = time.monotonic()
        self._text: str | None = None

    @property
    def is_idle(self) -> bool:
        """True if no client is there, or may come back to what it holds."""
        return not self.connections and not self.allocator.clients

    def join(self, client: str, connection: Connection) -> None:
        """Have a client's messages go to this connection; one that it had before is cut off."""
        old = self.connections.get(client)
        if old is not None:
            old.abort()
        self.connections[client] = connection
        self._text = None

    def part(self, client: str) -> None:
        """Send a client nothing more."""
        del self.connections[client]
        self.idle_since = time.monotonic()

    def forget_clients(self) -> bool:
        """Keep only the sums of an idle one; False if there is nothing else."""
        self._text = None
        return self.allocator.forget_clients()

    def written(self) -> str:
        """The text to write down of it; made once for an idle one, however often it is written."""
        if self._text is not None:
            return self._text
        text = json.dumps(self.allocator.to_json())
        self._text = text if self.is_idle else None
        return text


class LimitServer:
    """Serves the accounts of any number of names. Confined to the thread of the loop that `serve` runs on."""

    def __init__(
        self,
        secret: bytes,
        path: Path | None,
        state: dict[str, Any] | None,
        certificate: Certificate | None = None,
    ) -> None:
        self._secret = secret
        self._path = path
        self._accounts = {
            name: Account(QuotaAllocator.from_json(sums, time.monotonic))
            for name, sums in (state or {}).get("gates", {}).items()
        }
        self._rpc = RpcServer(secret, certificate)
        self._rpc.add(SERVICE, self)
        self._outbox: list[tuple[Connection, Any]] = []
        self._is_unwritten = False
        self._write_at = math.inf
        self._write_timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, "pillarbox-limits-state")
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._port = 0
        self._is_stopping = False

    async def listen(self, host: str, port: int) -> int:
        """Listen; gives the port. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._port = await self._rpc.listen(host, port)
        try:
            await self._write()
        except BaseException:
            await self._rpc.stop()
            self._writer.shutdown()
            raise
        self._sweep()
        for account in self._accounts.values():
            self._pump(account)
        return self._port

    async def stop(self) -> tuple[dict[str, Any], bool]:
        """Close every connection, wait for their ends, write down what is known; nothing is written later.

        Gives what is known, and True unless it was to be written down and could not be.
        """
        # What clients say in their last turn, and that they are lost, sets no timer.
        self._is_stopping = True
        accounts = self._accounts.values()
        for timer in (self._write_timer, self._sweep_timer, *(account.timer for account in accounts)):
            if timer is not None:
                timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._rpc.stop()
        is_written = True
        try:
            await self._write()
        except OSError as error:
            # Nothing was granted that is not in the file: who starts from it counts too much at most.
            log.warning("the last sums of the coordinator cannot be written: %s", error)
            is_written = False
        self._writer.shutdown()
        return json.loads(self._state()), is_written

    def statistics(self) -> dict[str, SharedStatistics]:
        """Counts so far, by name."""
        found = {}
        for name, account in self._accounts.items():
            sums = account.allocator
            held = sums.committed - sums.used
            clients = len(account.connections)
            found[name] = SharedStatistics(sums.used, held, sums.cost, clients, sums.cool_downs)
        return found

    # -- connections --------------------------------------------------------------------------

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `ConnectionService`."""
        opening: Open = TO_COORDINATOR.from_json([Open.__name__, *hello])
        account = self._open(connection, opening)
        if account is None:
            return
        client = opening.client
        heard = False
        try:
            while True:
                message = TO_COORDINATOR.from_json(await connection.receive())
                if account.connections.get(client) is not connection or isinstance(message, Open):
                    raise ValueError(f"{message!r:.200} out of turn")
                self._hear(account, client, connection, message)
        except EOFError:
            heard = connection.is_heard_out()
        finally:
            if account.connections.get(client) is connection:
                account.allocator.lost(client, heard)
                account.part(client)
                self._pump(account)

    def close(self) -> None:
        """See `ConnectionService`. Tasks come back to another coordinator, so none is refused."""

    def _sweep(self) -> None:
        """Put away what nobody has used for long."""
        now = time.monotonic()
        for name, account in [*self._accounts.items()]:
            if account.is_idle and now - account.idle_since >= IDLE_TIMEOUT_S:
                self._put_away(name, account)
        self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _put_away(self, name: str, account: Account) -> bool:
        """Forget an idle account, or, of one with sums, all but the sums; True if it is forgotten."""
        is_forgotten = not account.is_kept and account.allocator.is_fresh()
        if is_forgotten:
            del self._accounts[name]
        if is_forgotten or (account.is_kept and account.forget_clients()):
            self._write_in(REPORT_COMMIT_DELAY_S)
        return is_forgotten

    # -- messages -----------------------------------------------------------------------------

    def _hear(self, account: Account, client: str, connection: Connection, message: Any) -> None:
        allocator = account.allocator
        if isinstance(message, CoolDown):
            seconds = allocator.cool_down(message.seconds)
            for other in account.connections.values():
                if other is not connection:
                    self._send(other, CoolDown(seconds))
        elif isinstance(message, Leave):
            allocator.leave(client, message.report, message.unspent, message.units)
            account.part(client)
            self._send(connection, Left(), account.is_kept)
        else:
            allocator.report(client, message.report)
            if isinstance(message, Want):
                received = message.report.received
                allocator.want(client, received, message.calls, message.units, message.head)
        self._pump(account)

    def _open(self, connection: Connection, message: Open) -> Account | None:
        name, client = check_name(message.name), check_name(message.client)
        if message.before is not None:
            check_name(message.before[0])
        if self._is_unwritten:
            connection.send("later", "its state cannot be written")
            return None
        account = self._accounts.get(name)
        if account is None:
            if not self._has_room():
                why = f"{MAX_NAMES:,} names of limits are in use, or have budgets: give operators one name"
                connection.send("no", why)
                return None
            account = self._accounts[name] = Account(QuotaAllocator(message.limits, time.monotonic))
        allocator = account.allocator
        if allocator.limits != message.limits:
            difference = allocator.limits.differences(message.limits)
            connection.send("no", f"the limits of {name!r} are shared, and another task has {difference}")
            return None
        account.join(client, connection)
        if message.before is not None:
            allocator.count_before(*message.before)
        allocator.register(client, message.report)
        self._send(connection, Opened(), True)
        cooling = allocator.cooling()
        if cooling > 0.0:
            self._send(connection, CoolDown(cooling))
        if account.told_exhausted:
            self._send(connection, Exhausted(str(allocator.exhausted)))
        self._pump(account)
        return account

    # Names are made by tasks, so their number has a bound. What is given up for room is a rate whose
    # buckets are full, as a new one would have them; never a budget, which would be granted a second time.
    def _has_room(self) -> bool:
        """True if one more name may be kept: of those that nobody uses, the one idle for longest goes."""
        if len(self._accounts) < MAX_NAMES:
            return True
        found = self._accounts.items()
        idle = [(each.idle_since, name) for name, each in found if each.is_idle and not each.is_kept]
        return any(self._put_away(name, self._accounts[name]) for _, name in sorted(idle))

    def _pump(self, account: Account) -> None:
        """Grant what may be granted, and come back when more may be."""
        if self._is_stopping:
            return
        if account.timer is not None:
            account.timer.cancel()
            account.timer = None
        allocator = account.allocator
        next_end = allocator.expire()
        why = allocator.exhausted
        if why is not None and not account.told_exhausted:
            account.told_exhausted = True
            for connection in account.connections.values():
                self._send(connection, Exhausted(why), account.is_kept)
        grants, wait = allocator.grant()
        for grant in grants:
            granted = Granted(grant.calls, grant.units)
            self._send(account.connections[grant.client], granted, account.is_kept)
        if account.is_kept:
            self._write_in(REPORT_COMMIT_DELAY_S)
        wait = min(max(wait, 0.001), next_end)
        if wait < math.inf:
            account.timer = self._loop.call_later(wait, self._pump, account)

    # -- messages that wait until they are written down -----------------------------------------

    def _send(self, connection: Connection, message: Any, written: bool = False) -> None:
        """Send now, or, where it must be known after a restart, when it is written down."""
        if self._path is None or not written:
            _send_now(connection, message)
        else:
            self._outbox.append((connection, message))
            self._write_in(COMMIT_DELAY_S)

    def _write_in(self, seconds: float) -> None:
        """Have the state written after so many seconds at most; after a failure, when it is tried again."""
        if self._path is None or self._is_stopping or self._is_unwritten:
            return
        at = self._loop.time() + seconds
        if at < self._write_at:
            self._write_at = at
            if self._writing is None:
                self._set_write_timer()

    def _set_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        if self._write_at < math.inf and not self._is_stopping:
            self._write_timer = self._loop.call_at(self._write_at, self._begin_write)

    def _begin_write(self) -> None:
        self._writing = self._loop.create_task(self._commit())

    async def _commit(self) -> None:
        """Write the state, then send what waited for it. What comes meanwhile waits for the next write."""
        # spec: RateLease!Write
        self._write_at = math.inf
        outbox, self._outbox = self._outbox, []
        try:
            await self._write()
        except OSError as error:
            if not self._is_unwritten:
                log.warning(
                    "the state of the coordinator cannot be written, so nothing is granted of a budget "
                    "until it can: %s",
                    error,
                )
            self._is_unwritten = True
            self._write_at = self._loop.time() + WRITE_RETRY_INTERVAL_S
            # A task that waits for what cannot be written waits for a coordinator, and has its patience.
            unsent, self._outbox = [*outbox, *self._outbox], []
            for connection, _ in unsent:
                connection.abort()
        else:
            if self._is_unwritten:
                log.warning("the state of the coordinator can be written again")
            self._is_unwritten = False
            for connection, message in outbox:
                _send_now(connection, message)
        self._writing = None
        self._set_write_timer()

    async def _write(self) -> None:
        if self._path is not None:
            # The text is of this moment, whatever comes while it is written.
            await self._loop.run_in_executor(self._writer, write_state, self._path, self._state())

    def _state(self) -> str:
        texts = (f"{json.dumps(name)}:{account.written()}" for name, account in self._accounts.items())
        head = json.dumps({"version": STATE_VERSION, "secret": self._secret.hex(), "port": self._port})
        return f'{head[:-1]},"gates":{{{",".join(texts)}}}}}'


def _send_now(connection: Connection, message: Any) -> None:
    """Send a message. A task that cannot be told is cut off, which does not trouble the others."""
    try:
        told = connection.send(*TO_TASK.to_json(message))
    except (*BROKEN, RuntimeError) as error:
        log.debug("a message cannot be sent: %s", error)
        told = False
    if not told:
        connection.abort()


# -- for users ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class CoordinatorHandle(SharedLimits):
    """The way to a `Coordinator`, and the name of one set of limits. Safe in any thread.

    Pickles with the secret in it, as it must to reach the tasks. Its text does not show the secret.
    """

    handle: RpcHandle
    name: str | None
    patience: float

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The places where the coordinator may be found."""
        return self.handle.addresses

    def open(self, limits: Limits) -> CoordinatedLimiter:
        """See `SharedLimits.open`."""
        return CoordinatedLimiter(self.handle, self.name or SHARED_NAME, limits, self.patience)

    def named(self, name: str | None = None) -> CoordinatorHandle:
        """See `SharedLimits.named`."""
        if name is None and self.name is not None:
            return self
        return replace(self, name=new_name() if name is None else check_name(name))

    def __repr__(self) -> str:
        where = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<coordinator at {where}, limits {self.name!r}>"


class Coordinator(Hosted[LimitServer], SharedLimits):
    """Shares `rate`, `max_calls` and `max_cost` among all tasks of a job. Use it in a `with` block.

    It listens on the thread of all connections of this process. Each task connects, and takes what it needs
    for a tenth of a second at a time, so that a call costs no round trip. A task that ends gives back what it
    has not used; what a task held that died is granted again after about two seconds. If one task is told
    that the service is overloaded, all cool down.

    host: where to listen. The default is this machine alone; "0.0.0.0" is for tasks on others. Whoever
        connects must prove that he knows the secret, which travels with the job.
    port: 0 for any that is free.
    state: a file that lets another coordinator go on after this one has died: it has the same port, the same
        secret, the same sums. The tasks come back to it by themselves. None keeps all in memory. While it
        cannot be written, nothing is granted, as if there were no coordinator. A file of another user, or one
        that others may read, is refused.
    advertise: the name or address by which tasks reach this machine. None for `host`, or, where that
        is every address, for this machine's name.
    patience: seconds for which a task that needs calls waits for a coordinator before the job fails.
    certificate: a file in PEM with a private key and its certificate, for TLS: tasks, who learn of it from
    the
        handle, take no other. None: nothing is encrypted. With `state`, give the same one at each start.

    `max_calls` is exact: never more calls begin, whoever dies. Each is said before it begins, which costs
    some microseconds. Calls that did not begin are not lost, except those that a task held which died while
    the coordinator was away or the connection was broken. `max_cost` is known only after a call, so calls
    that are in flight then still cost.

    A name that nobody has used for ten minutes is forgotten, unless it has a budget: that counts as long as
    the coordinator, or its `state`, is there. There may be 10,000 names; a job with one more is refused.

    Raises TypeError or ValueError for a bad argument; `start` raises OSError where it cannot listen or read
    the certificate, PermissionError or ValueError for a bad state file.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        state: str | os.PathLike[str] | None = None,
        advertise: str | None = None,
        patience: float = DEFAULT_PATIENCE_S,
        certificate: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__("coordinator", host, port, advertise, certificate)
        self._patience = check_duration("patience", patience, above_zero=True)
        self._path = None if state is None else Path(os.fspath(state)).absolute()
        self._memory: dict[str, Any] | None = None

    def _make(self) -> LimitServer:
        state = self._memory
        if state is None and self._path is not None:
            state = read_state(self._path)
        if state is not None:
            self._secret = bytes.fromhex(state["secret"])
            self._port = self._port or state["port"]
        return LimitServer(self._secret, self._path, state, self._certificate)

    def close(self) -> None:
        """Stop listening and end every connection. Tasks that need it wait for it. Any thread; idempotent.

        What cannot be written to `state` is logged, and kept for another `start` of this object.
        """
        ended = self._end()
        if ended is not None:
            state, is_written = ended
            self._memory = None if self._path is not None and is_written else state

    def statistics(self) -> dict[str, SharedStatistics]:
        """Counts of all tasks together, by the names of the limits. Any thread."""
        return self._ask(LimitServer.statistics)

    def named(self, name: str | None = None) -> CoordinatorHandle:
        """A handle for the limits called `name`: operators that share a name share their limits.

        None gives a new name that is nobody else's. Any thread; raises RuntimeError unless started.
        """
        return self._tasks_handle().named(name)

    def open(self, limits: Limits) -> CoordinatedLimiter:
        """See `SharedLimits.open`."""
        return self._tasks_handle().open(limits)

    def _tasks_handle(self) -> CoordinatorHandle:
        return CoordinatorHandle(self.handle(SERVICE), None, self._patience)

    def __reduce__(self) -> tuple[Any, ...]:
        return CoordinatorHandle, (self.handle(SERVICE), None, self._patience)
