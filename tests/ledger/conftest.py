"""Places of the ledgers of several jobs: a folder, and a bucket of a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from pillarbox.ledger import Ledger
from tests.servers import fixtures
from tests.servers.s3_server import SECRET, S3Server

server = fixtures.s3


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Ledger, str]:
    """A ledger that is in a folder as it would be in a bucket, and the program of its file system."""
    fs = pytest.importorskip("pyarrow.fs")
    program = f"fs.SubTreeFileSystem({str(tmp_path)!r}, fs.LocalFileSystem())"
    filesystem = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Ledger("calls", filesystem=filesystem, uid="uid", run="run", key=["id"]), program


@pytest.fixture
def bucket(server: S3Server) -> tuple[Ledger, str]:
    """The same in a bucket."""
    program = (
        f"fs.S3FileSystem(access_key='pillarbox', secret_key={SECRET!r}, scheme='http', region='us-east-1', "
        f"endpoint_override='127.0.0.1:{server.port}')"
    )
    location = f"{server.bucket()}/calls"
    return Ledger(location, filesystem=server.store(), uid="uid", run="run", key=["id"]), program


@pytest.fixture
def place(request: pytest.FixtureRequest) -> tuple[Ledger, str]:
    """One of the two, by the parameter of a test."""
    found: tuple[Ledger, str] = request.getfixturevalue(request.param)
    return found
