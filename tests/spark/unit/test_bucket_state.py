"""The state of a bucket of a stream: what leaves follows from what was committed, and from nothing else."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

import numpy as np
import pyarrow as pa

from pillarbox.spark.records import from_ipc, to_ipc
from pillarbox.spark.stream.bucket_state import (
    BATCH,
    IDENTITY,
    SEQUENCE,
    BucketState,
    Finished,
    StreamStateError,
    decode,
    encode,
    identities,
    keys_of,
    ledger_key,
    with_columns,
)
from tests.spark.unit.digests import digests_of_numbers

COLUMNS = [("k", pa.int64()), ("n", pa.int64())]
OUTPUT = "struct<n:bigint,copy:bigint>"


def rows_of(rows: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([k for k, _ in rows], pa.int64()), pa.array([n for _, n in rows], pa.int64())], ["k", "n"]
    )


def come(state: BucketState, rows: Sequence[tuple[int, int]], time: int) -> pa.RecordBatch | None:
    """Rows (key, number), with a digest of the number."""
    keys, numbers = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    return state.with_rows(rows_of(rows), time, keys, digests_of_numbers(numbers))


def finished(rows: pa.RecordBatch, places: Sequence[int], copies: Sequence[int] | None = None) -> Finished:
    """Results of the rows at `places`: as many outputs as `copies` says, or one each."""
    numbers = rows.column(rows.schema.get_field_index("n")).to_pylist()
    counts = [1] * len(places) if copies is None else list(copies)
    made = [
        (numbers[place], copy) for place, count in zip(places, counts, strict=True) for copy in range(count)
    ]
    outputs = pa.RecordBatch.from_arrays(
        [pa.array([n for n, _ in made], pa.int64()), pa.array([copy for _, copy in made], pa.int64())],
        ["n", "copy"],
    )
    return Finished(
        np.array(places, np.int64),
        outputs,
        None if copies is None else np.array(counts, np.int64),
    )


def leaving(state: BucketState) -> list[tuple[int, int]]:
    batches = [batch for blob in state.leaving for batch in from_ipc(blob)]
    return [(row["n"], row["copy"]) for batch in batches for row in batch.to_pylist()]


def sound(blob: bytes | None, columns: Any = COLUMNS, *given: Any) -> BucketState:
    """The state of a blob in which nothing is bad."""
    state, bad = decode(blob, columns, *(given or (OUTPUT,)))
    assert not bad
    return state


def reasons(blob: bytes | None, columns: Any = COLUMNS, *given: Any) -> list[str]:
    """The reasons why nothing can go on from rows of a blob."""
    return [each.reason for each in decode(blob, columns, *(given or (OUTPUT,)))[1]]


def committed(state: BucketState) -> BucketState:
    """The state that the next micro-batch reads."""
    return sound(encode(state, OUTPUT))


@st.composite
def lives(draw: st.DrawFn) -> tuple[bool, list[tuple[list[int], list[int], list[int]]]]:
    """True for order; of each micro-batch: keys of new rows, order of finishing, outputs."""
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        keys = draw(st.lists(st.integers(0, 2), max_size=5))
        steps.append(
            (
                keys,
                draw(st.lists(st.integers(0, 12), max_size=8, unique=True)),
                draw(st.lists(st.integers(0, 2), min_size=8, max_size=8)),
            )
        )
    return draw(st.booleans()), steps


@pytest.mark.contract(convicts=["outputs_of_row_shuffled"])
@given(lives())
@settings(deadline=None)
def test_every_row_leaves_once_with_the_micro_batch_behind_that_which_has_recorded_its_result(
    life: Any,
) -> None:
    ordered, steps = life
    # Enough micro-batches at the end that finish everything.
    steps = [*steps, ([], list(range(64)), [1] * 64), ([], [], [])]
    state = BucketState()
    number = 0
    key_of: dict[int, int] = {}
    outputs: dict[int, int] = {}
    out: list[tuple[int, int]] = []
    for time, (keys, picked, copies) in enumerate(steps):
        state = committed(state)
        out += leaving(state)
        new = [(key, number + at) for at, key in enumerate(keys)]
        number += len(new)
        key_of.update({n: key for key, n in new})
        rows = come(state, new, time)
        if rows is None:
            state = state.after(None, None, ordered=ordered)
            continue
        numbers = rows.column(rows.schema.get_field_index("n")).to_pylist()
        places = [place for place in picked if place < rows.num_rows]
        outputs.update({numbers[place]: count for place, count in zip(places, copies, strict=False)})
        before = {n for n, _ in leaving(state)}
        state = state.after(rows, finished(rows, places, copies[: len(places)]), ordered=ordered)
        # What is recorded now leaves now in no execution.
        assert before.isdisjoint(numbers)
        blocked = set() if state.blocked is None else set(state.blocked.column(0).to_pylist())
        if not ordered:
            assert not blocked
            assert [n for n, _ in leaving(state)] == [
                numbers[place] for place, count in zip(places, copies, strict=False) for _ in range(count)
            ]
    assert state.is_empty
    assert encode(state, OUTPUT) is None
    assert Counter(n for n, _ in out) == Counter({n: count for n, count in outputs.items() if count})
    if ordered:
        for key in set(key_of.values()):
            of_key = [(n, copy) for n, copy in out if key_of[n] == key]
            assert of_key == sorted(of_key)


def test_a_finished_row_waits_for_those_of_its_key_in_front_of_it_and_for_no_others() -> None:
    state = BucketState()
    rows = come(state, [(1, 10), (1, 11), (2, 20), (1, 12)], 0)
    assert rows is not None
    state = committed(state.after(rows, finished(rows, [3, 2, 1]), ordered=True))
    assert leaving(state) == [(20, 0)]
    assert state.waiting is not None
    assert state.waiting.column(1).to_pylist() == [10]
    rows = come(state, [(1, 13)], 1)
    assert rows is not None
    state = committed(state.after(rows, finished(rows, [0]), ordered=True))
    assert leaving(state) == [(10, 0), (11, 0), (12, 0)]
    assert state.blocked is None


def test_the_outputs_of_a_row_keep_their_order_among_those_of_many_rows() -> None:
    rows = come(BucketState(), [(1, n) for n in range(4)], 0)
    assert rows is not None
    state = committed(BucketState().after(rows, finished(rows, [3, 1, 0, 2], [20] * 4), ordered=True))
    assert leaving(state) == [(n, copy) for n in range(4) for copy in range(20)]


@pytest.mark.contract(
    "A row of a stream has one identity in whichever order a replay reads the rows, and no other row has it.",
    convicts=["equal_rows_not_together"],
)
@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2)), max_size=12), st.randoms())
@example([(5, 1), (5, 2), (5, 1)], Random(0))
def test_rows_have_the_same_identities_in_whichever_order_a_replay_reads_them(rows: Any, random: Any) -> None:
    def of(some: Any, time: int = 7) -> list[bytes]:
        keys, numbers = (np.array([row[at] for row in some], np.int64) for at in (0, 1))
        made = identities(time, keys, digests_of_numbers(numbers))
        assert keys_of(made).tolist() == keys.tolist()
        return list(made.to_pylist())

    first = of(rows)
    assert len(set(first)) == len(rows)
    again = list(rows)
    random.shuffle(again)
    assert sorted(of(again)) == sorted(of(rows[::-1])) == sorted(first)
    assert set(of(rows, 8)).isdisjoint(first)


def test_identities_and_keys_of_a_part_of_the_rows_are_theirs() -> None:
    made = identities(1, np.array([5, -6, 7]), digests_of_numbers(np.array([1, 2, 3])))
    assert keys_of(made.slice(1)).tolist() == [-6, 7]


def test_a_ledger_knows_a_row_by_its_micro_batch_and_its_number_among_equal_ones() -> None:
    keys, digests = np.array([5, 5, 6]), digests_of_numbers(np.array([1, 1, 1]))
    first, again = (identities(time, keys, digests).to_pylist() for time in (1, 2))
    assert len({ledger_key(each, 3) for each in first}) == 3
    # A new checkpoint reads them at another time.
    assert [ledger_key(each, 3) for each in again] == [ledger_key(each, 3) for each in first]
    assert {ledger_key(each, 4) for each in first}.isdisjoint(ledger_key(each, 3) for each in first)
    # Where the number of the micro-batch is not known, the time tells rows apart.
    assert {ledger_key(each, -1) for each in again}.isdisjoint(ledger_key(each, -1) for each in first)


def test_an_empty_bucket_has_no_state() -> None:
    assert encode(BucketState(), OUTPUT) is None
    assert sound(None) == BucketState()


def test_kept_columns_stand_beside_each_output_of_their_row() -> None:
    rows = pa.RecordBatch.from_pydict({"k": [1, 2, 3], "n": [10, 20, 30]})
    outputs = pa.RecordBatch.from_pydict({"r": ["c", "a", "a2"]})
    known = Finished(np.array([2, 0]), outputs, np.array([1, 2]))
    assert known.beside(rows, ["n"]).outputs.to_pylist() == [
        {"n": 30, "r": "c"},
        {"n": 10, "r": "a"},
        {"n": 10, "r": "a2"},
    ]
    one_each = known._replace(outputs=outputs.slice(0, 2), counts=None)
    assert one_each.beside(rows, ["n", "k"]).outputs.to_pylist() == [
        {"n": 30, "k": 3, "r": "c"},
        {"n": 10, "k": 1, "r": "a"},
    ]
    assert known.beside(rows, []) is known
    none = Finished(np.zeros(0, np.int64), None, None)
    assert none.beside(rows, ["n"]).outputs is None


@pytest.mark.contract(convicts=["blocked_lost_without_order"])
def test_outputs_that_are_blocked_leave_where_order_is_not_asked_for_any_more() -> None:
    rows = come(BucketState(), [(7, 0), (7, 1)], 0)
    assert rows is not None
    state = committed(BucketState().after(rows, finished(rows, [1]), ordered=True))
    assert leaving(state) == []
    for places, left in ([], [1]), ([0], [0, 1]):
        rows = come(state, [], 1)
        assert rows is not None
        next_state = committed(state.after(rows, finished(rows, places), ordered=False))
        assert [n for n, _ in leaving(next_state)] == left
        assert next_state.blocked is None


@pytest.mark.contract(convicts=["sequence_falls_back"])
def test_rows_leave_behind_those_of_their_key_that_waited_through_a_micro_batch_without_input() -> None:
    state = BucketState()
    # The second to the fourth are blocked by the first, which alone goes through the second micro-batch.
    for time, new, places in (0, [0, 1, 2, 3], [1, 2, 3]), (1, [], []), (2, [4], [0, 1]):
        rows = come(state, [(7, n) for n in new], time)
        assert rows is not None
        state = committed(state.after(rows, finished(rows, places), ordered=True))
    assert [n for n, _ in leaving(state)] == [0, 1, 2, 3, 4]


@pytest.mark.contract("A column whose type has changed for another is refused by name.")
def test_a_row_that_waits_gets_the_columns_that_the_input_has_now() -> None:
    state = BucketState()
    rows = come(state, [(1, 1)], 0)
    assert rows is not None
    blob = encode(state.after(rows, finished(rows, []), ordered=False), OUTPUT)
    state = sound(blob, [("n", pa.string()), ("new", pa.float64())])
    assert state.waiting is not None
    assert state.waiting.to_pylist()[0].items() >= {"n": "1", "new": None}.items()
    assert state.waiting.schema.names[:2] == ["n", "new"]
    assert {IDENTITY, SEQUENCE} <= set(state.waiting.schema.names)
    with pytest.raises(StreamStateError, match=r"its column 'n' is int64, and the input has .* now"):
        decode(blob, [("n", pa.list_(pa.int8()))], OUTPUT)


def test_a_row_that_waits_with_a_value_that_the_column_cannot_hold_now_is_refused() -> None:
    rows = come(BucketState(), [(1, 300)], 0)
    assert rows is not None
    blob = encode(BucketState().after(rows, finished(rows, []), ordered=False), OUTPUT)
    (reason,) = reasons(blob, [("n", pa.int8())])
    assert reason.startswith("its column 'n' is int64, and the input has int8 now")


@pytest.mark.contract("A NOT NULL column that rows which wait do not have is refused with what to do.")
def test_a_row_that_waits_has_no_null_in_a_column_that_forbids_it() -> None:
    rows = come(BucketState(), [(1, 1)], 0)
    assert rows is not None
    blob = encode(BucketState().after(rows, finished(rows, []), ordered=False), OUTPUT)
    columns = [("n", pa.int64()), ("new", pa.float64())]
    assert sound(blob, columns, OUTPUT, ["n"]).waiting is not None
    remedy = (
        "let the query run to its end with the columns of before .*, or make it a column that may be null"
    )
    with pytest.raises(StreamStateError, match=rf"'new' .* is NOT NULL, .* do not have it: {remedy}"):
        decode(blob, columns, OUTPUT, ["n", "new"])
    again = sound(blob, columns)
    assert again.waiting is not None
    blob = encode(again.after(again.waiting, finished(again.waiting, []), ordered=False), OUTPUT)
    (reason,) = reasons(blob, columns, OUTPUT, ["new"])
    assert re.search(rf"'new' .* is NOT NULL, .* have null: {remedy}", reason)
    # No row waits that could have one.
    assert sound(None, columns, OUTPUT, ["new"]).waiting is None


def test_a_state_that_cannot_be_gone_on_from_is_refused_with_what_to_do() -> None:
    state = BucketState()
    rows = come(state, [(1, 1), (1, 2)], 0)
    assert rows is not None
    blob = encode(state.after(rows, finished(rows, [0]), ordered=False), OUTPUT)
    assert blob is not None
    with pytest.raises(StreamStateError, match=r"outputs with the columns struct<n.*availableNow"):
        decode(blob, COLUMNS, "struct<other:int>")
    # Those that wait behind a row of their key have the columns of before, too.
    blocked = encode(state.after(rows, finished(rows, [1]), ordered=True), OUTPUT)
    assert not sound(blocked).leaving
    with pytest.raises(StreamStateError, match=r"outputs with the columns struct<n.*availableNow"):
        decode(blocked, COLUMNS, "struct<other:int>")
    # Without outputs there are no columns that could differ.
    none = encode(state.after(rows, finished(rows, []), ordered=False), OUTPUT)
    assert sound(none, COLUMNS, "struct<other:int>").waiting is not None
    for damaged in (blob[: len(blob) // 2], b"x", b""):
        state, (bad,) = decode(damaged, COLUMNS, OUTPUT)
        assert state.is_empty
        assert bad.reason.startswith("it is damaged")
        assert (bad.raw, bad.row) == (damaged, None)


@pytest.mark.contract("State of a stream of a later version is refused with both versions.")
@pytest.mark.parametrize("version", [0, 3])
def test_state_of_another_version_is_refused_with_both_versions(version: int) -> None:
    metadata = {b"pillarbox.stream.version": str(version).encode()}
    other = to_ipc(rows_of([(1, 1)]).replace_schema_metadata(metadata))
    said = rf"version {version}, and this Pillarbox knows 1 and 2: .*availableNow"
    with pytest.raises(StreamStateError, match=said):
        decode(other, COLUMNS, OUTPUT)


@pytest.mark.contract(
    "Rows in the state of a stream of the version before are found again, in a ledger too.",
    convicts=["rows_of_before_not_found"],
)
def test_state_of_the_version_before_is_read_and_its_rows_keep_their_keys_in_a_ledger() -> None:
    # As it was written: an identity of time, hash of the key, hash of the row, and number among equal rows.
    given = [struct.pack(">qqqi", 7, key, hash, 1) for key, hash in ((5, -3), (6, 2**62))]
    rows = with_columns(
        rows_of([(5, 1), (6, 2)]),
        {
            IDENTITY: pa.array(given, pa.binary(28)),
            BATCH: pa.array([4, 4], pa.int64()),
            SEQUENCE: pa.array([10, 11], pa.int64()),
        },
    )
    blob = encode(BucketState(12, rows), OUTPUT)
    assert blob is not None
    with pa.ipc.open_stream(blob) as reader:
        table = reader.read_all()
    before = {**(table.schema.metadata or {}), b"pillarbox.stream.version": b"1"}
    (batch,) = table.replace_schema_metadata(before).to_batches()
    waiting = sound(to_ipc(batch)).waiting
    assert waiting is not None
    assert waiting.column(waiting.schema.get_field_index("n")).to_pylist() == [1, 2]
    found = waiting.column(waiting.schema.get_field_index(IDENTITY))
    assert keys_of(found).tolist() == [5, 6]
    assert [ledger_key(each, -1) for each in found.to_pylist()] == given
    shared = [(4).to_bytes(8, "big") + b"batch" + each[8:] for each in given]
    assert [ledger_key(each, 4) for each in found.to_pylist()] == shared


@pytest.mark.contract(convicts=["dead_letters_alone_forgotten"])
def test_dead_letters_leave_with_the_micro_batch_behind_that_which_has_recorded_them() -> None:
    state = BucketState()
    rows = come(state, [(1, 1)], 0)
    assert rows is not None
    known = finished(rows, [0], [0])._replace(dead_letters=rows_of([(1, 1)]))
    state = committed(state.after(rows, known, ordered=True))
    assert [batch.to_pylist() for blob in state.dead_letters for batch in from_ipc(blob)] == [
        [{"k": 1, "n": 1}]
    ]
    assert not state.is_empty
    assert state.after(None, None, ordered=True).is_empty


def test_outputs_leave_in_blobs_that_are_no_larger_than_spark_likes() -> None:
    state = BucketState()
    rows = come(state, [(1, n) for n in range(100)], 0)
    assert rows is not None
    known = finished(rows, range(100))
    state = committed(state.after(rows, known, ordered=False, max_output_bytes=160))
    assert len(state.leaving) == 10
    assert leaving(state) == [(n, 0) for n in range(100)]
