"""The faults: what each does to a run that is under way. For the harness's thread.

A fault is planned by kind and by moment: how much of the job is answered, and some milliseconds after that.
`fire` does it, and says from when to when it held; None where there was nothing that it could harm.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from fuzz.chaos import processes
from fuzz.chaos.calls import Call
from fuzz.chaos.disk import SmallDisk
from fuzz.chaos.driver import Driver
from fuzz.chaos.durable import DurableLog
from fuzz.chaos.job import HELD_S, HOLD, KILL
from fuzz.chaos.places import environment
from fuzz.chaos.server import Server

KILLED = 15.0
"""Seconds within which what is killed has to be gone, with what worked for it."""
GROWTH = 2.0
"""Seconds to wait for the ledger to be written."""
CLOCK_STEP = 6 * 3600
STOP_LOCAL, STOP_CLUSTER = 2.0, 9.0
"""Seconds that a worker is stopped; on the cluster long enough for a second attempt to take over."""


@dataclass
class Scene:
    """The run under way, which a fault may harm."""

    driver: Driver
    server: Server
    folder: Path
    ledger: Path
    dice: random.Random
    log: DurableLog
    trap: Path
    disk: SmallDisk | None = None
    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """Actions that are due at a time of the monotonic clock: a stopped process goes on."""

    def do_due(self) -> None:
        """Do what is to be done by now."""
        now = time.monotonic()
        for when, do in [each for each in self.later if each[0] <= now]:
            do()
            self.later.remove((when, do))

    def callers(self) -> list[psutil.Process]:
        """The processes that call the service now: workers, or those that hold the calls of a stream."""
        return processes.calling(self.makers(), self.server.port)

    def makers(self) -> list[psutil.Process]:
        """The processes that can make calls."""
        family = self.driver.family()
        return [*processes.workers(family), *processes.holders(family)]

    def workers(self) -> list[psutil.Process]:
        """The Python workers that call the service now; all of them where another process calls for them."""
        callers = self.callers()
        return processes.workers(self.driver.family()) if processes.holders(callers) else callers


@dataclass
class Fired:
    """A fault that happened. Seconds of the monotonic clock.

    until: when the last of what was harmed was gone, or went on. durable: calls whose results the ledger had
    before, by number. harms: whether a finished call may be lost by it. pids: the processes that were harmed;
    None for all that were there, and nobody knows them.
    """

    kind: str
    at: float
    until: float
    detail: str
    harms: bool
    durable: set[int] = field(default_factory=set)
    pids: set[int] | None = field(default_factory=set)

    def hits(self, call: Call) -> bool:
        """Return True if it has harmed the caller of a call."""
        return self.pids is None or call.pid in self.pids


class Hit(NamedTuple):
    """The victim of a fault, and from when to when it was harmed, where that is not the time that it took."""

    detail: str
    at: float | None = None
    until: float | None = None
    pids: frozenset[int] | None = frozenset()


def fire(kind: str, scene: Scene) -> Fired | None:
    """Do it. Waits until what is killed is gone."""
    began = time.monotonic()
    hit = FAULTS[kind](scene)
    if hit is None:
        return None
    at = began if hit.at is None else hit.at
    until = time.monotonic() if hit.until is None else hit.until
    pids = None if hit.pids is None else set(hit.pids)
    return Fired(kind, at, until, hit.detail, kind in HARMING, pids=pids)


def _kill_worker(scene: Scene) -> Hit | None:
    return _kill_one(scene, scene.workers())


def _kill_writing_worker(scene: Scene) -> Hit | None:
    before = _bytes_below(scene.ledger)
    family = scene.makers()
    end = time.monotonic() + GROWTH
    while time.monotonic() < end:
        now = _bytes_below(scene.ledger)
        grown = [path for path, size in now.items() if size > before.get(path, 0)]
        if grown:
            return _kill_one(scene, _that_have_open(family, grown[0]))
    return None


def _kill_call_process(scene: Scene) -> Hit | None:
    return _kill_one(scene, processes.holders(scene.callers()))


def _kill_behind_state(scene: Scene) -> Hit | None:
    return _set_trap(scene, KILL, GROWTH)


def _hold_task(scene: Scene) -> Hit | None:
    # Spark gives a second attempt to another host only.
    return _set_trap(scene, HOLD, HELD_S) if scene.driver.place.roots() else None


def _set_trap(scene: Scene, what: str, seconds: float) -> Hit | None:
    """Returns when a worker has fallen into it and was killed, or was overtaken."""
    new = scene.trap.with_suffix(".new")
    new.write_text(what)
    new.rename(scene.trap)
    end = time.monotonic() + seconds
    while [*scene.trap.parent.glob("trap*")] and time.monotonic() < end:
        scene.do_due()
        time.sleep(0.005)
    for each in scene.trap.parent.glob("trap*"):
        with contextlib.suppress(FileNotFoundError):
            each.unlink()
            return None
    # A worker has removed it.
    return Hit("")


def _kill_executor(scene: Scene) -> Hit | None:
    return _kill_one(scene, processes.executors(scene.driver.family()))


def _kill_driver(scene: Scene) -> Hit | None:
    pids = _pids(scene.makers())
    at, left = scene.driver.kill()
    if left:
        raise OutliveError(f"{[process.pid for process in left]} outlived their driver")
    return Hit("", at, pids=pids)


def _lose_power(scene: Scene) -> Hit | None:
    hit = _kill_driver(scene)
    assert hit is not None
    return hit._replace(detail=f"{scene.log.cut()} bytes of the ledger were on no disk")


def _stop_worker(scene: Scene) -> Hit | None:
    # One that is stopped would go on with the end of the first stop.
    found = processes.not_stopped([*scene.workers(), *processes.holders(scene.callers())])
    if not found:
        return None
    victim = scene.dice.choice(found)
    seconds = STOP_CLUSTER if scene.driver.place.roots() else STOP_LOCAL
    try:
        victim.send_signal(signal.SIGSTOP)
    except processes.GONE:
        return None
    until = time.monotonic() + seconds

    def go_on() -> None:
        with contextlib.suppress(*processes.GONE):
            victim.send_signal(signal.SIGCONT)

    scene.later.append((until, go_on))
    return Hit(f"{victim.pid} for {seconds:g} s", until=until, pids=_pids([victim]))


def _service(mode: str, seconds: float) -> Callable[[Scene], Hit | None]:
    def do(scene: Scene) -> Hit | None:
        scene.server.command(mode, seconds)
        return Hit(f"for {seconds:g} s")

    return do


def _step_clock(scene: Scene) -> Hit | None:
    seconds = scene.dice.choice([-CLOCK_STEP, CLOCK_STEP])
    set_clock(scene.folder, seconds)
    return Hit(f"by {seconds:+} s")


def _compact(scene: Scene) -> Hit | None:
    if not _bytes_below(scene.ledger):
        return None
    # As a process of the job's own kind, so that what it syncs is written down as well.
    with subprocess.Popen(
        [sys.executable, "-m", "pillarbox", "ledger", "compact", str(scene.ledger)],
        env=environment(scene.folder, scene.driver.place.package),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as compacting:
        scene.log.compacting(compacting.pid)
        said, _ = compacting.communicate()
    return Hit(" ".join(said.split()[-20:]))


def _fill_disk(scene: Scene) -> Hit | None:
    if scene.disk is None:
        return None
    return Hit(f"{scene.disk.fill()} bytes", pids=None)


FAULTS: dict[str, Callable[[Scene], Hit | None]] = {
    "worker": _kill_worker,
    "writing worker": _kill_writing_worker,
    "call process": _kill_call_process,
    "worker behind state": _kill_behind_state,
    "slow task": _hold_task,
    "executor": _kill_executor,
    "driver": _kill_driver,
    "power loss": _lose_power,
    "stopped worker": _stop_worker,
    "service fails": _service("fail", 0.8),
    "service hangs": _service("hang", 1.2),
    "service resets": _service("reset", 0.8),
    "service late": _service("late", 1.2),
    "clock": _step_clock,
    "compaction": _compact,
    "full disk": _fill_disk,
}
HARMING = frozenset(
    {
        "worker",
        "writing worker",
        "call process",
        "executor",
        "driver",
        "power loss",
        "stopped worker",
        "full disk",
    }
)
KILLING = HARMING - {"stopped worker", "full disk"}
OF_STATE = ("call process", "worker behind state", "slow task")
"""Of jobs whose calls wait in Spark's state."""
OF_A_CLUSTER = ("executor", "slow task")
OF_A_LEDGER = frozenset({"compaction", "full disk", "power loss"})
OF_THE_DRIVER = frozenset({"driver", "power loss"})
"""After these there is another driver."""
JOB_END = "the job's end"
"""No fault of its own: a job has failed, and Spark ends its other tasks."""
ANYWHERE = tuple(kind for kind in FAULTS if kind not in (*OF_A_CLUSTER, "full disk", *OF_STATE))


def set_clock(folder: Path, seconds: int) -> None:
    """Move the wall clock of the Python processes of a harness."""
    # In place: the processes have the file mapped.
    with open(folder / "clock", "r+b") as file:
        file.write(struct.pack("<q", seconds * 10**9))


class OutliveError(Exception):
    """Raised where a killed process, or one that worked for it, is still there."""


def _kill_one(scene: Scene, candidates: list[psutil.Process]) -> Hit | None:
    if not candidates:
        return None
    victim = scene.dice.choice(candidates)
    harmed = processes.family([victim.pid])
    at = time.monotonic()
    processes.kill([victim])
    left = processes.wait_ended(harmed, KILLED)
    if left:
        raise OutliveError(f"{[process.pid for process in left]} outlived {victim.pid}")
    return Hit(str(victim.pid), at, pids=_pids(harmed))


def _pids(harmed: list[psutil.Process]) -> frozenset[int]:
    return frozenset(process.pid for process in harmed)


def _that_have_open(candidates: list[psutil.Process], path: str) -> list[psutil.Process]:
    """Through `/proc` itself, which is faster than psutil: the write is under way."""
    found = []
    for process in candidates:
        folder = f"/proc/{process.pid}/fd"
        with contextlib.suppress(OSError):
            for number in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(f"{folder}/{number}") == path:
                        found.append(process)
                        break
    return found


def _bytes_below(folder: Path) -> dict[str, int]:
    """The sizes of a ledger's segments."""
    sizes: dict[str, int] = {}
    waiting = [str(folder)]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.name.endswith(".arrow"):
                    sizes[entry.path] = entry.stat().st_size
    return sizes
