"""The figures of README and of the documentation's first page, measured anew: `make figures`.

`python -m bench.figures` runs the clients beside their rivals, vectors through Spark, and a job that is
killed; each of the three commands interleaves its rounds. It writes all rounds into `docs/figures.json`, from
which `docs/figures_page.py` draws the picture and writes the tables. `--reuse` takes the files in `out/bench`
that earlier runs of these commands have written, and measures those that are not there. For the main thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench.chunks import ROOT, write_json
from bench.clients import __main__ as clients
from bench.clients import through_spark
from bench.killed import __main__ as killed

OUT = ROOT / "out" / "bench"
TARGET = ROOT / "docs" / "figures.json"
RIVALS = ("libcurl", "AsyncOpenAI", "baseten", "Daft", "a loop")
CLIENTS = ["--rounds", "5", "--contenders", *RIVALS]
PARTS: dict[str, Callable[[], int]] = {
    "clients": lambda: clients.main([*CLIENTS, "--out", str(OUT)]),
    "through_spark": lambda: through_spark.main(["--out", str(OUT)]),
    "killed": lambda: killed.main(["--rounds", "5", "--out", str(OUT)]),
}
"""The commands, by the names of the files that they write."""


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code: 1 if a rival was not measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=__doc__)
    parser.add_argument("--reuse", action="store_true", help="take the files of earlier runs")
    options = parser.parse_args(arguments)
    codes = [run() for name, run in PARTS.items() if not options.reuse or not (OUT / f"{name}.json").exists()]
    write_json(TARGET, figures({name: json.loads((OUT / f"{name}.json").read_text()) for name in PARTS}))
    subprocess.run([sys.executable, "docs/figures_page.py"], cwd=ROOT, check=True)
    return max(codes, default=0)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """The rounds of each contender by what was measured, from the files of the three commands."""
    cpu = {
        unit: {name: each["cpu"] for name, each in found["clients"][part].items() if name != "failed"}
        for unit, part in (("vector", "embeddings"), ("lookup", "lookups"), ("question", "questions"))
    }
    jobs = found["killed"]["jobs"]
    return {
        "machines": {name: each["machine"] for name, each in found.items()},
        "figures": {
            **{unit: _rounded(rounds) for unit, rounds in cpu.items()},
            "spark": _rounded(found["through_spark"]["worker"]),
            "killed": {name: each["paid twice"] for name, each in jobs.items()},
            "answered": {name: each["answered before the kill"] for name, each in jobs.items()},
        },
    }


def _rounded(rounds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(value, 2) for value in values] for name, values in rounds.items()}


if __name__ == "__main__":
    sys.exit(main())
