"""Rerankers: scores in the order of the documents, in every language."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pillarbox import Budget, CallFailed, async_map
from pillarbox.clients import Http, Price, Rerank, Secret
from pillarbox.clients.transport import HttpStatusError
from pillarbox.ledger import Ledger
from pillarbox.testing import StandInService, serve
from tests.clients.raw_service import RawRequest, RawService, raw_answer

DIRECT = Http(proxy="direct")
ROOTS = {"vllm": "/v1", "jina": "/jina/v1", "cohere": "/cohere/v2", "voyage": "/voyage/v1", "tei": "/tei"}
DOCUMENTS = ["a red pillar box", "soup that is warm", "soup", "nothing at all"]
ROW = {"query": "warm soup", "documents": DOCUMENTS}

each_language = pytest.mark.parametrize("language", ROOTS)


@pytest.fixture
def service() -> Iterator[StandInService]:
    with serve(key="k") as found:
        yield found


def client_of(service: Any, language: str, **options: Any) -> Rerank:
    base = service.url.removesuffix("/v1") + ROOTS[language]
    return Rerank(base, "small", **{"api": language, "key": Secret.literal("k"), "http": DIRECT, **options})


@pytest.mark.contract(
    "A reranker's scores stand in the order of the documents, whatever order the service gives.",
    convicts=["scores_best_first"],
)
@each_language
def test_scores_stand_in_the_order_of_the_documents(service: StandInService, language: str) -> None:
    ((first, second, third, fourth),) = async_map([ROW], client_of(service, language))
    assert second > third > max(first, fourth)
    # The same documents in another order have the same scores.
    turned = {"query": "warm soup", "documents": DOCUMENTS[::-1]}
    assert list(async_map([turned], client_of(service, language))) == [[fourth, third, second, first]]


@pytest.mark.contract("A list that is longer than a request is scored in several, with the same scores.")
@each_language
def test_a_long_list_goes_in_several_requests(service: StandInService, language: str) -> None:
    row = {
        "query": "warm soup",
        "documents": [f"{text} {number}" for text in DOCUMENTS for number in range(20)],
    }
    whole = list(async_map([row], client_of(service, language)))
    requests = len(service.requests)
    assert requests == (3 if language == "tei" else 1)
    assert list(async_map([row], client_of(service, language, max_documents=7))) == whole
    assert len(service.requests) == requests + 12
    assert service.statistics().answered == len(service.requests)


@pytest.mark.contract("Documents that are null or blank are not sent, and have no score.")
@each_language
def test_documents_that_are_missing_have_no_score(service: StandInService, language: str) -> None:
    rows = [
        {"query": "soup", "documents": [None, "soup", " ", float("nan"), "a box"]},
        {"query": "soup", "documents": []},
        {"query": None, "documents": ["soup"]},
        {"query": "soup", "documents": None},
        {"query": "soup", "documents": np.array(["soup", "a box"])},
    ]
    first, *rest, last = async_map(rows, client_of(service, language))
    assert [score is None for score in first] == [True, False, True, True, False]
    assert rest == [[], None, None]
    assert last == [first[1], first[4]]
    assert len(service.requests) == 2


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"query": "soup", "documents": "soup"}, "documents: must be a list of texts, not str"),
        ({"query": "soup", "documents": ["soup", 7]}, "documents[1]: must be a text, not int"),
        ({"query": 7, "documents": ["soup"]}, "query: must be a text, not int"),
        ({"query": " ", "documents": ["soup"]}, "query: is empty"),
        ({"query": "soup"}, "the row has no 'documents'"),
        ({"query": "soup", "documents": ["\ud83d"]}, "half a character"),
    ],
)
def test_a_row_that_is_not_a_question_fails_alone(service: StandInService, row: Any, says: str) -> None:
    bad, good = async_map([row, ROW], client_of(service, "vllm"), errors="column")
    assert bad.error is not None and says in bad.error.message
    assert good.error is None


ODD_ANSWERS: list[Any] = [
    {},
    [],
    {"results": None},
    {"results": [{"index": 0, "relevance_score": 0.5}]},
    {"results": [{"index": 0, "relevance_score": 0.5}] * 4},
    {"results": [{"index": place, "relevance_score": "high"} for place in range(4)]},
    {"results": [{"index": place, "relevance_score": float("nan")} for place in range(4)]},
    {"results": [{"index": place + 1, "relevance_score": 0.5} for place in range(4)]},
]


@pytest.mark.contract("An answer without a score for each document is an error, never a wrong score.")
@pytest.mark.parametrize("answer", ODD_ANSWERS)
def test_an_answer_without_a_score_for_each_document_is_an_error(answer: Any) -> None:
    def answered(request: RawRequest) -> bytes:
        return raw_answer(json.dumps(answer).encode(), "application/json")

    with RawService(answered) as service:
        (row,) = async_map([ROW], Rerank(service.url, "small", http=DIRECT), errors="column")
    assert row.error is not None and row.error.type == "AnswerError"
    assert "is not one of scores" in row.error.message


@each_language
def test_a_wrong_key_is_told_without_it(service: StandInService, language: str) -> None:
    client = client_of(service, language, key=Secret.literal("another-key-of-no-shape"))
    with pytest.raises(CallFailed) as found:
        list(async_map([ROW], client))
    assert isinstance(found.value.cause, HttpStatusError) and found.value.cause.status == 401
    assert "another-key" not in str(found.value)


@each_language
def test_tokens_are_billed_where_the_service_counts_them(service: StandInService, language: str) -> None:
    client = client_of(service, language, prices={"small": Price(1_000_000.0)})
    results = async_map([ROW], client)
    list(results)
    statistics = results.statistics()
    counts = language not in ("cohere", "tei")
    assert (statistics.cost > 0, statistics.tokens > 0) == (counts, counts)
    with pytest.raises(ValueError, match="needs to know what a call costs"):
        client_of(service, language).check_budget(Budget(max_cost=1.0))


def test_scores_are_kept_in_a_cache_by_language_model_and_row(
    service: StandInService, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "cache"), uid="rerank", cache=True)
    asked = []
    for language, row in [("vllm", ROW), ("vllm", ROW), ("jina", ROW), ("vllm", {**ROW, "query": "box"})]:
        before = len(service.requests)
        list(async_map([row], client_of(service, language), ledger=ledger))
        asked.append(len(service.requests) - before)
    assert asked == [1, 0, 1, 1]


def test_a_call_by_hand_gives_scores_and_the_fields_may_have_other_names(service: StandInService) -> None:
    client = client_of(service, "vllm", query="question", documents="found")
    client = pickle.loads(pickle.dumps(client))

    async def score() -> Any:
        async with client:
            by_name = await client({"question": "warm soup", "found": DOCUMENTS})
            return by_name, await client("warm soup", DOCUMENTS)

    by_name, by_place = asyncio.run(score())
    assert by_name == by_place and len(by_name) == 4


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"api": "latin"},
            ValueError,
            "api='latin': must be one of 'vllm', 'jina', 'cohere', 'voyage', 'tei'$",
        ),
        ({"max_documents": 0}, ValueError, "max_documents=0"),
        ({"documents": "query"}, ValueError, "documents='query': is the name of the query's field as well"),
        ({"body": {"query": "x"}}, ValueError, "body: query is set by the client"),
        ({"key": "k"}, TypeError, "key: a key itself would travel with the plan"),
        ({"prices": {"large": Price(1.0)}}, ValueError, "prices: has no price of model='small'"),
        ({"http": 7}, TypeError, "http=7"),
        ({"api_key": 7}, TypeError, "did you mean 'key'"),
    ],
)
def test_bad_options_are_refused_on_the_driver(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Rerank("https://one/v1", "small", **options)
    with pytest.raises(ValueError, match="leave the last part out"):
        Rerank("https://one/v1/rerank", "small")


@pytest.mark.spark
@pytest.mark.contract(
    "A reranker is a column of scores beside the column of documents on Spark.", needs="Spark"
)
def test_scores_are_a_column_of_spark(spark: Any) -> None:
    from pillarbox.spark import async_udf

    with serve() as service:
        frame = spark.createDataFrame(
            [("warm soup", DOCUMENTS), ("box", []), (None, DOCUMENTS)],
            "query string, documents array<string>",
        )
        scored = frame.withColumn("scores", async_udf(Rerank(service.url, "small"))("query", "documents"))
        assert dict(scored.dtypes)["scores"] == "array<double>"
        first, second, third = scored.collect()
    assert len(first.scores) == 4 and first.scores[1] == max(first.scores)
    assert second.scores == [] and third.scores is None
