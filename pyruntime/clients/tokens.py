"""Counts tokens and cuts texts by them, with a model's own tokenizer, or by an estimate.

Pure; any thread. `pillarbox.clients.tokenizer_loading` finds a tokenizer by its name.
"""

# Why a text is cut at places in characters and each piece is counted anew. To cut the list of tokens and
# decode the parts may cut within a character, and gives a text that is not the original where a tokenizer
# normalizes. A piece by itself may be more tokens than it was within the text, as tokens across its edges are
# made otherwise: so each is counted as the service will count it, and made shorter until it fits.

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

MIN_PIECE_TOKENS = 8
"""Tokens of a text in one piece of it, at least: below, a limit is a mistake."""
BATCH_CHARACTERS = 200_000
"""Characters of texts that are given to a tokenizer at once: what it makes of them takes 50 bytes a token."""

Places: TypeAlias = "npt.NDArray[np.int64]"


class Piece(NamedTuple):
    """A text or a part of it, and the tokens that the model makes of it, its special ones included."""

    text: str
    tokens: float


class Tokenizer(Protocol):
    """Counts and cuts by one tokenizer.

    special: tokens that the model adds to each text. seam: matches at places where a text may be cut so
    that its parts have the tokens that it has; None where no such places are known.
    """

    special: int
    seam: re.Pattern[str] | None

    def count(self, text: str) -> int:
        """Tokens that the model makes of `text`, its special ones included."""
        ...

    def counts(self, texts: Sequence[str]) -> list[int]:
        """The same, of each text."""
        ...

    def ends(self, text: str, *, whole: bool = False) -> Places:
        """The place in `text`, in characters, at which each token but special ones ends; never falling.

        whole: a token that ends within a character ends behind it, and not in front of it.
        """
        ...


AT_SPACE = re.compile(r"(?<=\S)(?= )")
"""In front of a space behind a character that is none."""
AT_SPACE_OR_LINE = re.compile(r"(?<=\S)(?= )|(?<=\n)(?!/)(?=[^\S\r\n]*\S)")
"""As `AT_SPACE`, and at the beginning of a line, where the end of a line belongs to the line in front."""
SEAMS = {
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "p50k_edit"), AT_SPACE),
    **dict.fromkeys(("cl100k_base", "o200k_base", "o200k_harmony"), AT_SPACE_OR_LINE),
}
"""Those of the encodings of `tiktoken`, whose patterns begin a word with the space in front of it."""
_BLANK = r"[^\S\x0b\x0c\x1c-\x1f\x85]"
AT_BLANK = re.compile(rf"(?<=\S)(?={_BLANK})|(?<={_BLANK})(?=\S)")
"""Between white space and others, where a tokenizer drops white space; control characters part no words."""
SEAMS_OF_STEPS = {
    "BertPreTokenizer": AT_BLANK,
    "ByteLevel": AT_SPACE,
    "Metaspace": AT_SPACE,
    "WhitespaceSplit": AT_SPACE,
}
"""By the first step of the package `tokenizers` that splits words: after it no token goes across a seam."""
LOCAL_NORMALIZERS = frozenset(
    {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "StripAccents"}
)
"""Steps that change no character for what stands on the other side of a space."""
FEWER_SPACES = {"Regex": " {2,}"}


def _seam_of(settings: Mapping[str, Any]) -> re.Pattern[str] | None:
    """The seams of a tokenizer of the package `tokenizers`; None where its steps do not tell them."""
    first = next(iter(_steps(settings["pre_tokenizer"], "pretokenizers")), {})
    # Such a step may leave the words together.
    splits = first.get("use_regex", True) and first.get("split", True)
    is_local = all(
        each["type"] in LOCAL_NORMALIZERS or each.get("pattern") == FEWER_SPACES
        for each in _steps(settings["normalizer"], "normalizers")
    )
    joins = any(
        each["lstrip"] or each["rstrip"] or " " in each["content"] for each in settings["added_tokens"]
    )
    return SEAMS_OF_STEPS.get(first.get("type", "")) if splits and is_local and not joins else None


def _steps(step: Mapping[str, Any] | None, parts: str) -> Sequence[Mapping[str, Any]]:
    if step is None:
        return ()
    found: Sequence[Mapping[str, Any]] = step[parts] if step["type"] == "Sequence" else (step,)
    return found


class HuggingFaceTokenizer:
    """A `tokenizers.Tokenizer`, without the truncation and padding that it may be set to."""

    def __init__(self, tokenizer: Any) -> None:
        # A copy: the settings of the user's own stay as they are.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.special: int = self._tokenizer.num_special_tokens_to_add(False)
        self.seam = _seam_of(json.loads(self._tokenizer.to_str()))

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return len(self._tokenizer.encode_batch_fast([text])[0])

    def counts(self, texts: Sequence[str]) -> list[int]:
        """See `Tokenizer.counts`."""
        return [len(each) for part in _parts_of(texts) for each in self._tokenizer.encode_batch_fast([*part])]

    def ends(self, text: str, *, whole: bool = False) -> Places:
        """See `Tokenizer.ends`."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        # Several tokens may share a character, and a normalizing tokenizer names places out of order.
        return np.maximum.accumulate(np.array([end for _, end in offsets], np.int64))


class TiktokenTokenizer:
    """A `tiktoken.Encoding`. What looks like a special token in a text is text."""

    special = 0

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self._lengths: Places | None = None
        self.seam = SEAMS.get(encoding.name)

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return len(self._tokens(text))

    def counts(self, texts: Sequence[str]) -> list[int]:
        """See `Tokenizer.counts`."""
        tokens = self._tokens
        return [len(tokens(text)) for text in texts]

    def ends(self, text: str, *, whole: bool = False) -> Places:
        """See `Tokenizer.ends`."""
        if self._lengths is None:
            self._lengths = self._lengths_of_tokens()
        ends = np.cumsum(self._lengths[self._tokens(text)])
        if text.isascii():
            return ends
        units = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        begins = (units & 0xC0) != 0x80
        places: Places = np.cumsum(begins)[ends - 1]
        return places if whole else places - np.append(~begins, False)[ends]

    def _tokens(self, text: str) -> Any:
        # Not a list: it would be an object for each token, of which nobody asks but the number.
        try:
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:
            # Halves of characters count as `?`, of which they have the places.
            return self._tokens(text.encode("utf-8", "replace").decode())
        except ValueError as error:
            raise ValueError(
                f"a text of {len(text):,} characters is too much for the encoding {self._encoding.name!r}, "
                f"as runs of a million blanks are ({error}); shorten these by regexp_replace(text, ' +', ' ')"
            ) from None

    def _lengths_of_tokens(self) -> Places:
        """The bytes of each token; 0 for numbers that are none."""
        lengths = np.zeros(self._encoding.n_vocab, np.int64)
        for token in range(self._encoding.n_vocab):
            try:
                lengths[token] = len(self._encoding.decode_single_token_bytes(token))
            except KeyError:
                continue
        return lengths


class PrefixedTokenizer:
    """Counts texts as they are sent, with a prefix in front of each."""

    def __init__(self, tokenizer: Tokenizer, prefix: str) -> None:
        self._tokenizer, self._prefix = tokenizer, prefix
        self.special = tokenizer.count(prefix)
        self.seam: re.Pattern[str] | None = None

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return self._tokenizer.count(self._prefix + text)

    def counts(self, texts: Sequence[str]) -> list[int]:
        """See `Tokenizer.counts`."""
        return self._tokenizer.counts([self._prefix + text for text in texts])

    def ends(self, text: str, *, whole: bool = False) -> Places:
        """See `Tokenizer.ends`: places in the text alone."""
        return self._tokenizer.ends(text, whole=whole)


class EstimatedTokenizer:
    """Estimates tokens by the kinds of characters. Needs no package, no file and no network.

    For English prose and for code it gives some more tokens than the tokenizers of large models, so that a
    text that it takes for short enough mostly is.
    """

    special = 0
    seam: re.Pattern[str] | None = None

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return int(-(-int(_weights(text).sum()) // TOKEN))

    def counts(self, texts: Sequence[str]) -> list[int]:
        """See `Tokenizer.counts`."""
        return [*map(self.count, texts)]

    def ends(self, text: str, *, whole: bool = False) -> Places:
        """See `Tokenizer.ends`."""
        sums = np.cumsum(_weights(text), dtype=np.int64)
        if not len(sums):
            return sums
        # The last token of a text may be the part of one.
        wanted = np.arange(1, -(-int(sums[-1]) // TOKEN) + 1) * TOKEN
        found: Places = np.minimum(np.searchsorted(sums, wanted, "right"), len(sums)).astype(np.int64)
        found[-1] = len(sums)
        return found


TOKEN = 100
"""The weight of one token. Weights are whole numbers, so that sums are exact."""
WORD, LETTER, DIGIT, BLANK, LINE, MARK = 30, 25, 70, 2, 50, 70
"""Weights of the beginning of a word, and of characters of ASCII."""
SCRIPTS = (
    *((0x80, 80), (0x250, 90), (0x370, 90), (0x400, 60), (0x530, 90), (0x590, 90), (0x700, 140)),
    *((0x1E00, 120), (0x2000, 100), (0x2070, 140), (0x3000, 130), (0xA000, 150), (0xAC00, 130)),
    *((0xD800, 150), (0xF900, 150), (0x10000, 300), (0x20000, 250)),
)
"""The first character of a range, and the weight of each in it. Measured with cl100k_base and o200k_base."""


def _ascii_weights() -> npt.NDArray[np.uint8]:
    weights = np.full(256, MARK, np.uint8)
    for byte in range(128):
        character = chr(byte)
        if character.isalpha():
            weights[byte] = LETTER
        elif character.isdigit():
            weights[byte] = DIGIT
        elif character == " ":
            weights[byte] = BLANK
        elif character == "\n":
            weights[byte] = LINE
    return weights


ASCII_WEIGHTS = _ascii_weights()
LOWER, UPPER = 1, 2
ASCII_CASES = np.array(
    [LOWER if chr(each).islower() else UPPER if chr(each).isupper() else 0 for each in range(128)]
    + [0] * 128,
    np.uint8,
)
SCRIPT_STARTS = np.array([start for start, _ in SCRIPTS], np.uint32)
SCRIPT_WEIGHTS = np.array([weight for _, weight in SCRIPTS], np.uint16)


def _weights(text: str) -> npt.NDArray[np.uint16]:
    """The weight of each character."""
    if text.isascii():
        units = np.frombuffer(text.encode("ascii"), np.uint8)
        weights = ASCII_WEIGHTS[units].astype(np.uint16)
    else:
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        units = np.minimum(points, 0x80).astype(np.uint8)
        weights = ASCII_WEIGHTS[units].astype(np.uint16)
        wide = np.flatnonzero(points >= 0x80)
        scripts = np.searchsorted(SCRIPT_STARTS, points[wide], "right") - 1
        weights[wide] = SCRIPT_WEIGHTS[scripts]
    cases = ASCII_CASES[units]
    # "aB" has two words, "AB" and "Ab" one.
    begins = cases != 0
    begins[1:] &= (cases[:-1] == 0) | ((cases[1:] == UPPER) & (cases[:-1] == LOWER))
    weights[begins] += WORD
    return weights


def _parts_of(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts, in parts of so many characters that what a tokenizer makes of them has room."""
    begin = characters = 0
    for place, text in enumerate(texts):
        if characters > BATCH_CHARACTERS:
            yield texts[begin:place]
            begin, characters = place, 0
        characters += len(text)
    yield texts[begin:]


def wrapper_of(value: Any) -> Callable[[Any], Tokenizer] | None:
    """The class for a tokenizer of `tokenizers` or `tiktoken`; None for another object."""
    # By the methods: neither package is imported for it.
    if hasattr(value, "num_special_tokens_to_add") and hasattr(value, "to_str"):
        return HuggingFaceTokenizer
    if hasattr(value, "encode_ordinary") and hasattr(value, "decode_with_offsets"):
        return TiktokenTokenizer
    return None


def first_piece(text: str, max_tokens: int, tokenizer: Tokenizer) -> Piece:
    """`text`, or as much of its beginning as is at most `max_tokens`."""
    tokens = tokenizer.count(text)
    if tokens <= max_tokens:
        return Piece(text, tokens)
    return _piece(text, tokenizer.ends(text), 0, 0, max_tokens, tokenizer)[0]


def pieces(text: str, max_tokens: int, tokenizer: Tokenizer) -> list[Piece]:
    """`text` in pieces of at most `max_tokens` each, one after the other: together they are the text."""
    tokens = tokenizer.count(text)
    if tokens <= max_tokens:
        return [Piece(text, tokens)]
    ends = tokenizer.ends(text)
    found = []
    token = start = 0
    while start < len(text):
        piece, token = _piece(text, ends, token, start, max_tokens, tokenizer)
        found.append(piece)
        start += len(piece.text)
    return found


def _piece(
    text: str, ends: Places, token: int, start: int, max_tokens: int, tokenizer: Tokenizer
) -> tuple[Piece, int]:
    """The piece that begins with `token` at the place `start`, and the token after it."""
    size = max_tokens - tokenizer.special
    while True:
        after = min(token + size, len(ends))
        # What the tokenizer drops behind its last token, such as white space, goes with that token.
        end = len(text) if after == len(ends) else int(ends[after - 1])
        if after < len(ends) and end <= start:
            # One character that is more tokens than fit: it cannot be cut.
            end = start + 1
        tokens = tokenizer.count(text[start:end])
        if tokens <= max_tokens or size == 1 or end <= start + 1:
            while after < len(ends) and ends[after] <= end:
                after += 1
            return Piece(text[start:end], tokens), after
        # Cut out of its context a piece may be more tokens than it was within.
        size = max(1, size - (tokens - max_tokens))
