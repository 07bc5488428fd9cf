"""The tasks of a process share the reader of a scope: built once, up to date at each use."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pillarbox.ledger import Ledger, Scope
from pillarbox.ledger import ledger as shared
from pillarbox.ledger.errors import LedgerFormatError
from pillarbox.ledger.ledger import shared_reader
from pillarbox.ledger.maintenance import expire
from pillarbox.ledger.reader import LedgerReader
from pillarbox.ledger.upkeep import compact
from tests.ledger.unit.segments import key

SCOPE = Scope("run", "uid")
LONG = 600.0


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own for each test."""
    monkeypatch.setattr(shared, "_cache", shared._ReaderCache())
    yield
    gc.collect()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def keep(ledger: Ledger, number: int, value: object, scope: Scope = SCOPE) -> None:
    with ledger.writer(scope) as writer:
        writer.append(key(number), value)


def test_a_second_task_has_the_reader_of_the_first_one_up_to_date(ledger: Ledger) -> None:
    keep(ledger, 1, "one")
    first = shared_reader(ledger, SCOPE)
    keep(ledger, 2, "two")
    again = Ledger(ledger.location)
    assert shared_reader(again, SCOPE) is first
    assert key(1) in first and key(2) in first


def test_other_scopes_ledgers_and_ways_to_read_have_other_readers(ledger: Ledger, tmp_path: Path) -> None:
    readers = [
        shared_reader(ledger, SCOPE),
        shared_reader(ledger, Scope("run", "uid", batch=1)),
        shared_reader(Ledger(str(tmp_path / "other")), SCOPE),
        shared_reader(Ledger(ledger.location, retry_errors=False), SCOPE),
        shared_reader(Ledger(ledger.location, version=2), SCOPE),
    ]
    assert len({id(reader) for reader in readers}) == 5


def test_what_has_expired_or_was_merged_is_not_answered_from_memory(ledger: Ledger) -> None:
    keep(ledger, 1, "old")
    keep(ledger, 2, "old")
    reader = shared_reader(ledger, SCOPE)
    assert key(1) in reader
    compact(ledger, SCOPE)
    assert shared_reader(ledger, SCOPE) is reader
    assert len(reader) == 2 and key(1) in reader
    expire(ledger, SCOPE)
    keep(ledger, 2, "new")
    reader = shared_reader(ledger, SCOPE)
    assert reader.get(key(1)) is None
    record = reader.get(key(2))
    assert record is not None and record.value == "new"


def test_readers_that_nobody_uses_are_kept_up_to_a_number_and_to_a_size(ledger: Ledger) -> None:
    cache = shared._ReaderCache()

    def opened(batch: int) -> weakref.ref[LedgerReader]:
        return weakref.ref(cache.reader(ledger, Scope("run", "uid", batch=batch), 0))

    for batch in range(9):
        keep(ledger, 1, "x", Scope("run", "uid", batch=batch))
    readers = [opened(batch) for batch in range(shared.MAX_IDLE_READERS + 2)]
    gc.collect()
    assert [reader() is None for reader in readers] == [True, True] + [False] * shared.MAX_IDLE_READERS
    cache = shared._ReaderCache(max_idle_records=1)
    readers = [opened(batch) for batch in (6, 7, 8)]
    gc.collect()
    # The one that was asked for last, whatever its size, and one record more.
    assert [reader() is None for reader in readers] == [True, False, False]
    assert opened(8)() is readers[2]()


def test_a_reader_in_use_is_shared_however_many_others_are_asked_for(ledger: Ledger) -> None:
    mine = shared_reader(ledger, SCOPE)
    for batch in range(shared.MAX_IDLE_READERS + 1):
        shared_reader(ledger, Scope("run", "uid", batch=batch))
    assert shared_reader(ledger, SCOPE) is mine


def test_threads_that_ask_at_the_same_time_build_one_index(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(ledger, 1, "x")
    made: list[LedgerReader] = []
    begun, together = threading.Event(), threading.Barrier(4)
    reader_of = Ledger.reader

    def counted(ledger: Ledger, scope: Scope, **more: Any) -> LedgerReader:
        if scope == SCOPE:
            begun.set()
        reader = reader_of(ledger, scope, **more)
        made.append(reader)
        return reader

    monkeypatch.setattr(Ledger, "reader", counted)
    found = []

    def ask() -> None:
        together.wait(LONG)
        found.append(shared_reader(ledger, SCOPE))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(made) == 1 and len(found) == 4 and len({id(reader) for reader in found}) == 1


def test_a_ledger_that_cannot_be_read_is_asked_again_the_next_time(ledger: Ledger) -> None:
    later = Path(ledger.location, "v3")
    later.mkdir(parents=True)
    with pytest.raises(LedgerFormatError):
        shared_reader(ledger, SCOPE)
    later.rmdir()
    assert len(shared_reader(ledger, SCOPE)) == 0


def test_a_forked_process_begins_without_readers_even_while_another_thread_builds_one(tmp_path: Path) -> None:
    script = """
import os, sys, threading
from pillarbox.ledger import Ledger, Scope, ledger as shared
from pillarbox.ledger.ledger import shared_reader
ledger, scope = Ledger(sys.argv[1]), Scope("run", "uid")
reader = shared_reader(ledger, scope)
held, done = threading.Event(), threading.Event()
def build():
    with shared._cache._mutex, reader._mutex:
        held.set()
        done.wait()
thread = threading.Thread(target=build)
thread.start()
held.wait()
child = os.fork()
if not child:
    os._exit(0 if shared_reader(ledger, scope) is not reader else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
done.set()
thread.join()
sys.exit(status)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True, timeout=LONG)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def open_files(ledger: Ledger) -> int:
    """The number of files of this ledger that the process has open; other threads have others."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(ledger.location))
    return found


def test_a_reader_that_is_let_go_closes_its_files(ledger: Ledger) -> None:
    for number in range(5):
        keep(ledger, number, "x")
    gc.collect()
    before = open_files(ledger)
    reader = ledger.reader(SCOPE)
    assert all(key(number) in reader for number in range(5))
    assert open_files(ledger) == before + 5
    del reader
    gc.collect()
    assert open_files(ledger) == before
