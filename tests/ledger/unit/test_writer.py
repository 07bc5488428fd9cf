"""A writer says that a result is durable when it is, commits in groups, and ends with its first failure."""

from __future__ import annotations

import dataclasses
import math
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from pillarbox.ledger import KeyMaker, Ledger, LedgerError, Scope
from pillarbox.ledger.errors import LedgerClosedError, LedgerConflictError, LedgerValueError
from pillarbox.ledger.format import VALUE
from pillarbox.ledger.keys import execution_id
from pillarbox.ledger.local_folder import SUFFIX, LocalFolder, LocalSegment
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.writer import Commit, CommitQueue, LedgerWriter, WriterLimits
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")
LONG = 600.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def values_in(ledger: Ledger, scope: Scope = SCOPE) -> dict[bytes, Any]:
    return {record.key: record.value for record in ledger.reader(scope).records()}


def segments_in(ledger: Ledger) -> list[str]:
    return [name for name, *_ in ledger.folder(SCOPE).segments()]


def test_what_was_acknowledged_is_in_the_ledger_with_what_was_said_about_it(ledger: Ledger) -> None:
    with ledger.writer(SCOPE) as writer:
        assert writer.append(key(1), {"a": (1, 2)}, attempts=3, latency=0.25, cost=1.5) == 1
        assert writer.append(key(2), {"type": "TimeoutError"}, is_error=True, attempts=2) == 2
        writer.flush(LONG)
        assert writer.durable_through == 2
        reader = ledger.reader(SCOPE)
        record = reader.get(key(1))
        assert record is not None
        assert (record.value, record.is_error, record.attempts) == ({"a": (1, 2)}, False, 3)
        assert (record.latency, record.cost) == (0.25, 1.5)
        failed = reader.get(key(2), errors=True)
        assert failed is not None and failed.is_error and failed.value == {"type": "TimeoutError"}
        assert reader.get(key(3)) is None


@pytest.mark.contract
def test_nothing_is_acknowledged_before_the_disk_has_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = threading.Event()
    begun = threading.Event()
    sync = LocalSegment.sync

    def slow(segment: LocalSegment) -> None:
        begun.set()
        assert let.wait(LONG)
        sync(segment)

    monkeypatch.setattr(LocalSegment, "sync", slow)
    commits: list[Commit] = []
    writer = Ledger(ledger.location, loss_window=0.01).writer(SCOPE, on_commit=commits.append)
    assert not writer.is_behind
    writer.append(key(1), 1)
    assert begun.wait(LONG)
    with pytest.raises(TimeoutError, match="1 results are not durable yet"):
        writer.flush(0.05)
    assert (writer.durable_through, commits, writer.is_behind) == (0, [], True)
    let.set()
    writer.flush(LONG)
    assert commits == [Commit(1, {})]
    assert not writer.is_behind
    writer.close()


@pytest.mark.contract(
    "Between the last byte of a commit and its acknowledgement its segment is synced.",
    convicts=["not_synced"],
)
def test_a_segment_is_synced_between_the_last_byte_of_a_commit_and_its_acknowledgement(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int]] = []
    fsync = os.fsync

    def size() -> int:
        (path,) = Path(ledger.folder(SCOPE).path).glob(f"*{SUFFIX}")
        return path.stat().st_size

    def synced(file: int) -> None:
        fsync(file)
        if stat.S_ISREG(os.fstat(file).st_mode):
            steps.append(("synced", os.fstat(file).st_size))

    monkeypatch.setattr(os, "fsync", synced)
    with ledger.writer(SCOPE, on_commit=lambda _: steps.append(("acknowledged", size()))) as writer:
        for number in range(3):
            writer.append(key(number), number)
            writer.flush(LONG)
    sizes = [size for step, size in steps if step == "acknowledged"]
    assert len(set(sizes)) == 3
    assert steps == [(step, size) for size in sizes for step in ("synced", "acknowledged")]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("limits", "values"),
    [({"commit_rows": 5}, ["x"] * 5), ({"commit_bytes": 1000}, ["x" * 1000]), ({"loss_window": 0.02}, ["x"])],
    ids=["rows", "bytes", "time"],
)
def test_a_commit_is_due_by_rows_by_bytes_and_by_time(
    ledger: Ledger, limits: dict[str, Any], values: list[str]
) -> None:
    durable = threading.Event()
    waiting = {"loss_window": 3600.0, **limits}
    with Ledger(ledger.location, **waiting).writer(SCOPE, on_commit=lambda _: durable.set()) as writer:
        for number, value in enumerate(values):
            writer.append(key(number), value)
        assert durable.wait(LONG)


def test_without_a_reason_a_commit_waits_for_others(ledger: Ledger) -> None:
    commits: list[Commit] = []
    writer = Ledger(ledger.location, loss_window=3600.0).writer(SCOPE, on_commit=commits.append)
    for number in range(20):
        writer.append(key(number), number)
    writer.close(LONG)
    assert commits == [Commit(20, {})]
    assert len(values_in(ledger)) == 20


def test_hurry_commits_what_waits_without_waiting_and_nothing_later(ledger: Ledger) -> None:
    commits: list[Commit] = []
    durable = threading.Semaphore(0)

    def commit(done: Commit) -> None:
        commits.append(done)
        durable.release()

    writer = Ledger(ledger.location, loss_window=3600.0).writer(SCOPE, on_commit=commit)
    writer.hurry()
    writer.append(key(1), 1)
    writer.append(key(2), 2)
    writer.hurry()
    writer.hurry()
    assert durable.acquire(timeout=LONG)
    # What comes later waits again.
    writer.append(key(3), 3)
    assert not durable.acquire(timeout=0.1)
    writer.hurry()
    assert durable.acquire(timeout=LONG)
    assert [done.through for done in commits] == [2, 3]
    writer.close(LONG)
    writer.hurry()


def test_a_hurry_during_a_commit_is_for_what_waits_then(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, let = threading.Semaphore(0), threading.Semaphore(0)
    sync = LocalSegment.sync

    def slow(segment: LocalSegment) -> None:
        begun.release()
        assert let.acquire(timeout=LONG)
        sync(segment)

    monkeypatch.setattr(LocalSegment, "sync", slow)
    commits: list[Commit] = []
    writer = Ledger(ledger.location, loss_window=3600.0).writer(SCOPE, on_commit=commits.append)
    writer.append(key(1), 1)
    writer.hurry()
    assert begun.acquire(timeout=LONG)
    writer.append(key(2), 2)
    writer.hurry()
    let.release()
    assert begun.acquire(timeout=LONG)
    writer.append(key(3), 3)
    let.release()
    assert not begun.acquire(timeout=0.1)
    assert [commit.through for commit in commits] == [1, 2]
    let.release()
    writer.close(LONG)
    assert [commit.through for commit in commits] == [1, 2, 3]


def test_a_large_backlog_becomes_many_frames(ledger: Ledger) -> None:
    with Ledger(ledger.location, loss_window=3600.0, commit_rows=2**20).writer(SCOPE) as writer:
        writer._commit_rows = 10**6  # not due by rows before all are there
        for number in range(100):
            writer.append(key(number), number)
        writer._commit_rows = 7
        writer._committer.most_rows = 7
        writer.flush(LONG)
    reader = ledger.reader(SCOPE)
    assert max(rows.count for rows, _ in reader.frames()) == 7
    assert values_in(ledger) == {key(number): number for number in range(100)}


def test_an_attempt_that_has_nothing_to_keep_leaves_no_segment(ledger: Ledger) -> None:
    ledger.writer(SCOPE).close()
    assert segments_in(ledger) == []


@pytest.mark.contract
def test_of_two_writers_the_first_one_s_result_is_that_of_both(ledger: Ledger) -> None:
    commits: list[Commit] = []
    one, other = ledger.writer(SCOPE), ledger.writer(SCOPE, on_commit=commits.append)
    one.append(key(1), "first")
    one.flush(LONG)
    other.append(key(2), "mine")
    other.append(key(1), "second")
    other.flush(LONG)
    through, adopted = (
        commits[-1].through,
        {n: r.value for commit in commits for n, r in commit.adopted.items()},
    )
    assert (through, adopted) == (2, {2: "first"})
    assert values_in(ledger) == {key(1): "first", key(2): "mine"}
    assert len(ledger.reader(SCOPE)) == 2
    one.close()
    other.close()


@pytest.fixture
def prepared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first commits of two writers ask for the lock when both are prepared."""
    both = threading.Barrier(2)
    met: set[int] = set()
    lock = LocalFolder.lock

    def together(folder: LocalFolder, timeout: float) -> Any:
        thread = threading.get_ident()
        if thread != threading.main_thread().ident and thread not in met:
            met.add(thread)
            both.wait()
        return lock(folder, timeout)

    monkeypatch.setattr(LocalFolder, "lock", together)


@pytest.mark.contract(convicts=["news_of_others_missed"])
@pytest.mark.usefixtures("prepared_at_once")
def test_of_two_writers_with_one_key_in_prepared_commits_the_first_one_s_result_is_that_of_both(
    ledger: Ledger,
) -> None:
    adopted: list[Any] = []

    def note(commit: Commit) -> None:
        adopted.extend(record.value for record in commit.adopted.values())

    writers = {text: ledger.writer(SCOPE, on_commit=note) for text in ("one", "other")}
    for text, writer in writers.items():
        writer.append(key(1), text)
    for writer in writers.values():
        writer.flush(LONG)
        writer.close()
    assert len(adopted) == 1
    assert values_in(ledger) == {key(1): adopted[0]}


@pytest.mark.contract(convicts=["news_of_others_missed"])
@pytest.mark.usefixtures("prepared_at_once")
def test_of_two_writers_with_one_key_and_two_inputs_in_prepared_commits_one_ends(ledger: Ledger) -> None:
    same = execution_id("action")
    writers = {input: ledger.writer(SCOPE, execution=same) for input in (b"one", b"other")}
    for input, writer in writers.items():
        writer.append(key(1), input.decode(), input=input)
    ended = 0
    for writer in writers.values():
        try:
            writer.flush(LONG)
            writer.close()
        except LedgerConflictError:
            ended += 1
    assert ended == 1
    assert len(values_in(ledger)) == 1


def append_vectors(writer: LedgerWriter, numbers: list[int], matrix: Any, input: bytes = b"") -> int:
    ones = [1] * len(numbers)
    keys, inputs = [key(number) for number in numbers], [input] * len(numbers)
    return writer.append_vectors(
        keys, matrix, in_tuple=False, inputs=inputs, attempts=ones, latency=0.5, costs=[0.0] * len(numbers)
    )


@pytest.mark.contract
def test_of_two_writers_of_blocks_the_first_one_s_rows_are_those_of_both(ledger: Ledger) -> None:
    numpy = pytest.importorskip("numpy")
    commits: list[Commit] = []
    with ledger.writer(SCOPE) as one, ledger.writer(SCOPE, on_commit=commits.append) as other:
        assert append_vectors(one, [3, 4], numpy.zeros((2, 5), "f4")) == 2
        one.flush(LONG)
        assert other.append(key(0), "before") == 1
        assert append_vectors(other, [1, 2, 3, 4, 5], numpy.ones((5, 5), "f4")) == 6
        other.flush(LONG)
        assert other.append(key(6), "behind") == 7
    adopted = {number: record.value.tolist() for each in commits for number, record in each.adopted.items()}
    assert adopted == {4: [0.0] * 5, 5: [0.0] * 5} and commits[-1].through == 7
    found = values_in(ledger)
    assert (found.pop(key(0)), found.pop(key(6))) == ("before", "behind")
    assert {each: value.tolist() for each, value in found.items()} == {
        key(number): [float(number not in (3, 4))] * 5 for number in range(1, 6)
    }


@pytest.mark.contract
def test_a_block_with_another_input_under_a_key_of_its_execution_ends_the_writer(ledger: Ledger) -> None:
    numpy = pytest.importorskip("numpy")
    writer = ledger.writer(SCOPE)
    append_vectors(writer, [1, 2], numpy.zeros((2, 5)), b"one")
    writer.flush(LONG)
    append_vectors(writer, [3, 2], numpy.zeros((2, 5)), b"two")
    for end in (writer.flush, writer.close):
        with pytest.raises(LedgerConflictError):
            end(LONG)
    assert values_in(ledger).keys() == {key(1), key(2)}


def test_a_commit_counts_the_rows_of_blocks(ledger: Ledger) -> None:
    numpy = pytest.importorskip("numpy")
    slow = dataclasses.replace(ledger, loss_window=LONG, commit_rows=6)
    commits: list[int] = []
    done = threading.Event()

    def note(commit: Commit) -> None:
        commits.append(commit.through)
        done.set()

    with slow.writer(SCOPE, on_commit=note) as writer:
        append_vectors(writer, [1, 2, 3], numpy.zeros((3, 5)))
        assert writer.durable_through == 0
        append_vectors(writer, [4, 5, 6], numpy.zeros((3, 5)))
        assert done.wait(LONG) and commits == [6]


def test_a_key_that_comes_twice_keeps_its_first_result_in_one_commit_and_across_two(ledger: Ledger) -> None:
    commits: list[Commit] = []
    with Ledger(ledger.location, loss_window=3600.0).writer(SCOPE, on_commit=commits.append) as writer:
        writer.append(key(1), "first")
        writer.append(key(1), "second")
        writer.flush(LONG)
        writer.append(key(1), "third")
    adopted = {number: record.value for commit in commits for number, record in commit.adopted.items()}
    assert adopted == {2: "first", 3: "first"}
    assert len(ledger.reader(SCOPE)) == 1


@pytest.mark.contract
def test_what_another_has_written_is_made_durable_before_it_is_given_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = LocalFolder.sync

    def watched(folder: LocalFolder, name: str) -> None:
        synced.append(name)
        sync(folder, name)

    monkeypatch.setattr(LocalFolder, "sync", watched)
    writer = ledger.writer(SCOPE)
    writer.append(key(1), 1)
    writer.flush(LONG)
    reader = ledger.reader(SCOPE)
    assert synced == []
    assert reader.get(key(1)) is not None
    assert synced == segments_in(ledger)
    reader.get(key(1))
    assert len(synced) == 1
    writer.append(key(2), 2)
    writer.flush(LONG)
    reader.refresh()
    assert reader.get(key(2)) is not None
    assert len(synced) == 2
    writer.close()


@pytest.mark.parametrize("retry_errors", [True, False])
def test_a_row_that_failed_is_called_again_or_not_as_asked(ledger: Ledger, retry_errors: bool) -> None:
    ledger = Ledger(ledger.location, retry_errors=retry_errors)
    with ledger.writer(SCOPE) as writer:
        writer.append(key(1), {"type": "first"}, is_error=True)
    assert (ledger.reader(SCOPE).get(key(1)) is None) == retry_errors
    commits: list[Commit] = []
    with ledger.writer(SCOPE, on_commit=commits.append) as writer:
        writer.append(key(1), {"type": "second"}, is_error=True)
        writer.flush(LONG)
        found = ledger.reader(SCOPE).get(key(1), errors=True)
        assert found is not None and found.value == {"type": "second" if retry_errors else "first"}
        writer.append(key(1), "result")
    assert [bool(commit.adopted) for commit in commits] == [not retry_errors] * 2
    found = ledger.reader(SCOPE).get(key(1), errors=True)
    assert found is not None and found.is_error != retry_errors


@pytest.mark.parametrize("retry_errors", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_a_late_answer_counts_before_its_error_and_never_instead_of_a_value(
    ledger: Ledger, retry_errors: bool, flushed: bool
) -> None:
    # The first answer of 1 came after its time-out, that of 2 after another attempt's value.
    ledger = Ledger(ledger.location, loss_window=3600.0, retry_errors=retry_errors)
    with ledger.writer(SCOPE) as writer:
        writer.append(key(1), {"type": "CallTimeout"}, is_error=True)
        writer.append(key(2), "first")
        if flushed:
            writer.flush(LONG)
        writer.append(key(1), "late")
        writer.append(key(2), "late")
        if flushed:
            writer.flush(LONG)
        writer.append(key(1), "later")
        writer.append(key(2), {"type": "later"}, is_error=True)
    reader = ledger.reader(SCOPE)
    found = {number: reader.get(key(number), errors=True) for number in (1, 2)}
    assert found[2] is not None and found[2].value == "first"
    # Who takes errors for results has given the error out by then.
    assert found[1] is not None and found[1].value == ("late" if retry_errors else {"type": "CallTimeout"})
    assert len(reader) == (3 if retry_errors else 2)


def test_a_result_too_large_for_arrow_is_refused_when_it_is_kept(ledger: Ledger) -> None:
    with ledger.writer(SCOPE, limits=WriterLimits(max_result_bytes=1000)) as writer:
        for large in ("x" * 1000, b"x" * 1000, [0.5] * 125):
            with pytest.raises(LedgerValueError, match="bytes cannot be kept.*: 1,000 are allowed"):
                writer.append(key(1), large)
        writer.append(key(1), "x" * 900)
    assert values_in(ledger) == {key(1): "x" * 900}


def test_a_value_that_cannot_be_kept_is_refused_and_the_writer_goes_on(ledger: Ledger) -> None:
    with ledger.writer(SCOPE) as writer:
        with pytest.raises(LedgerValueError, match="cannot be kept"):
            writer.append(key(1), object())
        assert writer.append(key(2), 2) == 1
    assert values_in(ledger) == {key(2): 2}


def put(writer: LedgerWriter, *values: Any) -> None:
    """Have the writer's thread make the kept forms of values, whose keys are their places."""
    with writer.queue.lock:
        place = writer.queue.appended + len(writer.queue.answers)
        for number, value in enumerate(values, place):
            writer.queue.answers.append((key(number), VALUE, value, 1, 0.0, 0.0, 0, b""))
    writer.expect()


@pytest.mark.contract(
    "An answer that cannot be kept ends the writer; the others are kept, and those before acknowledged.",
    convicts=["refused_answer_acknowledged"],
)
@pytest.mark.parametrize("bad", [object(), "x" * 1001], ids=["of no form", "too large"])
def test_an_answer_that_cannot_be_kept_ends_the_writer_and_the_others_are_kept(
    ledger: Ledger, bad: object
) -> None:
    commits: list[Commit] = []
    said: list[BaseException] = []
    limits = WriterLimits(max_result_bytes=1000)
    ledger = Ledger(ledger.location, loss_window=3600.0)
    writer = ledger.writer(SCOPE, on_commit=commits.append, on_failure=said.append, limits=limits)
    put(writer, "before", bad, "behind", bad)
    writer.hurry()
    failing(writer)
    assert values_in(ledger) == {key(0): "before", key(2): "behind"}
    assert commits == [Commit(1, {})]
    assert len(said) == 1 and isinstance(said[0], LedgerValueError) and "cannot be kept" in str(said[0])
    with pytest.raises(LedgerClosedError, match="cannot be kept"):
        put(writer, "more")


@pytest.mark.contract(
    "A commit is due half a loss window after an answer came, whether or not anybody hands it over.",
    convicts=["answers_wait_for_the_loop"],
)
def test_a_commit_is_due_by_the_time_of_answers_that_nobody_hands_over() -> None:
    queue = CommitQueue(1.0, 10, 1000)
    assert queue.due(5.0) is None
    queue.answers.append((key(1), VALUE, "x", 1, 0.0, 0.0, 0, b""))
    assert (queue.due(5.0), queue.due(5.2), queue.behind_from) == (5.5, 5.5, 6.0)
    first, entries = queue.take()
    assert (first, len(entries), queue.due(5.6), queue.behind_from) == (1, 1, None, 6.0)
    queue.committed()
    assert queue.behind_from == math.inf


def test_answers_have_their_numbers_among_what_is_appended(ledger: Ledger) -> None:
    with Ledger(ledger.location, loss_window=3600.0).writer(SCOPE) as writer:
        put(writer, "0", "1")
        assert writer.append(key(2), "2") == 3
        put(writer, "3")
        writer.flush(LONG)
        assert writer.durable_through == 4
    assert values_in(ledger) == {key(number): str(number) for number in range(4)}


@pytest.mark.contract(
    "A commit is due by the bytes of answers too, as those of the one before have taken.",
    convicts=["bytes_of_answers_unknown"],
)
def test_a_commit_is_due_by_the_bytes_that_answers_took_before(ledger: Ledger) -> None:
    with Ledger(ledger.location, loss_window=3600.0, commit_rows=50, commit_bytes=1000).writer(
        SCOPE
    ) as writer:
        assert writer.queue.answers_of_commit == 50
        put(writer, *["x" * 98] * 5)
        writer.flush(LONG)
        assert writer.queue.answers_of_commit == 10
        put(writer, *["x"] * 5)
        writer.flush(LONG)
        assert writer.queue.answers_of_commit == 50
        put(writer, "x" * 999)
        writer.flush(LONG)
        assert writer.queue.answers_of_commit == 1


@pytest.mark.parametrize("bad", ["0" * 16, b"short", 5, bytearray(16)])
def test_a_key_is_16_bytes(ledger: Ledger, bad: Any) -> None:
    with ledger.writer(SCOPE) as writer, pytest.raises(ValueError, match="key=.*: must be 16 bytes"):
        writer.append(bad, 1)


def test_a_closed_writer_takes_nothing_and_closes_again(ledger: Ledger) -> None:
    writer = ledger.writer(SCOPE)
    writer.close(LONG)
    writer.close(LONG)
    with pytest.raises(LedgerClosedError, match="closed"):
        writer.append(key(1), 1)
    assert "pillarbox-ledger" not in {
        thread.name for thread in threading.enumerate() if thread is writer._thread
    }


def failing(writer: LedgerWriter) -> None:
    """Wait for the writer's end."""
    writer._thread.join(LONG)
    assert not writer._thread.is_alive()


@pytest.mark.contract
def test_the_first_failure_ends_the_writer_and_is_told_to_everybody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[BaseException] = []
    writer = ledger.writer(SCOPE, on_failure=said.append)
    writer.append(key(1), 1)
    writer.flush(LONG)
    calls = []

    def broken(segment: LocalSegment) -> None:
        calls.append(1)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LocalSegment, "sync", broken)
    writer.append(key(2), 2)
    with pytest.raises(OSError, match="Input/output error"):
        writer.flush(LONG)
    failing(writer)
    assert [str(error) for error in said] == ["[Errno 5] Input/output error"]
    assert writer.failure is said[0]
    with pytest.raises(LedgerClosedError, match="has failed: .*Input/output error"):
        writer.append(key(3), 3)
    with pytest.raises(OSError, match="Input/output error"):
        writer.close()
    # Tried again, fsync might succeed without having the data.
    assert (len(calls), writer.durable_through) == (1, 1)


def test_a_callback_that_raises_ends_the_writer(ledger: Ledger) -> None:
    def broken(commit: Commit) -> None:
        raise RuntimeError("no")

    writer = ledger.writer(SCOPE, on_commit=broken)
    writer.append(key(1), 1)
    failing(writer)
    assert isinstance(writer.failure, RuntimeError)


def test_a_writer_whose_scope_has_expired_fails_and_makes_nothing_anew(ledger: Ledger) -> None:
    writer = ledger.writer(SCOPE)
    writer.append(key(1), 1)
    writer.flush(LONG)
    expire(ledger, SCOPE)
    writer.append(key(2), 2)
    with pytest.raises(LedgerError, match="has expired"):
        writer.flush(LONG)
    failing(writer)
    assert segments_in(ledger) == []


def test_a_stopped_process_that_holds_the_lock_is_named_after_a_time(ledger: Ledger) -> None:
    writer = ledger.writer(SCOPE, limits=WriterLimits(lock_timeout=0.05))
    with LocalFolder(ledger.folder(SCOPE).path).lock(LONG):
        writer.append(key(1), 1)
        with pytest.raises(LedgerError, match=r"another process has held .*\.lock for 0.05 s: is it stopped"):
            writer.flush(LONG)
    failing(writer)


def test_a_reader_sees_what_is_written_later_when_it_refreshes(ledger: Ledger) -> None:
    reader = ledger.reader(SCOPE)
    with ledger.writer(SCOPE) as writer:
        for number in range(5):
            writer.append(key(number), number)
            writer.flush(LONG)
            assert key(number) not in reader
            reader.refresh()
            assert key(number) in reader
    assert reader.damage == []


def test_keys_made_by_a_key_maker_are_found_again_by_another(ledger: Ledger) -> None:
    rows = [{"text": "a"}, {"text": "b"}, {"text": "a"}]
    with ledger.writer(SCOPE) as writer:
        make = KeyMaker()
        for number, row in enumerate(rows):
            writer.append(make(row), number)
    make, reader = KeyMaker(), ledger.reader(SCOPE)
    assert [reader.get(make(row)).value for row in rows] == [0, 1, 2]  # type: ignore[union-attr]
    assert os.listdir(ledger.folder(SCOPE).path)
