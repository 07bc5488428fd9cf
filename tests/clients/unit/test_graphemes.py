"""Characters as they are read: this package's rules beside those of the package `regex`."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.clients.graphemes import is_within_grapheme
from tests.search import examples

JOINED = "a \u0301\u200d👩🏽क्षि\u094dत각\u1100\u1161\u11a8🇩🇪\u0600\r\n\u0e33\U000e0041☠"


@settings(max_examples=examples(2_000))
@given(st.one_of(st.text(max_size=12), st.text(JOINED, max_size=12)))
def test_a_place_within_a_grapheme_is_known(text: str) -> None:
    # The tables of this Python may be older than those of the package.
    text = "".join(each for each in text if unicodedata.category(each) != "Cn")
    between = {match.end() for match in regex.finditer(r"\X", text)}
    parted = [place for place in range(1, len(text)) if place not in between]
    assert [place for place in parted if not is_within_grapheme(text, place)] == []


@pytest.mark.parametrize("text", ["ab", "a b", ".\n", "\n\n", "éa", "愛し", "각각", "कत", "👩👩"])
def test_a_place_between_two_characters_is_none_within(text: str) -> None:
    assert not is_within_grapheme(text, 1)
    assert not is_within_grapheme(text, 0)
    assert not is_within_grapheme(text, len(text))


def test_a_flag_has_two_letters() -> None:
    text = "🇩🇪🇫🇷"
    assert [is_within_grapheme(text, place) for place in range(1, 4)] == [True, False, True]
