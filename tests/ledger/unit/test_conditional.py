"""Conditional writes reach a store with the options of Arrow's file system; one without them is named."""

from __future__ import annotations

import datetime
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pillarbox.ledger import LedgerError
from pillarbox.ledger.objects.conditional import LocalStore, Version, conditional_store, opened_store
from tests.servers import fixtures
from tests.servers.s3_server import KEY, SECRET, S3Server

fs = pytest.importorskip("pyarrow.fs")

server = fixtures.s3


def credentials_of(way: str, server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file system of Arrow that gets its keys so."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if way == "options":
        return server.store()
    if way == "url":
        return fs.FileSystem.from_uri(server.url("bucket/x", keys=True))[0]
    if way == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    if way == "profile":
        path = folder / "credentials"
        path.write_text(f"[night]\naws_access_key_id={KEY}\naws_secret_access_key={SECRET}\n")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
        monkeypatch.setenv("AWS_PROFILE", "night")
    return fs.FileSystem.from_uri(server.url("bucket/x"))[0]


@pytest.mark.server
@pytest.mark.contract(needs="S3, which takes keys")
@pytest.mark.parametrize("way", ["options", "url", "environment", "profile"])
def test_a_store_is_reached_with_the_keys_that_arrow_has(
    way: str, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = server.bucket()
    arrow = credentials_of(way, server, tmp_path, monkeypatch)
    # Names as a ledger has them, which both sides must spell alike.
    folder = f"{bucket}/my calls/v2/run=a%2Fb%20ü/uid=x+y&z"
    store = conditional_store(arrow, folder)
    written = store.write("name", b"1", None)
    assert written is not None
    with arrow.open_input_stream(f"{folder}/name") as file:
        assert file.read() == b"1"
    assert store.write("name", b"2", None) is None
    again = store.write("name", b"2", written)
    assert again is not None
    assert store.write("name", b"3", written) is None
    assert store.read("name") == again
    assert store.read("nothing") is None


def test_a_local_file_system_of_arrow_has_conditional_writes(tmp_path: Path) -> None:
    inner = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    store = conditional_store(fs.SubTreeFileSystem("in", inner), "calls/run")
    assert isinstance(store, LocalStore)
    written = store.write("name", b"1", None)
    assert [file.read_bytes() for file in (tmp_path / "in/calls/run").iterdir()] == [b"1"]
    assert store.write("name", b"2", None) is None
    again = store.write("name", b"2", written)
    assert again == store.read("name") is not None
    # Who was stopped, and writes when what it expects is long gone.
    store.write("name", b"3", again)
    assert store.write("name", b"late", written) is None
    assert [file.read_bytes() for file in (tmp_path / "in/calls/run").iterdir()] == [b"3"]


@pytest.mark.contract
def test_of_many_that_write_at_a_time_one_does(tmp_path: Path) -> None:
    store = conditional_store(fs.LocalFileSystem(), str(tmp_path))
    together = threading.Barrier(4)

    def write(name: str, expected: Version | None) -> Version | None:
        together.wait()
        return store.write("name", name.encode(), expected)

    last: Version | None = None
    with ThreadPoolExecutor(4) as threads:
        for _ in range(50):
            written = [each for each in threads.map(write, "abcd", [last] * 4) if each is not None]
            assert len(written) == 1
            assert written[0] == store.read("name")
            last = written[0]


@contextmanager
def careless() -> Iterator[int]:
    """A server that takes any write; its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("ETag", '"x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield listening.server_port
        finally:
            listening.shutdown()
            thread.join()


@pytest.mark.contract(convicts=["store_without_conditions"])
def test_a_store_that_ignores_conditions_is_named() -> None:
    with careless() as port:
        arrow = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            region="x",
        )
        store = conditional_store(arrow, "bucket/calls")
        with pytest.raises(
            LedgerError, match=r"ignores the conditions of a write .*exclusive=False\) goes on"
        ):
            store.write("name", b"1", None)


@pytest.mark.contract
def test_where_the_library_of_conditional_writes_is_missing_it_is_named_with_the_way_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    arrow = fs.S3FileSystem(access_key=KEY, secret_key=SECRET, region="x")
    with pytest.raises(
        LedgerError, match=r"pip install 'pillarbox\[objects\]'.* Ledger\(..., exclusive=False\)"
    ):
        conditional_store(arrow, "bucket/calls")


@pytest.mark.contract
def test_a_file_system_without_conditional_writes_is_named_with_the_way_without() -> None:
    handler = fs._MockFileSystem()
    with pytest.raises(LedgerError, match=r"the kind 'mock' writes nothing on a condition.*exclusive=False"):
        conditional_store(handler, "bucket/calls")
    assumed = fs.S3FileSystem(role_arn="arn:aws:iam::1:role/x", region="x")
    with pytest.raises(LedgerError, match=r"role_arn is not known to obstore.*exclusive=False"):
        conditional_store(assumed, "bucket/calls")


def test_an_error_of_a_store_has_no_secret(server: S3Server) -> None:
    arrow = fs.S3FileSystem(
        access_key=KEY,
        secret_key="another-secret",
        endpoint_override=f"127.0.0.1:{server.port}",
        scheme="http",
        region="us-east-1",
    )
    store = conditional_store(arrow, f"{server.bucket()}/calls")
    with pytest.raises(LedgerError, match=r"cannot be written on a condition: .*exclusive=False") as caught:
        store.write("name", b"1", None)
    assert "another-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


AZURE = {"account_name": "a"}
SOON = datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("arrow", "store", "options"),
    [
        (lambda: fs.GcsFileSystem(anonymous=True), "GCSStore", {"skip_signature": "true"}),
        (lambda: fs.GcsFileSystem(access_token="t", credential_token_expiration=SOON), "GCSStore", {}),
        (
            lambda: fs.AzureFileSystem(**AZURE, account_key="Zm9v"),
            "AzureStore",
            {**AZURE, "account_key": "Zm9v"},
        ),
        (lambda: fs.AzureFileSystem(**AZURE, sas_token="?sv=1"), "AzureStore", {**AZURE, "sas_key": "?sv=1"}),
        (
            lambda: fs.AzureFileSystem(
                **AZURE,
                account_key="Zm9v",
                blob_storage_authority="127.0.0.1:10000",
                blob_storage_scheme="http",
            ),
            "AzureStore",
            {**AZURE, "account_key": "Zm9v", "endpoint": "http://127.0.0.1:10000/a"},
        ),
    ],
)
def test_google_and_azure_get_what_arrow_has(arrow: Any, store: str, options: dict[str, Any]) -> None:
    """Only that such a store opens: none runs here."""
    opened = opened_store(arrow(), "bucket")
    assert type(opened).__name__ == store
    config = {
        name.removeprefix("azure_").removeprefix("google_").removeprefix("storage_"): value
        for name, value in opened.config.items()
    }
    assert options.items() <= config.items()
    assert (opened.credential_provider is not None) == (options == {})
