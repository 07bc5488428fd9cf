"""Errors of workers as a user sees them: the sentence, the user's frames, and none of Pillarbox's."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

import cloudpickle
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch
from pillarbox.clients import Chat, Embeddings, HttpLookup
from pillarbox.sources import SimpleSource
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.connectors.redis_streams import RedisStreamSource
from pillarbox.sources.split import OffsetSplit
from pillarbox.spark import ask, async_map, async_udf, call_failed, embed_text, lookup, register_source
from pillarbox.spark.compat import DataSourceReader, DataSourceStreamReader
from pillarbox.spark.data_source import BatchReader, Read, StreamReader
from pillarbox.spark.shown_errors import MAX_LINES, lines_of
from pillarbox.testing import serve
from tests.spark import pythons, queries
from tests.versions import needs_pyspark, needs_source_streams

pytestmark = pytest.mark.spark

OURS = ("pyruntime/", "pillarbox/", "pyspark/", "py4j/", "at org.apache", "Traceback")


def price_of(row: Any) -> float:
    return 1.0 / (row.id - row.id)


async def in_a_helper(row: Any) -> dict[str, float]:
    return {"price": price_of(row)}


def blocking(row: Any) -> dict[str, float]:
    return {"price": price_of(row)}


async def in_batches(rows: list[Any]) -> list[dict[str, float]]:
    return [{"price": price_of(row)} for row in rows]


async def of_a_column(n: int) -> float:
    return 1.0 / (n - n)


async def raised_from(row: Any) -> float:
    try:
        return price_of(row)
    except ZeroDivisionError as error:
        raise LookupError(f"no price of {row.id}") from error


class Client:
    async def __aenter__(self) -> Client:
        raise LookupError("no key is set")

    async def __aexit__(self, *error: object) -> None:
        return None

    async def __call__(self, row: Any) -> float:
        return 1.0


def mapped(fn: Any, **named: Any) -> Callable[[DataFrame], DataFrame]:
    return lambda df: async_map(df, fn, schema="price double", **named)


def failure_of(df: DataFrame) -> PySparkException:
    with pytest.raises(PySparkException) as failed:
        df.collect()
    return failed.value


CASES = [
    (mapped(in_a_helper), "ZeroDivisionError: ", ["in in_a_helper", "in price_of"]),
    (mapped(blocking), "ZeroDivisionError: ", ["in blocking", "in price_of"]),
    (mapped(in_batches, batch=Batch(2)), "ZeroDivisionError: ", ["in in_batches", "in price_of"]),
    (
        lambda df: df.select(async_udf("double")(of_a_column)("id")),
        "ZeroDivisionError: ",
        ["in of_a_column"],
    ),
    (mapped(raised_from), "LookupError: no price of 7", ["in raised_from", "raised from ZeroDivisionError"]),
    (mapped(Client()), "LookupError: no key is set", []),
]


@pytest.mark.contract(
    "A worker's error begins with its sentence and has the user's frames, none of Pillarbox's or Spark's."
)
@pytest.mark.parametrize(("make", "sentence", "frames"), CASES)
def test_an_error_has_its_sentence_first_and_the_users_frames_next(
    spark: SparkSession, make: Callable[[DataFrame], DataFrame], sentence: str, frames: list[str]
) -> None:
    error = failure_of(make(spark.range(7, 8)))
    lines = lines_of(error)
    assert lines is not None
    assert len(lines) <= MAX_LINES
    assert sentence in lines[0]
    text = "\n".join(lines)
    for frame in frames:
        assert frame in text
    # The text of the error too, for who prints it, logs it, or has another display.
    said = str(error).partition("JVM stacktrace")[0]
    assert sentence in said.split("\n  File")[0]
    for each in OURS:
        assert each not in text.partition("The job was started by")[0]
        assert each not in said.replace("pillarbox.aio.errors.", "").partition("[pillarbox]")[0]


def test_the_line_of_the_script_that_began_the_job_is_shown(spark: SparkSession) -> None:
    lines = lines_of(failure_of(async_map(spark.range(1), in_a_helper, schema="price double")))
    assert lines is not None
    after = lines[lines.index("The job was started by:") + 1 :]
    assert "test_shown_errors.py" in after[0]
    assert "df.collect()" in after[1]


SERVICES: dict[str, Callable[[DataFrame, str], DataFrame]] = {
    "embed_text": lambda df, url: embed_text(df, "text", into="vector", client=Embeddings(url, "model")),
    "ask": lambda df, url: ask(df, client=Chat(url, "model", prompt="Of what mood is {text}?"), into="mood"),
    "lookup": lambda df, url: lookup(df, client=HttpLookup(f"{url}/planes/{{text}}"), schema="seats int"),
}


@pytest.mark.contract("The error of a service has its sentence, and no frame of a client or of Pillarbox.")
@pytest.mark.parametrize("name", SERVICES)
def test_the_error_of_a_service_has_no_frames_of_its_client(spark: SparkSession, name: str) -> None:
    with serve(key="right") as service:
        refused = SERVICES[name](spark.createDataFrame([("N14228",)], "text string"), service.url)
        lines = lines_of(failure_of(refused))
    assert lines is not None
    assert "CallFailed: call failed after 1 attempt" in lines[0] and "HTTP 401" in lines[0]
    assert lines[1] == "The job was started by:"
    assert len(lines) == 5


@dataclass(frozen=True)
class Prices(SimpleSource[OffsetSplit]):
    """A source that fails where it is told to."""

    place: str = "read"
    schema = pa.schema([("n", pa.int64())])
    discovery_interval = None

    def list_splits(self) -> list[OffsetSplit]:
        if self.place == "list":
            price_of(Row(id=7))
        return [OffsetSplit("all", 0, 3)]

    def read(self, split: OffsetSplit) -> Iterator[Any]:
        yield [(price_of(Row(id=7)),)], 3


SOURCES: dict[str, tuple[Callable[[Path], Any], str, list[str]]] = {
    "reading": (lambda _: Prices("read"), "ReadFailed: reading split 'all' failed: Zero", ["in price_of"]),
    "planning": (lambda _: Prices("list"), "ZeroDivisionError: ", ["in list_splits", "in price_of"]),
    "options": (lambda _: FileSource, "ValueError: option 'path' is missing", []),
    "no such file": (lambda folder: FileSource(f"{folder}/none.parquet"), "FileNotFoundError: path=", []),
    "a bad file": (lambda folder: bad_file(folder), "ReadFailed: reading split '+0' failed: ", []),
    "no service": (
        lambda _: RedisStreamSource("redis://127.0.0.1:1/0", "orders", bounded=True),
        "ConnectionError: Redis at 127.0.0.1:1/0: looking for streams: ",
        [],
    ),
}


def bad_file(folder: Path) -> FileSource:
    path = folder / "broken.parquet"
    path.write_bytes(b"PAR1" + 100 * b"x")
    return FileSource(str(path), schema=pa.schema([("n", pa.int64())]), settle=0)


def check_source_error(error: PySparkException, sentence: str, frames: list[str]) -> None:
    lines = lines_of(error)
    assert lines is not None
    assert len(lines) <= MAX_LINES
    assert lines[0].startswith(sentence)
    text = "\n".join(lines).partition("The job was started by")[0]
    assert [frame for frame in frames if frame not in text] == []
    assert [each for each in (*OURS, ".pyx") if each in text] == []
    assert "Traceback" not in str(error)


@needs_pyspark(4, 0, "sources")
@pytest.mark.contract(
    "A source's error begins with its sentence and has the user's frames, none of Pillarbox's or Spark's."
)
@pytest.mark.parametrize("name", SOURCES)
def test_the_error_of_a_source_is_shown_as_that_of_a_function(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    make, sentence, frames = SOURCES[name]
    form = register_source(spark, make(tmp_path), f"shown_{[*SOURCES].index(name)}")
    with pytest.raises(PySparkException) as failed:
        spark.read.format(form).load().collect()
    check_source_error(failed.value, sentence, frames)


@needs_source_streams
@pytest.mark.parametrize("name", ["reading", "planning"])
def test_the_error_of_a_stream_of_a_source_is_shown_as_that_of_a_function(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    make, sentence, frames = SOURCES[name]
    stream = spark.readStream.format(register_source(spark, make(tmp_path), f"stream_{name}")).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = queries.start(writer.trigger(availableNow=True))
    with pytest.raises(PySparkException) as failed:
        query.awaitTermination()
    check_source_error(failed.value, sentence, frames)


@needs_source_streams
@pytest.mark.contract("A task that reads a source on a worker without Pillarbox says what is missing where.")
@pytest.mark.parametrize("kind", [BatchReader, StreamReader])
def test_a_worker_without_pillarbox_says_so_of_a_source(
    kind: Callable[[Read], DataSourceReader | DataSourceStreamReader], tmp_path: Path
) -> None:
    read = Read.of(Prices(), {}, Prices.schema)
    loading = [
        pythons.python_without("pillarbox", tmp_path),
        "-c",
        "import pickle, sys; pickle.load(sys.stdin.buffer)",
    ]
    done = subprocess.run(loading, input=cloudpickle.dumps(kind(read)), capture_output=True, check=False)
    *_, sentence, mark = done.stderr.decode().splitlines()
    assert sentence.startswith("ModuleNotFoundError: Prices cannot run: the Python of Spark's worker, ")
    assert "has no module 'pillarbox'; send it along (`pillarbox pack`)" in sentence
    assert mark == '[pillarbox] {"error": "ModuleNotFoundError"}'
    assert type(pickle.loads(cloudpickle.dumps(kind(read)))) is kind


def test_a_job_that_writes_shows_no_java(spark: SparkSession, tmp_path: Path) -> None:
    df = async_map(spark.range(1), in_a_helper, schema="price double")
    with pytest.raises(Exception, match="ZeroDivisionError") as failed:
        df.write.parquet(str(tmp_path / "out"))
    lines = lines_of(failed.value)
    assert lines is not None and len(lines) <= MAX_LINES
    assert "ZeroDivisionError" in lines[0]
    assert not any("org.apache" in line for line in lines)
    assert call_failed(failed.value) is not None


def test_an_error_of_sparks_own_is_shown_as_it_is(spark: SparkSession) -> None:
    error = failure_of(spark.range(1).select(F.raise_error(F.lit("theirs"))))
    assert lines_of(error) is None
    assert lines_of(ValueError("not Spark's")) is None


def test_a_long_sentence_and_deep_calls_stay_within_the_lines(spark: SparkSession) -> None:
    def deeper(n: int) -> float:
        if n == 0:
            raise LookupError("x\n" * 100_000)
        return deeper(n - 1)

    async def deep(row: Any) -> float:
        return deeper(50)

    lines = lines_of(failure_of(async_map(spark.range(1), deep, schema="price double")))
    assert lines is not None
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) < 700


@pytest.mark.contract("A forgotten `await` is named, whatever kind of function forgets it.")
@pytest.mark.parametrize("kind", ["coroutine", "inside", "plain", "batch"])
def test_a_forgotten_await_is_named(spark: SparkSession, kind: str) -> None:
    async def service(row: Any) -> float:
        return 1.0

    async def coroutine(row: Any) -> Any:
        return service(row)

    async def inside(row: Any) -> Any:
        return {"price": service(row)}

    def plain(row: Any) -> Any:
        return service(row)

    async def batch(rows: list[Any]) -> list[Any]:
        return [service(row) for row in rows]

    fn: Any = {"coroutine": coroutine, "inside": inside, "plain": plain, "batch": batch}[kind]
    more: dict[str, Any] = {"batch": Batch(1)} if kind == "batch" else {}
    lines = lines_of(failure_of(async_map(spark.range(1), fn, schema="price double", **more)))
    assert lines is not None
    assert ("async def" if kind == "plain" else "await") in lines[0]


@pytest.mark.contract("A function that never returns a value is named on the driver.")
def test_a_forgotten_return_is_named(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    async def forgets(row: Any) -> Any:
        price = {"price": 1.0}  # noqa: F841

    async def returns_at_times(row: Any) -> Any:
        if row.id:
            return {"price": 1.0}
        return None

    async def only_raises(row: Any) -> Any:
        raise LookupError

    async def yields(row: Any) -> Any:
        yield {"price": 1.0}

    with caplog.at_level(logging.WARNING, "pillarbox"):
        for fn in (returns_at_times, only_raises, yields):
            async_map(spark.range(1), fn, schema="price double")
        assert caplog.messages == []
        async_map(spark.range(1), forgets, schema="price double")
        async_udf("double")(forgets)
    assert len(caplog.messages) == 2
    assert all("forgets never returns a value" in each for each in caplog.messages)
    lines = lines_of(failure_of(async_map(spark.range(1), forgets, schema="price double, place string")))
    assert lines is not None and "is a `return` missing" in lines[0]


SCRIPT = """
from pyspark.sql import SparkSession

from pillarbox.spark import async_map

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")


async def lookup(row):
    return {"price": 1 / row.id}


async_map(spark.range(1), lookup, schema="price double").show()
"""


def run(folder: Path, code: str, **environment: str) -> str:
    script = folder / "job.py"
    script.write_text(code)
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode in (0, 1)
    return done.stdout + done.stderr


CONNECTED = SCRIPT.replace('.master("local[1]").config', '.remote("local[1]").config').replace(
    'spark.sparkContext.setLogLevel("OFF")', ""
)


@pytest.mark.slow
@pytest.mark.contract("Over Spark Connect a worker without Pillarbox is a line that says what to do.")
def test_a_script_over_connect_shows_what_its_worker_lacks(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    folder = tmp_path / "without"
    folder.mkdir()
    python = pythons.python_without("pillarbox", folder)
    text = run(tmp_path, CONNECTED, PYSPARK_PYTHON=python, SPARK_TESTING="1")
    # Spark's log, before it, has it too.
    shown = text[text.rindex("ModuleNotFoundError: lookup cannot run") :].rstrip().splitlines()
    assert "has no module 'pillarbox'" in shown[0]
    assert shown[1] == "The job was started by:"
    assert 'job.py", line 14, in <module>' in shown[2]
    assert len(shown) <= MAX_LINES
    assert not any("Traceback" in line for line in shown)


@pytest.mark.slow
@pytest.mark.contract("A script that a worker's error ends shows at most 12 lines of it.")
def test_a_script_ends_with_the_sentence_and_the_users_frames(tmp_path: Path) -> None:
    text = run(tmp_path, SCRIPT)
    shown = text[text.index("CallFailed: ") :].rstrip().splitlines()
    assert len(shown) <= MAX_LINES
    assert "ZeroDivisionError: division by zero" in shown[0]
    assert 'job.py", line 11, in lookup' in shown[1]
    assert 'job.py", line 14, in <module>' in shown[4]
    assert "Traceback" not in text
    full = run(tmp_path, SCRIPT, PILLARBOX_FULL_TRACEBACK="1")
    assert "runners.py" in full and "java_gateway.py" in full


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="NoColor")
first, _, last = open("cells.py").read().partition("async_map(spark")
shell.run_cell(first)
print("BEGIN")
shell.run_cell("async_map(spark" + last)
print("END")
shell.run_cell("1 / 0")
"""


@pytest.mark.slow
@pytest.mark.contract("A notebook shows at most 12 lines of a worker's error.")
def test_a_notebook_shows_few_lines(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="the package IPython is not installed")
    cells = tmp_path / "cells.py"
    cells.write_text(SCRIPT)
    text = run(tmp_path, NOTEBOOK.replace("cells.py", str(cells)))
    shown = text.partition("BEGIN\n")[2].partition("END")[0].strip().splitlines()
    assert "CallFailed: " in shown[0]
    assert len(shown) <= MAX_LINES
    assert any("return {" in line for line in shown)
    # Others are shown as before.
    assert "ZeroDivisionError" in text.partition("END")[2]
