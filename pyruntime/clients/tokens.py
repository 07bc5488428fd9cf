"""Counts tokens and cuts texts by them, with a model's own tokenizer.

For any thread; a tokenizer is loaded once a process.
"""

# Why a text is cut at places in characters and each piece is counted anew. To cut the list of tokens and
# decode the parts may cut within a character, and gives a text that is not the original where a tokenizer
# normalizes. A piece by itself may be more tokens than it was within the text, as tokens across its edges are
# made otherwise: so each is counted as the service will count it, and made shorter until it fits.

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from pillarbox.clients.transport import MissingExtra

MIN_PIECE_TOKENS = 8
"""Tokens of a text in one piece of it, at least: below, a limit is a mistake."""


class Piece(NamedTuple):
    """A text or a part of it, and the tokens that the model makes of it, its special ones included."""

    text: str
    tokens: float


class Tokenizer(Protocol):
    """Counts and cuts by one tokenizer. `special`: tokens that the model adds to each text."""

    special: int

    def count(self, text: str) -> int:
        """Tokens that the model makes of `text`, its special ones included."""
        ...

    def ends(self, text: str) -> list[int]:
        """The place in `text`, in characters, at which each token ends; never falling."""
        ...


class HuggingFaceTokenizer:
    """A `tokenizers.Tokenizer`, without the truncation and padding that it may be set to."""

    def __init__(self, tokenizer: Any) -> None:
        # A copy: the settings of the user's own stay as they are.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.special: int = self._tokenizer.num_special_tokens_to_add(False)

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return len(self._tokenizer.encode(text).ids)

    def ends(self, text: str) -> list[int]:
        """See `Tokenizer.ends`."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return _rising([end for _, end in offsets])


class TiktokenTokenizer:
    """A `tiktoken.Encoding`. What looks like a special token in a text is text."""

    special = 0

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return len(self._encoding.encode_ordinary(text))

    def ends(self, text: str) -> list[int]:
        """See `Tokenizer.ends`."""
        tokens = self._encoding.encode_ordinary(text)
        _, starts = self._encoding.decode_with_offsets(tokens)
        return _rising([*starts[1:], len(text)])


class PrefixedTokenizer:
    """Counts texts as they are sent, with a prefix in front of each."""

    def __init__(self, tokenizer: Tokenizer, prefix: str) -> None:
        self._tokenizer, self._prefix = tokenizer, prefix
        self.special = tokenizer.count(prefix)

    def count(self, text: str) -> int:
        """See `Tokenizer.count`."""
        return self._tokenizer.count(self._prefix + text)

    def ends(self, text: str) -> list[int]:
        """See `Tokenizer.ends`: places in the text alone."""
        return self._tokenizer.ends(text)


def _rising(ends: list[int]) -> list[int]:
    # Several tokens may share a character, and a normalizing tokenizer may name its places out of order.
    highest = 0
    for place, end in enumerate(ends):
        highest = max(highest, end)
        ends[place] = highest
    return ends


def check_tokenizer(name: str, value: Any) -> None:
    """Accept None, a name, or an object of `tokenizers` or `tiktoken`. Loads nothing. Raises TypeError."""
    if value is None or (isinstance(value, str) and value) or _wrapper_of(value) is not None:
        return
    raise TypeError(
        f"{name}={value!r}: must be the name of a tiktoken encoding ('cl100k_base'), the path of a "
        "tokenizer.json on the worker, a model on Hugging Face ('org/model'), a tokenizers.Tokenizer, a "
        "tiktoken.Encoding, or None"
    )


def load_tokenizer(value: Any) -> Tokenizer:
    """The tokenizer for what `check_tokenizer` accepted, other than None.

    Raises MissingExtra with the line that installs the package, and what loading raises.
    """
    if isinstance(value, str):
        return _loaded(value)
    wrapper = _wrapper_of(value)
    assert wrapper is not None
    return wrapper(value)


def _wrapper_of(value: Any) -> Callable[[Any], Tokenizer] | None:
    # By the methods: neither package is imported for it.
    if hasattr(value, "num_special_tokens_to_add") and hasattr(value, "to_str"):
        return HuggingFaceTokenizer
    if hasattr(value, "encode_ordinary") and hasattr(value, "decode_with_offsets"):
        return TiktokenTokenizer
    return None


@lru_cache(maxsize=8)
def _loaded(name: str) -> Tokenizer:
    is_file = name.endswith(".json")
    package = "tokenizers" if is_file or "/" in name else "tiktoken"
    try:
        if package == "tiktoken":
            import tiktoken

            return TiktokenTokenizer(tiktoken.get_encoding(name))
        import tokenizers
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingExtra(
            f"tokenizer={name!r}: the package {package} is not installed: pip install 'pillarbox[{package}]'"
        ) from None
    made = tokenizers.Tokenizer
    return HuggingFaceTokenizer(made.from_file(name) if is_file else made.from_pretrained(name))


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
    text: str, ends: list[int], token: int, start: int, max_tokens: int, tokenizer: Tokenizer
) -> tuple[Piece, int]:
    """The piece that begins with `token` at the place `start`, and the token after it."""
    size = max_tokens - tokenizer.special
    while True:
        after = min(token + size, len(ends))
        # What the tokenizer drops behind its last token, such as white space, goes with that token.
        end = len(text) if after == len(ends) else ends[after - 1]
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
