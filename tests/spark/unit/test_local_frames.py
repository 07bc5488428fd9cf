"""`async_map`, `embed_text`, `ask` and `lookup` over tables of pandas, Polars, Arrow, DuckDB and datasets."""

from __future__ import annotations

import asyncio
import datetime
import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

import numpy as np
import pandas as pd
import pyarrow as pa

from pillarbox import Batch, Budget, CallFailed, Ledger, Options, Step
from pillarbox.clients import Chat, Embeddings, HttpLookup
from pillarbox.frames import add_methods, ask, async_map, embed_text, lookup
from pillarbox.spark import local_frame
from pillarbox.testing import serve

COLUMNS: dict[str, list[Any]] = {"id": [3, 1, 2], "text": ["c", None, "b"]}


def of_polars(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def of_duckdb(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("duckdb").from_arrow(pa.table(columns))


def of_datasets(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


MAKERS: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "Polars": of_polars,
    "Arrow": pa.table,
    "DuckDB": of_duckdb,
    "datasets": of_datasets,
}


def columns_of(frame: Any) -> dict[str, list[Any]]:
    """The columns of a table of any kind, with None for a null."""
    if isinstance(frame, pd.DataFrame):
        return {
            str(name): [None if each is pd.NA or each != each else each for each in map(plain, frame[name])]
            for name in frame
        }
    if isinstance(frame, pa.Table):
        return frame.to_pydict()
    if type(frame).__module__.startswith("polars"):
        return frame.to_dict(as_series=False)  # type: ignore[no-any-return]
    if type(frame).__module__.startswith("datasets"):
        return {name: [*frame[name]] for name in frame.column_names}
    return pa.table(frame).to_pydict()


def plain(value: Any) -> Any:
    """A list of a column of pandas, which has arrays of NumPy for them."""
    return value.tolist() if hasattr(value, "tolist") else value


async def shout(row: Any) -> dict[str, Any]:
    # Those that come last end first.
    for _ in range(row.id):
        await asyncio.sleep(0)
    return {"upper": None if row.text is None else row.text.upper(), "twice": row.id * 2}


@pytest.mark.contract("A table without Spark has its results in a table of the same kind.")
@pytest.mark.parametrize("kind", MAKERS)
def test_a_table_gives_one_of_its_kind_with_results_beside_what_is_kept(kind: str) -> None:
    frame = MAKERS[kind](COLUMNS)
    made = async_map(frame, shout, schema="upper string, twice long", keep="*")
    assert type(made) is type(frame)
    assert columns_of(made) == {**COLUMNS, "upper": ["C", None, "B"], "twice": [6, 2, 4]}


@pytest.mark.parametrize("make", [lambda table: table.to_batches()[0], pa.Table.to_reader])
def test_batches_and_streams_of_arrow_give_a_table(make: Callable[[pa.Table], Any]) -> None:
    made = async_map(make(pa.table(COLUMNS)), shout, schema="upper string, twice long")
    assert columns_of(made) == {"upper": ["C", None, "B"], "twice": [6, 2, 4]}


@pytest.mark.contract("What is kept of a table without Spark is what was given, to the last nanosecond.")
def test_columns_that_are_kept_are_as_they_were() -> None:
    frame = pd.DataFrame(
        {
            "id": pd.array([1, 2], "UInt32"),
            "text": pd.Categorical(["b", "a"]),
            "at": pd.to_datetime(["2020-01-01T00:00:00.123456789", None]),
            "zoned": pd.to_datetime(["2020-01-01T00:00:00Z", "2020-07-01T00:00:00Z"]).tz_convert(
                "Europe/Oslo"
            ),
        },
        index=pd.Index(["x", "y"], name="key"),
    )
    made = async_map(frame, shout, schema="upper string, twice long", keep="*")
    pd.testing.assert_frame_equal(made[[*frame]], frame)
    assert [*made.upper] == ["B", "A"]
    table = pa.table({"id": pa.array([1], pa.uint8()), "text": pa.array(["a"]).dictionary_encode()})
    kept = async_map(table, shout, schema="upper string, twice long", keep=["text", "id"])
    assert kept.schema.types[:2] == [table.schema.types[1], pa.uint8()]


@pytest.mark.contract("Rows of a table without Spark keep their index, however many results each has.")
@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_index_of_pandas_follows_its_rows(is_ordered: bool) -> None:
    async def several(row: Any) -> list[int]:
        if row.id == 1:
            raise ValueError("no result")
        return [row.id] * row.id

    frame = pd.DataFrame(COLUMNS, index=["x", "y", "z"])
    made = async_map(frame, several, schema="n long", keep=["id"], errors="drop", ordered=is_ordered)
    assert sorted(zip(made.index, made.id, made.n, strict=True)) == [("x", 3, 3)] * 3 + [("z", 2, 2)] * 2
    # And the frame that was given is as it was.
    assert [*frame] == ["id", "text"]


def test_a_row_that_fails_has_its_error_beside_it() -> None:
    async def call(row: Any) -> int:
        if row.text is None:
            raise ValueError("no text")
        return int(row.id)

    made = async_map(pa.table(COLUMNS), call, schema="n long", keep=["id"], errors="column").to_pylist()
    assert [(row["id"], row["n"], row["_error"] and row["_error"]["message"]) for row in made] == [
        (3, 3, None),
        (1, None, "no text"),
        (2, 2, None),
    ]
    with pytest.raises(CallFailed, match="no text"):
        async_map(pa.table(COLUMNS), call, schema="n long")


@pytest.mark.contract("A ledger keeps the calls of a table without Spark, in any kind of table.")
def test_what_was_paid_for_over_one_table_is_not_paid_for_over_another(tmp_path: Path) -> None:
    calls = []

    async def call(row: Any) -> str:
        calls.append(row.id)
        return f"{row.text}!"

    ledger = Ledger(tmp_path / "kept", uid="frames", run="1", key=["id"])
    answers = ["c!", "None!", "b!"]
    for make in (pd.DataFrame, pa.table, pa.table):
        made = async_map(make(COLUMNS), call, schema="answer string", ledger=ledger)
        assert columns_of(made) == {"answer": answers}
    assert sorted(calls) == [1, 2, 3]


def test_a_budget_counts_the_calls_of_the_job() -> None:
    made = async_map(
        pa.table({"id": [*range(50)]}), lambda row: row.id, schema="n long", errors="column", capacity=4,
        budget=Budget(max_calls=20),
    )  # fmt: skip
    assert sum(row["n"] is not None for row in made.to_pylist()) == 20


def test_functions_of_a_chain_and_of_batches_get_what_they_get_in_spark() -> None:
    async def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert batch.schema.names == ["upper", "twice"] or batch.schema.names == ["id", "text"]
        return pa.RecordBatch.from_arrays([pa.array(range(batch.num_rows))], ["n"])

    arrow = Batch(10, arrow=True)
    made = async_map(pa.table(COLUMNS), lengths, schema="n long", batch=arrow)
    assert columns_of(made) == {"n": [0, 1, 2]}
    made = async_map(
        pa.table(COLUMNS), [shout, Step(lambda row: row.twice, uid="second")], schema="n long", keep=["id"]
    )
    assert columns_of(made) == {"id": [3, 1, 2], "n": [6, 2, 4]}


def test_times_without_a_zone_are_of_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def noon(row: Any) -> datetime.datetime:
        return datetime.datetime(2020, 7, 1, 12)

    monkeypatch.setenv("TZ", "America/New_York")
    made = async_map(pa.table({"id": [1]}), noon, schema="at timestamp")
    assert made.to_pylist()[0]["at"] == datetime.datetime(2020, 7, 1, 16, tzinfo=datetime.timezone.utc)


def test_empty_tables_give_empty_ones() -> None:
    made = async_map(pd.DataFrame(COLUMNS)[:0], shout, schema="upper string, twice long", keep="*")
    assert [*made] == ["id", "text", "upper", "twice"] and made.empty
    assert async_map(pa.table(COLUMNS)[:0], shout, schema="upper string, twice long").num_rows == 0


@dataclass
class Review:
    good: bool


@pytest.mark.contract("Clients give their columns over a table without Spark.")
@pytest.mark.parametrize("kind", MAKERS)
def test_clients_give_their_columns(kind: str) -> None:
    frame = MAKERS[kind](COLUMNS)
    with serve(dimensions=4) as service:
        vectors = embed_text(frame, "text", into="vector", client=Embeddings(service.url, "any-model"))
        chat = Chat(service.url, "any-model", prompt="Review: {text}", answer=Review)
        answers = ask(frame, client=chat, keep=["id"])
        planes = HttpLookup(f"{service.url}/planes/{{id}}")
        found = lookup(frame, client=planes, schema="seats int", keep=["id"])
    assert type(vectors) is type(answers) is type(found) is type(frame)
    assert [each is None or len(each) for each in columns_of(vectors)["vector"]] == [4, True, 4]
    assert [each is None for each in columns_of(answers)["good"]] == [False, True, False]
    assert columns_of(found)["id"] == [3, 1, 2]


@pytest.mark.parametrize("kind", ["pandas", "Polars"])
def test_frames_and_columns_have_the_functions_as_methods(kind: str) -> None:
    frame = MAKERS[kind](COLUMNS)
    add_methods()
    made = frame.pillarbox.async_map(shout, schema="upper string, twice long")
    assert columns_of(made) == {"upper": ["C", None, "B"], "twice": [6, 2, 4]}
    with serve(dimensions=4) as service:
        column = frame["text"].pillarbox.embed(Embeddings(service.url, "any-model"))
    assert [each is None or len(each) for each in column] == [4, True, 4]


@pytest.mark.contract(
    "A column of nulls alone, or of no rows, is one of texts.", convicts=["nulls_are_no_texts"]
)
@pytest.mark.parametrize("texts", [[], [None, None]])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_column_of_nulls_alone_gets_vectors(kind: str, texts: list[None]) -> None:
    columns = {"id": [1] * len(texts), "text": texts}
    # Of an empty list pandas makes numbers.
    frame = pd.DataFrame(columns, dtype=object) if kind == "pandas" else MAKERS[kind](columns)
    with serve(dimensions=4) as service:
        made = embed_text(frame, "text", into="v", client=Embeddings(service.url, "any-model"))
    assert columns_of(made)["v"] == texts


@pytest.mark.contract("A job that would wait for the loop that it holds up is refused in words.")
def test_a_job_in_an_async_function_of_a_job_is_refused() -> None:
    async def outer(row: Any) -> int:
        return len(async_map(pd.DataFrame(COLUMNS), shout, schema="upper string, twice long"))

    with pytest.raises(CallFailed, match="make the function a plain one"):
        async_map(pd.DataFrame(COLUMNS), outer, schema="n int")


def test_relations_of_connections_of_threads_go_back_to_these() -> None:
    duckdb = pytest.importorskip("duckdb")

    def job(number: int) -> list[Any]:
        connection = duckdb.connect()
        for name in ("made", "given", "new", "table"):
            connection.execute(f'create table "{name}" as select 7 as id')
        given = connection.sql(f"select {number} as id, 'a' as text")
        made = async_map(given, shout, schema="upper string, twice long", keep="*")
        assert connection.sql("show tables").fetchall() == [("given",), ("made",), ("new",), ("table",)]
        # A join is of one connection.
        return made.join(given, "id").fetchall()  # type: ignore[no-any-return]

    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(job, range(1, 9))]
    assert [len(rows) for rows in found] == [1] * 8


@pytest.mark.parametrize("limit", ["read only", "python_enable_replacements"])
def test_a_connection_that_takes_no_table_loses_no_result(tmp_path: Path, limit: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    duckdb.connect(tmp_path / "kept.db").close()
    with duckdb.connect(tmp_path / "kept.db", read_only=limit == "read only") as connection:
        given = connection.sql("select 1 as id, 'a' as text")
        if limit != "read only":
            connection.execute(f"set {limit} = false")
        made = async_map(given, shout, schema="upper string, twice long", keep="*")
        assert made.fetchall() == [(1, "a", "A", 2)]
        assert connection.sql("show tables").fetchall() == []


def test_a_column_of_nulls_beside_one_of_texts_has_none() -> None:
    frame = pa.table({"a": ["x", "y"], "b": pa.nulls(2)})
    with serve(dimensions=4) as service:
        client = Embeddings(service.url, "any-model")
        made = embed_text(frame, ["a", "b"], into=["va", "vb"], client=client)
    assert [len(each) for each in made["va"].to_pylist()] == [4, 4] and made["vb"].null_count == 2


def test_a_dataset_with_a_transform_is_refused() -> None:
    datasets = pytest.importorskip("datasets")
    given = datasets.Dataset.from_dict(COLUMNS).with_transform(lambda rows: rows)
    with pytest.raises(TypeError, match=r"give dataset\.map"):
        async_map(given, shout, schema="upper string, twice long")


@pytest.mark.contract(
    "Vectors in a frame of pandas are arrays of its own, which may be written.",
    convicts=[
        "null_vectors_of_pandas_empty",
        "uneven_vectors_of_pandas_even",
        "vectors_of_pandas_read_only",
    ],
)
def test_vectors_of_equal_rows_may_be_written_apart() -> None:
    async def call(row: Any) -> Any:
        return {"vector": {"a": [1.0, 2.0], "b": [0.5] * 3, "none": None}.get(row.text, [])}

    frame = pd.DataFrame({"text": ["a", "none", "a", "b", "", "a"]})
    made = async_map(frame, call, schema="vector array<float>", keep="*", options=Options(dedupe=True))
    whole = async_map(frame[frame["text"] != "none"], call, schema="vector array<double>")
    even = async_map(frame[frame["text"] == "a"], call, schema="vector array<double>")
    made["vector"][0][0] = 9.0
    found = [None if each is None else each.tolist() for each in made["vector"]]
    assert found == [[9.0, 2.0], None, [1.0, 2.0], [0.5] * 3, [], [1.0, 2.0]]
    assert [each.tolist() for each in whole["vector"]] == [[1.0, 2.0]] * 2 + [[0.5] * 3, [], [1.0, 2.0]]
    assert [each.tolist() for each in even["vector"]] == [[1.0, 2.0]] * 3
    assert made["vector"][0].dtype == "float32" and even["vector"][0].dtype == "float64"


@pytest.mark.contract(
    "Who writes a vector of an embedding service in a frame of pandas writes no other one, nor the ledger.",
    convicts=["vectors_of_equal_texts_share_memory", "vectors_of_the_ledger_read_only"],
)
def test_vectors_of_a_service_may_be_written_apart(tmp_path: Path) -> None:
    frame = pd.DataFrame({"text": ["a", "b", "b", "c", "a", "b", "d"]})
    options = Options(dedupe=True, ledger=Ledger(tmp_path, uid="v1", run="1"))
    with serve(dimensions=4) as service:
        client = Embeddings(service.url, "any-model", max_texts=2)
        vectors = embed_text(frame, "text", into="v", client=client)["v"]
        right = {text: each.tolist() for text, each in zip(frame["text"], vectors, strict=True)}
        for _ in ("asked", "found"):
            made = embed_text(frame, "text", into="vector", client=client, options=options)
            for place, vector in enumerate(made["vector"]):
                assert vector.tolist() == right[made["text"][place]]
                vector[:] = place


class Table:
    """Return views of an array that stays with the client."""

    def __init__(self) -> None:
        self.kept = np.ones((8, 4), np.float32)

    async def __call__(self, texts: list[str]) -> Any:
        return self.kept[: len(texts)]


class Remembering(Embeddings):
    """A client that keeps what it gives."""

    async def __call__(self, texts: Any) -> Any:
        found: Any = await super().__call__(texts)
        KEPT.append(found)
        return found


class Around:
    """A client that answers for another one by its names, and keeps what that gives."""

    def __init__(self, client: Embeddings) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def __aenter__(self) -> Any:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    async def __call__(self, texts: Any) -> Any:
        found: Any = await self._client(texts)
        KEPT.append(found)
        return found


KEPT: list[Any] = []


@pytest.mark.contract(
    "Who writes a vector in a frame of pandas writes nothing that the user's function has kept.",
    convicts=["vectors_of_functions_not_copied"],
)
def test_vectors_that_a_function_has_kept_are_copied() -> None:
    frame, table = pd.DataFrame({"text": ["a", "b"]}), Table()
    batch = Options(batch=Batch(2))
    for vector in embed_text(frame, "text", into="vector", client=table, options=batch)["vector"]:
        vector[:] = 9.0
    assert (table.kept == 1.0).all()
    with serve(dimensions=4) as service:
        for client in (Remembering(service.url, "any-model"), Around(Embeddings(service.url, "any-model"))):
            for vector in embed_text(frame, "text", into="vector", client=client, options=batch)["vector"]:
                vector[:] = 9.0
    assert len(KEPT) == 2
    assert not any((each == 9.0).any() for each in KEPT)


@pytest.mark.contract(
    "Vectors of an embedding service are not copied into a frame of pandas.", convicts=["new_vectors_copied"]
)
def test_vectors_that_are_new_are_not_copied() -> None:
    frame = pd.DataFrame({"text": [f"text {number}" for number in range(64)]})
    with serve(dimensions=256) as service:
        tracemalloc.start()
        made = embed_text(frame, "text", into="vector", client=Embeddings(service.url, "any-model"))
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, local_frame.__file__)])
        tracemalloc.stop()
    allocated = sum(each.size for each in traces.statistics("filename"))
    assert allocated < sum(each.nbytes for each in made["vector"]) // 2


@pytest.mark.contract(
    "A result beside columns named by times is a column of its own.", convicts=["times_for_names"]
)
@pytest.mark.parametrize("kind", ["DatetimeIndex", "PeriodIndex", "TimedeltaIndex"])
def test_a_result_overwrites_no_column_that_is_named_by_a_time(kind: str) -> None:
    names = {
        "DatetimeIndex": pd.DatetimeIndex(["2020-01-01"]),
        "PeriodIndex": pd.PeriodIndex(["2020-01"], freq="M"),
        "TimedeltaIndex": pd.TimedeltaIndex(["1 days"]),
    }[kind]

    async def call(row: Any) -> str:
        return "X"

    for name in ("2020", "2020-01-01", "1 days"):
        made = async_map(pd.DataFrame([[1]], columns=names), call, schema=f"`{name}` string", keep="*")
        assert [*made.iloc[0]] == [1, "X"] and made.columns[1] == name


@pytest.mark.contract(
    "The garbage collector has its thresholds back behind the last of several jobs.",
    convicts=["garbage_left_rare"],
)
def test_jobs_at_once_leave_the_garbage_collector_as_it_was() -> None:
    before = gc.get_threshold()
    seen = []
    inner = pd.DataFrame({"text": ["inside"]})

    def call(row: Any) -> str:
        # A job inside of a job, in another thread.
        if row.text == "outside":
            async_map(inner, call, schema="upper string", keep="*")
        seen.append(gc.get_threshold()[0])
        return str(row.text).upper()

    async_map(pd.DataFrame({"text": ["outside"]}), call, schema="upper string", keep="*")
    assert min(seen) > before[0]
    assert gc.get_threshold() == before
    gc.set_threshold(0)
    try:
        async_map(inner, call, schema="upper string", keep="*")
        assert seen[-1] == 0 and gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_a_bar_shows_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    async_map(pa.table(COLUMNS), shout, schema="upper string, twice long", progress=True)
    assert "shout: 3/3 rows" in capsys.readouterr().err


IDS = pa.table({"id": [1]})


@pytest.mark.parametrize(
    ("frame", "options", "error", "words"),
    [
        (IDS, {"options": Options(where="id > 1")}, ValueError, "where: is a condition of Spark"),
        (IDS, {"schema": "n tinyint nonsense"}, ValueError, "tinyint nonsense"),
        (pa.table({"id": pa.nulls(1, pa.month_day_nano_interval())}), {}, TypeError, "column 'id' is of"),
        (pa.table([[1], [2]], names=["id", "id"]), {}, ValueError, "'id'"),
        (pd.DataFrame({"id": [1, "a"]}), {}, TypeError, "a DataFrame that Arrow cannot take"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_call(
    frame: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    calls: list[Any] = []
    with pytest.raises(error, match=words):
        async_map(frame, calls.append, **{"schema": "n long", **options})
    assert not calls


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a Spark DataFrame, or a table of pandas"):
        embed_text([1, 2], "text", into="vector", client=Embeddings("http://127.0.0.1:1", "any-model"))


@pytest.mark.contract("A table without Spark starts no Java, and leaves the garbage collection as it was.")
def test_no_java_is_started() -> None:
    program = """
import gc, sys
import pandas
from pillarbox.frames import async_map
before = gc.get_threshold(), gc.get_freeze_count()
async def call(row):
    return row.n + 1
made = async_map(pandas.DataFrame({"n": [1, 2]}), call, schema="more long")
assert [*made.more] == [2, 3] and (gc.get_threshold(), gc.get_freeze_count()) == before
from pyspark import SparkContext
assert SparkContext._gateway is None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.contract(
    "Columns of pandas of any name and type that Arrow can take are kept as they were.",
    convicts=["names_of_columns_are_texts", "sparse_columns_refused", "new_columns_of_one_level"],
)
@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame([[1, 2]]),
        pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])),
        pd.DataFrame({"a": pd.arrays.SparseArray([0, 0, 1])}),
        pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": pd.array([True, None], "boolean")}),
        pd.DataFrame({"a": pd.Categorical(["x", None], categories=["z", "x"], ordered=True)}),
        pd.DataFrame({"a": pd.to_datetime(["2024-07-01"]).tz_localize("Europe/Berlin")}),
        pd.DataFrame({"a": pd.period_range("2024-01", periods=2, freq="M"), "b": pd.interval_range(0, 2)}),
        pd.DataFrame({"a.b": [1], "c`d": [2]}, index=pd.Index([5], name="a.b")),
        pd.DataFrame({"a": pd.Series([], dtype=object)}),
    ],
    ids=lambda frame: " ".join(map(str, [*frame.columns, *frame.dtypes])),
)
def test_any_columns_of_pandas_are_kept(frame: pd.DataFrame) -> None:
    async def number(row: Any) -> int:
        return len(row)

    made = async_map(frame, number, schema="fields long", keep="*")
    assert made.iloc[:, :-1].equals(frame)
    assert made.dtypes.tolist()[:-1] == frame.dtypes.tolist()
    assert made.iloc[:, -1].tolist() == [frame.shape[1]] * len(frame)


@pytest.mark.contract(
    "A dataset keeps its features and its format.",
    convicts=["features_of_arrow_alone", "format_of_a_dataset_lost", "new_columns_hidden"],
)
def test_a_dataset_keeps_its_features_and_its_format() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "pair": datasets.Translation(["en", "de"]),
            "image": datasets.Image(),
            "hidden": datasets.Value("int8"),
        }
    )
    image = {"bytes": b"x", "path": None}
    rows = {"label": [0, 1], "pair": [{"en": "a", "de": "b"}] * 2, "image": [image] * 2, "hidden": [1, 2]}
    given = datasets.Dataset.from_dict(rows, features=features).with_format("numpy", ["label"])

    async def call(row: Any) -> int:
        return row.label + row.hidden

    made = async_map(given, call, schema="total long", keep="*")
    assert made.features == {**features, "total": datasets.Value("int64")}
    assert made[:].keys() == {"label", "total"}
    assert made["total"][:].tolist() == [1, 3]
    assert made.format["type"] == "numpy"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "df: the column names 'a' stand more than once"),
        (lambda: pd.DataFrame([[1, 2]], columns=[1, "1"]), "df: the column names '1' stand more than once"),
        (lambda: pd.DataFrame(index=[1, 2]), "df: has 2 rows and no columns; give it one"),
        (lambda: pd.DataFrame({"a": [1 + 2j]}), "df: a DataFrame that Arrow cannot take"),
        (lambda: of_polars({"a": [object()]}), "df: column 'a' has objects of Python"),
        (
            lambda: pa.table({"a": pa.array([10**50], pa.decimal256(60, 0))}),
            "df: column 'a' is of Arrow's type",
        ),
    ],
)
def test_a_frame_that_cannot_be_is_refused_in_words(make: Callable[[], Any], message: str) -> None:
    async def call(row: Any) -> int:
        raise AssertionError("called")

    with pytest.raises((TypeError, ValueError)) as found:
        async_map(make(), call, schema="n int")
    assert message in str(found.value)


def test_runs_of_equal_values_are_values() -> None:
    column = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"])

    async def call(row: Any) -> str:
        return row.text.upper()

    made = async_map(pa.table({"text": column}), call, schema="upper string", keep="*")
    assert made["upper"].to_pylist() == ["A", "A", "B"]
    assert made["text"].type == column.type
