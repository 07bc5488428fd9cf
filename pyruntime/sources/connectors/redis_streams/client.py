"""A Redis: how it is reached, by an address whose password is never shown. A value, any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pillarbox.rpc.redis_url import RedisUrl

ANSWER_S = 10.0
"""Seconds for Redis to answer, besides the time that it is told to wait."""
MISSING = 'Redis Streams need the package redis, here and where tasks run: pip install "pillarbox[redis]"'


class RedisAddress:
    """The address of a Redis. A value; its text shows no password.

    url, password_env: see `RedisUrl`. The variable has to be set here, too.
    Raises TypeError or ValueError, without the text.
    """

    def __init__(self, url: str, password_env: str | None = None) -> None:
        self._url = RedisUrl(url, password_env)
        self._url.arguments()

    def __repr__(self) -> str:
        return repr(self._url)

    def connect(self) -> Any:
        """A client, thread-safe, that connects when it is used. Raises ImportError without the package."""
        try:
            import redis
        except ImportError:
            raise ImportError(MISSING) from None
        client = redis.Redis.from_url(
            self._url.text,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            decode_responses=False,
            **self._url.arguments(),
        )
        pool = client.connection_pool
        try:
            # Made, but not connected.
            pool.connection_class(**pool.connection_kwargs)
        except TypeError as error:
            raise ValueError(
                f"url: its query has what the client does not know: {self._url.hide(error)}"
            ) from None
        # As Redis has sent it: what the client makes of entries costs more than all else.
        for command in ("XRANGE", "XREAD", "XINFO STREAM"):
            client.set_response_callback(command, lambda answer, **_: answer)
        return client

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Raise ConnectionError or RuntimeError for what the client raises: it says where and at what."""
        from redis.exceptions import ConnectionError as Lost
        from redis.exceptions import RedisError
        from redis.exceptions import TimeoutError as Late

        try:
            yield
        except (RedisError, OSError) as error:
            kind = ConnectionError if isinstance(error, Lost | Late | OSError) else RuntimeError
            raise kind(f"{self!r}: {doing}: {self._url.hide(error)}") from None
