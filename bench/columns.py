"""CPU a row of Spark's Python workers through each door: `python -m bench.columns`.

Microseconds, on `local[1]`, for functions that return at once; Spark's identity stands beside them. Rounds
are interleaved; medians. By `build/spark-3.5-venv/bin/python`, which `make test-spark` makes, the figures are
those of PySpark 3.5.
"""

from __future__ import annotations

import argparse
import statistics

import psutil
import pyspark
from pyspark.sql import SparkSession

from bench.small import identity, of_row, of_value
from pillarbox.spark import async_map, async_udf
from pillarbox.spark.shipment import use_driver_python


def cpu() -> float:
    """Return the seconds of CPU that the Python processes below this one have taken."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "python" in process.name():
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        except psutil.NoSuchProcess:
            continue
    return total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.columns", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    use_driver_python(spark)
    rows = spark.range(0, words.rows, 1, 1)
    doors = {
        "identity `mapInArrow`": rows.mapInArrow(identity, "id long"),
        "`async_map`": async_map(rows, of_row, schema="id long"),
        "`async_udf`": rows.select(async_udf(of_value, "long")("id")),
    }
    found: dict[str, list[float]] = {name: [] for name in doors}
    for number in range(words.rounds + 1):
        for name, door in doors.items():
            before = cpu()
            door.write.format("noop").mode("overwrite").save()
            # The first round starts workers.
            if number:
                found[name].append((cpu() - before) / words.rows * 1e6)
    spark.stop()
    print(f"| us a row, PySpark {pyspark.__version__} | median | least |")
    print("|---|---|---|")
    for name, each in found.items():
        print(f"| {name} | {statistics.median(each):.2f} | {min(each):.2f} |")


if __name__ == "__main__":
    main()
