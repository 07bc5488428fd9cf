"""A job is killed by SIGKILL when half of its texts are answered, and run again: `python -m bench.killed`.

5,000 texts, 64 a request, 8 requests in flight, a service of 0.3 s in the mean that counts the texts it is
asked for. The whole tree of processes is killed, driver and workers, at a moment that differs from round to
round. The texts whose answer the service had sent before and which the second run asks for again are paid for
twice. Those in flight at the kill, which any client must ask for again, are shown beside them. Writes
`killed.json` into `out/bench`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.chunks import ROOT, machine, write_json
from bench.clients.__main__ import FOLDER, REQUIREMENTS, say
from bench.clients.contenders import texts
from bench.killed.jobs import JOBS
from bench.killed.server import CountingServer
from bench.peers.environments import EnvironmentFailed, python_of
from bench.table import Column, print_table

ENVIRONMENTS = {"Daft embed_text": "daft"}
LATENCY_S = 0.3
LIMIT_S = 240.0


class JobFailed(RuntimeError):
    """A job that ended with an error, or too early to be killed; its text is the reason."""


def play(contender: str, python: Path, rows: int, delay: float, log: Path) -> dict[str, int]:
    """Kill a job `delay` seconds after half of its texts are answered, and run it again. Raises JobFailed."""
    with tempfile.TemporaryDirectory() as folder, _server(rows) as server, log.open("w") as said:
        command = [str(python), "-m", "bench.killed.jobs", contender, server.url, folder, str(rows)]
        half = server.watch(rows // 2)
        first = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
        try:
            begun = time.monotonic()
            while not half.wait(0.2):
                if first.poll() is not None:
                    raise JobFailed(f"ended with {first.returncode} before half of its texts: {log}")
                if time.monotonic() - begun > LIMIT_S:
                    raise JobFailed(f"half of the texts were not answered within {LIMIT_S:g} s: {log}")
            time.sleep(delay)
            if first.poll() is not None:
                raise JobFailed("ended before it could be killed")
        finally:
            _kill(first)
        answered, asked = set(server.answered), dict(server.asked)
        in_flight = len(asked) - len(answered)
        if subprocess.run(command, cwd=ROOT, stdout=said, stderr=said, timeout=LIMIT_S).returncode:
            raise JobFailed(f"the second run failed: {log}")
        if len(server.answered) != rows:
            raise JobFailed(f"{len(server.answered)} of {rows} texts were answered")
        return {
            "answered before the kill": len(answered),
            "paid twice": sum(server.asked[text] - asked[text] > 0 for text in answered),
            "in flight": in_flight,
        }


def _server(rows: int) -> CountingServer:
    return CountingServer(LATENCY_S, texts(rows))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process and all below it."""
    try:
        top = psutil.Process(process.pid)
        tree = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    for each in tree:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(20)
    psutil.wait_procs(tree, 20)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.killed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--contenders", nargs="+", default=[], help="words in names")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    logs = options.out / "killed_logs"
    logs.mkdir(parents=True, exist_ok=True)
    written: dict[str, Any] = {"machine": machine(), "rows": options.rows, "jobs": {}, "failed": {}}
    words = [word.lower() for word in options.contenders]
    names = [name for name in JOBS if not words or any(word in name.lower() for word in words)]
    for number in range(options.rounds):
        for name in names:
            if name in written["failed"]:
                continue
            environment = ENVIRONMENTS.get(name)
            log = logs / f"{name.replace(' ', '_')}_{number}.log"
            try:
                python = (
                    python_of(environment, say, REQUIREMENTS, FOLDER) if environment else Path(sys.executable)
                )
                # Answers come every few hundredths of a second: the moments lie between two of them.
                found = play(name, python, options.rows, 0.02 * (number + 1), log)
            except (JobFailed, EnvironmentFailed, subprocess.TimeoutExpired) as error:
                written["failed"][name] = str(error)
                continue
            for each, value in found.items():
                written["jobs"].setdefault(name, {}).setdefault(each, []).append(value)
            say(f"round {number + 1} of {options.rounds}: {name}: {found}")
    columns = [Column("job", right=False), Column("answered before the kill"), Column("paid twice")]
    lines = [
        [
            name,
            *(f"{statistics.median(each[key]):,.0f}" for key in list(each)[:2]),
            f"{min(each['paid twice']):,} to {max(each['paid twice']):,}",
            f"{statistics.median(each['in flight']):,.0f}",
        ]
        for name, each in written["jobs"].items()
    ]
    print_table([*columns, Column("in all rounds"), Column("in flight")], lines)
    for name, reason in written["failed"].items():
        print(f"{name}: not measured: {reason}")
    write_json(options.out / "killed.json", written)
    return 1 if written["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
