"""The native benchmark, `bench/native/chunks.cpp`, compiled as the kernel is. Any process may call."""

from __future__ import annotations

from pathlib import Path

from bench.chunks import ROOT
from spec.native import compiled_in


def native_program() -> Path:
    """The program. RuntimeError with the compiler's words if it cannot be made."""
    # As in setup.py; the debug information costs no time, and a profile can then name lines.
    return compiled_in(ROOT / "build" / "bench", ROOT / "bench" / "native" / "chunks.cpp", ["-O3"])
