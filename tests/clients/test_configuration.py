"""The configuration that a client gives to a cache, and what of a client does not belong to a question."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pillarbox.clients import Chat, Embeddings, Http, HttpLookup, Price, Secret

EMBEDDINGS = Embeddings("https://one/v1", "small", key=Secret.literal("k1"))
LOOKUP = HttpLookup("https://one/planes/{tailnum}", key=Secret.literal("k1"))


@pytest.mark.contract
@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "https://other/v1"},
        {"key": Secret.literal("k2")},
        {"http": Http(connections=3)},
        {"max_texts": 7},
        {"max_tokens": 700},
        {"encoding": "base64"},
    ],
)
def test_addresses_keys_and_transport_do_not_belong_to_a_question(change: dict[str, Any]) -> None:
    assert dataclasses.replace(EMBEDDINGS, **change).configuration == EMBEDDINGS.configuration


@pytest.mark.contract
@pytest.mark.parametrize(
    "change",
    [
        {"model": "large"},
        {"dimensions": 256},
        {"normalize": True},
        {"body": {"input_type": "passage"}},
        {"encoding": "float16"},
        {"api": "tei"},
    ],
)
def test_a_change_of_a_model_or_of_a_parameter_is_another_question(change: dict[str, Any]) -> None:
    assert dataclasses.replace(EMBEDDINGS, **change).configuration != EMBEDDINGS.configuration


@pytest.mark.contract
@pytest.mark.parametrize(
    ("change", "is_the_same"),
    [
        ({"repairs": 5, "structure": "json_schema", "prices": {"small": Price(1.0, 1.0)}}, True),
        ({"answer": None}, False),
        ({"answer": {"type": "object", "properties": {"score": {"type": "string"}}}}, False),
        ({"structure": "prompt"}, False),
        ({"prompt": "Judge that: {text}"}, False),
        ({"system": "Be brief."}, False),
        ({"body": {"temperature": 0}}, False),
    ],
)
def test_the_type_of_the_answer_and_its_form_are_in_the_question_as_they_are_sent(
    change: dict[str, Any], is_the_same: bool
) -> None:
    answer = {"type": "object", "properties": {"mood": {"type": "string"}}}
    chat = Chat("https://one/v1", "small", prompt="Judge this: {text}", answer=answer)
    assert (dataclasses.replace(chat, **change).configuration == chat.configuration) is is_the_same


@pytest.mark.contract
@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://one/airports/{tailnum}"},
        {"params": {"units": "si"}},
        {"take": "model"},
        {"method": "POST"},
        {"statuses": {500: "null"}},
    ],
)
def test_another_lookup_is_another_question(change: dict[str, Any]) -> None:
    assert dataclasses.replace(LOOKUP, **change).configuration != LOOKUP.configuration


def test_the_configuration_has_no_secret() -> None:
    client = HttpLookup(
        "https://one/{a}",
        params={"key": Secret.literal("s3cret1")},
        headers={"X-Key": Secret.literal("s3cret2")},
    )
    assert "s3cret" not in repr(client.configuration)
    changed = dataclasses.replace(client, params={"key": Secret.literal("other")})
    assert changed.configuration == client.configuration
