"""A real Redis for the tests, with a password, on loopback. A process for each.

The one that is installed, or Debian's package, unpacked below `build/`. Any thread.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from bench.demo.ports import Ports
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct-horse"
PACKAGES = ("redis-tools", "libjemalloc2", "liblzf1")


def fetched(folder: Path) -> list[str]:
    """Debian's program, unpacked into `folder`; what runs it. Raises OSError or CalledProcessError."""
    program = folder / "usr/bin/redis-check-rdb"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True, capture_output=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], check=True, capture_output=True)
    libraries = next((folder / "usr/lib").glob("*-linux-gnu*"))
    # It is one program under several names.
    server = folder / "redis-server"
    if not server.exists():
        server.symlink_to(program)
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(server)]


@functools.cache
def command() -> list[str]:
    """The command that runs a Redis here. Skips the test, with the reason, where there is none."""
    installed = shutil.which("redis-server")
    if installed is not None:
        return [installed]
    try:
        return fetched(ROOT / "build" / "redis")
    except (OSError, StopIteration, subprocess.CalledProcessError) as error:
        pytest.skip(f"no redis-server is installed, and Debian's cannot be had: {error}")


class RedisServer:
    """A running Redis, until `kill`. Can be started again on its port: empty, or, if `durable`, as it was."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder = folder
        self._durable = durable
        self._ports = Ports(1)
        (self.port,) = self._ports.numbers
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Run it, and wait until it answers."""
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "requirepass": PASSWORD,
            "save": "",
            "appendonly": "yes" if self._durable else "no",
            "appendfsync": "always",
        }
        self._process = subprocess.Popen(
            [*command(), *(text for name, value in options.items() for text in (f"--{name}", str(value)))],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as talk:
                # While it reads what is on its disk, it says so instead.
                talk.sendall(f"AUTH {PASSWORD}\r\nPING\r\nQUIT\r\n".encode())
                return b"+PONG" in talk.makefile("rb").read()
        except OSError:
            assert self._process.poll() is None, "Redis does not start"
            return False

    def kill(self) -> None:
        """End it at once; what it knew is gone."""
        self._process.kill()
        self._process.wait()

    def command(self, *words: str) -> object:
        """Ask it something, as an administrator would."""
        import redis

        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            return client.execute_command(*words)
