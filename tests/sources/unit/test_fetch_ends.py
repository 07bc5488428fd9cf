"""Ends of fetchers: failures are told at once, close comes from anywhere, nothing is kept of what was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Any

import pytest

from pillarbox.kernel import Handover
from pillarbox.sources import Fetched, FetchingReader, SourceInput, SplitReader, WatermarkStrategy
from pillarbox.sources.fetching import ReadFailed, Threading
from pillarbox.sources.reader import Doorbell, ReaderContext, SourceReader, SplitsChange
from tests.sources.unit.linked import Batches, Link, Running, With
from tests.sources.unit.number_source import LONG, NumbersReader, Plain, Range, Script, next_batch, ranges

ONE, MANY, EACH = Threading


def started(make: Callable[[], SplitReader[Range]], model: Threading = ONE, **options: Any) -> Any:
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(3), make, threading=model, **options)
    reader.start()
    return reader


def test_a_failure_is_told_while_the_close_of_its_client_hangs() -> None:
    script, go_on = Script(), threading.Event()
    script.fail_at["s"] = 0

    class Hanging(NumbersReader):
        def close(self) -> None:
            script.say("closing")
            assert go_on.wait(LONG)
            super().close()

    reader = started(lambda: Hanging(script))
    try:
        reader.add_splits([Range("s")])
        with pytest.raises(ReadFailed, match="s cannot be read"):
            next_batch(reader)
        script.wait_for(lambda: script.told("closing") == [None])
        assert script.told("closed") == []
    finally:
        go_on.set()
        reader.close()
    assert script.told("closed") == [None]


def test_a_close_that_raises_is_logged_and_the_failure_before_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script()
    script.fail_at["s"] = 0

    class Broken(NumbersReader):
        def close(self) -> None:
            raise OSError("broken pipe")

    reader = started(lambda: Broken(script))
    with caplog.at_level(logging.ERROR, "pillarbox"):
        reader.add_splits([Range("s")])
        with pytest.raises(ReadFailed, match="s cannot be read"):
            next_batch(reader)
        reader.close()
    assert "closing the split reader of pillarbox-fetch-3-0 raised" in caplog.text


def test_close_may_come_from_another_thread_in_the_middle_of_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    closers: list[threading.Thread] = []

    class Interrupted(Handover):
        def try_take(self) -> Any:
            if not closers:
                closers.append(threading.Thread(target=reader.close))
                closers[0].start()
                closers[0].join(LONG)
            return super().try_take()

    monkeypatch.setattr("pillarbox.sources.fetching.Handover", Interrupted)
    script = Script()
    script.block()
    reader = started(script.make, EACH)
    reader.add_splits(ranges(4, 10))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the reader is closed"):
            reader.poll()
    assert closers and not closers[0].is_alive()
    assert not any("pillarbox-fetch-3" in thread.name for thread in threading.enumerate())


def test_who_waits_for_rows_is_woken_by_a_close_from_another_thread() -> None:
    script = Script()
    script.block()
    reader = started(script.make)
    reader.add_splits(ranges(1, 10))
    future = reader.available()
    assert future is not None
    closer = threading.Thread(target=reader.close)
    closer.start()
    future.result(timeout=LONG)
    closer.join(LONG)
    with pytest.raises(RuntimeError, match="the reader is closed"):
        reader.available()


def test_a_paused_split_whose_fetch_fails_is_told_at_once() -> None:
    script = Script()
    script.block()
    script.fail_at["s0"] = 0
    reader = started(script.make, EACH)
    try:
        reader.add_splits([Range("s0")])
        script.wait_for(lambda: script.in_fetch == 1)
        script.deaf = True
        reader.pause_or_resume_splits(["s0"], [])
        future = reader.available()
        assert future is not None and reader.poll() is None
        script.release()
        future.result(timeout=LONG)
        with pytest.raises(ReadFailed, match="s0 cannot be read"):
            reader.poll()
        assert reader.available() is None
    finally:
        reader.close()


def test_a_late_failure_of_a_removed_split_leaves_the_others_their_future(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stalled, go_on = threading.Event(), threading.Event()
    fetching = {name: threading.Event() for name in ("s0", "s1")}
    fails = {name: threading.Event() for name in ("s0", "s1")}

    class Failing(Plain):
        def handle_splits_changes(self, change: SplitsChange[Range]) -> None:
            (split,) = change.splits  # type: ignore[union-attr]
            self.name = split.split_id

        def fetch(self) -> list[Fetched]:
            fetching[self.name].set()
            assert fails[self.name].wait(LONG)
            raise OSError(f"{self.name} cannot be read")

    class Stalling(Doorbell):
        """The second thread stops where it has read which future to set."""

        __slots__ = ("read",)

        @property
        def _future(self) -> Any:
            future = getattr(self, "read", None)
            if threading.current_thread().name == "pillarbox-fetch-3-1":
                stalled.set()
                assert go_on.wait(LONG)
            return future

        @_future.setter
        def _future(self, future: Any) -> None:
            self.read = future

    monkeypatch.setattr("pillarbox.sources.fetching.Doorbell", Stalling)
    reader: FetchingReader[Range] = FetchingReader(ReaderContext(3), Failing, threading=EACH)
    reader.start()
    try:
        reader.add_splits([Range("s0"), Range("s1")])
        assert all(each.wait(LONG) for each in fetching.values())
        reader.pause_or_resume_splits(["s0"], [])
        fails["s1"].set()
        assert stalled.wait(LONG)
        reader.remove_splits(["s1"])
        (late,) = reader._ending
        assert reader.poll() is None
        future = reader.available()
        assert future is not None
        go_on.set()
        late.thread.join(LONG)
        assert not late.thread.is_alive()
        fails["s0"].set()
        future.result(timeout=LONG)
        with pytest.raises(ReadFailed, match="s0 cannot be read"):
            reader.poll()
    finally:
        for event in (go_on, *fails.values()):
            event.set()
        reader.close()


@pytest.mark.parametrize("model", [ONE, MANY])
def test_of_splits_that_were_removed_a_few_are_known(
    model: Threading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.sources.fetching.MAX_REMOVED_KNOWN", 5)
    script = Script()
    reader = started(script.make, model)
    try:
        for number in range(20):
            split_id = f"s{number}"
            reader.add_splits([Range(split_id, 0, 30), Range(f"gone{number}")])
            script.wait_for(lambda split_id=split_id: any(split_id in each for each in script.told("fetch")))  # type: ignore[misc]
            reader.remove_splits([f"gone{number}"])
            while split_id in {split.split_id for split in reader.splits()}:
                next_batch(reader)
            # Too late.
            reader.pause_or_resume_splits([split_id], [])
        last = Range("last", 0, 10)
        reader.add_splits([last])
        assert next_batch(reader).split_id == "last"
        assert len(reader._fetchers[0]._removed) <= 5
    finally:
        reader.close()


class Pausing(Plain):
    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        pass


def test_alignment_of_a_client_that_cannot_pause_splits_is_refused_at_the_start() -> None:
    strategy = WatermarkStrategy(max_drift=60.0)

    def with_client(make: Callable[[], SplitReader[Range]], model: Threading) -> Any:
        reader: FetchingReader[Range] = FetchingReader(ReaderContext(3), make, threading=model)
        running = Running(SourceInput(Link([Range("s0")]), With(reader), watermarks=strategy))
        try:
            return running.rows(1)
        finally:
            running.task.close()

    for make in (Plain, lambda: Plain()):
        with pytest.raises(ReadFailed, match="no split.*Plain cannot pause splits, as max_drift needs it"):
            with_client(make, MANY)
    for make, model in ((Pausing, MANY), (Plain, ONE), (Plain, EACH)):
        assert with_client(make, model)[0] == 1


def test_alignment_of_a_reader_of_ones_own_that_cannot_pause_splits_is_refused_at_the_start() -> None:
    class Unpausable(Batches):
        pause_or_resume_splits = SourceReader.pause_or_resume_splits

    strategy = WatermarkStrategy(max_drift=60.0)
    running = Running(SourceInput(Link(), With(Unpausable()), watermarks=strategy))
    with pytest.raises(NotImplementedError, match="Unpausable cannot pause splits, as max_drift needs it"):
        running.task.run()
