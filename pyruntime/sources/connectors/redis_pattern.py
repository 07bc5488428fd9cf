"""`matches`: a test whether SCAN of Redis would find a key by a pattern, made without the server."""

# Why not `fnmatch`: in a shell's pattern a backslash is a character, and `!` negates a set. Why the server is
# not asked: a split that a checkpoint brings is judged by the pattern of today, for each row that is read.

from __future__ import annotations

import re
from functools import lru_cache

_TOKEN = re.compile(r"\\(.)|(\*)|(\?)|\[(\^?)((?:\\.|[^\]]-.|[^\]])*)\]?|(.)", re.DOTALL)
_MEMBER = re.compile(r"\\(.)|(.)-(.)|(.)", re.DOTALL)


def matches(pattern: str, key: str) -> bool:
    """True if SCAN finds `key` by `pattern`, byte by byte. Any thread."""
    return _expression(pattern).fullmatch(_of_bytes(key)) is not None


def _of_bytes(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


@lru_cache(maxsize=16)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(_TOKEN.sub(_of_token, _of_bytes(pattern)), re.DOTALL)


def _of_token(token: re.Match[str]) -> str:
    escaped, many, one, negated, members, plain = token.groups()
    if many or one:
        return ".*" if many else "."
    if members is None:
        return re.escape(escaped or plain)
    found = ""
    for literal, first, last, other in _MEMBER.findall(members):
        # A range may be written backwards.
        found += "-".join(map(re.escape, sorted([first, last]) if first else [literal or other]))
    # Of a set of nothing no byte is a member.
    return f"[{negated}{found}]" if found else "." if negated else "(?!)"
