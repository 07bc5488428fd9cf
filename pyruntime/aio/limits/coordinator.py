"""Limits that the tasks of one job share: a small server beside the driver.

`Coordinator` is for any thread of the driver. A `CoordinatorHandle` travels to the tasks. `LimitService` and
`Account` are confined to the thread of the loop that serves them.
"""

# The state is a file that is replaced as a whole, not a log. It is a few hundred bytes for each name in
# use, and a log of grants would have to be cut from time to time while tasks wait for it. What must be
# known after a restart is said to a task only when it is in the file. So that one write serves all who
# wait, messages are gathered for some milliseconds; and since a disk may take its time, the write is a
# thread's of its own: the loop serves the sources' coordinators, too. The file is not forced to the disk:
# it is to outlive the process, not the machine.

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import math
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pillarbox.aio.adaptive import Adaptive
from pillarbox.aio.limits.fact_link import FactLink
from pillarbox.aio.limits.facts import FACTS, FactService
from pillarbox.aio.limits.lease import LeasedLimiter
from pillarbox.aio.limits.messages import (
    SERVICE,
    TO_COORDINATOR,
    TO_TASK,
    CoolDown,
    Exhausted,
    Learned,
    Leave,
    Left,
    Named,
    Open,
    Opened,
    Used,
)
from pillarbox.aio.limits.quota import RETURN_TIMEOUT_S, QuotaAllocator
from pillarbox.aio.limits.rate import MAX_NAMES, Limits, LocalLimiter, Rate, SharedLimits, check_name
from pillarbox.aio.limits.slot_lease import SlotLease
from pillarbox.aio.limits.slots import LEASE_S, SLOTS, SlotService
from pillarbox.ledger.private_files import FILE_MODE, open_own, replacing
from pillarbox.loop_thread import end
from pillarbox.rpc.agreement import AGREEMENT, Agreement, AgreementService
from pillarbox.rpc.connection import DEFAULT_TIMING, Connection, RpcHandle, Timing
from pillarbox.rpc.server import RpcServer, Service, digest_of, next_message
from pillarbox.validate import check_duration, check_int, check_text, naming_arguments

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("pillarbox")

STATE_VERSION = 1
DEFAULT_PATIENCE_S = 60.0
MIN_SECRET_CHARACTERS = 32
TELL_INTERVAL_S = 1.0
"""Seconds between two words to all tasks about the limits that were learned, at least."""


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


class Upkeep(NamedTuple):
    """The times and bounds of a coordinator's accounts."""

    return_timeout_s: float = RETURN_TIMEOUT_S
    """See `RETURN_TIMEOUT_S`."""
    commit_delay_s: float = 0.005
    """Seconds in which grants and reports are gathered, to be written down once."""
    write_retry_interval_s: float = 1.0
    """Seconds until a state that could not be written is tried again."""
    max_names: int = MAX_NAMES


DEFAULT_UPKEEP = Upkeep()


class SharedStatistics(NamedTuple):
    """Counts of all tasks that share one name, so far."""

    calls: int
    """Calls begun, as far as is known."""
    held: int
    """Calls granted that may still begin."""
    cost: float
    clients: int
    cool_downs: int


@dataclass
class Account:
    """The limits of one name, and the connections of the tasks that share them."""

    allocator: QuotaAllocator
    connections: dict[str, Connection] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    told_exhausted: bool = False
    told_limits: Learned | None = None
    """The limits that all tasks were told last; None where one of them was not."""
    tells_limits: asyncio.TimerHandle | None = None
    """The timer until they are looked at again; None where none is known."""

    @property
    def is_kept(self) -> bool:
        """True if it has sums. A sum that is forgotten would be granted a second time."""
        limits = self.allocator.limits
        return limits.max_calls is not None or limits.max_cost is not None


class LimitService(Service):
    """Serves the accounts of any number of names. Confined to the thread of the server's loop.

    path: of the state file; None for none. state: what to go on from; None for nothing. clock: seconds, which
    never go back.
    """

    def __init__(
        self,
        secret: bytes,
        path: Path | None,
        state: dict[str, Any] | None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_written = True
        """False if the last state is to be written down and could not be."""
        self._secret = secret
        self._path = path
        self._upkeep = upkeep
        self._clock = clock
        self._accounts = {
            name: Account(QuotaAllocator.from_json(sums, clock, upkeep.return_timeout_s))
            for name, sums in (state or {}).get("gates", {}).items()
        }
        self._outbox: list[tuple[Connection, Any]] = []
        # Connections whose task is not written down yet.
        self._opening: set[Connection] = set()
        self._changed = asyncio.Event()
        self._disk = ThreadPoolExecutor(1, "pillarbox-limits-state")
        self._writing: asyncio.Task[None] | None = None
        self._port = 0
        self._is_stopping = False

    async def begin(self, port: int) -> None:
        """See `Service`. Raises OSError for a state that cannot be written."""
        self._port = port
        await self._write()
        self._writing = asyncio.create_task(self._keep_writing())
        for account in self._accounts.values():
            self._pump(account)

    async def end(self) -> None:
        """See `Service`. Nothing is granted, answered or written any more."""
        self._is_stopping = True
        for account in self._accounts.values():
            for timer in (account.timer, account.tells_limits):
                if timer is not None:
                    timer.cancel()
        if self._writing is not None:
            await end(self._writing)
        try:
            # A write that runs is waited for: there is one thread for them.
            await self._write()
        except OSError as error:
            # Nothing was granted that is not in the file: who starts from it counts too much at most.
            log.warning("the last sums of the coordinator cannot be written: %s", error)
        self._disk.shutdown()

    def statistics(self) -> dict[str, SharedStatistics]:
        """Counts so far, by name."""
        return {
            name: SharedStatistics(
                account.allocator.used,
                account.allocator.committed - account.allocator.used,
                account.allocator.cost,
                len(account.connections),
                account.allocator.cool_downs,
            )
            for name, account in self._accounts.items()
        }

    def state(self) -> dict[str, Any]:
        """All that another one needs to go on."""
        gates = {name: account.allocator.to_json() for name, account in self._accounts.items()}
        return {"version": STATE_VERSION, "secret": self._secret.hex(), "port": self._port, "gates": gates}

    # -- connections --------------------------------------------------------------------------

    async def serve(self, connection: Connection, hello: list[Any]) -> None:
        """See `Service`."""
        opening: Open = TO_COORDINATOR.from_json([Open.__name__, *hello])
        account = self._open(connection, opening)
        if account is None:
            return
        client = opening.client
        try:
            while True:
                message = await next_message(connection, account.connections, client, TO_COORDINATOR, Open)
                self._hear(account, client, connection, message)
        finally:
            if account.connections.get(client) is connection:
                account.allocator.lost(client, self._upkeep.return_timeout_s)
                del account.connections[client]
                self._pump(account)

    def _hear(self, account: Account, client: str, connection: Connection, message: Any) -> None:
        if self._is_stopping:
            # It is said again to the coordinator that goes on.
            return
        allocator = account.allocator
        if isinstance(message, CoolDown):
            seconds = allocator.cool_down(message.seconds)
            for other in account.connections.values():
                if other is not connection:
                    self._send(other, CoolDown(seconds))
        elif isinstance(message, Named):
            allocator.learn(message.limits, message.age)
            # spec: ToldLimits!Learn
            if account.tells_limits is None:
                self._tell_limits(account)
        elif isinstance(message, Used):
            allocator.use(message)
        elif isinstance(message, Leave):
            allocator.leave(client, message.report, message.unspent, message.unspent_units)
            del account.connections[client]
            self._send(connection, Left(), account.is_kept)
        else:
            allocator.report(client, message.report)
            if message.calls is not None:
                allocator.want(client, message.report.received, message.calls, message.units)
        self._pump(account)

    def _open(self, connection: Connection, message: Open) -> Account | None:
        name, client = check_name(message.name), check_name(message.client)
        if message.before is not None:
            check_name(message.before[0])
        if not self.is_written:
            connection.send("later", "its state cannot be written")
            return None
        if name not in self._accounts:
            most = self._upkeep.max_names
            self._forget_fresh(most)
            if len(self._accounts) >= most:
                why = f"{most:,} names of limits are in use, or have budgets: give operators one name"
                connection.send("no", why)
                return None
            self._accounts[name] = Account(QuotaAllocator(message.limits, self._clock))
        account = self._accounts[name]
        allocator = account.allocator
        if allocator.limits != message.limits:
            difference = allocator.limits.differences(message.limits)
            connection.send("no", f"the limits of {name!r} are shared, and another task has {difference}")
            return None
        old = account.connections.get(client)
        if old is not None:
            old.abort()
        account.connections[client] = connection
        if message.before is not None:
            allocator.count_before(*message.before)
        allocator.register(client, message.report)
        # Limits that are in no file would have a burst of their own after a restart.
        self._opening.add(connection)
        self._send(connection, Opened(), True)
        cooling = allocator.cooling()
        if cooling > 0.0:
            self._send(connection, CoolDown(cooling))
        if account.told_exhausted:
            self._send(connection, Exhausted(str(allocator.exhausted)))
        self._register_for_limits(account, connection)
        self._pump(account)
        return account

    # Names are made by tasks, so their number has a bound. What is forgotten is a rate whose buckets are
    # full, as a new one would have them; never a budget, which would be granted a second time.
    def _forget_fresh(self, most: int) -> None:
        """Forget names that a new one equals, if there are `most`."""
        if len(self._accounts) >= most:
            for name in [name for name, each in self._accounts.items() if each.allocator.is_fresh()]:
                del self._accounts[name]

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
        for client, granted in grants.items():
            self._send(account.connections[client], granted, account.is_kept)
        if account.is_kept:
            self._changed.set()
        wait = min(max(wait, 0.001), next_end)
        if wait < math.inf:
            account.timer = asyncio.get_running_loop().call_later(wait, self._pump, account)

    # -- limits that were learned, for the statistics of tasks -----------------------------------

    # They are told to all tasks, which each have them in their totals as those of the job: so the totals of a
    # job have them wherever they are added up, and whether the coordinator is of this process or not.
    def _register_for_limits(self, account: Account, connection: Connection) -> None:
        # spec: ToldLimits!Register
        account.told_limits = None
        known = account.allocator.known_limits()
        if known.limits:
            self._send(connection, known)
            self._look_later(account)

    def _tell_limits(self, account: Account) -> None:
        """Tell all tasks the limits as they are now, unless they know; look again while one is known."""
        # spec: ToldLimits!Tell
        account.tells_limits = None
        if self._is_stopping or not account.connections:
            return
        known = account.allocator.known_limits()
        if known != account.told_limits:
            account.told_limits = known
            for connection in account.connections.values():
                self._send(connection, known)
        if known.limits:
            self._look_later(account)

    def _look_later(self, account: Account) -> None:
        if account.tells_limits is None:
            loop = asyncio.get_running_loop()
            account.tells_limits = loop.call_later(TELL_INTERVAL_S, self._tell_limits, account)

    # -- messages that wait until they are written down -----------------------------------------

    def _send(self, connection: Connection, message: object, written: bool = False) -> None:
        """Send now, or, where it must be known after a restart, when it is written down."""
        # The first that a task hears is that it is in the accounts.
        if self._path is not None and (written or connection in self._opening):
            self._outbox.append((connection, message))
            self._changed.set()
        else:
            self._say(connection, message)

    def _say(self, connection: Connection, message: object) -> None:
        self._opening.discard(connection)
        connection.send(*TO_TASK.to_json(message))

    async def _keep_writing(self) -> None:
        """Write the state, then send what waited for it. What comes meanwhile waits for the next write."""
        while self._path is not None:
            await self._changed.wait()
            await asyncio.sleep(self._upkeep.commit_delay_s)
            # spec: RateLease!Write
            self._changed.clear()
            outbox, self._outbox = self._outbox, []
            was_written = self.is_written
            try:
                await self._write()
            except OSError as error:
                if was_written:
                    log.warning(
                        "the state of the coordinator cannot be written, so nothing is granted of a budget "
                        "until it can: %s",
                        error,
                    )
                # A task that waits for what cannot be written waits for a coordinator, and has its patience.
                unsent, self._outbox = [*outbox, *self._outbox], []
                for connection, _ in unsent:
                    connection.abort()
                self._opening.clear()
                self._changed.set()
                await asyncio.sleep(self._upkeep.write_retry_interval_s)
                continue
            if not was_written:
                log.warning("the state of the coordinator can be written again")
            for connection, message in outbox:
                self._say(connection, message)

    async def _write(self) -> None:
        if self._path is None:
            return
        # The text is of this moment, whatever comes while it is written.
        text = json.dumps(self.state())
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, write_state, self._path, text)
        except OSError:
            self.is_written = False
            raise
        self.is_written = True


# -- for users ----------------------------------------------------------------------------------


def secret_from(secret_env: str) -> bytes:
    """The secret in an environment variable of this name. Raises TypeError or ValueError, never with it."""
    secret = os.environ.get(check_text("secret_env", secret_env), "")
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise ValueError(
            f"secret_env={secret_env!r}: the environment variable has {len(secret)} characters, and a secret "
            f"at least {MIN_SECRET_CHARACTERS}: openssl rand -hex 32 makes one"
        )
    return secret.encode()


@dataclass(frozen=True, repr=False)
class CoordinatorHandle(SharedLimits):
    """The way to a `Coordinator`, and the name of one set of limits. Safe in any thread.

    Pickles with the secret in it, as it must to reach the tasks. Its text does not show the secret.
    """

    handle: RpcHandle
    name: str | None
    patience: float
    shares_rate: bool = True
    """False where only the budget is shared: so that one does not change what a rate means where nobody asked
    for a coordinator."""

    def open(self, limits: Limits, own: LocalLimiter | None = None) -> LeasedLimiter:
        """A limiter for one task. Any thread; connects when it is started. own: see `LeasedLimiter`."""
        return LeasedLimiter(self.handle, self.name or "shared", limits, self.patience, own=own)

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> LeasedLimiter:
        """See `SharedLimits`."""
        if self.shares_rate:
            return self.open(Limits.of(rate, max_calls, max_cost))
        return self.open(Limits(max_calls=max_calls, max_cost=max_cost), LocalLimiter(rate, None, None))

    def open_slots(self, calls: int | Adaptive) -> SlotLease:
        """See `SharedLimits`."""
        return SlotLease(replace(self.handle, service=SLOTS), self.name or "shared", calls, self.patience)

    def open_facts(self) -> FactLink | None:
        """See `SharedLimits`."""
        if not self.shares_rate:
            # Nobody has asked for a coordinator.
            return None
        return FactLink(replace(self.handle, service=FACTS), self.name or "shared")

    def named(self, name: str | None = None) -> CoordinatorHandle:
        """See `SharedLimits`."""
        if name is None and self.name is not None:
            return self
        return replace(self, name=uuid.uuid4().hex if name is None else check_name(name))

    def agreement(self, name: str) -> Agreement:
        """See `SharedLimits`."""
        return Agreement(replace(self.handle, service=AGREEMENT), name)

    def __repr__(self) -> str:
        return f"<coordinator at {self.handle.where}, limits {self.name!r}>"


@naming_arguments
class Coordinator(RpcServer, SharedLimits):
    """Share `rate`, `max_calls` and `max_cost` among all tasks of a job. Use it in a `with` block.

    It listens on the thread of all connections of this process. Each task connects and obtains its share for
    at most a quarter of a second at a time, so that a call costs no round trip. A task that ends returns its
    unused share. If one task receives "overloaded" from the service, all cool down.

    host: the address to listen on. The default is this machine alone; "0.0.0.0" is for tasks on other
        machines. A client must prove that it knows the secret, which is sent with the job.
    port: 0 for any free port.
    state: a file by which another coordinator can continue after this one has died: it has the same port, the
        same secret, the same sums. The tasks reconnect automatically. None keeps all in memory. While the
        file cannot be written, nothing is granted, as without a coordinator. A file of another user, or one
        that others may read, is refused.
    advertise: the name or address by which tasks reach this machine. None for `host`, or, if that is every
        address, for this machine's name.
    patience: seconds that a task that needs calls waits for a coordinator before the job fails.
    certificate: a file in PEM with a private key and its certificate, for TLS: the handle names it to the
        tasks, which accept no other. None for no encryption. With `state`, give the same one at each start.
    secret_env: the name of an environment variable with a secret of at least 32 characters, by which other
        applications can use this coordinator too: see `Coordinator.at`. None for a random one, which is sent
        with this job.

        >>> from pillarbox import Coordinator, Rate, async_map
        >>> async def call(row):
        ...     return row * 10
        >>> with Coordinator() as coordinator:
        ...     limits = coordinator.named("service")
        ...     results = list(async_map([1, 2, 3], call, rate=Rate(100), limits=limits))
        ...     coordinator.statistics()["service"].calls, results
        (3, [10, 20, 30])

    At most `max_calls` begin, whichever process dies. Calls that did not begin are not lost, except those
    granted to a task that was killed: they count as begun. `max_cost` is known only after a call, so calls in
    flight at that time still cost.

    There may be 10,000 names. Above that, unused names are removed, unless they have a budget, which counts
    as long as the coordinator, or its `state`, exists. A job with one more name is then refused.

    Any thread. Raises TypeError or ValueError for a bad argument; `start` raises OSError if it cannot listen
    or read the certificate, PermissionError or ValueError for a bad state file.
    """

    _own_timing: ClassVar[Timing] = DEFAULT_TIMING
    _upkeep: ClassVar[Upkeep] = DEFAULT_UPKEEP
    _slot_lease_s: ClassVar[float] = LEASE_S

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        state: str | os.PathLike[str] | None = None,
        advertise: str | None = None,
        patience: float = DEFAULT_PATIENCE_S,
        certificate: str | os.PathLike[str] | None = None,
        secret_env: str | None = None,
    ) -> None:
        super().__init__(
            SERVICE, Service(), host, port,
            advertise=advertise, certificate=certificate, timing=self._own_timing,
        )  # fmt: skip
        self._own_secret = None if secret_env is None else secret_from(secret_env)
        self._secret = self._own_secret or self._secret
        self._patience = check_duration("patience", patience, above_zero=True)
        self._path = None if state is None else Path(os.fspath(state)).absolute()
        self._memory: dict[str, Any] | None = None
        self._limits: LimitService
        self._others[AGREEMENT] = AgreementService()

    @staticmethod
    def at(
        host: str,
        port: int,
        *,
        secret_env: str,
        patience: float = DEFAULT_PATIENCE_S,
        certificate: str | os.PathLike[str] | None = None,
    ) -> CoordinatorHandle:
        """Return the limits of a coordinator that another application, or another process, has started.

        host, port: its address, as tasks reach it. secret_env: the name of an environment variable with its
        secret, which is read here and sent with the job. certificate: a file in PEM with its certificate, if
        it has one. patience: as for `Coordinator`.

        All users of one `named(...)` share its limits. Raises TypeError or ValueError for a bad argument,
        OSError for a certificate that cannot be read. Any thread; connects when a task begins.
        """
        addresses = ((check_text("host", host), check_int("port", port, 1, 65_535)),)
        digest = None if certificate is None else digest_of(Path(certificate))
        handle = RpcHandle(addresses, secret_from(secret_env), SERVICE, digest)
        return CoordinatorHandle(handle, None, check_duration("patience", patience, above_zero=True))

    def start(self) -> Self:
        """Start listening. Raises OSError, or PermissionError or ValueError for a bad state file."""
        if self._thread is None:
            state = self._memory
            if state is None and self._path is not None:
                state = read_state(self._path)
            if state is not None:
                self._secret = self._own_secret or bytes.fromhex(state["secret"])
                self._port = self._port or state["port"]
            # Tasks of before may be cut off, with slots that they have not given back.
            quiet_s = 0.0 if state is None else self._slot_lease_s
            self._others[FACTS] = FactService()
            self._others[SLOTS] = SlotService(lease_s=self._slot_lease_s, quiet_s=quiet_s)
            self._service = self._limits = LimitService(self._secret, self._path, state, self._upkeep)
        return super().start()

    def close(self) -> None:
        """Stop listening and end every connection. Tasks that need it wait for it. Any thread; idempotent.

        A state that cannot be written to `state` is logged, and kept for another `start` of this object.
        """
        if self._thread is not None:
            super().close()
            is_kept = self._path is not None and self._limits.is_written
            self._memory = None if is_kept else self._limits.state()

    def statistics(self) -> dict[str, SharedStatistics]:
        """Return the counts of all tasks together, by the names of the limits. Any thread."""
        return self._ask(self._limits.statistics)

    def named(self, name: str | None = None) -> CoordinatorHandle:
        """Return a handle for the limits called `name`: operators with the same name share their limits.

        None makes a new unique name. Any thread; raises RuntimeError unless started.
        """
        return self._tasks_handle().named(name)

    def agreement(self, name: str) -> Agreement:
        """See `SharedLimits`. Raises RuntimeError unless started."""
        return self._tasks_handle().agreement(name)

    def open_for(self, rate: Rate | None, max_calls: int | None, max_cost: float | None) -> LeasedLimiter:
        """See `SharedLimits`."""
        return self._tasks_handle().open_for(rate, max_calls, max_cost)

    def open_slots(self, calls: int | Adaptive) -> SlotLease:
        """See `SharedLimits`."""
        return self._tasks_handle().open_slots(calls)

    def open_facts(self) -> FactLink | None:
        """See `SharedLimits`."""
        return self._tasks_handle().open_facts()

    def _tasks_handle(self) -> CoordinatorHandle:
        return CoordinatorHandle(self.handle(), None, self._patience)

    def __reduce__(self) -> tuple[Any, ...]:
        return CoordinatorHandle, (self.handle(), None, self._patience)


_lock = threading.Lock()
_local: Coordinator | None = None


def local_coordinator() -> CoordinatorHandle:
    """The limits of a coordinator on loopback that ends with the process; made at the first call. Any thread.

    They share the budget alone: the rate is still that of each task. Raises OSError if it cannot listen.
    """
    global _local
    with _lock:
        if _local is None:
            _local = Coordinator().start()
            atexit.register(_local.close)
        return replace(_local._tasks_handle(), shares_rate=False)
