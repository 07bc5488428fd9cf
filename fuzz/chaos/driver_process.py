"""The driver: a process that has a Spark session and runs one job after the other until it is killed.

`python -m fuzz.chaos.driver_process MASTER SETTINGS` reads jobs as lines of JSON from its input, and says
what became of each on its output, in lines that begin with `MARK`.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from fuzz.chaos.job import Job, run_job

MARK = "chaos: "


def say(what: str, detail: str = "") -> None:
    """Tell the harness."""
    print(MARK + json.dumps([what, detail]), flush=True)


def main(master: str, settings: dict[str, bool | float | int | str | None]) -> None:
    """Run what is asked for."""
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    say("ready")
    for line in sys.stdin:
        try:
            run_job(spark, Job(**json.loads(line)))
        except Exception as error:
            say("failed", str(error))
        else:
            say("done")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
