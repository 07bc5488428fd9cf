"""Counts tokens and splits texts, beside the bare tokenizer in a loop: `python -m bench.tokens`.

The texts are the pages of docs/, in pieces of about 20 kB. `count_tokens` and `split_text` make a column of
Arrow of them, on this thread, as in a task of Spark; the loops by hand call the tokenizer for each text, and
to split decode its tokens in windows of MAX_TOKENS with OVERLAP, wherever words end. CPU of this process for
1 kB of text in UTF-8, the least of interleaved rounds; `times` is the median of the rounds' ratios to the
loop by hand.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bench.table import Column, print_table
from pillarbox.clients.tokenizer_loading import packed_tokenizer
from pillarbox.spark import text_splitter, token_counter

PAGES = Path(__file__).resolve().parents[1] / "docs"
TEXT_CHARACTERS, MAX_TOKENS, OVERLAP = 20_000, 512, 64
ROUNDS = 7
VOCABULARY = 8_000


def texts_of_pages() -> list[str]:
    """Return the pages of the documentation, in pieces of TEXT_CHARACTERS."""
    whole = "\n\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
    return [whole[at : at + TEXT_CHARACTERS] for at in range(0, len(whole), TEXT_CHARACTERS)]


def word_pieces(texts: list[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer of the package `tokenizers`, of the kind of BERT, trained on the texts."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=["[UNK]"])
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_pairs(texts: list[str]) -> tokenizers.Tokenizer:
    """Return one of the kind of GPT-2."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def loops(tokenizer: Any) -> tuple[Callable[[str], int], Callable[[str], list[str]]]:
    """Return what counts and what splits one text by hand."""
    if isinstance(tokenizer, tokenizers.Tokenizer):
        encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
    else:
        tokenizer = packed_tokenizer(tokenizer).load()._encoding
        encode = tokenizer.encode_ordinary

    def split(text: str) -> list[str]:
        tokens = encode(text)
        starts = range(0, len(tokens), MAX_TOKENS - OVERLAP)
        return [tokenizer.decode(tokens[at : at + MAX_TOKENS]) for at in starts]

    return lambda text: len(encode(text)), split


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--texts", type=int, default=None, help="texts of about 20 kB; all if not given")
    given = parser.parse_args(arguments)
    texts = texts_of_pages()[: given.texts]
    kilobytes = sum(len(text.encode()) for text in texts) / 1000
    column = pa.array(texts)
    named: dict[str, Any] = {
        "cl100k_base": "cl100k_base",
        "o200k_base": "o200k_base",
        "tokenizers, WordPiece": word_pieces(texts),
        "tokenizers, BPE": byte_pairs(texts),
    }
    rows = []
    for name, tokenizer in named.items():
        count, split = loops(tokenizer)
        contenders = {
            "count": (lambda count=count: [*map(count, texts)], token_counter(tokenizer)),
            "split": (
                lambda split=split: [*map(split, texts)],
                text_splitter(MAX_TOKENS, OVERLAP, tokenizer=tokenizer),
            ),
        }
        for what, (by_hand, function) in contenders.items():
            rows.append(
                [name, what, *_compared(by_hand, lambda made=function: made(column), given.rounds, kilobytes)]
            )
    for what, made in (("count", token_counter()), ("split", text_splitter(MAX_TOKENS, OVERLAP))):
        spent = min(_cpu(lambda made=made: made(column)) for _ in range(given.rounds))
        rows.append(["estimate", what, "", f"{spent / kilobytes * 1e6:.1f}", ""])
    headings = ["tokenizer", "", "loop, us/kB", "column, us/kB", "times"]
    print_table([Column(heading, right=place > 1) for place, heading in enumerate(headings)], rows)
    print(f"{len(texts)} texts, {kilobytes:.0f} kB; chunks of {MAX_TOKENS} tokens, overlap {OVERLAP}")
    return 0


def _compared(
    by_hand: Callable[[], Any], ours: Callable[[], Any], rounds: int, kilobytes: float
) -> list[str]:
    ours()
    pairs = [(_cpu(by_hand), _cpu(ours)) for _ in range(rounds)]
    least = [min(spent) / kilobytes * 1e6 for spent in zip(*pairs, strict=True)]
    times = statistics.median(mine / hand for hand, mine in pairs)
    return [*(f"{each:.1f}" for each in least), f"{times:.2f}"]


def _cpu(work: Callable[[], Any]) -> float:
    """The seconds of CPU of this process for `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    raise SystemExit(main())
