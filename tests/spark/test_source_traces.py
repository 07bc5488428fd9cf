"""Recorded batch reads and streams on Spark are behaviours of the specification of who reads which split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spec.recorded import Event, read_events
from spec.source_trace import accepted_by_tlc, explained, refused_by_tlc, run_of
from tests.versions import needs_source_streams

RunScript = Callable[..., list[str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(640)]

SETTINGS = {"spark.python.authenticate.socketTimeout": "120s"}
"""On a busy machine a worker of Spark takes long to come."""

BATCH = """
import pathlib
from spec.source_spark import record_batch
print(record_batch(spark, pathlib.Path(sys.argv[1])))
"""

DEFECTIVE = """
import pathlib
from pillarbox.sources.enumerating import PendingSplits
from spec.source_spark import record_batch

take = PendingSplits.take

def take_again(self, reader):
    # The first split that is taken, once more for another reader.
    given = self.__dict__.setdefault("given", [])
    if len(given) == 1 and given[0][1] != reader.subtask:
        given.append(None)
        return given[0][0]
    found = take(self, reader)
    if found is not None and not given:
        given.append((found, reader.subtask))
    return found

PendingSplits.take = take_again
try:
    print(record_batch(spark, pathlib.Path(sys.argv[1]), failures=1))
finally:
    PendingSplits.take = take
"""

STREAM = """
import pathlib
from spec.source_spark import StreamRun
print(StreamRun(int(sys.argv[2]), spark, pathlib.Path(sys.argv[1])).run())
"""


def recorded(run_script: RunScript, script: str, *arguments: str) -> list[Event]:
    # Spark tries a task twice.
    (path,) = run_script(script, *arguments, master="local[2,2]", settings=SETTINGS, timeout=600)
    return read_events(Path(path))


@pytest.mark.contract("What attempts of a batch read on Spark are given is a behaviour of the specification.")
def test_what_attempts_of_a_batch_read_are_given_is_a_behaviour_of_the_specification(
    run_script: RunScript, tmp_path: Path
) -> None:
    run = run_of(recorded(run_script, BATCH, str(tmp_path)))
    assert accepted_by_tlc([run]) == [True], explained(run)
    names = Counter(step[0] for step in run.steps)
    # Failed attempts, another job over the same plan.
    assert names["reader dies"] >= 3
    assert names["start"] > names["output"] == 4


def test_a_batch_read_that_gives_a_split_to_two_partitions_is_refused(
    run_script: RunScript, tmp_path: Path
) -> None:
    run = run_of(recorded(run_script, DEFECTIVE, str(tmp_path)))
    (at,) = refused_by_tlc([run])
    assert at is not None
    assert run.steps[at][0] == "assign"


@needs_source_streams
@pytest.mark.contract("What micro-batches of a stream read is a behaviour of the specification.")
def test_what_micro_batches_of_a_stream_read_is_a_behaviour_of_the_specification(
    run_script: RunScript, tmp_path: Path
) -> None:
    events = recorded(run_script, STREAM, str(tmp_path), "1")
    corrupted = []
    for what, corrupt in CORRUPTIONS.items():
        copy = deepcopy(events)
        corrupt([event for event in copy if event["what"] == what])
        corrupted.append(run_of(copy))
    run = run_of(events)
    assert accepted_by_tlc([run, *corrupted]) == [True] + [False] * len(corrupted), explained(run)
    names = Counter(step[0] for step in run.steps)
    # The sink has failed, and the stream has gone on.
    assert names["driver dies"] >= 3
    assert names["run"] > names["done"]


def a_row_of_the_micro_batch_before(sinks: list[Event]) -> None:
    first, second = [event for event in sinks if event["rows"]][:2]
    second["rows"].append(first["rows"][0])


def a_slice_that_is_longer(planned: list[Event]) -> None:
    offsets = [event["offset"] for event in planned if event["offset"]]
    slices = next(offset["slices"] for offset in offsets if offset["slices"])
    slices[0][2] += 1


CORRUPTIONS = {"sink": a_row_of_the_micro_batch_before, "planned": a_slice_that_is_longer}
