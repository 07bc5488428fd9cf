"""Images and files in requests to the stand-in service: what it refuses, and what it says of the others.

Pure; any thread. Each function takes the content of a message in one language and gives its text and a
description of each image, `image/png sha256:...`, so that a test knows which bytes have arrived.
"""

# Written from the published references and from errors that people report. The types are recognised here once
# more, by another table than the client's: one that is wrong would otherwise agree with itself.

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

IMAGE_TOKENS = 258
"""Tokens that an image counts as."""
MIB = 2**20
OPENAI_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
ANTHROPIC_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
GEMINI_TYPES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "application/pdf")
PDF = "application/pdf"
ISO_BRANDS = {"image/avif": r"avi[fs]", "image/heic": r"hei[cxms]"}
"""Patterns of the four letters by which a file of ISO media says what it is; one of another is a film."""
OPENAI_DETAILS = ("low", "high", "auto")
MAX_OPENAI_BYTES = 50 * MIB
"""Of all images of a request."""
MAX_ANTHROPIC_BYTES = 10 * MIB
"""Of the base64 of one image."""
MAX_GEMINI_BYTES = 20 * MIB
"""Of the base64 of a request."""
QUOTED_CHARACTERS = 200
"""Characters of a value that Gemini quotes in an error."""

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)

Refuse = Callable[..., Exception]


class Content(NamedTuple):
    """The content of a message: its text, and the descriptions of its images."""

    text: str
    images: tuple[str, ...] = ()


def _type_of(content: bytes) -> str | None:
    if content[:4] == b"\x89PNG" and content[4:8] == b"\r\n\x1a\n":
        return "image/png"
    if content[:2] == b"\xff\xd8" and content[2:3] == b"\xff":
        return "image/jpeg"
    if content[:4] == b"GIF8" and content[4:6] in (b"7a", b"9a"):
        return "image/gif"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if content[4:8] == b"ftyp":
        brands = content[8:12] + content[16 : max(16, min(64, int.from_bytes(content[:4], "big")))]
        named = [brands[at : at + 4].decode("latin-1") for at in range(0, len(brands), 4)]
        for kind, pattern in ISO_BRANDS.items():
            if re.fullmatch(pattern, named[0]):
                return kind
        if named[0] in ("mif1", "mif2"):
            for kind, pattern in ISO_BRANDS.items():
                if any(re.fullmatch(pattern, each) for each in named[1:]):
                    return kind
            return "image/heif"
        return None
    return PDF if b"%PDF-" in content[:16] else None


def _described(kind: str, content: bytes) -> str:
    return f"{kind} sha256:{hashlib.sha256(content).hexdigest()}"


def _bytes_of(data: object) -> bytes | None:
    """The bytes of base64 with its padding and no other sign; None for anything else."""
    if not isinstance(data, str) or not data or len(data) % 4:
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (ValueError, binascii.Error):
        return None


def _parts(given: object, refuse: Refuse, at: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise refuse(f"{at}: content must be a text that is not empty, or an array of parts")
    return given


def _said(text: object, refuse: Refuse, at: str) -> str:
    if not isinstance(text, str) or not text:
        raise refuse(f"{at}: text must be a string, and not be empty")
    return text


def _only(part: Mapping[str, Any], known: str, refuse: Refuse, at: str) -> None:
    for name in part:
        if name not in known.split():
            raise refuse(f"{at}.{name}: Extra inputs are not permitted")


# -- OpenAI's chat completions and Responses ---------------------------------------------------------------


def _openai_image(url: object, refuse: Refuse, at: str) -> str:
    if not isinstance(url, str):
        raise refuse(f"Invalid type for '{at}': expected an object with the url, or a string")
    if urlsplit(url).scheme in ("http", "https"):
        return f"url {url}"
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise refuse(
            f"Invalid '{at}'. Expected a base64-encoded data URL with an image MIME type", "invalid_value"
        )
    kind, content = found[1], _bytes_of(found[2])
    if kind not in OPENAI_TYPES:
        raise refuse(f"Invalid MIME type '{kind}'. Only image types are supported.", "invalid_image_format")
    if content is None:
        raise refuse("Invalid base64 image_url.", "invalid_base64")
    if _type_of(content) not in OPENAI_TYPES:
        raise refuse(
            "You uploaded an unsupported image. Please make sure your image is valid and has of one the "
            "following formats: ['png', 'jpeg', 'gif', 'webp'].",
            "image_parse_error",
        )
    if len(content) > MAX_OPENAI_BYTES:
        raise refuse("Total image size exceeds the allowed limit of 50 MB", "image_too_large")
    return _described(str(_type_of(content)), content)


def _detail(part: Mapping[str, Any], refuse: Refuse, at: str) -> None:
    if part.get("detail", "auto") not in OPENAI_DETAILS:
        raise refuse(f"Invalid value: '{at}.detail'. Supported values are: 'low', 'high', and 'auto'.")


def _openai_file(part: Mapping[str, Any], refuse: Refuse, at: str) -> str:
    if not isinstance(part.get("filename"), str):
        raise refuse(f"Missing required parameter: '{at}.filename'.")
    found = _DATA_URL.fullmatch(str(part.get("file_data", "")))
    content = None if found is None else _bytes_of(found[2])
    if found is None or content is None:
        raise refuse(f"Invalid '{at}.file_data'. Expected a base64-encoded data URL with a file MIME type")
    if found[1] != PDF or _type_of(content) != PDF:
        raise refuse(f"Invalid file data: '{at}.file_data'. Expected a PDF file", "unsupported_file_mimetype")
    return _described(PDF, content)


def openai_content(content: object, refuse: Refuse) -> Content:
    """The content of a message of chat completions. Raises what `refuse` makes."""
    at = "messages[].content[]"
    if isinstance(content, str):
        return Content(content)
    texts, images = [], []
    for part in _parts(content, refuse, at):
        kind = part.get("type")
        if kind == "text":
            texts.append(_said(part.get("text"), refuse, at))
        elif kind == "image_url" and isinstance(part.get("image_url"), dict):
            _only(part["image_url"], "url detail", refuse, f"{at}.image_url")
            _detail(part["image_url"], refuse, f"{at}.image_url")
            images.append(_openai_image(part["image_url"].get("url"), refuse, f"{at}.image_url.url"))
        elif kind == "file" and isinstance(part.get("file"), dict):
            _only(part["file"], "filename file_data file_id", refuse, f"{at}.file")
            images.append(_openai_file(part["file"], refuse, f"{at}.file"))
        else:
            raise refuse(f"Invalid value: {kind!r}. Supported values are: 'text', 'image_url', 'file'.")
    return Content("".join(texts), tuple(images))


def responses_content(content: object, refuse: Refuse) -> Content:
    """The content of an item of Responses. Raises what `refuse` makes."""
    at = "input[].content[]"
    if isinstance(content, str) and content:
        return Content(content)
    texts, images = [], []
    for part in _parts(content, refuse, at):
        kind = part.get("type")
        if kind in ("input_text", "output_text"):
            texts.append(_said(part.get("text"), refuse, at))
        elif kind == "input_image":
            _only(part, "type image_url file_id detail", refuse, at)
            _detail(part, refuse, at)
            images.append(_openai_image(part.get("image_url"), refuse, f"{at}.image_url"))
        elif kind == "input_file":
            _only(part, "type filename file_data file_id file_url detail", refuse, at)
            images.append(_openai_file(part, refuse, at))
        else:
            raise refuse(
                f"Invalid value: {kind!r}. Supported values: 'input_text', 'input_image', 'input_file'."
            )
    return Content("".join(texts), tuple(images))


# -- Anthropic's Messages ----------------------------------------------------------------------------------


def anthropic_content(content: object, refuse: Refuse) -> Content:
    """The content of a message of Anthropic's. Raises what `refuse` makes."""
    if isinstance(content, str) and content:
        return Content(content)
    texts, images = [], []
    for place, part in enumerate(_parts(content, refuse, "messages.content")):
        kind, at = part.get("type"), f"messages.0.content.{place}"
        if kind == "text":
            texts.append(_said(part.get("text"), refuse, at))
        elif kind in ("image", "document"):
            _only(part, "type source cache_control title context citations", refuse, at)
            images.append(_anthropic_source(part.get("source"), kind, refuse, f"{at}.{kind}.source"))
        else:
            raise refuse(
                f"{at}: Input tag {kind!r} found using 'type' does not match any of the expected tags"
            )
    return Content("".join(texts), tuple(images))


def _anthropic_source(source: Any, part: str, refuse: Refuse, at: str) -> str:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "url":
        _only(source, "type url", refuse, at)
        if urlsplit(str(source.get("url"))).scheme != "https":
            raise refuse(f"{at}.url: Only HTTPS URLs are supported.")
        return f"url {source['url']}"
    if kind != "base64":
        raise refuse(f"{at}: Input tag {kind!r} found using 'type' does not match: 'base64', 'url'")
    _only(source, "type media_type data", refuse, at)
    allowed = ANTHROPIC_TYPES if part == "image" else (PDF,)
    given, data = source.get("media_type"), source.get("data")
    if given not in allowed:
        raise refuse(f"{at}.base64.media_type: Input should be {' or '.join(map(repr, allowed))}")
    content = _bytes_of(data)
    if content is None:
        raise refuse(f"{at}.base64.data: invalid base64 data")
    if part == "image" and len(data) > MAX_ANTHROPIC_BYTES:
        raise refuse(
            f"{at}.base64: image exceeds 10 MB maximum: {len(data)} bytes > {MAX_ANTHROPIC_BYTES} bytes"
        )
    found = _type_of(content)
    if found is None:
        raise refuse(f"{at}.base64.data: Could not process {part}")
    if found != given:
        raise refuse(f"{at}.base64.data: Image does not match the provided media type {given}")
    return _described(found, content)


# -- Gemini's generateContent ------------------------------------------------------------------------------


def gemini_content(content: Any, refuse: Refuse) -> Content:
    """The parts of one content of Gemini's. Raises what `refuse` makes."""
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(parts, list) or not parts or not all(isinstance(each, dict) for each in parts):
        raise refuse("contents.parts must not be empty.")
    texts, images = [], []
    for part in parts:
        if len(part) != 1:
            raise refuse("contents.parts: oneof field 'data' is already set, or is missing.")
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part.get("inlineData"), dict):
            images.append(_gemini_inline(part["inlineData"], refuse))
        elif isinstance(part.get("fileData"), dict):
            images.append(_gemini_file(part["fileData"], refuse))
        else:
            raise refuse(
                f'Invalid JSON payload received. Unknown name "{next(iter(part))}": Cannot find field.'
            )
    return Content("".join(texts), tuple(images))


def _gemini_inline(inline: Mapping[str, Any], refuse: Refuse) -> str:
    _only(inline, "mimeType data", refuse, "inline_data")
    given, data = inline.get("mimeType"), inline.get("data")
    content = _bytes_of(data)
    if content is None:
        # The real one quotes what it cannot read.
        raise refuse(
            "Invalid value at 'contents[0].parts[0].inline_data.data' (TYPE_BYTES), Base64 decoding failed "
            f'for "{str(data)[:QUOTED_CHARACTERS]}"'
        )
    if given not in GEMINI_TYPES:
        raise refuse(f"Unsupported MIME type: {given}")
    if len(str(data)) > MAX_GEMINI_BYTES:
        raise refuse(f"Request payload size exceeds the limit: {MAX_GEMINI_BYTES} bytes.")
    if _type_of(content) != given:
        raise refuse("Unable to process input image. Please retry or report the problem")
    return _described(str(given), content)


def _gemini_file(file: Mapping[str, Any], refuse: Refuse) -> str:
    _only(file, "mimeType fileUri", refuse, "file_data")
    uri = file.get("fileUri")
    if not isinstance(uri, str) or urlsplit(uri).scheme not in ("https", "gs"):
        raise refuse(f"Invalid or unsupported file uri: {uri}")
    return f"url {uri}"
