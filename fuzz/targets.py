"""The targets that can be fuzzed: a name, and a function that does one round of it.

A round takes some seconds, chooses anew each time, and raises when it has found something. Used by `python -m
fuzz`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from fuzz.contracts_run import check_contracts
from fuzz.workload import BURST, record, short_switches
from pillarbox.kernel import BACKENDS, Handover, OrderedQueue, TaskMailbox, UnorderedQueue
from pillarbox.testing.linearizability import linearize, mailbox_hints
from pillarbox.testing.models import MailboxModel
from pillarbox.testing.suites import handover_suite, mailbox_suite, queue_suite
from spec.native import compiled, run

Round = Callable[[Path], None]
# Seconds for each contract in one round.
CONTRACT_SECONDS = 20.0


class HistoryError(AssertionError):
    """Real threads made a history that the contract does not allow."""


def run_suite(make_suite: Callable[..., Any], out: Path, examples: int = 300, steps: int = 80) -> None:
    """One round of a suite; what it found before is tried first."""
    how = settings(
        deadline=None,
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        database=DirectoryBasedExampleDatabase(out / "examples"),
        print_blob=True,
    )
    make_suite(settings=how)().runTest()


def run_mailbox(backend: str, out: Path) -> None:
    """The mailbox suite with a burst of 1 to 4."""
    burst = random.randrange(1, 5)
    make = partial(TaskMailbox, urgent_burst=burst, backend=backend)
    name = f"mailbox_{backend.replace('-', '_')}_{burst}"
    run_suite(partial(mailbox_suite, make, urgent_burst=burst, name=name), out)


def run_queue(ordered: bool, out: Path) -> None:
    """The queue suite with a capacity of 1 to 6."""
    capacity = random.randrange(1, 7)
    alone = random.random() < 0.5
    make = partial(OrderedQueue if ordered else UnorderedQueue, capacity, owner_completes=alone)
    name = f"queue_{'ordered' if ordered else 'unordered'}_{capacity}{'_owner' if alone else ''}"
    suite = partial(queue_suite, make, capacity=capacity, ordered=ordered, owner_completes=alone, name=name)
    run_suite(suite, out)


def run_handover(out: Path) -> None:
    """The hand-over suite with 1 to 4 items, with and without a bound on bytes."""
    items, nbytes = random.randrange(1, 5), random.choice([None, 10])
    make = partial(Handover, items, nbytes)
    suite = partial(
        handover_suite, make, max_items=items, max_bytes=nbytes, name=f"handover_{items}_{nbytes}"
    )
    run_suite(suite, out)


def run_histories(backend: str, out: Path) -> None:
    """Ten histories of real threads."""
    for _ in range(10):
        check_history(backend, random.randrange(2**32), 300, out)


def check_history(backend: str, seed: int, operations: int, out: Path) -> None:
    """Record one history and check it; a wrong one is written down."""
    with short_switches():
        events = record(backend, seed, operations)
    verdict = linearize(events, MailboxModel(BURST), hints=mailbox_hints(events))
    if not verdict.linearizable:
        path = out / f"history-{backend}-{seed}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(str, events)) + "\n")
        raise HistoryError(
            f"{verdict.explain(events)}\nthe history is in {path}; threads are not replayed, the same "
            f"choices are made by fuzz.workload.record({backend!r}, {seed}, {operations})"
        )


def run_contracts(out: Path) -> None:
    """CrossHair on the contracts of the pure functions."""
    for line in check_contracts("fuzz.contracts", CONTRACT_SECONDS):
        print("   ", line)


class ScheduleError(AssertionError):
    """A schedule breaks a promise of the kernel."""


def run_schedules(
    program: str, out: Path, count: int = 20_000, words: tuple[str, ...] = ("all", "1")
) -> None:
    """Random schedules of every scenario of a program of `tests/native`, after those with one preemption."""
    done = run(
        compiled(program, "-O2", "-DPILLARBOX_SCHED"), *words, str(count), str(random.randrange(2**31))
    )
    if done.returncode != 0:
        raise ScheduleError(f"{done.stdout}\n`replay` and what follows it are words for {done.args[0]}")


TARGETS: dict[str, Round] = {
    **{f"mailbox-{backend}": partial(run_mailbox, backend) for backend in BACKENDS},
    "queue-ordered": partial(run_queue, True),
    "queue-unordered": partial(run_queue, False),
    "handover": run_handover,
    **{f"histories-{backend}": partial(run_histories, backend) for backend in BACKENDS},
    **{
        f"schedules-{part}": partial(run_schedules, f"{part}_schedules")
        for part in ("mailbox", "queue", "handover")
    },
    **{
        f"stale-reads-{part}": partial(run_schedules, f"{part}_schedules", words=("weak", "1", "1"))
        for part in ("mailbox", "queue")
    },
    "contracts": run_contracts,
}
