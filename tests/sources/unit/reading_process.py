"""A reader of a source as a task in a process of its own, to be killed; and the test's side of it.

`python -m tests.sources.unit.reading_process` takes a pickled (handle, subtask, source, hold) in
hexadecimal on its first line and runs a `StreamTask`. It says each record as a line `r [...]`; after `hold`
of them it says "held" and waits for a line "go". Its end is a line "end", its failure "failed ...".
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from pillarbox.rpc.client import RpcHandle
from pillarbox.sources import Source, SourceInput
from pillarbox.sources.remote_link import RemoteLink
from pillarbox.task import Operator, StreamTask
from pillarbox.testing.test_io import CollectedOutput
from tests.sources.unit.number_source import Numbers

ROOT = Path(__file__).resolve().parents[3]
LONG = 60.0


class Picklable(Numbers):
    """A source of numbers that travels to a process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Picklable, (self.splits,)


class Say(Operator):
    """Says each record; after `hold` of them it waits until it is told to go on."""

    uid = "say"

    def __init__(self, hold: int | None) -> None:
        self.hold = hold
        self.go = threading.Event()
        self.said = 0

    def process(self, record: Any) -> None:
        print("r", json.dumps(record), flush=True)
        self.said += 1
        if self.said == self.hold:
            print("held", flush=True)
            self.go.wait(LONG)


def main() -> None:
    """The program."""
    handle, subtask, source, hold = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    say = Say(hold)
    task = StreamTask(SourceInput(RemoteLink(handle, subtask, source), source), [say], CollectedOutput())

    def listen() -> None:
        for line in sys.stdin:
            if line.startswith("go"):
                say.go.set()
        # Its parent has gone.
        os._exit(3)

    threading.Thread(target=listen, daemon=True).start()
    try:
        task.run()
    except Exception as error:
        print("failed", error, flush=True)
    else:
        print("end", flush=True)


class ReadingProcess:
    """The program, from a test's side. Its lines are read by a thread of its own. Thread-safe."""

    def __init__(
        self, handle: RpcHandle, subtask: int, source: Source[Any, Any], hold: int | None = None
    ) -> None:
        self.changed = threading.Condition()
        self.records: list[tuple[str, int]] = []
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sources.unit.reading_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell(pickle.dumps((handle, subtask, source, hold)).hex())
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def tell(self, line: str) -> None:
        """Say a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def until(self, line: str) -> str:
        """Wait for a line that begins so."""

        def found() -> list[str]:
            return [each for each in self.lines if each.startswith(line)]

        with self.changed:
            assert self.changed.wait_for(lambda: bool(found()), LONG), (line, self.lines)
            return found()[0]

    def kill(self) -> None:
        """End it as the machine's kernel does."""
        self._process.kill()
        self._thread.join(LONG)
        self._process.communicate()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self.changed:
                if line.startswith("r "):
                    self.records.append(tuple(json.loads(line[2:])))
                else:
                    self.lines.append(line.strip())
                self.changed.notify_all()


if __name__ == "__main__":
    main()
