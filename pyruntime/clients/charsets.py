"""Texts of the bytes of an answer: by its byte order mark, the charset that its headers tell, or as UTF-8.

Pure; any thread.
"""

# Why nothing is guessed, and nothing filled with U+FFFD. A text in the wrong charset looks like one in the
# right charset to every program that comes after: it is found by people, in a column, after months. What
# cannot be read for sure is the error of its row, which says what to do.
#
# Why a mark comes before the headers: a server's default names a charset for files that it has not looked
# into, and no text begins by accident with the bytes of a mark. Browsers do so too (WHATWG, Encoding, 6).
#
# Why "ISO-8859-1" is not read as windows-1252, as browsers do: they show pages to people, who see a wrong
# quotation mark. Both are read to the letter here.

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from pillarbox.wire import Kind

UTF_8 = "utf-8"
ORDERED = {"utf-16": 2, "utf-32": 4}
"""Charsets of both byte orders, by the bytes of a unit: without a mark they do not say which."""
MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    # Before those of UTF-16, whose little one is its beginning.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, and how what follows them is encoded."""
OF_PYTHON = frozenset({"charmap", "idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined"})
"""Codecs of Python from bytes to text, of which none is a charset."""
OTHER_NAMES = {"utf8mb4": UTF_8, "unicode-1-1-utf-8": UTF_8}
"""Names of UTF-8 that services tell and Python does not know."""
MAX_NAME_CHARACTERS = 40
"""Characters of a charset's name, as IANA registers them."""
ADVICE = "take parse='bytes', or a function of the bytes"

_PARAMETER = re.compile(r';\s*([^\s=;,"]+)\s*=\s*("(?:[^"\\]|\\.)*"?|[^;,]*)')
_ESCAPED = re.compile(r"\\(.)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+()-]*")


class TextUnreadable(ValueError):
    """Raised for bytes that are not text in the charset that they should be in. Never tried again."""

    kind = Kind.OTHER_KIND


class Decoded(NamedTuple):
    """A text, which may have half characters, and the codec by which it was read."""

    text: str
    codec: str


def content_type_of(headers: Mapping[str, str]) -> str | None:
    """The `Content-Type` of an answer, joined where it came several times; None without one."""
    # Of aiohttp, which gives the first of several otherwise.
    get_all = getattr(headers, "getall", None)
    return headers.get("content-type") if get_all is None else ", ".join(get_all("content-type", ())) or None


@lru_cache(maxsize=256)
def charset_of(content_type: str | None) -> str | None:
    """The charset in a `Content-Type`, as it is written there; None where it tells none.

    Of several the first counts, as for browsers.
    """
    for name, value in _PARAMETER.findall(content_type or ""):
        if name.lower() == "charset":
            told: str = _ESCAPED.sub(r"\1", value.strip().strip('"')).strip(" '")
            if told:
                return told
    return None


def decoded_text(content: bytes, charset: str | None) -> Decoded:
    """The text in `content`, without a byte order mark. charset: as told, None for UTF-8.

    Raises TextUnreadable that names the charset and the place of what is not in it.
    """
    codec = UTF_8 if charset is None else _codec(charset)
    for mark, marked in MARKS:
        if content.startswith(mark):
            return _decoded(content, marked, charset, len(mark))
    return _decoded(content, codec, charset)


def decoded_json(content: bytes, charset: str | None) -> Decoded:
    """The text of JSON in `content`, without a byte order mark. charset: as told, None for UTF-8.

    UTF-16 and UTF-32 are known by their marks, or by the zeros around JSON's first character. Raises
    TextUnreadable, as `decoded_text` does.
    """
    told = UTF_8 if charset is None else _codec(charset)
    found = json.detect_encoding(content)
    if found == UTF_8:
        return _decoded(content, told, charset)
    if found in ("utf-8-sig", *ORDERED):
        return decoded_text(content, charset)
    return _decoded(content, found, charset)


def shown_text(content: bytes, charset: str | None) -> str:
    """The text in the first bytes of an answer, for an error's words: what cannot be read is U+FFFD there."""
    codec = None if charset is None else _known_codec(charset.lower())
    return content.decode(codec or UTF_8, "replace")


def _decoded(content: bytes, codec: str, charset: str | None, begin: int = 0) -> Decoded:
    if codec in ORDERED:
        raise TextUnreadable(
            f"the answer's charset {charset!r} has two byte orders, and no mark says which; {ADVICE}"
        )
    try:
        # Half characters are the caller's matter.
        errors = "surrogatepass" if codec.startswith("utf-") and codec != "utf-7" else "strict"
        return Decoded((content[begin:] if begin else content).decode(codec, errors), codec)
    except UnicodeDecodeError as error:
        place = begin + error.start
        where = f"byte {content[place]:#04x} at place {place:,} of {len(content):,}"
    except UnicodeError as error:
        where = str(error)
    if begin:
        raise TextUnreadable(f"the answer is not in {codec}, though it has the mark of it: {where}; {ADVICE}")
    if charset is not None:
        raise TextUnreadable(f"the answer is not in its charset {charset!r}: {where}; {ADVICE}")
    raise TextUnreadable(f"the answer names no charset, and is not in UTF-8: {where}; {ADVICE}")


def _codec(charset: str) -> str:
    """The name of Python's codec for a charset. Raises TextUnreadable for one that is not known."""
    codec = _known_codec(charset.lower()) if len(charset) <= MAX_NAME_CHARACTERS else None
    if codec is None:
        shown = charset[:MAX_NAME_CHARACTERS]
        raise TextUnreadable(f"the answer's charset {shown!r} is not known here; {ADVICE}")
    return codec


@lru_cache(maxsize=256)
def _known_codec(charset: str) -> str | None:
    if not _NAME.fullmatch(charset):
        return None
    given = OTHER_NAMES.get(charset, charset)
    # Python knows "x-sjis" and "windows-874" by these names only.
    for name in (given, given.removeprefix("x-").replace("windows-", "cp")):
        try:
            codec = codecs.lookup(name).name
            # Codecs that are not from bytes to text refuse it, such as that of zlib.
            b"?".decode(codec)
        except UnicodeDecodeError:
            return codec
        except (LookupError, ValueError):
            continue
        return None if codec in OF_PYTHON else codec
    return None
