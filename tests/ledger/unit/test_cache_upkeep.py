"""The upkeep of caches, in folders and stores of objects: pins, the command line, merging by age."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from pillarbox import async_map
from pillarbox.ledger import Cache, Ledger, Scope
from pillarbox.ledger.cli import main
from pillarbox.ledger.ledger import CACHE_RUN, US
from pillarbox.ledger.local_folder import LocalFolder, Segment, by_age
from pillarbox.ledger.upkeep import (
    MAX_SMALL_SEGMENTS,
    PIN_PREFIX,
    begin_execution,
    expire_cache,
    join_execution,
    merge_small,
    pinned_cuts,
)
from tests.servers import fixtures
from tests.servers.s3_server import S3Server

fs = pytest.importorskip("pyarrow.fs")
server = fixtures.s3
HOUR_S = 3600.0
OWNER, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "cache"), uid="double", cache=True)


@pytest.fixture
def objects(tmp_path: Path) -> Ledger:
    """A ledger that knows its folder as a file system of pyarrow only, as it knows a bucket."""
    files = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Ledger("calls", filesystem=files, uid="double", cache=True)


@pytest.fixture
def bucket(server: S3Server) -> Ledger:
    """A ledger in a bucket."""
    return Ledger(f"{server.bucket()}/calls", filesystem=server.store(), uid="double", cache=True)


def double(ledger: Ledger, numbers: Iterable[int]) -> list[int]:
    """The numbers that a job over a cache has called for."""
    called: list[int] = []

    async def call(number: int) -> int:
        called.append(number)
        return 2 * number

    wanted = [*numbers]
    assert list(async_map(wanted, call, ledger=ledger)) == [2 * number for number in wanted]
    return called


def scope_in(ledger: Ledger) -> Scope:
    (scope,) = ledger.scopes(CACHE_RUN)
    return scope


def folder_of(ledger: Ledger) -> LocalFolder:
    folder = ledger.folder(scope_in(ledger))
    assert isinstance(folder, LocalFolder)
    return folder


def age(ledger: Ledger, seconds: float, *, pins: bool = True) -> None:
    """Have what is there be so many seconds older."""
    folder = folder_of(ledger)
    for name in folder.names():
        if name.endswith(".arrow") or (pins and name.startswith(PIN_PREFIX)):
            folder.set_changed(name, folder.changed(name) - seconds)


@pytest.mark.parametrize("store", ["objects", pytest.param("bucket", marks=pytest.mark.server)])
@pytest.mark.contract
def test_a_cache_in_a_store_of_objects_is_used_expired_and_merged(
    store: str, request: pytest.FixtureRequest
) -> None:
    ledger: Ledger = request.getfixturevalue(store)
    limited = dataclasses.replace(ledger, cache=Cache(max_age=24 * HOUR_S, max_bytes=10**9))
    assert double(limited, range(50)) == [*range(50)]
    assert double(limited, range(60)) == [*range(50, 60)]
    for number in range(100, 100 + MAX_SMALL_SEGMENTS):
        double(limited, [number])
    double(limited, [])
    assert len(ledger.folder(scope_in(ledger)).segments()) <= MAX_SMALL_SEGMENTS
    assert double(limited, [*range(60), *range(100, 100 + MAX_SMALL_SEGMENTS)]) == []
    # What the jobs of this hour may ask for stays.
    assert expire_cache(ledger, scope_in(ledger), Cache(max_bytes=1)).segments == 0
    folder = ledger.folder(scope_in(ledger))
    for name in folder.names():
        if name.startswith(PIN_PREFIX):
            folder.remove(name)
    assert expire_cache(ledger, scope_in(ledger), Cache(max_bytes=1)).segments > 0
    assert double(limited, range(3)) == [0, 1, 2]


def test_the_command_line_expires_what_is_old_in_a_cache(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    double(ledger, range(5))
    age(ledger, 30 * HOUR_S)
    assert main(["expire", ledger.location, "--older-than", "1", "--dry-run"]) == 0
    assert "1 segments" in capsys.readouterr().out
    assert main(["expire", ledger.location, "--older-than", "2"]) == 0
    assert "0 segments, 0 bytes deleted" in capsys.readouterr().out
    assert main(["expire", ledger.location, "--older-than", "1"]) == 0
    assert "1 segments" in capsys.readouterr().out
    assert double(ledger, range(5)) == [*range(5)]


def test_the_command_line_leaves_what_a_job_may_ask_for(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    double(ledger, range(5))
    age(ledger, 30 * HOUR_S, pins=False)
    for words in (["--older-than", "1"], ["--max-bytes", "1"], ["--all"]):
        assert main(["expire", ledger.location, *words]) == 0
        assert "0 segments, 0 bytes deleted; 1 jobs may ask for more" in capsys.readouterr().out
    assert double(ledger, range(5)) == []


def test_the_size_of_a_run_is_no_limit(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    double(Ledger(ledger.location, uid="double", run="nightly"), range(3))
    assert main(["expire", ledger.location, "--max-bytes", "1"]) == 2
    assert "--max-bytes is for caches" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["expire", ledger.location, "--max-bytes", "0"])


@pytest.mark.contract(convicts=["pin_lapses_while_used"])
def test_a_pin_counts_for_an_hour_after_it_was_written_last(ledger: Ledger) -> None:
    double(ledger, range(3))
    folder = folder_of(ledger)
    scope = scope_in(ledger)
    for name in folder.names():
        if name.startswith(PIN_PREFIX):
            folder.remove(name)
    cut = begin_execution(dataclasses.replace(ledger, cache=Cache(max_age=HOUR_S)), scope, OWNER)
    assert join_execution(ledger, scope, OTHER, 7) == 7
    now = time.time()
    assert pinned_cuts(folder, now) == {PIN_PREFIX + OWNER: cut, PIN_PREFIX + OTHER: 7}
    assert abs(cut / US - (now - HOUR_S)) < HOUR_S / 60
    folder.set_changed(PIN_PREFIX + OTHER, now - 0.9 * HOUR_S)
    join_execution(ledger, scope, OTHER, 8)
    folder.set_changed(PIN_PREFIX + OWNER, now - 1.1 * HOUR_S)
    assert pinned_cuts(folder, now) == {PIN_PREFIX + OTHER: 8}
    assert PIN_PREFIX + OWNER not in folder.names()


@pytest.mark.contract(convicts=["stream_cut_by_size"])
def test_a_stream_begins_with_what_has_room_and_may_ask_for_all_of_it(ledger: Ledger) -> None:
    for number in range(3):
        double(ledger, [number])
        age(ledger, 2 * HOUR_S)
    size = max(each.size for each in folder_of(ledger).segments())
    limited = dataclasses.replace(ledger, cache=Cache(max_bytes=2 * size))
    assert begin_execution(limited, scope_in(ledger), OWNER, by_age=True) == 0
    assert len(folder_of(ledger).segments()) == 2
    assert pinned_cuts(folder_of(ledger), time.time()) == {PIN_PREFIX + OWNER: 0}


@pytest.mark.contract(convicts=["torn_pin_ignored"])
def test_a_torn_pin_keeps_everything(ledger: Ledger) -> None:
    double(ledger, range(3))
    age(ledger, 30 * HOUR_S)
    folder = folder_of(ledger)
    folder.put(PIN_PREFIX + OWNER, b"17x")
    assert expire_cache(ledger, scope_in(ledger), Cache(max_age=1.0)) == (0, 0, 1)


@pytest.mark.contract(convicts=["merged_segment_as_old_as_its_oldest"])
def test_segments_are_merged_with_those_of_their_age(ledger: Ledger) -> None:
    for number in range(12):
        double(ledger, [number])
        age(ledger, HOUR_S, pins=False)
    folder = folder_of(ledger)
    before = sorted(folder.segments(), key=by_age)
    assert len(before) == 12
    # Room for three of them in a merged one.
    merge_small(ledger, scope_in(ledger), Cache(max_bytes=8 * 3 * before[0].size + 100), max_small=4)
    after = sorted(folder.segments(), key=by_age)
    assert len(after) == 4
    newest = [each.changed for each in before[2::3]]
    assert [each.changed for each in after] == pytest.approx(newest, abs=1e-3)
    assert double(ledger, range(12)) == []


def test_the_cut_by_size_leaves_the_youngest_that_have_room() -> None:
    segments = [Segment(f"{moment}", 100, float(moment)) for moment in range(1, 6)]
    assert Cache().cut(segments, 10.0) == 0
    assert Cache(max_bytes=500).cut(segments, 10.0) == 0
    assert Cache(max_bytes=299).cut(segments, 10.0) == 3 * US + 1
    assert Cache(max_bytes=99).cut(segments, 10.0) == 5 * US + 1
    assert Cache(max_bytes=299, max_age=6.5).cut(segments, 10.0) == int(3.5 * US)
    assert Cache(max_age=6.5).cut(segments, 10.0) == int(3.5 * US)


def test_the_cut_of_a_stream_moves_by_steps_and_lets_nothing_older_through() -> None:
    cache = Cache(max_age=2000.0)
    cuts = [cache.cut_by_age(10_000.0 + second) for second in range(200)]
    assert all(8000.0 + second <= cut / US <= 8101.0 + second for second, cut in enumerate(cuts))
    assert len(set(cuts)) == 3
    assert Cache().cut_by_age(10_000.0) == 0
