"""The kernel beside Flink's mailbox and result queues, chunk by chunk in turn: `python -m bench.flink`.

Downloads Flink the first time. Prints tables and writes `out/bench/flink.json`. What a unit of work is
stands in `bench/README.md`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import chunks
from bench.chunks import Effort, Row
from bench.flink import peer
from bench.native_program import native_program

PYTHON_CHUNKS = [sys.executable, "-m", "bench.python_chunks"]
PYFLINK_CHUNKS = [sys.executable, "-m", "bench.flink.pyflink_chunks"]


def native_rows(program: str, java: Sequence[str]) -> Iterator[Row]:
    """Native mails and native calls against Flink on Java."""

    def row(name: str, target: float | None, words: str, operations: int = 10_000) -> Row:
        return Row(name, [program, *words.split()], [*java, *words.split()], operations, target)

    yield row("native mails, 1 producer", 2.0, "producers lock-free 1")
    yield row("native mails, 2 producers", 2.0, "producers lock-free 2")
    yield row("put, take and run, one thread", None, "single lock-free")
    yield row("put 1,000, batch, run, one thread", None, "batch lock-free")
    yield row("take(1), 10,000 of priority 0 waiting", 50.0, "past lock-free 10000", 100)
    yield row("ordered queue, random completion", 1.5, "rounds ordered 0")
    yield row("ordered queue, completion in order", None, "steady ordered 1000")
    yield row("unordered queue, random, watermark every 10", 2.0, "rounds unordered 10")
    yield row("unordered queue, random, no watermark", None, "rounds unordered 0")


def python_rows(wheel: Path) -> Iterator[Row]:
    """From Python, against PyFlink's queues."""

    def row(name: str, target: float | None, kind: str, each: str) -> Row:
        ours = ["steady", kind, "1000"] if each == "steady" else ["rounds", kind, each]
        return Row(name, [*PYTHON_CHUNKS, *ours], [*PYFLINK_CHUNKS, str(wheel), kind, each], 1_000, target)

    yield row("ordered queue, random completion", 10.0, "ordered", "0")
    yield row("ordered queue, completion in order", None, "ordered", "steady")
    yield row("unordered queue, random, watermark every 10", 10.0, "unordered", "10")
    yield row("unordered queue, random, no watermark", None, "unordered", "0")


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.flink", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("out/bench/flink.json"))
    parser.add_argument("--rounds", type=int, default=400, help="chunks of each side")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one row, at most")
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds, for Java's compiler")
    parser.add_argument("--only", default="", help="only rows with these words in their name")
    options = parser.parse_args(arguments)
    effort = Effort(options.rounds, options.seconds, options.warm_up)
    content = {"machine": chunks.machine(), "flink": peer.VERSION, "java": peer.java_version()}

    java = peer.java_command(peer.flink_jar())
    wheel = peer.pyflink_wheel()
    parts = {
        "Flink": native_rows(str(native_program()), java),
        "PyFlink": python_rows(wheel),
    }
    for name, rows in parts.items():
        results = chunks.compared((row for row in rows if options.only in row.name), effort)
        chunks.print_compared(results, name)
        content[name] = chunks.as_json(results)
    chunks.write_json(options.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
