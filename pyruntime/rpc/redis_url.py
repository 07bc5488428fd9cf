"""The URL of a Redis: checked, and shown without its passwords. A value, any thread."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pillarbox.redaction import password_from, redacted

SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, repr=False)
class RedisUrl:
    """The address of a Redis. Pickles with the password that may be in it; its `repr` has none.

    text: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://.
    password_env: the name of an environment variable that holds the password. It is read where a client is
        made, so that the password travels to no task.

    Raises TypeError or ValueError for another text, of an argument called `url`. What that says does not hold
    the text: it may have a password in it, in any place if it is not escaped.
    """

    text: str
    password_env: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"url: must be a str, not {type(self.text).__name__}")
        try:
            parts = urlsplit(self.text)
        except ValueError:
            # What this says has a part of the text.
            raise ValueError(
                "url: cannot be read; write what is not a letter or digit in a user or password as %XX"
            ) from None
        if parts.scheme not in SCHEMES or not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError("url: must begin with redis://, rediss:// or unix:// and name a server")
        if "@" in parts.path + parts.query or parts.fragment:
            raise ValueError("url: write / ? # @ in a user or password as %2F %3F %23 %40")
        try:
            parts.port  # noqa: B018 - it is the reading that checks
        except ValueError:
            raise ValueError("url: the port must be a number from 0 to 65535") from None
        if parts.scheme != "unix" and not (parts.path in ("", "/") or parts.path[1:].isdecimal()):
            raise ValueError("url: what follows the server must be the number of a database")

    def __repr__(self) -> str:
        parts = urlsplit(self.text)
        where = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}{parts.path}"
        return f"Redis at {where}"

    def arguments(self) -> dict[str, str]:
        """Return the arguments of a client beside the text. Raises ValueError for an unset variable."""
        return {} if self.password_env is None else {"password": password_from(self.password_env)}

    def hide(self, error: BaseException) -> str:
        """The text of an error, without the passwords that it might have in it."""
        text = str(error) or type(error).__name__
        parts = urlsplit(self.text)
        secrets = [os.environ.get(self.password_env or "", ""), parts.password or ""]
        # The password, and that of a key (ssl_password).
        secrets += (value for name, value in parse_qsl(parts.query) if name.endswith("password"))
        forms = {form for secret in secrets for form in (secret, unquote(secret), quote(secret, safe=""))}
        # The longest first: one may be a part of another.
        for form in sorted(forms - {""}, key=len, reverse=True):
            text = text.replace(form, "***")
        return redacted(text)
