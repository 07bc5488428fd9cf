"""Gets the programs that `bench.kernel` measures, ours and those of others, or says why one cannot be had.

From the package registries, by their own clients, into `build/bench-kernel`: Flink and JCTools by Maven,
crossbeam by cargo, moodycamel's queue by apt, Python's queues by pip. For the thread that measures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.chunks import ROOT
from bench.native_program import native_program

HOME = ROOT / "build" / "bench-kernel"
HERE = ROOT / "bench" / "kernel"
FREE_PYTHON = ROOT / "build" / "freethreaded-venv" / "bin" / "python"
PYTHON_QUEUES = ("janus==2.0.0", "aiologic==0.17.1", "culsans==0.11.0")
PYFLINK = "2.3.0"
MOODYCAMEL = "libconcurrentqueue-dev"
OLDEST_JAVA = 17


class MissingPeerError(RuntimeError):
    """A program of others that cannot be had here, and why."""


@dataclass(frozen=True)
class Program:
    """A program and its command, or the reason why it is not run."""

    command: tuple[str, ...] = ()
    missing: str = ""


def programs() -> dict[str, Program]:
    """All of them, by name. RuntimeError if ours cannot be made."""
    moodycamel = _tried(_moodycamel)
    headers = [Path(moodycamel.command[0])] if moodycamel.command else []
    ours = (str(native_program(headers)),)
    python = _tried(_python)
    paths = python.command or (str(ROOT),)
    return {
        "native": Program(ours),
        "moodycamel": Program(ours) if moodycamel.command else moodycamel,
        "java": _tried(_java),
        "rust": _tried(_rust),
        "python": Program(_python_command(sys.executable, paths)),
        "python queues": Program(_python_command(sys.executable, paths)) if python.command else python,
        "free python": _tried(lambda: _free_python(paths)),
        "pyflink": _tried(_pyflink),
    }


def _tried(get: Callable[[], Sequence[str]]) -> Program:
    try:
        return Program(tuple(get()))
    except (MissingPeerError, OSError) as error:
        return Program(missing=str(error))


def _moodycamel() -> list[str]:
    include = Path("/usr/include")
    if not (include / "concurrentqueue").is_dir():
        include = HOME / "moodycamel" / "usr" / "include"
    if not (include / "concurrentqueue").is_dir():
        folder = HOME / "moodycamel"
        folder.mkdir(parents=True, exist_ok=True)
        _run([_found("apt-get"), "--quiet", "download", MOODYCAMEL], folder)
        _run([_found("dpkg-deb"), "-x", str(next(folder.glob("*.deb"))), str(folder)], folder)
    return [str(include)]


def _java() -> list[str]:
    java, compiler = _found("java"), _found("javac")
    folder, pom = HOME / "java", HERE / "java" / "pom.xml"
    fresh = folder / "pom.xml"
    if not fresh.exists() or fresh.read_bytes() != pom.read_bytes():
        folder.mkdir(parents=True, exist_ok=True)
        copy = [
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder / 'jars'}",
        ]
        _run([_found("mvn"), *copy], folder)
        shutil.copy(pom, fresh)
    jars, classes = str(folder / "jars" / "*"), str(folder / "classes")
    source = str(HERE / "java" / "KernelChunks.java")
    _run([compiler, "--release", str(OLDEST_JAVA), "-classpath", jars, "-d", classes, source], folder)
    # A heap of one size, so that it does not grow while it is measured.
    return [java, "-Xms1g", "-Xmx1g", "-classpath", f"{jars}{os.pathsep}{classes}", "KernelChunks"]


def _rust() -> list[str]:
    target = HOME / "rust"
    _run(
        [_found("cargo"), "build", "--release", "--locked", "--quiet"],
        HERE / "rust",
        CARGO_TARGET_DIR=str(target),
    )
    return [str(target / "release" / "kernel_chunks")]


def _python() -> list[str]:
    folder = HOME / "python"
    done = folder / "installed"
    if not done.exists() or done.read_text() != "\n".join(PYTHON_QUEUES):
        _run([sys.executable, *_PIP, "install", "--target", str(folder), *PYTHON_QUEUES], ROOT)
        done.write_text("\n".join(PYTHON_QUEUES))
    return [str(ROOT), str(folder)]


def _free_python(paths: Sequence[str]) -> list[str]:
    if not FREE_PYTHON.exists():
        raise MissingPeerError(
            f"{FREE_PYTHON.relative_to(ROOT)} is not there: `make test-freethreaded` makes it"
        )
    asks = "import sys, pillarbox.kernel; sys.exit(sys._is_gil_enabled())"
    _run([str(FREE_PYTHON), "-c", asks], ROOT)
    return list(_python_command(str(FREE_PYTHON), paths))


def _pyflink() -> list[str]:
    folder = HOME / "pyflink"
    pattern = f"apache_flink-{PYFLINK}-*.whl"
    if not list(folder.glob(pattern)):
        # Its queues are plain Python, so the wheel may be that of another Python.
        options = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "--dest", str(folder)]
        _run([sys.executable, *_PIP, "download", *options, f"apache-flink=={PYFLINK}"], ROOT)
    wheel = min(folder.glob(pattern))
    return [sys.executable, "-m", "bench.kernel.pyflink_chunks", str(wheel)]


def _python_command(python: str, paths: Sequence[str]) -> tuple[str, ...]:
    return ("env", f"PYTHONPATH={os.pathsep.join(paths)}", python, "-m")


_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def _found(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home, "bin"))) if home and name.startswith("java") else None
    found = found or shutil.which(name)
    if found is None:
        raise MissingPeerError(f"there is no {name} on the PATH")
    return found


def _run(command: Sequence[str], folder: Path, **settings: str) -> None:
    environment: Mapping[str, str] = {**os.environ, **settings}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise MissingPeerError(f"{Path(command[0]).name} failed: {' | '.join(said)}")
