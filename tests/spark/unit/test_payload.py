"""Rows of a stream in files of a ledger: found by their references, deleted once nobody needs them."""

from __future__ import annotations

import dataclasses
import os
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import numpy as np
import pyarrow as pa
from pyarrow import fs

from pillarbox import Ledger, Options
from pillarbox.ledger import LedgerError
from pillarbox.ledger.cli import main
from pillarbox.ledger.maintenance import expire
from pillarbox.spark import StreamStateError
from pillarbox.spark.ledger_plan import plan_ledger
from pillarbox.spark.records import from_ipc, to_ipc
from pillarbox.spark.stream.bucket_state import (
    IDENTITY,
    REFERENCE,
    BucketState,
    decode,
    encode,
    with_columns,
    without,
)
from pillarbox.spark.stream.buckets import BUCKET, BUCKETS, HASH, KEY, READ, ROWS, Pack, Unpack
from pillarbox.spark.stream.payload import STATE_COLUMNS, Payload, row_bytes

COLUMNS = (("n", pa.int64()), ("text", pa.string()))


async def called(row: Any) -> Any:
    return row


def payload_of(ledger: Ledger, **sizes: int) -> Payload:
    options = Options(ledger=dataclasses.replace(ledger, uid="u"))
    names = [name for name, _ in COLUMNS]
    plan = plan_ledger(called, options, names, None, None, session=None, streaming=True, arguments=None)
    assert plan is not None
    return Payload(ledger, "u", plan, uuid.uuid4().hex, COLUMNS, **sizes)


@pytest.fixture(params=["files", "objects"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "files":
        return Ledger(str(tmp_path))
    return Ledger("calls", filesystem=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()))


def rows_of(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [*numbers], "text": [str(number) * 100 for number in numbers]})


def written(payload: Payload, rows: pa.RecordBatch, bucket: int = 0, time: int = 1) -> pa.Array:
    writer = payload.writer(time)
    references = writer.add(bucket, rows)
    writer.finish()
    return references


def in_ledger(payload: Payload, rows: pa.RecordBatch, time: int = 1) -> pa.RecordBatch:
    """Rows of a state, with references in the place of their columns."""
    own = rows.schema.names[rows.schema.get_field_index(IDENTITY) :]
    references = written(payload, without(rows, own), time=time)
    return with_columns(
        pa.RecordBatch.from_arrays([references], [REFERENCE]), {name: rows.column(name) for name in own}
    )


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.rows"))


def state_of(references: pa.Array) -> BucketState:
    count = np.arange(len(references))
    rows = pa.RecordBatch.from_arrays([references], [REFERENCE])
    return BucketState(waiting=BucketState().with_rows(rows, 1, count, count))


@pytest.mark.contract(convicts=["rows_of_pieces_mixed", "segment_not_synced"])
def test_rows_are_found_by_their_references_in_any_order(ledger: Ledger, tmp_path: Path) -> None:
    payload = payload_of(ledger, piece_bytes=1000, segment_bytes=4000)
    first = written(payload, rows_of(*range(40)), bucket=3)
    second = written(payload, rows_of(*range(40, 60)), time=2)
    assert len(files(tmp_path)) > 2
    assert payload.read(first).equals(rows_of(*range(40)))
    mixed = pa.concat_arrays([second.slice(5, 10), first.take(pa.array([30, 2, 2, 17]))])
    assert payload.read(mixed).equals(rows_of(*range(45, 55), 30, 2, 2, 17))
    # From one file and the other in turn.
    turns = [0, 41, 1, 59, 20, 2, 42]
    both = pa.concat_arrays([first, second])
    assert payload.read(both.take(pa.array(turns))).equals(rows_of(*turns))
    assert 100 < row_bytes(pa.RecordBatch.from_arrays([mixed], [REFERENCE])) < 1000


def test_rows_of_before_have_the_columns_of_now(ledger: Ledger) -> None:
    payload = payload_of(ledger)
    references = written(payload, rows_of(1, 2))
    wider = dataclasses.replace(payload, columns=(("n", pa.int32()), ("more", pa.string())))
    assert wider.read(references).to_pydict() == {"n": [1, 2], "more": [None, None]}
    other = dataclasses.replace(payload, columns=(("text", pa.timestamp("us")),))
    with pytest.raises(StreamStateError, match="'text' is string, and the input has timestamp"):
        other.read(references)


def test_a_file_that_is_gone_is_named(ledger: Ledger, tmp_path: Path) -> None:
    payload = payload_of(ledger)
    references = written(payload, rows_of(1, 2))
    (path,) = files(tmp_path)
    path.unlink()
    with pytest.raises(LedgerError, match=rf"{path.name} is gone, .* begin a new checkpoint"):
        payload.read(references)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_file_is_named_and_not_believed(ledger: Ledger, tmp_path: Path, damage: str) -> None:
    payload = payload_of(ledger)
    references = written(payload, rows_of(1, 2))
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-1]
    else:
        content[content.index(b"1" * 100)] ^= 1
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=rf"{path.name} is damaged"):
        payload.read(references)


@pytest.mark.contract(convicts=["leaving_rows_deleted", "own_rows_deleted_after_setback"])
def test_a_bucket_deletes_its_own_files_that_are_older_than_its_rows(ledger: Ledger, tmp_path: Path) -> None:
    payload = payload_of(ledger)
    for time in (1, 2, 4):
        written(payload, rows_of(time), time=time)
    other = written(payload, rows_of(9), bucket=1, time=1)
    needed = written(payload, rows_of(3), time=3)
    blob = to_ipc(pa.RecordBatch.from_arrays([needed], [REFERENCE]))
    blocked = pa.RecordBatch.from_arrays([needed], [REFERENCE])
    for state in (state_of(needed), BucketState(leaving=[blob]), BucketState(blocked=blocked)):
        payload.delete(0, state, 5)
        assert [path.name.split("-")[:2] for path in files(tmp_path)] == [["1", "1"], ["3", "0"], ["4", "0"]]
    assert payload.read(needed).equals(rows_of(3))
    assert payload.read(other).equals(rows_of(9))
    # The clock was set back: what this micro-batch itself has written is newer than that.
    own = written(payload, rows_of(2), time=2)
    payload.delete(0, state_of(needed), 2)
    assert payload.read(own).equals(rows_of(2))
    payload.delete(0, BucketState(), 4)
    assert [path.name.split("-")[:2] for path in files(tmp_path)] == [["1", "1"], ["4", "0"]]
    payload.delete(0, BucketState(), 5)
    assert [path.name.split("-")[:2] for path in files(tmp_path)] == [["1", "1"]]


def test_an_expiry_of_the_ledger_takes_the_files_too(ledger: Ledger, tmp_path: Path) -> None:
    payload = payload_of(ledger)
    written(payload, rows_of(1))
    (scope,) = ledger.scopes(f"stream-{uuid.UUID(payload.name)}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expire(ledger, scope)
    assert not files(tmp_path)


def test_a_state_of_a_stream_with_a_ledger_is_refused_without_one_and_the_other_way_round(
    ledger: Ledger,
) -> None:
    references = written(payload_of(ledger), rows_of(1))
    blob = encode(state_of(references), "n bigint")
    assert decode(blob, STATE_COLUMNS, "n bigint").waiting is not None
    with pytest.raises(StreamStateError, match="with a ledger, .* and async_stream has no ledger now"):
        decode(blob, COLUMNS, "n bigint")
    values = np.zeros(1, np.int64)
    blob = encode(BucketState(waiting=BucketState().with_rows(rows_of(1), 1, values, values)), "n bigint")
    with pytest.raises(StreamStateError, match="with no ledger, .* and async_stream has a ledger now"):
        decode(blob, STATE_COLUMNS, "n bigint")


@pytest.mark.contract(convicts=["segment_of_other_bucket"])
def test_what_is_packed_has_references_and_hashes_and_is_unpacked_with_the_columns_that_are_kept(
    ledger: Ledger, tmp_path: Path
) -> None:
    payload = payload_of(ledger)
    rows = rows_of(*range(50))
    keys = pa.array([number % 4 for number in range(50)], pa.int64())
    arrays = [*rows.columns, keys, pa.array(range(50), pa.int64()), pa.array([5] * 50, pa.int64())]
    batch = pa.RecordBatch.from_arrays(arrays, ["n", "text", KEY, HASH, READ])
    (packed,) = Pack(payload).run(iter([batch.slice(0, 0), batch]))
    assert packed.column(BUCKET).to_pylist() == list(BUCKETS[:4])
    # Each bucket deletes its own.
    assert {int(path.name.split("-")[1]) for path in files(tmp_path)} == {*BUCKETS[:4]}
    found = {}
    for blob in packed.column(ROWS).to_pylist():
        (piece,) = from_ipc(blob)
        assert piece.schema.names == [REFERENCE, HASH, KEY]
        outputs = pa.RecordBatch.from_arrays(
            [pa.array([number * 2 for number in piece.column(HASH).to_pylist()]), piece.column(REFERENCE)],
            ["doubled", REFERENCE],
        )
        leaving = pa.RecordBatch.from_pydict({ROWS: [to_ipc(outputs), to_ipc(outputs.slice(0, 0))]})
        (unpacked,) = Unpack(payload, ["text"]).run(iter([leaving]))
        assert unpacked.schema.names == ["text", "doubled"]
        found.update(zip(*unpacked.to_pydict().values(), strict=True))
    assert found == {str(number) * 100: number * 2 for number in range(50)}


def test_what_was_not_finished_is_not_there(ledger: Ledger, tmp_path: Path) -> None:
    payload_of(ledger).writer(1).add(0, rows_of(1))
    assert not files(tmp_path)


def test_rows_that_are_pending_are_not_taken_for_old_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = payload_of(Ledger(str(tmp_path)))
    written(payload, rows_of(1))
    (path,) = files(tmp_path)
    assert main(["expire", str(tmp_path), "--older-than", "1"]) == 0
    assert path.exists()
    before = path.stat().st_mtime - 2 * 86400
    os.utime(path, (before, before))
    assert main(["expire", str(tmp_path), "--older-than", "1"]) == 0
    assert not path.exists()
    assert capsys.readouterr().out.count("deleted") == 1
