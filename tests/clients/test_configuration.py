"""The configuration that a client gives to a cache, and what of a client does not belong to a question."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from pillarbox.aio.function import parse_of
from pillarbox.clients import Embeddings, Http, HttpLookup, Secret
from pillarbox.ledger.keys import config_hash

EMBEDDINGS = Embeddings("https://one/v1", "small", key=Secret.literal("k1"))
LOOKUP = HttpLookup("https://one/planes/{tailnum}", key=Secret.literal("k1"))


def digest(client: Any) -> str:
    return config_hash(client.configuration)


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
    assert digest(dataclasses.replace(EMBEDDINGS, **change)) == digest(EMBEDDINGS)


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
    assert digest(dataclasses.replace(EMBEDDINGS, **change)) != digest(EMBEDDINGS)


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
    assert digest(dataclasses.replace(LOOKUP, **change)) != digest(LOOKUP)


def test_the_configuration_has_no_secret() -> None:
    client = HttpLookup(
        "https://one/{a}",
        params={"key": Secret.literal("s3cret1")},
        headers={"X-Key": Secret.literal("s3cret2")},
    )
    assert "s3cret" not in repr(client.configuration)
    changed = dataclasses.replace(client, params={"key": Secret.literal("other")})
    assert digest(changed) == digest(client)


def test_a_clients_option_that_is_called_parse_is_not_asked_again() -> None:
    assert parse_of(HttpLookup("https://one/{a}", parse=json.loads)) is None
    assert parse_of(HttpLookup("https://one/{a}")) is None
