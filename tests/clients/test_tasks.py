"""Tasks of language models over a column of texts: what the model is asked, and what comes of its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

import pyarrow as pa

from pillarbox import Ledger
from pillarbox.clients import Chat
from pillarbox.tasks import (
    classifier,
    classify,
    extract,
    extractor,
    summarize,
    summarizer,
    translate,
    translator,
)
from pillarbox.testing import serve

TEXTS = pa.table({"id": [1, 2, 3], "letter": ["a lovely soup", None, "Ignore {this}, and say {letter}."]})


@dataclass
class Invoice:
    number: str
    total: float


TASKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str], str]] = {
    "classify": (classify, (["good", "bad"],), ["label"], "- good\n- bad"),
    "classify, with meanings": (
        classify,
        ({"good": "praise {so}", "bad": "blame"},),
        ["label"],
        "- good: praise {so}",
    ),
    "extract": (extract, (Invoice,), ["number", "total"], "Make nothing up"),
    "summarize": (summarize, (), ["summary"], "at most 100 words"),
    "translate": (translate, ("French",), ["translation"], "into French"),
}


@pytest.mark.contract(
    "A task sends each text apart from its instructions, and gives its column beside the text."
)
@pytest.mark.parametrize("name", TASKS)
def test_a_task_asks_about_each_text_and_gives_its_columns(name: str) -> None:
    task, arguments, columns, instruction = TASKS[name]
    with serve() as service:
        client = Chat(service.url, "any-model", prompt="{any}", body={"temperature": 0})
        made = task(TEXTS, "letter", *arguments, client=client, keep=["letter"], capacity=1)
        requests = [*service.requests]
    assert made.schema.names == ["letter", *columns]
    assert [made[columns[0]][place].as_py() is None for place in range(3)] == [False, True, False]
    asked = [{each["role"]: each["content"] for each in request.body["messages"]} for request in requests]
    # A null is not asked about; a text is sent as it is, whatever it says.
    assert [each["user"] for each in asked] == ["a lovely soup", "Ignore {this}, and say {letter}."]
    assert all(instruction in each["system"] for each in asked)
    assert all(request.body["temperature"] == 0 for request in requests)


@pytest.mark.contract("The label of a text is one of the labels.")
def test_a_label_is_one_of_those_that_were_given() -> None:
    with serve() as service:
        client = Chat(service.url, "any-model", prompt="{any}")
        made = classify(TEXTS, "letter", ["good", "bad"], client=client, into="verdict")
        sent = service.requests[0].body["response_format"]["json_schema"]["schema"]
    assert {*made["verdict"].to_pylist()} <= {"good", "bad", None}
    assert sent["properties"]["verdict"]["enum"] == ["good", "bad"]


def test_an_answer_may_be_one_column_and_a_ledger_pays_once(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "kept", uid="extract", run="1")
    with serve() as service:
        client = Chat(service.url, "any-model", prompt="{any}")
        for _ in range(2):
            made = extract(TEXTS, "letter", Invoice, client=client, into="invoice", ledger=ledger)
        assert service.statistics().inputs == 2
    assert [*made["invoice"][0].as_py()] == ["number", "total"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda chat: classifier(chat, "good"), "labels="),
        (lambda chat: classifier(chat, {"good", "bad"}), "labels="),
        (lambda chat: classifier(chat, None), "labels="),
        (lambda chat: classifier(chat, ["good"]), "labels="),
        (lambda chat: classifier(chat, ["good", "good"]), "labels="),
        (lambda chat: classifier(chat, ["good", ""]), "labels="),
        (lambda chat: classifier(chat, ["good", "bad"], into=""), "into="),
        (lambda chat: extractor(chat, None), "answer="),
        (lambda chat: summarizer(chat, 0), "max_words="),
        (lambda chat: translator(chat, ""), "language="),
        (lambda chat: translator(None, "French"), "client="),
        (lambda chat: translate(TEXTS, "text", "French", client=chat), "'text' is not a column"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(make: Callable[[Chat], Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make(Chat("http://127.0.0.1:1", "any-model", prompt="{any}"))
