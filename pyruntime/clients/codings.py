"""Takes the content codings of an answer away, with a bound, and without blocking the loop for long.

On the thread of a loop; what is large is decompressed on another thread, without the GIL.
"""

# Some servers name the charset of a text where its coding belongs (`Content-Encoding: utf-8`): such a name is
# no coding, as for other clients. A stream that ends in its middle is a broken answer, even if all its text
# is there by luck: the libraries below say nothing of it.

from __future__ import annotations

import asyncio
import codecs
import zlib

from pillarbox.clients.transport import AnsweredBadly, AnswerTooLarge, BrokenAnswer

MAX_HERE_BYTES = 1 << 18
"""Decompressed bytes that the thread of the loop makes, a millisecond's work; another one makes more."""
NO_CODINGS = frozenset({"", "identity", "none", "binary", "7bit", "8bit", "aws-chunked"})
"""Names that stand in the header, and say nothing of the body that follows."""
GZIP = 15 + 16
WRAPPED = 15
RAW = -15
_BITS = {"gzip": GZIP, "x-gzip": GZIP, "deflate": WRAPPED}


async def decoded(body: bytes, header: str, limit: int) -> bytes:
    """The body of an answer without the codings that its header names, in `limit` bytes at most.

    Raises BrokenAnswer, AnsweredBadly and AnswerTooLarge.
    """
    for coding in reversed([name.strip().lower() for name in header.split(",")]):
        if coding in NO_CODINGS or _is_charset(coding):
            continue
        bits = _BITS.get(coding)
        if bits is None:
            raise AnsweredBadly(f"the answer has the content coding {coding[:40]!r}, which is not known")
        if not body:
            continue
        stream = Inflation(body, bits, limit)
        if not stream.work(MAX_HERE_BYTES):
            await asyncio.get_running_loop().run_in_executor(None, stream.work, None)
        body = b"".join(stream.parts)
    return body


def _is_charset(name: str) -> bool:
    try:
        # Python's codecs of bytes (base64, zlib) have names too.
        return codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        return False


class Inflation:
    """The decompression of one body. One thread at a time.

    parts: what is decompressed so far.
    """

    def __init__(self, body: bytes, bits: int, limit: int) -> None:
        self.parts: list[bytes] = []
        self._rest: bytes = body
        self._bits = bits
        self._limit = limit
        self._made = 0
        self._stream = zlib.decompressobj(bits)

    def work(self, max_bytes: int | None) -> bool:
        """Go on for so many bytes, or to the end (None); return True at the end of the stream.

        Raises BrokenAnswer, AnsweredBadly and AnswerTooLarge.
        """
        left = max_bytes
        while left is None or left > 0:
            made = self._step(MAX_HERE_BYTES if left is None else left)
            if self._made > self._limit:
                raise AnswerTooLarge.of(self._limit)
            if self._stream.eof:
                if self._is_at_end():
                    return True
                continue
            if not self._rest and not made:
                raise BrokenAnswer("the compressed answer broke off")
            if left is not None:
                left -= made
        return False

    def _step(self, max_bytes: int) -> int:
        try:
            part = self._stream.decompress(self._rest, max_bytes)
        except zlib.error as error:
            if self._bits != WRAPPED or self._made:
                raise AnsweredBadly(f"the answer does not decompress: {error}") from None
            # Some servers send deflate without the wrapping of zlib.
            self._bits = RAW
            self._stream = zlib.decompressobj(RAW)
            return self._step(max_bytes)
        self._rest = self._stream.unconsumed_tail
        self._made += len(part)
        self.parts.append(part)
        return len(part)

    def _is_at_end(self) -> bool:
        """Begin another member of a gzip stream, and return False; or True at the end of all."""
        rest = self._stream.unused_data.lstrip(b"\0")
        if not rest:
            return True
        if self._bits != GZIP or rest[:1] != b"\x1f":
            raise AnsweredBadly("there are bytes behind the compressed answer")
        self._rest = rest
        self._stream = zlib.decompressobj(GZIP)
        return False
