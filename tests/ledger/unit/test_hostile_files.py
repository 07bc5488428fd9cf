"""Somebody else may write into a ledger's folder, or name what is in it: that harms nobody, and is said."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.ledger import Ledger, LedgerError, Scope
from pillarbox.ledger.cli import main
from pillarbox.ledger.errors import Damage, LedgerWarning, printable
from pillarbox.ledger.format import LINE, header, open_frame, owner_of, scan
from pillarbox.ledger.lease import Lease
from pillarbox.ledger.local_folder import LocalFolder
from pillarbox.ledger.maintenance import expire, expire_batches
from pillarbox.ledger.private_files import replacing
from pillarbox.ledger.upkeep import compact
from tests.ledger.kept import SCOPE, found, keep
from tests.ledger.unit.segments import ID, key, look, segment
from tests.search import examples

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f\r"
HUGE = 0xFFFFFFFF
LONG = 600.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def local(ledger: Ledger, scope: Scope = SCOPE) -> LocalFolder:
    folder = ledger.folder(scope)
    assert isinstance(folder, LocalFolder)
    return folder


# -- what a terminal is shown -------------------------------------------------------------------


@pytest.mark.contract
def test_no_command_prints_a_control_character_that_a_run_a_value_or_a_file_has(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    scope = Scope(f"night{ESCAPES}\n", f"embed{ESCAPES}")
    keep(ledger, {1: {ESCAPES: ESCAPES}}, scope)
    keep(ledger, {2: 2}, scope)
    folder = Path(local(ledger, scope).path)
    (folder / f"bad{ESCAPES}.arrow").write_bytes(b"no segment")
    (folder / f"{ESCAPES}.txt").write_bytes(b"")
    said = []
    for words in (
        ["ls"],
        ["show"],
        ["verify"],
        ["ls", "--run", "another"],
        ["expire", "--all", "--dry-run"],
        ["export", str(folder / f"{ESCAPES}.parquet")],
        ["compact"],
        ["expire", "--all"],
    ):
        main([words[0], ledger.location, *words[1:]])
        captured = capsys.readouterr()
        said.append(captured.out + captured.err)
        assert all(line.isprintable() for line in said[-1].splitlines()), words
        assert "\\u001b[2J" in said[-1], words
    # JSON stays the same JSON.
    assert {ESCAPES: ESCAPES} in [json.loads(line)["value"] for line in said[1].splitlines()]
    assert json.loads(said[1].splitlines()[0])["run"] == scope.run


@settings(max_examples=examples(100), deadline=None)
@given(st.text(st.characters(codec=None)))
def test_text_that_is_shown_is_printable_and_the_same_json(text: str) -> None:
    assert printable(text).isprintable()
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_a_record_of_a_time_that_no_calendar_has_is_shown(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.ledger.writer.time.time_ns", lambda: 2**62 * 1000)
    keep(ledger, {1: 1})
    monkeypatch.undo()
    assert main(["show", ledger.location]) == 0
    assert json.loads(capsys.readouterr().out)["at"] == 2**62


# -- links in the place of files ----------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("name", [".lock", ".compact"])
def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_not_touched(
    ledger: Ledger, tmp_path: Path, name: str
) -> None:
    keep(ledger, {1: 1})
    keep(ledger, {2: 2})
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    place = os.path.join(local(ledger).path, name)
    for target in (victim, tmp_path / "not-there"):
        Path(place).unlink(missing_ok=True)
        os.symlink(target, place)
        for work in [compact] if name == ".compact" else [compact, expire]:
            with pytest.raises(LedgerError, match=re.escape(f"{place} is a symbolic link")):
                work(ledger, SCOPE)
    if name == ".lock":
        writer = ledger.writer(SCOPE)
        writer.append(key(3), 3)
        with pytest.raises(LedgerError, match=re.escape(f"{place} is a symbolic link")):
            writer.flush(LONG)
    assert victim.read_bytes() == b"precious" and not (tmp_path / "not-there").exists()
    os.unlink(place)
    assert found(ledger) == {1: 1, 2: 2}


def test_a_lock_that_is_a_pipe_is_refused_and_nobody_waits_for_its_other_end(ledger: Ledger) -> None:
    local(ledger).make()
    os.mkfifo(os.path.join(local(ledger).path, ".lock"))
    with pytest.raises(LedgerError, match=r"\.lock is not a regular file"):
        expire(ledger, SCOPE)
    os.mkfifo(os.path.join(local(ledger).path, f"{ID}.arrow"))
    assert found(ledger) == {}


def test_a_lease_that_is_a_link_is_refused_and_what_it_leads_to_is_not_touched(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    lease = Lease(str(tmp_path), "task")
    os.symlink(victim, lease.path)
    with pytest.raises(OSError, match="is a symbolic link"):
        lease.acquire()
    assert victim.read_bytes() == b"precious"


def test_a_file_that_is_replaced_is_written_beside_under_a_name_that_nobody_guesses(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "report.html"
    victim.write_bytes(b"precious")
    os.symlink(victim, f"{target}.part")
    os.symlink(victim, target)
    with replacing(str(target)) as file:
        file.write(b"new")
    assert (victim.read_bytes(), target.read_bytes(), target.is_symlink()) == (b"precious", b"new", False)
    with pytest.raises(TypeError), replacing(str(target)) as file:
        file.writelines([b"half", "text"])  # type: ignore[list-item]
    assert target.read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report.html.part", "victim"]


# -- files of others ----------------------------------------------------------------------------


@pytest.mark.contract
def test_expire_deletes_what_the_ledger_has_written_for_the_scope_and_names_what_it_leaves(
    ledger: Ledger, tmp_path: Path
) -> None:
    other = Scope("other", "uid")
    keep(ledger, {1: 1})
    keep(ledger, {2: 2}, other)
    lease = ledger.lease(SCOPE, "task")
    assert lease is not None and lease.acquire()
    folder = Path(local(ledger).path)
    # A segment of another scope, an Arrow file of somebody, and whatever else people put there.
    ((name, *_),) = local(ledger, other).segments()
    (folder / name).write_bytes(Path(local(ledger, other).path, name).read_bytes())
    table = pa.table({"precious": [1]})
    with pa.ipc.new_stream(str(folder / "00000000000000aa.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "00000000000000bb.arrow").write_bytes(b"precious")
    (folder / "00000000000000cc.arrow").mkdir()
    (folder / "kept").mkdir()
    for each in ("notes.txt", "precious.arrow", "backup.part", ".lock.old", "kept/precious"):
        (folder / each).write_bytes(b"precious")
    left = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    mine = {path for path in left if path.name in {".lock", Path(lease.path).name}}
    mine |= {path for path in left if path.suffix == ".arrow" and b"own=" + owner() in left[path]}
    assert len(mine) == 3
    compact(ledger, SCOPE)
    with pytest.warns(LedgerWarning, match=r"the ledger has not written it there: .*\.\.\.") as said:
        assert expire(ledger, SCOPE) > 0
    assert len(said) == 1 and str(folder) in str(said[0].message)
    now = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert now == {path: content for path, content in left.items() if path not in mine}
    assert found(ledger, other) == {2: 2}


def owner() -> bytes:
    return owner_of(SCOPE.about).encode()


@pytest.mark.contract
def test_expire_deletes_segments_that_a_kill_or_a_damaged_disk_has_left(ledger: Ledger) -> None:
    keep(ledger, {1: 1, 2: 2})
    folder = local(ledger)
    ((name, *_),) = folder.segments()
    whole = Path(folder.path, name).read_bytes()
    about = header(name.removesuffix(".arrow"), SCOPE.about)
    body = whole[len(about) :]
    no_head = bytes(len(about)) + body
    for content in (
        b"",
        about[:9],
        about,
        about + body[:400],
        about + bytes(2000),
        no_head,
        about + b"x" + body,
    ):
        folder.make()
        Path(folder.path, name).write_bytes(content)
        Path(folder.path, f"{ID}.part").write_bytes(content)
        Path(folder.path, f".{ID}.part").write_bytes(content)
        assert expire(ledger, SCOPE) == len(content)
        assert not folder.exists(), content


def test_committed_micro_batches_expire_beside_files_of_others(ledger: Ledger) -> None:
    scopes = [Scope("query", "uid", batch=batch) for batch in range(2)]
    for scope in scopes:
        keep(ledger, {1: 1}, scope)
    note = Path(local(ledger, scopes[0]).path, "notes.txt")
    note.write_text("precious")
    with pytest.warns(LedgerWarning, match="notes.txt"):
        assert expire_batches(ledger, "query", 1) == scopes
    assert note.read_text() == "precious" and not local(ledger, scopes[1]).exists()


def test_a_compaction_deletes_no_part_of_somebody_else(ledger: Ledger) -> None:
    keep(ledger, {1: 1})
    keep(ledger, {2: 2})
    folder = Path(local(ledger).path)
    (folder / "download.part").write_bytes(b"precious")
    (folder / f"{ID}.part").write_bytes(b"left by a kill")
    (folder / f".{ID}.part").write_bytes(b"a pin that is being made")
    compact(ledger, SCOPE)
    assert (folder / "download.part").exists() and not (folder / f"{ID}.part").exists()
    assert (folder / f".{ID}.part").exists()
    os.utime(folder / f".{ID}.part", (0, 0))
    for number in (3, 4):
        keep(ledger, {number: 1})
    compact(ledger, SCOPE)
    assert not (folder / f".{ID}.part").exists()


# -- sizes that cannot be -----------------------------------------------------------------------


def forged(content: bytes, position: int, **numbers: int) -> bytes:
    """The segment with other numbers in the line of the frame at `position`, and right checksums."""
    changed = bytearray(content)
    match = LINE.search(content, position)
    assert match is not None
    names = ["id", "own", "pos", "head", "data", "rows", "keys", "ksum", "dsum", "sum"]
    head = numbers.get("head", int(match[names.index("head") + 1], 16))
    for name, number in numbers.items():
        begin, end = match.span(names.index(name) + 1)
        changed[begin:end] = f"{number:0{end - begin}x}".encode()
    begin, end = match.span(10)
    changed[begin:end] = b"00000000"
    changed[begin:end] = f"{zlib.crc32(changed[position : position + head]):08x}".encode()
    return bytes(changed)


FRAMES: list[dict[int, Any]] = [{1: "one"}, {2: "two"}, {3: "three"}]
CONTENT = segment(FRAMES)
PLACES = [item[0].begin for item in scan(lambda at, n: CONTENT[at : at + n], len(CONTENT), "s", ID)]  # type: ignore[union-attr]


def careful(content: bytes, allowed: int) -> Callable[[int, int], bytes]:
    """A reader that makes room for what is asked for, as the operating system's own does."""

    def read(offset: int, length: int) -> bytes:
        if length > allowed:
            raise MemoryError(f"{length} bytes of a segment of {len(content)}")
        return content[offset : offset + length]

    return read


@pytest.mark.contract
@pytest.mark.parametrize(
    "numbers",
    [
        {"rows": HUGE},
        {"rows": 2**21 + 1},
        {"rows": 2},
        {"rows": 0},
        {"keys": HUGE},
        {"data": 2**63},
        {"data": len(CONTENT)},
        {"data": 0},
        {"head": 0, "data": 0, "rows": 0, "ksum": 0},
        {"head": HUGE},
        {"rows": HUGE, "data": 2**40},
    ],
    ids=str,
)
def test_a_forged_size_is_a_damaged_segment_that_is_told_and_skipped_before_room_is_made_for_it(
    numbers: dict[str, int],
) -> None:
    content = forged(CONTENT, PLACES[1], **numbers)
    records, damage = [], []
    read = careful(content, 2**20)
    for item in scan(read, len(content), "s", ID):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        batch = open_frame(item[0], read)
        if isinstance(batch, Damage):
            damage.append(batch)
        else:
            records += batch.column(0).to_pylist()
    assert records == [key(1), key(3)]
    assert damage[0].offset == PLACES[1]
    assert sum(part.length for part in damage) == PLACES[2] - PLACES[1]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_whatever_sizes_a_line_says_no_room_is_made_and_no_other_value_is_found(data: st.DataObject) -> None:
    sizes = st.one_of(st.integers(0, 2000), st.integers(0, HUGE))
    names = data.draw(st.sets(st.sampled_from(["head", "data", "rows", "keys"]), min_size=1))
    content = forged(
        CONTENT, data.draw(st.sampled_from(PLACES)), **{name: data.draw(sizes) for name in names}
    )
    whole, _ = look(CONTENT)
    for item in scan(careful(content, 2**20), len(content), "s", ID):
        if not isinstance(item, Damage):
            batch = open_frame(item[0], careful(content, 2**20))
            if not isinstance(batch, Damage):
                assert set(batch.column(0).to_pylist()) <= set(whole)


@pytest.mark.contract
def test_a_ledger_with_forged_row_counts_is_read_verified_and_exported(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(ledger, {1: "one"})
    keep(ledger, {2: "two"})
    folder = local(ledger)
    (name, *_), (other, *_) = folder.segments()
    for each, numbers in ((name, {"rows": HUGE}), (other, {"rows": HUGE, "data": 2**40})):
        path = Path(folder.path, each)
        content = path.read_bytes()
        path.write_bytes(forged(content, len(header(each.removesuffix(".arrow"), SCOPE.about)), **numbers))
    # So large is a file with a hole, which costs nothing.
    os.truncate(Path(folder.path, other), 2**40 + 2**20)
    with pytest.warns(LedgerWarning, match="cannot hold the 4,294,967,295 records that it says") as said:
        assert found(ledger) == {}
    assert {str(each.message).split(": ")[1] for each in said} == {name, other}
    assert main(["verify", ledger.location]) == 1
    assert capsys.readouterr().out.count("4,294,967,295") == 2
    assert main(["export", ledger.location, str(tmp_path / "calls.parquet")]) == 0
    # Its calls are made, and kept, again.
    with pytest.warns(LedgerWarning):
        keep(ledger, {1: "again"})
    with pytest.warns(LedgerWarning):
        assert found(ledger) == {1: "again"}


def test_a_frame_larger_than_any_memory_is_damage(ledger: Ledger) -> None:
    content = forged(CONTENT, PLACES[2], data=2**40)
    size = len(content) + 2**40

    def holes(offset: int, length: int) -> bytes:
        if length > 2**30:
            raise MemoryError
        return content[offset : offset + length].ljust(min(length, size - offset), b"\0")

    (last,) = [item[0] for item in scan(holes, size, "s", ID, PLACES[2]) if not isinstance(item, Damage)]
    damage = open_frame(last, holes)
    assert isinstance(damage, Damage) and "more memory than there is" in damage.reason


@pytest.mark.contract
@pytest.mark.parametrize("rows", [4, 2**31, 2**40])
def test_columns_that_are_shorter_than_the_batch_says_are_damage(ledger: Ledger, rows: int) -> None:
    keep(ledger, {1: "one", 2: "two", 3: "three"})
    folder = local(ledger)
    ((name, *_),) = folder.segments()
    path, begin = Path(folder.path, name), len(header(name.removesuffix(".arrow"), SCOPE.about))
    content = path.read_bytes()
    match = LINE.search(content, begin)
    assert match is not None
    offset = begin + int(match[4], 16)
    message = bytearray(content[offset:])
    for at in range(0, len(message) - 8, 8):
        # The lengths of the batch and of its columns, in Arrow's own metadata.
        if message[at : at + 8] == (3).to_bytes(8, "little"):
            message[at : at + 8] = rows.to_bytes(8, "little")
    numbers = {"dsum": zlib.crc32(message)}
    path.write_bytes(forged(content[:offset] + bytes(message), begin, **numbers))
    with pytest.warns(LedgerWarning, match="Arrow cannot read it"):
        assert ledger.reader(SCOPE).get(key(1)) is None
    with pytest.warns(LedgerWarning, match="Arrow cannot read it"):
        assert found(ledger) == {}


def test_offsets_that_lead_out_of_a_column_are_damage_to_whoever_hands_it_to_arrow(ledger: Ledger) -> None:
    keep(ledger, {1: "x" * 40, 2: "y" * 40})
    folder = local(ledger)
    ((name, *_),) = folder.segments()
    path, begin = Path(folder.path, name), len(header(name.removesuffix(".arrow"), SCOPE.about))
    content = path.read_bytes()
    match = LINE.search(content, begin)
    assert match is not None
    offset = begin + int(match[4], 16)
    # Where the text of the second record begins: 42 bytes with the quotes of JSON.
    texts = b"".join(number.to_bytes(4, "little") for number in (0, 42, 84))
    assert content[offset:].count(texts) == 1
    wrong = b"".join(number.to_bytes(4, "little") for number in (0, 2**30, 84))
    message = content[offset:].replace(texts, wrong)
    path.write_bytes(forged(content[:offset] + message, begin, dsum=zlib.crc32(message)))
    with pytest.warns(LedgerWarning, match="Arrow cannot read it"):
        assert found(ledger) == {}
