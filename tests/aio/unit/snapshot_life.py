"""A process that calls a function for rows, is killed behind a snapshot, and is begun again from it.

`python -m tests.aio.unit.snapshot_life FOLDER ordered|unordered first|second`. The first life takes snapshots
while calls are in flight, and kills itself; the second one is restored. Each call is a word in the file
`calls`, each chunk that the consumer has written a file in `output`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pillarbox import Buffer, Options
from pillarbox.aio.snapshots import SnapshotCodec
from pillarbox.aio.stages import Stage
from pillarbox.aio.states import OutputState
from pillarbox.aio.task_run import ResultStream
from pillarbox.loop_thread import LoopThread

ROWS = 60
STUCK = range(20, 60, 2)
"""Rows whose calls have no end in the first life."""


class Calls:
    """A function that writes each of its calls down."""

    def __init__(self, folder: Path, is_first: bool) -> None:
        self.file = os.open(folder / "calls", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self.is_first = is_first
        self.stuck = 0

    async def __call__(self, row: int) -> dict[str, Any]:
        os.write(self.file, f"{row} ".encode())
        if self.is_first and row in STUCK:
            self.stuck += 1
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return {"answer": row * row}


def rows() -> Iterator[int]:
    """Not in memory, so that a thread reads them."""
    yield from range(ROWS)


def main(folder: Path, is_ordered: bool, is_first: bool) -> None:
    """One life."""
    kept = folder / "snapshot"
    assert kept.exists() is not is_first
    snapshot = None if is_first else SnapshotCodec().decode(kept.read_bytes())
    output = folder / "output"
    output.mkdir(exist_ok=True)
    taken = 0
    if snapshot is not None:
        assert isinstance(snapshot.output, OutputState)
        taken = snapshot.output.taken
        # The committed output is what was taken before the snapshot.
        for file in output.iterdir():
            if int(file.name) >= taken:
                file.unlink()
    thread = LoopThread("loop")
    calls = Calls(folder, is_first)
    job = ResultStream(
        [Stage(calls, Options(capacity=10, buffer=Buffer(30), ordered=is_ordered))],
        rows(),
        loop_thread=thread,
        read_ahead_items=4,
        chunk_rows=4,
        snapshot=snapshot,
    )
    number = 0
    while True:
        if is_first and calls.stuck == 10:
            # All slots are taken by calls that do not end; some results wait for their order, or to be taken.
            number += 1
            # Renamed when it is whole: a life may be killed at any moment.
            kept.with_suffix(".new").write_bytes(SnapshotCodec().encode(job.checkpoint(number).result()))
            kept.with_suffix(".new").rename(kept)
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        chunk = job.take() if not (is_first and taken >= 20) else []
        if chunk is None:
            break
        if chunk:
            (output / f"{taken}").write_text(json.dumps([[call.row, result] for call, result in chunk]))
            taken += len(chunk)
    job.close()
    thread.close(10)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "ordered", sys.argv[3] == "first")
