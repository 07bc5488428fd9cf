"""C++ programs on the kernel's headers for tests: compiled once for each set of flags, and run.

They use the headers without an interpreter, so no lock of Python's orders their threads. Any process may
call; programs are kept below `build` under a name that says what they were made of.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import headers
from .defects import Seeded

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "tests" / "native"
PROGRAMS = ROOT / "build" / "native"
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
BACKENDS = ("lock-free", "mutex")
# What ThreadSanitizer does with the first race that it sees, and the exit code that says so.
REPORTED = 66
SANITIZED = {"TSAN_OPTIONS": f"halt_on_error=1:exitcode={REPORTED}"}
SECONDS = 150.0
# Programs in which two threads pass something on, without another edge than the one that is named and tried.
EDGES = (
    *(("inbox_orders", f"push-{edge}") for edge in ("fetch", "close", "visit")),
    *(("inbox_orders", edge) for edge in ("arm-visit", "release-claim", "free-free")),
    *(("queue_orders", edge) for edge in ("put-complete", "put-visit", "watermark-visit")),
    *(("queue_orders", f"complete-{edge}") for edge in ("emit", "collect", "snapshot", "close")),
)


def compiled(
    name: str, *flags: str, planted: bool = False, traced: bool = False, seeded: Sequence[Seeded] = ()
) -> Path:
    """The program of `tests/native/NAME.cpp`, on the headers of `headers.for_tests`.

    RuntimeError as `compiled_in`.
    """
    watched = "-DPILLARBOX_SCHED" in flags
    includes = [headers.for_tests(planted=planted, traced=traced, watched=watched, seeded=seeded)]
    return compiled_in(PROGRAMS, SOURCES / f"{name}.cpp", ["-O1", *flags], includes)


def plant(defect: str) -> dict[str, str]:
    """The environment that plants a defect where headers are `planted`; for an empty name, none."""
    return {"PILLARBOX_DEFECT": defect}


def compiled_in(folder: Path, source: Path, flags: Sequence[str], includes: Sequence[Path]) -> Path:
    """The program of a source file and the headers beside it and in `includes`, kept in `folder`.

    RuntimeError with the compiler's words if it cannot be made.
    """
    if COMPILER is None:
        raise RuntimeError("no C++ compiler (c++, g++ or clang++) on the PATH")
    command = [COMPILER, "-std=c++17", "-g", "-pthread", *WARNINGS, *flags]
    digest = hashlib.sha256(repr(command).encode())
    folders = [*includes, source.parent]
    for path in [source, *(path for one in folders for path in sorted(one.glob("*.h")))]:
        digest.update(path.read_bytes())
    program = folder / f"{source.stem}-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    fresh = program.with_suffix(f".{os.getpid()}")
    command += [*(f"-I{one}" for one in folders), str(source), "-o", str(fresh)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{source.name} {' '.join(flags)} does not compile:\n{done.stderr}")
    fresh.replace(program)
    return program


def run(
    program: Path, *words: str, environment: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Runs a program to its end. subprocess.TimeoutExpired after so many seconds."""
    return subprocess.run(
        [str(program), *words],
        env=os.environ | SANITIZED | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def has_thread_sanitizer() -> bool:
    """True if a program under ThreadSanitizer can be built and runs here."""
    try:
        return run(compiled("nothing", "-fsanitize=thread")).returncode == 0
    except RuntimeError:
        return False
