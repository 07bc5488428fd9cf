"""Pillarbox beside its peers, in one run: `make bench-peers`, or `python -m bench.peers`.

Makes the environment of each peer the first time (about 2 GB of packages), runs every job in turn, and writes
`peers.json`, `peers.md` and their plots into `out/bench`. Takes about an hour; `--quick` takes a quarter of
one and is rough. `--only` takes parts: throughput, tail, own, http, memory; what was measured of the others
stays.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import chunks
from bench.peers import costs
from bench.peers.contenders import CONTENDERS, ORDERED, PROJECT
from bench.peers.environments import EnvironmentFailed, python_of
from bench.peers.measure import Ask, run_all
from bench.peers.process import Peers
from bench.peers.report import report, verdicts
from bench.table import Column, print_table

PARTS = ("throughput", "tail", "own", "http", "memory")
WINDOWS = (1, 2, 4, 16, 32, 64)
"""Reorder windows beside the default, in capacities."""

FULL = {
    "rounds": 3,
    "256": 50_000,
    "1000": 100_000,
    "instant": 100_000,
    "tail": 16_384,
    "tail rounds": 2,
    "own": 300_000,
    "own rounds": 9,
    "http": 5_000,
    "http rounds": 25,
    "memory": 10_000_000,
    "limit": 900,
}
QUICK = FULL | {
    "rounds": 1,
    "256": 10_000,
    "1000": 20_000,
    "instant": 20_000,
    "tail": 8_192,
    "tail rounds": 1,
    "own": 100_000,
    "own rounds": 3,
    "http": 3_000,
    "http rounds": 9,
    "memory": 1_000_000,
    "limit": 300,
}


def say(text: str) -> None:
    """Print the progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def throughput_asks(sizes: dict[str, int], words: list[str]) -> list[Ask]:
    """The jobs of the service and of the one that answers at once, whose contenders have one of the words."""
    asks = []
    for workload, capacity, rows in (
        ("service", 256, sizes["256"]),
        ("service", 1_000, sizes["1000"]),
        ("instant", 256, sizes["instant"]),
    ):
        for contender in CONTENDERS:
            if workload in contender.workloads and _named(contender.name, words):
                asks += [Ask(contender, workload, order, capacity, rows) for order in contender.orders]
    return asks


def tail_asks(sizes: dict[str, int]) -> list[Ask]:
    """The jobs with one slow call in a hundred: every window of ours, and those of others that have one."""
    by_name = {contender.name: contender for contender in CONTENDERS}
    ours = by_name["pillarbox.spark.async_map"]
    rows = sizes["tail"]
    asks = [Ask(ours, "tail", ORDERED, 256, rows, window * 256) for window in WINDOWS]
    asks.insert(3, Ask(ours, "tail", ORDERED, 256, rows))
    others = ("PyFlink, large bundles", "asyncio, window = capacity", "Ray Data map")
    return asks + [Ask(by_name[name], "tail", ORDERED, 256, rows) for name in others]


def _named(name: str, words: list[str]) -> bool:
    return not words or any(word.lower() in name.lower() for word in words)


def measure(measured: dict[str, Any], parts: list[str], words: list[str], out: Path) -> None:
    """Measure these parts into `measured`; written after each of them."""
    sizes = measured["sizes"]
    unmade: dict[str, str] = {}

    def python(peer: str) -> Path:
        if peer in PROJECT:
            return Path(sys.executable)
        if peer in unmade:
            raise EnvironmentFailed(unmade[peer])
        try:
            return python_of(peer, say)
        except EnvironmentFailed as error:
            unmade[peer] = str(error)
            raise

    with Peers(python, out / "peers_logs") as peers:
        for part in parts:
            say(f"part {part}")
            failed: dict[str, str] = {}
            if part == "throughput":
                results = run_all(throughput_asks(sizes, words), peers, sizes["rounds"], sizes["limit"], say)
                measured[part] = [asdict(result) for result in results]
            elif part == "tail":
                results = run_all(tail_asks(sizes), peers, sizes["tail rounds"], sizes["limit"], say)
                measured[part] = [asdict(result) for result in results]
            elif part == "own":
                rounds = sizes["own rounds"]
                measured[part], failed = costs.own_costs(peers, sizes["own"], rounds, sizes["limit"], say)
            elif part == "http":
                rounds = sizes["http rounds"]
                measured[part], failed = costs.http_costs(peers, sizes["http"], rounds, sizes["limit"], say)
            else:
                measured[part], failed = costs.memory(peers, sizes["memory"], sizes["limit"], say)
            measured["failed"] = {
                name: reason
                for name, reason in measured["failed"].items()
                if not name.startswith(f"{part}: ")
            } | {f"{part}: {name}": reason for name, reason in failed.items()}
            measured["versions"] |= peers.versions
            (out / "peers.json").write_text(json.dumps(measured, indent=1) + "\n")
            # The next part begins with sessions that have done nothing else.
            for name in list(peers.versions):
                peers.end(name)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, one round: rough")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--contenders", nargs="+", default=[], help="words in names, for the part throughput")
    parser.add_argument("--rounds", type=int, help="rounds of the part throughput")
    parser.add_argument("--reuse", action="store_true", help="measure nothing: the report of what is there")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    path = out / "peers.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if options.reuse:
        measured = before
    else:
        sizes = dict(QUICK if options.quick else FULL)
        if options.rounds:
            sizes["rounds"] = options.rounds
        kept = {part: before[part] for part in PARTS if part in before and part not in options.only}
        measured = {
            "machine": chunks.machine(),
            "quick": options.quick,
            "sizes": sizes,
            "versions": before.get("versions", {}) if kept else {},
            "failed": before.get("failed", {}) if kept else {},
            **kept,
        }
        measure(measured, options.only, options.contenders, out)
    (out / "peers.md").write_text(report(measured, out))
    found = verdicts(measured)
    columns = [Column(heading, right=False) for heading in ("work", "measure", "target", "measured", "")]
    words = {True: "met", False: "MISSED", None: ""}
    print_table(columns, [[v.work, v.measure, v.target, v.measured, words[v.met]] for v in found])
    print(f"the report: {out / 'peers.md'}")
    return 1 if options.check and any(verdict.met is False for verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
