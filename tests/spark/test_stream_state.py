"""The blob of a bucket: what it keeps, its versions, and inputs whose columns have changed."""

from __future__ import annotations

import base64
import datetime
import re
import zlib

import pyarrow as pa
import pytest

from pillarbox.spark.arrow_io import to_ipc
from pillarbox.spark.record import Record, records
from pillarbox.spark.stream.bucket_state import StreamStateError
from pillarbox.spark.stream.processor import identified
from pillarbox.spark.stream.state import VERSION, Held, Ticket, decode, encode

COLUMNS = (("id", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC")))
OUTPUT = "struct<double:bigint>"
NOON = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.timezone.utc)

VERSION_1 = """
eNqNVL1OAkEQnoXjuJBTr0DFhILCwsIQ7IwhhsQXoMCev4tcRI4cd4idpaWFhYWFvoWFD+AD+Ai+hYnr7O4crBsCTDK3s7vf/O7c
cM75aQbAA0EF2AYbcuCghMSs+bmLX4vOn6QMgGrQIvkD7RySvIs8iaOkF9f7YdId+mfd4CoYxed4vo88DobDTtQNZ1VE+Z2bapjE
4yRG66704YCKR9hiyCfIpWV6Uz+aBOEICCvi6iPXaP/9y7lIwiN9CxTZyOQSPIzb5RKXMXE55G4n7g3ERmKANfBT1/BFDZ9Fvvbv
4FjDDhR2q4xyhbAC94jcpDzFPgpv4QWxzwpfEOdlzbaodQfjFTWyqUbiNLV32bqAL6WbM3XFGvuzWMmW3HsYuYOW8vJlPXpnlZPp
N+grvw6ilV+VG5WFvzNVB0Eu7FEHudIyZC1Z01dGAOygEr2z6CWXqRpkYEE7sDl5xpq6Kc3jUXSkvSlQj+hUM+w0jPuGcd807pvG
fduIZ2DEM0vjYgsbeaMOsGLP1txvqp+n1THO01ql9Zr4U1/+aOO3g8+2PV9/uCJX+wfA6B+d0nyFzj2ANl/+zx1XxuTQ1FnMguKa
3q0Y/7kaQKv79wHW968Dy/u3TjmwFTXXydFkZujp/cPVDJmvfyHeh7I=
"""
"""Two rows, written when a blob had neither tickets nor attempts: the second one with its output."""


def made(*ids: int) -> list[Record]:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.int64()),
            pa.array([None if n % 2 else f"row {n}" for n in ids]),
            pa.array([NOON] * len(ids), pa.timestamp("us", "UTC")),
        ],
        [name for name, _ in COLUMNS],
    )
    return [record for rows in records([batch]) for record in rows.rows]


def values(held: list[Held]) -> list[dict[str, object]]:
    return [each.record.asDict() for each in held]


def test_a_blob_gives_back_rows_of_several_batches_in_their_order_with_all_that_belongs_to_them() -> None:
    first, second = made(1, 2, 3), made(10, 20)
    output = pa.RecordBatch.from_arrays([pa.array([40], pa.int64())], ["double"])
    rows = [second[1], first[2], first[0], second[0]]
    held = [
        Held(record, 7 - n, n, None if n else b"identity", n, Ticket(b"p" * 16, n) if n else None, None)
        for n, record in enumerate(rows)
    ]
    held[0] = held[0]._replace(output=output)
    found = decode(encode(held, OUTPUT), COLUMNS, OUTPUT)
    assert [each.record.id for each in found] == [20, 3, 1, 10]
    assert values(found) == values(held)
    assert [each[1:] for each in found] == [each[1:] for each in held]


@pytest.mark.contract("State of a stream of version 1 is read.")
def test_a_blob_of_version_1_is_read() -> None:
    blob = zlib.decompress(base64.b64decode(VERSION_1))
    first, second = decode(blob, COLUMNS, OUTPUT)
    assert values([first, second]) == [
        {"id": 7, "text": "seven", "at": NOON},
        {"id": 8, "text": None, "at": NOON},
    ]
    assert (first.key, first.batch, first.attempts, first.ticket, first.output) == (-5, 3, 0, None, None)
    assert (second.key, second.batch) == (12, 4)
    assert second.output is not None
    assert second.output.to_pydict() == {"double": [16]}


@pytest.mark.contract("State of a stream of a later version is refused with both versions.")
def test_a_blob_of_a_later_version_is_refused_with_both_versions() -> None:
    table = pa.ipc.open_stream(encode([Held(made(1)[0], 0, 0, None, 0, None, None)], OUTPUT)).read_all()
    later = table.replace_schema_metadata({b"pillarbox.stream.version": str(VERSION + 1).encode()})
    with pytest.raises(StreamStateError, match=rf"has version {VERSION + 1}, .* knows 1 to {VERSION}"):
        decode(to_ipc(later.to_batches()[0]), COLUMNS, OUTPUT)


@pytest.mark.parametrize("blob", [b"", b"no Arrow at all", bytes(200)], ids=["empty", "text", "zeros"])
def test_what_is_no_blob_is_refused(blob: bytes) -> None:
    with pytest.raises(StreamStateError, match="cannot be read"):
        decode(blob, COLUMNS, OUTPUT)


def test_a_column_that_has_come_is_null_and_one_that_has_gone_is_left_out() -> None:
    blob = encode([Held(made(2)[0], 0, 0, None, 0, None, None)], OUTPUT)
    (found,) = decode(blob, (("new", pa.string()), ("id", pa.int32())), OUTPUT)
    assert found.record.asDict() == {"new": None, "id": 2}


@pytest.mark.contract
def test_a_column_whose_type_has_changed_for_another_is_refused_by_name() -> None:
    blob = encode([Held(made(2)[0], 0, 0, None, 0, None, None)], OUTPUT)
    with pytest.raises(StreamStateError, match=re.escape("'text' is string, and the input has int64 now")):
        decode(blob, (("text", pa.int64()),), OUTPUT)


def test_a_result_of_other_columns_than_those_that_leave_now_is_called_again() -> None:
    output = pa.RecordBatch.from_arrays([pa.array([40], pa.int64())], ["double"])
    blob = encode([Held(made(2)[0], 0, 0, None, 3, None, output)], OUTPUT)
    (found,) = decode(blob, COLUMNS, "struct<double:string>")
    assert found.output is None
    assert found.attempts == 3


def test_rows_kept_before_there_was_a_ledger_get_keys_of_their_own_the_same_at_each_replay() -> None:
    held = [Held(record, 0, 4, None, 0, None, None) for record in made(1, 1, 2)]
    held.append(Held(made(3)[0], 0, 4, b"as it was", 0, None, None))
    found = [each.identity for each in identified(5, held)]
    assert found[3] == b"as it was"
    assert None not in found and len(set(found)) == 4
    assert [each.identity for each in identified(5, held)] == found
    elsewhere = [each.identity for each in identified(6, held)]
    assert set(elsewhere[:3]).isdisjoint(found)
