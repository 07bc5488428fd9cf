"""The runs that this process holds: its sessions share a record, a thread renews it, the end of it frees it.

A task joins a run before it looks for results, and leaves it at its end. A driver holds what it has planned
until the first task has come. Any thread. A fork holds nothing of its parent's.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.format import VERSION
from pillarbox.ledger.keys import Scope
from pillarbox.ledger.ledger import Ledger
from pillarbox.ledger.objects.conditional import conditional_store
from pillarbox.ledger.objects.holder import (
    ELSEWHERE,
    HOLDER_TIMES,
    Holder,
    HolderTimes,
    ProcessId,
    RunHold,
)
from pillarbox.redaction import shown_address

log = logging.getLogger("pillarbox")

TIMES = HOLDER_TIMES
"""The times of jobs that join or hold a run from now on."""


def run_hold(ledger: Ledger, scope: Scope, holder: Holder, times: HolderTimes) -> RunHold:
    """The use of the record that says which job works on a run. Any thread.

    Raises LedgerError where nothing can be written on a condition; the message says what to do.
    """
    filesystem, base = ledger.opened()
    store = conditional_store(filesystem, "/".join((base, f"v{VERSION}", scope.path)))
    place = shown_address(ledger.location)
    return RunHold(store, f"run={scope.run!r}, uid={scope.uid!r} in {place}", holder, times)


class _Shared:
    """One record, its users in this process, and the thread that renews it."""

    def __init__(self, hold: RunHold, times: HolderTimes) -> None:
        self.hold = hold
        # Weak: a session that is dropped unclosed leaves, too.
        self.users: dict[int, weakref.WeakMethod[Callable[[LedgerError], None]]] = {}
        self._times = times
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._renew, name="pillarbox-holder", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _renew(self) -> None:
        while not self._ended.wait(self._times.renewal):
            _renew(self.hold)
            failure = self.hold.failure
            if failure is not None:
                for user in [*self.users.values()]:
                    on_lost = user()
                    if on_lost is not None:
                        on_lost(failure)
                return


def _renew(hold: RunHold) -> None:
    try:
        hold.renew()
    except (OSError, LedgerError) as error:
        log.warning("that a run is held was not renewed: %s: %s", type(error).__name__, error)


_mutex = threading.Lock()
_shared: dict[tuple[str, str, str], _Shared] = {}
_planned: dict[str, RunHold] = {}
_process = os.getpid()


def _begin_anew() -> None:
    global _mutex, _process
    _mutex, _process = threading.Lock(), os.getpid()
    _shared.clear()
    _planned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class HeldRunMember:
    """The part of a session in the hold of its run: `check` before each call, `leave` at the end.

    on_lost: a method of the session, which is not kept alive by it.
    """

    def __init__(
        self,
        ledger: Ledger,
        scope: Scope,
        holder: Holder,
        on_lost: Callable[[LedgerError], None],
        times: HolderTimes,
        *,
        frees: bool,
    ) -> None:
        self._frees = frees
        self._process = os.getpid()
        self._key = (ledger.folder(scope).path, holder.plan, holder.action)
        user = weakref.WeakMethod(on_lost)
        with _mutex:
            shared = _shared.get(self._key)
            if shared is not None:
                shared.users[id(user)] = user
        if shared is None:
            # It may wait for long: outside of the mutex. A second one that comes at the time joins the job.
            hold = run_hold(ledger, scope, holder, times)
            hold.acquire(_is_over)
            with _mutex:
                shared = _shared.get(self._key)
                if shared is None:
                    shared = _shared[self._key] = _Shared(hold, times)
                    shared.start()
                shared.users[id(user)] = user
        self._left = False
        self._user, self._held = user, shared
        self.check = shared.hold.check

    def leave(self) -> None:
        """End it; the last one of a job that has no other processes frees the run. Idempotent."""
        if self._left or self._process != os.getpid():
            return
        self._left = True
        _leave(self._key, self._held, id(self._user), self._frees)

    def __del__(self) -> None:
        if not getattr(self, "_left", True) and self._process == os.getpid():
            # The garbage collector runs anywhere, also where the mutex is held.
            args = (self._key, self._held, id(self._user), self._frees)
            with suppress(RuntimeError):
                threading.Thread(target=_leave, args=args, name="pillarbox-leave", daemon=True).start()


def _leave(key: tuple[str, str, str], held: _Shared, user: int, frees: bool) -> None:
    with _mutex:
        if held.users.pop(user, None) is None or held.users:
            return
        del _shared[key]
    held.end()
    if frees:
        _free(held.hold)


def _is_over(other: Holder) -> bool | None:
    """Return whether another job of this application has ended: known here of those of this very process."""
    if other.stage is not None or other.process != ProcessId.own():
        return None
    with _mutex:
        return not any(other.plan == plan for _, plan, _ in _shared)


def _free(hold: RunHold, *, of_application: bool = False) -> None:
    try:
        hold.free(of_application=of_application)
    except (OSError, LedgerError) as error:
        log.warning(
            "a run was not given back: it is free when this process has ended: %s: %s",
            type(error).__name__,
            error,
        )


@dataclass(frozen=True)
class HeldRunJob:
    """A job that holds a run, a `RunJob`. A value."""

    holder: Holder

    def of_stage(self, action: str, stage: int) -> HeldRunJob:
        """See `RunJob.of_stage`."""
        return HeldRunJob(dataclasses.replace(self.holder, action=action, stage=stage))

    def join(
        self, ledger: Ledger, scope: Scope, on_lost: Callable[[LedgerError], None], *, frees: bool
    ) -> HeldRunMember:
        """See `RunJob.join`."""
        return HeldRunMember(ledger, scope, self.holder, on_lost, TIMES, frees=frees)


def own_job(plan: str) -> HeldRunJob:
    """The job of a plan of this process, which calls itself."""
    return HeldRunJob(Holder.own(plan))


def planned_job(
    ledger: Ledger,
    scope: Scope,
    plan: str,
    program: str,
    *,
    is_over: Callable[[int | None], bool | None],
    is_active: Callable[[], bool],
) -> HeldRunJob:
    """Hold a run from now on for the tasks of a plan, as `pillarbox.ledger.runs` says.

    The run is free when the application is not active for `HolderTimes.planned`, and at the end of this
    process.
    """
    times = TIMES
    job = HeldRunJob(Holder.own(plan, program)).of_stage("", ELSEWHERE)
    hold = run_hold(ledger, scope, dataclasses.replace(job.holder, phase="planned"), times)
    hold.acquire(lambda other: is_over(other.stage))
    with _mutex:
        if not _planned:
            atexit.register(_free_planned)
        _planned[ledger.folder(scope).path] = hold
    args = (hold, times, is_active)
    threading.Thread(target=_keep_planned, args=args, name="pillarbox-planned", daemon=True).start()
    return job


def _keep_planned(hold: RunHold, times: HolderTimes, is_active: Callable[[], bool]) -> None:
    begin = time.monotonic()
    pause = threading.Event()
    while not pause.wait(times.renewal):
        _renew(hold)
        if hold.failure is not None:
            log.warning("%s", hold.failure)
            return
        if hold.is_handed_on:
            return
        if time.monotonic() - begin >= times.planned and not is_active():
            _free(hold)
            return


def _free_planned() -> None:
    with _mutex:
        holds = [*_planned.values()]
        _planned.clear()
    if os.getpid() == _process:
        for hold in holds:
            _free(hold, of_application=True)
