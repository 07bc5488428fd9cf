"""Conditional writes of a small object: it is written only if it is as its writer saw it last.

`pyarrow.fs` has none. So a store is opened a second time, by `obstore` (the `object_store` of Rust), with
what Arrow's file system says of itself: address, region and keys. A store that is a folder of the machine, as
in tests, has files that are made exclusively. Any thread.
"""

# Why obstore: one interface for S3, Google Cloud and Azure, each with the condition that it has
# (`If-None-Match` and `If-Match`, generations, ETags), in wheels without dependencies. It does not read AWS'
# files of profiles, which Arrow does; botocore does, where it is installed.

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from pillarbox.ledger.errors import LedgerError
from pillarbox.ledger.local_folder import PART
from pillarbox.redaction import redacted

REQUEST_TIMEOUT_S = 10
"""Seconds for a request: one that hangs is given up, and asked again, while its holder still counts."""
RETRIES_S = 20
"""Seconds for all tries of a request."""
CREDENTIALS_LIFE_S = 300
"""Seconds after which keys that may change are asked for again."""


class Version(NamedTuple):
    """An object as it was seen: its content, and what the store calls this version of it."""

    content: bytes
    tag: Any


class ConditionalStore(Protocol):
    """Reads and writes the small objects of one folder. Any thread. Raises LedgerError and OSError."""

    def read(self, name: str) -> Version | None:
        """The object as it is; None if there is none."""

    def write(self, name: str, content: bytes, expected: Version | None) -> Version | None:
        """Write an object that is still as `expected`, None for one that is not there; None if it is not.

        An error may come although the object was written.
        """


class LocalStore:
    """A folder of the machine: each version of an object is a file that is there or not, and has a number.

    A write makes the file of the next number, which only one can. A lock would have others wait for one who
    was stopped.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, name: str) -> Version | None:
        """The object as it is; None if there is none."""
        while numbers := self._numbers(name):
            # Deleted meanwhile by whoever has written the next ones.
            with suppress(FileNotFoundError), open(self._file(name, numbers[-1]), "rb") as file:
                return Version(file.read(), numbers[-1])
        return None

    def write(self, name: str, content: bytes, expected: Version | None) -> Version | None:
        """Write an object that is still as `expected`; None if it is not."""
        os.makedirs(self._path, exist_ok=True)
        number = 0 if expected is None else expected.tag + 1
        part = os.path.join(self._path, f".{secrets.token_hex(8)}{PART}")
        with open(part, "xb") as file:
            file.write(content)
        try:
            os.link(part, self._file(name, number))
        except FileExistsError:
            return None
        finally:
            os.unlink(part)
        numbers = self._numbers(name)
        # Who was stopped for long may find its number free: then later ones are there.
        is_last = numbers[-1:] == [number]
        for other in numbers if is_last else [number]:
            if other < number or not is_last:
                with suppress(FileNotFoundError):
                    os.unlink(self._file(name, other))
        return Version(content, number) if is_last else None

    def _numbers(self, name: str) -> list[int]:
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return []
        begin = f"{name}-"
        return sorted(int(each[len(begin) :]) for each in names if each.startswith(begin))

    def _file(self, name: str, number: int) -> str:
        return os.path.join(self._path, f"{name}-{number:016d}")


class ObjectStore:
    """A store of objects. opened: that of `obstore`, for a bucket. folder: the path in it."""

    def __init__(self, opened: Any, folder: str) -> None:
        self._store = opened
        self._folder = folder
        self._is_known = False

    def read(self, name: str) -> Version | None:
        """The object as it is; None if there is none."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            found = obstore.get(self._store, self._path(name))
            return Version(bytes(found.bytes()), _mode(found.meta))
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise self._failed("read", name, error) from None

    def write(self, name: str, content: bytes, expected: Version | None) -> Version | None:
        """Write an object that is still as `expected`; None if it is not."""
        written = self._put(name, content, expected)
        if written is not None and not self._is_known:
            # A server that knows no conditions takes them for nothing, and writes.
            if self._put(name, content, expected) is not None:
                raise LedgerError(
                    f"{self._path(name)}: this store ignores the conditions of a write (If-None-Match, "
                    "If-Match), by which a second job of a run is kept out: use a store, or a version of it, "
                    f"that has them. {WITHOUT}"
                )
            self._is_known = True
        return written

    def _put(self, name: str, content: bytes, expected: Version | None) -> Version | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        mode: Any = "create" if expected is None else expected.tag
        try:
            done = obstore.put(self._store, self._path(name), content, mode=mode, use_multipart=False)
            return Version(content, _mode(done))
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            return None
        except BaseError as error:
            raise self._failed("written", name, error) from None

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _failed(self, what: str, name: str, error: Exception) -> LedgerError:
        reason = redacted(str(error)).partition("\n")[0]
        return LedgerError(f"{self._folder}/{name} cannot be {what} on a condition: {reason}. {WITHOUT}")


def _mode(about: Any) -> dict[str, str]:
    """The condition that an object is still of this version."""
    return {name: about[name] for name in ("e_tag", "version") if about.get(name) is not None}


WITHOUT = (
    "Ledger(..., exclusive=False) goes on without: then two jobs of one run are not kept apart, and both "
    "make its calls"
)
"""The end of errors about stores in which nothing can be written on a condition."""


def conditional_store(filesystem: Any, path: str) -> ConditionalStore:
    """The conditional writes of a folder of a `pyarrow.fs.FileSystem`. Any thread; reaches for nothing yet.

    Raises LedgerError where there are none, or `obstore` is not installed; the message says what to do.
    """
    while filesystem.type_name == "subtree":
        filesystem, path = filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path}"
    if filesystem.type_name == "local":
        return LocalStore(path)
    bucket, _, folder = path.partition("/")
    return ObjectStore(opened_store(filesystem, bucket), folder)


def opened_store(filesystem: Any, bucket: str) -> Any:
    """The store of `obstore` for a bucket of a file system of Arrow. Raises LedgerError."""
    kind = filesystem.type_name
    open_bucket = STORES.get(kind)
    if open_bucket is None:
        raise LedgerError(
            f"{bucket}: a file system of the kind {kind!r} writes nothing on a condition, by which a second "
            f"job of a run is kept out: use one of {', '.join(STORES)}, or a folder that all workers share. "
            f"{WITHOUT}"
        )
    try:
        import obstore.store
    except ImportError:
        raise LedgerError(
            f"{bucket}: a second job of a run is kept out by conditional writes, for which the package "
            "obstore is missing: pip install 'pillarbox[objects]', where the driver and the workers run. "
            f"{WITHOUT}"
        ) from None
    return open_bucket(obstore.store, bucket, _settings(filesystem))


def _settings(filesystem: Any) -> dict[str, Any]:
    """The options of a file system of Arrow: what it would be made of anew."""
    try:
        settings = filesystem.__reduce__()[1][0]
    except (TypeError, IndexError):
        settings = None
    if not isinstance(settings, dict):
        raise LedgerError(f"the options of {type(filesystem).__name__} cannot be read. {WITHOUT}")
    return settings


def _client(**more: Any) -> dict[str, Any]:
    """The options of requests."""
    return {
        "client_options": {"timeout": datetime.timedelta(seconds=REQUEST_TIMEOUT_S), **more},
        "retry_config": {"retry_timeout": datetime.timedelta(seconds=RETRIES_S)},
    }


def _refuse(settings: dict[str, Any], *names: str) -> None:
    """Raise LedgerError for options that cannot be handed on."""
    for name in names:
        if settings.get(name):
            raise LedgerError(f"filesystem=...: {name} is not known to obstore. {WITHOUT}")


def _open_s3(stores: Any, bucket: str, settings: dict[str, Any]) -> Any:
    _refuse(settings, "role_arn")
    scheme, endpoint = settings["scheme"] or "https", settings["endpoint_override"]
    is_virtual = bool(settings.get("force_virtual_addressing"))
    more: dict[str, Any] = {"region": settings["region"], "virtual_hosted_style_request": is_virtual}
    if endpoint:
        scheme, host = endpoint.split("://", 1) if "://" in endpoint else (scheme, endpoint)
        more["endpoint"] = f"{scheme}://{bucket}.{host}" if is_virtual else f"{scheme}://{host}"
    if settings["anonymous"]:
        more["skip_signature"] = True
    elif settings["access_key"]:
        more["access_key_id"], more["secret_access_key"] = settings["access_key"], settings["secret_key"]
        if settings["session_token"]:
            more["session_token"] = settings["session_token"]
    elif (provider := _aws_credentials()) is not None:
        more["credential_provider"] = provider
    client: dict[str, Any] = {"allow_http": scheme == "http"}
    proxy = settings.get("proxy_options") or {}
    if proxy.get("host"):
        user = f"{proxy['username']}:{proxy['password']}@" if proxy.get("username") else ""
        client["proxy_url"] = f"{proxy['scheme']}://{user}{proxy['host']}:{proxy['port']}"
    if settings.get("tls_ca_file_path"):
        with open(settings["tls_ca_file_path"], "rb") as file:
            client["root_certificate"] = file.read()
    return stores.S3Store(bucket, **more, **_client(**client))


def _aws_credentials() -> Callable[[], dict[str, Any]] | None:
    """The keys that AWS' own libraries find, in profiles too; None without botocore, or without keys."""
    try:
        from botocore.session import get_session  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    found = get_session().get_credentials()
    if found is None:
        return None

    def provide() -> dict[str, Any]:
        frozen = found.get_frozen_credentials()
        life = datetime.timedelta(seconds=CREDENTIALS_LIFE_S)
        until = datetime.datetime.now(datetime.timezone.utc) + life
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": until,
        }

    return provide


def _open_gcs(stores: Any, bucket: str, settings: dict[str, Any]) -> Any:
    _refuse(settings, "target_service_account")
    more: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if settings["endpoint_override"]:
        more["base_url"] = f"{settings['scheme']}://{settings['endpoint_override']}"
        client["allow_http"] = settings["scheme"] == "http"
    if settings["anonymous"]:
        more["skip_signature"] = True
    elif settings["access_token"]:
        given = {"token": settings["access_token"], "expires_at": settings["credential_token_expiration"]}
        more["credential_provider"] = lambda: given
    return stores.GCSStore(bucket, **more, **_client(**client))


AZURE_AUTHORITY = ".blob.core.windows.net"


def _open_azure(stores: Any, bucket: str, settings: dict[str, Any]) -> Any:
    names = ("account_name", "account_key", "client_id", "client_secret", "tenant_id")
    more: dict[str, Any] = {name: settings[name] for name in names if settings.get(name)}
    if settings.get("sas_token"):
        more["sas_key"] = settings["sas_token"]
    authority = settings["blob_storage_authority"]
    scheme = settings["blob_storage_scheme"]
    if authority != AZURE_AUTHORITY:
        account = settings["account_name"]
        # Of an emulator the account is a part of the path.
        host = f"{account}{authority}" if authority.startswith(".") else f"{authority}/{account}"
        more["endpoint"] = f"{scheme}://{host}"
    return stores.AzureStore(bucket, **more, **_client(allow_http=scheme == "http"))


STORES: dict[str, Callable[[Any, str, dict[str, Any]], Any]] = {
    "s3": _open_s3,
    "gcs": _open_gcs,
    "abfs": _open_azure,
}
"""Opens the stores that have conditional writes, by the `type_name` of Arrow's file system."""
