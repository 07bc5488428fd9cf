"""`ask`: columns of what a language model answers, by a client that speaks to a real server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pillarbox import Batch, Budget, Ledger
from pillarbox.clients import Chat, Http, Price
from pillarbox.spark import ask, async_udf
from tests.clients.chat_service import ChatService, serving
from tests.spark.test_client_columns import in_thread

pydantic = pytest.importorskip("pydantic", reason="the package pydantic is not installed")

DIRECT = Http(proxy="direct", read_timeout=10.0)


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Place(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    name: str
    people: int | None = None


class Review(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    mood: Mood
    size: Literal["S", "L"]
    stars: float
    tags: list[str]
    day: date
    at: datetime | None = None
    place: Place | None = None
    counts: dict[str, int] = pydantic.Field(default_factory=dict)


REVIEW = (
    '{"mood": "good", "size": "L", "stars": 4, "tags": ["a", "b"], "day": "2024-02-01",'
    ' "at": "2024-02-01T10:00:00Z", "place": {"name": "Ulm"}, "counts": {"x": 1}}'
)
REVIEW_TYPE = (
    "struct<mood:string,size:string,stars:double,tags:array<string>,day:date,at:timestamp,"
    "place:struct<name:string,people:bigint>,counts:map<string,bigint>>"
)


@dataclasses.dataclass
class Counted:
    words: int
    first: str


class CountedAnew(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    first: str
    words: float
    language: str = "unknown"


class Other(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    letters: int


class Either(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    either: int | str


class Anything(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    any: Any


@pytest.fixture
def service() -> Iterator[ChatService]:
    service = ChatService()
    with in_thread(serving(service)):
        yield service


def chat_of(service: ChatService, **more: Any) -> Chat:
    return Chat(f"{service.url}/v1", "small", **{"prompt": "{text}", "http": DIRECT, **more})


@pytest.fixture
def texts(spark: SparkSession) -> DataFrame:
    rows = [(n, None if n % 5 == 4 else f"row {n}" + " more" * n) for n in range(10)]
    return spark.createDataFrame(rows, "id long, text string").repartition(1).sort("id")


@pytest.mark.contract
def test_the_fields_of_an_answer_are_columns_and_null_where_nothing_was_asked(
    texts: DataFrame, service: ChatService
) -> None:
    asked = ask(texts, client=chat_of(service, answer=Counted), keep=["id"])
    assert asked.schema.simpleString() == "struct<id:bigint,words:bigint,first:string>"
    found = asked.collect()
    assert found == [(n, None, None) if n % 5 == 4 else (n, 2 + n, "row") for n in range(10)]
    assert len(service.requests) == 8


SCRIPT = """
import dataclasses

@dataclasses.dataclass
class Word:
    text: str
    letters: int = 0

@dataclasses.dataclass
class Review:
    words: int
    first: str = "none"
    rest: list[Word] = dataclasses.field(default_factory=list)
"""


def test_a_dataclass_of_a_script_is_an_answer(texts: DataFrame, service: ChatService) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SCRIPT, "script", "exec", dont_inherit=True), names)
    found = ask(texts.limit(1), client=chat_of(service, answer=names["Review"]), keep=["id"]).collect()
    assert [tuple(row) for row in found] == [(0, 2, "row", [])]


@pytest.mark.contract
def test_a_job_at_a_service_that_knows_a_weaker_form_alone_loses_no_row(
    spark: SparkSession, service: ChatService
) -> None:
    service.structures = ("json_object",)
    rows = spark.createDataFrame([(f"row {n}",) for n in range(200)], "text string").repartition(2)
    asked = ask(rows, client=chat_of(service, answer=Counted), capacity=16).collect()
    assert [(row.words, row.first) for row in asked] == [(2, "row")] * 200
    # Of each task those in flight at the beginning, and one that looks again.
    assert service.structures_asked.count("json_schema") <= 2 * 17


@pytest.mark.contract
def test_a_plain_text_or_a_whole_answer_is_one_column(texts: DataFrame, service: ChatService) -> None:
    plain = ask(texts, client=chat_of(service), into="said", keep=["id"], capacity=2)
    assert plain.schema["said"].dataType.simpleString() == "string"
    assert plain.first().said == '{"words": 2, "first": "row"}'  # type: ignore[union-attr]
    whole = ask(texts, client=chat_of(service, answer=Counted), into="counted")
    assert whole.schema["counted"].dataType.simpleString() == "struct<words:bigint,first:string>"
    assert [row.counted for row in whole.collect()][3:5] == [(5, "row"), None]
    with pytest.raises(TypeError, match="into=None: a plain text needs the name of its column"):
        ask(texts, client=chat_of(service))


@pytest.mark.contract
@pytest.mark.parametrize("by_schema", [False, True], ids=["pydantic", "schema"])
def test_the_type_of_an_answer_is_the_type_of_its_columns(
    texts: DataFrame, service: ChatService, by_schema: bool
) -> None:
    service.answer = lambda messages: REVIEW
    answer = Review.model_json_schema() if by_schema else Review
    asked = ask(texts.limit(1), client=chat_of(service, answer=answer), keep=[])
    assert asked.schema.simpleString() == REVIEW_TYPE
    (row,) = asked.collect()
    assert row.asDict(recursive=True) == {
        "mood": "good",
        "size": "L",
        "stars": 4.0,
        "tags": ["a", "b"],
        "day": date(2024, 2, 1),
        "at": row["at"],
        "place": {"name": "Ulm", "people": None},
        "counts": {"x": 1},
    }
    (at,) = asked.select(F.date_format("at", "yyyy-MM-dd HH:mm").alias("at")).collect()
    assert at.at == "2024-02-01 10:00"


@pytest.mark.contract
def test_a_changed_schema_parses_anew_what_the_ledger_of_a_run_has_kept_without_a_call(
    texts: DataFrame, service: ChatService, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path), uid="ask", run="once")
    before = ask(texts, client=chat_of(service, answer=Counted), ledger=ledger, keep=["id"]).collect()
    calls = len(service.requests)
    after = ask(texts, client=chat_of(service, answer=CountedAnew), ledger=ledger, keep=["id"]).collect()
    assert after == [
        (row.id, row["first"], row.words, None if row.words is None else "unknown") for row in before
    ]
    assert after[0].words == 2.0
    assert len(service.requests) == calls


class Written(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    words: int
    first: str


Number = Annotated[int, pydantic.PlainSerializer(float, return_type=float)]


@pytest.mark.contract
def test_a_changed_schema_is_another_question_to_a_cache_and_another_type_of_spark_is_not(
    texts: DataFrame, service: ChatService, tmp_path: Path
) -> None:
    def asked(answer: Any) -> tuple[DataFrame, int]:
        service.requests.clear()
        ledger = Ledger(str(tmp_path), uid="ask", cache=True)
        found = ask(texts, client=chat_of(service, answer=answer), ledger=ledger, keep=["id"]).collect()
        return found, len(service.requests)

    before, calls = asked(Written)
    assert calls > 0
    as_float = pydantic.create_model("Written", words=(Number, ...), first=(str, ...))
    after, anew = asked(as_float)
    assert ([tuple(row) for row in after], anew) == ([tuple(row) for row in before], 0)
    assert isinstance(after[0].words, float)
    assert asked(CountedAnew)[1] == calls
    assert asked(Written)[1] == 0


def test_a_model_that_is_defined_in_a_function_is_sent_without_the_functions_variables(
    texts: DataFrame, service: ChatService
) -> None:
    class Word(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        letters: str

    class Words(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        words: int
        more: list[Word | None] = []  # noqa: RUF012
        sizes: list[Annotated[int, pydantic.Field(ge=0)]] = []  # noqa: RUF012

    found = ask(texts, client=chat_of(service, answer=Words), keep=[]).first()
    assert found is not None
    assert (found.words, found.more) == (2, [])


@pytest.mark.contract
def test_a_kept_reply_that_no_longer_fits_is_asked_again(
    texts: DataFrame, service: ChatService, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path), uid="ask", run="once")
    ask(texts, client=chat_of(service, answer=Counted), ledger=ledger).collect()
    calls = len(service.requests)
    service.answer = lambda messages: '{"letters": 7}'
    found = ask(texts, client=chat_of(service, answer=Other), ledger=ledger).collect()
    assert {row.letters for row in found} == {7, None}
    assert len(service.requests) == 2 * calls


@pytest.mark.contract
def test_a_client_is_a_column_and_a_function_of_sql(
    spark: SparkSession, texts: DataFrame, service: ChatService
) -> None:
    count = async_udf(chat_of(service, answer=Counted), capacity=4)
    assert count.returnType.simpleString() == "struct<words:bigint,first:string>"
    found = texts.select("id", count("text").alias("counted")).select("id", "counted.words").collect()
    assert [row.words for row in found] == [None if n % 5 == 4 else 2 + n for n in range(10)]
    spark.udf.register("count_words", count)
    texts.createOrReplaceTempView("texts_of_questions")
    found = spark.sql("select count_words(text).words as words from texts_of_questions").collect()
    assert sum(row.words or 0 for row in found) == sum(2 + n for n in range(10) if n % 5 != 4)
    said = async_udf(chat_of(service))
    assert said.returnType.simpleString() == "string"


@pytest.mark.contract
def test_a_row_whose_answer_never_fits_is_an_error_beside_the_others(
    texts: DataFrame, service: ChatService
) -> None:
    service.answer = lambda messages: (
        "no" if messages[0]["content"].startswith("row 3") else '{"words": 1, "first": "a"}'
    )
    client = chat_of(service, answer=Counted, prices={"small": Price(1.0, 1.0)})
    found = ask(texts, client=client, errors="column", budget=Budget(max_cost=100.0)).collect()
    assert [row.id for row in found if row._error is not None] == [3]
    assert (found[3].words, found[3]._error.attempts, found[3]._error.type) == (None, 3, "AnswerInvalid")
    assert found[2].words == 1


@pytest.mark.contract
def test_wrong_arguments_of_questions_are_refused_at_the_call(texts: DataFrame) -> None:
    def refused(kind: type[Exception], says: str, **given: Any) -> None:
        options = {"prompt": "{text}", "answer": Counted, **given}
        with pytest.raises(kind, match=says):
            ask(texts, client=Chat("http://localhost:1/v1", "m", **options))

    refused(ValueError, "prompt: 'author' is not a column of the DataFrame", prompt="{text} {author}")
    refused(ValueError, "answer.either: is one of several types", answer=Either)
    refused(ValueError, "answer.any: must say what it is", answer=Anything)
    chat = Chat("http://localhost:1/v1", "m", prompt="{text}")
    for refuse in (
        lambda **more: ask(texts, client=chat, into="x", **more),
        lambda **more: async_udf(chat, **more),
    ):
        with pytest.raises(ValueError, match="batch: a question is asked for each row alone"):
            refuse(batch=Batch(8))
        with pytest.raises(ValueError, match="max_cost=1.0: needs to know what a call costs"):
            refuse(budget=Budget(max_cost=1.0), errors="null")
    with pytest.raises(TypeError, match="df=5: must be a Spark DataFrame, .* not int"):
        ask(5, client=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="client=.*: must be a pillarbox.clients.Chat"):
        ask(texts, client=len, into="x")  # type: ignore[arg-type]
