"""The command `pillarbox doctor`: what is wrong with this machine, and what to do about it.

The first thing to run where something does not work. Every check is made in the way in which a job would
meet it: a worker's Python is started and imports Pillarbox, a folder is written to and synced, and a small
job runs on a local Spark, through the operator. With `--cluster` the checks are made on each executor of a
cluster, which needs no Pillarbox for that. Nothing is changed; no package is imported but by the processes
that it starts, so a broken one breaks its check and not the command.
"""

# Why each check does what a job does, where a look would be cheaper. `os.access` tells what permissions
# allow, and not of a full disk, a quota, a read-only mount or a server that maps the user to another; a file
# that is written and synced tells all of them. A package that is installed may fail when it is imported, and
# a Java that is found may be too old for Spark or for another machine. So the last check is a job.
#
# Why nothing of Pillarbox but this module is used by the command itself: it has to run where the kernel was
# built for another Python, and say so.

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pillarbox.redaction import redacted, visible

MIN_JAVA = 17
MIN_FREE_BYTES = 2**30
COMMAND_TIMEOUT_S = 60
JOB_TIMEOUT_S = 180
CLUSTER_TIMEOUT_S = 600
MAX_LINES_SHOWN = 12

KERNEL = """
import pillarbox.kernel.mailbox as kernel
from pillarbox import async_map

async def double(n):
    return 2 * n

assert list(async_map(range(100), double)) == [2 * n for n in range(100)]
print(kernel.__file__)
"""
WORKER = """
import platform, pillarbox, pyarrow
print(platform.python_version(), pillarbox.__version__, pillarbox.__file__)
"""
REMOTE_LEDGER = """
import sys, uuid, pyarrow.fs
from pillarbox.redaction import reason_of

try:
    files, path = pyarrow.fs.FileSystem.from_uri(sys.argv[1])
    name = f"{path.rstrip('/')}/.doctor-{uuid.uuid4().hex}"
    files.open_output_stream(name).close()
    files.delete_file(name)
except Exception as error:
    sys.exit(reason_of(error, sys.argv[1]))
print("written and deleted")
"""
JOB = """
from pyspark.sql import SparkSession
from pillarbox.spark import async_map

async def double(row):
    return 2 * row.id

spark = (
    SparkSession.builder.master("local[1]").appName("pillarbox-doctor")
    .config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
)
rows = async_map(spark.range(100), double, schema="n long").collect()
assert sorted(row.n for row in rows) == [2 * n for n in range(100)], rows
print("100 rows")
spark.stop()
"""


UNIX_SOCKETS_SINCE = (4, 1)
"""The first PySpark whose workers may be connected by Unix sockets."""


class Finding(NamedTuple):
    """The result of one check. A plain value."""

    check: str
    ok: bool
    found: str
    advice: str = ""
    """The advice; empty where all is well."""


def _run(command: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> tuple[bool, str]:
    """Run a command; returns True if it ended with 0, and what it said, or the last lines of its errors."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return False, f"it has not ended within {timeout:g} s"
    except OSError as error:
        return False, str(error)
    if done.returncode:
        return False, "\n".join(done.stderr.strip().splitlines()[-MAX_LINES_SHOWN:])
    return True, done.stdout.strip() or done.stderr.strip()


def numbers_of(version: str) -> tuple[int, ...]:
    """The first three numbers of a version."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def requirements_of_spark() -> Iterator[tuple[str, str]]:
    """The packages that the extra `spark` asks for, each with the oldest version."""
    for requirement in metadata.requires("pillarbox") or ():
        wanted = re.fullmatch(r"(\w+)>=([\d.]+); extra == ['\"]spark['\"]", requirement)
        if wanted is not None:
            yield wanted[1], wanted[2]


def packages() -> Iterator[Finding]:
    """Python, Pillarbox, and the packages that its extra `spark` asks for, in the versions it asks for."""
    needed = numbers_of(metadata.metadata("pillarbox")["Requires-Python"])
    python = f"{platform.python_version()} at {sys.executable}"
    good = sys.version_info[:2] >= needed
    yield Finding("Python", good, python, "" if good else f"use Python {needed[0]}.{needed[1]} or later")
    yield Finding("pillarbox", True, f"{metadata.version('pillarbox')} at {Path(__file__).parent}")
    for name, least in requirements_of_spark():
        advice = f"{least} or later is needed: pip install 'pillarbox[spark]'"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, False, "not installed", advice)
            continue
        good = numbers_of(version) >= numbers_of(least)
        yield Finding(name, good, version, "" if good else advice)


def sockets() -> Iterator[Finding]:
    """The connection of Spark to its Python workers, where the installed PySpark leaves a choice."""
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return
    if numbers_of(version) >= UNIX_SOCKETS_SINCE and sys.platform != "win32":
        yield Finding(
            "sockets of workers",
            True,
            "loopback TCP, if the session sets nothing else",
            "spark.python.unix.domain.socket.enabled=true keeps other users off the connection, and spares "
            "small tasks of PySpark's own functions 40 ms each; those of Pillarbox wait in neither case",
        )


def kernel() -> Iterator[Finding]:
    """The compiled kernel can be imported and runs a hundred calls."""
    ran, said = _run([sys.executable, "-c", KERNEL])
    advice = "" if ran else "build it for this Python: pip install --force-reinstall pillarbox, or make build"
    yield Finding("kernel", ran, said, advice)


def java() -> Iterator[Finding]:
    """A Java that Spark can run on, from JAVA_HOME or else the PATH, as Spark looks for it."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = f"install Java {MIN_JAVA} or later, and let JAVA_HOME name its folder"
    if program is None:
        yield Finding("Java", False, "JAVA_HOME is not set, and no java is in the PATH", advice)
        return
    ran, said = _run([program, "-version"])
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    good = ran and version is not None and int(version[1]) >= MIN_JAVA
    # Not all that it says: JAVA_TOOL_OPTIONS, which it prints first, may hold a password.
    found = next((line for line in said.splitlines() if 'version "' in line), "no version")
    yield Finding("Java", good, f"{found} ({program})", "" if good else advice)


def worker() -> Iterator[Finding]:
    """The Python that Spark starts for its workers has Pillarbox, and is of the driver's version."""
    # As Spark chooses it. Closures are pickled, with bytecode in them: another minor version cannot run them.
    program = os.environ.get("PYSPARK_PYTHON") or sys.executable
    ran, said = _run([program, "-c", WORKER])
    if not ran:
        advice = f"install Pillarbox for {program}, or let PYSPARK_PYTHON name a Python that has it"
        yield Finding("worker's Python", False, said, advice)
        return
    version, pillarbox, _ = said.split(" ", 2)
    good = numbers_of(version)[:2] == sys.version_info[:2] and pillarbox == metadata.version("pillarbox")
    advice = "" if good else "let PYSPARK_PYTHON name the Python of the driver: minor versions must be equal"
    yield Finding("worker's Python", good, f"{version} with pillarbox {pillarbox} ({program})", advice)


def folders(ledger: str | None) -> Iterator[Finding]:
    """The folders in which Spark and Pillarbox write can be written to and have room; a ledger's as well."""
    local = [each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each]
    check = "folder for what is temporary"
    try:
        local.insert(0, tempfile.gettempdir())
    except OSError as error:
        # It has tried each, by writing.
        yield Finding(check, False, str(error), "make room in one of them, or let TMPDIR name another")
    for name in dict.fromkeys(local):
        yield _writable(check, name)
    if ledger is None:
        return
    if "://" in ledger and not ledger.startswith("file://"):
        ran, said = _run([sys.executable, "-c", REMOTE_LEDGER, ledger])
        advice = "" if ran else "check the address, the credentials in the environment, and what they may do"
        yield Finding("ledger", ran, said, advice)
        return
    yield _writable("ledger", str(closest_folder(ledger)))


def closest_folder(ledger: str) -> Path:
    """Return the folder of a local ledger; of one that does not exist, the closest that does."""
    path = Path(ledger.removeprefix("file://"))
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _writable(check: str, folder: str) -> Finding:
    began = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"pillarbox")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(check, False, str(error), f"make {folder} writable for this user, or name another")
    free = shutil.disk_usage(folder).free
    found = f"{folder}: synced in {(time.perf_counter() - began) * 1e3:.1f} ms, {free / 2**30:.1f} GiB free"
    return Finding(check, free >= MIN_FREE_BYTES, found, "" if free >= MIN_FREE_BYTES else "make room there")


def job() -> Iterator[Finding]:
    """A job of a hundred rows runs through the operator on a local Spark."""
    began = time.perf_counter()
    ran, said = _run([sys.executable, "-c", JOB], JOB_TIMEOUT_S)
    took = f" in {time.perf_counter() - began:.0f} s" if ran else ""
    yield Finding("job on a local Spark", ran, said + took, "" if ran else "see its last lines above")


def cluster(
    master: str | None, conf: Sequence[str], ledger: str | None, host: str, advertise: str | None
) -> Iterator[Finding]:
    """The executors of a cluster have what a job needs and reach the driver; 40 rows run through them."""
    asked = {
        "master": master,
        "conf": dict(each.split("=", 1) for each in conf),
        "ledger": ledger,
        "host": host,
        "advertise": advertise,
    }
    # Spark writes much to standard error; the last of it says why it has failed, if it has.
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "pillarbox.cluster_check"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as running,
    ):
        timer = threading.Timer(CLUSTER_TIMEOUT_S, running.kill)
        timer.start()
        try:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(json.dumps(asked))
            running.stdin.close()
            for line in running.stdout:
                # Java and what a shell prints at its start write there too.
                if line.startswith('["'):
                    yield Finding(*json.loads(line))
        finally:
            timer.cancel()
            running.kill()
        if running.wait():
            errors.seek(0)
            said = "\n".join(redacted(errors.read()).strip().splitlines()[-MAX_LINES_SHOWN:])
            yield Finding("cluster", False, said, "see its last lines above")


def main(arguments: Sequence[str]) -> int:
    """Check this machine and print what was found; returns 1 if anything is wrong. The main thread."""
    parser = argparse.ArgumentParser(prog="pillarbox doctor", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--ledger", metavar="LOCATION", help="check also that a ledger can be written there")
    parser.add_argument("--quick", action="store_true", help="run no Spark job")
    parser.add_argument("--cluster", action="store_true", help="check the executors of a cluster")
    parser.add_argument(
        "--master",
        metavar="URL",
        help="the cluster, as spark://host:7077 (default: that of spark-defaults.conf)",
    )
    parser.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of the session on the cluster, as `pillarbox pack` prints them; may come often",
    )
    parser.add_argument(
        "--host", default="0.0.0.0", help="where a Coordinator or Progress of the job would listen"
    )
    parser.add_argument("--advertise", metavar="NAME", help="the name by which executors know this machine")
    words = parser.parse_args(arguments)
    if not words.cluster and (words.master or words.conf or words.advertise):
        parser.error("--master, --conf and --advertise are for --cluster")
    for each in words.conf:
        if "=" not in each:
            parser.error(f"--conf {each}: must be NAME=VALUE")
    checks: list[Callable[[], Iterator[Finding]]] = [packages, kernel, java, sockets]
    if words.cluster:
        given = (words.master, words.conf, words.ledger, words.host, words.advertise)
        checks.append(lambda: cluster(*given))
    else:
        checks += [worker, lambda: folders(words.ledger)]
        if not words.quick:
            checks.append(job)
    wrong = 0
    for check in checks:
        for finding in check():
            wrong += not finding.ok
            indented = visible(finding.found).replace("\n", "\n        ")
            print(f"{'ok     ' if finding.ok else 'WRONG  '} {finding.check}: {indented}", flush=True)
            if finding.advice:
                print(f"        {finding.advice}")
    print(f"{wrong} wrong" if wrong else "all is well")
    return 1 if wrong else 0
