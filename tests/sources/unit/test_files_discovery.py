"""New files: known by name, rested, told when they change, moved with their root, remembered."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pillarbox.sources.connectors.file_discovery import MAX_FIRST_WAIT_S, MAX_OFFSET_DIGESTS
from pillarbox.sources.connectors.files import FileSource
from pillarbox.sources.enumerator import ReadLimit
from pillarbox.sources.fetching import ReadFailed
from pillarbox.testing import SourceHarness
from tests.sources.unit.settled import SettledFiles

pytest.importorskip("pyspark", reason="PySpark is not installed")

from pillarbox.spark.micro_batches import Offset, OffsetCodec


def put(path: Path, text: str, modified: int | None = None) -> Path:
    """A file, there as a whole or not at all; `modified` so many seconds after 1970."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name("." + path.name)
    written.write_text(text)
    if modified is not None:
        os.utime(written, (modified, modified))
    written.rename(path)
    return path


def folder_of(tmp_path: Path, state: bool) -> dict[str, Any]:
    return {"state": tmp_path / "state"} if state else {}


@pytest.mark.contract(
    "A file is known by its name: one that keeps an old time is read, whatever was read before."
)
@pytest.mark.parametrize("state", [False, True])
def test_files_with_old_times_are_read(tmp_path: Path, state: bool) -> None:
    put(tmp_path / "in" / "new.txt", "new")
    source = SettledFiles(tmp_path / "in", "text", discovery_interval=0.0, **folder_of(tmp_path, state))
    with SourceHarness(source) as harness:
        assert harness.micro_batch() == [("new",)]
        for at, name in enumerate(("rsync", "cp", "tar")):
            put(tmp_path / "in" / f"{name}.txt", name, 1000 + at)
        assert harness.micro_batch() == [("rsync",), ("cp",), ("tar",)]
        snapshot = harness.snapshot()
    put(tmp_path / "in" / "older.txt", "older", 5)
    with SourceHarness(source, snapshot=snapshot, readers=3) as harness:
        assert harness.micro_batch() == [("older",)]
        assert harness.micro_batch() == []


@pytest.mark.contract("However a source of files is stopped and begun again, each of its files is read once.")
@pytest.mark.parametrize("state", [False, True])
def test_each_file_is_read_once_whatever_is_restarted(tmp_path: Path, state: bool) -> None:
    chance = random.Random(7)
    source = SettledFiles(
        tmp_path / "in", "text", discovery_interval=0.0, split_bytes=3, **folder_of(tmp_path, state)
    )
    snapshots, rows, made = [None], [[]], 0
    for _ in range(40):
        for _ in range(chance.randrange(4)):
            put(tmp_path / "in" / f"{made}.txt", f"{made}a\n{made}b\n", chance.randrange(1, 10**9))
            made += 1
        # From one of the last offsets: a plan that was dropped, or a crash.
        back = chance.randrange(min(3, len(snapshots)))
        if made == 0:
            continue
        with SourceHarness(source, snapshot=snapshots[-1 - back], readers=chance.randint(1, 3)) as harness:
            kept = rows[-1 - back]
            # What was found and is not read stands in the offset too.
            harness._open.update((split.split_id, split) for split in harness.pending)
            new = harness.micro_batch(ReadLimit(files=chance.randint(1, 4)))
            snapshots.append(harness.snapshot())
            rows.append([*kept, *new])
    with SourceHarness(source, snapshot=snapshots[-1]) as harness:
        harness._open.update((split.split_id, split) for split in harness.pending)
        found = [*rows[-1], *harness.micro_batch()]
    assert sorted(found) == sorted((f"{n}{part}",) for n in range(made) for part in "ab")
    if state:
        # Each file is known by one of a few segments.
        segments = snapshots[-1]["enumerator"]["checkpoint"]["seen"]["segments"]
        assert 1 <= len(segments) <= made.bit_length()


@pytest.mark.contract("A file is taken when it has rested: not while somebody writes it.")
def test_a_file_that_is_still_written_waits_until_it_has_rested(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "half")
    source = SettledFiles(tmp_path, "text", discovery_interval=0.0, settle=3600.0)
    with SourceHarness(source) as harness:
        assert harness.discover() == []
        put(path, "half and the rest", 1000)
        assert harness.micro_batch() == [("half and the rest",)]


def test_the_first_look_waits_for_files_to_rest(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "whole")
    with SourceHarness(SettledFiles(tmp_path, "text", settle=0.2)) as harness:
        assert harness.read_all() == [("whole",)]


def test_a_file_that_grows_at_the_first_look_is_left_for_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "whole.txt", "whole", 1000)
    growing = tmp_path / "growing.txt"
    growing.write_text("line\n")
    rests: list[float] = []

    class Growing(threading.Event):
        """Somebody writes while it is waited for."""

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            rests.append(timeout)
            with open(growing, "a") as file:
                file.write("line\n")
            return False

    source = SettledFiles(tmp_path, "text", settle=MAX_FIRST_WAIT_S)
    with caplog.at_level(logging.WARNING, "pillarbox"), SourceHarness(source) as harness:
        harness.enumerator._closed = Growing()  # type: ignore[attr-defined]
        # As if it had just been written, however long this has taken.
        ahead = time.time() + 1000.0
        os.utime(growing, (ahead, ahead))
        assert harness.micro_batch() == [("whole",)]
        snapshot = harness.snapshot()
    assert rests == [MAX_FIRST_WAIT_S]
    assert "growing.txt' is still written, and not taken at this start" in caplog.text
    lines = growing.read_text().splitlines()
    os.utime(growing, (2000, 2000))
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.micro_batch() == [(line,) for line in lines]


def test_a_time_ahead_of_the_clock_holds_a_file_back_only_until_it_has_stood(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "ahead", 2**32)
    with SourceHarness(SettledFiles(tmp_path, "text", settle=0.1)) as harness:
        assert harness.read_all() == [("ahead",)]


@pytest.mark.contract(
    "A file that changed after it was taken is told once, and none of its rows comes twice."
)
@pytest.mark.parametrize("state", [False, True])
def test_a_file_that_changes_is_told_once_and_not_read_again(
    tmp_path: Path, state: bool, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "in" / "a.txt", "a", 1000)
    source = SettledFiles(tmp_path / "in", "text", discovery_interval=0.0, **folder_of(tmp_path, state))
    with caplog.at_level(logging.WARNING, "pillarbox"):
        with SourceHarness(source) as harness:
            assert harness.micro_batch() == [("a",)]
            put(tmp_path / "in" / "a.txt", "a and more", 2000)
            assert harness.micro_batch() == []
            assert harness.micro_batch() == []
            snapshot = harness.snapshot()
        with SourceHarness(source, snapshot=snapshot) as harness:
            assert harness.micro_batch() == []
            put(tmp_path / "in" / "b.txt", "b", 1)
            assert harness.micro_batch() == [("b",)]
    assert caplog.text.count("changed after it was taken") == 1
    assert "a.txt' (of 1 bytes then and 10 now)" in caplog.text


def planned(source: FileSource) -> str:
    """The offset of a micro-batch of all files that are there, as the offset log of a stream holds it."""
    with SourceHarness(source) as harness:
        slices = tuple(harness.plan())
        offset = Offset(1, harness.enumerator.snapshot(), (), slices)
        return json.dumps(OffsetCodec(source).to_json(offset))


def replayed(source: FileSource, written: str) -> list[Any]:
    """The rows of that micro-batch, when the query is started again."""
    end = json.loads(written)
    with SourceHarness(source) as harness:
        pieces = OffsetCodec(source).slices({"version": 1, "number": 0}, end)
        return sorted(row for piece in pieces for row in harness.read_split(piece))


@pytest.mark.contract(
    "A file that changed after it was planned fails the query until it is started with on_data_loss='ignore'."
)
@pytest.mark.parametrize("state", [False, True])
def test_a_file_that_changes_between_plan_and_reading_is_told(
    tmp_path: Path, state: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abcdefghij":
        put(tmp_path / "in" / f"{name}.txt", f"{name}\n", 1000)
    options = folder_of(tmp_path, state)
    written = planned(SettledFiles(tmp_path / "in", "text", **options))
    put(tmp_path / "in" / "c.txt", "c\nand more\n", 2000)
    with pytest.raises(ReadFailed, match=r"c\.txt'.*was rewritten after it had been found"):
        replayed(SettledFiles(tmp_path / "in", "text", **options), written)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        rows = replayed(SettledFiles(tmp_path / "in", "text", on_data_loss="ignore", **options), written)
    assert rows == [(name,) for name in "abdefghij"]
    assert caplog.text.count("c.txt': what stands from position 0 on is not read, as on_data_loss is") == 1


@pytest.mark.contract(
    "Files whose root has moved are refused with both places, or known again where an option says so."
)
@pytest.mark.parametrize("state", [False, True])
def test_a_root_that_has_moved_is_refused_or_mapped(tmp_path: Path, state: bool) -> None:
    put(tmp_path / "old" / "day=1" / "a.txt", "a\nb\n", 1000)
    options = folder_of(tmp_path, state)
    old = SettledFiles(tmp_path / "old", "text", split_bytes=2, **options)
    with SourceHarness(old) as harness:
        assert harness.plan(ReadLimit(files=1, nbytes=1))
        snapshot = harness.snapshot()
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    put(tmp_path / "new" / "b.txt", "new", 5)
    with pytest.raises(ValueError, match="moved_from") as caught:
        SourceHarness(SettledFiles(tmp_path / "new", "text", **options), snapshot=snapshot)
    assert repr(str(tmp_path / "new")) in str(caught.value) and repr(str(tmp_path / "old")) in str(
        caught.value
    )
    moved = SettledFiles(f"{tmp_path}/new/**", "text", moved_from=str(tmp_path / "old"), **options)
    with SourceHarness(moved, snapshot=snapshot) as harness:
        assert sorted(row[0] for row in harness.read_all()) == ["b", "new"]


def test_other_words_for_the_same_place_are_the_same_place() -> None:
    roots = [
        SettledFiles(path, "text").place.root
        for path in (
            "s3://bucket/in?region=x",
            "s3a://bucket/in/?region=x",
            "s3n://key:secret@bucket/in/*.txt?region=x",
        )
    ]
    assert set(roots) == {"s3://bucket/in"}
    assert (
        SettledFiles("file:/in/x", "text").place.root
        == SettledFiles("/in/x/**/*.txt", "text").place.root
        == "/in/x"
    )


# -- offsets -------------------------------------------------------------------------------------------------


def fill(folder: Path, names: Iterable[str]) -> None:
    """Files of one byte: links to one, which are made much faster than files."""
    folder.mkdir(exist_ok=True)
    (one := folder.with_name("one")).write_text("x")
    for name in names:
        os.link(one, folder / name)


def offset_bytes(source: FileSource, count: int, folder: Path) -> tuple[int, int]:
    """Bytes of the offset that has read `count` files in one micro-batch, and of the one after it."""
    fill(folder, (f"part-{number:06}" for number in range(count)))
    codec = OffsetCodec(source)
    sizes, offset, text = [], Offset(), ""
    for _ in range(2):
        with SourceHarness(source) as harness:
            if offset.number:
                restored = codec.from_json(json.loads(text))
                harness.enumerator = source.restore_enumerator(harness.context, restored.checkpoint)
            slices = tuple(split for _ in range(99) for split in harness.discover(10_000))
            offset = Offset(offset.number + 1, harness.enumerator.snapshot(), (), slices)
            text = json.dumps(codec.to_json(offset))
            assert codec.from_json(json.loads(text)).slices == slices
        sizes.append(len(text))
        put(folder / "one-more", "x", 5)
    assert [split.name for split in slices] == ["one-more"]
    return sizes[0], sizes[1]


@pytest.mark.contract(
    "With `state` what a stream of files has read takes at most 1 kB of an offset, whatever its number."
)
def test_with_a_folder_an_offset_is_small(tmp_path: Path) -> None:
    source = SettledFiles(tmp_path / "in", "text", state=str(tmp_path / "state"))
    _, after = offset_bytes(source, 9000, tmp_path / "in")
    assert after < 1024


@pytest.mark.contract(
    "Without `state` an offset holds 8 bytes of each file that was read, and of at most 8,192."
)
def test_without_a_folder_an_offset_has_digests_and_more_files_are_refused_early(tmp_path: Path) -> None:
    _, after = offset_bytes(SettledFiles(tmp_path / "in", "text"), 1000, tmp_path / "in")
    assert after < 1000 * 8 * 4 / 3 + 600
    fill(tmp_path / "in", (f"more-{number}" for number in range(MAX_OFFSET_DIGESTS)))
    source = SettledFiles(tmp_path / "in", "text")
    with SourceHarness(source) as harness:
        # Before anything but the first of them is read.
        harness.discover(1)
        with pytest.raises(ValueError, match=r"state=None: 9,193 files .* at most 8,192: give state="):
            harness.snapshot()


@pytest.mark.contract(
    "Without `state` the list of the 5,000 files that a micro-batch reads has at most 64 kB in its offset."
)
def test_without_a_folder_the_files_of_a_micro_batch_are_packed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(5000):
        with open(tmp_path / "in" / f"part-{number:05}-5ce5bc13-c000.json", "w") as file:
            file.write("x" * (number % 977 + 1))
    source = SettledFiles(tmp_path / "in", "text")
    with SourceHarness(source) as harness:
        slices = tuple(harness.discover(10_000))
        written = OffsetCodec(source).to_json(Offset(1, harness.enumerator.checkpoint, (), slices))
    assert OffsetCodec(source).from_json(written).slices == slices
    assert len(json.dumps(written["slices"])) < 64 * 1024
    packed = written["slices"]["packed"]
    for damaged in ({"packed": packed[:-8]}, {"packed": "?"}, {"packed": 1}, {"else": 1}, 1):
        with pytest.raises(ValueError, match=r"slices=.*must be a list of splits as it was written"):
            OffsetCodec(source).from_json({**written, "slices": damaged})


def test_a_checkpoint_without_a_folder_goes_on_with_one(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.txt", "a")
    with SourceHarness(SettledFiles(tmp_path / "in", "text")) as harness:
        assert harness.micro_batch() == [("a",)]
        snapshot = harness.snapshot()
    put(tmp_path / "in" / "b.txt", "b")
    source = SettledFiles(tmp_path / "in", "text", state=str(tmp_path / "state"))
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.micro_batch() == [("b",)]
        snapshot = harness.snapshot()
    with SourceHarness(source, snapshot=snapshot) as harness:
        assert harness.micro_batch() == []
    with pytest.raises(ValueError, match="state=None: .* give state="):
        SourceHarness(SettledFiles(tmp_path / "in", "text"), snapshot=snapshot)


def test_a_folder_that_is_not_that_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.txt", "a")
    source = SettledFiles(tmp_path / "in", "text", state=str(tmp_path / "state"))
    with SourceHarness(source) as harness:
        assert harness.micro_batch() == [("a",)]
        snapshot = harness.snapshot()
    (segment,) = (tmp_path / "state").iterdir()
    content = segment.read_bytes()
    for harm in (lambda: segment.write_bytes(content[:-1]), segment.unlink):
        harm()
        with pytest.raises(ValueError, match="_seen-.* is not there as it was written"):
            SourceHarness(source, snapshot=snapshot)


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    source = SettledFiles(tmp_path, "text")
    known = {"after": [-1, ""], "seen": {}, "until": None, "begun": None}
    with pytest.raises(ValueError, match="reads version 3.*begin a new checkpoint"):
        source.checkpoint_serializer.from_json(1, known)
    with pytest.raises(ValueError, match="must be what a source of files knows"):
        source.checkpoint_serializer.from_json(3, {"after": 1})
