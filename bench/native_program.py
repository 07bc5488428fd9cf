"""Native programs that benchmarks run, compiled as the kernel is. Any process may call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.chunks import ROOT
from spec import headers
from spec.native import compiled_in


def native_program(peers: Sequence[Path] = ()) -> Path:
    """The program, on the shipped headers and those of `peers`. RuntimeError if it does not compile."""
    return _optimized(ROOT / "bench" / "native" / "chunks.cpp", peers)


def wake_calls_program() -> Path:
    """The program that counts system calls, on the shipped headers. RuntimeError as `native_program`."""
    return _optimized(ROOT / "tests" / "native" / "wake_calls.cpp")


def _optimized(source: Path, peers: Sequence[Path] = ()) -> Path:
    # As in setup.py; the debug information costs no time, and a profile can then name lines.
    return compiled_in(
        ROOT / "build" / "bench", source, ["-O3"], [headers.SHIPPED, headers.OVER_THEM, *peers]
    )
