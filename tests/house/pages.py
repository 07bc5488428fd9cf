"""Pages of the documentation as scripts, run as a reader runs them: pasted into a new process of Python.

What a process costs beyond Python's own start is Spark's Java. `Java` starts one, in which each script gets a
Spark of its own, by the two environment variables by which `spark-submit` has its Python find its Java.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.spark import queries

BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"pip install '?pillarbox\[([\w, -]+)\]'?")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TIMEOUT_S = 500
ONLY_INSTALLED = '''"""Finds no module that `pip install` of the page would not have installed."""

import sys
from importlib.machinery import PathFinder

MISSING = frozenset({missing!r})


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in MISSING else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
'''


def blocks(text: str) -> list[tuple[int, str]]:
    """The examples of a page that a reader sees, each with the number of the line in front of its first."""
    shown = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = []
    for match in BLOCK.finditer(shown):
        indent = match[1]
        code = "\n".join(line.removeprefix(indent) for line in match[2].split("\n"))
        found.append((shown.count("\n", 0, match.start(2)), code))
    return found


def script(examples: list[tuple[int, str]]) -> str:
    """The examples as one script, on the lines that they have in the page."""
    lines: list[str] = []
    for line, code in examples:
        lines += [""] * (line - len(lines)) + code.rstrip("\n").split("\n")
    return "\n".join(lines) + "\n"


def extras(text: str) -> list[str] | None:
    """The extras that a page has its reader install before its first example, or None."""
    found = INSTALL.search(text.partition("```python")[0])
    return None if found is None else re.split(r", *", found[1])


def missing_after_install(wanted: list[str]) -> set[str]:
    """The top-level modules of this environment that `pip install pillarbox[wanted]` does not bring."""
    brought: set[str] = set()
    ahead = [Requirement(f"pillarbox[{','.join(wanted)}]")]
    while ahead:
        requirement = ahead.pop()
        name = canonicalize_name(requirement.name)
        each = f"{name}[{','.join(sorted(requirement.extras))}]"
        if each in brought:
            continue
        brought |= {each, name}
        environments: list[Any] = [{"extra": extra} for extra in (*requirement.extras, "")]
        for line in metadata.distribution(name).requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate(env) for env in environments):
                ahead.append(needed)
    return {
        module
        for module, distributions in metadata.packages_distributions().items()
        if not brought & {canonicalize_name(each) for each in distributions}
    }


class Java:
    """A Java process that scripts share, one after the other. Confined to one thread; a context manager.

    folder: where Spark keeps its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gateway: Any = None

    def __enter__(self) -> Java:
        return self

    def __exit__(self, *_: object) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway.proc.stdin.close()
            self._gateway.proc.wait()

    def environment(self) -> dict[str, str]:
        """The variables by which the Spark of a script runs in this Java."""
        if self._gateway is None:
            from pyspark.conf import SparkConf
            from pyspark.java_gateway import launch_gateway

            settings = {
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self._folder}",
                "spark.local.dir": str(self._folder / "local"),
                "spark.log.level": "ERROR",
                # A reader's Spark has a task for each core; two, as of the other tests, show the same.
                "spark.master": "local[2]",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
            }
            with contextlib.chdir(self._folder) if sys.version_info >= (3, 11) else contextlib.nullcontext():
                self._gateway = launch_gateway(SparkConf(loadDefaults=False).setAll([*settings.items()]))
        parameters = self._gateway.gateway_parameters
        return {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
            "PYSPARK_PYTHON": sys.executable,
        }

    def stop_spark(self) -> None:
        """End the Spark of the script that has ended."""
        self._gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()


def run(text: str, examples: list[tuple[int, str]], folder: Path, java: Java) -> None:
    """Run examples of a page in a new process, and raise AssertionError with its traceback if it fails.

    Without the packages that the page does not install, if it says what to install.
    """
    page = folder / "page.py"
    page.write_text(script(examples))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    wanted = extras(text)
    if wanted is not None:
        hooks = folder.with_name(f"{folder.name}-hooks")
        hooks.mkdir()
        missing = sorted(missing_after_install(wanted))
        (hooks / "sitecustomize.py").write_text(ONLY_INSTALLED.format(missing=missing))
        environment["PYTHONPATH"] = str(hooks)
    code = page.read_text()
    uses_spark = "SparkSession" in code
    if uses_spark:
        environment |= java.environment()
    try:
        while True:
            with queries.alone() if "readStream" in code else contextlib.nullcontext():
                status, output = _output([sys.executable, str(page)], folder, environment)
            if status == 0:
                return
            if queries.NOT_CONNECTED.search(output) is None:
                raise AssertionError(f"exit status {status}\n{output[-8000:]}")
    finally:
        if uses_spark:
            java.stop_spark()


def _output(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    # A session of its own, so that what it leaves is ended with it.
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, output
