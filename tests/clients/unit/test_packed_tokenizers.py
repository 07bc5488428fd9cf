"""Tokenizers on the way to a worker: each process loads one once."""

from __future__ import annotations

import pickle

import pytest

from pillarbox.clients.tokenizer_loading import packed_tokenizer
from tests.clients.kinds_of_tokenizers import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_loads_a_tokenizer_once(kind: str) -> None:
    sent = pickle.dumps(packed_tokenizer(KINDS[kind]()))
    first, second = pickle.loads(sent), pickle.loads(sent)
    assert first.load() is second.load()
    assert first.is_estimate == (kind == "estimate")


def test_a_name_is_looked_up_once() -> None:
    assert packed_tokenizer("cl100k_base") is packed_tokenizer("cl100k_base")
