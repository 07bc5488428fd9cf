"""Splits texts into chunks of at most so many tokens, at the ends of paragraphs, sentences and words.

Pure; any thread.
"""

# Why a chunk is cut in front of a space, and not behind it. Tokenizers of large models begin a word with the
# space in front of it: cut there, the parts of a text have the tokens that the text has, and need not be
# counted again. The end of a line stays with its line.
#
# Why other cuts are counted again. Cut out of its context a part may have other tokens than within, and more:
# a limit holds for what the model counts. Counted is the part between a cut and the next seam of the
# tokenizer (`Tokenizer.seam`), or the whole chunk where it says none.

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pillarbox.clients.graphemes import is_within_grapheme
from pillarbox.clients.tokens import AT_SPACE, MIN_PIECE_TOKENS, Places, Tokenizer
from pillarbox.validate import check_int

PARAGRAPH = re.compile(r"\n(?:[^\S\n]*\n)+")
"""Ends at the end of a paragraph: behind its last empty line."""
SENTENCE = re.compile(
    r"""[.!?\u2026]{1,4}['")\]\u2019\u201d\u00bb]*(?=[^\S\n]+[^\sa-z])"""
    r"""|[\u3002\uff01\uff1f\uff61]+[\u300d\u300f\u201d\u2019\uff09]*|\n+"""
)
"""Ends at the end of a sentence or a line. What a small letter follows was an abbreviation.

Of a run of points the last ones count: the whole run would be read from each of its points.
"""
SPACES = " \n\t\u3000"
"""Characters in front of which a word has ended. Others that Python calls spaces are rare in texts."""
COMMAS = "\u3001\uff0c\uff1b\uff1a"
"""Characters behind which one has, where words have no spaces between them."""
PARAGRAPH_FILL, SENTENCE_FILL = 0.5, 0.25
"""The part of a chunk that is full at least, for it to end with a paragraph or with a sentence."""

LOOK_AHEAD = 8
"""Characters behind the end of a sentence that say whether it is one."""


class Chunk(NamedTuple):
    """A part of a text, from `start` to `end` in characters, and the tokens that a model makes of it."""

    start: int
    end: int
    tokens: int


def check_chunks(max_tokens: object, overlap: object, special: int) -> tuple[int, int]:
    """Return both numbers if chunks can be so. Raises TypeError and ValueError.

    special: the tokens that the tokenizer adds to each text.
    """
    most = check_int("max_tokens", max_tokens, MIN_PIECE_TOKENS + special)
    return most, check_int("overlap", overlap, 0, most - special - 1)


def split(text: str, max_tokens: int, overlap: int, tokenizer: Tokenizer) -> list[Chunk]:
    """Return the chunks of a text, in order. White space that would be a chunk by itself is left out.

    max_tokens: of a chunk, at most, special ones included; more has only a single character that cannot be
    cut. overlap: of the tokens of a chunk that are the end of the one before it, at most.
    """
    if not text or text.isspace():
        return []
    ends = tokenizer.ends(text, whole=True)
    if (tokens := len(ends) + tokenizer.special) <= max_tokens:
        return [Chunk(0, len(text), tokens)]
    return [*_Splitter(text, max_tokens, overlap, tokenizer, ends).chunks()]


class _Splitter:
    """The splitting of one text. ends: as of `Tokenizer.ends`."""

    def __init__(self, text: str, max_tokens: int, overlap: int, tokenizer: Tokenizer, ends: Places) -> None:
        self._text, self._tokenizer, self._ends = text, tokenizer, ends
        self._max_tokens, self._overlap = max_tokens, overlap
        self._size = max_tokens - tokenizer.special
        found = (match.end() for match in PARAGRAPH.finditer(text)) if "\n" in text else ()
        self._paragraphs = np.fromiter(found, np.int64)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks."""
        start = covered = 0
        while covered < len(self._text):
            chunk = self._next(start, covered)
            if chunk is None:
                # With so much of the one before there is no room for anything new.
                start = self._overlap_start(covered, start + 1)
                continue
            if not self._text[chunk.start : chunk.end].isspace():
                yield chunk
            covered = chunk.end
            start = self._overlap_start(covered, chunk.start + 1) if self._overlap else covered

    def _next(self, start: int, covered: int) -> Chunk | None:
        """The chunk that begins at `start` and goes beyond what is `covered`; None if none has room."""
        text, size = self._text, self._size
        while True:
            last = self._token_at(start) + size
            limit = len(text) if last >= len(self._ends) else int(self._ends[last - 1])
            if limit <= covered:
                if start < covered:
                    return None
                limit = covered + 1
            end = len(text) if limit == len(text) else self._end_within(start, covered, limit)
            if end is None:
                if start < covered:
                    return None
                end = limit
            tokens = self._count(start, end)
            if tokens <= self._max_tokens:
                return Chunk(start, end, tokens)
            if end <= covered + 1 or size == 1:
                if start < covered:
                    return None
                if end == covered + 1:
                    return Chunk(start, end, tokens)
                # One that belongs together and has no room is parted; a single character cannot be.
                return self._by_characters(start, end)
            size = max(1, min(size - 1, size - (tokens - self._max_tokens)))

    def _by_characters(self, start: int, end: int) -> Chunk:
        """The longest chunk from `start` on that has room, or one character."""
        while end > start + 1:
            end -= 1
            tokens = self._count(start, end)
            if tokens <= self._max_tokens:
                return Chunk(start, end, tokens)
        return Chunk(start, start + 1, self._count(start, start + 1))

    def _token_at(self, place: int) -> int:
        """The number of the token at a place: of those that end in front of it or there."""
        return int(self._ends.searchsorted(place, "right")) if place else 0

    def _count(self, start: int, end: int) -> int:
        """The tokens of a part of the text by itself, special ones included."""
        # Between the first and the last seam it has the tokens that the text has there.
        first = start if self._is_seam(start) else self._seam_from(start + 1, end)
        last = end if self._is_seam(end) else self._seam_before(first, end)
        if last <= first:
            return self._tokenizer.count(self._text[start:end])
        between = self._token_at(last) - self._token_at(first) + self._tokenizer.special
        return between + self._count_edge(start, first) + self._count_edge(last, end)

    def _count_edge(self, start: int, end: int) -> int:
        if start == end:
            return 0
        return self._tokenizer.count(self._text[start:end]) - self._tokenizer.special

    def _seam_from(self, place: int, end: int) -> int:
        """The first seam from a place on that is in front of a space; `end` if there is none."""
        if self._tokenizer.seam is None:
            return end
        found = AT_SPACE.search(self._text, place, end)
        return end if found is None else found.start()

    def _seam_before(self, least: int, end: int) -> int:
        """The last seam between `least` and `end` that is in front of a space; `least` if there is none."""
        place = end
        while self._tokenizer.seam is not None and (place := self._text.rfind(" ", least, place)) > least:
            if not self._text[place - 1].isspace():
                return place
        return least

    def _is_seam(self, place: int) -> bool:
        if place in (0, len(self._text)):
            return self._tokenizer.seam is not None
        return self._tokenizer.seam is not None and self._tokenizer.seam.match(self._text, place) is not None

    def _end_within(self, start: int, covered: int, limit: int) -> int | None:
        """The best place for an end behind `covered`, up to `limit`; None if nothing there can be parted."""
        text, room = self._text, limit - start
        place = int(self._paragraphs.searchsorted(limit, "right"))
        if place and self._paragraphs[place - 1] > max(covered, limit - room * (1 - PARAGRAPH_FILL)):
            return int(self._paragraphs[place - 1])
        least = max(covered, int(limit - room * (1 - SENTENCE_FILL)))
        sentence = self._last_sentence(least, limit)
        if sentence is not None:
            return sentence
        word = max(text.rfind(space, covered + 1, limit + 1) for space in SPACES)
        comma = max(text.rfind(each, covered, limit) for each in COMMAS) + 1
        end = max(self._first_space(word, covered), comma)
        if end <= covered or is_within_grapheme(text, end):
            end = limit
        while end > covered and is_within_grapheme(text, end):
            end -= 1
        return end if end > covered else None

    def _first_space(self, place: int, covered: int) -> int:
        """The beginning of the white space at `place`; 0 if there is none behind `covered`."""
        while place > covered and self._text[place - 1].isspace():
            place -= 1
        return place if place > covered else 0

    def _last_sentence(self, least: int, limit: int) -> int | None:
        """The last end of a sentence behind `least`, up to `limit`."""
        # Backwards in steps, as it mostly is near.
        text, step = self._text, max(1, (limit - least) // 4)
        begin = limit
        while begin > least:
            behind, begin = begin, max(least, begin - step)
            last = None
            for match in SENTENCE.finditer(text, begin, min(behind + LOOK_AHEAD, len(text))):
                if least < match.end() <= limit and not is_within_grapheme(text, match.end()):
                    last = match.end()
            if last is not None:
                return last
        return None

    def _overlap_start(self, end: int, least: int) -> int:
        """The beginning of a chunk that repeats what ends at `end`: `least` or behind it, up to `end`."""
        text, ends = self._text, self._ends
        token = self._token_at(end) - self._overlap
        begin = max(least, int(ends[token - 1]) if token > 0 else 0)
        middle = (begin + end) // 2
        matches = SENTENCE.finditer(text, max(0, begin - 1), min(middle + LOOK_AHEAD, end))
        place = next((each.end() for each in matches if begin <= each.end() <= middle), begin)
        while place < end:
            if not self._is_seam(place):
                spaces = (text.find(space, place, end) for space in SPACES)
                place = next((each for each in spaces if each >= 0), place)
            while place < end and is_within_grapheme(text, place):
                place += 1
            if self._count(place, end) - self._tokenizer.special <= self._overlap:
                break
            token = self._token_at(place)
            place = max(place + 1, int(ends[token]) if token < len(ends) else end)
        return min(place, end)
