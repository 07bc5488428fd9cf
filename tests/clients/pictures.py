"""Images of each type for tests: small, and different where a number is."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib

PNG, JPEG, GIF, WEBP, PDF = "image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"
HEIC, HEIF, AVIF = "image/heic", "image/heif", "image/avif"


def png(number: int = 0, noise: int = 0) -> bytes:
    """A PNG of one pixel that is as grey as `number`, with so many bytes of text that looks like noise."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    text = b"Comment\0" + hashlib.shake_256(b"%d" % number).hexdigest(noise // 2).encode()
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes([0, number % 256])))]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"tEXt", text), chunk(b"IEND", b"")])


def picture(kind: str, number: int = 0) -> bytes:
    """The content of a file of a type: its first bytes are right, the others need not be."""
    rest = b"%d " % number + bytes(range(256))
    heads = {
        JPEG: b"\xff\xd8\xff\xe0\x00\x10JFIF\x00",
        GIF: b"GIF89a",
        WEBP: b"RIFF\x10\x01\x00\x00WEBPVP8 ",
        PDF: b"%PDF-1.7\n",
        HEIC: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
        HEIF: b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf",
        AVIF: b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf",
    }
    return png(number) if kind == PNG else heads[kind] + rest


def said(kind: str, content: bytes) -> str:
    """The answer of the stand-in to a question about an image."""
    return f"{kind} sha256:{hashlib.sha256(content).hexdigest()}"


def fragments(content: bytes, length: int = 24) -> list[bytes]:
    """Parts of an image as they are, in base64, and in hexadecimal digits, by which a leak is found."""
    encoded = base64.b64encode(content)
    middle = len(content) // 6 * 3
    raw = [content[16 : 16 + length], content[middle : middle + length], content[-length:]]
    texts = [encoded[:length], encoded[len(encoded) // 2 :][:length], encoded[-length:]]
    return [
        *raw,
        *texts,
        *(each.hex().encode() for each in raw),
        *(repr(each)[2:-1].encode() for each in raw),
    ]
