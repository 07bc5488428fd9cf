"""Recorded runs of the mailbox, of native and of Python threads, are behaviours of the specification."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pillarbox.testing.linearizability import Event
from pillarbox.testing.models import MAILBOX_CLOSED
from spec import trace
from spec.native import compiled, plant, run
from spec.variants import built

BURST = 4
RECORDINGS = 100
SCRIPT = Path(__file__).with_name("traced_run.py")


def native(backend: str, operations: int, seed: int = 1, defect: str = "") -> list[Event]:
    program = compiled("mailbox_trace", "-O2", planted=True, traced=True)
    done = run(program, backend, "3", str(operations), str(seed), environment=plant(defect))
    assert done.returncode == 0, done.stderr
    return trace.read(done.stdout)


def python(backend: str, operations: int, seed: int = 1) -> list[Event]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), backend, "3", str(operations), str(seed)],
        env=os.environ | {"PYTHONPATH": str(built("checked"))},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return trace.read(done.stdout)


# The reference model says the same as TLC without a Java, and in a twentieth of its time.
@pytest.mark.contract
@pytest.mark.parametrize("judge", ["model", pytest.param("tlc", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("record", "backend", "seed"),
    [
        (native, "lock-free", 1),
        pytest.param(native, "lock-free", 2, marks=pytest.mark.slow),
        pytest.param(native, "mutex", 2, marks=pytest.mark.slow),
        pytest.param(python, "lock-free", 1, marks=pytest.mark.slow),
        pytest.param(python, "mutex", 1, marks=pytest.mark.slow),
    ],
)
def test_what_real_threads_do_is_a_behaviour_of_the_specification(
    record: Callable[..., list[Event]], backend: str, seed: int, judge: str
) -> None:
    # Threads that get one core between them overlap by chance only: then there is nothing to put in order.
    for _ in range(RECORDINGS):
        events = record(backend, 300, seed)
        assert len(events) > 900
        turns = sum(one.thread != other.thread for one, other in pairwise(events))
        overlaps = sum(one.end > other.start for one, other in pairwise(events))
        # Python's threads overlap only while they sleep.
        if turns > 20 and (overlaps > 20 or record is python):
            break
    else:
        raise AssertionError(f"{RECORDINGS} recordings, the last with {turns} turns and {overlaps} overlaps")
    if judge == "model":
        assert trace.search(events, BURST).linearizable
        return
    verdicts = trace.check(events, BURST)
    assert verdicts.accepted, verdicts.search.explain(events)
    assert verdicts.outcome.distinct == len(events) + 1


def two_takes_swapped(events: list[Event]) -> list[Event]:
    """Two takes that accept all give each other's mail; one producer put both, of one urgency."""
    producer = {
        mail: event.thread for event in events if event.operation == "put_all" for mail in event.arguments[0]
    }
    first: dict[object, int] = {}
    for index, event in enumerate(events):
        if event.operation != "take" or event.arguments != (-1, 0, False) or event.result not in producer:
            continue
        kind = producer[event.result], event.result.urgent
        other = first.setdefault(kind, index)
        if other != index:
            swapped = list(events)
            swapped[index] = event._replace(result=events[other].result)
            swapped[other] = events[other]._replace(result=event.result)
            return swapped
    raise AssertionError("no two such takes")


def a_lost_mail(events: list[Event]) -> list[Event]:
    """An accepted put of a mail of which nothing is heard again."""
    heard = [event for event in events if getattr(event.result, "number", 0) > 0]
    return [event for event in events if event is not heard[len(heard) // 2]]


def a_mail_taken_twice(events: list[Event]) -> list[Event]:
    taken = [index for index, event in enumerate(events) if getattr(event.result, "number", 0) > 0]
    twice = list(events)
    twice[taken[-1]] = events[taken[-1]]._replace(result=events[taken[-2]].result)
    return twice


def a_put_after_quiesce(events: list[Event]) -> list[Event]:
    """The last refused put, which began after quiesce had returned, is said to have been accepted."""
    refused = [i for i, e in enumerate(events) if e.operation == "put_all" and e.result == MAILBOX_CLOSED]
    quiesced = next(event.end for event in events if event.operation == "quiesce")
    assert events[refused[-1]].start > quiesced
    accepted = list(events)
    accepted[refused[-1]] = events[refused[-1]]._replace(result=None)
    return accepted


@pytest.mark.slow
@pytest.mark.parametrize("corrupt", [two_takes_swapped, a_lost_mail, a_mail_taken_twice, a_put_after_quiesce])
def test_a_corrupted_trace_is_rejected(corrupt: Callable[[list[Event]], list[Event]]) -> None:
    verdicts = trace.check(corrupt(native("lock-free", 60, seed=2)), BURST)
    assert verdicts.accepted is False
    assert verdicts.search.linearizable is False


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["fetch_in_reverse", "close_forgets_batch", "batch_grows"])
def test_the_trace_of_a_defective_kernel_is_rejected(defect: str) -> None:
    # Which mail a defect meets is the scheduler's choice, so not every run shows it.
    runs = (native("lock-free", 100, seed, defect) for seed in range(1, 100))
    shown = next(events for events in runs if not trace.search(events, BURST).linearizable)
    verdicts = trace.check(shown, BURST)
    assert verdicts.accepted is False
    assert verdicts.search.linearizable is False


def test_the_usual_build_records_nothing() -> None:
    import pillarbox.kernel.mailbox

    for module in Path(pillarbox.kernel.mailbox.__file__).parent.glob("*.so"):
        assert b"pillarbox_trace_take" not in module.read_bytes()


def test_lines_of_two_mailboxes_are_refused() -> None:
    with pytest.raises(ValueError, match="of one mailbox"):
        trace.read("1 1 0 1 quiesce -\n2 1 2 3 quiesce -\n")
