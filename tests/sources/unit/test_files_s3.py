"""Files in a bucket, over HTTP, with a real server: found, divided, read on, gone, and no secret shown."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pillarbox.sources.fetching import ReadFailed
from pillarbox.sources.reader import ReaderContext, read_splits
from pillarbox.testing import SourceHarness
from tests.servers import fixtures
from tests.servers.s3_server import SECRET, S3Server
from tests.sources.unit.settled import SettledFiles

pytestmark = pytest.mark.server

server = fixtures.s3


@pytest.fixture
def bucket(server: S3Server) -> str:
    return server.bucket()


def put(server: S3Server, path: str, content: bytes) -> None:
    with server.store().open_output_stream(path) as stream:
        stream.write(content)


@pytest.mark.contract(needs="S3, whose folders are prefixes")
@pytest.mark.parametrize("form", ["parquet", "text"])
def test_folders_of_a_bucket_are_read_in_parts_by_whoever_gets_the_source(
    server: S3Server, bucket: str, form: str
) -> None:
    for day in (1, 2):
        table = pa.table({"id": [*range(day * 1000, day * 1000 + 400)]})
        path = f"{bucket}/in/day={day}/part"
        if form == "text":
            put(server, path, b"".join(b"%d\n" % n for n in table["id"].to_pylist()))
        else:
            server.store().create_dir(f"{bucket}/in/day={day}")
            pq.write_table(table, path, filesystem=server.store(), row_group_size=100)
    source = SettledFiles(server.url(f"{bucket}/in", keys=True), form, split_bytes=500)
    column, kind = ("id", pa.int64()) if form == "parquet" else ("value", pa.string())
    assert source.arrow_schema() == pa.schema([(column, kind), ("day", pa.int64())])
    with SourceHarness(source, timeout=60) as harness:
        splits = harness.discover()
    assert len(splits) >= 4
    elsewhere = pickle.loads(pickle.dumps(source))
    reader = elsewhere.create_reader(ReaderContext(0, "elsewhere"))
    rows = [row for got in read_splits(reader, splits) if len(got.records) for row in got.records.to_pylist()]
    assert sorted((row["day"], int(row[column])) for row in rows) == [
        (day, n) for day in (1, 2) for n in range(day * 1000, day * 1000 + 400)
    ]
    assert SECRET not in repr(source) + repr(splits)


def test_new_objects_are_found_and_old_ones_are_not_read_twice(server: S3Server, bucket: str) -> None:
    put(server, f"{bucket}/in/a.txt", b"one\n")
    source = SettledFiles(f"{bucket}/in/*.txt", "text", discovery_interval=0.0, filesystem=server.store())
    with SourceHarness(source, timeout=60) as harness:
        found = [row for split in harness.discover() for row in harness.read_split(split)]
        assert found == [("one",)]
        put(server, f"{bucket}/in/b.txt", b"two\n")
        put(server, f"{bucket}/in/b.json", b"no\n")
        found = [row for split in harness.discover() for row in harness.read_split(split)]
        assert found == [("two",)]
        assert harness.discover() == []


def test_an_object_that_is_gone_or_another_is_named_without_the_secret(server: S3Server, bucket: str) -> None:
    for name in ("gone", "another"):
        put(server, f"{bucket}/{name}", b"one\n")
    source = SettledFiles(server.url(bucket, keys=True), "text")
    with SourceHarness(source, timeout=60) as harness:
        splits = {split.name: split for split in harness.discover()}
        server.store().delete_file(f"{bucket}/gone")
        put(server, f"{bucket}/another", b"two, and longer\n")
        for name, what in (("gone", "gone"), ("another", "was rewritten after it had been found")):
            with pytest.raises(ReadFailed, match=what) as caught:
                harness.read_split(splits[name])
            assert SECRET not in str(caught.value)


@pytest.mark.contract("What a stream has read may lie in a bucket.", needs="S3")
def test_the_state_of_a_stream_lies_in_a_bucket(server: S3Server, bucket: str) -> None:
    state = server.url(f"{bucket}/state", keys=True)
    source = SettledFiles(server.url(f"{bucket}/in", keys=True), "text", discovery_interval=0.0, state=state)
    snapshot, rows = None, []
    for number in range(3):
        for name in range(20):
            put(server, f"{bucket}/in/{number}-{name}.txt", f"{number} {name}\n".encode())
        with SourceHarness(source, snapshot=snapshot, timeout=60) as harness:
            rows += harness.micro_batch()
            snapshot = harness.snapshot()
        assert len(json.dumps(snapshot)) < 1024 and SECRET not in json.dumps(snapshot)
    assert sorted(rows) == sorted((f"{number} {name}",) for number in range(3) for name in range(20))
    name = snapshot["enumerator"]["checkpoint"]["seen"]["segments"][0]
    server.store().delete_file(f"{bucket}/state/{name}")
    with pytest.raises(ValueError, match=f"{name}.* is not there") as caught:
        SourceHarness(source, snapshot=snapshot)
    assert SECRET not in str(caught.value)
