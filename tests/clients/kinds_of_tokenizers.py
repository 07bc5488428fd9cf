"""Real tokenizers of each kind that models have, trained on some words, or bundled."""

from __future__ import annotations

from functools import cache
from typing import Any

import tiktoken
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

WORDS = [
    "In the beginning God created the heaven and the earth. And the earth was without form, and void;",
    "and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters.",
    "And God said, Let there be light: and there was light. And God saw the light, that it was good:",
    "and God divided the light from the darkness.",
]
SPECIAL = [("<s>", 0), ("</s>", 1)]


@cache
def byte_pairs(special: bool = False) -> tokenizers.Tokenizer:
    """As GPT-2; `special`: with tokens around each text."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = [name for name, _ in SPECIAL]
    tokenizer.train_from_iterator(
        WORDS,
        trainers.BpeTrainer(
            vocab_size=300, show_progress=False, special_tokens=names, initial_alphabet=alphabet
        ),
    )
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=SPECIAL)
    return tokenizer


@cache
def word_pieces() -> tokenizers.Tokenizer:
    """As BERT."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, show_progress=False, special_tokens=["[UNK]"])
    tokenizer.train_from_iterator(WORDS, trainer)
    return tokenizer


@cache
def unigrams(prepend: str, *, spaces: bool) -> tokenizers.Tokenizer:
    """As XLM-R, and as T5."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    fewer = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), fewer])
    words = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    tokenizer.pre_tokenizer = split if spaces else words
    trainer = trainers.UnigramTrainer(
        vocab_size=200, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"]
    )
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    return tokenizer


@cache
def stripping() -> tokenizers.Tokenizer:
    """One that takes off the spaces at the ends of a text, so that a cut changes what it counts."""
    tokenizer = tokenizers.Tokenizer.from_str(byte_pairs().to_str())
    tokenizer.normalizer = normalizers.Strip()
    return tokenizer


@cache
def whole_words() -> tiktoken.Encoding:
    """An encoding of tiktoken, of an unknown pattern: all bytes, and some pairs."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in ("th", "he", "the", "an", "and", "in", "er", "ea", "on", " t", " a"):
        ranks.setdefault(word.encode(), len(ranks))
    return tiktoken.Encoding("of-the-test", pat_str=r"\s?\S+|\s+", mergeable_ranks=ranks, special_tokens={})


KINDS: dict[str, Any] = {
    "estimate": lambda: "estimate",
    "cl100k_base": lambda: "cl100k_base",
    "o200k_base": lambda: "o200k_base",
    "tiktoken": whole_words,
    "GPT-2": byte_pairs,
    "GPT-2, special": lambda: byte_pairs(True),
    "BERT": word_pieces,
    "XLM-R": lambda: unigrams("always", spaces=True),
    "T5": lambda: unigrams("always", spaces=False),
    "Metaspace, first": lambda: unigrams("first", spaces=False),
    "Strip": stripping,
}
