"""The ledger under Spark: runs, tasks and micro-batches done again call only what has no answer yet."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import logging
import queue
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

pytest.importorskip("pyspark.sql")

from pyspark.errors import PythonException

from pillarbox import Options
from pillarbox.ledger import Ledger, LedgerError
from pillarbox.spark import async_map, async_udf, estimate_cost
from tests.spark.counting import Counting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunScript = Callable[..., list[str]]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "calls")


@pytest.mark.contract
def test_a_second_run_calls_nothing_however_the_rows_are_partitioned(
    spark: SparkSession, ledger: Ledger, counting: Counting
) -> None:
    async def call(row: Any) -> dict[str, Any]:
        counting.note(row.id)
        return {"text": f"row {row.id}", "vector": [row.id / 3, 1.0]}

    def rows(partitions: int, **given: Any) -> list[Any]:
        options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run", key=["id"]), **given)
        df = spark.range(0, 300, 1, partitions)
        out = async_map(df, call, schema="text string, vector array<double>", keep="*", options=options)
        return sorted(map(tuple, out.collect()))

    first = rows(2)
    assert first == [(row, f"row {row}", [row / 3, 1.0]) for row in range(300)]
    assert rows(3, ordered=False) == rows(1) == first
    assert counting.calls() == {str(row): 1 for row in range(300)}


@pytest.mark.contract
def test_a_column_finds_its_results_by_the_values_of_its_arguments(
    spark: SparkSession, ledger: Ledger, counting: Counting
) -> None:
    def column(key: list[str] | None) -> Any:
        @async_udf("string", ledger=dataclasses.replace(ledger, uid=f"by {key}", run="run", key=key))
        async def call(number: int, text: str) -> str:
            counting.note(number)
            return f"{number} {text}"

        return call

    df = spark.createDataFrame([(1, "a"), (2, "b")], "number int, text string").coalesce(1)
    other = spark.createDataFrame([(1, "a"), (2, "c")], "number int, text string").coalesce(1)
    for key in (None, ["number"]):
        found = [row[0] for row in df.select(column(key)("number", "text")).collect()]
        again = [row[0] for row in other.select(column(key)("number", "text")).collect()]
        assert (found, again) == (["1 a", "2 b"], ["1 a", "2 c"])
    assert counting.calls() == {"1": 2, "2": 4}


class Pair(NamedTuple):
    """A result with names."""

    left: int
    right: str


@dataclasses.dataclass
class Thing:
    """A result of another kind."""

    left: int
    right: str


SCHEMA = (
    "n int, at timestamp, local timestamp_ntz, day date, price decimal(10,2), raw binary, "
    "pair struct<left: int, right: string>, pairs array<struct<left: int, right: string>>, "
    "marks map<string,int>"
)


def test_results_of_every_form_come_back_as_they_were(
    spark: SparkSession, ledger: Ledger, counting: Counting
) -> None:
    async def call(row: Any) -> Any:
        import zoneinfo

        from pyspark.sql import Row

        counting.note(row.id)
        at = datetime.datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
        pair: Any = [Pair(1, "é"), Thing(1, "é"), Row(left=1, right="é"), (1, "é")][row.id % 4]
        values = {
            "n": row.id,
            "at": at,
            "local": at.replace(tzinfo=None),
            "day": at.date(),
            "price": decimal.Decimal("12.34"),
            "raw": b"\x00\xff",
            "pair": pair,
            "pairs": [pair, None],
            "marks": {"a": 1},
        }
        if row.id == 5:
            return []
        if row.id == 6:
            return [values, Row(**values)]
        return [values, Row(**values), tuple(values.values())][row.id % 3]

    def rows() -> list[Any]:
        out = async_map(
            spark.range(8), call, schema=SCHEMA, ledger=dataclasses.replace(ledger, uid="uid", run="run")
        )
        return sorted(map(tuple, out.collect()))

    first = rows()
    assert [row[0] for row in first] == [0, 1, 2, 3, 4, 6, 6, 7]
    assert rows() == first
    assert set(counting.calls().values()) == {1}


@pytest.mark.contract
def test_another_schema_finds_no_results_that_would_not_fit(
    spark: SparkSession, ledger: Ledger, counting: Counting
) -> None:
    async def call(row: Any) -> int:
        counting.note(row.id)
        return int(row.id)

    for schema in ("n int", "n string", "n int"):
        if schema == "n string":

            async def text(row: Any) -> str:
                counting.note(row.id)
                return str(row.id)

            fn: Any = text
        else:
            fn = call
        async_map(
            spark.range(2), fn, schema=schema, ledger=dataclasses.replace(ledger, uid="uid", run="run")
        ).collect()
    assert counting.calls() == {"0": 2, "1": 2}


def test_one_function_of_two_columns_keeps_them_apart(spark: SparkSession, ledger: Ledger) -> None:
    @async_udf("string", ledger=dataclasses.replace(ledger, uid="uid", run="run", key=["number"]))
    async def say(number: int, text: str) -> str:
        return f"{number} {text}"

    df = spark.createDataFrame([(1, "a", "b")], "number int, title string, body string")
    both = df.select(say("number", "title").alias("title"), say("number", "body").alias("body"))
    assert [tuple(row) for row in both.collect()] == [("1 a", "1 b")]
    assert [tuple(row) for row in both.collect()] == [("1 a", "1 b")]


@pytest.mark.contract
def test_two_operators_of_a_run_under_one_uid_are_told(spark: SparkSession, ledger: Ledger) -> None:
    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run", key=["id"]))

    async def other(row: Any) -> int:
        return -1

    df = spark.range(2)
    async_map(df, same, schema="n long", options=options)
    async_map(df, same, schema="n long", options=options)
    # Not `pytest.warns`, which gives back PySpark's own warnings without the module that the filters ask for.
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="uid='uid': was that of .*same over the columns id before"):
            async_map(df, other, schema="n long", options=options)


def test_a_result_that_does_not_fit_is_called_for_again(
    spark: SparkSession, ledger: Ledger, counting: Counting
) -> None:
    def run(wrong: bool) -> list[Any]:
        async def call(row: Any) -> Any:
            counting.note(row.id)
            return "text" if wrong and row.id == 3 else int(row.id)

        options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"), capacity=1)
        df = spark.range(0, 5, 1, 1)
        return [row.n for row in async_map(df, call, schema="n long", options=options).collect()]

    with pytest.raises(PythonException, match="does not fit the schema"):
        run(True)
    assert run(False) == [0, 1, 2, 3, 4]
    assert counting.calls()["3"] == 2
    assert counting.calls()["0"] == 1


@pytest.mark.contract
@pytest.mark.parametrize("is_column", [False, True])
def test_rows_whose_key_is_null_get_their_own_answers_in_the_first_run(
    spark: SparkSession, ledger: Ledger, counting: Counting, is_column: bool
) -> None:
    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run", key=["id"]))

    async def call(row: Any) -> str:
        counting.note(row.text)
        return f"answer to {row.text}"

    @async_udf("string", options=options)
    async def column(id: int | None, text: str) -> str:
        counting.note(text)
        return f"answer to {text}"

    rows = [(None if number % 4 == 0 else number, f"text {number}") for number in range(40)]
    df = spark.createDataFrame(rows, "id long, text string").repartition(2)
    for _ in range(2):
        if is_column:
            out = df.select("text", column("id", "text").alias("answer"))
        else:
            out = async_map(df, call, schema="answer string", keep=["text"], options=options)
        assert sorted(map(tuple, out.collect())) == sorted((text, f"answer to {text}") for _, text in rows)
    assert counting.calls() == {text: 1 for _, text in rows}


@pytest.mark.contract
@pytest.mark.parametrize("answered", [0, 20], ids=["new", "an earlier run"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_key_that_comes_twice_with_different_inputs_fails_in_one_task_and_in_two(
    spark: SparkSession, ledger: Ledger, partitions: int, answered: int
) -> None:
    async def call(row: Any) -> str:
        return str(row.text)

    given: dict[str, Any] = {
        "schema": "answer string",
        "ledger": dataclasses.replace(ledger, uid="uid", run="run", key=["id"]),
    }
    rows = [(number % 20, f"text {number}") for number in range(40)]

    def frame(some: list[tuple[int, str]]) -> Any:
        # Each half of the rows is a partition, where there are two.
        rdd = spark.sparkContext.parallelize(some, partitions)
        return spark.createDataFrame(rdd, "id long, text string")

    if answered:
        first = async_map(frame(rows[:answered]), call, **given).collect()
        assert len(first) == answered
    df = frame(rows)
    with pytest.raises(PythonException, match="two rows of this run have one key, and differ in text"):
        async_map(df, call, **given).collect()


@pytest.mark.contract
def test_one_message_on_the_driver_gives_the_count_of_what_has_changed(
    spark: SparkSession, ledger: Ledger, counting: Counting
) -> None:
    async def call(row: Any) -> str:
        counting.note(row.text)
        return str(row.text)

    messages: queue.Queue[str] = queue.Queue()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # A job of another test, which failed, may be told of only now.
            if "run='changed'" in record.getMessage():
                messages.put(record.getMessage())

    handler = Handler(logging.WARNING)
    log = logging.getLogger("pillarbox")
    log.addHandler(handler)
    try:
        ledger = dataclasses.replace(ledger, uid="uid", run="changed", key=["id"])
        for text in ("old", "new"):
            df = spark.range(0, 20, 1, 4).selectExpr("id", f"concat('{text} ', id) as text", "1 as n")
            out = async_map(df, call, schema="answer string", ledger=ledger)
            # The second action over one plan is another execution, over the same input.
            for _ in range(2):
                answers = sorted(row.answer for row in out.collect())
                assert answers == sorted(f"{text} {number}" for number in range(20))
        said = messages.get()
        assert "run='changed', uid='uid': 20 rows were called again" in said
        assert "(it differs by text in 20)" in said
        assert set(counting.calls().values()) == {1}
        version = dataclasses.replace(ledger, version=2)
        async_map(df, call, schema="answer string", ledger=version).collect()
        assert "20 of another version than 2" in messages.get()
        assert messages.empty()
    finally:
        log.removeHandler(handler)


def test_columns_that_do_not_count_may_change_and_must_be_columns(
    spark: SparkSession, ledger: Ledger, counting: Counting
) -> None:
    async def call(row: Any) -> str:
        counting.note(row.text)
        return str(row.text)

    ledger = dataclasses.replace(ledger, uid="uid", run="run", inputs=["text"])
    for key in (["id"], None):
        for at in range(2):
            df = spark.range(0, 4, 1, 1).selectExpr("id", "concat('text ', id) as text", f"{at} as at")
            named = dataclasses.replace(ledger, key=key)
            async_map(df, call, schema="answer string", ledger=named).collect()
    assert set(counting.calls().values()) == {2}
    with pytest.raises(
        ValueError, match="inputs: 'texts' is not a column of the DataFrame .columns: id, text, at"
    ):
        async_map(df, call, schema="answer string", ledger=dataclasses.replace(ledger, inputs=["texts"]))


def test_an_estimate_keeps_and_finds_nothing(
    spark: SparkSession, ledger: Ledger, counting: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    async def call(row: Any) -> int:
        counting.note(row.id)
        return int(row.id)

    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"))
    async_map(spark.range(10), call, schema="n long", options=options).collect()
    estimate_cost(spark.range(10), call, options=options, sample=5)
    assert counting.calls().total() == 15
    assert len([*ledger.scopes()]) == 1


async def same(row: Any) -> int:
    return int(row.id)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"run": None}, "run=None: a batch job needs a name"),
        ({"key": ["name"]}, "key: 'name' is not a column of the DataFrame .columns: id"),
        ({"key": [1]}, "key: 1 is not a column"),
        ({"uid": None}, "uid=None: with a ledger"),
    ],
)
def test_what_cannot_be_is_refused_on_the_driver(
    spark: SparkSession, ledger: Ledger, given: dict[str, Any], says: str
) -> None:
    ledger = dataclasses.replace(ledger, **{"uid": "uid", "run": "run", **given})
    with pytest.raises(ValueError, match=says):
        async_map(spark.range(2), same, schema="n long", ledger=ledger)


def test_a_place_that_cannot_be_written_is_refused_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = Ledger(str(tmp_path / "file" / "below"))
    with pytest.raises((LedgerError, OSError)):
        async_map(
            spark.range(2), same, schema="n long", ledger=dataclasses.replace(ledger, uid="uid", run="run")
        )


@pytest.mark.contract
@pytest.mark.parametrize("is_column", [False, True])
def test_a_task_that_sees_another_folder_than_the_driver_fails_and_calls_nothing(
    spark: SparkSession, ledger: Ledger, counting: Counting, tmp_path: Path, is_column: bool
) -> None:
    options = Options(ledger=dataclasses.replace(ledger, uid="uid", run="run"))

    async def call(row: Any) -> int:
        counting.note(row)
        return 1

    df = spark.range(0, 4, 1, 1)
    if is_column:
        out = df.select(async_udf("long", options=options)(call)("id"))
    else:
        out = async_map(df, call, schema="n long", options=options)
    # The worker has a disk of its own under this path.
    Path(ledger.location).rename(tmp_path / "the driver's")
    with pytest.raises(PythonException, match="is not the place that the driver saw"):
        out.collect()
    assert not counting.calls()


# -- failures ------------------------------------------------------------------------------------

HEAD = """
import asyncio, collections, dataclasses, json, os, pathlib, signal, sys
from pillarbox.ledger import Ledger, Scope
from pillarbox.spark import async_map, async_udf
tmp = pathlib.Path(sys.argv[1])
ledger = Ledger(str(tmp / "ledger"))

def note(row):
    with open(tmp / "calls", "a") as file:
        file.write(f"{row}\\n")

def calls():
    return collections.Counter(map(int, (tmp / "calls").read_text().split()))

def first_time(name):
    try:
        (tmp / f"first-{name}").touch(exist_ok=False)
        return True
    except FileExistsError:
        return False
"""


@pytest.mark.contract
@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_task_that_is_tried_again_repeats_only_what_the_loss_window_allows(
    run_script: RunScript, tmp_path: Path, partitions: int
) -> None:
    lines = run_script(
        HEAD
        + """
partitions = int(sys.argv[2])
finished = []

async def call(row):
    note(row.id)
    await asyncio.sleep(0.01)
    if row.id == 1500 and first_time("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    return row.id * 2

df = spark.range(0, 2000, 1, partitions)
options = dict(capacity=20, ledger=dataclasses.replace(ledger, uid="uid", run="run", key=["id"]))
out = async_map(df, call, schema="twice long", keep="*", **options)
print(sorted(map(tuple, out.collect())) == [(i, 2 * i) for i in range(2000)], (tmp / "first-kill").exists())
made = calls()
repeated = [row for row, count in made.items() if count > 1]
# 20 in flight, and those of 0.2 s at 20 calls in 10 ms at best.
print(len(made) == 2000, max(made.values()) <= 2, 1 <= len(repeated) <= 20 + 400)
# Rows that were far before the kill are never called twice.
print(all(row > 1000 for row in repeated))
""",
        str(tmp_path),
        str(partitions),
        master="local[4,9]",
    )
    assert lines == ["True True", "True True True", "True"]


@pytest.mark.slow
@pytest.mark.contract
def test_a_micro_batch_that_is_done_again_finds_its_results_and_committed_ones_expire(
    run_script: RunScript, tmp_path: Path
) -> None:
    lines = run_script(
        HEAD
        + """

(tmp / "in").mkdir()
for part in range(6):
    with open(tmp / "in" / f"{part}.json", "w") as file:
        file.writelines(json.dumps({"id": part * 100 + i}) + "\\n" for i in range(100))

async def call(row):
    note(row.id)
    if row.id == 350 and first_time("row"):
        # All before it are through: one call at a time.
        raise ConnectionError("first attempt")
    return row.id * 2

def query():
    df = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(tmp / "in"))
    kept = dataclasses.replace(ledger, uid="uid", key=["id"])
    out = async_map(df, call, schema="twice long", keep="*", capacity=1, ledger=kept)
    return (out.writeStream.format("parquet").option("path", str(tmp / "out"))
        .option("checkpointLocation", str(tmp / "checkpoint")).trigger(availableNow=True).start())

try:
    query().awaitTermination(3600)
    print("no failure")
except Exception as error:
    print("first attempt" in str(error))
again = query()
again.awaitTermination(3600)
rows = sorted(tuple(row) for row in spark.read.parquet(str(tmp / "out")).collect())
print(rows == [(i, 2 * i) for i in range(600)])
print(calls() == {i: 1 + (i == 350) for i in range(600)})
scopes = [*ledger.scopes()]
print({scope.run for scope in scopes} == {str(again.id)}, sorted(scope.batch for scope in scopes))
""",
        str(tmp_path),
        master="local[1]",
    )
    assert lines == ["True", "True", "True", "True [4, 5]"]


def test_foreach_batch_has_the_name_of_its_query(run_script: RunScript, tmp_path: Path) -> None:
    lines = run_script(
        HEAD
        + """

@async_udf("long", ledger=dataclasses.replace(ledger, uid="udf"), errors="null")
async def column(n):
    note(n)
    return n * 3

async def call(row):
    note(row.id)
    return row.id * 2

def process(df, batch):
    options = dict(ledger=dataclasses.replace(ledger, uid="map", key=["id"]))
    rows = lambda: sorted(map(tuple, async_map(df, call, schema="twice long", **options).collect()))
    column_of = lambda: sorted(map(tuple, df.select(column("id")).collect()))
    print(rows() == rows(), column_of() == column_of())

(tmp / "in").mkdir()
(tmp / "in" / "a.json").write_text("".join(json.dumps({"id": i}) + "\\n" for i in range(10)))
df = spark.readStream.schema("id long").json(str(tmp / "in"))
query = df.writeStream.foreachBatch(process).trigger(availableNow=True).start()
query.awaitTermination(3600)
print(sorted((scope.uid, scope.batch, scope.run == str(query.id)) for scope in ledger.scopes()))
print(set(calls().values()))
try:
    spark.range(3).select(column("id")).collect()
except Exception as error:
    print("run=None: not a streaming query" in str(error))
""",
        str(tmp_path),
        master="local[1]",
    )
    assert lines == ["True True", "[('map', 0, True), ('udf', 0, True)]", "{2}", "True"]
