"""A server beside the workers: one process a host, started by the first that needs it, ended after the last.

`Served` is a picklable value. A `Lease` belongs to one process, and is for any thread.
"""

# ServedLease in the specification: the order is what makes it safe. Who comes takes the shared lock of the
# holders first, so that no supervisor can end its server from then on, and only then looks whether there is
# one.

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from types import TracebackType
from typing import Any

from pillarbox.clients.secret import Secret, check_headers
from pillarbox.ledger.local_folder import close_file
from pillarbox.models import supervisor
from pillarbox.models.errors import ServerUnavailable
from pillarbox.models.host_folder import (
    POLL_S,
    host_folder,
    open_lock,
    try_lock,
    wait_for_lock,
)
from pillarbox.redaction import redacted
from pillarbox.validate import check_duration, check_int, check_text, naming_arguments

LOG_BYTES = 1 << 20
MAX_PORT = 65_535
MAX_SUPERVISORS = 3
"""Supervisors that one lease starts, each after the one before was killed."""
LAUNCH_TIMEOUT_S = 60.0
NOT_FOR_SERVERS = ("PYTHON_WORKER_", "OMP_NUM_THREADS", "SPARK_BUFFER_SIZE", "SPARK_REUSE_WORKER")
"""Variables of a worker of Spark: its secret, and the one thread that a task has, which a server is not."""
LAUNCH = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from pillarbox.models.supervisor import main; main()"
)


@naming_arguments
@dataclass(frozen=True, repr=False)
class Served:
    """A server that Pillarbox runs on each host that needs it, for all workers of the host.

    Give it to a client in place of the address: `Embeddings(served, "model")`, `Chat(served, ...)`. Or
    use `async with served as url:` in a function of your own, or `with served as url:`. The first task of a
    host starts the server, the others wait until it is ready. It ends when no process of the host has used
    it for `keep` seconds, however these ended; so it ends with the application. If it dies it is started
    again.

    command: the program and its arguments; "{port}" in them stands for the port, and "{host}" for the
        address 127.0.0.1, at which alone it has to listen.
    port: 0 for one that is free on the host; another one if a program takes it meanwhile.
    health: the path at which it answers with success as soon as it is ready.
    path: of its interface: "/v1" for OpenAI's language, "" for TEI's own.
    env: more variables of its environment; keys are Secrets.
    ready_timeout: seconds from its start until it is ready, at most.
    keep: seconds that it outlasts its last user: tasks have gaps between them.
    restarts: after it was ready, at most. log_bytes: of its output that are kept on the host.

        >>> from pillarbox.models import Served
        >>> Served(["vllm", "serve", "Qwen/Qwen3-8B", "--host", "{host}", "--port", "{port}"])
        Served('vllm', port=0)

    Processes share it that give the same command, port and variables. Linux and macOS. A value; any thread.
    Raises TypeError and ValueError that name the argument. Where it is opened it raises ServerUnavailable
    with the last lines of the server's output, and what reading a Secret raises.
    """

    command: Sequence[str]
    _: KW_ONLY
    port: int = 0
    health: str = "/health"
    path: str = "/v1"
    env: Mapping[str, str | Secret] = field(default_factory=dict)
    ready_timeout: float = 600.0
    keep: float = 30.0
    restarts: int = 3
    log_bytes: int = LOG_BYTES
    _leases: list[Lease] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        command = self.command
        if (
            not isinstance(command, list | tuple)
            or not command
            or not all(isinstance(w, str) for w in command)
        ):
            raise TypeError("command: must be a list with a program and its arguments, each a str")
        object.__setattr__(self, "command", tuple(command))
        check_int("port", self.port, 0, MAX_PORT)
        if self.port == 0 and not any("{port}" in word for word in command):
            raise ValueError(
                "port=0: a free port is chosen on the host; write {port} where the command takes it"
            )
        for name in ("health", "path"):
            value = getattr(self, name)
            if not isinstance(value, str) or (value and not value.startswith("/")):
                raise ValueError(f"{name}={value!r}: must begin with a slash, such as '/health'")
            if not value.isascii() or not value.isprintable() or " " in value:
                raise ValueError(f"{name}={value!r}: must be ASCII without spaces; write others as %20")
        check_text("health", self.health)
        if any("\0" in word for word in command):
            raise ValueError("command: no argument can have a zero character")
        object.__setattr__(self, "env", check_headers("env", self.env))
        for name in self.env:
            if "=" in name:
                raise ValueError(f"env[{name!r}]: the name of a variable has no '='")
        for name in ("ready_timeout", "keep"):
            check_duration(name, getattr(self, name), above_zero=True)
        check_int("restarts", self.restarts, 0)
        check_int("log_bytes", self.log_bytes, 1)

    def __repr__(self) -> str:
        # Arguments may hold a key.
        return f"Served({self.command[0]!r}, port={self.port})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_leases": []}

    def __deepcopy__(self, memo: object) -> Served:
        return self

    async def lease(self) -> Lease:
        """Have the server run until the lease is released, or this process ends. Raises ServerUnavailable."""
        lease = Lease(self, await self._read_env())
        try:
            await asyncio.to_thread(lease.open)
        except BaseException:
            # The thread goes on after a cancellation, to its next look.
            lease.release()
            raise
        return lease

    async def _read_env(self) -> dict[str, str]:
        return {
            name: await each.read() if isinstance(each, Secret) else each for name, each in self.env.items()
        }

    async def __aenter__(self) -> str:
        """Return the address, when the server is ready."""
        lease = await self.lease()
        self._leases.append(lease)
        return lease.url

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the server."""
        self._leases.pop().release()

    def __enter__(self) -> str:
        """Return the address, when the server is ready. Blocks; not on an event loop."""
        lease = Lease(self, asyncio.run(self._read_env()))
        try:
            lease.open()
        except BaseException:
            lease.release()
            raise
        self._leases.append(lease)
        return lease.url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the server."""
        self._leases.pop().release()


class Lease:
    """The share of this process in a server of its host. url: the address, once it is open."""

    url: str = ""

    def __init__(self, served: Served, env: Mapping[str, str]) -> None:
        if sys.platform == "win32":
            raise ServerUnavailable(
                f"{served.command[0]}: this system has no locks of files; use Linux or macOS"
            )
        self._served = served
        self._env = env
        self._mutex = threading.Lock()
        self._holders: int | None = None
        self._given_up = False
        self._process = os.getpid()
        # What decides which server it is, and where it is: no key stands in it.
        of = json.dumps([served.command, served.port, sorted(env.items())])
        self.folder = host_folder("served", hashlib.sha256(of.encode()).hexdigest()[:16])

    def open(self) -> None:
        """Wait until the server is ready, and start it if there is none. Blocks. Raises ServerUnavailable."""
        try:
            self._open()
        except FileNotFoundError:
            # A lock that is deleted holds nobody off, so nothing can be said of the server any more.
            raise ServerUnavailable(
                f"{self._served.command[0]}: the folder {self.folder} was deleted meanwhile: have what "
                "tidies up temporary files leave it alone, or set TMPDIR"
            ) from None

    def _open(self) -> None:
        # Its supervisor says first that the time is over.
        until = time.monotonic() + self._served.ready_timeout + LAUNCH_TIMEOUT_S
        holders = open_lock(os.path.join(self.folder, supervisor.HOLDERS))
        # spec: ServedLease!Come
        if not wait_for_lock(holders, until, shared=True):
            close_file(holders)
            raise ServerUnavailable(f"{self._served.command[0]}: an earlier server of this host does not end")
        with self._mutex:
            if self._given_up:
                close_file(holders)
                return
            self._holders = holders
        started = 0
        while not self._given_up:
            # spec: ServedLease!Take, ServedLease!Find, ServedLease!LookAgain
            if self._starts_supervisor():
                started += 1
                if started > MAX_SUPERVISORS:
                    raise ServerUnavailable(
                        f"{self._served.command[0]}: what watches it was killed {started} times"
                    )
            # spec: ServedLease!See
            told = self._told()
            if told is not None and told["phase"] == supervisor.READY and supervisor.answers(told["port"]):
                self.url = f"http://{supervisor.HOST}:{told['port']}{self._served.path}"
                return
            if told is not None and told["phase"] == supervisor.FAILED:
                raise ServerUnavailable(self._words(told))
            if time.monotonic() >= until:
                raise ServerUnavailable(f"{self._served.command[0]}: what watches it says nothing of it")
            time.sleep(POLL_S)

    def release(self) -> None:
        """Release the server, which ends after `keep` seconds without a holder. Any thread; also twice."""
        with self._mutex:
            self._given_up = True
            holders, self._holders = self._holders, None
        # A fork has closed it, and may have another file under its number.
        if holders is not None and self._process == os.getpid():
            close_file(holders)

    def _starts_supervisor(self) -> bool:
        """Start a supervisor, if there is none, and no server of one that was killed."""
        served = self._served
        lock = open_lock(os.path.join(self.folder, supervisor.SERVER))
        try:
            if not try_lock(lock):
                return False
            # spec: ServedLease!Spawn
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, supervisor.STATE))
            inherited = {
                name: value for name, value in os.environ.items() if not name.startswith(NOT_FOR_SERVERS)
            }
            names = ("command", "port", "health", "ready_timeout", "keep", "restarts", "log_bytes")
            config = {name: getattr(served, name) for name in names}
            config |= {"folder": self.folder, "lock": lock, "env": {**inherited, **self._env}}
            # By its input, as any user of the host may read the arguments of a process.
            try:
                ended = subprocess.run(
                    [sys.executable, "-c", LAUNCH],
                    input=f"{json.dumps(sys.path)}\n{json.dumps(config)}\n",
                    capture_output=True,
                    text=True,
                    pass_fds=(lock,),
                    start_new_session=True,
                    timeout=LAUNCH_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                # Its own words have the whole command, and the input with the keys.
                raise ServerUnavailable(
                    f"what watches {served.command[0]} has not started within {LAUNCH_TIMEOUT_S:,.0f} s: the "
                    "machine is too busy; try again"
                ) from None
            if ended.returncode:
                raise ServerUnavailable(
                    f"what watches {served.command[0]} cannot be started: {ended.stderr[-2000:]}"
                )
            return True
        finally:
            # The lock stays with those who have inherited it.
            close_file(lock)

    def _told(self) -> dict[str, Any] | None:
        """The words of the supervisor; None if it has said nothing, or was killed."""
        alive = open_lock(os.path.join(self.folder, supervisor.ALIVE))
        try:
            if try_lock(alive, shared=True):
                return None
        finally:
            close_file(alive)
        try:
            with open(os.path.join(self.folder, supervisor.STATE), encoding="utf-8") as file:
                told: dict[str, Any] = json.load(file)
                return told
        except (FileNotFoundError, ValueError):
            return None

    def _words(self, told: Mapping[str, Any]) -> str:
        lines = redacted("\n".join(told["tail"]))
        log = os.path.join(self.folder, supervisor.LOG)
        said = f"; it printed last:\n{lines}\n({log})" if lines else "; it has printed nothing"
        return f"{self._served.command[0]}: {told['reason']}{said}"
