"""A server in a process of its own: start it, wait until it answers, stop it, never leave it behind.

`ServerProcess` belongs to the job's main thread. `leave_with_parent` and `server_arguments` are for the
server's side. The pipe between the two is the life line: the system closes it when the job ends in whatever
way, SIGKILL included, and the server leaves when it sees that.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from bench.demo.ports import Ports

HOST = "127.0.0.1"
PROJECT_ROOT = Path(__file__).resolve().parents[2]
TRIES = 3
"""Ports that are tried."""
STOP_TIMEOUT_S = 2.0
"""Seconds that a server has to leave before it is killed."""


class ServerFailedError(RuntimeError):
    """The server could not be started; the message holds the last line that it wrote."""


class ServerProcess:
    """Runs `python -m module --port N [arguments]` on a free loopback port while the context is open.

    Entering waits, at most `patience` seconds, until `GET /health` answers 200, and raises
    `ServerFailedError` when the process ends or the time is over. `url` is the address, without a slash at
    its end.
    """

    def __init__(self, module: str, *arguments: str, patience: float = 30.0) -> None:
        self._module = module
        self._arguments = arguments
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: Ports | None = None
        self.url = ""

    def __enter__(self) -> ServerProcess:
        try:
            # Where a port cannot be held, another program may take it before the server: hence another try.
            for _ in range(TRIES):
                complaint = self._start()
                if complaint is None:
                    return self
                self._stop()
            raise ServerFailedError(f"{self._module} ended at its start: {complaint}")
        except BaseException:
            self._stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int | None:
        """The process id while the server runs, else None."""
        return self._process.pid if self._process else None

    def _start(self) -> str | None:
        """Starts the server and waits for it; returns its last words if it ended instead."""
        self._ports = ports = Ports(1)
        (port,) = ports.numbers
        with tempfile.TemporaryFile() as complaints:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, "--port", str(port), *self._arguments],
                cwd=PROJECT_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                # Ctrl-C goes to the whole foreground group; the job must end before its server does.
                start_new_session=True,
            )
            deadline = time.monotonic() + self._patience
            while self._process.poll() is None:
                if is_healthy(port):
                    self.url = f"http://{HOST}:{port}"
                    return None
                if time.monotonic() > deadline:
                    raise ServerFailedError(f"{self._module} gave no answer within {self._patience:g} s")
                time.sleep(0.02)
            return last_line(complaints)

    def _stop(self) -> None:
        process, self._process, self.url = self._process, None, ""
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._ports is not None:
            self._ports.give_up()


def is_healthy(port: int) -> bool:
    """True if `GET /health` on the port answers 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def last_line(file: IO[bytes]) -> str:
    """The last line written to the file that is not empty."""
    file.seek(0)
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"


def leave_with_parent() -> None:
    """Ends this process when the other end of standard input is closed. A server calls it first."""

    def watch() -> None:
        # Not sys.stdin: its lock, held here, would make the interpreter abort at its own end.
        os.read(sys.stdin.fileno(), 1)
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def server_arguments(description: str) -> argparse.ArgumentParser:
    """The argument parser that every server of the demo begins with: it knows `--port`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, required=True, help="loopback port to listen on")
    return parser
