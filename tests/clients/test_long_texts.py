"""Texts with more tokens than a model takes: refused, truncated, or embedded in pieces."""

from __future__ import annotations

import asyncio
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiktoken
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from pillarbox.clients import Embeddings, Http
from tests.clients.embedding_service import Service, serving, vector_of

DIRECT = Http(proxy="direct")
LIMIT = 12


@cache
def trained(special: bool) -> tokenizers.Tokenizer:
    """A tokenizer of bytes and pairs, trained on real text; with special tokens around each text, or not."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    return tokenizer


WORDS = [
    "In the beginning God created the heaven and the earth. And the earth was without form, and void;",
    "and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters.",
    "And God said, Let there be light: and there was light. And God saw the light, that it was good:",
    "and God divided the light from the darkness.",
]
LONG = " ".join(WORDS)


@cache
def encoding() -> tiktoken.Encoding:
    """An encoding of tiktoken: all bytes, and some pairs."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in ("th", "he", "the", "an", "and", "in", "er", "ea", "on", " t", " a"):
        ranks.setdefault(word.encode(), len(ranks))
    return tiktoken.Encoding("of-the-test", pat_str=r"\s?\S+|\s+", mergeable_ranks=ranks, special_tokens={})


TOKENIZERS = {
    "tokenizers": lambda: trained(False),
    "tokenizers, special": lambda: trained(True),
    "tiktoken": encoding,
}


def counted(tokenizer: Any, text: str) -> int:
    if isinstance(tokenizer, tiktoken.Encoding):
        return len(tokenizer.encode_ordinary(text))
    return len(tokenizer.encode(text).ids)


async def embedded(service: Service, texts: Any, **options: Any) -> Any:
    async with serving(service), Embeddings(f"{service.url}/v1", "e5", http=DIRECT, **options) as client:
        return await client(texts)


def sent(service: Service) -> list[str]:
    return [text for request in service.requests for text in request["input"]]


each_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


@pytest.mark.contract
@each_tokenizer
def test_a_long_text_is_embedded_in_pieces_and_its_vector_is_their_weighted_mean(name: str) -> None:
    tokenizer, service = TOKENIZERS[name](), Service()
    options: Any = {"long_texts": "chunk", "max_text_tokens": LIMIT, "tokenizer": tokenizer}
    block = asyncio.run(embedded(service, ["short", LONG, "brief"], max_texts=4, **options))
    texts = sent(service)
    assert (texts[0], texts[-1]) == ("short", "brief")
    assert "".join(texts[1:-1]) == LONG
    counts = [counted(tokenizer, text) for text in texts]
    assert max(counts) <= LIMIT
    assert max(service.sizes) == 4
    mean = np.average([vector_of(text) for text in texts[1:-1]], axis=0, weights=counts[1:-1])
    assert np.array_equal(block[[0, 2]], [vector_of("short"), vector_of("brief")])
    # The model's vectors have length 1, so that of the mean has it too.
    assert np.allclose(block[1], mean / np.linalg.norm(mean), atol=1e-5)


@pytest.mark.contract(
    "Without a tokenizer long texts are embedded in pieces of an estimated number of tokens.",
    convicts=["estimate_refused_for_chunks", "chunks_counted_unasked", "estimate_unknown_to_a_cache"],
)
def test_a_long_text_is_embedded_in_pieces_by_the_estimate() -> None:
    estimated, service = Service(), Service()
    options: Any = {"long_texts": "chunk", "max_text_tokens": LIMIT}
    block = asyncio.run(embedded(service, ["short", LONG], **options))
    named = asyncio.run(embedded(estimated, ["short", LONG], tokenizer="estimate", **options))
    assert np.array_equal(block, named)
    assert sent(service) == sent(estimated)
    short, *parts = sent(service)
    assert short == "short"
    assert "".join(parts) == LONG
    # It errs on the side of more tokens.
    assert max(counted(trained(False), text) for text in parts) <= 3 * LIMIT
    assert len(parts) >= counted(encoding(), LONG) / LIMIT / 4
    client = Embeddings("http://e5/v1", "m", **options)
    assert client.configuration["tokenizer"] == "estimate"


def test_a_mean_of_vectors_of_other_lengths_is_not_scaled() -> None:
    service = Service(scale=3.0)
    options: Any = {"long_texts": "chunk", "max_text_tokens": LIMIT, "tokenizer": trained(True)}
    (vector,) = asyncio.run(embedded(service, [LONG], **options))
    texts = sent(service)
    weights = [counted(trained(True), text) for text in texts]
    mean = 3.0 * np.average([vector_of(text) for text in texts], axis=0, weights=weights)
    assert np.allclose(vector, mean, atol=1e-4)


@pytest.mark.contract
@each_tokenizer
def test_a_long_text_is_truncated(name: str) -> None:
    tokenizer, service = TOKENIZERS[name](), Service()
    options: Any = {"long_texts": "truncate", "max_text_tokens": LIMIT, "tokenizer": tokenizer}
    block = asyncio.run(embedded(service, ["short", LONG], **options))
    short, long = sent(service)
    assert short == "short"
    assert LONG.startswith(long)
    assert LIMIT - 2 <= counted(tokenizer, long) <= LIMIT
    assert np.array_equal(block, [vector_of(short), vector_of(long)])


@pytest.mark.contract
@each_tokenizer
def test_a_long_text_is_an_error_of_its_row_only(name: str) -> None:
    service = Service()
    options: Any = {"long_texts": "error", "max_text_tokens": LIMIT, "tokenizer": TOKENIZERS[name]()}
    short, long, brief = asyncio.run(embedded(service, ["short", LONG, "brief"], **options))
    assert np.array_equal([short, brief], [vector_of("short"), vector_of("brief")])
    assert isinstance(long, ValueError)
    assert f"tokens, more than max_text_tokens={LIMIT}" in str(long)
    assert sent(service) == ["short", "brief"]
    with pytest.raises(ValueError, match="more than max_text_tokens"):
        asyncio.run(embedded(service, LONG, **options))


@pytest.mark.contract
@each_tokenizer
def test_requests_hold_no_more_tokens_than_max_tokens(name: str) -> None:
    tokenizer, service = TOKENIZERS[name](), Service()
    texts = [word for line in WORDS for word in line.split()]
    asyncio.run(embedded(service, texts, max_tokens=50, tokenizer=tokenizer))
    assert sent(service) == texts
    sums = [sum(counted(tokenizer, text) for text in request["input"]) for request in service.requests]
    assert max(sums) <= 50
    assert len(sums) <= 2 * sum(sums) / 50 + 1


@pytest.mark.contract
def test_the_operators_batches_are_filled_by_the_tokenizer() -> None:
    client = Embeddings("https://host/v1", "m", max_texts=9, max_tokens=50, tokenizer=trained(True))
    copy, batch = pickle.loads(pickle.dumps((client, client.batch)))
    assert (batch.size, batch.max_weight) == (9, 50)
    assert batch.weight_of(LONG) == copy.tokens_of(LONG) == counted(trained(True), LONG)
    assert batch.weight_of(None) == 0.0


def test_a_tokenizer_of_a_file_on_the_worker(tmp_path: Any) -> None:
    path = tmp_path / "tokenizer.json"
    trained(True).save(str(path))
    client = Embeddings("https://host/v1", "m", tokenizer=str(path))
    assert client.tokens_of(LONG) == counted(trained(True), LONG)


def test_the_truncation_and_padding_of_a_tokenizer_do_not_count() -> None:
    tokenizer = tokenizers.Tokenizer.from_str(trained(True).to_str())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    client = Embeddings("https://host/v1", "m", tokenizer=tokenizer)
    assert client.tokens_of(LONG) == counted(trained(True), LONG)
    assert client.tokens_of("") == 2
    assert counted(tokenizer, LONG) == 4
