"""The fuzzer's command: rounds of every target in turn, for so many minutes, or until something is found."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzz.targets import TARGETS, Round

OUT = Path(__file__).resolve().parent.parent / "out" / "fuzz"


def fuzz(targets: dict[str, Round], seconds: float, out: Path) -> str | None:
    """The name of the target that found something, or None. What was found is printed."""
    end = time.monotonic() + seconds
    rounds: Counter[str] = Counter()
    for name in itertools.cycle(targets):
        if rounds and time.monotonic() >= end:
            break
        began = time.monotonic()
        try:
            targets[name](out)
        except Exception:
            traceback.print_exc()
            print(f"\n{name} has found something: see above. To go on from there: python -m fuzz {name}")
            return name
        rounds[name] += 1
        print(f"{name}: round {rounds[name]}, {time.monotonic() - began:.1f} s, nothing found", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in rounds.items()), "rounds, nothing found")
    return None


def main(words: Sequence[str]) -> int:
    """Run `python -m fuzz` with its arguments; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}; all if none is given"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="no new round begins after these")
    options = parser.parse_args(words)
    unknown = [name for name in options.names if name not in TARGETS]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    names = options.names or list(TARGETS)
    return 1 if fuzz({name: TARGETS[name] for name in names}, options.minutes * 60, OUT) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
