"""Check the executors of a cluster: what a job would meet there, and what to do about what is missing.

Run by `pillarbox doctor --cluster`, in a process of its own: `python -m pillarbox.cluster_check` reads what
is asked as JSON from its standard input and prints each finding as a line of JSON. The main thread.
"""

# Why the checks do not run in Spark's Python workers. A worker with another version of Python, or without
# pyarrow, runs no function at all, and these are the things that are to be named. So the executors' Java
# processes start the worker's Python themselves, as `RDD.pipe` of Java does, with the text of
# `executor_probe.py`. It has the folder and the environment that a worker has.
#
# Why the tasks name their executors. Spark gives tasks to executors as they come, and one that is quick gets
# all of them; a task that prefers an executor waits for it, as long as `spark.locality.wait` says.

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pillarbox.doctor import Finding, closest_folder, numbers_of, requirements_of_spark
from pillarbox.redaction import reason_of, redacted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REGISTER_TIMEOUT_S = 60.0
"""Seconds for the first executor to appear."""
SETTLE_S = 3.0
"""Seconds without another executor after which those that are there are taken for all."""
POLL_INTERVAL_S = 0.1
LOCALITY_WAIT = "60s"
ROWS = 40
MIB = 1 << 20
MIN_WORKER_BYTES = 128 * MIB
"""Memory for each Python worker: pyarrow, pandas and Pillarbox take 100 MiB when imported."""
MIN_THREADS = 32
MIN_DESCRIPTORS = 256
MIN_FREE_BYTES = 256 * MIB

# The worker's Python may be absent, too old for the probe, or end in an import: a shell says so.
SHELL = r"""
while read -r id; do
  if command -v "$1" >/dev/null 2>&1; then
    out=$("$@" "$id" 2>&1 </dev/null)
    status=$?
  else
    out=$(hostname)
    status=127
  fi
  printf '%s\t%s\t%s\n' "$id" "$status" "$(printf '%s' "$out" | tail -n 1)"
done
"""
LAUNCH = (
    "import sys, os\n"
    "if sys.version_info < (3, 7):\n"
    "    import json, socket\n"
    "    print(json.dumps({'executor': sys.argv[1], 'host': socket.gethostname(),"
    " 'executable': sys.executable,"
    " 'python': list(sys.version_info[:3])}))\n"
    "else:\n"
    "    exec(compile(os.environ['PILLARBOX_PROBE_SOURCE'], 'executor_probe', 'exec'))\n"
)


def check_cluster(
    spark: SparkSession,
    *,
    ledger: str | None = None,
    host: str = "0.0.0.0",
    advertise: str | None = None,
    run_job: bool = True,
) -> Iterator[Finding]:
    """Yield what is found on the executors of a running session, of classic Spark. The main thread.

    ledger: a location that all of them have to see. host, advertise: where a `Coordinator` or a `Progress` of
    a job would listen, and the name by which tasks would reach it. run_job: run rows through the operator at
    last, if nothing is wrong before.
    """
    with ExitStack() as stack:
        with suppress(ImportError):
            # A kernel that cannot be imported is found by another check.
            from pillarbox.spark.shipment import use_driver_python

            use_driver_python(spark)
        yield from _settings(spark)
        executors = _executors(spark)
        if not executors:
            yield Finding(
                "executors",
                False,
                f"none has registered with {spark.sparkContext.master} within {REGISTER_TIMEOUT_S:g} s",
                "see in the cluster's UI whether it has free cores and memory, and whether executors reach "
                "the driver: spark.driver.host must be an address of this machine that they can connect to",
            )
            return
        yield Finding("executors", True, ", ".join(f"{name} on {where}" for name, where in executors.items()))
        addresses = stack.enter_context(_listening(host, advertise))
        asked: dict[str, Any] = {"addresses": addresses}
        if ledger is not None:
            marked = _mark(ledger, stack)
            if isinstance(marked, Finding):
                yield marked
            else:
                asked["ledger"], asked["mark"] = marked
        reports = _probe(spark, executors, asked)
        wrong = False
        for finding in _grouped(_judged(spark, reports, executors)):
            wrong |= not finding.ok
            yield finding
        if run_job and not wrong:
            yield _job(spark, host, advertise)


# -- the driver ---------------------------------------------------------------------------------------------


def _settings(spark: SparkSession) -> Iterator[Finding]:
    """Settings that do nothing as they stand."""
    context = spark.sparkContext
    wanted = context.getConf().get("spark.pyspark.python")
    if wanted and wanted != context.pythonExec:
        yield Finding(
            "spark.pyspark.python",
            False,
            f"{wanted} is set, and Spark starts {context.pythonExec}",
            "in a program that spark-submit did not start the setting does nothing: set PYSPARK_PYTHON in "
            "the environment of the driver",
        )
    files = context.getConf().get("spark.submit.pyFiles") or ""
    if ".whl" in files:
        yield Finding(
            "spark.submit.pyFiles",
            False,
            f"{files}: Python imports no compiled module from a packed wheel",
            "use `pillarbox pack` and spark.archives",
        )
    archives = context.getConf().get("spark.archives") or ""
    path = context.getConf().get("spark.executorEnv.PYTHONPATH") or ""
    names = {each.partition("#")[2] or os.path.basename(each) for each in archives.split(",") if each}
    if names and not names & set(path.split(os.pathsep)):
        yield Finding(
            "spark.archives",
            False,
            f"unpacked as {', '.join(sorted(names))}, and spark.executorEnv.PYTHONPATH is "
            f"{path or 'not set'}",
            "set spark.executorEnv.PYTHONPATH to that name, as `pillarbox pack` prints it, if workers are to "
            "import from there",
        )


def _executors(spark: SparkSession) -> dict[str, str]:
    """The hosts of the executors that are there, by their ids; those that come late are waited for."""
    context = spark.sparkContext
    store = context._jsc.sc().statusStore()
    is_local = str(context.master).split("[")[0] == "local"
    if not is_local:
        # Where executors come and go with the work, there is none without.
        context._jsc.parallelize(["", ""], 2).countAsync()
    end = time.monotonic() + REGISTER_TIMEOUT_S
    found: dict[str, str] = {}
    while time.monotonic() < end:
        listed = store.executorList(True)
        now = {
            str(each.id()): str(each.hostPort()).rpartition(":")[0]
            for each in (listed.apply(place) for place in range(listed.size()))
        }
        if not is_local:
            now.pop("driver", None)
        if now.keys() - found.keys():
            end = time.monotonic() + (0 if is_local else SETTLE_S)
        found = now
        time.sleep(POLL_INTERVAL_S)
    return found


@contextmanager
def _listening(host: str, advertise: str | None) -> Iterator[list[tuple[str, int]]]:
    """Have the driver listen, as for a coordinator, during a `with` block, which gets the addresses."""
    from pillarbox.rpc.server import RpcServer, Service

    with RpcServer("doctor", Service(), host, advertise=advertise) as server:
        yield list(server.handle().addresses)


def _mark(ledger: str, stack: ExitStack) -> tuple[str, str] | Finding:
    """Put a file where the ledger is to be, until `stack` ends; returns the folder and the file's name."""
    mark = f".doctor-{uuid.uuid4().hex}"
    try:
        if "://" in ledger and not ledger.startswith("file://"):
            import pyarrow.fs

            files, path = pyarrow.fs.FileSystem.from_uri(ledger)
            name = f"{path.rstrip('/')}/{mark}"
            files.open_output_stream(name).close()
            stack.callback(files.delete_file, name)
            return ledger, mark
        folder = closest_folder(ledger)
        (folder / mark).touch()
        stack.callback((folder / mark).unlink)
        return str(folder), mark
    except Exception as error:
        advice = "check the address, the credentials in the environment, and what they may do"
        return Finding("ledger from the driver", False, reason_of(error, ledger), advice)


# -- the executors ------------------------------------------------------------------------------------------


def _probe(
    spark: SparkSession, executors: Mapping[str, str], asked: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Run the probe once on each executor; returns the reports by executor, or {"error": text}."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    scala = context._jsc.sc()
    source = Path(__file__).with_name("executor_probe.py").read_text()
    environment = {
        "PILLARBOX_PROBE": json.dumps(dict(asked)),
        "PILLARBOX_PROBE_SOURCE": source,
    }
    # In local mode there is no process to which Spark has given the environment of an executor.
    for name, value in context.environment.items():
        environment.setdefault(name, value)
    command = ["/bin/sh", "-c", SHELL, "sh", context.pythonExec, "-c", LAUNCH]
    preferred = [
        jvm.scala.Tuple2(name, jvm.PythonUtils.toSeq([f"executor_{host.replace('_', '-')}_{name}"]))
        for name, host in executors.items()
    ]
    tag = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").AnyRef()
    rdd = scala.makeRDD(jvm.PythonUtils.toSeq(preferred), tag)
    lines = jvm.org.apache.spark.api.java.JavaRDD(rdd, tag).pipe(command, environment).collect()
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        name, status, said = (*str(line).split("\t", 2), "", "")[:3]
        if status == "127":
            found[name] = {"error": f"no {context.pythonExec} in its PATH ({said})"}
            continue
        try:
            found[name] = json.loads(said)
        except ValueError:
            found[name] = {"error": f"{context.pythonExec} ended with status {status}: {redacted(said)}"}
    return found


def _judged(
    spark: SparkSession, reports: Mapping[str, dict[str, Any]], executors: Mapping[str, str]
) -> Iterator[tuple[str, Finding]]:
    """Each finding of each executor."""
    for name in executors:
        report = reports.get(name, {"error": "its task was not run"})
        for finding in _of_executor(spark, report):
            yield name, finding


def _of_executor(spark: SparkSession, report: dict[str, Any]) -> Iterator[Finding]:
    if "error" in report:
        advice = "let PYSPARK_PYTHON, on the driver, name a Python that is on every executor"
        yield Finding("Python", False, report["error"], advice)
        return
    yield from _python(report)
    if "pillarbox" not in report:
        return
    yield _own(report["pillarbox"])
    for requirement in requirements_of_spark():
        if requirement[0] != "pyspark":
            yield _package(*requirement, report[requirement[0]])
    yield _memory(spark, report)
    yield _temporary(report["temporary"])
    yield _threads(report)
    descriptors = report["descriptors"]
    few = descriptors is not None and descriptors < MIN_DESCRIPTORS
    yield Finding(
        "open files",
        not few,
        "no limit" if descriptors is None else f"at most {descriptors:,} a process",
        "raise it (`ulimit -n`): each call in flight takes a connection" if few else "",
    )
    yield _reach(spark, report["reach"])
    if "ledger" in report:
        yield _ledger(report["ledger"])


def _python(report: dict[str, Any]) -> Iterator[Finding]:
    version = ".".join(map(str, report["python"]))
    found = f"{version} ({report['executable']})"
    if report["python"][:2] != list(sys.version_info[:2]):
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        yield Finding(
            "Python",
            False,
            f"{found}, and the driver has {here}",
            "PySpark runs no function then: start the driver with Python "
            f"{'.'.join(version.split('.')[:2])}, or let PYSPARK_PYTHON name a Python "
            f"{here} of the executors",
        )
    else:
        libc = f" on {report['platform']}, {report['libc'] or 'another libc than glibc'}"
        yield Finding("Python", True, found + libc)


def _own(found: dict[str, str]) -> Finding:
    here = metadata.version("pillarbox")
    if "error" in found:
        advice = "send it along: `pillarbox pack` prints the settings"
        if "No module named" not in found["error"]:
            advice += ", with --platform for a system older than this one"
        return Finding("pillarbox", False, found["error"], advice)
    if found["version"] != here:
        advice = f"functions travel by names of modules: install {here} there, or send it: `pillarbox pack`"
        return Finding("pillarbox", False, f"{found['version']}, and the driver has {here}", advice)
    return Finding("pillarbox", True, f"{here} ({found['folder']})")


def _package(name: str, least: str, found: dict[str, str]) -> Finding:
    advice = f"{least} or later is needed: install it there, or send it: `pillarbox pack --include spark`"
    if "error" in found:
        return Finding(name, False, found["error"], advice)
    good = numbers_of(found["version"]) >= numbers_of(least)
    return Finding(name, good, found["version"], "" if good else advice)


def _memory(spark: SparkSession, report: dict[str, Any]) -> Finding:
    """The memory that each Python worker may have, beside that of Java."""
    conf = spark.sparkContext.getConf()
    cores = max(1, int(conf.get("spark.executor.cores") or 1))
    found, limits = report["memory"], []
    said = []
    if found["available"] is not None:
        limits.append(found["available"] // cores)
        said.append(f"{_shown(found['available'])} free on the machine")
    if found["limit"] is not None:
        left = found["limit"] - (found["used"] or 0)
        limits.append(left // cores)
        said.append(f"{_shown(left)} left of the {_shown(found['limit'])} of its control group")
    setting = conf.get("spark.executor.pyspark.memory")
    if setting:
        limits.append(_bytes(setting) // cores)
        said.append(f"spark.executor.pyspark.memory={setting}")
    good = not limits or min(limits) >= MIN_WORKER_BYTES
    advice = (
        f"a Python worker takes {MIN_WORKER_BYTES // MIB} MiB and what its rows take, and one runs for each "
        f"of {cores} cores: raise spark.executor.memoryOverhead (or spark.executor.pyspark.memory), or lower "
        "spark.executor.memory, which is for Java"
    )
    return Finding(
        "memory for Python workers", good, "; ".join(said) or "no limit known", "" if good else advice
    )


def _shown(size: int) -> str:
    """A size in words, rounded down: where there is enough, executors are to look alike."""
    return f"{size // (1024 * MIB)} GiB" if size >= 2048 * MIB else f"{size // MIB:,} MiB"


def _bytes(size: str) -> int:
    """A size as Spark writes it; a plain number is MiB."""
    digits = "".join(each for each in size if each.isdigit())
    unit = size[len(digits) :].strip().lower()[:1]
    return int(digits or 0) << {"b": 0, "k": 10, "m": 20, "": 20, "g": 30, "t": 40, "p": 50}[unit]


def _temporary(found: dict[str, Any]) -> Finding:
    check = "folder for what is temporary"
    if "error" in found:
        advice = "make room there, or let spark.executorEnv.TMPDIR name another folder"
        return Finding(check, False, found["error"], advice)
    good = found["free"] >= MIN_FREE_BYTES
    return Finding(check, good, f"{found['folder']}: can be written", "" if good else "make room there")


def _threads(report: dict[str, Any]) -> Finding:
    started, error = report["threads"]["started"], report["threads"]["error"]
    limit, used = report["pids"]
    left = None if limit is None else limit - (used or 0)
    good = error is None and (left is None or left >= MIN_THREADS)
    found = f"{started} started at a time" + ("" if error is None else f", then: {error}")
    if left is not None and left < 10 * MIN_THREADS:
        found += f"; {left} left of the {limit} of its control group"
    advice = "raise `ulimit -u` and the limit of pids of the container: a task has about ten"
    return Finding("threads", good, found, "" if good else advice)


def _reach(spark: SparkSession, found: list[dict[str, Any]]) -> Finding:
    check = "way to the driver"
    good = any(each["error"] is None for each in found)
    if good:
        return Finding(check, True, f"{found[-1]['address']} is reached")
    driver = spark.sparkContext.getConf().get("spark.driver.host")
    return Finding(
        check,
        False,
        "; ".join(f"{each['address']}: {each['error']}" for each in found),
        "a Coordinator and a Progress of the driver are not reached: give them an address that executors "
        f"know, as Progress(host='0.0.0.0', advertise={driver!r}), and a port that the network lets through "
        "(port=)",
    )


def _ledger(found: dict[str, Any]) -> Finding:
    if found["error"] is not None:
        advice = "the workers write there themselves: check that it is mounted there, and their credentials"
        return Finding("ledger", False, found["error"], advice)
    if not found["sees"]:
        advice = "use a folder that all of them mount, or a bucket (s3://...): this is another one there"
        return Finding("ledger", False, "can be written, but the driver's file is not there", advice)
    return Finding("ledger", True, "shared with the driver, and can be written")


def _grouped(found: Iterable[tuple[str, Finding]]) -> list[Finding]:
    """One finding for all executors of which the same is found, which it names where they are not all."""
    groups: dict[Finding, list[str]] = {}
    executors: set[str] = set()
    for name, finding in found:
        groups.setdefault(finding, []).append(name)
        executors.add(name)
    named = []
    for finding, names in groups.items():
        where = "" if len(names) == len(executors) else f" of executor {', '.join(names)}"
        named.append(finding._replace(check=f"{finding.check}{where}"))
    return named


# -- a job --------------------------------------------------------------------------------------------------


def _job(spark: SparkSession, host: str, advertise: str | None) -> Finding:
    """Rows run through the operator on the executors, and their progress comes back."""
    from pillarbox.api import async_map
    from pillarbox.spark.progress import Progress

    async def double(row: Any) -> int:
        return int(2 * row.id)

    began = time.perf_counter()
    check = "job on the cluster"
    tasks = spark.sparkContext.defaultParallelism
    try:
        with (
            open(os.devnull, "w") as nowhere,
            Progress(host=host, advertise=advertise, file=nowhere) as progress,
        ):
            frame = async_map(spark.range(0, ROWS, 1, tasks), double, schema="n long", progress=progress)
            rows = frame.collect()
        seen = progress.totals.results
    except Exception as error:
        return Finding(check, False, _first_lines(error, 6), "see the executors' logs")
    right = sorted(row.n for row in rows) == [2 * n for n in range(ROWS)]
    found = f"{len(rows)} rows in {tasks} tasks in {time.perf_counter() - began:.1f} s"
    if not right:
        return Finding(check, False, f"{found}, with other results than theirs", "report this as a bug")
    good = seen == ROWS
    advice = "tasks do not reach a Progress of the driver: see `way to the driver`"
    return Finding(check, good, f"{found}; progress of {seen} rows was seen", "" if good else advice)


# -- the process --------------------------------------------------------------------------------------------


def _session(asked: Mapping[str, Any], folder: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("pillarbox-doctor").config("spark.ui.enabled", "false")
    builder = builder.config("spark.locality.wait", LOCALITY_WAIT).config("spark.sql.warehouse.dir", folder)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if asked["master"]:
        builder = builder.master(asked["master"])
    for name, value in asked["conf"].items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _findings(asked: Mapping[str, Any], folder: str) -> Iterator[Finding]:
    try:
        spark = _session(asked, folder)
    except Exception as error:
        advice = "name the cluster with --master, as spark://host:7077, yarn or k8s://https://host:6443"
        yield Finding("session", False, _first_lines(error, 4), advice)
        return
    yield Finding("session", True, f"Spark {spark.version} at {spark.sparkContext.master}")
    try:
        places = {name: asked[name] for name in ("ledger", "host", "advertise")}
        yield from check_cluster(spark, **places)
    finally:
        with suppress(Exception):
            spark.stop()


def _first_lines(error: BaseException, most: int) -> str:
    """The first lines of an error's text that are not empty, redacted."""
    said = [line.strip() for line in redacted(str(error)).splitlines() if line.strip()]
    return "\n".join(said[:most])


def main() -> int:
    """Read the request from standard input, and print each finding as a line of JSON."""
    asked = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="pillarbox-doctor-") as folder:
        for finding in _findings(asked, folder):
            print(json.dumps(finding), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
