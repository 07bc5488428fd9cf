"""The group commit: makes finished calls durable, each key once, whoever else writes at the same time.

Under the folder's lock a commit first looks what other attempts have committed, leaves out what they have,
and appends the rest to its own segment; the wait for the disk comes after the lock. So each key has one
record, and the rows of all attempts get the same result. For one thread, that of a `LedgerWriter`. Idea:
group commit (Gawlick, IMS Fast Path; DeWitt et al. 1984).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping

from pillarbox.ledger.errors import LedgerConflictError, LedgerError
from pillarbox.ledger.folder import SUFFIX, LocalFolder
from pillarbox.ledger.frames import Frame, encode_frame, header, keys_of, owner_of
from pillarbox.ledger.objects import ObjectSegment
from pillarbox.ledger.reader import Folder, LedgerReader
from pillarbox.ledger.records import ERROR, Record, Row, size_of, to_batch
from pillarbox.ledger.segment import Segment

PATIENCE = 30.0
"""Seconds that a commit waits for the folder's lock."""
FRAME = 2**16
"""Bytes of a frame, about: to read one record is to read its frame."""
TRIES = 10


class Committer:
    """Commits to one scope, into a segment of its own. For one thread.

    about: what the header of the segment says. most_rows: of a frame. execution: what every record says of
    who called. one_input: a key has one input in an execution; else several are no error.
    """

    def __init__(
        self,
        folder: Folder,
        reader: LedgerReader,
        about: Mapping[str, str],
        most_rows: int,
        execution: bytes,
        one_input: bool = True,
    ) -> None:
        self.folder = folder
        self.reader = reader
        self._about = dict(about)
        self._owner = owner_of(about)
        self._execution = execution
        self._one_input = one_input
        self.most_rows = most_rows
        self._segment: Segment | ObjectSegment | None = None
        self.segment_id = ""
        self._begin = b""

    def close(self) -> None:
        """Let others merge the segment."""
        if self._segment is not None:
            self._segment.close()

    def commit(self, first: int, entries: list[Row]) -> dict[int, Record]:
        """Make entries durable, numbered from `first` on; returns what others have for some of them.

        Raises LedgerConflictError if this execution has a record of one of the keys for another input,
        LedgerFullError, LedgerError if the scope has expired or its lock cannot be had, and OSError.
        """
        adopted: dict[int, Record] = {}
        left = dict(enumerate(entries, first))
        for _ in range(TRIES):
            left = self._adopt(self._put(left), left, adopted)
            if not left:
                return adopted
        raise LedgerError(f"records in {self.folder.path} go while they are adopted, time and again")

    def _put(self, entries: dict[int, Row]) -> set[int]:
        """Make those entries durable for whose key nobody has a record; returns the numbers of the others."""
        # What can be done before the lock is: others wait for it.
        state = self.reader.state
        theirs = self._theirs(entries)
        frames = self._encoded(entries, theirs)
        # spec: Ledger!Write
        with self.folder.lock(PATIENCE) as lock:
            self.reader.catch_up(lock)
            # Others may have used the reader as well, since it was looked at.
            if self.reader.state != state:
                theirs_now = self._theirs(entries)
                if theirs_now != theirs:
                    theirs = theirs_now
                    frames = self._encoded(entries, theirs)
            if frames:
                self._write(frames, lock)
        if frames:
            self._sync([(frame, keys) for frame, keys, _ in frames])
        return theirs

    def _theirs(self, entries: dict[int, Row]) -> set[int]:
        """The numbers of entries whose key has a record already, of others or of this writer."""
        found: set[int] = set()
        pairs = [(entry[0], entry[9]) for entry in entries.values()]
        known, clashes = self.reader.kinds_of(pairs, self._execution)
        for (key, input), other in clashes.items():
            if not self._one_input:
                break
            # spec: Ledger!Refuse
            raise LedgerConflictError(
                f"two rows of this execution have the key {key.hex()} and different inputs",
                key,
                input,
                other.input,
            )
        new: dict[tuple[bytes, bytes], str] = {}
        accepts_errors = self.reader.accepts_errors
        for number, pair in zip(entries, pairs, strict=True):
            kind = entries[number][1]
            before = new.get(pair) or known.get(pair)
            # Where failed rows are called again, what comes of that is kept as well.
            if before is None or (before == ERROR and not accepts_errors):
                new[pair] = kind
            else:
                found.add(number)
        return found

    def _adopt(self, theirs: set[int], entries: dict[int, Row], adopted: dict[int, Record]) -> dict[int, Row]:
        """Get the records that others have; returns the entries whose records have gone in the meantime."""
        gone = {}
        for number in sorted(theirs):
            record = self.reader.get(entries[number][0], errors=True, input=entries[number][9])
            if record is None:
                gone[number] = entries[number]
            else:
                adopted[number] = record
        return gone

    def _encoded(self, entries: dict[int, Row], theirs: set[int]) -> list[tuple[Frame, bytes, bytes]]:
        """Frames, with their keys and their bytes, for the end of the segment as it is."""
        mine = [entry for number, entry in entries.items() if number not in theirs]
        if not mine:
            return []
        if self._segment is None:
            self.segment_id = secrets.token_hex(8)
            self._begin = header(self.segment_id, self._about)
        end = len(self._begin) if self._segment is None else self._segment.end
        frames = []
        for piece in self._pieces(mine):
            batch = to_batch(piece, self.reader.version, self._execution)
            frame, content = encode_frame(batch, self.segment_id, end, self._owner)
            frames.append((frame, keys_of(batch), content))
            end = frame.end
        return frames

    def _write(self, frames: list[tuple[Frame, bytes, bytes]], lock: int) -> None:
        if isinstance(self.folder, LocalFolder):
            self.folder.announce(lock, self.segment_id + SUFFIX)
        if self._segment is None:
            self._segment = self.folder.create(self.segment_id + SUFFIX, self._begin)
        self._segment.append(b"".join([content for _, _, content in frames]))

    def _sync(self, frames: list[tuple[Frame, bytes]]) -> None:
        assert self._segment is not None
        end = self._segment.end
        # spec: Ledger!Sync
        self._segment.sync()
        self.reader.take_in(frames)
        self.reader.is_durable(self.segment_id + SUFFIX, end)
        if not self.folder.appends:
            self._segment = None

    def _pieces(self, entries: list[Row]) -> Iterator[list[Row]]:
        """Entries of a frame each: whoever looks for one record reads its frame."""
        piece: list[Row] = []
        size = 0
        for entry in entries:
            piece.append(entry)
            size += size_of(entry)
            if len(piece) >= self.most_rows or size >= FRAME:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece
