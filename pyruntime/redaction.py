"""Takes keys and people's data out of texts: those of errors and log lines, and those of addresses.

A text is redacted where it is made, before it is cut: half a key is a key that no pattern knows. Errors of
others are never changed; what travels or is printed instead of one is a stand-in of its name, with the
redacted text. Each pattern scans a text once, however long it is, and only if a marker of it is there: most
texts have none. Redacting a redacted text changes nothing.

A redacted text steers no terminal and is one in UTF-8: controls, and half a character, as a reply that was
cut in an emoji ends with, are written as their escapes. A service could otherwise write into the title of a
window, overwrite a line of a log, or turn its letters around. Spark, Arrow, files and sockets take no half
characters, and what they raise then takes the place of the error, or the task with it.

Pure but for the filter of the package's logger and the keys that `remember_secret` was told; any thread.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import quote, quote_plus, unquote

from pillarbox.secret_shapes import has_long_word, is_random, without_keys
from pillarbox.user_frames import links, user_frames

MASK = "***"

_FLAGS = re.ASCII | re.IGNORECASE

# Texts quote texts: in JSON, in a URL, in HTML, in the `repr` of bytes. So a quotation mark, a colon, a slash
# may stand there as an escape.
_QUOTE = r"""(?:\\*["']|%(?:25)?2[27]|&(?:quot|apos|#3[49]);|\\+u002[27])"""
_GAP = r"(?:\s|\+|%(?:25)?20){0,3}"
_IS = rf"""(?:(?:{_QUOTE}\]?)?{_GAP}(?:=>|:=|[:=]|%(?:25)?3[ad]|\\+u003[ad]){_GAP}|{_QUOTE}{_GAP},{_GAP})"""
"""Signs between a name and its value: an assignment, in any notation, or the comma of a pair."""
_SLASH = r"(?:\\?/|%(?:25)?2f)"

_QUOTED = r"""[bruf]{0,2}(?:\\*"[^"\n]*"?|\\*'[^'\n]*'?)"""
_VALUE = rf"""(?:\*\*\*|{_QUOTED}|[^\s"'<>]+)"""

_PRIVATE_KEY = re.compile(
    r"-{4,5}(?:\s|%20|\+)?BEGIN[A-Z0-9 +%]{0,40}PRIVATE[ +%20]{1,3}KEY[A-Z0-9 +%]{0,10}-{4,5}.*?"
    r"(?:-{4,5}(?:\s|%20|\+)?END[A-Z0-9 +%]{0,40}PRIVATE[ +%20]{1,3}KEY[A-Z0-9 +%]{0,10}-{4,5}|\Z)",
    re.DOTALL,
)
_PUTTY_KEY = re.compile(r"(Private-Lines:\s{0,3}\d{1,4})(?:\s|\\[rn]).*", re.DOTALL)
_URL = re.compile(r"(?<=[a-z0-9+.-])(:(?:\\?/){2})([^\s\"'<>`]+)", _FLAGS)
_ESCAPED_URL = re.compile(r"(:|%(?:25)?3a)(%(?:25)?2f%(?:25)?2f)[^\s\"'<>&]*?%(?:25)?40", _FLAGS)
_APOSTROPHE = r"'(?=\w)"
"""It ends no text in quotes."""
_QUERY = re.compile(
    # A value that nobody has escaped has spaces in it: the query goes on where another parameter follows.
    rf"\?(?:\*\*\*|[\w.%\[\]-]{{1,64}}=(?:[^\s\"'<>]|{_APOSTROPHE})*)"
    rf"(?:(?:[^\n\"'<>?]|{_APOSTROPHE}){{0,300}}?&[\w.%\[\]-]{{1,64}}=(?:[^\s\"'<>]|{_APOSTROPHE})*)*",
    re.ASCII,
)
_DSN = re.compile(
    # A user, a password and a host with a port, or Go's tcp(...), without a scheme.
    r"(?<![\w/.@:+%-])[\w.+%-]{1,64}:(?!\*\*\*@)[^\s:@/\"'<>()]{3,}@(?=[\w.-]{1,100}:[0-9]{2,5}\b|tcp\(|unix\()",
    re.ASCII,
)
_THIN = re.compile(r"(oracle:(?:thin|oci8?):)[^\s/@]{1,64}/[^\s@]{1,128}(?=@)", _FLAGS)
_AUTHORIZATION = re.compile(
    rf"""(authorization{_IS}(?:[bruf]{{0,2}}{_QUOTE})?)"""
    r"""(?:\*\*\*|(?:digest|aws4-hmac-sha256|oauth|hawk|signature)\s(?:(?!\\+[rn])[^\r\n])*"""
    r"""|(?:[a-z][\w-]{0,20}\s{1,3})?[^\s"',;]+(?:(?<==)"[^"\r\n]*"?)?)""",
    _FLAGS,
)
_BEARER = re.compile(
    r"(bearer(?:\s|\+|%(?:25)?20|\\+u0020){1,3})"
    r"(?:(?=[a-z._~+/=%-]{0,200}[0-9])[\w.~+/=%-]{6,}|[\w.~+/=%-]{20,})",
    _FLAGS,
)
_BASIC = re.compile(r"(basic(?:\s|\+|%(?:25)?20|\\+u0020){1,3})([\w+/-]{6,}(?:=|%(?:25)?3d){0,2})", _FLAGS)
_COOKIE = re.compile(
    # The rest of the line: values have spaces in them, and dates.
    rf"""(cookies?2?{_IS})(?:\*\*\*|{_QUOTED}|\{{[^}}\n]*\}}?|(?:(?!\\+[rn])[^\r\n"'<>]|="[^"\r\n]*")+)"""
    r"|(<(?:cookie|morsel:|simplecookie:)\s)[^>\n]+",
    _FLAGS,
)
_AFTER = re.compile(rf"{_IS}(?!//)(?P<value>{_VALUE})", _FLAGS)
_AFTER_ID = re.compile(rf"(?:[ _.-]?id)?{_IS}(?!//)(?P<value>{_VALUE})", _FLAGS)
_AFTER_PLURAL = re.compile(rf"s?{_IS}(?!//)(?P<value>{_VALUE})", _FLAGS)
# Tests pass and fail: a number of them is not a password.
_AFTER_PASS = re.compile(
    rf"{_IS}(?!(?:[0-9]{{1,5}}|true|false|none|null|yes|no)\b)(?P<value>{_VALUE})", _FLAGS
)

_VENDORS = (
    *("ai21", "algolia", "anthropic", "anyscale", "assemblyai", "azure", "baseten", "bedrock", "brave"),
    *("cerebras", "cohere", "cloudflare", "databricks", "datadog", "deepgram", "deepinfra", "deepseek"),
    *("elevenlabs", "exa", "fireworks", "gemini", "google", "groq", "huggingface", "hf", "jina", "langsmith"),
    *("mistral", "mixedbread", "mongo", "moonshot", "nebius", "nomic", "nvidia", "openai", "openrouter"),
    *("perplexity", "pinecone", "qdrant", "replicate", "sambanova", "serp", "serpapi", "stability", "tavily"),
    *("together", "togetherai", "twilio", "upstage", "vertex", "voyage", "watsonx", "weaviate", "xai"),
    "zilliz",
)
"""Services of which some issue keys without a mark: by these names the keys beside them are known."""
_KEYS_OF = (
    *("access", "account", "api", "app", "application", "auth", "client", "encryption", "license", "master"),
    *("private", "secret", "service", "shared", "signing", "subscription", "?", "&", *_VENDORS),
)
"""Words in front of `key`."""
_COLUMNS = ("PRIMARY", "FOREIGN", "UNIQUE", "PARTITION", "SORT", "ROW", "CACHE", "HASH", "GROUP", "JOIN")
"""Words in front of `_KEY` that name columns."""
_PASSES_OF = ("db", "pg", "ftp", "smtp", "user", "mail", "proxy", '"', "'", "&", ";", "?", ",")


def _names_key(text: str, low: str, at: int) -> bool:
    front = low[max(at - 16, 0) : at]
    if front.endswith((" ", "_", ".", "-")):
        front = front[:-1]
    if front.endswith(_KEYS_OF):
        return True
    # A variable of an environment.
    upper = text[max(at - 16, 0) : at + 3]
    return upper.endswith("_KEY") and upper[-5:-4].isalnum() and not upper[:-4].endswith(_COLUMNS)


def _names_pass(text: str, low: str, at: int) -> bool:
    front = low[max(at - 16, 0) : at]
    return front.endswith(_PASSES_OF) or (front[-1:] in ("_", ".", "-") and front[-2:-1].isalnum())


def _begins_word(text: str, low: str, at: int) -> bool:
    return not (low[at - 1 : at].isalnum() or low[at - 1 : at] == "_") if at else True


def _names(text: str, low: str, at: int) -> bool:
    return True


_ASSIGNED: tuple[tuple[str, Callable[[str, str, int], bool], re.Pattern[str]], ...] = (
    ("key", _names_key, _AFTER_ID),
    *((name, _names, _AFTER) for name in ("token", "password", "passwd", "passphrase", "passwort", "secret")),
    *((name, _names, _AFTER) for name in ("signature", "connection string", "connectionstring", "webhook")),
    *((name, _names, _AFTER) for name in ("connection_string", "webhook_url", "webhookurl", "webhook url")),
    ("credential", _names, _AFTER_PLURAL),
    *((name, _begins_word, _AFTER) for name in ("pwd", "pw", "sig", "jwt")),
    ("_pwd", _names, _AFTER),
    ("pass", _names_pass, _AFTER_PASS),
    (
        "pass=",
        _begins_word,
        re.compile(rf"(?!(?:[0-9]{{1,5}}|true|false|none|no)\b)(?P<value>{_VALUE})", _FLAGS),
    ),
)
"""Names of secrets, in lower case; the text in front of a name and the text behind it decide."""


def _without_assigned(text: str, low: str) -> str:
    spans = []
    for name, is_name, after in _ASSIGNED:
        at = low.find(name)
        while at >= 0:
            end = at + len(name)
            # The name first: what follows may be as long as the text.
            found = after.match(text, end) if is_name(text, low, at) else None
            if found is not None:
                spans.append(found.span("value"))
                end = found.end()
            at = low.find(name, end)
    return _with_masked(text, spans) if spans else text


def _with_masked(text: str, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            parts += text[done:start], MASK
        done = max(done, end)
    return "".join((*parts, text[done:]))


_VALUE_RUN = re.compile(r"[\w+/~.-]{16,}", re.ASCII)
_MAX_WORD = 16
"""Characters in front of a value in which the name of something public stands."""
_MAX_DISTANCE = 80
"""Characters between the begin of a name and a value that has no other sign of a key than its looks."""
_NEAR_NAMES = (
    *("key", "token", "secret", "password", "auth", "cred", "bearer", "cert", "session", "sid", "sas"),
    *("api", "pat", *_VENDORS),
)
_WORDS_ALONE = ("sid", "sas", "api", "pat", "exa", "hf", "xai", "serp")
"""Names that are parts of many a word."""
_BETWEEN = re.compile(rf"[ \w.-]{{0,24}}?(?:{_IS})(?:[bruf]{{0,2}}{_QUOTE})?", _FLAGS)
_BEHIND_KEY = re.compile(rf"[ \w.-]{{0,24}}?(?:{_IS}|\s)(?:[bruf]{{0,2}}{_QUOTE})?", _FLAGS)
_NOT_SECRET = re.compile(r"request|trace|span|model|version|hash|digest|\bids?\b|_id\b|region|thread|run\b")


def _without_near(text: str, low: str) -> str:
    """`text` without values that look like keys, and have a name of one in front of them."""
    runs = [run.span() for run in _VALUE_RUN.finditer(text) if is_random(run[0])]
    spans = [span for span in runs if _is_named(text, low, span[0])]
    return _with_masked(text, spans) if spans else text


def _is_named(text: str, low: str, end: int) -> bool:
    if _NOT_SECRET.search(low, max(end - _MAX_WORD, 0), end):
        return False
    begin = max(end - _MAX_DISTANCE, 0)
    for name in _NEAR_NAMES:
        at = low.rfind(name, begin, end)
        if at < 0 or (name in _WORDS_ALONE and not _begins_word(text, low, at)):
            continue
        between = _BEHIND_KEY if name == "key" else _BETWEEN
        if between.fullmatch(text, at + len(name), end) and not _NOT_SECRET.search(low, at, end):
            return True
    return False


_TAG = re.compile(
    r"(<(?:[\w.-]{1,30}[:_.-])?(?:(?:api|access|secret|private|shared|account)[_.-]?key|(?:\w{1,20}[_.-]?)?(?:token|"
    r"secret|password|passwd|passphrase|credential|signature))>)[^<>\s][^<>]*(?=<)",
    _FLAGS,
)
_OPTION = re.compile(
    r"((?:^|(?<=[\s\"'\[]))--?[\w-]{0,30}(?:password|passwd|passphrase|token|secret|key|pass)(?:\s|[\"'],\s?[\"'])\s{0,3})"
    r"(?![a-z]+\b|[A-Z_]+\b|-|\*\*\*)([^\s\"'<>]+)",
    re.ASCII | re.MULTILINE,
)
_USER_OPTION = re.compile(r"((?<![\w-])(?:-u|--user)[ =]{1,3}[\"']?)[^\s:\"']{1,64}:[^\s\"']+", re.ASCII)
_HOOK = re.compile(
    rf"(hooks\.slack(?:-gov)?\.com(?::[0-9]{{1,5}})?{_SLASH}(?:services|workflows|triggers){_SLASH}"
    rf"|{_SLASH}services{_SLASH}(?=T\w{{6,}}{_SLASH}B)"
    rf"|{_SLASH}api{_SLASH}(?:v[0-9]{{1,2}}{_SLASH})?webhooks{_SLASH}(?=[0-9])"
    rf"|webhookb2{_SLASH}|outlook\.office(?:365)?\.com{_SLASH}webhook{_SLASH}"
    rf"|hooks{_SLASH}catch{_SLASH}|with{_SLASH}key{_SLASH}|{_SLASH}bot{_SLASH}v2{_SLASH}hook{_SLASH}"
    rf"|hook\.[a-z0-9.]{{0,20}}(?:make|integromat)\.com{_SLASH}"
    rf"|infura\.io{_SLASH}(?:ws{_SLASH})?v3{_SLASH}|alchemy\.com{_SLASH}v2{_SLASH}"
    rf"|{_SLASH}(?:file{_SLASH})?bot(?=[0-9]{{6,}}:))[^\s\"'<>?]+",
    _FLAGS,
)
_OTHER_HOOK = re.compile(rf"({_SLASH}(?:incoming-?)?(?:web)?hooks?{_SLASH})([^\s\"'<>?]{{16,}})", _FLAGS)
_SEGMENT = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?=[a-z]{0,64}[0-9])[a-z0-9]{20,}", _FLAGS
)


def _masked_url(match: re.Match[str]) -> str:
    """The rest of a URL behind its scheme without user, password and query."""
    if "\\/" in match[0]:
        # As JSON may write it.
        plain = match[0].replace("\\/", "/")
        masked = _masked_rest(plain[:3], plain[3:])
        return match[0] if masked == plain else masked.replace("/", "\\/")
    return _masked_rest(match[1], match[2])


def _masked_rest(scheme: str, rest: str) -> str:
    place, mark, query = _parted(rest)
    authority, slash, path = place.partition("/")
    if ":" in authority and "@" not in authority and ("@" in place or "@" in query):
        # A user and a password, with what should have been escaped in it: where it ends nobody knows.
        return f"{scheme}{MASK}"
    if "@" in authority and ("@" in path or "@" in query):
        return f"{scheme}{MASK}"
    _, at, host = authority.rpartition("@")
    port = host.rpartition(":")[2].rstrip(".,;!)]}|\\") if ":" in host and not host.startswith("[") else ""
    if port and not port.isdecimal():
        return f"{scheme}{MASK}"
    masked = "" if not query else f"{mark}{MASK}" if mark == "?" or "=" in query else f"{mark}{query}"
    return f"{scheme}{f'{MASK}@' if at else ''}{host}{slash}{path}{masked}"


def _parted(rest: str) -> tuple[str, str, str]:
    """The text in front of a query or a fragment, its mark, and the rest."""
    found = re.search(r"[?#]", rest)
    return (rest, "", "") if found is None else (rest[: found.start()], found[0], rest[found.end() :])


def _masked_basic(match: re.Match[str]) -> str:
    """A user and a password in Base64, and no other word behind `basic`."""
    value = unquote(unquote(match[2])).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        plain = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except ValueError:
        return match[0]
    return f"{match[1]}{MASK}" if b":" in plain else match[0]


def _masked_hook(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}" if _SEGMENT.search(match[2]) or is_random(match[2]) else match[0]


def _masked_cookie(match: re.Match[str]) -> str:
    return f"{match[1]}{MASK}" if match[1] else f"{match[2]}{MASK}"


class _Rule(NamedTuple):
    """A pattern. marks: in lower case; without one of them a text has nothing that it finds."""

    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    instead: str | Callable[[re.Match[str]], str]


_RULES: tuple[_Rule, ...] = (
    _Rule(("private",), _PRIVATE_KEY, MASK),
    _Rule(("private-lines",), _PUTTY_KEY, rf"\1 {MASK}"),
    _Rule(("hook", "/services", "/bot", "infura.", "alchemy.", "with/key"), _HOOK, rf"\1{MASK}"),
    _Rule(("hook",), _OTHER_HOOK, _masked_hook),
    _Rule(("://", ":\\/\\/"), _URL, _masked_url),
    _Rule(("%40",), _ESCAPED_URL, rf"\1\2{MASK}%40"),
    _Rule(("?",), _QUERY, f"?{MASK}"),
    _Rule(("@",), _DSN, f"{MASK}@"),
    _Rule(("oracle:",), _THIN, rf"\1{MASK}"),
    _Rule(("authorization",), _AUTHORIZATION, rf"\1{MASK}"),
    _Rule(("bearer",), _BEARER, rf"\1{MASK}"),
    _Rule(("basic",), _BASIC, _masked_basic),
    _Rule(("cookie", "<morsel"), _COOKIE, _masked_cookie),
    _Rule(("</",), _TAG, rf"\1{MASK}"),
    _Rule(("--", "'-", '"-'), _OPTION, rf"\1{MASK}"),
    _Rule(("-u ", "--user"), _USER_OPTION, rf"\1{MASK}"),
)


_MIN_SECRET_CHARACTERS = 8
"""Characters of a key that is masked by its value: a shorter one is part of many a word."""
_MAX_SECRETS = 256
"""Forms of keys that are remembered: of tokens that are renewed each hour, those of the last days."""
_SECRETS: tuple[str, ...] = ()
_SECRETS_LOCK = threading.Lock()


def remember_secret(secret: str) -> None:
    """From now on mask `secret` in all texts that this process redacts, whatever it looks like.

    Known too are the forms that it has in JSON and in a URL.
    """
    global _SECRETS
    in_json = json.dumps(secret)[1:-1]
    quoted = {quote(secret, safe=""), quote_plus(secret)}
    in_lower = {re.sub("%..", lambda found: found[0].lower(), each) for each in quoted}
    forms = {secret, in_json, in_json.replace("/", "\\/"), *quoted, *in_lower}
    with _SECRETS_LOCK:
        if len(secret) >= _MIN_SECRET_CHARACTERS and secret not in _SECRETS:
            # The longest first: in another form the key may be a part of itself.
            fresh = sorted(forms, key=len, reverse=True)
            _SECRETS = (*fresh, *_SECRETS)[:_MAX_SECRETS]


def without_secrets(content: bytes) -> bytes:
    """`content` with each key that `remember_secret` was told masked, and nothing else changed."""
    for secret in _SECRETS:
        content = content.replace(secret.encode(), MASK.encode())
    return content


def redacted(text: str) -> str:
    """`text` without keys, and without the users and queries of URLs: `***` stands for each.

    Known are the keys that this process has read for its clients (`remember_secret`), passwords, keys and
    tokens that are assigned to a name that says so, HTTP's authorization and cookies, paths of webhooks,
    blocks of private keys, keys of the shapes in `secret_shapes`, and what looks random beside a name of a
    key. What steers a terminal is escaped (`visible`). Takes time in proportion to the text. Redacting twice
    changes nothing.
    """
    for secret in _SECRETS:
        text = text.replace(secret, MASK)
    may_have_key = has_long_word(text)
    if may_have_key:
        text = without_keys(text, MASK)
    low = _lowered(text)
    for rule in _RULES:
        for mark in rule.marks:
            if mark in low:
                shown = rule.pattern.sub(rule.instead, text)
                if shown != text:
                    text, low = shown, _lowered(shown)
                break
    shown = _without_assigned(text, low)
    if may_have_key:
        shown = _without_near(shown, low if shown is text else _lowered(shown))
    if shown != text and ("://" in low or ":\\/\\/" in low):
        # What was taken out may have been a port, and without one the rest may be part of a password.
        shown = _URL.sub(_masked_url, shown)
    plain = visible(shown)
    # An escape is text, by which a rule may find more than by its character; and the other way round.
    return plain if plain == shown else redacted(plain)


def _lowered(text: str) -> str:
    """`text` in lower case, of the same length: some letters become two."""
    low = text.lower()
    return (
        low if len(low) == len(text) else "".join(each.lower() if each.isascii() else each for each in text)
    )


_STEERING = re.compile(
    # Controls but tabs and line feeds, separators of lines and paragraphs, and what turns the direction.
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def visible(text: str) -> str:
    """`text` with escapes for characters that steer a terminal, and for half characters, which UTF-8 has not.

    Tabs and line feeds stay; a carriage return in front of a line feed goes. Any thread.
    """
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text.replace("\r\n", "\n"))


# -- addresses -----------------------------------------------------------------------------------------------

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)", re.ASCII)


def password_from(password_env: str) -> str:
    """Return the value of this environment variable, in this process. Raises ValueError if there is none.

    Read it where it is used: a value that the driver has read would travel with each task.
    """
    if password_env not in os.environ:
        raise ValueError(
            f"password_env={password_env!r}: there is no such environment variable in this process; it is "
            f"read where it is used, by tasks too: set spark.executorEnv.{password_env}"
        )
    return os.environ[password_env]


def shown_address(address: str) -> str:
    """An address that a user gave, without what may be secret: the user, the password and the query.

    Strict: what stands before the last `@` is a user, whatever is in it, and where a question mark stands
    before that, only the scheme is left. A path without a scheme, or with the scheme `file`, stays as it is.
    """
    found = _ADDRESS.search(address)
    if found is None or found[1].lower() == "file":
        return address
    front, rest = address[: found.end()], address[found.end() :]
    user, at, place = rest.rpartition("@")
    if "?" in user or "#" in user:
        # A secret with such a mark in it, or a query with an at sign.
        return front + MASK
    place = _parted(place)[0]
    if not at and ":" in (host := place.partition("/")[0]) and not host.startswith("["):
        port = host.rpartition(":")[2]
        if port and not port.isdecimal():
            return front + MASK
    return f"{front}{f'{MASK}@' if at else ''}{place}"


def has_secret(address: str) -> bool:
    """Return True if `address` holds something that `shown_address` does not show."""
    return shown_address(address) != address


def is_misread(address: str) -> bool:
    """Return True if a parser takes a part of a secret in `address`, which is not escaped, for a path."""
    found = _ADDRESS.search(address)
    if found is None or found[1].lower() == "file":
        return False
    authority = re.split(r"[?#]", address[found.end() :], maxsplit=1)[0].partition("/")[0]
    return ":" in authority and "@" not in authority and "@" in address[found.end() + len(authority) :]


UNESCAPED = "write / ? # @ in a user or password as %2F %3F %23 %40"


def reason_of(error: BaseException, address: str) -> str:
    """The text of another library's error about `address`; if that holds a secret, only the kind of error.

    Nobody knows in which form such a library writes the address, or its parts. An error of this package says
    by `is_own` that its text quotes neither that nor values of rows.
    """
    if not has_secret(address) or getattr(error, "is_own", False):
        return redacted(_text_of(error))
    for each in _chain(error):
        number = getattr(each, "errno", None)
        if isinstance(each, OSError) and isinstance(number, int) and number > 0:
            return f"{type(error).__name__}, {os.strerror(number)}"
    return type(error).__name__


# -- errors --------------------------------------------------------------------------------------------------

_LINKS = 16
"""Errors looked at along a chain, which can be a circle."""
WITHHELD = "<withheld: it may hold a row>"


@dataclass(frozen=True)
class Redact:
    """Remove private data from the texts of errors, in addition to keys, which are always removed.

    fn: a function that takes a text and returns it without private data; it is applied after the default, on
        the thread of the event loop, and only to texts of failures. If it raises, the text is withheld.
    rows: omit rows from errors: the row is not shown, and an error is reported by its class and the lines of
        code that raised it only, because any text may quote a value. Errors of this package that quote none
        keep their text.

        >>> from pillarbox import CallFailed, Errors, Redact, async_map
        >>> async def call(row):
        ...     raise ValueError(f"no account {row}")
        >>> hide = Redact(lambda text: text.replace("jane@example.org", "<e-mail>"))
        >>> try:
        ...     list(async_map(["jane@example.org"], call, errors=Errors(redact=hide)))
        ... except CallFailed as failed:
        ...     print(failed.reason)
        no account <e-mail>

    A value, pickled with `fn`; any thread may use it. Raises TypeError that names the argument.
    """

    fn: Callable[[str], str] | None = None
    rows: bool = False

    def __post_init__(self) -> None:
        if self.fn is not None and not callable(self.fn):
            raise TypeError(f"fn={self.fn!r}: must be a function that takes a text and gives one, or None")
        if not isinstance(self.rows, bool):
            raise TypeError(f"rows={self.rows!r}: must be True or False")

    def text(self, text: str) -> str:
        """Return `text` without private data. Never raises."""
        text = redacted(text)
        if self.fn is None:
            return text
        try:
            found = self.fn(text)
        except Exception as error:
            return f"<withheld: redact raised {type(error).__name__}>"
        return visible(found) if isinstance(found, str) else f"<withheld: redact gave {type(found).__name__}>"

    def told(self, error: BaseException) -> str:
        """Return the text of `error` without private data. Never raises, although its own text may."""
        return self.text(_text_without_data(error) if self.rows else _text_of(error))

    def printed(self, error: BaseException) -> str:
        """Return the traceback of `error` and of its causes, without private data."""
        return self.text(_printed_without_texts(error) if self.rows else _printed(error))

    def shown(self, error: BaseException) -> str:
        """The lines of the user's code through which `error` came, and those that it was raised from.

        Without the text of `error` itself, and without what must not be seen. Empty where there are none.
        """
        lines: list[str] = []
        before = ""
        for each in links(error):
            text, frames = " ".join(self.told(each).split()), user_frames(each)
            # Many an error quotes the one that it was raised from.
            if each is not error and (frames or text not in before):
                lines.append(f"  raised from {type(each).__name__}: {text}")
            lines += frames
            before = text
            if not self.rows:
                lines += [f"  {note}" for note in getattr(each, "__notes__", ())]
        return self.text("\n".join(lines))

    def sealed(self, error: BaseException) -> BaseException:
        """`error`, or, where its text or traceback changes, a stand-in with both in its text and no cause.

        For what is printed or leaves the process as text, in which lines of code are printed too. The
        stand-in is called as the error's class is. Raise it outside of the `except` block, or it has the
        error for its context.
        """
        printed = self.printed(error)
        if printed == _printed(error):
            return error
        kind = type(error)
        about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        text = f"{self.told(error)}\n\nThe original traceback:\n{printed}"
        found: BaseException = type(kind.__name__, (_StandIn,), about)(text)
        found.__suppress_context__ = True
        return found


DEFAULT = Redact()


def check_redact(value: object) -> Redact:
    """The `Redact` of what a user gave as `redact`. Raises TypeError."""
    if value is None:
        return DEFAULT
    if isinstance(value, Redact):
        return value
    if not callable(value):
        raise TypeError(
            f"redact={value!r}: must be a function that takes a text and gives one, a pillarbox.Redact, "
            "or None"
        )
    return Redact(cast("Callable[[str], str]", value))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as raised:
        return f"<a {type(error).__name__} whose text raised {type(raised).__name__}>"


# No values are looked for in a text: a function quotes a part of one, or in another form, and each that is
# not found again would be shown.


def _text_without_data(error: BaseException) -> str:
    return _text_of(error) if getattr(error, "is_own", False) else WITHHELD


def _printed(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    except Exception:
        # An error whose text raises.
        return _text_of(error)


def _printed_without_texts(error: BaseException) -> str:
    parts = [
        f"{''.join(traceback.format_tb(each.__traceback__))}{type(each).__name__}: {_text_without_data(each)}"
        for each in _chain(error)
    ]
    return "\n\nwhich was raised after:\n".join(parts)


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(_LINKS):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__


def errors_in_utf8(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, whose errors are all in UTF-8 when they are printed, also those of an iterator that it returns.

    For what Spark calls in a worker: it hangs with an error that it cannot write to its socket.
    """

    @functools.wraps(fn)
    def call(*arguments: object, **named: object) -> Any:
        try:
            found = fn(*arguments, **named)
        except Exception as error:
            failure = _in_utf8(error)
            if failure is error:
                raise
        else:
            return _iterated(found) if isinstance(found, Iterator) else found
        raise failure

    return call


def _iterated(found: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from found
        return
    except Exception as error:
        failure = _in_utf8(error)
        if failure is error:
            raise
    raise failure


def _in_utf8(error: BaseException) -> BaseException:
    printed = _printed(error)
    return error if visible(printed) == printed else DEFAULT.sealed(error)


class _StandIn(Exception):
    """The base of stand-ins."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Its class is known in this process only.
        return RuntimeError, (f"{type(self).__name__}: {self}",)


# -- log lines -----------------------------------------------------------------------------------------------


class _LogFilter(logging.Filter):
    """Redacts every line of the package's log, and the tracebacks in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:
            # The logger says so, in its own way.
            return True
        clean = redacted(text)
        if clean != text:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[1] is not None:
            printed = _printed(record.exc_info[1])
            clean = redacted(printed)
            if clean != printed:
                record.exc_text, record.exc_info = clean, None
        return True


LOG_FILTER = _LogFilter()
"""For a logger: its lines are redacted. The loggers of this package have it."""

for _name in ("pillarbox", "pillarbox.call"):
    # A logger's filter sees none of the records of those below it.
    logging.getLogger(_name).addFilter(LOG_FILTER)
