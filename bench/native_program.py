"""The native benchmark, `bench/native/chunks.cpp`, compiled as the kernel is.

Once for each state of its sources. Any process may call; programs are kept in `build/bench` under a name that
says what they were made of.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from bench.chunks import ROOT

SOURCES = ROOT / "bench" / "native"
INCLUDE = ROOT / "kernel" / "include"
PROGRAMS = ROOT / "build" / "bench"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
# As in setup.py; -g costs no time, and a profile can then name lines.
FLAGS = ("-std=c++17", "-O3", "-g", "-pthread", "-Wall", "-Wextra", "-Werror")


def native_program() -> Path:
    """The program. RuntimeError with the compiler's words if it cannot be made."""
    if COMPILER is None:
        raise RuntimeError("no C++ compiler (c++, g++ or clang++) on the PATH")
    digest = hashlib.sha256(repr((COMPILER, FLAGS)).encode())
    for path in sorted([*SOURCES.iterdir(), *INCLUDE.glob("*.h")]):
        digest.update(path.read_bytes())
    program = PROGRAMS / f"chunks-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    fresh = program.with_suffix(f".{os.getpid()}")
    command = [COMPILER, *FLAGS, f"-I{INCLUDE}", str(SOURCES / "chunks.cpp"), "-o", str(fresh)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{SOURCES / 'chunks.cpp'} does not compile:\n{done.stderr}")
    fresh.replace(program)
    return program
