"""A process that is killed with calls in flight is restored in another one from its snapshot's bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.aio.states import FinishedRow
from tests.aio.unit.snapshot_life import ROWS, STUCK

ROOT = Path(__file__).resolve().parents[3]


def live(folder: Path, order: str, life: str) -> int:
    words = [sys.executable, "-m", "tests.aio.unit.snapshot_life", str(folder), order, life]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.contract(
    "A task that is killed with calls in flight is restored in another process: nothing is lost, nothing "
    "comes twice, and no row is called again that has its result in the snapshot."
)
@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_a_task_that_is_killed_with_calls_in_flight_is_restored_in_another_process(
    tmp_path: Path, order: str
) -> None:
    assert live(tmp_path, order, "first") == -signal.SIGKILL
    snapshot = SnapshotCodec().decode((tmp_path / "snapshot").read_bytes())
    (operator,) = snapshot.operators.values()
    entries = operator.state.entries
    finished = {each.row for each in entries if isinstance(each, FinishedRow)}
    finished |= {call.row for call, _ in snapshot.output.rows}
    in_flight = {each.row for each in entries} - finished
    began = set(map(int, (tmp_path / "calls").read_text().split()))
    again = began - finished - set(range(20))
    assert len(again) == 10 and again <= in_flight & {*STUCK} and finished
    assert live(tmp_path, order, "second") == 0
    found = [
        pair
        for file in sorted((tmp_path / "output").iterdir(), key=lambda file: int(file.name))
        for pair in json.loads(file.read_text())
    ]
    expected = [[row, {"answer": row * row}] for row in range(ROWS)]
    assert (found if order == "ordered" else sorted(found, key=lambda pair: pair[0])) == expected
    calls = Counter(map(int, (tmp_path / "calls").read_text().split()))
    assert calls == {row: 2 if row in again else 1 for row in range(ROWS)}, "no result is asked for again"
