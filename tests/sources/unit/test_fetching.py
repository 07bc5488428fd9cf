"""A reader with fetchers: every row once and in order, orders while it fetches, bounds, failures, the end."""

from __future__ import annotations

import logging
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pillarbox.kernel import WrongThreadError
from pillarbox.sources import Fetched, Split, SplitReader
from pillarbox.sources.fetching import FetchingReader, ReadFailed, Threading
from pillarbox.sources.reader import ReaderContext, SplitsAdded
from tests.sources.unit.number_source import (
    LONG,
    Plain,
    Range,
    Script,
    by_split,
    expected,
    next_batch,
    ranges,
)

ONE, MANY, EACH = Threading
ALL = pytest.mark.parametrize("model", list(Threading), ids=lambda model: model.name.lower())


@contextmanager
def reading(script: Script, model: Threading, **options: Any) -> Iterator[FetchingReader[Range]]:
    reader: FetchingReader[Range] = FetchingReader(
        ReaderContext(subtask=7), script.make, threading=model, **options
    )
    reader.start()
    try:
        yield reader
    finally:
        script.release()
        reader.close()
    assert [thread.name for thread in threading.enumerate() if "pillarbox-fetch-7" in thread.name] == []
    assert script.after_close == 0
    assert all(each.closed for each in script.readers)


def read_while(reader: FetchingReader[Range], condition: Callable[[], bool]) -> list[Any]:
    rows: list[Any] = []
    while condition():
        rows.extend(next_batch(reader).records)
    return rows


def read_to_end(reader: FetchingReader[Range]) -> list[Any]:
    return read_while(reader, lambda: bool(reader.splits()))


@pytest.mark.contract
@ALL
def test_each_row_comes_once_and_in_the_order_of_its_split(model: Threading) -> None:
    splits = [*ranges(5, 95), Range("none", 4, 4), Range("exact", 0, 20)]
    with reading(Script(), model) as reader:
        reader.add_splits(splits)
        rows = read_to_end(reader)
        assert reader.poll() is None
    assert by_split(rows) | {"none": []} == expected(splits)


@ALL
def test_a_split_stands_where_the_rows_end_that_poll_has_given(model: Threading) -> None:
    with reading(Script(), model) as reader:
        reader.add_splits(ranges(3, 40))
        out = {f"s{number}": 0 for number in range(3)}
        while reader.splits():
            fetched = next_batch(reader)
            out[fetched.split_id] += len(fetched.records)
            assert {split.split_id: split.start for split in reader.splits()} == {
                split_id: rows for split_id, rows in out.items() if rows < 40
            }


def test_one_at_a_time_gives_the_next_split_when_the_one_before_is_finished() -> None:
    script = Script()
    with reading(script, ONE) as reader:
        reader.add_splits(ranges(3, 25))
        read_to_end(reader)
        assert script.told("added") == [("s0",), ("s1",), ("s2",)]
        assert script.told("fetch") == [("s0",)] * 3 + [("s1",)] * 3 + [("s2",)] * 3
        assert script.threads == {"pillarbox-fetch-7-0"}
        assert len(script.readers) == 1


def test_many_splits_share_one_client_and_one_thread() -> None:
    script = Script()
    with reading(script, MANY) as reader:
        reader.add_splits(ranges(3, 25))
        read_to_end(reader)
        assert script.told("added") == [("s0", "s1", "s2")]
        assert script.threads == {"pillarbox-fetch-7-0"}
        assert len(script.readers) == 1


def test_a_thread_for_each_split_has_a_client_of_its_own_and_ends_with_its_split() -> None:
    script = Script()
    with reading(script, EACH) as reader:
        reader.add_splits([Range("short", 0, 5), Range("long")])
        while not any(next_batch(reader).finished for _ in range(1)):
            continue
        script.wait_for(lambda: len(script.told("closed")) == 1)
        assert script.threads == {"pillarbox-fetch-7-0", "pillarbox-fetch-7-1"}
        assert [each.closed for each in script.readers] in ([True, False], [False, True])


@ALL
def test_a_split_that_comes_while_a_fetch_blocks_is_taken_up_at_once(model: Threading) -> None:
    script = Script()
    script.block()
    with reading(script, model) as reader:
        reader.add_splits([Range("first", 0, 5)])
        script.wait_for(lambda: script.in_fetch > 0)
        reader.add_splits([Range("second", 0, 5)])
        if model is MANY:
            script.wait_for(lambda: ("first", "second") in script.told("fetch"))
        script.release()
        assert by_split(read_to_end(reader)) == {"first": [*range(5)], "second": [*range(5)]}


@pytest.mark.contract
@ALL
def test_nothing_is_fetched_ahead_beyond_the_bound(model: Threading) -> None:
    script = Script(batch=1)
    with reading(script, model, max_batches=2) as reader:
        reader.add_splits([Range("s", 0, 100)])
        # Two wait, and one is in the hand of the fetcher.
        script.wait_for(lambda: len(script.told("fetch")) == 3)
        for taken in range(1, 5):
            next_batch(reader)
            script.wait_for(lambda fetches=3 + taken: len(script.told("fetch")) == fetches)  # type: ignore[misc]


@pytest.mark.contract
def test_bytes_bound_what_is_fetched_ahead() -> None:
    script = Script(batch=1000)
    with reading(script, ONE, max_batches=100, max_bytes=1) as reader:
        reader.add_splits([Range("s", 0, 100_000)])
        next_batch(reader)
        script.wait_for(lambda: len(script.told("fetch")) >= 2)
        next_batch(reader)
        assert len(script.told("fetch")) <= 4


@pytest.mark.contract
@ALL
def test_a_paused_split_gives_nothing_and_goes_on_without_a_gap(model: Threading) -> None:
    script = Script()
    with reading(script, model) as reader:
        splits = [Range("ahead", 0, 300), Range("behind", 0, 300)]
        reader.add_splits(splits)
        rows = read_while(reader, lambda: reader.splits() == splits)
        ahead = rows[0][0]
        (other,) = {"ahead", "behind"} - {ahead}
        reader.pause_or_resume_splits([ahead, "never there"], [])
        if model is ONE:
            # The other one waits behind it.
            assert reader.poll() is None
        else:
            rest = read_while(reader, lambda: other in {split.split_id for split in reader.splits()})
            assert by_split(rest) == {other: [*range(300)]}
        script.wait_for(lambda: reader.poll() is None and script.in_fetch == 0)
        future = reader.available()
        assert future is None or not future.done()
        reader.pause_or_resume_splits([], [ahead])
        assert future is None or future.done()
        rows += read_to_end(reader)
        assert by_split(rows)[ahead] == [*range(300)]


def until_begun(script: Script, fetches: int) -> None:
    """Until so many fetches have begun."""
    script.wait_for(lambda: len(script.told("fetch")) >= fetches)


def test_what_was_fetched_of_a_paused_split_stays_bounded_however_often_it_goes_on() -> None:
    script = Script()
    with reading(script, MANY, max_batches=2) as reader:
        reader.add_splits([Range("s"), Range("t")])
        for _ in range(20):
            script.block()
            waits = False
            while reader.poll() is not None or not waits:
                with script.changed:
                    waits = script.in_fetch == 1
            (fetcher,) = reader._fetchers
            # Two in the hand-over, one in the fetcher's hand, one in the fetch that had begun.
            assert len(fetcher._aside) <= 4
            begun = len(script.told("fetch"))
            reader.pause_or_resume_splits([], ["s"])
            until_begun(script, begun + 1)
            script.release()
            until_begun(script, begun + 2)
            while next_batch(reader).split_id != "s":
                pass
            reader.pause_or_resume_splits(["s"], [])


def test_all_splits_paused_means_that_nothing_is_fetched() -> None:
    script = Script()
    script.block()
    with reading(script, MANY) as reader:
        reader.add_splits(ranges(2, 10))
        script.wait_for(lambda: script.in_fetch > 0)
        reader.pause_or_resume_splits(["s0", "s1"], [])
        script.wait_for(lambda: script.told("paused") == [(("s0", "s1"), ())])
        script.release()
        fetches = len(script.told("fetch"))
        reader.pause_or_resume_splits([], ["s0"])
        script.wait_for(lambda: (((), ("s0",))) in script.told("paused"))
        next_batch(reader)
        before = script.calls[: script.calls.index(("paused", ((), ("s0",))))]
        assert before.count(("fetch", ("s0", "s1"))) == fetches


def test_a_client_that_cannot_pause_splits_is_named() -> None:
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(), Plain, threading=MANY)
    reader.start()
    try:
        reader.add_splits(ranges(2, 10))
        reader.pause_or_resume_splits(["s0"], [])
        with pytest.raises(ReadFailed, match="Plain cannot pause splits"):
            read_to_end(reader)
    finally:
        reader.close()


@pytest.mark.contract
@ALL
def test_a_failure_comes_after_the_rows_before_it_and_names_the_split(model: Threading) -> None:
    script = Script()
    script.fail_at["s0"] = 25
    with reading(script, model) as reader:
        reader.add_splits([Range("s0", 0, 100)])
        rows: list[Any] = []
        rows += next_batch(reader).records + next_batch(reader).records  # type: ignore[operator]
        with pytest.raises(ReadFailed, match=r"reading split 's0' failed: OSError: s0 cannot") as caught:
            next_batch(reader)
        assert len(rows) == 20
        assert reader.splits() == [Range("s0", 20, 100)]
        assert isinstance(caught.value.__cause__, OSError)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert str(copy) == str(caught.value) and copy.split_ids == ("s0",)
        # It does not go away.
        with pytest.raises(ReadFailed):
            next_batch(reader)
        script.wait_for(lambda: script.told("closed") == [None])


def test_an_error_names_a_few_splits_only() -> None:
    error = ReadFailed([f"s{number}" for number in range(1000)], "OSError: no")
    assert str(error) == "reading splits 's0', 's1', 's2', 's3', 's4' and 995 more failed: OSError: no"
    assert "no split at hand" in str(ReadFailed([], "OSError: no"))


@ALL
def test_a_client_that_cannot_be_made_ends_the_task(model: Threading) -> None:
    def make() -> SplitReader[Range]:
        raise ConnectionError("no such host")

    reader: FetchingReader[Range] = FetchingReader(ReaderContext(), make, threading=model)
    reader.start()
    try:
        reader.add_splits(ranges(1, 10))
        with pytest.raises(ReadFailed, match="ConnectionError: no such host"):
            next_batch(reader)
    finally:
        reader.close()


@pytest.mark.contract
def test_a_failure_of_a_reader_shows_no_key() -> None:
    def make() -> SplitReader[Range]:
        try:
            raise OSError("no way to https://me:hunter2@host/v1")
        except OSError as error:
            raise ConnectionError("GET https://host/v1?key=hunter2 failed") from error

    reader: FetchingReader[Range] = FetchingReader(ReaderContext(), make, threading=ONE)
    reader.start()
    try:
        reader.add_splits(ranges(1, 10))
        with pytest.raises(ReadFailed) as caught:
            next_batch(reader)
    finally:
        reader.close()
    printed = "".join(traceback.format_exception(caught.value))
    assert "ConnectionError: GET https://host/v1?*** failed" in printed
    assert "OSError: no way to https://***@host/v1" in printed
    # This file's own lines of code stand in the traceback.
    assert "hunter2" not in "".join(line for line in printed.split("\n") if not line.startswith("    "))


@pytest.mark.parametrize("split_id", ["s0", "unknown"])
def test_rows_of_a_split_that_is_finished_or_unknown_are_an_error(split_id: str) -> None:
    class Late(SplitReader[Range]):
        def fetch(self) -> list[Fetched]:
            return [Fetched("s0", [1], None, finished=True), Fetched(split_id, [2], 2)]

        def handle_splits_changes(self, change: SplitsAdded[Range]) -> None:
            pass

    reader: FetchingReader[Range] = FetchingReader(ReaderContext(), Late, threading=MANY)
    reader.start()
    try:
        reader.add_splits(ranges(2, 10))
        with pytest.raises(
            ReadFailed, match=f"Late.fetch returned rows of split '{split_id}', which it does not have"
        ):
            next_batch(reader)
    finally:
        reader.close()


@pytest.mark.contract
@ALL
def test_close_wakes_a_fetch_that_blocks_and_leaves_no_thread(model: Threading) -> None:
    script = Script()
    script.block()
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(8), script.make, threading=model, grace=LONG)
    reader.start()
    reader.add_splits(ranges(3, 10))
    script.wait_for(lambda: script.in_fetch == (3 if model is EACH else 1))
    reader.close()
    reader.close()
    assert [thread for thread in threading.enumerate() if "pillarbox-fetch-8" in thread.name] == []
    assert all(each.closed for each in script.readers)
    calls: list[Callable[[], Any]] = [
        reader.poll,
        reader.available,
        lambda: reader.add_splits(ranges(1, 10)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="the reader is closed"):
            call()


@ALL
def test_close_ends_a_fetcher_that_waits_for_room(model: Threading) -> None:
    script = Script(batch=1)
    with reading(script, model, max_batches=1, grace=LONG) as reader:
        reader.add_splits([Range("s")])
        script.wait_for(lambda: len(script.told("fetch")) == 2)


def test_a_fetch_that_does_not_heed_its_wake_up_is_abandoned(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    script.deaf = True
    script.block()
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(9), script.make, grace=0.01)
    reader.start()
    reader.add_splits(ranges(1, 10))
    script.wait_for(lambda: script.in_fetch == 1)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        reader.close()
    assert "pillarbox-fetch-9-0 has not ended within 0.01 s" in caplog.text
    script.release()
    (thread,) = [each for each in threading.enumerate() if each.name == "pillarbox-fetch-9-0"]
    thread.join(LONG)
    assert not thread.is_alive()


def test_the_future_is_done_when_there_is_something_to_poll() -> None:
    script = Script()
    script.block()
    with reading(script, ONE) as reader:
        nothing = reader.available()
        assert nothing is not None and not nothing.done()
        assert reader.available() is nothing
        reader.add_splits(ranges(1, 10))
        assert nothing.done()
        script.wait_for(lambda: script.in_fetch == 1)
        rows = reader.available()
        assert rows is not None and not rows.done()
        script.release()
        rows.result(timeout=LONG)
        assert reader.available() is None
        assert reader.poll() is not None


def test_it_is_confined_to_the_thread_that_started_it() -> None:
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(), Script().make)
    with pytest.raises(RuntimeError, match="was not started"):
        reader.poll()
    thread = threading.Thread(target=reader.start, name="starter")
    thread.start()
    thread.join()
    calls: list[Callable[[], Any]] = [
        reader.poll,
        reader.available,
        reader.splits,
        lambda: reader.add_splits([]),
        lambda: reader.pause_or_resume_splits([], []),
    ]
    for call in calls:
        with pytest.raises(WrongThreadError):
            call()


def test_a_split_that_it_has_is_refused_and_nothing_has_changed() -> None:
    with reading(Script(), ONE) as reader:
        reader.add_splits([Range("s")])
        with pytest.raises(ValueError, match="split 's': the reader has it already"):
            reader.add_splits([Range("t"), Range("s")])
        with pytest.raises(ValueError, match="split 't': the reader has it already"):
            reader.add_splits([Range("t"), Range("t")])
        assert [split.split_id for split in reader.splits()] == ["s"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"threading": "many"}, TypeError, "threading='many': must be one of"),
        ({"max_batches": 0}, ValueError, "max_batches=0: must be at least 1"),
        ({"max_batches": None}, TypeError, "max_batches=None: must be an int"),
        ({"max_bytes": 0}, ValueError, "max_bytes=0"),
        ({"max_bytes": 1.5}, TypeError, "max_bytes=1.5: must be an int, not float"),
        ({"grace": -1}, ValueError, "grace=-1"),
    ],
)
def test_a_bad_argument_is_named(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        FetchingReader(ReaderContext(), Script().make, **options)
    with pytest.raises(TypeError, match="make_split_reader=None"):
        FetchingReader(ReaderContext(), None)  # type: ignore[arg-type]


def test_a_wake_up_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    script.block()
    with reading(script, ONE) as reader:
        reader.add_splits([Range("s", 0, 10)])
        script.wait_for(lambda: script.in_fetch == 1)

        def broken() -> None:
            raise OSError("broken pipe")

        script.readers[0].wake_up = broken  # type: ignore[method-assign]
        reader.add_splits([Split("t", 0, 10)])  # type: ignore[list-item]
        assert "the wake_up of the reader of pillarbox-fetch-7-0 raised" in caplog.text
        script.release()
        read_to_end(reader)
