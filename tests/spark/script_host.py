"""A process with a Spark of its own that runs scripts, one after the other: `python script_host.py SESSION`.

SESSION is a file of Python that makes `spark`. Each line that comes in is a script's path, its folder and its
arguments; each that goes out is what the script printed, or the traceback that it ended with, as JSON. A
script has names, settings, views and queries of its own; the Java process, the session and its workers are
shared.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def _settings(spark: Any) -> dict[str, str]:
    """The settings of the session."""
    if hasattr(spark.conf, "getAll"):
        return dict(spark.conf.getAll)
    # PySpark before 4.0.
    return {row.key: row.value for row in spark.sql("SET").collect()}


def _run(spark: Any, script: str, folder: str, arguments: list[str]) -> dict[str, Any]:
    settings = _settings(spark)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    printed = io.StringIO()
    # As in a script: functions of `__main__` travel to Spark's workers by value.
    names = {"__name__": "__main__", "spark": spark, "os": os, "sys": sys}
    failure = None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(Path(script).read_text(), script, "exec", dont_inherit=True), names)
    except BaseException:
        failure = traceback.format_exc()
    for query in spark.streams.active:
        query.stop()
    for name, value in _settings(spark).items():
        if name not in settings:
            spark.conf.unset(name)
        elif settings[name] != value:
            spark.conf.set(name, settings[name])
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)
    return {"lines": printed.getvalue().splitlines(), "failure": failure}


def main(session: str) -> None:
    # What else writes to the standard output is for nobody.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names: dict[str, Any] = {"__name__": "session"}
    exec(compile(Path(session).read_text(), session, "exec", dont_inherit=True), names)
    for line in sys.stdin:
        script, folder, arguments = json.loads(line)
        print(json.dumps(_run(names["spark"], script, folder, arguments)), file=answers, flush=True)
    names["spark"].stop()


if __name__ == "__main__":
    main(sys.argv[1])
