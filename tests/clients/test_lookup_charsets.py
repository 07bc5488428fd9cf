"""The charset of a lookup's answer is heard, and bytes that are not in it are the error of their row."""

from __future__ import annotations

import asyncio
import codecs
import json
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pillarbox import CallFailed, async_map
from pillarbox.clients import Http, HttpLookup
from pillarbox.clients.transport import HttpStatusError
from tests.clients.raw_service import RawRequest, RawService, raw_answer

FILLED = "\N{REPLACEMENT CHARACTER}"
NAIVE = "naïve"
HALF = b"\xed\xa0\xbd"
"""Half a character, as programs write it that think UTF-8 has them."""


@pytest.fixture(params=["libcurl", "aiohttp"])
def http(request: pytest.FixtureRequest) -> Http:
    return Http(proxy="direct", backend=request.param)


class Answering:
    """A service that gives the same answer to all requests; `asked` counts them."""

    def __init__(self, body: bytes, *content_types: str, status: int = 200) -> None:
        self.answer = raw_answer(body, *content_types, status=status)
        self.asked = 0

    def found(self, http: Http, parse: Any = "text", **options: Any) -> Any:
        """The result of a lookup by a client that was pickled."""

        async def run(client: HttpLookup) -> Any:
            async with client:
                return await client("x")

        with RawService(lambda request: self.answer) as service:
            client = HttpLookup(service.url + "/{a}", parse=parse, http=http, **options)
            return asyncio.run(run(pickle.loads(pickle.dumps(client))))

    def through_operator(self, http: Http, **options: Any) -> Any:
        """The outcome of a row of an operator, which tries again what may end otherwise."""
        with RawService(lambda request: self.answer) as service:
            client = HttpLookup(service.url + "/{a}", http=http, parse="text")
            try:
                return next(iter(async_map(["x"], client, **options)))
            finally:
                self.asked = len(service.requests)


HEADERS = [
    ("text/plain; charset=iso-8859-1", "latin-1"),
    ("text/plain;charset=ISO-8859-1", "latin-1"),
    ('text/html; Charset="iso-8859-1"', "latin-1"),
    ("text/plain; charset = iso-8859-1 ; format=flowed", "latin-1"),
    ("text/plain; format=flowed; CHARSET='latin1'", "latin-1"),
    ("text/plain; charset=iso-8859-1; charset=utf-8", "latin-1"),
    ("text/plain; charset=utf-8; charset=utf-8", "utf-8"),
    ("text/plain; charset=; charset=iso-8859-1", "latin-1"),
    ('multipart/x; boundary="; charset=koi8-r"; charset=utf-8', "utf-8"),
    ("text/plain; charset=windows-1252", "cp1252"),
    ("text/plain; charset=utf-16le", "utf-16-le"),
    ("text/plain; charset=UTF-16", "utf-16"),
    ("text/plain; charset=utf-32", "utf-32"),
    ("text/plain; charset=x-mac-roman", "mac-roman"),
    ("text/plain; charset=utf8mb4", "utf-8"),
    ("text/plain", "utf-8"),
    ("text/plain", "utf-8-sig"),
    ("text/plain; charset=utf-8", "utf-8-sig"),
    ("", "utf-8"),
]


@pytest.mark.contract
@pytest.mark.parametrize(("header", "encoding"), HEADERS)
def test_text_and_json_are_in_the_charset_that_the_answer_tells(
    http: Http, header: str, encoding: str
) -> None:
    assert Answering(NAIVE.encode(encoding), header).found(http) == NAIVE
    content = json.dumps({NAIVE: [NAIVE]}, ensure_ascii=False).encode(encoding)
    assert Answering(content, header).found(http, "json") == {NAIVE: [NAIVE]}


@pytest.mark.parametrize(
    ("charset", "text"),
    [("gbk", "中文"), ("shift_jis", "日本"), ("x-euc-jp", "日本"), ("windows-874", "ไทย"), ("KOI8-R", "да")],
)
def test_charsets_of_all_scripts_are_read(http: Http, charset: str, text: str) -> None:
    encoding = {"x-euc-jp": "euc-jp", "windows-874": "cp874"}.get(charset, charset)
    assert Answering(text.encode(encoding), f"text/csv; charset={charset}").found(http) == text


@pytest.mark.contract
@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
)
@pytest.mark.parametrize("header", ["application/json", "application/json; charset=utf-8"])
def test_json_in_utf_16_and_utf_32_is_known_by_its_first_bytes(
    http: Http, header: str, encoding: str
) -> None:
    for value in ({"a": "中文"}, "中", 7, []):
        content = json.dumps(value, ensure_ascii=False).encode(encoding)
        assert Answering(content, header).found(http, "json") == value


@pytest.mark.contract
@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8])
def test_a_byte_order_mark_comes_before_the_charset_that_is_told_and_is_no_text(
    http: Http, mark: bytes
) -> None:
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(mark, "utf-8")
    for charset in ("iso-8859-1", "utf-8", "utf-16"):
        header = f"text/plain; charset={charset}"
        assert Answering(mark + NAIVE.encode(encoding), header).found(http) == NAIVE


@pytest.mark.parametrize(
    "others", [["text/plain; charset=iso-8859-1"], ["text/plain; charset=utf-8"], ["text/plain"], []]
)
def test_of_a_header_that_comes_several_times_the_first_charset_counts(http: Http, others: list[str]) -> None:
    headers = ["text/plain", "text/plain; charset=iso-8859-1", *others]
    assert Answering(NAIVE.encode("latin-1"), *headers).found(http) == NAIVE


REFUSED = [
    ("text/plain; charset=klingon", b"a", "the answer's charset 'klingon' is not known here"),
    ("text/plain; charset=zlib", b"a", "the answer's charset 'zlib' is not known here"),
    ("text/plain; charset=unicode_escape", b"a", "the answer's charset 'unicode_escape' is not known here"),
    (f"text/plain; charset={'l' * 5000}", b"a", "the answer's charset 'llll"),
    (
        "text/plain; charset=us-ascii",
        b"na\xefve",
        "not in its charset 'us-ascii': byte 0xef at place 2 of 5",
    ),
    (
        "text/plain; charset=utf-8",
        b"\xef\xbb\xbfna\xefve",
        "not in utf-8, though it has the mark of it: byte 0xef at place 5 of 8",
    ),
    ("text/plain; charset=windows-1252", b'"\x81"', "byte 0x81 at place 1 of 3"),
    ("text/plain; charset=gbk", b'"\xd6"', "not in its charset 'gbk': byte 0xd6 at place 1 of 3"),
    ("text/plain; charset=utf-16", b"a\x00b\x00", "charset 'utf-16' has two byte orders, and no mark says"),
    ("text/plain", b"na\xefve", "names no charset, and is not in UTF-8: byte 0xef at place 2 of 5"),
    ("text/plain", b"\xff\xfea\x00b", "is not in utf-16-le, though it has the mark of it: byte"),
    ("", b"na\xefve", "names no charset, and is not in UTF-8: byte 0xef at place 2 of 5"),
]


@pytest.mark.contract
@pytest.mark.parametrize(("header", "content", "told"), REFUSED)
def test_bytes_that_are_not_in_their_charset_are_an_error_that_says_where_and_what_to_do(
    http: Http, header: str, content: bytes, told: str
) -> None:
    for parse in ("text", "json"):
        if parse == "json" and "utf-16" in told + header:
            # JSON says by its zeros what it is.
            continue
        with pytest.raises(ValueError, match=re.escape(told)) as raised:
            Answering(content, header).found(http, parse)
        assert str(raised.value).startswith("GET http://127.0.0.1:")
        assert "take parse='bytes', or a function of the bytes" in str(raised.value)
        assert FILLED not in str(raised.value)
        assert len(str(raised.value)) < 300
    assert Answering(content, header).found(http, "bytes") == content
    assert Answering(content, header).found(http, len) == len(content)


@pytest.mark.contract
def test_a_text_that_cannot_be_read_is_the_rows_error_after_one_call(http: Http) -> None:
    service = Answering(b"na\xefve", "text/plain; charset=utf-8")
    outcome = service.through_operator(http, errors="column", retry=5)
    assert "not in its charset 'utf-8'" in str(outcome.error)
    assert service.asked == 1
    with pytest.raises(CallFailed, match="byte 0xef at place 2 of 5"):
        service.through_operator(http)


@pytest.mark.contract
def test_half_characters_of_an_answer_are_an_error_or_replaced_in_text_as_in_json(http: Http) -> None:
    replacing = Http(proxy="direct", backend=http.backend, surrogates="replace")
    for parse, content, header in (
        ("text", HALF, "text/plain"),
        ("text", "\ud83d".encode("utf-16-le", "surrogatepass"), "text/plain; charset=utf-16le"),
        ("json", b'"' + HALF + b'"', "application/json"),
        ("json", b'"\\ud83d"', "application/json; charset=iso-8859-1"),
        ("json", '"\\ud83d"'.encode("utf-16-le"), "application/json"),
    ):
        with pytest.raises(ValueError, match="the answer: has half a character"):
            Answering(content, header).found(http, parse)
        assert Answering(content, header).found(replacing, parse) == FILLED
    # What the service itself has filled is its text.
    assert Answering(FILLED.encode(), "text/plain").found(http) == FILLED


def test_an_empty_answer_is_no_json_and_an_empty_text(http: Http) -> None:
    header = "text/plain; charset=iso-8859-1"
    assert Answering(b"", header).found(http, "json") is None
    assert Answering(b"", header).found(http) == ""


def test_what_is_in_its_charset_and_no_json_says_so(http: Http) -> None:
    with pytest.raises(ValueError, match=r"the answer \(text/html; charset=gbk, 4 bytes\) is not JSON"):
        Answering("中文".encode("gbk"), "text/html; charset=gbk").found(http, "json")


def test_the_words_of_a_refusal_are_shown_in_their_charset(http: Http) -> None:
    for charset, words in (
        ("iso-8859-1", "épuisé"),
        ("gbk", "额度"),
        (None, "épuisé"),
        ("klingon", "épuisé"),
    ):
        header = "text/plain" if charset is None else f"text/plain; charset={charset}"
        body = words.encode(charset if charset not in (None, "klingon") else "utf-8")
        with pytest.raises(HttpStatusError, match=rf"HTTP 400 .*: {words}$"):
            Answering(body, header, status=400).found(http)


@pytest.mark.contract
def test_a_refusal_in_another_charset_is_read_as_what_it_is(http: Http) -> None:
    body = json.dumps({"error": {"code": "insufficient_quota", "message": "épuisé"}}, ensure_ascii=False)
    service = Answering(body.encode("latin-1"), "application/json; charset=iso-8859-1", status=429)
    outcome = service.through_operator(http, errors="column", retry=5)
    # The words are read: there is no credit, so that nothing is tried again.
    assert outcome.error.type == "NotCalled" and "épuisé" in outcome.error.message
    assert service.asked == 1


def everything() -> Iterator[bytes]:
    """All bytes, before a letter, alone and behind one."""
    for value in range(256):
        yield bytes([value, 0x40])
        yield bytes([value])
        yield b"a" + bytes([value, 0x40])


@pytest.mark.parametrize("charset", [None, "us-ascii", "windows-1252", "iso-8859-8", "big5", "euc-kr"])
def test_all_bytes_are_read_by_the_letter_or_are_an_error(http: Http, charset: str | None) -> None:
    contents = [*everything()]
    header = "text/plain" if charset is None else f"text/plain; charset={charset}"

    def answer(request: RawRequest) -> bytes:
        return raw_answer(contents[int(request.path[1:])], header)

    with RawService(answer) as service:
        client = HttpLookup(service.url + "/{a}", parse="text", http=http)
        found = list(async_map(range(len(contents)), client, errors="column"))
    for content, outcome in zip(contents, found, strict=True):
        try:
            text = content.decode(charset or "utf-8")
        except UnicodeDecodeError as error:
            place = f"at place {error.start} of {len(content)}"
            assert outcome.result is None
            assert place in str(outcome.error)
        else:
            assert (outcome.result, outcome.error) == (text, None)
