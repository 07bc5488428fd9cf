"""The ledger as a loss of power would leave it: which bytes were on the disk, and from when on. One thread.

The processes of the harness write down what they sync (`site/sitecustomize.py`). Of a segment, what was there
when a sync of it began is on the disk when that has ended; a name is from the end of a sync of its folder on.
Everything else may be lost, and `DurableLog.cut` loses all of it: it is the worst that a disk may do. What is
deleted stays deleted, and small files beside the segments keep their content if they keep their name.

The same log says from when on the result of each call was safe, so that no row needs to be lost to see that
it left too early.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from pillarbox.ledger import Ledger, LedgerError
from pillarbox.ledger.errors import Damage
from pillarbox.ledger.format import Rows, open_frame, owner_of, scan

SEGMENT, PART = ".arrow", ".part"


class DurableLog:
    """The syncs of a ledger, and the calls whose results are in them. `read` brings what is new.

    synced: the file in which the processes write down their syncs; what it has already is of other runs.
    ledger: the ledger's folder.
    """

    def __init__(self, synced: Path, ledger: Path) -> None:
        self._path = synced
        self._offset = synced.stat().st_size if synced.exists() else 0
        self._ledger = ledger
        self._compacting: set[int] = set()
        # By segment: bytes on the disk, with the time from which on, and the process.
        self._sizes: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._merged: set[str] = set()
        # By folder: the names on the disk, with the time from which on.
        self._names: dict[str, dict[str, float]] = defaultdict(dict)
        # By segment: the end of each frame, and the calls whose results it has.
        self._frames: dict[str, list[tuple[int, list[int]]]] = defaultdict(list)
        self._folders: dict[str, str] = {}
        # By process: when each of its syncs began, and when it ended.
        self._waits: dict[int, dict[float, float]] = defaultdict(dict)

    def compacting(self, pid: int) -> None:
        """Know a process that only copies results: when they became durable, its syncs do not say."""
        self._compacting.add(pid)

    def read(self) -> None:
        """Read what has been synced, and what has been written, since the last time."""
        if self._path.exists():
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                self._note(json.loads(line))
        with suppress(LedgerError, OSError):
            # It is being written, expired or filled up while this reads it: the rest is found next time.
            ledger = Ledger(str(self._ledger))
            for scope in ledger.scopes():
                self._read_folder(Path(ledger.folder(scope).path), owner_of(scope.about))

    def _note(self, line: dict[str, object]) -> None:
        pid, began = line["pid"], line["began"]
        assert isinstance(pid, int)
        assert isinstance(began, float)
        at = line.get("at", math.inf)
        assert isinstance(at, float)
        self._waits[pid][began] = at
        if "path" not in line:
            return
        path, size, names = str(line["path"]), line["size"], line["names"]
        assert isinstance(size, int)
        if isinstance(names, list):
            known = self._names[path]
            for name in names:
                known.setdefault(_stem(str(name)), at)
            return
        segment = _stem(os.path.basename(path))
        self._sizes[segment].append((at, size))
        if pid in self._compacting:
            self._merged.add(segment)

    def _read_folder(self, folder: Path, owner: str) -> None:
        for path in folder.glob(f"*{SEGMENT}"):
            segment = path.name.removesuffix(SEGMENT)
            known = self._frames[segment]
            self._folders[segment] = str(folder)
            with suppress(FileNotFoundError), open(path, "rb") as file:

                def read(offset: int, length: int, file: int = file.fileno()) -> bytes:
                    return os.pread(file, length, offset)

                size = os.fstat(file.fileno()).st_size
                start = known[-1][0] if known else 0
                if size <= start:
                    continue
                for found in scan(read, size, path.name, segment, start, owner):
                    if isinstance(found, Damage):
                        # Not whole yet, or cut off by a kill.
                        break
                    batch = open_frame(found[0], read)
                    if isinstance(batch, Damage):
                        break
                    rows = Rows(batch)
                    values = [rows.record(row).value for row in range(rows.count)]
                    calls = [value["call"] for value in values if "call" in value]
                    known.append((found[0].end, calls))

    def waits(self) -> dict[int, list[tuple[float, float]]]:
        """The waits of each process for the disk: from when, and until when or for ever, in order."""
        return {pid: sorted(waits.items()) for pid, waits in self._waits.items()}

    def written(self) -> set[int]:
        """The calls whose results were seen in the ledger, on the disk or not."""
        return {call for frames in self._frames.values() for _, calls in frames for call in calls}

    def copied(self) -> set[int]:
        """The calls of which nobody knows since when they were durable: only copies of them were seen."""
        copies: set[int] = set()
        originals: set[int] = set()
        for segment, frames in self._frames.items():
            place = copies if segment in self._merged else originals
            place.update(call for _, calls in frames for call in calls)
        return copies - originals

    def durable(self) -> dict[int, float]:
        """The calls whose results were on the disk, with the time from which on."""
        found: dict[int, float] = {}
        for segment, frames in self._frames.items():
            named = self._named(self._folders[segment], segment)
            if named is None:
                continue
            syncs = iter(sorted(self._sizes.get(segment, ()), key=lambda sync: sync[1]))
            sync = next(syncs, None)
            for end, calls in frames:
                while sync is not None and sync[1] < end:
                    sync = next(syncs, None)
                if sync is None:
                    break
                at = max(sync[0], named)
                for call in calls:
                    found[call] = min(at, found.get(call, at))
        return found

    def _named(self, folder: str, name: str) -> float | None:
        """The time from which on a name, and those of the folders above it, were on the disk."""
        latest = 0.0
        root = os.path.dirname(os.path.realpath(self._ledger))
        path = os.path.join(os.path.realpath(folder), name)
        while os.path.dirname(path) != root:
            at = self._names[os.path.dirname(path)].get(os.path.basename(path))
            if at is None:
                return None
            latest = max(latest, at)
            path = os.path.dirname(path)
        return latest

    def cut(self) -> int:
        """Take from the ledger what was on no disk; returns how many bytes of its segments that were.

        After this nobody may have it open.
        """
        self.read()
        lost = self._cut(os.path.realpath(self._ledger))
        for segment, frames in self._frames.items():
            path = Path(self._folders[segment], segment + SEGMENT)
            size = path.stat().st_size if path.exists() else None
            if size is not None:
                self._frames[segment] = [frame for frame in frames if frame[0] <= size]
            elif segment not in self._sizes:
                self._frames[segment] = []
        return lost

    def _cut(self, folder: str) -> int:
        lost = 0
        names = self._names[folder]
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                size = entry.stat(follow_symlinks=False).st_size
                if entry.is_dir(follow_symlinks=False):
                    lost += self._cut(entry.path)
                    if entry.name not in names:
                        shutil.rmtree(entry.path)
                elif _stem(entry.name) not in names:
                    os.unlink(entry.path)
                    lost += size if entry.name.endswith(SEGMENT) else 0
                elif entry.name.endswith(SEGMENT):
                    synced = max((end for _, end in self._sizes.get(_stem(entry.name), ())), default=0)
                    if synced < size:
                        os.truncate(entry.path, synced)
                        lost += size - synced
        return lost


def _stem(name: str) -> str:
    """Return the part of a segment's name that it keeps when it is renamed at its end: it is random."""
    return name.removesuffix(PART).removesuffix(SEGMENT)
