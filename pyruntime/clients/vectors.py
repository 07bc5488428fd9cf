"""Encodes requests for embedding services, and decodes their answers into one numpy block each.

Pure; any thread. What decodes gives a block of shape (texts, dimensions), float32, that may be written to.
"""

# Measured per vector of 1,024 floats, 64 in an answer, from the body to the block: base64 by msgspec 4 us, by
# `json` and `binascii` 17; lists of floats by msgspec 55, by `json` 350; simdjson reads lists in 28, but no
# base64. So msgspec is the one extra, and the standard library the way that always works. Bytes in the answer
# itself, as vLLM can give them, cost 0.1. The thread of libcurl reads base64 in 1.4, with AVX2 in 0.3. The
# kernel takes lists of floats out of the text without an object for each number, three times as fast.

from __future__ import annotations

import json
import math
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pillarbox.clients.json_text import decode_json
from pillarbox.clients.openai_api import AnswerError
from pillarbox.clients.usage_fields import tokens_in
from pillarbox.kernel.number_lists import take_number_lists

try:
    import msgspec
except ModuleNotFoundError:
    msgspec = None  # type: ignore[assignment]

Block = npt.NDArray[np.float32]

FLOAT32 = np.dtype("<f4")
FLOAT16 = np.dtype("<f2")
FLOAT64 = np.dtype("<f8")
"""All little-endian, as services send them, whatever this machine is."""


class Vectors(NamedTuple):
    """Vectors of one answer.

    block: shape (texts, dimensions), float32. tokens: of the texts, as the service counted them; None where
    it did not. counts_plainly: a transport that reads vectors would have read the same count. are_finite: it
    is known that all numbers are.
    """

    block: Block
    tokens: int | None
    counts_plainly: bool = True
    are_finite: bool = False


class _Found(NamedTuple):
    """The parts of an answer. vectors: bytes, lists, or `_Row`s; indices: of the texts, if it has them."""

    vectors: list[Any]
    tokens: int | None
    indices: list[Any] | None = None
    counts_plainly: bool = True


def _found_in(vectors: list[Any], indices: list[Any], usage: object) -> _Found:
    tokens = _tokens(usage)
    return _Found(vectors, tokens, indices, _is_plain(usage, tokens))


def _found_openai(answer: Any) -> _Found:
    items = answer["data"]
    vectors, indices = [item["embedding"] for item in items], [item.get("index") for item in items]
    return _found_in(vectors, indices, answer.get("usage"))


if msgspec is not None:

    class _Item(msgspec.Struct):
        # A text is read as base64.
        embedding: bytes | list[float]
        index: int | None = None

    class _Answer(msgspec.Struct):
        data: list[_Item]
        # Right vectors may stand beside a usage of any form.
        usage: Any = None

    _decode_answer = msgspec.json.Decoder(_Answer).decode
    _decode_lists = msgspec.json.Decoder(list[list[float]]).decode

    def _read_openai(body: bytes) -> _Found:
        answer = _decode_answer(body)
        items = answer.data
        return _found_in([item.embedding for item in items], [item.index for item in items], answer.usage)

else:
    _decode_lists = json.loads

    def _read_openai(body: bytes) -> _Found:
        found = _found_openai(json.loads(body))
        return found._replace(vectors=[_from_json(each) for each in found.vectors])

    def _from_json(embedding: object) -> Any:
        if not isinstance(embedding, str):
            return embedding
        vector = a2b_base64(embedding)
        # The decoder skips what is not base64.
        if len(embedding) % 4 or len(vector) != len(embedding) // 4 * 3 - embedding[-2:].count("="):
            raise ValueError("an embedding is not base64")
        return vector


def _tokens(usage: object) -> int | None:
    """The tokens of the texts of a request, by the usage beside its answer; None where that does not say."""
    asked, _, in_all = tokens_in(usage)
    return asked or in_all or asked


def _is_plain(usage: object, tokens: int | None) -> bool:
    if tokens is None or not isinstance(usage, dict):
        return True
    return tokens == (usage.get("prompt_tokens") or usage.get("total_tokens"))


def decode_openai(body: bytes, texts: int, base64_dtype: np.dtype[Any] = FLOAT32) -> Vectors:
    """Decode an answer in OpenAI's form: `data`, whose items have `embedding` and `index`, and `usage`.

    texts: as many vectors must be there. base64_dtype: of vectors in base64; lists of floats are read too.
    Raises AnswerError.
    """
    return _decoded(body, texts, _found_openai, _read_openai, "one of embeddings", base64_dtype)


def decode_lists(body: bytes, texts: int, tokens: int | None = None) -> Vectors:
    """Decode an answer that is a list of lists of floats, as TEI's own form. Raises AnswerError.

    tokens: of the texts, which the service says elsewhere.
    """

    def found(answer: Any) -> _Found:
        return _Found(answer, tokens)

    return _decoded(body, texts, found, lambda body: found(_decode_lists(body)), "a list of vectors")


def decode_found(body: bytes, texts: int, find: Callable[[Any], tuple[Any, int | None]]) -> Vectors:
    """Decode an answer in JSON, in which `find` finds the lists of floats, and the tokens of the texts.

    Raises AnswerError.
    """

    def found(answer: Any) -> _Found:
        return _Found(*find(answer))

    return _decoded(body, texts, found, lambda body: found(decode_json(body)), "one of embeddings")


def _decoded(
    body: bytes,
    texts: int,
    find: Callable[[Any], _Found],
    read: Callable[[bytes], _Found],
    what: str,
    base64_dtype: np.dtype[Any] = FLOAT32,
) -> Vectors:
    """The vectors of an answer. find: their parts in values of JSON. read: these in the body."""
    taken = _taken(body, texts, find)
    if taken is not None:
        return taken
    try:
        vectors, tokens, indices, counts_plainly = read(body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise AnswerError(f"the answer is not {what}: {error}") from None
    try:
        if not isinstance(vectors, list) or len(vectors) != texts:
            found = f"{len(vectors):,} vectors" if isinstance(vectors, list) else type(vectors).__name__
            raise AnswerError(f"the answer has {found} for {texts:,} texts")
        return Vectors(_block(_ordered(vectors, indices), base64_dtype), tokens, counts_plainly)
    except AnswerError as error:
        # It is paid for.
        error.tokens = tokens
        raise


class _Row:
    """A list of numbers that was taken out of an answer. Nothing can look into one."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


ROW_MARK = "-0.0e-0"
"""The first characters of the float that `take_number_lists` leaves for a list; its place follows."""


def _number_or_row(text: str) -> float | _Row:
    return _Row(int(text[len(ROW_MARK) :])) if text.startswith(ROW_MARK) else float(text)


def _taken(body: bytes, texts: int, find: Callable[[Any], _Found]) -> Vectors | None:
    """The vectors of an answer with lists of numbers, of which none becomes an object.

    None for all other answers, and those that are wrong: a reader of whole answers has the words for them.
    """
    lists = take_number_lists(body)
    if lists is None:
        return None
    rest, floats, ends = lists
    try:
        vectors, tokens, indices, counts_plainly = find(json.loads(rest, parse_float=_number_or_row))
        places = [row.place for row in _ordered(vectors, indices)]
        stops = np.frombuffer(ends, np.uint64)
        lengths = np.diff(stops, prepend=np.uint64(0))[places]
    except (AnswerError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    length = int(lengths[0]) if len(places) == texts else 0
    if length == 0 or not (lengths == length).all():
        return None
    numbers = np.frombuffer(floats, np.float32)
    first = places[0]
    if places == [*range(first, first + texts)]:
        stop = int(stops[first + texts - 1])
        block = numbers[stop - texts * length : stop].reshape(texts, length)
    else:
        block = np.stack([numbers[int(stops[place]) - length : int(stops[place])] for place in places])
    return Vectors(block, tokens, counts_plainly)


def decode_bytes(body: bytes, texts: int, dtype: np.dtype[Any] = FLOAT32) -> Vectors:
    """Decode an answer that is the numbers of all vectors, one vector after the other. Raises AnswerError."""
    if not body or len(body) % (texts * dtype.itemsize):
        raise AnswerError(f"the answer has {len(body):,} bytes: not {texts:,} vectors of {dtype.name}")
    return block_of_bytes(bytearray(body), texts, dtype, None)


def block_of_bytes(
    numbers: Any, texts: int, dtype: np.dtype[Any], tokens: int | None, are_finite: bool = False
) -> Vectors:
    """The vectors whose bytes are in a buffer, one vector after the other; float32 is not copied.

    are_finite: the numbers are known to be, as float32.
    Raises AnswerError.
    """
    length = memoryview(numbers).nbytes // texts
    if length % dtype.itemsize:
        error = AnswerError(f"the answer's vectors have {length:,} bytes: not {dtype.name}")
        error.tokens = tokens
        raise error
    block = _as_float32(np.frombuffer(numbers, dtype).reshape(texts, -1))
    return Vectors(block, tokens, are_finite=are_finite and dtype == FLOAT32)


def _ordered(vectors: list[Any], indices: list[Any] | None) -> list[Any]:
    """The vectors in the order of the texts."""
    if indices is None or indices == [*range(len(vectors))] or all(index is None for index in indices):
        return vectors
    by_index = dict(zip(indices, vectors, strict=True))
    if by_index.keys() != set(range(len(vectors))):
        raise AnswerError(f"the answer's indices are not those of {len(vectors):,} texts")
    return [by_index[index] for index in range(len(vectors))]


def _block(vectors: Sequence[Any], base64_dtype: np.dtype[Any]) -> Block:
    lengths = {len(vector) if isinstance(vector, bytes | list) else -1 for vector in vectors}
    kinds = {type(vector) for vector in vectors}
    if len(lengths) > 1 or len(kinds) > 1 or not min(lengths, default=1) > 0:
        raise AnswerError("the answer's vectors are empty, or not of one length")
    if kinds == {bytes}:
        # One buffer for all: a bytearray, so that the block may be written to.
        return block_of_bytes(bytearray().join(vectors), len(vectors), base64_dtype, None).block
    try:
        # What float32 does not hold is infinite, and found as such.
        with np.errstate(over="ignore"):
            block = np.array(vectors, np.float32)
    except (ValueError, TypeError) as error:
        raise AnswerError(f"the answer's vectors are not numbers: {error}") from None
    if block.ndim != 2:
        raise AnswerError(f"the answer's vectors are not numbers, but have the shape {block.shape[1:]}")
    return block


def _as_float32(block: npt.NDArray[Any]) -> Block:
    """The same numbers; the same memory where they are float32 already."""
    return block.astype(np.float32, copy=False)


LOST_BITS = 0x1FFF_FFFF
"""The lower bits of a float64 that was a float32: zeros."""
PLAUSIBLE = (1e-9, 1e4)
"""Numbers of vectors, but for zeros."""


def may_be_float64(block: Block) -> bool:
    """Return True if numbers that were read as float32 look as if they were float64, of half as many."""
    if block.shape[1] % 2:
        return False
    lower = block.view("<u4")[:, 0::2]
    if not (lower & LOST_BITS).any():
        return bool(block[:, 1::2].any())
    return _plausible(block.view("<f8")) == 1.0 and _plausible(block[:, 0::2]) < 0.5


def _plausible(numbers: npt.NDArray[Any]) -> float:
    """The share of plausible numbers."""
    size = np.abs(numbers)
    return float(np.mean((size == 0.0) | ((size >= PLAUSIBLE[0]) & (size <= PLAUSIBLE[1]))))


# -- what is done to vectors ---------------------------------------------------------------------------------


def normalized(block: Block) -> Block:
    """`block` with each row scaled to length 1, in place; a row of zeros stays as it is."""
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = row_lengths(block)
        lengths[lengths == 0.0] = 1.0
        if len(_odd(lengths)):
            block[:] = block.astype(np.float64) / lengths[:, None]
        else:
            block /= lengths.astype(np.float32)[:, None]
    return block


SMALLEST_LENGTH, LARGEST_LENGTH = 1e-15, 1e15
"""Lengths whose squares, and those of numbers that count beside others, are exact enough in float32."""


def row_lengths(block: Block) -> npt.NDArray[np.float64]:
    """The Euclidean length of each row, also where float32 cannot hold the squares of its numbers."""
    with np.errstate(invalid="ignore", over="ignore"):
        lengths: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", block, block)).astype(np.float64)
        odd = _odd(lengths)
        if len(odd):
            some = block[odd].astype(np.float64)
            lengths[odd] = np.sqrt(np.einsum("ij,ij->i", some, some))
    return lengths


def _odd(lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """The places of lengths whose squares float32 cannot hold."""
    return np.flatnonzero(~((lengths >= SMALLEST_LENGTH) & (lengths <= LARGEST_LENGTH)))


def rows_not_finite(block: Block) -> list[int]:
    """The rows with a number that is not finite: a service's fault, which would spoil an index."""
    # A sum tells it for the whole block at a fraction of the cost of looking at each number.
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(np.add.reduce(block, axis=None)):
            return []
    return [int(row) for row in np.flatnonzero(~np.isfinite(block).all(axis=1))]


UNIT_TOLERANCE = 1e-3
"""Difference from 1 within which a vector counts as one of length 1: float16 comes no closer."""


def weighted_mean(parts: Block, weights: Sequence[float]) -> Block:
    """The mean of the rows of `parts`, each with its weight: one row.

    Where all parts have length 1, the mean is scaled to length 1 too: an index of such vectors compares them
    by their inner product.
    """
    share = np.asarray(weights, np.float32)
    mean: Block = (share / share.sum()) @ parts
    if np.all(np.abs(row_lengths(parts) - 1.0) <= UNIT_TOLERANCE):
        normalized(mean[None, :])
    return mean
