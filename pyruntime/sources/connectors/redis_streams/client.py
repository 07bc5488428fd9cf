"""How a Redis is reached: its address, whose password is never shown, and a client for it. Any thread."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix")
ANSWER = 10.0
"""Seconds for Redis to answer, besides the time that it is told to wait."""
MISSING = 'Redis Streams need the package redis, here and where tasks run: pip install "pillarbox[redis]"'


class RedisAddress:
    """Where a Redis is. A value; pickles with its password, and its text has none.

    url: redis://[[user]:password@]host[:port][/database], rediss:// for TLS, or unix://. password_env: the
    name of an environment variable, read now, that holds the password. Raises ValueError, without the text.
    """

    def __init__(self, url: str, password_env: str | None = None) -> None:
        if not isinstance(url, str):
            raise TypeError(f"url: must be a str, not {type(url).__name__}")
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES or not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError("url: must begin with redis://, rediss:// or unix:// and name a server")
        # A password that is not escaped ends up in any of these.
        if "@" in parts.path + parts.query or parts.fragment:
            raise ValueError("url: write / ? # @ in a user or password as %2F %3F %23 %40")
        try:
            port = parts.port or 6379
        except ValueError:
            raise ValueError("url: the port must be a number from 0 to 65535") from None
        if parts.scheme != "unix" and not (parts.path in ("", "/") or parts.path[1:].isdecimal()):
            raise ValueError("url: what follows the server must be the number of a database")
        self._url = url
        self._password: str | None = None
        if password_env is not None:
            if password_env not in os.environ:
                raise ValueError(f"password_env={password_env!r}: there is no such environment variable")
            self._password = os.environ[password_env]
        self._shown = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{port}{parts.path}"

    def __repr__(self) -> str:
        return f"Redis at {self._shown}"

    def hide(self, error: BaseException) -> str:
        """The text of an error, without the password that it might have in it."""
        text = str(error) or type(error).__name__
        parts = urlsplit(self._url)
        for secret in (
            self._password or "",
            parts.password or "",
            *parse_qs(parts.query).get("password", ()),
        ):
            for form in {secret, unquote(secret), quote(secret, safe="")} - {""}:
                text = text.replace(form, "***")
        return text

    def connect(self) -> Any:
        """A client, thread-safe, that connects when it is used. Raises ImportError without the package."""
        try:
            import redis
        except ImportError:
            raise ImportError(MISSING) from None
        given = {} if self._password is None else {"password": self._password}
        client = redis.Redis.from_url(
            self._url, socket_timeout=ANSWER, socket_connect_timeout=ANSWER, decode_responses=False, **given
        )
        pool = client.connection_pool
        try:
            # Made, but not connected.
            pool.connection_class(**pool.connection_kwargs)
        except TypeError as error:
            raise ValueError(
                f"url: its query has what the client does not know: {self.hide(error)}"
            ) from None
        # As Redis has sent it: what the client makes of entries costs more than all else.
        for command in ("XRANGE", "XREAD", "XINFO STREAM"):
            client.set_response_callback(command, _as_it_is)
        return client

    def failed(self, doing: str, error: BaseException) -> Exception:
        """What to raise for what the client has raised: it says where and at what."""
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import TimeoutError as Late

        text = f"{self!r}: {doing}: {self.hide(error)}"
        return ConnectionError(text) if isinstance(error, Lost | Late | OSError) else RuntimeError(text)


def _as_it_is(answer: Any, **_: Any) -> Any:
    return answer
