"""Images in questions over Spark, frames and streams; and where no image and no key of a job may stand."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pillarbox import Ledger
from pillarbox.clients import Chat, Http, Images
from pillarbox.frames import add_methods
from pillarbox.spark import ask, async_stream, async_udf, estimate_cost
from pillarbox.tasks import classify, extract
from pillarbox.testing import StandInService, serve
from tests.clients.pictures import JPEG, PDF, PNG, fragments, picture, png, said
from tests.spark import queries
from tests.spark.conftest import ScriptRunner
from tests.spark.streams import END_TIMEOUT_S, Collected, read_input, rocksdb, write_input
from tests.versions import needs_async_stream

DIRECT = Http(proxy="direct")
ROWS = [
    ("a", png(1), [png(2), picture(JPEG)]),
    ("b", picture(PDF), [picture(PDF)]),
    ("c", None, None),
    ("d", b"no picture, but pixels", []),
]
COLUMNS = "name string, photo binary, pages array<binary>"


@pytest.fixture(scope="module")
def service() -> Iterator[StandInService]:
    with serve() as service:
        yield service


@pytest.fixture
def photos(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, COLUMNS)


def chat(service: StandInService, **options: Any) -> Chat:
    return Chat(service.url, "small", **{"prompt": "What is it?", "http": DIRECT, **options})


ANSWERS = {"a": said(PNG, png(1)), "b": said(PDF, picture(PDF)), "c": None, "d": None}
PAGES = {
    "a": f"{said(PNG, png(2))} {said(JPEG, picture(JPEG))}",
    "b": said(PDF, picture(PDF)),
    "c": None,
    # Without an image: the stand-in answers the text.
    "d": "What is it?",
}


@pytest.mark.contract(
    "A column of images, or of arrays of them, is asked about in Spark; a bad one fails its row."
)
def test_columns_of_images_are_asked_about(
    photos: DataFrame, service: StandInService, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"), uid="ask", run="1")
    for calls in (2, 0):
        before = service.statistics().inputs
        found = ask(
            photos, client=chat(service), images=["photo"], into="answer", errors="column", ledger=ledger
        )
        rows = {row.name: row for row in found.collect()}
        assert {name: row.answer for name, row in rows.items()} == ANSWERS
        assert [name for name, row in rows.items() if row._error is not None] == ["d"]
        assert "does not begin like a PNG" in rows["d"]._error.message
        assert service.statistics().inputs - before == calls
    pages = ask(photos, client=chat(service, images="pages"), into="answer", keep=["name"]).collect()
    assert {row.name: row.answer for row in pages} == PAGES


@pytest.mark.contract(
    "A chat with images is a column and a function of SQL: its images come after its prompt."
)
def test_a_chat_with_images_is_a_column(
    photos: DataFrame, service: StandInService, spark: SparkSession
) -> None:
    about = async_udf(chat(service, prompt="What is {name}?", images=["photo"]))
    some = photos.where("name != 'd'")
    rows = some.select("name", about("name", "photo").alias("answer")).collect()
    assert {row.name: row.answer for row in rows} == {name: ANSWERS[name] for name in "abc"}
    spark.udf.register("about_photo", about)
    some.createOrReplaceTempView("some_photos")
    assert (
        spark.sql("select about_photo(name, photo) as a from some_photos where name = 'a'").first().a
        == ANSWERS["a"]
    )


@pytest.mark.contract("Columns that cannot hold images are refused on the driver.")
@pytest.mark.parametrize(
    ("images", "kind", "says"),
    [
        ("id", TypeError, "images: 'id' is a column of bigint; must be binary, a string that is an address"),
        ("ids", TypeError, "images: 'ids' is a column of array<bigint>"),
        ("none", ValueError, "images: 'none' is not a column of the DataFrame"),
        (["photo", "photo"], ValueError, "images: columns=.*has a name twice"),
    ],
)
def test_wrong_columns_are_refused_on_the_driver(
    spark: SparkSession, images: Any, kind: type[Exception], says: str
) -> None:
    df = spark.createDataFrame([], "id long, ids array<long>, photo binary")
    client = Chat("https://host/v1", "small", prompt="What is it?")
    with pytest.raises(kind, match=says):
        ask(df, client=client, images=images, into="answer")


@pytest.mark.contract(
    "Tables of pandas, Polars and Arrow have images too, and the tasks of `pillarbox.tasks`."
)
def test_frames_and_tasks_take_images(service: StandInService) -> None:
    columns = {"name": ["a", "c"], "photo": [png(1), None]}
    polars = pytest.importorskip("polars")
    add_methods()
    for frame in (pd.DataFrame(columns), polars.DataFrame(columns)):
        made = frame.pillarbox.ask(client=chat(service), images="photo", into="answer")
        assert [None if each is pd.NA or each != each else each for each in made["answer"]] == [
            ANSWERS["a"],
            None,
        ]
    table = pa.table(columns)
    made = classify(table, "name", ["good", "bad"], client=chat(service, images=["photo"]))
    assert made["label"].to_pylist()[1] is None and made["label"].to_pylist()[0] in ("good", "bad")
    schema = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
    made = extract(table, None, schema, client=chat(service, images=["photo"]))
    assert [type(each) for each in made["total"].to_pylist()] == [float, type(None)]
    with pytest.raises(ValueError, match="text=None: is for a client with images"):
        extract(table, None, schema, client=chat(service))


@pytest.mark.contract("An estimate says that the tokens of images are unknown, unless a count is given.")
def test_an_estimate_tells_of_the_tokens_of_images(photos: DataFrame, service: StandInService) -> None:
    def notes(images: Any) -> str:
        client = chat(service, images=images)
        options = {"sample": 2, "rows": 100, "tasks": 1, "file": io.StringIO()}
        return "\n".join(estimate_cost(photos.where("name < 'c'"), client, **options).notes)

    assert "tokens" not in notes(None)
    assert "the tokens of images (photo) are unknown: those of the sample are counted" in notes("photo")
    assert "images take 77,000 tokens at 770 each" in notes(Images("photo", tokens=770))


@pytest.mark.slow
@needs_async_stream
@pytest.mark.contract("Images go through `async_stream` as through a batch.")
def test_images_go_through_a_stream(spark: SparkSession, service: StandInService, tmp_path: Path) -> None:
    columns = "id long, photo binary"
    write_input(spark, tmp_path / "in", columns, [[(n, png(n)) for n in range(6)]])
    sink = Collected()
    with rocksdb(spark):
        stream = read_input(spark, tmp_path / "in", columns)
        client = chat(service, images=["photo"])
        out = async_stream(stream, client, schema="answer string", keep=["id"], max_wait=1.0)
        writer = out.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        queries.start(writer.trigger(availableNow=True)).awaitTermination(END_TIMEOUT_S)
    assert {row.id: row.answer for row in sink.rows} == {n: said(PNG, png(n)) for n in range(6)}


LEAKS = """
import json, logging, os, sys, traceback
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pillarbox import Ledger, async_map as map_rows
from pillarbox.aio.observe import Watch, report
from pillarbox.clients import Chat, Http, Secret
from pillarbox.spark import ask
from pillarbox.testing import serve
from tests.clients.pictures import JPEG, picture, png
from tests.clients.spoken import SPOKEN
from tests.clients.test_images import quoting
from tests.clients.raw_service import RawService

logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
written = Path(sys.argv[1])
kept = InMemorySpanExporter()
provider = TracerProvider(resource=Resource.create({"pillarbox.span_share": 1.0}), shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)

photos = [png(1, 3_000), picture(JPEG, 2), b"no picture " + png(3, 900), png(4, 2_000)]
given = [{"id": n, "photo": photo} for n, photo in enumerate(photos)]
df = spark.createDataFrame([tuple(row.values()) for row in given], "id long, photo binary").coalesce(1)
for language in SPOKEN:
    variable = f"KEY_OF_{language.upper()}"
    options = {"prompt": "What is it?", "images": ["photo"], "language": language}
    options |= {"key": Secret.env(variable), "http": Http(proxy="direct")}

    def shown(error):
        traceback.print_exc()
        print("error", language, repr(error), repr(error.__cause__), vars(error))

    def job(name, url):
        client = Chat(url, "small", **options)
        ledger = Ledger(f"{written}/ledger", uid=name, run="1")
        made = ask(df, client=client, into="answer", keep=["id"], errors="column", ledger=ledger)
        print(made._jdf.queryExecution().toString())
        made.write.parquet(f"{written}/made/{name}")
        # Without Spark: spans, and the report of what was watched.
        ledger = Ledger(f"{written}/ledger", uid=f"{name}-rows", run="1")
        with map_rows(given, client, errors="column", ledger=ledger) as found, Watch(found) as watch:
            for outcome in found:
                print("row", name, outcome)
        report(watch, f"{written}/{name}.html", title=name)
        try:
            list(map_rows(given[2:], client))
        except Exception as error:
            shown(error)
        return client

    with serve(key=os.environ[variable]) as service:
        job(f"{language}-good", service.url)
    with RawService(quoting) as refusing:
        client = Chat(f"{refusing.url}/v1", "small", **options)
        try:
            ask(df, client=client, into="answer").collect()
        except Exception as error:
            shown(error)
        print("row", language, list(map_rows(given, client, errors="column")))
spans = kept.get_finished_spans()
print("spans", len(spans))
print("\\n".join(span.to_json() for span in spans))
"""


@pytest.mark.contract(
    "No image and no key of a job, in any language, is in a plan, an event log, a span, a report, an error, "
    "a log line, a result or a ledger.",
    convicts=["image_in_error", "image_in_row_of_error"],
)
def test_images_and_keys_of_a_job_are_nowhere_but_in_its_requests(
    run_script: ScriptRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    keys = [f"key-{secrets.token_hex(12)}" for _ in range(4)]
    for language, key in zip(("OPENAI", "RESPONSES", "ANTHROPIC", "GEMINI"), keys, strict=True):
        monkeypatch.setenv(f"KEY_OF_{language}", key)
    written = tmp_path / "written"
    (written / "events").mkdir(parents=True)
    log = tmp_path / "log"
    lines = run_script(
        f"import os\nos.dup2(os.open({str(log)!r}, os.O_CREAT | os.O_WRONLY, 0o600), 2)\n" + LEAKS,
        str(written),
        settings={"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{written}/events"},
        alone=True,
        timeout=360,
    )
    output = "\n".join(lines)
    assert output.count("row ") >= 20 and output.count("error ") >= 8 and "[image]" in output
    assert output.count(said(PNG, png(1, 3_000))) >= 4
    spans = int(next(line for line in lines if line.startswith("spans ")).split()[1])
    assert spans >= 8
    files = {
        path.relative_to(written).as_posix(): path.read_bytes()
        for path in written.rglob("*")
        if path.is_file()
    }
    kinds = {name.partition("/")[0] for name in files}
    assert kinds >= {"events", "ledger", "made", "gemini-good.html"}, kinds
    found = {**files, "output": output.encode(), "log": log.read_bytes()}
    secret = [key.encode() for key in keys]
    for photo in (png(1, 3_000), picture(JPEG, 2), b"no picture " + png(3, 900), png(4, 2_000)):
        secret += fragments(photo)
    assert {name: [each for each in secret if each in content] for name, content in found.items()} == {
        name: [] for name in found
    }
