"""All benchmarks of limits, one after the other: `python -m bench.limits [NAME...]`, or `make bench-limits`.

Each is a command of its own, which prints a table; most run in virtual time. Ends with 1 if one of them has
missed its figures or failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

NAMES = ("adaptive", "learned", "shared", "hedging", "endpoints", "memory")


def main() -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all without any")
    names = parser.parse_args().names or NAMES
    if unknown := {*names} - {*NAMES}:
        parser.error(f"{', '.join(sorted(unknown))}: must be of {', '.join(NAMES)}")
    codes = []
    for name in names:
        print(f"\n== {name}", flush=True)
        codes.append(subprocess.run([sys.executable, "-m", f"bench.limits.{name}"], check=False).returncode)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
