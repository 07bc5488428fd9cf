"""The harness's side of the service: starts one, gives it commands, ends it. For one thread."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType

from fuzz.chaos.calls import CallLog
from fuzz.chaos.places import ROOT


class Server:
    """A service with a log of its own, from `__enter__` to `__exit__`.

    latency: seconds that a call takes, about. badness: the share of calls that go wrong by its dice.
    """

    def __init__(self, folder: Path, seed: int, *, latency: float, badness: float) -> None:
        self._path = folder / "calls.log"
        self._path.touch()
        self.log = CallLog(self._path)
        self._words = ["--log", str(self._path), "--seed", str(seed)]
        self._words += ["--latency", str(latency), "--badness", str(badness)]
        self.port = 0

    @property
    def url(self) -> str:
        """The URL at which it answers."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.chaos.service", *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError("the service did not start")
        self.port = int(said)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def command(self, mode: str, seconds: float) -> None:
        """Have every call that begins within the next `seconds` end like this."""
        request = urllib.request.Request(
            f"{self.url}/mode?name={mode}&seconds={seconds}", data=b"", method="POST"
        )
        with urllib.request.urlopen(request, timeout=10):
            pass
