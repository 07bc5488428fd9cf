"""The clients beside their rivals, in one run: `make bench-clients`, or `python -m bench.clients`.

Each contender has a process of its own, the rivals environments of their own below build/clients. Rounds are
interleaved; CPU time is that of the contender's process and of all below it, the server's stands beside it.
Writes `clients.json` into `out/bench`. `--rounds` and `--rows` make it shorter; `--contenders` takes words in
names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.chunks import ROOT, machine
from bench.clients.contenders import EMBEDDINGS, ENVIRONMENTS, FEWER, LOOKUPS, QUESTIONS, Job
from bench.clients.server import RawServer
from bench.cpu import tree_time
from bench.peers.environments import EnvironmentFailed, python_of
from bench.peers.process import PeerFailed, PeerProcess
from bench.table import Column, print_table

REQUIREMENTS = Path(__file__).parent / "requirements"
FOLDER = ROOT / "build" / "clients"
VECTORS, ANSWERS = 6_400, 5_000
"""Rows of one job."""
ROUNDS = 7
LIMIT_S = 120.0


@dataclass
class Measured:
    """CPU of a contender and of the server, microseconds a row, and rows a second, of each round."""

    cpu: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)


class ClientProcess(PeerProcess):
    """A process that serves `bench.clients.contenders`."""

    def measure(self, job: Job, server: psutil.Process) -> tuple[float, float, float]:
        """Do a job: seconds of CPU of this process and of the server, and seconds. Raises PeerFailed."""
        before, began = (tree_time(self.tree).total, tree_time(server).total), time.monotonic()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        answer = self._answer(LIMIT_S)
        took = time.monotonic() - began
        used = (tree_time(self.tree).total - before[0], tree_time(server).total - before[1])
        if "error" not in answer:
            answer = self._answer(LIMIT_S)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return *used, took


def say(text: str) -> None:
    """Print the progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def measure(
    names: list[str], rows: int, rounds: int, logs: Path
) -> tuple[dict[str, Measured], dict[str, str]]:
    """The figures of each contender, and the reasons of those that failed."""
    found: dict[str, Measured] = {}
    failed: dict[str, str] = {}
    processes: dict[str, ClientProcess] = {}
    with RawServer() as server:
        service = psutil.Process(server.pid)
        try:
            for number in range(-1, rounds):
                for name in names:
                    if name in failed:
                        continue
                    try:
                        if name not in processes:
                            processes[name] = _started(name, logs)
                        # The first round warms up.
                        count = max(1, rows // FEWER.get(name, 1))
                        used = processes[name].measure(Job(name, server.url, count), service)
                    except (PeerFailed, EnvironmentFailed) as error:
                        failed[name] = str(error)
                        continue
                    if number >= 0:
                        kept = found.setdefault(name, Measured())
                        kept.cpu.append(used[0] / count * 1e6)
                        kept.server.append(used[1] / count * 1e6)
                        kept.rate.append(count / used[2])
                say(f"round {number + 1} of {rounds}")
        finally:
            for process in processes.values():
                process.__exit__(None, None, None)
    return found, failed


def _started(name: str, logs: Path) -> ClientProcess:
    environment = ENVIRONMENTS.get(name)
    if environment is None:
        python = Path(sys.executable)
    else:
        python = python_of(environment, say, REQUIREMENTS, FOLDER)
    log = logs / f"{environment or 'project'}.log"
    process = ClientProcess(python, "bench.clients.contenders", log)
    process.__enter__()
    return process


def print_found(unit: str, first: str, found: dict[str, Measured], failed: dict[str, str]) -> None:
    """Print the medians; the last column compares with the contender `first`."""
    columns = [
        Column("client", right=False),
        *(Column(f"CPU, us a {unit}"), Column("lowest"), Column("the server's")),
        *(Column(f"{unit}s/s"), Column("CPU beside the first")),
    ]
    base = statistics.median(found[first].cpu) if first in found else None
    lines = []
    for name, each in found.items():
        cpu = statistics.median(each.cpu)
        ratio = f"{cpu / base:.1f} x" if base else ""
        figures = [f"{cpu:.1f}", f"{min(each.cpu):.1f}", f"{statistics.median(each.server):.1f}"]
        lines.append([name, *figures, f"{statistics.median(each.rate):,.0f}", ratio])
    print_table(columns, lines)
    for name, reason in failed.items():
        print(f"{name}: not measured: {reason}")
    print()


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rows", type=int, help="rows of one job")
    parser.add_argument("--only", choices=("embeddings", "lookups", "questions"), help="one of the parts")
    parser.add_argument("--contenders", nargs="+", default=[], help="words in names")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    written: dict[str, Any] = {"machine": machine()}
    failed_any = False
    for part, contenders, unit, rows in (
        ("embeddings", EMBEDDINGS, "vector", VECTORS),
        ("lookups", LOOKUPS, "lookup", ANSWERS),
        ("questions", QUESTIONS, "question", ANSWERS),
    ):
        if options.only not in (None, part):
            continue
        words = [word.lower() for word in options.contenders]
        names = [name for name in contenders if not words or any(word in name.lower() for word in words)]
        found, failed = measure(names, options.rows or rows, options.rounds, out / "clients_logs")
        print_found(unit, next(iter(contenders)), found, failed)
        written[part] = {name: asdict(each) for name, each in found.items()} | {"failed": failed}
        failed_any = failed_any or bool(failed)
    (out / "clients.json").write_text(json.dumps(written, indent=1) + "\n")
    return 1 if failed_any else 0


if __name__ == "__main__":
    sys.exit(main())
