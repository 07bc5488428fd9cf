"""Tokenizers on the way to a worker: each process loads one once."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pillarbox.clients import Embeddings
from pillarbox.clients.tokenizer_loading import load_tokenizer, packed_tokenizer
from tests.clients.kinds_of_tokenizers import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_loads_a_tokenizer_once(kind: str) -> None:
    sent = pickle.dumps(packed_tokenizer(KINDS[kind]()))
    first, second = pickle.loads(sent), pickle.loads(sent)
    assert first.load() is second.load()
    assert first.is_estimate == (kind == "estimate")


def test_a_tokenizer_is_in_a_process_once_however_it_is_asked_for() -> None:
    assert load_tokenizer("cl100k_base") is packed_tokenizer("cl100k_base").load()


@pytest.mark.contract(
    "A file of a tokenizer is read anew where it has changed.", convicts=["tokenizer_of_a_file_kept"]
)
def test_a_file_that_has_changed_is_another_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    found = []
    for kind in ("GPT-2", "BERT"):
        KINDS[kind]().save(str(path))
        found.append(load_tokenizer(str(path)).count("darkness upon"))
    assert found == [load_tokenizer(KINDS[kind]()).count("darkness upon") for kind in ("GPT-2", "BERT")]
    assert found[0] != found[1]


@pytest.mark.contract(
    "A cache knows tokenizers that are objects apart by what they are.", convicts=["tokenizers_of_one_class"]
)
def test_two_tokenizers_of_one_class_are_two_configurations() -> None:
    cut = {"max_text_tokens": 8, "long_texts": "truncate"}

    def told(kind: str) -> str:
        client = Embeddings("https://host/v1", "m", tokenizer=KINDS[kind](), **cut)
        return str(client.configuration["tokenizer"])

    kinds = ["GPT-2", "GPT-2, special", "BERT", "tiktoken"]
    assert len({*map(told, kinds)}) == len(kinds)
    assert [*map(told, kinds)] == [*map(told, kinds)]


def test_a_folder_of_the_name_of_an_encoding_is_not_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cl100k_base").mkdir()
    assert load_tokenizer("cl100k_base").count("hello world") == 2


def test_a_name_is_looked_up_once() -> None:
    assert packed_tokenizer("cl100k_base") is packed_tokenizer("cl100k_base")
