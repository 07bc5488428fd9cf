"""A peer as a process that is asked for jobs, and what a job took. For the thread that measures."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from bench.chunks import ROOT
from bench.cpu import TreeTime, tree_time
from bench.peers.jobs import Job

START = 180.0
"""Seconds that a peer may take to be ready."""


class PeerFailed(RuntimeError):
    """A peer that did not do its job; the text says how."""


class PeerProcess:
    """A peer that serves jobs, as a context manager. `version` is what it calls itself.

    path: the PYTHONPATH of it and of the workers that it starts, which must find the jobs as well.
    """

    version = ""

    def __init__(self, python: Path, module: str, log: Path, path: str = str(ROOT)) -> None:
        self._command = [str(python), "-m", module]
        self._log = log
        self._path = path

    def __enter__(self) -> PeerProcess:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._said = self._log.open("a")
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": self._path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            bufsize=1,
        )
        self.tree = psutil.Process(self._process.pid)
        try:
            self.version = self._answer(START)["ready"]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._end()

    @property
    def alive(self) -> bool:
        """True if it can be asked."""
        return self._process.poll() is None

    def run(self, job: dict[str, Any], limit: float) -> dict[str, Any]:
        """Do a job; what it found, and `cpu`, seconds by kind of process. Raises PeerFailed.

        limit: seconds that the job may take, start and check of its answers included.
        """
        with tempfile.TemporaryDirectory() as folder:
            asked = Job(**job, marks=str(Path(folder, "marks")))
            before = tree_time(self.tree)
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(asdict(asked)) + "\n")
            except BrokenPipeError:
                raise PeerFailed("it has ended") from None
            answer = self._answer(limit)
            used: TreeTime = tree_time(self.tree) - before
            if "error" not in answer:
                answer = self._answer(limit)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer | {"cpu": asdict(used)}

    def _answer(self, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        over = threading.Timer(limit, self._kill)
        over.start()
        try:
            line = self._process.stdout.readline()
        finally:
            over.cancel()
            over.join()
        if line:
            return json.loads(line)  # type: ignore[no-any-return]
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        status = self._process.poll()
        how = f"no answer within {limit:g} s" if status == -9 else f"it ended with status {status}"
        raise PeerFailed(f"{how}; see {self._log}")

    def _kill(self) -> None:
        below = []
        with suppress(psutil.NoSuchProcess):
            below = self.tree.children(recursive=True)
        for process in [self.tree, *below]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _end(self) -> None:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = self.tree.children(recursive=True)
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            self._kill()
            process.wait()
        # What it has left behind would disturb the next one.
        for left in psutil.wait_procs(below, timeout=5)[1]:
            with suppress(psutil.NoSuchProcess):
                left.kill()
        process.stdout.close()
        self._said.close()


class Peers:
    """Starts peers when they are asked for, and keeps them until they are ended. A context manager.

    path: see `PeerProcess`.
    """

    def __init__(self, python_of: Callable[[str], Path], logs: Path, path: str = str(ROOT)) -> None:
        self._python_of = python_of
        self._logs = logs
        self._path = path
        self._kept: dict[str, PeerProcess] = {}
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for name in list(self._kept):
            self.end(name)

    def get(self, name: str) -> PeerProcess:
        """The process of a peer, started if there is none."""
        kept = self._kept.get(name)
        if kept is not None and kept.alive:
            return kept
        if kept is not None:
            self.end(name)
        log = self._logs / f"{name}.log"
        process = PeerProcess(self._python_of(name), f"bench.peers.run_{name}", log, self._path)
        process.__enter__()
        self._kept[name] = process
        self.versions[name] = process.version
        return process

    def end(self, name: str) -> None:
        """End a peer, if it runs."""
        process = self._kept.pop(name, None)
        if process is not None:
            process.__exit__(None, None, None)
