"""The harness's side of a driver: starts one, gives it jobs, hears what became of them, ends it."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from fuzz.chaos import processes
from fuzz.chaos.driver_process import MARK
from fuzz.chaos.job import Job
from fuzz.chaos.places import Place, environment

TICK_S = 0.05
STOP_TIMEOUT_S = 30.0
"""Seconds within which the workers of a driver that was killed have to be gone."""


class Driver:
    """A driver process on a place. What it and its Java process say otherwise goes to `driver.log`."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self._heard: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        # Appended to: the next driver of this folder writes there as well.
        self._log = open(folder / "driver.log", "a")  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fuzz.chaos.driver_process",
                place.master,
                json.dumps(place.settings),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
            env=environment(folder, place.package),
            text=True,
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._listen, name="chaos-driver", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                what, detail = json.loads(line[len(MARK) :])
                self._heard.put((what, detail))
            else:
                self._log.write(line)
                self._log.flush()
        self._process.wait()
        self._heard.put(("died", str(self._process.returncode)))

    def submit(self, job: Job) -> None:
        """Have a job run, after those before."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()

    def heard(self, patience: float) -> tuple[str, str] | None:
        """The next thing that it says: "ready", "done", "failed", "died"; None after `patience` seconds."""
        try:
            return self._heard.get(timeout=patience)
        except queue.Empty:
            return None

    def own(self) -> list[psutil.Process]:
        """The driver's processes: Python, Java, and in local mode the workers."""
        return processes.family([self._process.pid])

    def family(self) -> list[psutil.Process]:
        """All processes that work for the driver, on the place's machines as well."""
        return processes.family([self._process.pid, *self.place.roots()])

    def kill(self) -> tuple[float, list[psutil.Process]]:
        """SIGKILL for the driver, Java first.

        When that was, in seconds of the monotonic clock; those of its workers that have not ended thereupon.
        """
        family, own = self.family(), self.own()
        makers = [*processes.workers(family), *processes.holders(family)]
        below = [*makers, *processes.executors(family)]
        victims = [*processes.javas(own), psutil.Process(self._process.pid)]
        at = time.monotonic()
        processes.kill(process for process in victims if process not in below)
        self._close()
        return at, processes.wait_ended(below, STOP_TIMEOUT_S)

    def stop(self) -> None:
        """End it, with all that it has started; the place's own processes are left alone."""
        own = [*self.own(), *processes.workers(self.family())]
        processes.kill(own)
        self._close()
        processes.wait_ended(own, STOP_TIMEOUT_S)

    def _close(self) -> None:
        self._process.wait()
        while self._thread.is_alive():
            # They hold its output open.
            processes.kill(processes.left_unstarted())
            self._thread.join(TICK_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._log.close()
