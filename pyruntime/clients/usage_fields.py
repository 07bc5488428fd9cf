"""Counts of tokens in the object `usage` of an answer, however a service names and types them.

Pure; any thread.
"""

# Services that speak OpenAI's language differ here: the names of Anthropic and of OpenAI's newer form, floats
# out of proxies in languages that know no integers, -1 and null for what was not counted. A count that cannot
# be one is unknown, never 0: what is taken for 0 is taken for free.

from __future__ import annotations

from typing import Any

INPUT_NAMES = ("prompt_tokens", "input_tokens")
OUTPUT_NAMES = ("completion_tokens", "output_tokens")
TOTAL_NAMES = ("total_tokens",)
MAX_TOKENS = 2**53
"""Larger numbers are unknown: floats do not tell one from the next."""


def tokens_in(usage: object) -> tuple[int | None, int | None, int | None]:
    """The tokens of input, of output and in all that `usage` says, parsed from JSON; None for each unknown.

    Under OpenAI's names or Anthropic's; a float without a fraction is read. A negative number, a bool, a
    fraction or anything else is unknown. Nothing is derived from the others.
    """
    if not isinstance(usage, dict):
        return None, None, None
    return _first(usage, INPUT_NAMES), _first(usage, OUTPUT_NAMES), _first(usage, TOTAL_NAMES)


def count_in(counts: object, name: str) -> int | None:
    """The count under one name, by the same rules; None where it is unknown."""
    return _first(counts, (name,)) if isinstance(counts, dict) else None


def under_openai_names(
    usage: object,
    *,
    asked: tuple[str, ...],
    answered: tuple[str, ...],
    in_all: str = "",
    kept: str = "",
    written: str = "",
) -> dict[str, Any] | None:
    """The counts of another form under OpenAI's names; None for what is not an object.

    asked, answered: the names of counts that are parts of the input, and of the output. One that is left out
    is none of it; one that cannot be read makes the sum unknown. kept, written: tokens of the input that the
    service had cached, and that it has put into its cache.
    """
    if not isinstance(usage, dict):
        return None
    found = {
        "prompt_tokens": _sum(usage, asked),
        "completion_tokens": _sum(usage, answered),
        "total_tokens": usage.get(in_all),
    }
    in_cache, to_cache = usage.get(kept), usage.get(written)
    if in_cache is not None or to_cache is not None:
        found["prompt_tokens_details"] = {"cached_tokens": in_cache, "written_tokens": to_cache}
    return found


def _sum(counts: dict[str, Any], names: tuple[str, ...]) -> int | None:
    total = None
    for name in names:
        if name not in counts or (value := counts[name]) is None:
            continue
        count = value if type(value) is int and 0 <= value <= MAX_TOKENS else _count(value)
        if count is None:
            return None
        total = count if total is None else total + count
    return total


def _first(counts: dict[str, Any], names: tuple[str, ...]) -> int | None:
    """The first known count under one of the names; a 0 only where no other name says more."""
    found = None
    for name in names:
        count = _count(counts.get(name))
        # Some proxies fill both families of names, one of them with zeros.
        if count:
            return count
        if count is not None:
            found = count
    return found


def _count(value: object) -> int | None:
    if type(value) is int:
        return value if 0 <= value <= MAX_TOKENS else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # The bound first: NaN is below no number, and an integer may be too large to be a float.
    return int(value) if 0 <= value <= MAX_TOKENS and value == int(value) else None
