"""Keys of services: named on the driver, read on the worker that makes the calls.

A `Secret` says where a key is, so it can be pickled, logged and put into a plan. `SecretHeaders` reads the
keys of one client, on the thread of its event loop, and reads them again when a service no longer takes them.
"""

# Why a secret is the place of a key. What travels with a plan is written down: Spark pickles closures into
# files of broadcasts on the disk of each executor, and puts options into its UI and into event logs, which
# stay when the job is over. A key that is read where it is used is in the memory of that process only. To
# encrypt it would need another key there.
#
# Why keys are read again after a 401, and not by age: how long a token lives is known to who has issued it,
# and a rotation comes when it comes. Of a hundred requests that are refused together one reads, which `renew`
# knows by identity: the mapping that a request was sent with is either still the current one, or somebody has
# read since. So `current` is replaced and never changed.
#
# Why there are pauses between readings, whatever they bring. A key that stays refused would be read once for
# each row, and a vault gets a thousand calls for a thousand rows; one that issues a new token each time as
# well. The pauses begin anew once nothing was refused for a while. Who asks in a pause gets the outcome of
# the last reading: the same key is refused, and a vault that is down is told.
#
# Why errors name the argument and never quote its value: what stands there by mistake is, nearly always, the
# key itself.

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pillarbox.redaction import MASK, redacted, remember_secret, visible
from pillarbox.validate import check_callable, check_text

SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"}
)
"""Headers, in lower case, whose values are keys."""
HINT = (
    "use Secret.env('NAME'), Secret.file(path) or Secret.call(function); Secret.literal(key) if it may travel"
)


UNAUTHORIZED = 401
"""The status with which a service refuses a key."""
MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 15.0
"""Seconds between two readings of the keys that a service refuses: the first pause, and the longest."""


class SecretError(ValueError):
    """Raised where a secret cannot be read. Its text never holds one."""


class SecretUnavailable(SecretError):
    """Raised where a function of `Secret.call` raises, and where refused keys cannot be read again.

    The service itself was not asked, or has refused the old key: then `status` is 401, and `headers` has the
    seconds until the keys are read again, as `Retry-After`, so that the operator calls the row again.
    """

    status: int | None = None
    headers: Mapping[str, str] | None = None


class Secret:
    """Key of a service, as the place where the worker finds it.

    Made by `env`, `file`, `call` or `literal`.

        >>> from pillarbox.clients import Secret
        >>> Secret.env("OPENAI_API_KEY")
        Secret.env('OPENAI_API_KEY')

    Its `repr` names the place, never the key. It pickles as the place, so that the key is in no plan, log or
    file of Spark; only `literal` pickles the key itself. A value; any thread may use it.
    """

    __slots__ = ("_kind", "_source")

    def __init__(self, kind: str, source: Any) -> None:
        self._kind = kind
        self._source = source

    @classmethod
    def env(cls, name: str) -> Secret:
        """Return the secret in an environment variable of the worker, as set by `spark.executorEnv.NAME`."""
        return cls("env", check_text("name", name))

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Secret:
        """Return the secret in a file on the worker, without surrounding white space."""
        return cls("file", check_text("path", os.fspath(path)))

    @classmethod
    def call(cls, fn: Callable[[], str | Awaitable[str]]) -> Secret:
        """Return the secret that a function without arguments returns on the worker, async or blocking.

        It is called when a client opens its connections, and when a service answers 401: a token may have
        expired.
        """
        check_callable("fn", fn)
        return cls("call", fn)

    @classmethod
    def literal(cls, value: str) -> Secret:
        """Return a secret that holds the key itself and is sent with it, also into Spark's files."""
        # Not `check_text`, whose errors quote the value.
        if not isinstance(value, str):
            raise TypeError(f"value: must be a str, not {type(value).__name__}")
        return cls("literal", _checked(value, "Secret.literal"))

    def __repr__(self) -> str:
        if self._kind == "literal":
            return f"Secret.literal({MASK})"
        if self._kind == "call":
            return f"Secret.call({getattr(self._source, '__qualname__', type(self._source).__name__)})"
        return f"Secret.{self._kind}({self._source!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return (self._kind, self._source) == (other._kind, other._source)

    def __hash__(self) -> int:
        return hash((self._kind, self._source))

    async def read(self) -> str:
        """Return the key, read now, in this process, whose errors and log lines mask it from now on.

        Raises SecretError that names the place, and SecretUnavailable from what a function of `Secret.call`
        raises.
        """
        value: Any = self._source
        if self._kind == "env":
            value = os.environ.get(self._source)
            if value is None:
                raise SecretError(
                    f"{self!r}: there is no such environment variable in this process; it is read where the "
                    f"calls are made, with Spark on the executors: set spark.executorEnv.{self._source}"
                )
        elif self._kind == "file":
            try:
                value = await asyncio.to_thread(Path(self._source).read_text, encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "is not text in UTF-8"
                raise SecretError(f"{self!r}: cannot be read on this worker: {reason}") from None
        elif self._kind == "call":
            try:
                value = await self._called()
            except Exception as error:
                raise SecretUnavailable(f"{self!r}: cannot be read: {_said(error)}") from error
        return _checked(value, repr(self))

    async def _called(self) -> Any:
        if inspect.iscoroutinefunction(self._source):
            return await self._source()
        # A function may ask a vault over the network, and the loop must go on meanwhile.
        value = await asyncio.to_thread(self._source)
        return await value if inspect.isawaitable(value) else value


def _said(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, SecretError):
        # It names the place.
        return text
    return redacted(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _checked(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise SecretError(f"{name}: must give a str, not {type(value).__name__}")
    key = value.strip()
    if not key:
        raise SecretError(f"{name}: is empty")
    if not (key.isascii() and key.isprintable()):
        # A line break would begin another header.
        raise SecretError(f"{name}: must be printable ASCII in one line")
    remember_secret(key)
    return key


def check_key(name: str, value: Any) -> Secret | None:
    """Accept a Secret or None. Raises TypeError that never quotes the value: it may be a key."""
    if value is None or isinstance(value, Secret):
        return value
    if isinstance(value, str):
        raise TypeError(f"{name}: a key itself would travel with the plan; {HINT}")
    raise TypeError(f"{name}: must be a Secret or None, not {type(value).__name__}")


def check_headers(name: str, headers: Any) -> dict[str, str | Secret]:
    """Accept a mapping of names to texts and Secrets; a text that looks like a key is refused.

    Raises TypeError and ValueError that name the header and never quote its value.
    """
    if not isinstance(headers, Mapping):
        raise TypeError(f"{name}: must be a mapping of names to texts, not {type(headers).__name__}")
    for header, value in headers.items():
        check_text(f"a name of {name}", header)
        if isinstance(value, Secret):
            continue
        if not isinstance(value, str):
            raise TypeError(f"{name}[{header!r}]: must be a str or a Secret, not {type(value).__name__}")
        line = f"{header}: {value}"
        if header.lower() in SECRET_HEADERS or redacted(line) != visible(line):
            raise ValueError(f"{name}[{header!r}]: a key itself would travel with the plan; {HINT}")
        if not line.isprintable():
            raise ValueError(f"{name}[{header!r}]: must be printable, in one line")
    return dict(headers)


class SecretHeaders:
    """The headers of one client's requests, with the keys in them.

    Confined to the thread of the event loop. `current` is empty before the first `read`, and is replaced as a
    whole, never changed: a request keeps the one that it was sent with, for `renew`.
    """

    def __init__(self, headers: Mapping[str, str | Secret], key: Secret | None, scheme: str | None) -> None:
        # scheme: the header of the key: "bearer" for Authorization, or the header's name.
        self._headers = headers
        self._key = key
        self._scheme = scheme
        self._reading: asyncio.Task[None] | None = None
        # When they were last read, what that failed with, and the pause behind it.
        self._read_at = 0.0
        self._failure: str | None = None
        self._pause = 0.0
        self.current: dict[str, str] = {}

    async def read(self) -> None:
        """Read all keys, once for all who ask meanwhile. Raises what `Secret.read` raises."""
        reading = self._reading
        if reading is None:
            # A task of its own: a row that has no more time must not take the key away from the others.
            reading = self._reading = asyncio.ensure_future(self._read_for_all())
            # Perhaps nobody waits any more for what it raises.
            reading.add_done_callback(lambda over: over.cancelled() or over.exception())
        await asyncio.shield(reading)

    def stop(self) -> None:
        """Read no more. For the end of a client."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read_for_all(self) -> None:
        try:
            await self._read()
            self._failure = None
        except Exception as error:
            self._failure = _said(error)
            raise
        finally:
            self._reading = None
            self._read_at = asyncio.get_running_loop().time()

    async def _read(self) -> None:
        fresh = {
            name: await value.read() if isinstance(value, Secret) else value
            for name, value in self._headers.items()
        }
        if self._key is not None:
            key = await self._key.read()
            if self._scheme == "bearer":
                fresh["Authorization"] = f"Bearer {key}"
            else:
                assert self._scheme is not None
                fresh[self._scheme] = key
        # Else a key that was read again and is the same would look like a new one, and be tried again.
        if fresh != self.current:
            self.current = fresh

    async def renew(self, used: dict[str, str]) -> bool:
        """Read the keys again if `used` is still current; returns True if they have changed since.

        For a 401: keys are rotated and tokens expire while a job runs. Of many requests that are refused at
        once, one reads, and then none for a pause. Raises SecretUnavailable if the keys could not be read.
        """
        clock = asyncio.get_running_loop().time
        if self.current is used and (self._reading is not None or clock() >= self._read_at + self._pause):
            if self._reading is None:
                quiet = clock() - self._read_at - self._pause
                longer = 0.0 if quiet > 2 * self._pause else 2 * self._pause
                self._pause = min(max(longer, MIN_PAUSE_S), MAX_PAUSE_S)
            # What it raises is kept, for those too who ask in the pause.
            with suppress(Exception):
                await self.read()
        if self.current is not used:
            return True
        if self._failure is None:
            return False
        # Without that for its context: that a vault is not reached says nothing of the service.
        error = SecretUnavailable(
            f"the service refuses the key (401), and it cannot be read again: {self._failure}"
        )
        error.status = UNAUTHORIZED
        error.headers = {"Retry-After": f"{max(self._read_at + self._pause - clock(), 0.0):.3f}"}
        raise error
