"""Texts with more tokens than a model takes: what is done with them, and the pieces that are embedded.

Pure; any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from pillarbox.clients.texts import TextTooLong
from pillarbox.clients.tokenizer_loading import ESTIMATE, check_tokenizer, load_tokenizer
from pillarbox.clients.tokens import (
    MIN_PIECE_TOKENS,
    Piece,
    PrefixedTokenizer,
    Tokenizer,
    first_piece,
    pieces,
)
from pillarbox.validate import check_choice, check_int

log = logging.getLogger("pillarbox")

LongTexts: TypeAlias = Literal["send", "error", "truncate", "chunk"]
LONG_TEXTS = ("send", "error", "truncate", "chunk")


def check_long_texts(
    long_texts: str, max_text_tokens: int | None, tokenizer: Any, *, service_truncates: bool
) -> None:
    """Raise TypeError or ValueError unless these options of `Embeddings` suit each other."""
    check_tokenizer("tokenizer", tokenizer)
    check_choice("long_texts", long_texts, LONG_TEXTS)
    if max_text_tokens is not None:
        check_int("max_text_tokens", max_text_tokens, MIN_PIECE_TOKENS)
    by_service = service_truncates and long_texts == "truncate" and max_text_tokens is None
    if long_texts == "send" or by_service:
        if max_text_tokens is not None:
            raise ValueError(
                f"max_text_tokens={max_text_tokens}: say what is done with longer texts: "
                "long_texts='error', 'truncate' or 'chunk'"
            )
        return
    if max_text_tokens is None:
        raise ValueError(f"long_texts={long_texts!r}: needs max_text_tokens")
    if tokenizer is None and long_texts != "chunk":
        # By an estimate a text would be refused, or lose its end, that the model would have taken.
        raise ValueError(f"long_texts={long_texts!r}: needs tokenizer")


def tokenizer_of_texts(tokenizer: Any, prefix: str | None) -> Tokenizer:
    """Return what counts texts with a prefix in front of each. Raises what `load_tokenizer` raises.

    tokenizer: None to estimate.
    """
    if tokenizer is None:
        log.info("long_texts='chunk': tokens are estimated; tokenizer=... counts them")
    loaded = load_tokenizer(tokenizer or ESTIMATE)
    return PrefixedTokenizer(loaded, prefix) if prefix else loaded


def whole_texts(rows: Sequence[str | None], prefix: str, count: Callable[[str], float]) -> list[list[Piece]]:
    """Return each row's text as one piece, with its tokens; no piece for None."""
    return [[] if text is None else [Piece(prefix + text, count(text))] for text in rows]


def parts_of_texts(
    rows: Sequence[str | None], long_texts: str, limit: int, prefix: str, tokenizer: Tokenizer
) -> tuple[list[list[Piece]], dict[int, TextTooLong]]:
    """Return the pieces of each row's text, none for what is not embedded; errors of texts that are too long.

    tokenizer: counts texts with the prefix. Raises ValueError for a prefix that leaves no room.
    """
    if prefix and limit - tokenizer.special < MIN_PIECE_TOKENS:
        raise ValueError(f"prefix={prefix!r}: leaves too few of max_text_tokens={limit} to a text")
    parts: list[list[Piece]] = []
    errors: dict[int, TextTooLong] = {}
    for row, text in enumerate(rows):
        parts.append([])
        if text is None:
            continue
        if long_texts == "chunk":
            # A long space in a text has no vector either.
            parts[row] = [piece for piece in pieces(text, limit, tokenizer) if piece.text.strip()]
        elif long_texts == "truncate":
            parts[row] = [first_piece(text, limit, tokenizer)]
        elif (tokens := tokenizer.count(text)) <= limit:
            parts[row] = [Piece(text, tokens)]
        else:
            errors[row] = TextTooLong(
                f"the text has {tokens:,} tokens, more than max_text_tokens={limit:,}: leave it out, or "
                "use long_texts='truncate' or 'chunk'"
            )
    if prefix:
        parts = [[Piece(prefix + text, tokens) for text, tokens in part] for part in parts]
    return parts, errors
