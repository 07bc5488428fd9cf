"""Gets Flink for `make bench-flink`: downloads it once into `build/flink` and compiles the Java harness.

From the package registry, by pip, without what the packages depend on. For the thread that measures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from bench.chunks import ROOT

VERSION = "2.3.0"
FOLDER = ROOT / "build" / "flink"
HARNESS = ROOT / "bench" / "flink" / "FlinkChunks.java"
JAR = f"flink-dist-{VERSION}.jar"
OLDEST_JAVA = 17


def flink_jar() -> Path:
    """The jar with the mailbox and the queues, out of a package of 330 MB that is not kept."""
    jar = FOLDER / JAR
    if not jar.exists():
        print(f"downloading apache-flink-libraries {VERSION}, 330 MB")
        _download("apache-flink-libraries", "--no-binary", ":all:")
        (archive,) = FOLDER.glob(f"apache*flink*libraries-{VERSION}.tar.gz")
        fresh = jar.with_suffix(f".{os.getpid()}")
        with tarfile.open(archive) as packed:
            (member,) = (each for each in packed if Path(each.name).name == JAR)
            content = packed.extractfile(member)
            assert content is not None
            with content, fresh.open("wb") as copy:
                shutil.copyfileobj(content, copy)
        fresh.replace(jar)
        archive.unlink()
    return jar


def pyflink_wheel() -> Path:
    """The wheel with PyFlink's queues. They are plain Python, so it may be the one of another Python."""
    pattern = f"apache_flink-{VERSION}-*.whl"
    if not list(FOLDER.glob(pattern)):
        print(f"downloading apache-flink {VERSION}, 3 MB")
        _download("apache-flink", "--only-binary", ":all:", "--python-version", "3.11")
    return next(iter(sorted(FOLDER.glob(pattern))))


def java_command(jar: Path) -> list[str]:
    """Compiles the harness; the command that runs it. RuntimeError if there is no JDK, or it is too old."""
    java, compiler = _program("java"), _program("javac")
    classes = FOLDER / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    options = ["--release", str(OLDEST_JAVA), "-classpath", str(jar), "-d", str(classes)]
    _run([compiler, *options, str(HARNESS)])
    path = os.pathsep.join(map(str, (jar, classes)))
    # A heap of one size, so that it does not grow while it is measured.
    return [java, "-Xms1g", "-Xmx1g", "-classpath", path, "FlinkChunks"]


def java_version() -> str:
    """What the Java that is used calls itself."""
    done = subprocess.run([_program("java"), "-version"], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[0]


def _program(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which(name)
    if found is None:
        raise RuntimeError(f"no {name} in JAVA_HOME or on the PATH: a JDK {OLDEST_JAVA} or later is needed")
    return found


def _download(package: str, *options: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
    _run([*pip, *options, "--dest", str(FOLDER), f"{package}=={VERSION}"])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
