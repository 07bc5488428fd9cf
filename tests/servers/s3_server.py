"""A real S3 server for the tests, on loopback: versitygw, which `make s3-server` builds. Any thread."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from bench.demo.ports import Ports

ROOT = Path(__file__).resolve().parents[2]
KEY = "pillarbox"
SECRET = "a-secret-that-nobody-may-see"
LONG = 60.0


def program() -> str | None:
    """The path of the program, if there is one."""
    return shutil.which("versitygw", path=f"{ROOT / 'build' / 's3'}{os.pathsep}{os.environ['PATH']}")


class S3Server:
    """Runs until `close`. `folder` gets the objects. Skips the test where there is no such program."""

    def __init__(self, folder: Path) -> None:
        found = program()
        if found is None:
            pytest.skip("no server for S3 here: make s3-server")
        for name in ("objects", "attributes"):
            (folder / name).mkdir()
        self._ports = Ports(1)
        (self.port,) = self._ports.numbers
        command = [found, "--port", f"127.0.0.1:{self.port}", "--quiet"]
        command += ["posix", "--sidecar", str(folder / "attributes"), str(folder / "objects")]
        keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        with open(folder / "log", "w") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=log, stderr=log)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, (folder / "log").read_text()

    def store(self) -> Any:
        """Arrow's file system for it."""
        fs = pytest.importorskip("pyarrow.fs")
        return fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def bucket(self) -> str:
        """The name of a new one."""
        name = f"bucket-{uuid.uuid4().hex}"
        self.store().create_dir(name)
        return name

    def url(self, path: str, *, keys: bool = False) -> str:
        """The location of a path, which begins with the bucket; with `keys` it has the secret in it."""
        user = f"{KEY}:{SECRET}@" if keys else ""
        return f"s3://{user}{path}?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{self.port}"

    def close(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(LONG)
