"""Ends of fetchers: failures are told at once, close comes from anywhere, nothing is kept of what was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Any

import pytest

from pillarbox.kernel import Handover
from pillarbox.sources import SourceInput, SplitReader, WatermarkStrategy
from pillarbox.sources.fetching import FetchingReader, ReadFailed, Threading
from pillarbox.sources.reader import ReaderContext, SourceReader
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
