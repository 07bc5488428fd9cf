"""Records become a sound batch of Arrow and come back as they were; garbage in its buffers is an error."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.ledger.errors import Damage, LedgerValueError
from pillarbox.ledger.format import (
    ERROR,
    VALUE,
    RowBlock,
    Rows,
    encode_frame,
    message_of,
    open_frame,
    schema,
    size_of,
    to_batch,
)
from pillarbox.ledger.values import encode, encode_vectors
from tests.ledger.unit.segments import Entry, key
from tests.ledger.unit.test_values import same, values

pa = pytest.importorskip("pyarrow")
numpy = pytest.importorskip("numpy")
entries = st.builds(
    lambda number, kind, value, attempts, latency, cost, at: (
        value,
        Entry(key(number), kind, *encode(value), attempts, latency, cost, at),
    ),
    st.integers(0, 2**64 - 1),
    st.sampled_from([VALUE, ERROR]),
    values,
    st.integers(0, 2**31 - 1),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
    st.integers(0, 2**52),
)


@settings(deadline=None)
@given(st.lists(entries, min_size=1, max_size=6))
def test_entries_become_a_batch_that_arrow_finds_sound_and_come_back(
    items: list[tuple[object, Entry]],
) -> None:
    batch = to_batch([entry for _, entry in items])
    batch.validate(full=True)
    assert batch.schema == schema()
    frame, messages = encode_frame(message_of(batch), "0" * 16, 0)
    content = b"".join(messages)
    opened = open_frame(frame, lambda offset, length: content[offset : offset + length])
    for rows in (Rows(batch), Rows(opened)):
        for row, (value, entry) in enumerate(items):
            record = rows.record(row)
            assert same(record.value, value)
            assert (record.key, record.is_error) == (entry.key, entry.kind == ERROR)
            assert (record.attempts, record.latency, record.cost) == entry[5:8]
            assert record.at.timestamp() == pytest.approx(entry.at / 1e6)
            assert (rows.key(row), rows.kinds[row], rows.at(row)) == (entry.key, entry.kind, entry.at)


@settings(deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 70),
    st.sampled_from(["?", "u1", "<i2", "<i8", "<f2", "<f4", "<f8"]),
    st.booleans(),
    st.sampled_from([(12,), (0,), (24, 12)]),
)
def test_a_block_of_vectors_is_the_message_of_its_entries_and_comes_back(
    count: int, length: int, kind: str, in_tuple: bool, input_bytes: tuple[int, ...]
) -> None:
    matrix = numpy.arange(count * length).reshape(count, length).astype(kind)
    text, content = encode_vectors(matrix, in_tuple)
    keys, inputs = (
        [key(number) for number in range(count)],
        [b"i" * input_bytes[number % len(input_bytes)] for number in range(count)],
    )
    costs = [number / 7 for number in range(count)]
    block = RowBlock(keys, inputs, text, content, [1 + number for number in range(count)], 0.25, costs, 7)
    for each, row in zip(block.entries(), matrix, strict=True):
        encoded = encode((row,) if in_tuple else row)
        assert (each[2], [*each[4]]) == (encoded.json, [*encoded.blobs]) and not each[3]
    message, batch = block.message("version", b"12345678"), to_batch(block.entries(), "version", b"12345678")
    whole = message_of(batch)
    assert (b"".join(message.parts), message[1:]) == (bytes(whole.parts[0]), whole[1:])
    found = Rows(batch).vectors
    assert found.dtype == matrix.dtype and numpy.array_equal(found, matrix)
    parts = [part.entries() for part in block.parts(2)]
    assert [entry for part in parts for entry in part] == block.entries()


def test_only_a_frame_of_vectors_of_one_form_is_a_matrix() -> None:
    def vectors(*given: object, kind: str = VALUE) -> object:
        batch = to_batch([Entry(key(n), kind, *encode(value), 1, 0, 0, 0) for n, value in enumerate(given)])
        return Rows(batch).vectors

    one, other = numpy.ones(3, "f4"), numpy.ones(3, "f8")
    assert vectors(one, one) is not None and vectors((one,), (one,)) is not None
    for values_of in ((one, other), (one, (one,)), (one, numpy.ones(4, "f4")), (one, "text"), ([0.5] * 9,)):
        assert vectors(*values_of) is None
    for values_of in (
        (numpy.ones((3, 1)),),
        ((one, one),),
        (numpy.float32(1),),
        (numpy.ones(0),),
        ("",),
        ({},),
    ):
        assert vectors(*values_of) is None
    assert vectors(one, kind=ERROR) is None


def test_a_result_s_size_is_that_of_its_parts() -> None:
    for value, least in (("x" * 100, 100), ([0.5] * 100, 800), (b"x" * 100, 100), ([b"x", [0.5] * 10], 81)):
        size = size_of(Entry(key(1), VALUE, *encode(value), 1, 0.0, 0.0, 0))
        assert least <= size < least + 50


@pytest.mark.parametrize("seed", range(20))
def test_garbage_behind_a_right_checksum_gives_an_error_or_a_value_and_no_memory_of_others(seed: int) -> None:
    # Checksums keep accidents out; this is for who makes them right on purpose.
    chance = random.Random(seed)
    items = [
        Entry(b"some other bytes", VALUE, *encode(["x" * 50, [0.5] * 10, b"y" * 50]), 1, 0.0, 0.0, 0),
        Entry(key(2), ERROR, *encode({"type": "é"}), 1, 0.0, 0.0, 0),
    ]
    frame, messages = encode_frame(message_of(to_batch(items)), "0" * 16, 0)
    content = b"".join(messages)
    body = content.index(b"some other bytes", frame.offset)
    read = 0
    for _ in range(200):
        broken = bytearray(content)
        at = chance.randrange(body, len(broken) - 8)
        broken[at : at + 8] = chance.randbytes(chance.choice([1, 4, 8])).ljust(8, b"\xff")
        checked = frame._replace(sum=zlib.crc32(broken[frame.offset :]))
        opened = open_frame(
            checked, lambda offset, length, part=bytes(broken): part[offset : offset + length]
        )
        if isinstance(opened, Damage):
            continue
        read += 1
        rows = Rows(opened)
        for row in range(2):
            try:
                record = rows.record(row)
            except LedgerValueError:
                continue
            assert len(repr(record.value)) < 3000
    assert read > 20


def test_each_record_of_a_merged_frame_has_its_own_version_and_execution() -> None:
    entries = [Entry(key(number), VALUE, *encode(number), 1, 0.0, 0.0, 0, b"input") for number in range(3)]
    # Written one after the other, these are the bytes of three times "1".
    made = [
        to_batch([entry], version, bytes([number]) * 8)
        for number, (entry, version) in enumerate(zip(entries, ["1", "11", ""], strict=True))
    ]
    rows = Rows(pa.Table.from_batches(made).combine_chunks().to_batches()[0])
    assert rows.versions == ["1", "11", ""]
    assert [rows.execution(row) for row in range(3)] == [bytes([number]) * 8 for number in range(3)]
    assert [rows.record(row).input for row in range(3)] == [b"input"] * 3
