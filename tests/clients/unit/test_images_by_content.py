"""The types of images by their first bytes, the filling of requests, and what an answer may quote of them."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.aio.errors import shorten
from pillarbox.clients.images import (
    IMAGE_TYPES,
    MAX_LOOKS,
    PDF,
    Images,
    attached,
    type_of,
    without_quotes,
)
from pillarbox.testing.stand_in_images import _type_of as type_in_the_service
from tests.clients.pictures import AVIF, GIF, HEIC, HEIF, JPEG, PNG, WEBP, fragments, picture, png

TYPES = IMAGE_TYPES | {PDF, HEIC, HEIF, AVIF}
HEADS = {
    PNG: b"\x89PNG\r\n\x1a\n",
    JPEG: b"\xff\xd8\xff",
    GIF: b"GIF8",
    WEBP: b"RIFF....WEBP",
    PDF: b"%PDF-",
    HEIC: b"\0\0\0\x18ftypheic",
    HEIF: b"\0\0\0\x18ftypmif1\0\0\0\0",
    AVIF: b"\0\0\0\x18ftypavif",
}
BRANDS = st.lists(st.sampled_from([b"mif1", b"miaf", b"heic", b"heix", b"avif", b"isom", b"m"]), max_size=13)
CONTENTS = st.one_of(
    st.binary(max_size=80),
    st.builds(lambda head, rest: head + rest, st.sampled_from([*HEADS.values()]), st.binary(max_size=40)),
    # One byte of a signature is another one, or the content begins later.
    st.builds(
        lambda head, place, byte: head[:place] + byte + head[place + 1 :] + b"rest",
        st.sampled_from([*HEADS.values(), b"GIF87a", b"GIF89a"]),
        st.integers(0, 11),
        st.binary(min_size=1, max_size=1),
    ),
    st.builds(lambda front, head: front + head, st.binary(max_size=3), st.sampled_from([*HEADS.values()])),
    st.builds(
        lambda size, brands: size.to_bytes(4, "big") + b"ftypmif1\0\0\0\0" + b"".join(brands),
        st.one_of(st.integers(0, 80), st.integers(0, 2**32 - 1)),
        BRANDS,
    ),
)


@pytest.mark.contract(
    "The type of an image is that of its first bytes, as a second table has them, and never a guess.",
    convicts=["gif_is_a_png"],
)
@given(content=CONTENTS)
def test_a_type_is_recognised_by_the_first_bytes_alone(content: bytes) -> None:
    found = type_of(content)
    assert found == type_of(bytearray(content)) == type_of(memoryview(content))
    if found is None or found != PDF:
        # The service looks for the head of a PDF a little further on.
        expected = type_in_the_service(content)
        assert found == (None if expected == PDF else expected)
    else:
        assert content.lstrip(b"\xef\xbb\xbf\t\n\r ").startswith(b"%PDF-")


@given(kind=st.sampled_from(sorted(TYPES)), number=st.integers(0, 1_000), rest=st.binary(max_size=64))
def test_each_type_is_recognised_whatever_follows(kind: str, number: int, rest: bytes) -> None:
    assert type_of(picture(kind, number) + rest) == kind


@pytest.mark.parametrize(
    "content",
    [
        b"BM",
        b"II*\0",
        b"<svg>",
        b"PK\3\4 %PDF-",
        b"GIF88a",
        b"RIFF1234WAVE",
        b"",
        b"\xff\xd8",
        b"\0\0\0\x18ftypisom",
    ],
)
def test_other_files_are_none_of_these(content: bytes) -> None:
    assert type_of(content) is None


PARTS = st.lists(
    st.builds(picture, st.sampled_from(sorted(TYPES)), st.integers(0, 99)), min_size=1, max_size=4
)


@given(contents=PARTS, text=st.text())
def test_a_body_is_filled_with_each_image_in_its_place(contents: list[bytes], text: str) -> None:
    found = attached(Images("photo"), {"photo": contents}, TYPES, ("https",))
    # In another order, and one twice, as a language may want it.
    order = [*reversed(found.images), found.images[0]]
    body = json.dumps({"text": text, "images": [image.address for image in order]}).encode()
    sent, spans = found.filled(body)
    expected = [base64.b64encode(content) for content in [*reversed(contents), contents[0]]]
    assert [sent[start:end] for start, end in spans] == expected
    read = json.loads(sent)
    assert read["text"] == text
    assert [each.partition(",")[2].encode() for each in read["images"]] == expected


@given(contents=PARTS, data=st.data())
def test_no_part_of_an_image_is_left_of_what_an_answer_quotes(
    contents: list[bytes], data: st.DataObject
) -> None:
    found = attached(Images("photo"), {"photo": contents}, TYPES, ("https",))
    sent, spans = found.filled(json.dumps([image.address for image in found.images]).encode())
    start = data.draw(st.integers(0, len(sent)))
    quoted = sent[start : data.draw(st.integers(start, len(sent)))]
    escaped = quoted.replace(b"/", b"\\/") if data.draw(st.booleans()) else quoted
    left = without_quotes(b"bad request 0123456789abcdef: " + escaped + b"; try again", sent, spans)
    assert left.startswith(b"bad request 0123456789abcdef: ") and left.endswith(b"; try again")
    assert not any(each in left for content in contents for each in fragments(content))


@pytest.mark.contract("The picture of a row in an error has the sizes of binary values, and of long base64.")
@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"id": 1, "photo": png(1, 300)}, "{'id': 1, 'photo': <387 bytes>}"),
        ([bytearray(200), (bytes(150), b"short")], "[<200 bytes>, (<150 bytes>, b'short')]"),
        (base64.b64encode(bytes(range(240))).decode(), "'<320 characters>'"),
        ("x" * 150, repr("x" * 150)),
        ("data:image/png;base64," + "AB+/" * 50, "'data:image/png;base64,<200 characters>'"),
        (frozenset({b"\\'\"" * 100}), "frozenset({<300 bytes>})"),
        ("a text of words, " * 8, repr("a text of words, " * 8)),
    ],
)
def test_a_row_is_shown_without_what_nobody_reads(row: object, shown: str) -> None:
    assert shorten(row) == shown


@given(st.binary(min_size=100, max_size=300), st.binary(max_size=40))
def test_the_size_of_a_binary_value_is_its_bytes_however_it_is_nested(long: bytes, short: bytes) -> None:
    row = SimpleNamespace(photo=long, id=7, more=[short])
    assert shorten(row, 10_000) == f"namespace(photo=<{len(long):,} bytes>, id=7, more=[{short!r}])"


def test_few_words_of_an_answer_are_looked_for_in_its_request() -> None:
    words = [f"{number:032x}" for number in range(2 * MAX_LOOKS)]
    found = without_quotes(" ".join(words).encode(), b"A" * 1_000, [(0, 1_000)]).decode().split()
    # What is not looked for is not shown.
    assert found == words[:MAX_LOOKS] + ["[image]"] * MAX_LOOKS
