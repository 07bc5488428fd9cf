"""Places within what a reader takes for one character: an accent, an emoji of several signs, a syllable.

Pure; any thread.
"""

# These are the rules of Unicode's text segmentation (UAX 29) in which two characters belong together, by what
# Python's own tables tell, and where these lack a property by more than that: a place is never said to be
# between two characters that the rules join, and now and then to be within where the rules allow a break.

from __future__ import annotations

import unicodedata

JOINER, NON_JOINER = "\u200d", "\u200c"
MARKS = frozenset({"Mn", "Mc", "Me"})
"""Categories of Unicode whose characters extend the one in front of them."""
EXTENDING = frozenset({NON_JOINER, JOINER, "\u0e33", "\u0eb3", "\uff9e", "\uff9f"})
"""Characters of other categories that do, beside those of the ranges."""
EXTENDING_RANGES = ((0x1F3FB, 0x1F3FF), (0xE0020, 0xE007F))
"""Colours of skins, and the tags of flags."""
PREPENDED = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e"
    "\U000110bd\U000110cd\U000111c2\U000111c3\U0001193f\U00011941\U00011a3a\U00011d46\U00011f02"
) | {chr(point) for point in range(0x11A84, 0x11A8A)}
"""Characters that belong to the one behind them."""
FIRST_FLAG, LAST_FLAG = "\U0001f1e6", "\U0001f1ff"
VIRAMA = 9
"""The combining class of the sign that joins two consonants."""
LEADING, VOWELS, TRAILING = range(3)
JAMO_RANGES = (
    *((0x1100, 0x115F, LEADING), (0xA960, 0xA97C, LEADING), (0x1160, 0x11A7, VOWELS)),
    *((0xD7B0, 0xD7C6, VOWELS), (0x11A8, 0x11FF, TRAILING), (0xD7CB, 0xD7FB, TRAILING)),
)
FIRST_SYLLABLE, LAST_SYLLABLE, FINALS = 0xAC00, 0xD7A3, 28
"""Syllables of Korean: each 28th has no final consonant."""


def is_within_grapheme(text: str, place: int) -> bool:
    """Return True if a cut of `text` at `place` would part what belongs together."""
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    if before < "\x80" and after < "\x80":
        return before == "\r" and after == "\n"
    if _extends(after):
        # Behind a control character it extends nothing; that is rare, and no harm.
        return True
    if before == JOINER or before in PREPENDED:
        return True
    if FIRST_FLAG <= after <= LAST_FLAG and FIRST_FLAG <= before <= LAST_FLAG:
        return _flags_before(text, place) % 2 == 1
    if _joins_syllable(ord(before), ord(after)):
        return True
    return _has_virama_before(text, place) and unicodedata.category(after) == "Lo"


def _extends(character: str) -> bool:
    if character < "\u0300":
        return False
    if character in EXTENDING or unicodedata.category(character) in MARKS:
        return True
    point = ord(character)
    return any(first <= point <= last for first, last in EXTENDING_RANGES)


MOST_FLAG_LETTERS = 200
"""An even number of letters of flags in a run, behind which flags may be parted: each look reads them all."""


def _flags_before(text: str, place: int) -> int:
    """The letters of flags that stand in front of a place, up to `MOST_FLAG_LETTERS`: two are a flag."""
    begin, first = place, max(0, place - MOST_FLAG_LETTERS)
    while begin > first and FIRST_FLAG <= text[begin - 1] <= LAST_FLAG:
        begin -= 1
    return place - begin


def _has_virama_before(text: str, place: int) -> bool:
    """Return True if among the signs in front of a place one joins consonants."""
    while place > 0 and _extends(text[place - 1]):
        place -= 1
        if unicodedata.combining(text[place]) == VIRAMA:
            return True
    return False


def _kinds(point: int) -> tuple[int | None, int | None]:
    """The kinds of jamo with which a character of Korean begins and ends; None for others."""
    if FIRST_SYLLABLE <= point <= LAST_SYLLABLE:
        return LEADING, VOWELS if (point - FIRST_SYLLABLE) % FINALS == 0 else TRAILING
    kind = next((kind for first, last, kind in JAMO_RANGES if first <= point <= last), None)
    return kind, kind


def _joins_syllable(before: int, after: int) -> bool:
    end, begin = _kinds(before)[1], _kinds(after)[0]
    if end is None or begin is None:
        return False
    if begin == LEADING:
        return end == LEADING
    return end in (begin - 1, begin)
