"""Process that starts one server on this host, watches it, and ends it when no process holds it any more.

Started by `pillarbox.models.served`, which has the other side of `spec/ServedLease.tla`. It needs nothing but
the standard library, belongs to no process, and is found by the locks in its folder alone.
"""

# Why a process of its own. A worker of Spark may be killed at any moment, and the server would go with it, or
# stay for ever. Locks of files tell who lives: the system gives them back, however a process ends.
#
# Why the server has the lock `server` as well. A supervisor that is killed takes its server along, on Linux,
# but not at once; until that is gone nobody may start another one, which would find no memory on the GPU.

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

try:
    import fcntl
except ImportError:  # as on Windows
    fcntl = None  # type: ignore[assignment]

HOST = "127.0.0.1"
STATE, LOG = "state.json", "server.log"
HOLDERS, SERVER, ALIVE = "holders", "server", "alive"
"""Files of the folder: what is told, what the server prints, and the three locks."""
STARTING, READY, FAILED = "starting", "ready", "failed"

POLL_S = 0.1
HEALTH_TIMEOUT_S = 2.0
ALIVE_TRIES = 50
"""Tries, each after `POLL_S`, to take a lock that others may have for a moment only."""
STOP_TIMEOUT_S = 10.0
"""Seconds that a server has to end after SIGTERM."""
TAIL_LINES, MAX_LINE_BYTES = 20, 4096
"""Lines that an error shows, and bytes of a line that are kept."""
PORT_TRIES = 3
"""Ports that are tried, of those that are free when they are looked for."""
TOUCH_S = 3600.0
"""Seconds after which the files are touched: what tidies up temporary files looks at their age."""
PR_SET_PDEATHSIG = 1
LISTENS = "0A"
"""The state of a socket in Linux' tables that waits for connections."""
LOOPBACK_6 = {"00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}


class Output:
    """The output of a server: the last lines, and a file of them that is bounded. One thread reads."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._path, self._half = path, max(1, max_bytes // 2)
        self._thread: threading.Thread | None = None

    def read(self, pipe: Any) -> None:
        """Begin to read a pipe, to its end."""
        self._thread = threading.Thread(target=self._pump, args=(pipe,), daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait for the end of the pipe: a process that the server has left behind may keep it open."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _pump(self, pipe: Any) -> None:
        file = None
        written = 0
        while line := pipe.readline(MAX_LINE_BYTES):
            self.tail.append(line.decode("utf-8", "replace").rstrip())
            # A full disk loses the lines, and not the server, which would wait at a pipe that is full.
            with suppress(OSError):
                if file is None or written + len(line) > self._half:
                    if file is not None:
                        file.close()
                    with suppress(FileNotFoundError):
                        os.replace(self._path, f"{self._path}.1")
                    file, written = open(self._path, "wb", 0, opener=_open_own), 0  # noqa: SIM115
                written += file.write(line) or 0
        pipe.close()
        if file is not None:
            file.close()


class Supervisor:
    """Starts and watches one server. For the main thread of its process: on Linux a server ends with that."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._folder: str = config["folder"]
        self._output = Output(os.path.join(self._folder, LOG), config["log_bytes"])
        self._process: subprocess.Popen[bytes] | None = None
        self._holders = os.open(os.path.join(self._folder, HOLDERS), os.O_RDWR | os.O_CREAT, 0o600)
        self._port: int = config["port"] or _free_port()
        self._ports_left = 0 if config["port"] else PORT_TRIES - 1
        self._touch_at = 0.0
        self._phase = STARTING
        self._was_ready = False
        self._restarts = 0
        self._deadline = 0.0
        self._launch_at = 0.0
        self._idle_since: float | None = None

    def run(self) -> None:
        """Watch until nobody has held the server for a while, and end it."""
        while not self._is_left():
            self._touch()
            self._step()
            time.sleep(POLL_S)
        # spec: ServedLease!Stop
        self.stop()
        # spec: ServedLease!Exit

    def _is_left(self) -> bool:
        """True if nobody has held the server for a while; nobody can from then on."""
        try:
            fcntl.flock(self._holders, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._idle_since = None
            return False
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since >= self._config["keep"]:
            # spec: ServedLease!End
            return True
        fcntl.flock(self._holders, fcntl.LOCK_UN)
        return False

    def _touch(self) -> None:
        if time.monotonic() < self._touch_at:
            return
        self._touch_at = time.monotonic() + TOUCH_S
        for name in (HOLDERS, SERVER, ALIVE, STATE, LOG):
            with suppress(OSError):
                os.utime(os.path.join(self._folder, name))

    def _step(self) -> None:
        if self._phase == FAILED:
            return
        now = time.monotonic()
        if self._process is None:
            if now >= self._launch_at:
                self._launch()
        elif (status := self._process.poll()) is not None:
            self._died(status)
        elif self._phase == STARTING:
            if self._is_healthy():
                self._ready()
            elif now >= self._deadline:
                seconds = f"{self._config['ready_timeout']:,.0f} s"
                self._fail(f"gave no healthy answer at {self._config['health']} within {seconds}")

    def _launch(self) -> None:
        # spec: ServedLease!Launch
        if not _is_free(self._port):
            if time.monotonic() < self._deadline:
                # Connections of the one that died hold it until their clients close them.
                self._launch_at = time.monotonic() + 1.0
                return
            if self._takes_another_port():
                return
            self._fail(f"port {self._port} is in use by another program")
            return
        words = {"{port}": str(self._port), "{host}": HOST}
        command = [_filled(word, words) for word in self._config["command"]]
        try:
            self._process = subprocess.Popen(
                command,
                env=self._config["env"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._config["lock"],),
                preexec_fn=_end_with_parent(),
            )
        except OSError as error:
            self._fail(f"cannot be started: {error.strerror}")
            return
        self._output.read(self._process.stdout)
        self._deadline = time.monotonic() + self._config["ready_timeout"]
        self._tell(STARTING)

    def _takes_another_port(self) -> bool:
        """Go on at another port; False for one that was given, or that clients know, or after several."""
        if self._was_ready or not self._ports_left:
            return False
        self._ports_left -= 1
        self._end_group()
        self._port, self._launch_at = _free_port(), 0.0
        self._tell(STARTING)
        return True

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=HEALTH_TIMEOUT_S)
        try:
            connection.request("GET", self._config["health"])
            return 200 <= connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _ready(self) -> None:
        if (user := stranger_at(self._port)) is not None:
            if self._takes_another_port():
                return
            self._fail(f"did not get port {self._port}: a process of user {user} listens there")
            return
        if (address := address_beyond_loopback(self._port)) is not None:
            self._fail(
                f"listens at {address}, where other hosts reach it: have it listen at {HOST}, for which "
                "{host} stands in the command"
            )
            return
        # spec: ServedLease!Ready
        self._was_ready = True
        self._tell(READY)

    def _died(self, status: int) -> None:
        # spec: ServedLease!Die
        how = f"exited with status {status}" if status >= 0 else f"was ended by signal {-status}"
        self._end_group()
        if not _is_free(self._port) and self._takes_another_port():
            # Another program came between the look for a port and the server's start.
            return
        if not self._was_ready:
            # It would again.
            self._fail(f"{how} before it was ready")
        elif self._restarts >= self._config["restarts"]:
            self._fail(f"{how}, after {self._restarts} restarts")
        else:
            self._launch_at = time.monotonic() + min(30.0, POLL_S * 2**self._restarts)
            self._deadline = self._launch_at + self._config["ready_timeout"]
            self._restarts += 1
            self._tell(STARTING)

    def _fail(self, reason: str) -> None:
        self._end_group()
        self._tell(FAILED, reason)

    def _tell(self, phase: str, reason: str = "") -> None:
        self._phase = phase
        told = {"phase": phase, "port": self._port, "reason": reason, "tail": [*self._output.tail.copy()]}
        told["supervisor"], told["restarts"] = os.getpid(), self._restarts
        told["server"] = None if self._process is None else self._process.pid
        path = os.path.join(self._folder, STATE)
        with suppress(OSError):
            with open(f"{path}.part", "w", opener=_open_own) as file:
                json.dump(told, file)
            os.replace(f"{path}.part", path)

    def stop(self) -> None:
        """End the server, with all that it has started."""
        self._end_group()
        with suppress(OSError):
            os.unlink(os.path.join(self._folder, STATE))

    def _end_group(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        # What it has left behind, too.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._output.finish(1.0)


def _open_own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _filled(word: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(name, value)
    return word


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        # A port of a server that has just ended is free.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Return True if something takes connections: a supervisor with several threads dies after its server."""
    try:
        socket.create_connection((HOST, port), HEALTH_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _listeners(port: int) -> Iterator[tuple[int, str, int]]:
    """Yield family, address in hexadecimal digits, and user of each listener of a port. Linux alone."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(OSError), open(f"/proc/net/{name}") as table:
            for line in [*table][1:]:
                words = line.split()
                address, _, number = words[1].partition(":")
                if words[3] == LISTENS and int(number, 16) == port:
                    yield family, address, int(words[7])


def address_beyond_loopback(port: int) -> str | None:
    """An address beside those of loopback at which a process of this host listens on a port. Linux alone."""
    for family, address, _ in _listeners(port):
        if address in LOOPBACK_6 or (family == socket.AF_INET and address.endswith("7F")):
            continue
        raw = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
        return f"{socket.inet_ntop(family, raw)}:{port}"
    return None


def stranger_at(port: int) -> int | None:
    """The user who listens on a port, neither this one nor root: the process came first. Linux alone."""
    return next((user for _, _, user in _listeners(port) if user not in (0, os.getuid())), None)


def _end_with_parent() -> Callable[[], None] | None:
    """The first step of a child, which has it killed when this process is. None where the system lacks it."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask


def _lock_alive(file: int) -> None:
    # Others look for a moment whether it is locked.
    for _ in range(ALIVE_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(POLL_S)
    sys.exit("another supervisor is at work")


def main() -> None:
    """Become the supervisor that the first line of the input describes. The process that was started ends."""
    config = json.loads(sys.stdin.readline())
    alive = os.open(os.path.join(config["folder"], ALIVE), os.O_RDWR | os.O_CREAT, 0o600)
    _lock_alive(alive)
    if os.fork():
        # The locks are the child's now, which is nobody's child.
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.chdir("/")
    supervisor = Supervisor(config)
    try:
        supervisor.run()
    finally:
        supervisor.stop()


if __name__ == "__main__":
    main()
