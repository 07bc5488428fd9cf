"""Images and files in the questions of a chat: which columns have them, what they are, how they are sent.

Pure, and for any thread, but for what clears the frames of an error, which belongs to the thread that caught
it.
"""

# Why a request is first made with marks in place of images. A description of a language then builds plain
# values and knows no bytes, JSON is made of a few hundred characters and not searched for what it must escape
# in millions, and the base64 of an image is made once for each request, immediately before it is sent.
#
# Why nothing but the first bytes says what an image is. Services refuse an image whose type is not the one
# that its request names, names of files are often wrong, and a column has none. What begins like no type that
# is known is the error of its row: a guess would be paid for, or refused by the service in its own words.
#
# Why an error never quotes an image, nor the address of one. Rows are people's data, an address may be
# signed, and both would stand in logs and in tables. So sizes, types and names of columns are all that is
# said, and the answer of a service that quotes its request is cut.

from __future__ import annotations

import base64
import binascii
import re
import secrets
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from pillarbox.validate import check_choice, check_positive_int, check_text, naming_arguments

MAX_IMAGE_BYTES = 20_000_000
"""Bytes of one image unless the user says others: no service of those that are known takes much more."""
PNG, JPEG, GIF, WEBP, PDF = "image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"
HEIC, HEIF, AVIF = "image/heic", "image/heif", "image/avif"
IMAGE_TYPES = frozenset({PNG, JPEG, GIF, WEBP})
"""Types of images that nearly each service takes."""
BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis"), HEIC),
    **dict.fromkeys((b"avif", b"avis"), AVIF),
    **dict.fromkeys((b"mif1", b"mif2"), HEIF),
}
"""The types of files in the form of ISO media, by the brand that their first box names."""
DETAILS = ("low", "high", "auto")
SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Written in front of a PDF by some programs."""
LONGEST_HEAD = 64
"""Bytes that are enough to recognise each type."""
SHORTEST_QUOTE = 16
"""Characters of base64, at least, that an answer may have from the request by accident."""
MAX_LOOKS = 50
"""Words of an answer that are looked for in the request: each look takes milliseconds of the event loop."""
QUOTE = b"[image]"
"""Stands in an error for the part of an image that a service has quoted."""

Content: TypeAlias = bytes | bytearray | memoryview

_MARK = f"pillarbox-image-{secrets.token_hex(16)}-"
"""Begins what stands in a body for an image: no text of a row has it by accident or on purpose."""
_MARKS = re.compile(re.escape(_MARK.encode()) + rb"(\d+);")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE | re.ASCII)
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,15}):", re.ASCII)
_RUNS = re.compile(rb"[A-Za-z0-9+/]{%d,}" % SHORTEST_QUOTE)


class ImageRefused(ValueError):
    """Raised for an image that is not sent: too large, of a type that is not known or not taken, no address.

    Its text has the name of the column, sizes and types, and nothing of the image.
    """

    is_permanent: ClassVar[bool] = True


@naming_arguments
@dataclass(frozen=True)
class Images:
    """The columns of a row whose images and PDFs are part of a question.

    columns: names of columns of binary values or of addresses (http, https, data), or of arrays of these.
    max_bytes: of one image, at most; a row with a larger one fails, and is not sent.
    tokens: that one image takes of a model, as an estimate of yours: `estimate_cost` mentions it.
    detail: how closely the model looks, "low", "high" or "auto", where the language has it: low takes fewer
        tokens. None for what the service does by itself.

        >>> from pillarbox.clients import Chat, Images
        >>> photos = Images(["photo"], max_bytes=5_000_000)
        >>> client = Chat("https://host/v1", "small", prompt="What is {name}?", images=photos)
        >>> client.fields
        ('name', 'photo')

    A value; any thread. Raises TypeError and ValueError that name the argument.
    """

    columns: str | Sequence[str]
    max_bytes: int = MAX_IMAGE_BYTES
    tokens: int | None = None
    detail: Literal["low", "high", "auto"] | None = None

    def __post_init__(self) -> None:
        names = [self.columns] if isinstance(self.columns, str) else self.columns
        if not isinstance(names, list | tuple) or not names:
            raise TypeError(
                f"columns={self.columns!r:.200}: must be the name of a column, or a list of names"
            )
        for name in names:
            check_text("columns", name)
        if len({*names}) < len(names):
            raise ValueError(f"columns={self.columns!r:.200}: has a name twice")
        check_positive_int("max_bytes", self.max_bytes)
        if self.tokens is not None:
            check_positive_int("tokens", self.tokens)
        if self.detail is not None:
            check_choice("detail", self.detail, DETAILS)
        object.__setattr__(self, "columns", tuple(names))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.columns)


def images_of(given: object, prompt: Sequence[str], language: str, details: Sequence[str]) -> Images | None:
    """The option `images` of a client as `Images`. Raises TypeError and ValueError.

    prompt: the columns that the text of the question has. language: its name. details: that it has.
    """
    if given is None:
        return None
    try:
        found = given if isinstance(given, Images) else Images(given)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise type(error)(f"images: {error}") from None
    both = sorted({*found.names}.intersection(prompt))
    if both:
        raise ValueError(
            f"images={list(found.names)}: {', '.join(both)} stands in the prompt too, as a text; take the "
            "braces out of the prompt"
        )
    if found.detail is not None and found.detail not in details:
        known = f"has {', '.join(map(repr, details))}" if details else "has no such option"
        raise ValueError(
            f"images: detail={found.detail!r}: language={language!r} {known}; leave detail out, and for "
            "fewer tokens make the images smaller"
        )
    return found


class Image(NamedTuple):
    """An image or a file as a `Language` describes it in a request.

    type: such as "image/png" or "application/pdf"; None for an address. data: what stands for its base64.
    url: the address; None for an image that is sent itself. detail: as in `Images`.
    """

    type: str | None
    data: str
    url: str | None = None
    detail: str | None = None

    @property
    def is_file(self) -> bool:
        """True for a PDF."""
        return self.type == PDF

    @property
    def address(self) -> str:
        """The address of the image, which is a data URL where it is sent itself."""
        return f"data:{self.type};base64,{self.data}" if self.url is None else self.url


class Attached(NamedTuple):
    """The images of one row. contents: the bytes of those that are sent themselves, in the order of marks."""

    images: tuple[Image, ...]
    contents: tuple[Content, ...]

    def filled(self, body: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """The body of a request with base64 in place of the marks, and the places where each of it stands."""
        parts = _MARKS.split(body)
        spans = []
        at = 0
        for place, part in enumerate(parts):
            if place % 2:
                parts[place] = part = binascii.b2a_base64(self.contents[int(part)], newline=False)
                spans.append((at, at + len(part)))
            at += len(part)
        return b"".join(parts), spans


def attached(
    options: Images, values: Mapping[str, Any], types: frozenset[str], schemes: Sequence[str]
) -> Attached:
    """The images of a row. Raises ImageRefused.

    types, schemes: that the language takes.
    """
    images: list[Image] = []
    contents: list[Content] = []
    for name in options.names:
        value = values[name]
        # A memoryview has lists of its own, and is one value.
        several = isinstance(value, list | tuple) or (
            type(value).__name__ == "ndarray" and getattr(value, "ndim", 0) == 1
        )
        for place, each in enumerate(value if several else [value]):
            if each is None:
                continue
            column = f"{name}[{place}]" if several else name
            found = _image_of(column, each, options.max_bytes, types, schemes)
            if isinstance(found, Image):
                images.append(found._replace(detail=options.detail))
            else:
                kind, content = found
                images.append(Image(kind, f"{_MARK}{len(contents)};", detail=options.detail))
                contents.append(content)
    return Attached(tuple(images), tuple(contents))


def _image_of(
    column: str, value: object, most: int, types: frozenset[str], schemes: Sequence[str]
) -> Image | tuple[str, Content]:
    if isinstance(value, str):
        start = _DATA_URL.match(value)
        if start is None:
            return Image(None, "", _checked_url(column, value, schemes))
        value = _decoded(column, value, start.end(), most)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ImageRefused(
            f"images: {column!r} is a {type(value).__name__}; must be binary, an address, or a list of these"
        )
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size > most:
        raise _too_large(column, size, most)
    if not size:
        raise ImageRefused(f"images: {column!r} is empty, and was not sent")
    kind = type_of(value)
    if kind is None:
        raise ImageRefused(
            f"images: {column!r}, of {size:,} bytes, does not begin like a PNG, JPEG, GIF, WebP or PDF, and "
            "was not sent; convert it to one of these"
        )
    if kind not in types:
        raise ImageRefused(
            f"images: {column!r} is {kind}, which the service does not take, and was not sent; convert it to "
            f"one of {', '.join(sorted(types))}"
        )
    return kind, value


def _too_large(column: str, size: int, most: int) -> ImageRefused:
    return ImageRefused(
        f"images: {column!r} has {size:,} bytes, more than max_bytes={most:,}, and was not sent; make it "
        "smaller, or give images=Images(..., max_bytes=...)"
    )


def _checked_url(column: str, value: str, schemes: Sequence[str]) -> str:
    scheme = _SCHEME.match(value)
    found = "" if scheme is None else scheme[1].lower()
    if found in schemes and value.lower().startswith((f"{found}://",)) and value.isprintable():
        return value
    said = f"an address that begins with {found}:" if found else "a text, and no address"
    allowed = ", ".join(f"{each}://" for each in schemes)
    raise ImageRefused(
        f"images: {column!r} is {said}, and was not sent; the service takes {allowed} or the bytes themselves"
    )


def _decoded(column: str, value: str, start: int, most: int) -> bytes:
    """The bytes of a data URL. Raises ImageRefused."""
    size = (len(value) - start) // 4 * 3
    if size > most + 2:
        raise _too_large(column, size, most)
    try:
        encoded = value[start:].encode("ascii")
        # Base64 has no percent sign; addresses do.
        return base64.b64decode(unquote_to_bytes(encoded) if b"%" in encoded else encoded, validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ImageRefused(
            f"images: {column!r} is a data URL whose base64 is damaged, and was not sent"
        ) from None


def type_of(content: Content) -> str | None:
    """The type of an image or a PDF by its first bytes; None for any other content. Any thread."""
    head = bytes(memoryview(content).cast("B")[:LONGEST_HEAD])
    for signature, kind in SIGNATURES:
        if head.startswith(signature):
            return kind
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return WEBP
    if head[4:8] == b"ftyp":
        return _type_of_brands(head)
    if head.removeprefix(BYTE_ORDER_MARK).lstrip(b"\t\n\r ").startswith(b"%PDF-"):
        return PDF
    return None


def _type_of_brands(head: bytes) -> str | None:
    """The type of an image in the form of ISO media, HEIC, HEIF or AVIF; None for a film."""
    own = BRANDS.get(head[8:12])
    if own != HEIF:
        return own
    # A file of the general brand says behind it, with its version between, which codings it has.
    end = min(int.from_bytes(head[:4], "big"), len(head))
    others = {BRANDS.get(head[at : at + 4]) for at in range(16, end - 3, 4)}
    return next((kind for kind in (AVIF, HEIC) if kind in others), HEIF)


def encoded_bytes(options: Images, values: Mapping[str, Any]) -> int:
    """Bytes that the images of a row take in a request, by estimate."""
    found = 0
    for name in options.names:
        value = values[name]
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, bytes | bytearray | memoryview):
                size = memoryview(each).nbytes
                # What is too large is not sent.
                found += (size + 2) // 3 * 4 if size <= options.max_bytes else 0
            elif isinstance(each, str) and _DATA_URL.match(each):
                # Its bytes are there besides.
                found += len(each) // 4 * 7
    return found


def without_quotes(answer: bytes, sent: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    """The answer of a service without the parts of images that it has quoted of the request."""
    looks = 0

    def is_quoted(run: bytes) -> bool:
        nonlocal looks
        looks += 1
        if looks > MAX_LOOKS:
            return True
        pieces = {run, run[:SHORTEST_QUOTE], run[-SHORTEST_QUOTE:]}
        return any(sent.find(piece, start, end) >= 0 for piece in pieces for start, end in spans)

    # JSON may write a slash with a backslash in front.
    plain = answer.replace(b"\\/", b"/") if b"\\/" in answer else answer
    return _RUNS.sub(lambda run: QUOTE if is_quoted(run[0]) else run[0], plain)


def release_frames(error: BaseException) -> None:
    """Clear the variables of the frames that an error has come through, and those of its causes.

    An error is kept while its row waits for the next attempt: with them, so would the request be.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        waiting += [one.__cause__, one.__context__]
