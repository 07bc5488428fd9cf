"""A segment is an Arrow stream; whatever happens to its bytes, what is found is what was written."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.ledger.format import scan
from pillarbox.ledger.values import decode
from tests.ledger.unit.segments import ID, ends, key, look, reader_of, segment
from tests.search import examples

FRAMES = [{1: "one", 2: [0.5] * 9}, {3: b"three"}, {4: None, 5: {"five": 5}, 6: "six"}]
CONTENT = segment(FRAMES)
ENDS = ends(CONTENT)
BEGIN = len(segment([]))
FOUND, NO_DAMAGE = look(CONTENT)


def found_in(frames: list[int]) -> dict[bytes, str]:
    return {key(number): FOUND[key(number)] for index in frames for number in FRAMES[index]}


def test_a_sound_segment_has_every_record_and_no_damage() -> None:
    assert NO_DAMAGE == []
    assert set(FOUND) == {key(number) for number in range(1, 7)}
    assert ENDS[-1] == len(CONTENT)


@pytest.mark.contract
def test_any_reader_of_arrow_streams_reads_a_segment() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.ipc.open_stream(CONTENT).read_all()
    assert table.num_rows == 6
    rows = table.select(["value", "floats", "blobs"]).to_pylist()
    assert [
        decode(**{"text" if name == "value" else name: cell for name, cell in row.items()}) for row in rows
    ] == [value for frame in FRAMES for value in frame.values()]
    assert table.schema.metadata[b"pillarbox.ledger"] == b"2"
    assert table.schema.metadata[b"segment"] == ID.encode()


@pytest.mark.contract
def test_a_line_that_is_being_written_at_one_look_and_whole_at_the_next_is_no_damage() -> None:
    part = ENDS[0] + 100
    seen: list[int] = []

    def read(offset: int, length: int) -> bytes:
        # The writer gets on between the first look at the second frame and the next.
        content = CONTENT if offset in seen or offset < ENDS[0] else CONTENT[:part]
        seen.append(offset)
        return content[offset : offset + length]

    found = list(scan(read, len(CONTENT), "s", ID, ENDS[0]))
    assert found == list(scan(reader_of(CONTENT), len(CONTENT), "s", ID, ENDS[0]))
    assert len(found) == len(FRAMES) - 1


@pytest.mark.contract
def test_cut_off_at_any_byte_a_segment_has_every_frame_before_the_cut() -> None:
    for length in range(len(CONTENT)):
        records, damage = look(CONTENT[:length])
        whole = [index for index, end in enumerate(ENDS) if end <= length]
        assert records == found_in(whole), length
        # Every byte is accounted for: it is in the header, in a frame, or damage at the tail.
        begin = ENDS[whole[-1]] if whole else (BEGIN if length == BEGIN else 0)
        assert [(part.offset + part.length, part.is_tail) for part in damage] == (
            [(length, True)] if length > begin else []
        ), length
        assert all(part.offset == begin or (part.offset == BEGIN and not whole) for part in damage), length


@pytest.mark.contract
def test_a_flipped_bit_at_any_byte_costs_one_frame_at_most_and_never_gives_another_value() -> None:
    for offset in range(len(CONTENT)):
        flipped = bytearray(CONTENT)
        flipped[offset] ^= 1 << (offset % 8)
        records, damage = look(bytes(flipped))
        hit = next(index for index, end in enumerate(ENDS) if offset < end)
        others = found_in([index for index in range(3) if index != hit])
        if records == FOUND:
            # Bytes that no record depends on: the header.
            assert offset < BEGIN, offset
            assert all(part.offset <= offset < part.offset + part.length for part in damage), offset
        else:
            assert records == others, offset
            assert len(damage) == 1, offset
            assert damage[0].offset <= offset < damage[0].offset + damage[0].length, offset


@pytest.mark.contract
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_bytes_that_are_overwritten_moved_or_missing_never_give_another_value(data: st.DataObject) -> None:
    content = bytearray(CONTENT)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.integers(1, 900))
        kind = data.draw(st.sampled_from(["zeros", "noise", "cut", "moved", "twice"]))
        part = bytes(content[at : at + length])
        if kind == "zeros":
            content[at : at + length] = bytes(len(part))
        elif kind == "noise":
            content[at : at + length] = random.Random(at).randbytes(len(part))
        elif kind == "cut":
            del content[at : at + length]
        elif kind == "moved":
            del content[at : at + length]
            content += part
        else:
            content[at:at] = part
        if not content:
            break
    records, _ = look(bytes(content))
    assert records.items() <= FOUND.items()


@pytest.mark.contract
def test_frames_of_another_segment_or_of_another_place_are_not_trusted() -> None:
    other = segment([{7: "seven"}], "ffffffffffffffff")
    records, damage = look(CONTENT + other)
    assert records == FOUND
    assert [part.length for part in damage] == [len(other)]
    first = ENDS[0]
    repeated = CONTENT + CONTENT[first : ENDS[1]]
    records, damage = look(repeated)
    assert records == FOUND
    assert damage[0].length == ENDS[1] - first


def test_a_segment_that_is_kept_as_a_value_is_no_part_of_its_segment() -> None:
    content = segment([{1: "one"}, {2: segment([{9: "inner"}])}, {3: "three"}])
    limits = ends(content)
    flipped = bytearray(content)
    # Damage in front of the value has the scan search through it.
    flipped[limits[0] + 200] ^= 1
    for position in range(limits[0], limits[0] + 400):
        if flipped[position : position + 4] == b"v1 i":
            flipped[position] ^= 1
    records, _ = look(bytes(flipped))
    assert key(9) not in records
    assert {key(1), key(3)} <= set(records)


def test_a_scan_goes_on_where_an_earlier_one_ended() -> None:
    rest = list(scan(reader_of(CONTENT), len(CONTENT), "s", ID, ENDS[0]))
    assert [item[0].end for item in rest] == ENDS[1:]  # type: ignore[union-attr]


def test_a_scan_reads_heads_and_keys_and_no_results() -> None:
    large = segment([{number: "x" * 10**6} for number in range(3)])
    read: list[int] = []

    def count(offset: int, length: int) -> bytes:
        part = large[offset : offset + length]
        read.append(len(part))
        return part

    # From the second frame on: the search for the first one goes through the header.
    assert len(list(scan(count, len(large), "s", ID, ends(large)[0]))) == 2
    assert sum(read) < 20_000
