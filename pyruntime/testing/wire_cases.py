"""The cases of `wire_suite`: events on the wire, each as a script of a server, and its class.

Plain values; any thread.
"""

# Where two classes are right, both stand there, the better one first: HTTP leaves it to the client whether an
# answer with bytes behind it is read, and not every client can tell that a status line has begun.

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pillarbox.testing.wire_server import Connection, Script
from pillarbox.wire import Kind

LARGE_BYTES = 4 << 20
"""Bytes of a body that a server refuses for its size."""
BOMB_BYTES = 40 << 20
"""Bytes of an answer that is above the bound of the client under test."""
LONG_LINE_BYTES = 400_000
"""Bytes of a header that no client reads."""
SECONDS = 7.0
"""The pause that a service asks for."""
DATE = "Thu, 29 Feb 2024 12:00:00 GMT"


@dataclass(frozen=True)
class WireCase:
    """An event on the wire, and the class that a client has to give it.

    name: of the case. about: in words. kinds: the classes that are right. script: of the server; None for a
    port that nobody listens at. method, body: of the request. before: requests that are answered before it,
    by which its connection is kept. status, answer, retry_after, location: that are read, where they are
    given. reads: requests that the server reads whole, those before included, at most.
    """

    name: str
    about: str
    kinds: tuple[Kind, ...]
    script: Script | None
    method: str = "POST"
    body: bytes | None = b"a question"
    before: int = 0
    status: int | None = None
    answer: bytes | None = None
    retry_after: float | None = None
    location: str | None = None
    reads: int | None = None


def head(*lines: str, status: str = "200 OK", version: str = "1.1") -> bytes:
    """The head of an answer."""
    return "\r\n".join([f"HTTP/{version} {status}", *lines, "", ""]).encode("latin-1")


def answer(body: bytes, *lines: str, status: str = "200 OK") -> bytes:
    """An answer with its length."""
    return head(*lines, f"Content-Length: {len(body)}", status=status) + body


def error(words: object, *lines: str, status: str = "200 OK") -> bytes:
    """An answer in JSON."""
    return answer(json.dumps(words).encode(), "Content-Type: application/json", *lines, status=status)


OK = answer(b"ok")
TEXT = b"the same words again and again, " * 200
GZIPPED = gzip.compress(TEXT)
DEFLATED = zlib.compress(TEXT)
RAW_DEFLATED = DEFLATED[2:-4]
CHUNKED = "Transfer-Encoding: chunked"


# -- scripts ---------------------------------------------------------------------------------------


def saying(data: bytes, end: Callable[[Connection], None] = Connection.close) -> Script:
    """Answer each request with these bytes, and end the connection so."""

    def script(connection: Connection) -> None:
        connection.read_request()
        connection.send(data)
        end(connection)

    return script


def staying(data: bytes) -> Script:
    """Answer each request with these bytes, on kept connections."""

    def script(connection: Connection) -> None:
        while True:
            connection.read_request()
            connection.send(data)

    return script


def first(fault: Script) -> Script:
    """Serve the first connection so, and all others well."""
    well = staying(OK)
    return lambda connection: fault(connection) if connection.number == 0 else well(connection)


def once(then: Script) -> Script:
    """Answer one request well, and go on so."""

    def script(connection: Connection) -> None:
        connection.read_request()
        connection.send(OK)
        then(connection)

    return script


def at_request(end: Callable[[Connection], None]) -> Script:
    """End the connection when the first byte of a request is there."""

    def script(connection: Connection) -> None:
        connection.read_some(1)
        end(connection)

    return script


def after_request(end: Callable[[Connection], None]) -> Script:
    """End the connection when a whole request was read."""

    def script(connection: Connection) -> None:
        connection.read_request()
        end(connection)

    return script


def after_head(data: bytes, end: Callable[[Connection], None], body_bytes: int = 0) -> Script:
    """Read the headers of a request, and so much of its body; say this, and end the connection so."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_some(body_bytes)
        connection.send(data)
        end(connection)

    return script


def in_pieces(data: bytes) -> Script:
    """Answer byte by byte."""

    def script(connection: Connection) -> None:
        connection.read_request()
        for place in range(len(data)):
            connection.send(data[place : place + 1])
        connection.wait_for_end()

    return script


def without_end(beginning: bytes, piece: bytes) -> Script:
    """Answer with the same piece again and again, until the client has enough."""

    def script(connection: Connection) -> None:
        connection.read_request()
        connection.send(beginning)
        while True:
            connection.send(piece)

    return script


def chunks(*parts: bytes) -> bytes:
    """Parts of a chunked body, without its end."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


wait, close, reset = Connection.wait_for_end, Connection.close, Connection.reset

# -- cases -----------------------------------------------------------------------------------------


def _not_sent() -> Iterator[WireCase]:
    kept = "and what follows is answered on another connection"
    for name, end in (("closed", close), ("reset", reset)):
        for method, body in (("POST", b"a question"), ("GET", None)):
            yield WireCase(
                f"kept_{name}_silently_{method.lower()}",
                f"a kept connection was {name} without notice, {kept}",
                (Kind.ANSWER,),
                first(once(end)),
                method,
                body,
                before=1,
                answer=b"ok",
                reads=2,
            )
        yield WireCase(
            f"kept_{name}_at_the_request",
            f"a kept connection is {name} when the request comes, {kept}",
            (Kind.ANSWER,),
            first(once(at_request(end))),
            before=1,
            answer=b"ok",
            reads=2,
        )
        yield WireCase(
            f"kept_{name}_behind_the_request",
            f"a kept connection is {name} without an answer, {kept}",
            (Kind.ANSWER,),
            first(once(after_request(end))),
            before=1,
            answer=b"ok",
            reads=3,
        )
    yield WireCase(
        "kept_reset_for_a_large_body",
        f"a kept connection is reset while a large body is sent, {kept}",
        (Kind.ANSWER,),
        first(once(at_request(reset))),
        body=bytes(LARGE_BYTES),
        before=1,
        answer=b"ok",
        reads=2,
    )
    yield WireCase(
        "closed_with_notice",
        "an answer announces that the connection is closed",
        (Kind.ANSWER,),
        saying(answer(b"ok", "Connection: close")),
        before=1,
        answer=b"ok",
        reads=2,
    )
    late = answer(b"", "Connection: close", status="408 Request Timeout")
    yield WireCase(
        "kept_closed_with_a_late_notice",
        "a kept connection is closed with an answer that nobody has asked for",
        (Kind.ANSWER, Kind.FAILED),
        first(once(lambda connection: connection.send(late))),
        before=1,
        answer=b"ok",
        reads=2,
    )
    yield WireCase(
        "first_connection_reset",
        "a fresh connection is reset before an answer, the next one is well",
        (Kind.ANSWER,),
        first(after_request(reset)),
        answer=b"ok",
        reads=2,
    )
    for name, end in (("closed", close), ("reset", reset)):
        right = (Kind.NOT_SENT, Kind.NOT_REACHED)
        yield WireCase(f"{name}_at_once", f"each connection is {name} when it is made", right, end)
        yield WireCase(
            f"{name}_without_an_answer",
            f"each connection is {name} behind the request",
            right,
            after_request(end),
            reads=2,
        )
    yield WireCase("refused", "nobody listens at the port", (Kind.NOT_REACHED,), None)


def _too_large() -> Iterator[WireCase]:
    body = bytes(LARGE_BYTES)
    said = answer(b"too large", "Connection: close", status="413 Too Large")
    for name, script in (
        ("reset_while_a_large_body_is_sent", after_head(b"", reset)),
        ("closed_while_a_large_body_is_sent", after_head(b"", close)),
        ("reset_within_a_large_body", after_head(b"", reset, LARGE_BYTES // 2)),
        ("closed_behind_a_large_body", after_request(close)),
        ("413_for_a_large_body_and_closed", after_head(said, close)),
        ("413_for_a_large_body_and_reset", after_head(said, reset)),
    ):
        yield WireCase(
            name, "a body that is too large is refused", (Kind.REFUSED_SIZE,), script, body=body, reads=1
        )
    yield WireCase(
        "large_body_read", "a large body is read", (Kind.ANSWER,), staying(OK), body=body, answer=b"ok"
    )


def _broken() -> Iterator[WireCase]:
    gzipped = "Content-Encoding: gzip"
    for name, data, end in (
        ("length_not_reached", head("Content-Length: 9") + b"half", close),
        ("length_not_reached_by_whole_json", head("Content-Length: 9") + b"{}", close),
        ("length_not_reached_and_reset", head("Content-Length: 9") + b"half", reset),
        ("chunk_cut", head(CHUNKED) + b"9\r\nhalf", close),
        ("last_chunk_missing", head(CHUNKED) + chunks(b"whole"), close),
        ("body_without_a_length_reset", head() + b"half", reset),
        ("headers_cut_in_a_line", head("Content-Length: 2")[:-8], close),
        ("headers_cut_behind_a_line", head("Content-Length: 2")[:-2], close),
        ("only_an_interim_answer", head(status="100 Continue"), close),
        ("gzip_cut", answer(GZIPPED[:-30], gzipped), wait),
        ("gzip_cut_in_its_checksum", answer(GZIPPED[:-4], gzipped), wait),
        ("gzip_cut_in_its_first_bytes", answer(GZIPPED[:5], gzipped), wait),
        ("gzip_without_a_length_cut", head(gzipped) + GZIPPED[:-30], close),
        ("gzip_of_whole_chunks_cut", head(gzipped, CHUNKED) + chunks(GZIPPED[:-30]) + b"0\r\n\r\n", wait),
        ("second_gzip_member_cut", answer(GZIPPED + GZIPPED[:-30], gzipped), wait),
        ("deflate_cut", answer(DEFLATED[:-10], "Content-Encoding: deflate"), wait),
    ):
        yield WireCase(name, "an answer breaks off", (Kind.BROKEN,), saying(data, end), reads=1)
    yield WireCase(
        "status_line_cut",
        "an answer breaks off in its first bytes",
        (Kind.BROKEN, Kind.NOT_REACHED, Kind.NOT_SENT),
        saying(b"HTTP/1."),
        reads=2,
    )


def _answered_badly() -> Iterator[WireCase]:
    gzipped = "Content-Encoding: gzip"
    spoiled = GZIPPED[:-8] + bytes(4) + GZIPPED[-4:]
    for name, data in (
        ("garbage", b"garbage\r\n\r\n"),
        ("a_page_without_a_head", b"<html>an answer</html>"),
        ("a_status_that_is_no_number", head("Content-Length: 0", status="abc OK")),
        ("a_status_of_two_digits", head("Content-Length: 0", status="99 OK")),
        ("a_status_of_four_digits", head("Content-Length: 0", status="1000 OK")),
        ("another_version", head("Content-Length: 0", version="2")),
        ("a_negative_length", head("Content-Length: -2") + b"ok"),
        ("a_length_that_is_no_number", head("Content-Length: two") + b"ok"),
        ("two_lengths", head("Content-Length: 2", "Content-Length: 3") + b"ok!"),
        ("a_chunk_size_that_is_no_number", head(CHUNKED) + b"zz\r\nok\r\n0\r\n\r\n"),
        ("a_chunk_without_its_end", head(CHUNKED) + b"2\r\nokXX0\r\n\r\n"),
        ("a_header_without_a_colon", head("nonsense", "Content-Length: 2") + b"ok"),
        ("a_header_with_a_zero_byte", head("X-A: \0b", "Content-Length: 2") + b"ok"),
        ("a_header_that_is_too_long", head(f"X-A: {'a' * LONG_LINE_BYTES}", "Content-Length: 2") + b"ok"),
        ("too_many_headers", head(*(f"X-{n}: a" for n in range(20_000)), "Content-Length: 2") + b"ok"),
        ("an_unknown_content_coding", answer(b"ok", "Content-Encoding: x-unknown")),
        ("an_unknown_transfer_coding", head("Transfer-Encoding: x-unknown") + b"ok"),
        ("gzip_that_is_none", answer(b"plain text", gzipped)),
        ("gzip_with_a_wrong_checksum", answer(spoiled, gzipped)),
        ("gzip_with_bytes_behind", answer(GZIPPED + b"more", gzipped)),
        ("another_protocol", head("Upgrade: x", "Connection: Upgrade", status="101 Switching")),
    ):
        yield WireCase(name, "an answer cannot be read", (Kind.ANSWERED_BADLY,), saying(data), reads=1)
    either = (Kind.ANSWER, Kind.ANSWERED_BADLY)
    for name, data in (
        ("bytes_behind_the_body", OK + b"more"),
        ("bytes_behind_the_last_chunk", head(CHUNKED) + chunks(b"ok") + b"0\r\n\r\nmore"),
        ("the_same_length_twice", head("Content-Length: 2", "Content-Length: 2") + b"ok"),
        ("a_length_beside_chunks", head("Content-Length: 9", CHUNKED) + chunks(b"ok") + b"0\r\n\r\n"),
        ("a_blank_before_a_colon", head("X-A : b", "Content-Length: 2") + b"ok"),
        ("a_body_of_204", head("Content-Length: 2", status="204 No Content") + b"ok"),
    ):
        yield WireCase(name, "an answer is read, or is a bad one", either, saying(data), reads=1)


def _answers() -> Iterator[WireCase]:
    gzipped = "Content-Encoding: gzip"
    for name, data, body in (
        ("an_answer", OK, b"ok"),
        ("a_long_header", answer(b"ok", f"X-A: {'a' * 60_000}"), b"ok"),
        ("a_hundred_headers", answer(b"ok", *(f"X-{n}: a" for n in range(100))), b"ok"),
        ("a_folded_header", answer(b"ok", "X-A: a\r\n b"), b"ok"),
        ("a_header_that_is_not_ascii", answer(b"ok", "X-A: \xe9"), b"ok"),
        ("lines_without_a_return", OK.replace(b"\r\n", b"\n"), b"ok"),
        ("no_reason", OK.replace(b" OK", b""), b"ok"),
        ("http_1_0_with_a_length", OK.replace(b"1.1", b"1.0"), b"ok"),
        ("an_interim_answer", head(status="100 Continue") + OK, b"ok"),
        ("interim_answers", head("Link: x", status="103 Early Hints") * 3 + OK, b"ok"),
        ("chunks", head(CHUNKED) + chunks(b"o", b"k") + b"0\r\n\r\n", b"ok"),
        ("chunks_with_more", head(CHUNKED) + b"2;a=b\r\nok\r\n0\r\nX-A: b\r\n\r\n", b"ok"),
        ("gzip", answer(GZIPPED, gzipped), TEXT),
        ("gzip_in_chunks", head(gzipped, CHUNKED) + chunks(GZIPPED[:9], GZIPPED[9:]) + b"0\r\n\r\n", TEXT),
        ("gzip_members", answer(GZIPPED + GZIPPED, gzipped), TEXT * 2),
        ("gzip_with_zeros_behind", answer(GZIPPED + bytes(9), gzipped), TEXT),
        ("gzip_of_nothing", answer(b"", gzipped), b""),
        ("gzip_by_its_old_name", answer(GZIPPED, "Content-Encoding: x-gzip"), TEXT),
        ("gzip_twice", answer(gzip.compress(GZIPPED), "Content-Encoding: gzip, gzip"), TEXT),
        ("deflate", answer(DEFLATED, "Content-Encoding: deflate"), TEXT),
        ("deflate_without_a_wrapping", answer(RAW_DEFLATED, "Content-Encoding: deflate"), TEXT),
        ("a_charset_for_a_coding", answer(b"ok", "Content-Encoding: utf-8"), b"ok"),
        ("another_charset_for_a_coding", answer(b"ok", "Content-Encoding: ISO-8859-1"), b"ok"),
        ("the_identity_for_a_coding", answer(b"ok", "Content-Encoding: identity"), b"ok"),
        ("no_coding", answer(b"ok", "Content-Encoding: none"), b"ok"),
        ("an_empty_coding", answer(b"ok", "Content-Encoding: "), b"ok"),
        ("gzip_and_a_charset", answer(GZIPPED, "Content-Encoding: gzip, utf-8"), TEXT),
        ("a_text_in_latin_1", answer(b"\xe9", "Content-Type: text/plain; charset=latin-1"), b"\xe9"),
        ("a_status_without_a_body", head(status="204 No Content"), b""),
    ):
        yield WireCase(name, "an answer is read", (Kind.ANSWER,), saying(data, wait), answer=body, reads=1)
    for name, data in (
        ("no_length", head() + b"ok"),
        ("http_1_0_without_a_length", head(version="1.0") + b"ok"),
    ):
        yield WireCase(name, "an answer ends with the connection", (Kind.ANSWER,), saying(data), answer=b"ok")
    for name, data, coding in (
        ("gzip_byte_by_byte", GZIPPED, "gzip"),
        ("deflate_byte_by_byte", DEFLATED, "deflate"),
        ("deflate_without_a_wrapping_byte_by_byte", RAW_DEFLATED, "deflate"),
    ):
        script = in_pieces(answer(data, f"Content-Encoding: {coding}"))
        yield WireCase(
            name, "a coded answer comes byte by byte", (Kind.ANSWER,), script, answer=TEXT, reads=1
        )
    yield WireCase(
        "byte_by_byte", "an answer comes byte by byte", (Kind.ANSWER,), in_pieces(OK), answer=b"ok", reads=1
    )


def _bounded() -> Iterator[WireCase]:
    bomb = gzip.compress(bytes(BOMB_BYTES))
    gzipped = "Content-Encoding: gzip"
    zeros = bytes(1 << 16)
    for name, script in (
        ("a_gzip_bomb", saying(answer(bomb, gzipped), wait)),
        ("a_gzip_bomb_in_gzip", saying(answer(gzip.compress(bomb), "Content-Encoding: gzip, gzip"), wait)),
        ("a_length_above_the_bound", saying(head(f"Content-Length: {BOMB_BYTES}"), wait)),
        ("a_body_without_end", without_end(head(), zeros)),
        ("chunks_without_end", without_end(head(CHUNKED), chunks(zeros))),
    ):
        yield WireCase(name, "an answer is above the bound", (Kind.REFUSED_SIZE,), script, reads=1)
    yield WireCase(
        "headers_without_end",
        "the headers of an answer have no end",
        (Kind.ANSWERED_BADLY,),
        without_end(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 1000 + b"\r\n"),
        reads=1,
    )


def _statuses() -> Iterator[WireCase]:
    for status, kind in (
        ("400 Bad", Kind.REFUSED_ROW),
        ("401 No", Kind.REFUSED_ALL),
        ("402 Pay", Kind.OUT_OF_QUOTA),
        ("404 Not Found", Kind.REFUSED_ROW),
        ("405 No", Kind.REFUSED_ALL),
        ("408 Late", Kind.FAILED),
        ("413 Too Large", Kind.REFUSED_SIZE),
        ("422 No", Kind.REFUSED_ROW),
        ("500 Failed", Kind.FAILED),
        ("501 No", Kind.REFUSED_ALL),
        ("502 Bad Gateway", Kind.NOT_REACHED),
        ("503 Later", Kind.OVERLOADED),
        ("504 Late", Kind.NOT_REACHED),
    ):
        number = int(status[:3])
        yield WireCase(
            f"status_{number}",
            f"the status {number}",
            (kind,),
            staying(answer(b"no", status=status)),
            status=number,
            reads=1,
        )
    for number in (301, 302, 303, 307, 308):
        yield WireCase(
            f"redirect_{number}",
            "a redirect, which is not followed",
            (Kind.REFUSED_ALL,),
            staying(answer(b"", "Location: /elsewhere", status=f"{number} Moved")),
            status=number,
            location="/elsewhere",
            reads=1,
        )
    for name, words, status, kind in (
        ("no_credit", {"error": {"code": "insufficient_quota"}}, "429 Many", Kind.OUT_OF_QUOTA),
        ("no_such_model", {"error": {"message": "The model `m` does not exist"}}, "404 No", Kind.REFUSED_ALL),
        ("overload_in_a_success", {"error": {"code": 429, "message": "slow"}}, "200 OK", Kind.OVERLOADED),
        ("refusal_in_a_success", {"error": {"code": "400", "message": "no"}}, "200 OK", Kind.REFUSED_ROW),
        ("failure_in_a_success", {"error": {"message": "a fault"}}, "200 OK", Kind.FAILED),
        ("no_error_in_a_success", {"error": None, "data": [1]}, "200 OK", Kind.ANSWER),
    ):
        yield WireCase(
            name, "an error object is read", (kind,), staying(error(words, status=status)), reads=1
        )
    for name, lines, seconds in (
        ("seconds", ("Retry-After: 7",), SECONDS),
        ("twice", ("Retry-After: 2", "Retry-After: 7"), SECONDS),
        ("twice_the_same", ("Retry-After: 7", "Retry-After: 7"), SECONDS),
        ("beside_garbage", ("Retry-After: soon", "Retry-After: 7"), SECONDS),
        ("garbage", ("Retry-After: soon",), None),
        ("a_date", (f"Date: {DATE}", "Retry-After: Thu, 29 Feb 2024 12:00:07 GMT"), SECONDS),
        ("an_old_date", (f"Date: {DATE}", "Retry-After: Thursday, 29-Feb-24 12:00:07 GMT"), SECONDS),
        ("a_date_of_c", (f"Date: {DATE}", "Retry-After: Thu Feb 29 12:00:07 2024"), SECONDS),
        (
            "a_date_beside_seconds",
            (f"Date: {DATE}", "Retry-After: 2", "Retry-After: Thu, 29 Feb 2024 12:00:07 GMT"),
            SECONDS,
        ),
        ("milliseconds", ("retry-after-ms: 7000",), SECONDS),
    ):
        yield WireCase(
            f"retry_after_{name}",
            "an overloaded service asks for a pause",
            (Kind.OVERLOADED,),
            staying(answer(b"", *lines, status="429 Many")),
            status=429,
            retry_after=seconds,
            reads=1,
        )


def _late() -> Iterator[WireCase]:
    for name, data in (
        ("no_answer", b""),
        ("no_end_of_headers", head("X-A: a")[:-2]),
        ("no_end_of_the_body", head("Content-Length: 9") + b"half"),
    ):
        yield WireCase(name, "an answer does not come in time", (Kind.LATE,), saying(data, wait), reads=1)


CASES: dict[str, WireCase] = {
    case.name: case
    for group in (
        _not_sent,
        _too_large,
        _broken,
        _answered_badly,
        _answers,
        _bounded,
        _statuses,
        _late,
    )
    for case in group()
}
"""All cases, by their names."""
