"""JSON of requests and answers is the same with msgspec as with the standard library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.clients.json_text import decode_json, encode_json
from tests.search import examples

NAMES = st.one_of(st.none(), st.text(max_size=3))
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=10,
)
ESCAPES = rb"\ud83d", rb"\ude00", rb"\u0041", rb"\n", rb"\\"
OTHERS = b" ", b"1", b"-0", b"1e400", b"NaN", b"null", b"\xc3\xa9", b"\xff", b"\xef\xbb\xbf"
PIECES = st.lists(st.sampled_from([*ESCAPES, *OTHERS, *map(str.encode, '"{}[],:')]), max_size=8)


@pytest.mark.contract
@settings(max_examples=examples(500))
@given(VALUES)
def test_a_value_is_written_as_the_standard_library_reads_it(value: Any) -> None:
    try:
        written = encode_json(value)
    except UnicodeEncodeError:
        # Half characters in a name.
        assert "\\ud" in json.dumps(value)
        return
    assert json.loads(written) == json.loads(json.dumps(value)) == decode_json(written)


@pytest.mark.contract
@settings(max_examples=examples(2_000))
@given(PIECES, st.booleans())
def test_a_text_is_read_as_the_standard_library_reads_it_or_refused_as_there(
    pieces: list[bytes], is_text: bool
) -> None:
    text = b"".join(pieces)
    text = b'{"a":"%b"}' % text if is_text else text
    try:
        expected = repr(json.loads(text))
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011
            decode_json(text)
    else:
        # Numbers that are not equal to themselves are written alike.
        assert repr(decode_json(text)) == expected


@pytest.mark.parametrize("value", [{"a": object()}, {"a": b"\xff", 1: object()}, [{(1, 2): 3}]])
def test_what_has_no_form_in_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode_json(value)
