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

import functools
import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, quote_plus

MASK = "***"

_FLAGS = re.ASCII | re.IGNORECASE

_QUOTED = r"""(?:\\*"[^"\n]*"?|\\*'[^'\n]*'?)"""
_VALUE = rf"""(?:\*\*\*|{_QUOTED}|[^\s"'<>]+)"""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z0-9 ]{0,10}-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z0-9 ]{0,10}-----|\Z)",
    re.DOTALL,
)
_URL = re.compile(r"([a-z][a-z0-9+.-]{0,20}://)([^\s\"'<>`]+)", _FLAGS)
_APOSTROPHE = r"'(?=\w)"
"""It ends no text in quotes."""
_QUERY = re.compile(
    # A value that nobody has escaped has spaces in it: the query goes on where another parameter follows.
    rf"\?(?:\*\*\*|[\w.%\[\]-]{{1,64}}=(?:[^\s\"'<>]|{_APOSTROPHE})*)"
    rf"(?:(?:[^\n\"'<>?]|{_APOSTROPHE}){{0,300}}?&[\w.%\[\]-]{{1,64}}=(?:[^\s\"'<>]|{_APOSTROPHE})*)*",
    re.ASCII,
)
_AUTHORIZATION = re.compile(
    r"""(authorization(?:\\*["'])?\s{0,3}[:=]\s{0,3}(?:\\*["'])?)(?:\*\*\*|(?:[a-z][\w-]{0,20}\s{1,3})?[^\s"',;]+)""",
    _FLAGS,
)
_BEARER = re.compile(r"(bearer\s{1,3})(?:(?=[a-z._~+/=-]{0,200}[0-9])[\w.~+/=-]{6,}|[\w.~+/=-]{20,})", _FLAGS)
_ASSIGNMENT = re.compile(
    r"((?:(?:api|access|account|auth|encryption|private|secret|shared|signing|subscription)[ _.-]?key"
    r"(?:[ _.-]?id)?|token|password|passwd|passphrase|secret|credentials?|signature|\bpwd|\bsig|[?&]key)"
    rf"(?:\\*[\"'])?\s{{0,3}}(?:=>|[:=])\s{{0,3}})(?!//){_VALUE}",
    _FLAGS,
)
_KEYS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{10,}"  # OpenAI, Anthropic and others
    r"|(?:[sr]k_(?:live|test)|whsec)_[A-Za-z0-9]{8,}"  # Stripe
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}"  # AWS
    r"|(?:gh[pousr]_|github_pat_)\w{16,}"  # GitHub
    r"|glpat-[\w-]{16,}"  # GitLab
    r"|(?:xox[a-z]|xapp)-[\w-]{8,}"  # Slack
    r"|AIza[\w-]{24,}|ya29\.[\w-]{10,}"  # Google
    r"|hf_[A-Za-z0-9]{16,}"  # Hugging Face
    r"|SG\.[\w-]{16,}(?:\.[\w-]*)?"  # SendGrid
    r"|eyJ[\w-]{16,}(?:\.[\w-]*){0,2}"  # a JSON web token
    r")[\w-]*",
    re.ASCII,
)


def _masked_url(match: re.Match[str]) -> str:
    scheme, rest = match[1], match[2]
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


_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (("private key",), _PRIVATE_KEY, MASK),
    (("://",), _URL, _masked_url),
    (("?",), _QUERY, f"?{MASK}"),
    (("authorization",), _AUTHORIZATION, rf"\1{MASK}"),
    (("bearer",), _BEARER, rf"\1{MASK}"),
    (
        ("key", "token", "passw", "passphrase", "pwd", "secret", "credential", "signature", "sig"),
        _ASSIGNMENT,
        rf"\1{MASK}",
    ),
    (
        (
            *("sk-", "sk_", "rk_", "whsec_", "akia", "asia", "abia", "acca", "ghp_", "gho_", "ghu_", "ghs_"),
            *("ghr_", "github_pat_", "glpat-", "xox", "xapp-", "aiza", "ya29.", "hf_", "sg.", "eyj"),
        ),
        _KEYS,
        MASK,
    ),
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
    forms = {secret, in_json, in_json.replace("/", "\\/"), quote(secret, safe=""), quote_plus(secret)}
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
    tokens that are assigned to a name that says so, HTTP's authorization, blocks of private keys, JSON web
    tokens, and the keys of OpenAI, Anthropic, Stripe, AWS, GitHub, GitLab, Slack, Google, Hugging Face and
    SendGrid. What steers a terminal is escaped (`visible`). Takes time in proportion to the text. Redacting
    twice changes nothing.
    """
    for secret in _SECRETS:
        text = text.replace(secret, MASK)
    low = text.lower()
    for markers, pattern, instead in _RULES:
        for marker in markers:
            if marker in low:
                text = pattern.sub(instead, text)
                break
    return visible(text)


_STEERING = re.compile(
    # Controls but tabs and line feeds, separators of lines and paragraphs, and what turns the direction.
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def visible(text: str) -> str:
    """`text` with the escapes of what steers a terminal, and of half characters, which UTF-8 has not.

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
    """Says what is taken out of the texts of errors besides keys, which always are. Pickles if `fn` does.

    fn: takes a text and gives it without what must not be seen; it is applied after the default, on the
        thread of the event loop, and only to texts of failures. A text for which it raises is withheld.
    rows: leave rows out of errors: the row is not shown, and of an error only its class and the lines of code
        that raised it are said, as any text may quote a value, but for errors of this package that do not.

    Raises TypeError that names the argument.
    """

    fn: Callable[[str], str] | None = None
    rows: bool = False

    def __post_init__(self) -> None:
        if self.fn is not None and not callable(self.fn):
            raise TypeError(f"fn={self.fn!r}: must be a function that takes a text and gives one, or None")
        if not isinstance(self.rows, bool):
            raise TypeError(f"rows={self.rows!r}: must be True or False")

    def text(self, text: str) -> str:
        """`text` without what must not be seen. Never raises."""
        text = redacted(text)
        if self.fn is None:
            return text
        try:
            found = self.fn(text)
        except Exception as error:
            return f"<withheld: redact raised {type(error).__name__}>"
        return visible(found) if isinstance(found, str) else f"<withheld: redact gave {type(found).__name__}>"

    def told(self, error: BaseException) -> str:
        """The text of `error` without what must not be seen. Never raises, as an error's own text may."""
        return self.text(_text_without_data(error) if self.rows else _text_of(error))

    def printed(self, error: BaseException) -> str:
        """The traceback of `error` and of those that it was raised from, without what must not be seen."""
        return self.text(_printed_without_texts(error) if self.rows else _printed(error))

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


def check_redact(value: Any) -> Redact:
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
    def call(*arguments: Any, **named: Any) -> Any:
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
