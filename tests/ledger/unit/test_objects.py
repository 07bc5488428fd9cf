"""In a store of objects a commit is an object: whole or not there, the oldest record of a key counts."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from pillarbox import async_map
from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.ledger import shared_reader
from pillarbox.ledger.local_folder import SUFFIX
from pillarbox.ledger.maintenance import expire, expire_batches
from pillarbox.ledger.objects.object_folder import MAX_LISTING_TRIES, ObjectFolder
from pillarbox.ledger.upkeep import compact
from pillarbox.ledger.writer import Commit
from tests.ledger.unit.segments import key
from tests.servers import fixtures
from tests.servers.s3_server import S3Server

fs = pytest.importorskip("pyarrow.fs")
SCOPE = Scope("run", "uid")
LONG = 600.0

server = fixtures.s3


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger that knows its folder as a file system of pyarrow only, as it knows a bucket."""
    return Ledger("calls", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))


@pytest.fixture
def bucket(server: S3Server) -> Ledger:
    """A ledger in a bucket."""
    return Ledger(f"{server.bucket()}/calls", filesystem=server.store())


def values_in(ledger: Ledger) -> dict[bytes, Any]:
    return {record.key: record.value for record in ledger.reader(SCOPE).records()}


class MadeMeanwhile:
    """A file system in which another has made a folder between Arrow's two looks at it."""

    type_name = "local"

    def __init__(self, listings_that_fail: int) -> None:
        self.left = listings_that_fail

    def get_file_info(self, selector: Any) -> list[Any]:
        if self.left:
            self.left -= 1
            raise FileNotFoundError(selector.base_dir)
        return [fs.FileInfo(f"{selector.base_dir}/a{SUFFIX}", fs.FileType.File, size=5, mtime=1.0)]


@pytest.mark.contract("A ledger can be opened while another makes its folder.")
def test_a_folder_that_is_made_while_it_is_listed_is_listed_again() -> None:
    assert ObjectFolder(MadeMeanwhile(1), "calls").names() == [f"a{SUFFIX}"]
    assert ObjectFolder(MadeMeanwhile(1), "calls").segments() == [(f"a{SUFFIX}", 5, 1.0)]
    # What stays so is not a race.
    with pytest.raises(FileNotFoundError, match="calls"):
        ObjectFolder(MadeMeanwhile(MAX_LISTING_TRIES), "calls").names()


def test_what_was_acknowledged_is_found_commit_by_commit(ledger: Ledger, tmp_path: Path) -> None:
    ledger.check()
    commits: list[Commit] = []
    with ledger.writer(SCOPE, on_commit=commits.append) as writer:
        for number in range(3):
            writer.append(key(number), [number])
            writer.flush(LONG)
            assert ledger.reader(SCOPE).get(key(number)) is not None
    assert [commit.through for commit in commits] == [1, 2, 3]
    folder = ledger.folder(SCOPE)
    assert isinstance(folder, ObjectFolder)
    assert len(folder.segments()) == 3
    assert values_in(ledger) == {key(number): [number] for number in range(3)}
    assert list(ledger.scopes()) == [SCOPE]
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.endswith(".part")]
    assert ledger.lease(SCOPE, "task") is None


@pytest.mark.contract("Drivers that begin with one ledger at the same time do not disturb each other.")
def test_several_may_check_one_ledger_at_a_time(ledger: Ledger) -> None:
    drivers = 8
    together = Barrier(drivers)

    def check_often() -> None:
        for _ in range(20):
            together.wait()
            ledger.check()

    with ThreadPoolExecutor(drivers) as pool:
        for ended in [pool.submit(check_often) for _ in range(drivers)]:
            ended.result(LONG)


@pytest.mark.contract
@pytest.mark.parametrize("store", ["ledger", pytest.param("bucket", marks=pytest.mark.server)])
def test_a_job_finds_in_the_bucket_what_the_one_before_kept(
    store: str, request: pytest.FixtureRequest
) -> None:
    ledger: Ledger = request.getfixturevalue(store)
    calls = Counter[int]()

    async def call(row: int) -> list[float]:
        calls[row] += 1
        await asyncio.sleep(0.001)
        return [row / 7] * 20

    given = {"ledger": dataclasses.replace(ledger, uid="uid", run="run"), "capacity": 20}
    first = list(async_map(range(500), call, **given))
    assert list(async_map(range(500), call, **given)) == first == [[row / 7] * 20 for row in range(500)]
    assert set(calls.values()) == {1}
    (scope,) = ledger.scopes()
    before = len(ledger.folder(scope).segments())
    assert before > 1
    assert compact(ledger, scope).records == 500
    assert len(ledger.folder(scope).segments()) == 1
    assert list(async_map(range(500), call, **given)) == first
    assert set(calls.values()) == {1}
    expire(ledger, scope)
    assert not [*ledger.scopes()]


@pytest.mark.contract("In a store of objects the older of two records of a key counts.")
def test_of_two_records_of_a_key_the_older_one_counts(ledger: Ledger, tmp_path: Path) -> None:
    for value in ("first", "second"):
        with ledger.writer(SCOPE) as writer:
            writer.append(key(1), value)
    folder = ledger.folder(SCOPE)
    # The store's clock may not tell two objects of one moment apart.
    for name, *_ in folder.segments():
        path = tmp_path / folder.path / name
        os.utime(path, (1, 1) if b"first" in path.read_bytes() else (2, 2))
    assert values_in(ledger) == {key(1): "first"}
    record = ledger.reader(SCOPE).get(key(1))
    assert record is not None and record.value == "first"


@pytest.mark.contract
def test_objects_are_merged_and_expire(ledger: Ledger) -> None:
    for number in range(3):
        with ledger.writer(SCOPE) as writer:
            writer.append(key(number), number)
    assert compact(ledger, SCOPE).segments == 3
    assert values_in(ledger) == {key(number): number for number in range(3)}
    assert len(ledger.folder(SCOPE).segments()) == 1
    expire(ledger, SCOPE)
    assert values_in(ledger) == {}


def test_a_store_that_refuses_fails_the_writer_with_its_reason(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ledger.writer(SCOPE)

    def refuse(folder: ObjectFolder, name: str) -> str:
        return f"{folder.path}/there/is/no/such/folder/{name}"

    monkeypatch.setattr(ObjectFolder, "_join", refuse)
    writer.append(key(1), 1)
    with pytest.raises(LedgerError, match="finished calls cannot be stored in calls/v2/run=run"):
        writer.flush(LONG)


def test_a_large_object_is_read_in_parts(ledger: Ledger) -> None:
    with ledger.writer(SCOPE) as writer:
        for number in range(5):
            writer.append(key(number), "x" * 3000 + str(number))
    whole = ledger.folder(SCOPE)
    (name, size, _), *_ = whole.segments()
    content = whole.read_whole(name)
    folder = ObjectFolder(ledger.filesystem, whole.path, block_bytes=1000)
    for length in (300, 1000, 1700, size + 1):
        parts = [folder.read(name, at, length) for at in range(0, size, length)]
        assert len(content) == size and b"".join(parts) == content


def test_an_expiry_takes_what_a_killed_commit_or_merge_has_left_and_what_comes_meanwhile(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ledger.writer(SCOPE) as writer:
        writer.append(key(1), 1)
    folder = ledger.folder(SCOPE)
    assert isinstance(folder, ObjectFolder)
    folder.put("fedcba9876543210.part", b"x")
    remove, published = ObjectFolder.remove, []

    def then_publish(self: ObjectFolder, name: str) -> None:
        remove(self, name)
        if not published:
            published.append(name)
            self.put("0123456789abcdef.arrow", b"merged")

    monkeypatch.setattr(ObjectFolder, "remove", then_publish)
    assert expire(ledger, SCOPE) > 0
    assert os.listdir(tmp_path / folder.path) == []
    assert expire(ledger, SCOPE) == 0


def test_committed_micro_batches_expire_in_a_store_as_well(ledger: Ledger) -> None:
    scopes = [Scope("query", "uid", batch=batch) for batch in range(3)]
    for scope in [*scopes, SCOPE]:
        with ledger.writer(scope) as writer:
            writer.append(key(1), 1)
    assert expire_batches(ledger, "query", 1, uid="uid") == scopes[:2]
    assert list(ledger.scopes()) == [scopes[2], SCOPE]
    assert expire_batches(ledger, "query", 1, uid="uid") == []


def test_a_task_after_another_finds_its_results_in_the_shared_reader(ledger: Ledger) -> None:
    for number in range(2):
        reader = shared_reader(ledger, SCOPE)
        assert [key(other) in reader for other in range(2)] == [other < number for other in range(2)]
        with ledger.writer(SCOPE, reader) as writer:
            writer.append(key(number), number)
        assert key(number) in reader
