"""One run: a job, the faults that come over it, and what is found afterwards. For the harness's thread."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from fuzz.chaos import check
from fuzz.chaos.committed import (
    Departure,
    Row,
    committed_batches,
    committed_rows,
    departures,
    durable_calls,
)
from fuzz.chaos.disk import SmallDisk
from fuzz.chaos.driver import Driver
from fuzz.chaos.durable import DurableLog
from fuzz.chaos.faults import JOB_END, OF_A_LEDGER, OF_THE_DRIVER, Fired, Scene, fire, set_clock
from fuzz.chaos.job import ATTEMPT_TIMEOUT, LANES, STREAMS, Job
from fuzz.chaos.places import SYNCED, Place
from fuzz.chaos.plan import Plan, Planned
from fuzz.chaos.server import Server
from fuzz.chaos.stacks import dump_stacks

STILL = 240.0
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
STARTING = 60.0
"""The same for the calls that outlive tasks: until the next run of the query opens their buckets."""
TICK = 0.01
READ = 0.25
"""Seconds between two looks at what has been synced: a stream's ledger forgets what is committed."""


class HungError(Exception):
    """A run that did not end in time."""


@dataclass
class Outcome:
    """The outcome of a run. seconds: it took. starts: of the job. failures: why it had to be started again.

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
        calm = self._expect(plan, contender)
        outcome, _ = _Run(self, plan, contender).play()
        outcome.verdict.wrong[:0] = [f"without a fault: {wrong}" for wrong in calm]
        return outcome

    def _expect(self, plan: Plan, contender: str) -> list[str]:
        """Play the same job without faults, before the first one with them; returns what is wrong with it."""
        which = (plan.kind, plan.rows)
        if which in self.expected:
            return []
        calm = Plan(0, "calm", plan.kind, True, plan.rows, plan.parts, plan.latency / 4, 0.0)
        calm = replace(calm, checkpoint_format=plan.checkpoint_format)
        self.expected[which] = Counter()
        outcome, rows = _Run(self, calm, contender).play()
        self.expected[which] = Counter((row.id, row.answer) for file in rows for row in file)
        if sorted(row for row, _ in self.expected[which].elements()) != sorted(calm.ids):
            raise HungError(f"the fault-free run gave {self.expected[which].total()} of {plan.rows} rows")
        return outcome.verdict.wrong


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
                checkpoint_format=plan.checkpoint_format,
            )
            scene = Scene(
                self._session.driver(),
                server,
                self._session.folder,
                ledger,
                random.Random(plan.seed + " dice"),
                DurableLog(self._session.folder / SYNCED, ledger),
                job.trap,
                disk,
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
            outcome, rows = self._judge(job, scene, seconds)
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
        began = moved = read = time.monotonic()
        calls = 0
        keys = len(set(self._plan.ids))
        self._start(job, scene)
        while True:
            heard = scene.driver.heard(TICK)
            scene.server.log.read()
            now = time.monotonic()
            if heard is not None or len(scene.server.log.calls) > calls:
                calls, moved = len(scene.server.log.calls), now
            if now >= read + READ and self._contender == "ledger":
                scene.log.read()
                read = now
            scene.do_due()
            if heard is not None:
                if heard[0] == "done":
                    self._skipped += [planned.kind for planned in waiting]
                    return
                self._failed(heard, scene)
                self._start(job, scene)
            if now > moved + STILL or now > began + LIMIT:
                raise self._hung(scene, now - moved)
            if waiting:
                if due is None and len(scene.server.log.answered) >= waiting[0].share * keys:
                    due = now + waiting[0].delay
                if due is not None and now >= due:
                    if self._fire(waiting[0], scene):
                        waiting.pop(0)
                        due, moved = None, time.monotonic()
                    if self._session._driver is None:
                        scene.driver = self._session.driver()
                        self._start(job, scene)

    def _hung(self, scene: Scene, still: float) -> HungError:
        """Record the stacks of all processes; the driver is ended, and the run's folder stays."""
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
        lingering = STARTING if self._plan.kind == "state" else LINGERING
        self._fired.append(Fired(JOB_END, now - FAILING, now + lingering, "", True))
        if heard[0] == "died":
            self._session.drop_driver()
            scene.driver = self._session.driver()

    def _fire(self, planned: Planned, scene: Scene) -> bool:
        """Try the fault; True if it was done or cannot be."""
        kind = planned.kind
        if self._contender == "gather" and kind == "writing worker":
            kind = "worker"
        durable: set[int] = set()
        if self._contender == "ledger":
            scene.log.read()
            # A process that ends leaves what it has written; without power only the disk counts.
            durable = set(scene.log.durable()) if kind == "power loss" else durable_calls(scene.ledger)
        if kind in OF_THE_DRIVER:
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

    def _judge(self, job: Job, scene: Scene, seconds: float) -> tuple[Outcome, list[list[Row]]]:
        verdict = check.Verdict()
        plan, log = self._plan, scene.server.log
        calls = log.calls
        rows = committed_rows(job.output)
        has_two = plan.kind in ("twice", "state")
        outputs = [rows, committed_rows(job.second_output)] if has_two else [rows]
        for output in outputs:
            check.check_output(
                verdict,
                output,
                # Of the fault-free run itself nothing is known yet.
                self._session.expected[plan.kind, plan.rows]
                or Counter((row.id, row.answer) for file in rows for row in file),
                calls,
                plan.order_of if plan.ordered and plan.has_known_parts else None,
            )
        counted = check.Verdict()
        judged = calls.values(), self._fired, job.loss_window, ATTEMPT_TIMEOUT
        equal_keys = plan.kind == "repeated"
        scene.log.read()
        check.check_calls(counted, *judged, equal_keys=equal_keys, waits=scene.log.waits())
        check.check_given_up(counted, *judged, second_attempts=self._session.place.has_second_attempts)
        check.check_durable(counted, calls, self._fired, job.loss_window, equal_keys=equal_keys)
        if self._contender == "ledger":
            check.check_departures(
                counted,
                [*departures(job.departed), *self._committed(outputs)],
                scene.log.durable(),
                written=scene.log.written(),
                copied=scene.log.copied(),
                expires=plan.kind in STREAMS,
            )
        if plan.kind == "state":
            check.check_sinks(counted, *map(committed_batches, (job.output, job.second_output)))
        if any(fault.kind == "full disk" for fault in self._fired):
            check.check_reason(counted, self._failures)
        # For calls by hand nothing of this is promised.
        promised = counted.wrong if self._contender == "ledger" else []
        verdict = replace(
            counted, lost=verdict.lost, doubled=verdict.doubled, wrong=[*verdict.wrong, *promised]
        )
        recoveries = [
            (fault.kind, taken)
            for fault in self._fired
            if plan.has_known_parts and (taken := check.recovery(fault, log, plan.part_of)) is not None
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
            list(log.answered.values()),
            self._failures,
            self._skipped,
        )
        return outcome, rows

    @staticmethod
    def _committed(outputs: list[list[list[Row]]]) -> list[Departure]:
        """The rows of the output: they have left by now."""
        now = time.monotonic()
        return [Departure(row.id, row.call, now) for rows in outputs for file in rows for row in file]


def write_input(job: Job) -> None:
    """The stream's files: rows in the order of their ids, and files in the order of their names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if job.kind not in STREAMS:
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
