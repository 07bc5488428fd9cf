"""The holder of a run in an object store: one job works on it at a time, and a second one is told which.

A record beside the results says who it is, and is written on a condition only. The job renews it; where
nobody has for `HolderTimes.expiry`, it is taken over. Who waits measures that by a clock of its own, as it
sees that the record stays the same, so that clocks need not agree; a process of the same machine that is
known to be dead is not waited for. Who was stopped and comes back finds the record of another, and calls no
more. Idea: Gray and Cheriton, "Leases", 1989. Any thread.
"""

# A job is, in Spark, what one plan, or one action, of an application does: its tasks, their retries and
# speculative copies have one record, that each of them may write. Why the tasks renew it, and the driver only
# until the first of them has come: it is they who call. As long as a task of a driver that died goes on, the
# run is not free; and an application that lives on after its action holds nothing.
#
# Why a record that was freed stays: a store deletes whatever is there, so that one who was stopped on the way
# would delete the record of the next.
#
# Why one of another machine is refused when it has seen the first renew its record, and not before: until
# then that one may be dead. It takes one interval of renewals.

from __future__ import annotations

import dataclasses
import datetime
import getpass
import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from pillarbox.ledger.errors import LedgerError, LedgerHeldError, printable
from pillarbox.ledger.objects.conditional import ConditionalStore, Version

log = logging.getLogger("pillarbox")

HOLDER = ".holder"
"""The name of the record in the folder of a scope."""
FORMAT = 1
"""Of the record. One of a later version is not understood: it counts as held, and only its changes do."""
RENEWAL_INTERVAL_S = 5.0
"""Seconds between two renewals."""
BELIEF_S = 12.0
"""Seconds after a renewal for which a process takes its job for the holder. Below `REST_S` and `EXPIRY_S`,
so that a process that was stopped finds its time over before another job can have taken over."""
EXPIRY_S = 60.0
"""Seconds for which nobody must have renewed a record before another job takes over."""
REST_S = 15.0
"""The same between two actions of one application, and for tasks whose driver is known to be dead: it shows
that none of them calls any more."""
WATCH_INTERVAL_S = 0.25
"""Seconds between two looks of one who waits."""
PLANNED_S = 60.0
"""Seconds for which a driver holds a run that it has planned, if no job of Spark is active."""
ELSEWHERE = -1
"""The stage of calls that are made outside of the stages of Spark."""
QUOTED = 600
"""Characters of a text of another job's record that an error quotes."""


class HolderTimes(NamedTuple):
    """The times of a holder, in seconds; the constants of this module say what each is."""

    renewal: float = RENEWAL_INTERVAL_S
    belief: float = BELIEF_S
    expiry: float = EXPIRY_S
    rest: float = REST_S
    watch: float = WATCH_INTERVAL_S
    planned: float = PLANNED_S


HOLDER_TIMES = HolderTimes()


def clock() -> float:
    """Seconds of a clock that goes on while a process is stopped, and on Linux while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


# -- who -----------------------------------------------------------------------------------------


class ProcessId(NamedTuple):
    """A process, so that another on the same machine can tell whether it lives. Empty texts: not known."""

    number: int
    started: str
    """The time of its start, as the kernel counts."""
    namespace: str
    """The kernel and the namespace in which it has this number."""

    @classmethod
    def own(cls) -> ProcessId:
        """That of this process."""
        namespace = started = ""
        with suppress(OSError):
            with open("/proc/sys/kernel/random/boot_id") as file:
                boot = file.read().strip()
            namespace = f"{boot} {os.readlink('/proc/self/ns/pid')}"
            started = _look_at(os.getpid())[1]
        return cls(os.getpid(), started, namespace)

    def is_running(self) -> bool | None:
        """Return whether it runs; None if it is not known, as of another machine, or if it is stopped."""
        own = ProcessId.own()
        if not own.namespace or self.namespace != own.namespace or not self.started:
            return None
        try:
            state, started = _look_at(self.number)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        # A zombie has ended, though its parent has not asked for it yet.
        if started != self.started or state in "ZX":
            return False
        return None if state in "tT" else True


def _look_at(process: int) -> tuple[str, str]:
    """The state of a process, and its start in ticks since that of the machine. Raises OSError."""
    with open(f"/proc/{process}/stat") as file:
        # The name of its program, in brackets, may be anything.
        fields = file.read().rpartition(")")[2].split()
    return fields[0], fields[19]


@dataclass(frozen=True)
class Holder:
    """A job that works on a run. Picklable.

    application, plan: names by chance of its process, and of its plan. program: in words, with the id of a
    Spark application. action: which action of the application it is; "" for a plan that nothing has executed
    yet. stage: of Spark, for the driver to look whether it has ended; `ELSEWHERE` where other processes than
    `process` call, and None where it does so itself, and frees the run at its end.
    """

    application: str
    plan: str
    host: str
    process: ProcessId
    user: str
    program: str
    action: str = ""
    stage: int | None = None
    since: str = ""
    renewed: str = ""
    phase: str = "calling"
    """Planned, calling, or free."""

    @classmethod
    def own(cls, plan: str, program: str = "") -> Holder:
        """That of a job of this process."""
        user = ""
        # An id without a name, as in containers.
        with suppress(Exception):
            user = getpass.getuser()
        if not program:
            path = sys.argv[0] if sys.argv else ""
            # `python -m package` is known by its package.
            path = os.path.dirname(path) if os.path.basename(path) == "__main__.py" else path
            program = os.path.basename(path) or "python"
        return cls(_application(), plan, socket.gethostname(), ProcessId.own(), user, program, plan)

    def content(self) -> bytes:
        """The record, which differs from every other one."""
        about = {**dataclasses.asdict(self), "process": list(self.process)}
        return json.dumps({"format": FORMAT, **about, "write": secrets.token_hex(8)}).encode()

    @classmethod
    def parse(cls, content: bytes) -> Holder:
        """The holder of a record; one with a program in words alone where the record is not understood."""
        try:
            about = json.loads(content)
            if about["format"] != FORMAT:
                return _unknown(f"a Pillarbox whose records have the format {about['format']!r}")
            names = {each.name for each in dataclasses.fields(cls)}
            number, started, namespace = about["process"]
            known = {name: value for name, value in about.items() if name in names}
            found = cls(**{**known, "process": ProcessId(int(number), str(started), str(namespace))})
        except (ValueError, KeyError, TypeError):
            return _unknown("a holder whose record cannot be read")
        texts = (found.application, found.plan, found.host, found.user, found.program, found.action)
        return found if all(isinstance(text, str) for text in texts) else _unknown("a holder without a name")

    def is_job_of(self, other: Holder) -> bool:
        """True if this is one job with `other`: of one plan, or one action of one application."""
        if self.application != other.application or not self.application:
            return False
        return self.plan == other.plan or (self.action == other.action != "")

    def __str__(self) -> str:
        user = f" of {self.user}" if self.user else ""
        where = f" on {self.host} (process {self.process.number})" if self.host else ""
        said = f"{self.program}{user}{where}, since {self.since or 'a time that is not known'}"
        said += f", last renewed {self.renewed}" if self.renewed else ""
        return printable(said if len(said) <= QUOTED else said[:QUOTED] + "...")


def _unknown(program: str) -> Holder:
    return Holder("", "", "", ProcessId(0, "", ""), "", program)


_own: dict[int, str] = {}


def _application() -> str:
    """The name by chance of this process, and of all that its jobs send elsewhere."""
    return _own.setdefault(os.getpid(), secrets.token_hex(8))


def _now() -> str:
    return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


# -- a run ---------------------------------------------------------------------------------------


class RunHold:
    """The use of a run's record by one process. Any thread.

    run: the run in words. clock, pause: for tests; seconds. `acquire` first; then `renew` about every
    `times.renewal` seconds, `check` before each call, and `free` at the end.
    """

    def __init__(
        self,
        store: ConditionalStore,
        run: str,
        holder: Holder,
        times: HolderTimes = HOLDER_TIMES,
        *,
        clock: Callable[[], float] = clock,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.holder = holder
        self.failure: LedgerError | None = None
        """The error of a job that has lost the run."""
        self.is_handed_on = False
        """True where a driver need not renew any more what it has planned: its tasks do, or another plan."""
        self._store = store
        self._run = run
        self._times = times
        self._clock = clock
        self._pause = pause
        self._mutex = threading.Lock()
        self._seen: Version | None = None
        self._looked_at = self._believed_until = float("-inf")

    def acquire(self, is_over: Callable[[Holder], bool | None] = lambda holder: None) -> None:
        """Take the run, or join the job that has it. Waits until it is known whether a holder lives.

        is_over: says of another job of this application whether its calls have ended; None if not known, so
        that its renewals tell.
        Raises LedgerHeldError for a run that another job holds, LedgerError and OSError.
        """
        watched: Version | None = None
        since = 0.0
        while True:
            # spec: RunHolder!See
            began = self._clock()
            version = self._store.read(HOLDER)
            now = self._clock()
            other = None if version is None else Holder.parse(version.content)
            with self._mutex:
                if other is None or not self._is_own(other):
                    self._seen, self._looked_at = version, began
                elif self._see(other, version, began):
                    return
            is_free = True if other is None else self._is_free(other, is_over)
            limit = self._times.expiry
            if other is not None and not is_free:
                is_orphaned = not self._is_sibling(other) and other.process.is_running() is False
                if is_orphaned or self._is_sibling(other):
                    limit = self._times.rest
                if is_free is False or (watched not in (None, version) and not is_orphaned):
                    # spec: RunHolder!Refuse
                    raise self._held(other)
                if watched is None:
                    log.warning(
                        "%s is held by %s: waiting until it is known whether that lives", self._run, other
                    )
                if watched != version:
                    watched, since = version, now
            if is_free or now - since >= limit:
                with self._mutex:
                    # spec: RunHolder!Take
                    if self._write(version, other):
                        return
                # Another has written since the look: it is looked at.
                since = self._clock()
            else:
                self._pause(self._times.watch)

    def renew(self) -> None:
        """Look whose the run is, and write that it is still this job's. Raises LedgerError and OSError.

        `failure` is set when it is another's.
        """
        with self._mutex:
            if self.failure is not None:
                return
            began = self._clock()
            version = self._store.read(HOLDER)
            other = None if version is None else Holder.parse(version.content)
            if other is None or not self._is_own(other):
                # spec: RunHolder!Lose
                self.failure = self._lost(other)
                return
            if self.holder.phase == "planned" and (
                other.phase == "calling" or not other.is_job_of(self.holder)
            ):
                self.is_handed_on = True
                return
            if not self._see(other, version, began):
                # spec: RunHolder!Renew
                self._write(version, other)

    def check(self) -> None:
        """Raise LedgerError if this job is not known to hold the run. Costs a look at the clock."""
        if self.failure is None and self._clock() < self._believed_until:
            return
        reason = ""
        # It was stopped for a while. A first look may see what another process has written, a second writes.
        for _ in range(3):
            try:
                self.renew()
            except (OSError, LedgerError) as error:
                reason = f": {error}"
            if self.failure is not None:
                raise self.failure
            if self._clock() < self._believed_until:
                return
        raise LedgerError(
            f"{self._run}: its record could not be renewed for {self._times.belief:g} s, so that another job "
            f"may take it over, and no more calls are made{reason}"
        )

    def free(self, *, of_application: bool = False) -> None:
        """Let others have the run at once, if it is this job's, or one of this application.

        Raises LedgerError and OSError.
        """
        with self._mutex:
            # spec: RunHolder!Free
            self._believed_until = float("-inf")
            version = self._store.read(HOLDER)
            if version is None:
                return
            other = Holder.parse(version.content)
            # What a driver has planned is not its any more when its tasks call.
            is_own = other.is_job_of(self.holder) and other.phase == self.holder.phase
            is_own = is_own or (of_application and self._is_sibling(other))
            if is_own and other.phase != "free":
                ended = dataclasses.replace(other, phase="free", renewed=_now())
                self._store.write(HOLDER, ended.content(), version)

    # -- inside -------------------------------------------------------------------------------

    def _is_sibling(self, other: Holder) -> bool:
        return other.application == self.holder.application

    def _is_own(self, other: Holder) -> bool:
        """True if the run is this job's: what the same application has planned takes nothing from it."""
        if other.phase == "free":
            return False
        return other.is_job_of(self.holder) or (self._is_sibling(other) and other.phase == "planned")

    def _is_free(self, other: Holder, is_over: Callable[[Holder], bool | None]) -> bool | None:
        """Return whether the run may be taken; None if that is not known yet."""
        if other.phase == "free" or self._is_own(other):
            return True
        if self._is_sibling(other):
            return is_over(other)
        # Who calls for itself, or has planned to, renews the record or frees it. Tasks may outlive their
        # driver for a while, and renew it too: they call.
        is_alone = other.phase == "planned" or other.stage is None
        is_running = other.process.is_running() if is_alone else None
        return None if is_running is None else not is_running

    def _see(self, other: Holder, version: Version | None, began: float) -> bool:
        """Look at a record of this job; False if this process has to write it.

        It need not where another one has done so, in this phase, since the look before this one.

        What has changed was written after that look: so from then on it is this job's. Of a first look that
        is not known.
        """
        # spec: RunHolder!SeeOwn
        if version != self._seen:
            self._believed_until = max(self._believed_until, self._looked_at + self._times.belief)
            self._seen, self._looked_at = version, began
            return self._clock() < self._believed_until and other.phase == self.holder.phase
        return False

    def _write(self, expected: Version | None, before: Holder | None) -> bool:
        """Write that this job holds the run; False if another has written since `expected`."""
        is_same = before is not None and before.phase != "free" and before.is_job_of(self.holder)
        since = before.since if before is not None and is_same else _now()
        holder = dataclasses.replace(self.holder, since=since, renewed=_now())
        sent = self._clock()
        written = self._store.write(HOLDER, holder.content(), expected)
        if written is None:
            return False
        self._seen, self._looked_at = written, sent
        # From when it was sent: the store may have written it at once, and answered late.
        self._believed_until = max(self._believed_until, sent + self._times.belief)
        return True

    def _held(self, other: Holder) -> LedgerHeldError:
        return LedgerHeldError(
            f"{self._run} is held by another job: {other}. Wait for its end, or end it: then this job finds "
            "its results and calls what is missing. The run of a job that has died is taken over after "
            f"{self._times.expiry:g} s. Jobs of one run that have no row in common may work at a time with "
            "Ledger(..., exclusive=False)"
        )

    def _lost(self, other: Holder | None) -> LedgerHeldError:
        if other is None:
            by = "its record was deleted, as when a run expires"
        elif other.phase == "free":
            by = f"another job has taken it over, and has ended: {other}"
        else:
            by = f"another job has taken it over: {other}"
        return LedgerHeldError(
            f"{self._run} is not this job's any more; {by}. A job that does not renew its record for "
            f"{self._times.expiry:g} s, as when it is stopped, loses its run. It makes no more calls: run it "
            "again after the other's end, and it finds all results"
        )
