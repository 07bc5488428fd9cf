"""Recorded runs of the buckets of streams are behaviours of the specification, and corrupted ones are not."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

from spec.recorded import Event, read_events
from spec.stream_trace import accepted_by_tlc, by_stream, run_of
from tests.versions import needs_async_stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_async_stream,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the /proc of Linux"),
]

FIRST_SEED, RUNS = 10, 6

Events = list[Event]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Events]:
    """The records of runs in workers of Spark, which are killed like the processes for calls."""
    folder = tmp_path_factory.mktemp("streams")
    command = [sys.executable, "-m", "spec.stream_runs", "--runs", str(RUNS), "--seed", str(FIRST_SEED)]
    done = subprocess.run(
        [*command, "--keep", str(folder)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return by_stream(read_events(folder / "streams.trace"))


@pytest.mark.contract("What buckets do in workers of Spark is a behaviour of the specification.")
def test_what_buckets_do_in_workers_of_spark_is_a_behaviour_of_the_specification(
    recorded: dict[str, Events],
) -> None:
    runs = {name: run_of(events) for name, events in recorded.items()}
    assert len(runs) == RUNS
    assert accepted_by_tlc([*runs.values()]) == [True] * RUNS
    names = Counter(step[0] for run in runs.values() for step in run.steps)
    # Which faults meet a run is up to the clock; some do.
    assert {"restart", "kill", "open late", "refuse"} & set(names)
    assert names["log"] >= 2 * RUNS


# -- corrupted runs --------------------------------------------------------------------------------


def of(events: Events, what: str) -> Iterator[Event]:
    return (event for event in events if event["what"] == what)


def records(events: Events) -> Iterator[Event]:
    """The emissions and writes of executions of which a sink takes the rows."""
    to_sinks = {(event["task"], event["bucket"]) for event in of(events, "start") if event["action"]}
    return (event for event in of(events, "record") if (event["task"], event["bucket"]) in to_sinks)


def a_lost_output(events: Events) -> None:
    """An execution does not emit an output that the committed state has."""
    next(event for event in records(events) if event["emitted"])["emitted"].pop()


def an_output_of_what_has_just_finished(events: Events) -> None:
    """An execution emits a result that it has only recorded."""
    event = next(event for event in records(events) if event["state"]["leaving"])
    event["emitted"].append(event["state"]["leaving"][0])


def swapped_outputs(events: Events) -> None:
    emitted = next(event for event in records(events) if len(event["emitted"]) > 1)["emitted"]
    emitted[:2] = reversed(emitted[:2])


def results_of_each_other(events: Events) -> None:
    """Two rows are told each other's results."""
    results = next(event for event in of(events, "read") if len(event["results"]) > 1)["results"]
    results[0][1], results[1][1] = results[1][1], results[0][1]


def a_lost_row(events: Events) -> None:
    """The version of the state of an execution has one row less."""
    next(event for event in records(events) if event["state"]["waiting"])["state"]["waiting"].pop()


def a_result_that_is_not_recorded(events: Events) -> None:
    """A task is told of a result, and its version does not have it."""
    next(event for event in records(events) if event["state"]["leaving"])["state"]["leaving"].pop()


def a_call_begun_twice(events: Events) -> None:
    event = next(event for event in of(events, "begin") if event["held"] and not event["begun"])
    event["begun"] = event["held"][:1]


def a_released_call(events: Events) -> None:
    """A call that the committed state waits for is gone when its bucket has been opened."""
    begins = {(event["task"], event["bucket"]) for event in of(events, "begin")}
    opens = (event for event in of(events, "open") if (event["task"], event["bucket"]) not in begins)
    next(event for event in opens if event["held"])["held"].pop()


def a_call_that_is_kept(events: Events) -> None:
    """A call that nobody waits for is there when its bucket has been opened."""
    row = next(row for event in of(events, "finish") for row in event["rows"])
    last = [event for event in of(events, "open") if not event["held"]][-1]
    last["held"].append(row)


def a_state_of_no_execution(events: Events) -> None:
    """A micro-batch reads a state that no execution of the one before has written."""
    found = next(event for event in of(events, "start") if event["state"]["leaving"])
    for event in of(events, "start"):
        if (event["bucket"], event["time"]) == (found["bucket"], found["time"]):
            event["state"] = deepcopy(found["state"]) | {"leaving": found["state"]["leaving"][1:]}


def a_late_task_that_is_let_in(events: Events) -> None:
    next(of(events, "late")).update(what="open", held=[])


def a_task_that_is_refused(events: Events) -> None:
    """It belongs to the micro-batch that runs."""
    next(event for event in of(events, "open") if event["held"])["what"] = "late"


def a_process_that_has_ended_by_itself(events: Events) -> None:
    killed = {event["pid"] for event in of(events, "kill")}
    lives = list(of(events, "attach"))
    # A query that is built anew has its calls made anew.
    assert any(
        int(before["life"].partition("-")[0]) in killed and before["plan"] == after["plan"]
        for before, after in pairwise(lives)
    )
    events[:] = [event for event in events if event["what"] != "kill"]


def a_micro_batch_that_is_not_whole(events: Events) -> None:
    """An execution writes nothing, and the sink takes its rows."""
    events.remove(next(event for event in records(events) if event["state"]["leaving"]))


CORRUPTIONS = [
    a_lost_output,
    an_output_of_what_has_just_finished,
    swapped_outputs,
    results_of_each_other,
    a_lost_row,
    a_result_that_is_not_recorded,
    a_call_begun_twice,
    a_released_call,
    a_call_that_is_kept,
    a_state_of_no_execution,
    a_late_task_that_is_let_in,
    a_task_that_is_refused,
    a_process_that_has_ended_by_itself,
    a_micro_batch_that_is_not_whole,
]


def corrupted(corrupt: Callable[[Events], None], recorded: dict[str, Events]) -> Events | None:
    """The first run of which something is to be had, corrupted; None where this could happen in none."""
    for events in recorded.values():
        copy = deepcopy(events)
        try:
            corrupt(copy)
        except (StopIteration, IndexError, AssertionError):
            continue
        return copy
    return None


@pytest.mark.contract
def test_a_corrupted_run_of_buckets_is_refused(recorded: dict[str, Events]) -> None:
    made = [(corrupt.__name__, corrupted(corrupt, recorded)) for corrupt in CORRUPTIONS]
    runs = {name: run_of(events) for name, events in made if events is not None}
    # Kills and late tasks come by the clock, and not on every machine.
    assert len(runs) >= len(CORRUPTIONS) - 3
    accepted = zip(runs, accepted_by_tlc([*runs.values()]), strict=True)
    assert [name for name, through in accepted if through] == []
