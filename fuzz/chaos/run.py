"""One run: a job, the faults that come over it, and what is found afterwards. For the harness's thread."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from fuzz.chaos import check
from fuzz.chaos.committed import Row, committed_rows, durable_calls
from fuzz.chaos.disk import SmallDisk
from fuzz.chaos.driver import Driver
from fuzz.chaos.faults import OF_A_LEDGER, Fired, Scene, fire, set_clock
from fuzz.chaos.job import ATTEMPT_TIMEOUT, LANES, Job
from fuzz.chaos.places import Place
from fuzz.chaos.plan import Plan, Planned
from fuzz.chaos.server import Server
from fuzz.chaos.stacks import dump_stacks

STILL = 120.0
"""Seconds without a call, a fault or a word of the driver after which a run hangs."""
LIMIT = 900.0
"""Seconds that a run may take in all."""
READY = 120.0
STARTS = 8
"""Times that a job is started anew after it failed, at most."""
FAILING = 0.5
"""Seconds between the end of a job's tasks and the driver's word that it has failed, at most."""
LINGERING = 6.0
"""Seconds after that word for which a task of the job may go on, at most; 4 were seen."""
TICK = 0.01


class HungError(Exception):
    """A run that did not end in time."""


@dataclass
class Outcome:
    """What came of a run. seconds: it took. starts: of the job. failures: why it had to be started again.

    first_answers: times of the monotonic clock at which rows were answered for the first time.
    """

    plan: Plan
    contender: str
    place: str
    verdict: check.Verdict
    fired: list[Fired]
    recoveries: list[tuple[str, float]]
    seconds: float
    starts: int
    first_answers: list[float]
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class Session:
    """A place with a driver, which is started when it is needed and is used for one run after the other.

    expected: the rows of the fault-free runs, by kind and number of rows. say: is told what happens.
    """

    def __init__(self, place: Place, folder: Path, say: Callable[[str], object]) -> None:
        self.place = place
        self.folder = folder
        self.say = say
        self.expected: dict[tuple[str, int], Counter[tuple[int, int]]] = {}
        self._driver: Driver | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop_driver()

    def driver(self) -> Driver:
        """A driver that is ready."""
        if self._driver is None:
            self._driver = Driver(self.place, self.folder)
            heard = self._driver.heard(READY)
            if heard is None or heard[0] != "ready":
                raise HungError(f"no driver: {heard}; see {self.folder / 'driver.log'}")
        return self._driver

    def forget_driver(self) -> None:
        """It has been killed."""
        self._driver = None

    def drop_driver(self) -> None:
        """End it, if there is one."""
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    def play(self, plan: Plan, contender: str) -> Outcome:
        """Play a run. Raises HungError."""
        self._expect(plan, contender)
        return self._play(plan, contender)

    def _expect(self, plan: Plan, contender: str) -> None:
        """The same job without faults, before the first one with them."""
        which = (plan.kind, plan.rows)
        if which in self.expected:
            return
        calm = Plan(0, "calm", plan.kind, True, plan.rows, plan.parts, plan.latency / 4, 0.0)
        self.expected[which] = Counter()
        _, rows = _Run(self, calm, contender).play()
        self.expected[which] = Counter((row.id, row.answer) for file in rows for row in file)
        if sorted(row for row, _ in self.expected[which]) != list(range(plan.rows)):
            raise HungError(f"the fault-free run gave {self.expected[which].total()} of {plan.rows} rows")

    def _play(self, plan: Plan, contender: str) -> Outcome:
        outcome, _ = _Run(self, plan, contender).play()
        return outcome


class _Run:
    """The state of one run."""

    def __init__(self, session: Session, plan: Plan, contender: str) -> None:
        self._session = session
        self._plan = plan
        self._contender = contender
        self._folder = session.folder / f"run-{plan.number}-{contender}"
        self._fired: list[Fired] = []
        self._failures: list[str] = []
        self._skipped: list[str] = []
        self._starts = 0

    def play(self) -> tuple[Outcome, list[list[Row]]]:
        plan = self._plan
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        with ExitStack() as stack:
            server = Server(
                self._folder,
                random.Random(plan.seed).getrandbits(32),
                latency=plan.latency,
                badness=plan.badness,
            )
            stack.enter_context(server)
            disk = stack.enter_context(SmallDisk(self._folder / "disk")) if plan.small_disk else None
            if disk is not None and disk.reason:
                self._skipped.append(f"full disk: {disk.reason}")
                disk = None
            ledger = (self._folder if disk is None else disk.folder) / "ledger"
            scene = Scene(
                self._session.driver(),
                server,
                self._session.folder,
                ledger,
                random.Random(plan.seed + " dice"),
                disk,
            )
            job = Job(
                plan.kind,
                self._contender,
                plan.ordered,
                plan.rows,
                plan.parts,
                str(self._folder),
                str(ledger),
                f"run {plan.number}",
                server.url,
            )
            write_input(job)
            began = time.monotonic()
            try:
                self._drive(job, scene)
            finally:
                for _, do in scene.later:
                    do()
                set_clock(self._session.folder, 0)
            seconds = time.monotonic() - began
            server.log.read()
            outcome, rows = self._judge(job, server, seconds)
        if not outcome.verdict.wrong:
            shutil.rmtree(self._folder)
        return outcome, rows

    def _drive(self, job: Job, scene: Scene) -> None:
        waiting = [
            planned
            for planned in self._plan.faults
            if self._contender == "ledger" or planned.kind not in OF_A_LEDGER
        ]
        due: float | None = None
        began = moved = time.monotonic()
        calls = 0
        self._start(job, scene)
        while True:
            heard = scene.driver.heard(TICK)
            scene.server.log.read()
            now = time.monotonic()
            if heard is not None or len(scene.server.log.calls) > calls:
                calls, moved = len(scene.server.log.calls), now
            for when, do in [each for each in scene.later if each[0] <= now]:
                do()
                scene.later.remove((when, do))
            if heard is not None:
                if heard[0] == "done":
                    self._skipped += [planned.kind for planned in waiting]
                    return
                self._failed(heard, scene)
                self._start(job, scene)
            if now > moved + STILL or now > began + LIMIT:
                raise self._hung(scene, now - moved)
            if waiting:
                if due is None and len(scene.server.log.answered) >= waiting[0].share * job.rows:
                    due = now + waiting[0].delay
                if due is not None and now >= due:
                    if self._fire(waiting[0], scene):
                        waiting.pop(0)
                        due, moved = None, time.monotonic()
                    if self._session._driver is None:
                        scene.driver = self._session.driver()
                        self._start(job, scene)

    def _hung(self, scene: Scene, still: float) -> HungError:
        """What everybody does; the driver is ended, and the run's folder stays."""
        stacks = dump_stacks(scene.driver.family(), self._session.folder)
        self._session.drop_driver()
        return HungError(
            f"run {self._plan.number} of seed {self._plan.seed!r} hangs, nothing has happened for "
            f"{still:.0f} s; faults: {[(fault.kind, fault.detail) for fault in self._fired]}\n{stacks}"
        )

    def _start(self, job: Job, scene: Scene) -> None:
        self._starts += 1
        if self._starts > STARTS:
            raise HungError(f"the job was started {STARTS} times, and failed: {self._failures[-1][:2000]}")
        scene.driver.submit(job)

    def _failed(self, heard: tuple[str, str], scene: Scene) -> None:
        """A failed job is started anew, as whoever watches over jobs does; a full disk gets room before."""
        now = time.monotonic()
        self._failures.append(f"{heard[0]}: {heard[1]}")
        self._session.say(f"    the job {heard[0]}: {shortened(heard[1])}")
        if scene.disk is not None:
            scene.disk.free()
            for fault in self._fired:
                if fault.kind == "full disk":
                    fault.until = now
        # A task that waits for its Python worker is interrupted before, or some seconds after, Spark says so.
        self._fired.append(Fired("the job's end", now - FAILING, now + LINGERING, "", True))
        if heard[0] == "died":
            self._session.drop_driver()
            scene.driver = self._session.driver()

    def _fire(self, planned: Planned, scene: Scene) -> bool:
        """Whether it was done, or cannot be."""
        kind = planned.kind
        if self._contender == "gather" and kind == "writing worker":
            kind = "worker"
        durable = durable_calls(scene.ledger) if self._contender == "ledger" else set()
        if kind == "driver":
            self._session.forget_driver()
        fired = fire(kind, scene)
        if fired is None:
            return kind == "full disk"
        fired.durable = durable
        self._fired.append(fired)
        self._session.say(
            f"    {len(scene.server.log.answered):>6} rows answered, {len(durable):>6} durable: "
            f"{fired.kind} {fired.detail}"
        )
        return True

    def _judge(self, job: Job, server: Server, seconds: float) -> tuple[Outcome, list[list[Row]]]:
        verdict = check.Verdict()
        plan, calls = self._plan, server.log.calls
        rows = committed_rows(job.output)
        expected = self._session.expected[plan.kind, plan.rows]
        check.check_output(
            verdict,
            rows,
            # Of the fault-free run itself nothing is known yet.
            expected or Counter((row.id, row.answer) for file in rows for row in file),
            calls,
            plan.order_of if plan.ordered else None,
        )
        counted = check.Verdict()
        check.check_calls(counted, calls.values(), self._fired, job.loss_window, ATTEMPT_TIMEOUT)
        check.check_durable(counted, calls, self._fired)
        if any(fault.kind == "full disk" for fault in self._fired):
            check.check_reason(counted, self._failures)
        for name in ("answered", "at_stake", "in_flight", "in_window", "concurrent", "paid_again", "oldest"):
            setattr(verdict, name, getattr(counted, name))
        if self._contender == "ledger":
            # Nothing is promised for the other.
            verdict.wrong += counted.wrong
        recoveries = [
            (fault.kind, taken)
            for fault in self._fired
            if (taken := check.recovery(fault, server.log, plan.part_of)) is not None
        ]
        outcome = Outcome(
            plan,
            self._contender,
            self._session.place.name,
            verdict,
            self._fired,
            recoveries,
            seconds,
            self._starts,
            list(server.log.answered.values()),
            self._failures,
            self._skipped,
        )
        return outcome, rows


def write_input(job: Job) -> None:
    """The stream's files: rows in the order of their ids, and files in the order of their names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if job.kind == "batch":
        return
    job.input.mkdir(parents=True)
    share = job.rows // job.parts
    for part in range(job.parts):
        ids = range(part * share, (part + 1) * share)
        columns = {
            "id": pa.array(ids, pa.int64()),
            "lane": pa.array([key % LANES for key in ids], pa.int64()),
        }
        pq.write_table(pa.table(columns), job.input / f"{part:04}.parquet")


def shortened(text: str) -> str:
    """The line of an error that says most."""
    lines = [line.strip() for line in text.splitlines() if "Error" in line or "Exception" in line]
    return (lines[-1] if lines else text)[:200]
