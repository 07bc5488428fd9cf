"""A real PostgreSQL for the tests, with a password, on loopback, in a folder of its own. Any thread.

The one that is installed. It refuses to run as root, so then it runs as `postgres` or `nobody`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.demo.ports import Ports
from tests.waiting import wait_until

PASSWORD = "battery-staple"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "wal_level": "logical",
    "max_connections": "40",
    "autovacuum": "off",
}


@functools.cache
def programs() -> Path:
    """The folder of `initdb` and `postgres`. Skips the test, with the reason, where there is none."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3])
    )
    if not versions:
        pytest.skip("no PostgreSQL is installed (.ci/programs installs Debian's)")
    return versions[-1].parent


def account() -> dict[str, Any]:
    """The account that runs it, as `subprocess` takes it. Skips the test where it can only be root."""
    if os.getuid():
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is no other account")


class PostgresServer:
    """A running PostgreSQL, until `close`. binaries: of its programs, if not the installed ones."""

    def __init__(self, binaries: Path | None = None) -> None:
        binaries = binaries or programs()
        self._account = account()
        self._folder = Path(tempfile.mkdtemp(prefix="pillarbox-postgres-"))
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        if self._account:
            for path in (self._folder, secret):
                os.chown(path, self._account["user"], self._account["group"])
        self._data = self._folder / "data"
        self._postgres = str(binaries / "postgres")
        subprocess.run(
            [
                *(
                    str(binaries / "initdb"),
                    "--pgdata",
                    str(self._data),
                    "--pwfile",
                    str(secret),
                    "--no-sync",
                ),
                *("--auth", "scram-sha-256", "--username", "tester", "--encoding", "UTF8", "--locale", "C"),
            ],
            check=True,
            capture_output=True,
            cwd=self._folder,
            **self._account,
        )
        self._ports = Ports(1)
        (self.port,) = self._ports.numbers
        self.url = f"postgresql://tester:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        self.start()

    def start(self) -> None:
        """Run it, and wait until it answers."""
        import psycopg

        settings = {**SETTINGS, "port": str(self.port)}
        self._process = subprocess.Popen(
            [
                self._postgres,
                "-D",
                str(self._data),
                *(f"--{name}={value}" for name, value in settings.items()),
            ],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._account,
        )

        def answers() -> bool:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, "PostgreSQL does not start"
                return False
            return True

        wait_until(answers)

    def kill(self) -> None:
        """End it and all its processes at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            whole = psutil.Process(self._process.pid)
            # A child that is seen to die without the others would have them restarted.
            whole.suspend()
            family = [*whole.children(recursive=True), whole]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, timeout=20)
        self._process.wait()

    def close(self) -> None:
        """End it, and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as an administrator, each for itself; the rows of the last."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                done = connection.execute(statement)  # type: ignore[call-overload]
            return done.fetchall() if done.description is not None else []
