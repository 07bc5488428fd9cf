"""Recorded streams on Spark are behaviours of the specification of who reads which split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spec.recorded import Event, read_events
from spec.source_trace import accepted_by_tlc, explained, run_of
from tests.versions import needs_source_streams

RunScript = Callable[..., list[str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(640)]

SETTINGS = {"spark.python.authenticate.socketTimeout": "120s"}
"""On a busy machine a worker of Spark takes long to come."""

STREAM = """
import pathlib
from spec.source_spark import StreamRun
print(StreamRun(int(sys.argv[2]), spark, pathlib.Path(sys.argv[1])).run())
"""


def recorded(run_script: RunScript, script: str, *arguments: str) -> list[Event]:
    # Spark tries a task twice.
    (path,) = run_script(script, *arguments, master="local[2,2]", settings=SETTINGS, timeout=600)
    return read_events(Path(path))


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
