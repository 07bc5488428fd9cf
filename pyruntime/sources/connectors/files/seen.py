"""The files that a source has taken: `SeenFiles`, a log in memory; `StateFolder`, where it lasts.

A file is known by its name, relative to what is listed: `rsync -a`, `cp -p` and `tar` keep old times, so
a time says nothing about what is new. Names are held as digests of 8 bytes: of a million files two share one
with a probability of 3 in 10^8, and then the later one is told as a file that has changed.

What is known at a moment is a prefix of the log, so a checkpoint is a count, and taking files costs what
those cost, however many are known. A checkpoint is written with each offset of a stream, which Spark keeps
by the hundred: up to 8,192 digests stand in the offset itself, more need a folder. One file there that is
written over would not do: a query may go on from any offset that Spark keeps, and must find what was known
then, not later. So each offset that has new files adds a segment, which is never changed, is named after its
content and names the one before it; the offset has the last name. After some segments the next one holds all
files, and begins a generation; generations too old for any offset are deleted. A segment whose offset was
never written is never named again, and does no harm. The idea is that of Git's commits.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
import struct
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from pillarbox.redaction import shown_address
from pillarbox.sources.connectors.files.listing import open_file_system

log = logging.getLogger("pillarbox")

DIGEST_BYTES = 8
MAX_OFFSET_DIGESTS = 64 * 1024 // DIGEST_BYTES
SEGMENTS_PER_GENERATION = 64
GENERATIONS_KEPT = 17
"""So the last 16 * 64 offsets with new files at least find their segments; Spark keeps 100 offsets."""
RECORD = struct.Struct(f"<{DIGEST_BYTES}sQq")
# Hidden names: nobody reads them as data, wherever the folder is.
SEGMENT_NAME = re.compile(r"_seen-(\d{8})-(\d{3})-([0-9a-f]{16})")
SPLITS_NAME = re.compile(r"_splits-\d{20}-([0-9a-f]{16})")

UNKNOWN = (0, 0)
"""Size and time of a file of which an offset has held the digest alone."""


def digest_of(name: str) -> bytes:
    """The digest by which a file of this name is known. Any thread."""
    return hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).digest()


class SeenFiles:
    """Log of the files that were taken: digest, size, time of modification in ns since 1970.

    The discovery thread adds and cuts; `written` may be called by any thread, with a count that was taken up.
    """

    def __init__(
        self, folder: StateFolder | None, records: Iterable[tuple[bytes, int, int]] = (), segment: str = ""
    ) -> None:
        self._folder = folder
        self._log = [*records]
        self._latest = {digest: (size, modified) for digest, size, modified in self._log}
        self._lock = threading.Lock()
        # The segment that was written last, and the records up to it.
        self._segment, self._saved = segment, len(self._log) if segment else 0

    @staticmethod
    def read(folder: StateFolder | None, written: Any) -> SeenFiles:
        """Return what `written` gave. May block. Raises ValueError for what it has not given."""
        if isinstance(written, str):
            digests = b64decode(written, validate=True)
            starts = range(0, len(digests), DIGEST_BYTES)
            return SeenFiles(folder, ((digests[at : at + DIGEST_BYTES], *UNKNOWN) for at in starts))
        if folder is None:
            raise ValueError(
                "state=None: the checkpoint names what was read in a folder: give state=, that folder"
            )
        return SeenFiles(folder, folder.load(written["segment"]), written["segment"])

    def __len__(self) -> int:
        return len(self._log)

    def get(self, digest: bytes) -> tuple[int, int] | None:
        """Size and time of a file when it was taken or has changed last; None for one that is new."""
        return self._latest.get(digest)

    def add(self, digest: bytes, size: int, modified: int) -> None:
        """Take a file."""
        self._log.append((digest, size, modified))
        self._latest[digest] = (size, modified)

    def change(self, digest: bytes, size: int, modified: int) -> None:
        """Note what a file is like now. Without a folder this process alone knows it."""
        if self._folder is not None:
            self._log.append((digest, size, modified))
        self._latest[digest] = (size, modified)

    def cut(self, count: int) -> None:
        """Forget all records but the first `count`: what followed was not taken up."""
        if count < len(self._log):
            del self._log[count:]
            self._latest = {digest: (size, modified) for digest, size, modified in self._log}

    def written(self, count: int, total: int) -> Any:
        """The first `count` records as an offset holds them, durable in the folder if there is one.

        total: the files that are known or waiting. May block; raises ValueError for too many, OSError.
        """
        if self._folder is None:
            if total > MAX_OFFSET_DIGESTS:
                raise ValueError(
                    f"state=None: {total:,} files were read or are to be, and a checkpoint alone remembers "
                    f"at most {MAX_OFFSET_DIGESTS:,}: give state=, a folder of this query's own, as "
                    "'s3://bucket/state' or a local path"
                )
            return b64encode(b"".join(dict.fromkeys(digest for digest, _, _ in self._log[:count]))).decode()
        with self._lock:
            # spec: SeenFiles!Save
            if not self._segment or count != self._saved:
                before = self._segment if self._saved <= count else ""
                self._segment = self._folder.append(before, self._log[:count], self._saved)
                self._saved = count
            return {"segment": self._segment}


class StateFolder:
    """A folder of one query, on any file system that Arrow knows. Thread-safe; every method blocks.

    Raises ValueError for what is not there or not whole, OSError where the file system fails.
    """

    def __init__(self, uri: str) -> None:
        from pyarrow import fs

        from pillarbox.ledger.local_folder import LocalFolder
        from pillarbox.ledger.object_folder import ObjectFolder

        self._shown = shown_address(uri)
        filesystem, path = open_file_system(uri, None, "state")
        is_local = isinstance(filesystem, fs.LocalFileSystem)
        self._folder = LocalFolder(path) if is_local else ObjectFolder(filesystem, path)

    def append(self, before: str, records: Sequence[tuple[bytes, int, int]], saved: int) -> str:
        """Add a segment with those of `records` from `saved` on, behind `before`; its name."""
        generation, number = map(int, before.split("-")[1:3]) if before else (0, 0)
        own = records[saved:]
        if not before or number == SEGMENTS_PER_GENERATION:
            before, generation, number = "", generation + 1, 0
            # The latest record of each file.
            own = [*{record[0]: record for record in records}.values()]
        content = before.encode() + b"\n" + b"".join(itertools.starmap(RECORD.pack, own))
        name = self._put(f"_seen-{generation:08}-{number + 1:03}", content)
        if number == 0:
            self._collect(generation)
        return name

    def load(self, name: str) -> list[tuple[bytes, int, int]]:
        """The records of a segment and of those before it."""
        parts = []
        while name:
            head, _, content = self._get(name, SEGMENT_NAME).partition(b"\n")
            parts.append(content)
            name = head.decode()
        return [record for content in reversed(parts) for record in RECORD.iter_unpack(content)]

    def put_list(self, content: bytes) -> str:
        """Keep a list of splits; its name."""
        return self._put(f"_splits-{time.time_ns():020}", content)

    def get_list(self, name: str) -> bytes:
        """The list of this name."""
        return self._get(name, SPLITS_NAME)

    def _put(self, name: str, content: bytes) -> str:
        from pillarbox.ledger.errors import LedgerError

        name += f"-{hashlib.sha256(content).hexdigest()[:16]}"
        try:
            self._folder.make()
            self._folder.put(name, content)
        except (LedgerError, OSError) as error:
            why = error.__cause__ or error
            raise OSError(f"state={self._shown!r}: {name!r} cannot be written: {why}") from None
        return name

    def _get(self, name: str, kind: re.Pattern[str]) -> bytes:
        # The pattern first: a checkpoint may name no other file.
        if kind.fullmatch(name):
            with suppress(FileNotFoundError):
                content = self._folder.read(name, 0, self._folder.size(name))
                if name.endswith(hashlib.sha256(content).hexdigest()[:16]):
                    return content
        raise ValueError(
            f"state={self._shown!r}: {name!r}, which the checkpoint names, is not there as it was "
            "written: the folder must be that of this query, and nobody else may write or delete there"
        )

    def _collect(self, generation: int) -> None:
        """Delete what no offset that Spark keeps can name."""
        try:
            names = sorted(self._folder.names())
            segments = [(name, match) for name in names if (match := SEGMENT_NAME.fullmatch(name))]
            old = [name for name, match in segments if int(match[1]) + GENERATIONS_KEPT <= generation]
            lists = [name for name in names if SPLITS_NAME.fullmatch(name)]
            for name in [*old, *lists[: -2 * SEGMENTS_PER_GENERATION * GENERATIONS_KEPT]]:
                self._folder.remove(name)
        except OSError:
            log.warning("state=%r: old files cannot be deleted", self._shown, exc_info=True)
