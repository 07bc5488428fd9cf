"""Finds rows of several tasks that have one key and different inputs, when a task ends."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import NoReturn
from zlib import crc32

from pillarbox.ledger.errors import LedgerConflictError
from pillarbox.ledger.folders import Folder
from pillarbox.ledger.keys import KEY_BYTES
from pillarbox.ledger.reader import LedgerReader

NOTE_PREFIX = ".found-"
NOTE_MAX_AGE_S = 86_400.0
"""Seconds after which the file of another execution is deleted."""
KEYS_PER_LOOKUP = 1024
"""Keys that are looked up before other threads have their turn with the reader."""
_pack = Struct("<Q").pack
_row_of = Struct(f"<{KEY_BYTES}sQ").pack
ROW_BYTES = KEY_BYTES + 8
"""Bytes of a row: its key, and a checksum of its input."""


class ConflictFinder:
    """Finds rows of several tasks that have one key and different inputs. For one thread.

    A task looks for such rows before each call and at each commit. Neither can know of a row that was not
    called, as an earlier execution has kept its answer, since it leaves no record of this one; nor, in an
    object store, which has no lock, of a call that another task makes at the same time. So a task writes down
    at its end what it has found of earlier executions, and only then looks: at all that has been kept under
    the keys of its rows, and, for keys with several inputs, at the files of the other tasks. Of two that end
    at the same time, the one that looks later sees the other. (Idea: the flags of Dekker's algorithm.)

    execution: that of the task. alone: it has no other tasks, so nothing has to be written down for them.
    """

    def __init__(self, execution: bytes, alone: bool = False) -> None:
        self._execution = execution
        self._alone = alone
        self._rows = bytearray()
        self._found = bytearray()

    def add(self, key: bytes, input: bytes, *, is_old: bool = False) -> None:
        """Note a row; is_old: an earlier execution has kept its answer."""
        self.add_all((key,), (input,), is_old=is_old)

    def add_all(self, keys: Sequence[bytes], inputs: Sequence[bytes], *, is_old: bool = False) -> None:
        """As `add` for several rows."""
        rows = b"".join(map(_row_of, keys, map(crc32, inputs)))
        self._rows += rows
        if is_old and not self._alone:
            self._found += rows

    def check(self, reader: LedgerReader, folder: Folder) -> None:
        """Write down what was found, and raise LedgerConflictError where a key has two inputs. Blocks.

        reader, folder: those of the task's scope. Raises LedgerError and OSError.
        """
        own = ""
        if self._found:
            # spec: Ledger!Tell
            own = self._tell(folder)
        reader.refresh()
        # spec: Ledger!Done
        several = self._several(reader)
        if not several:
            return
        mine: dict[bytes, set[bytes]] = {}
        for row in _rows(self._rows):
            if row[:KEY_BYTES] in several:
                mine.setdefault(row[:KEY_BYTES], set()).add(row[KEY_BYTES:])
        for key, inputs in mine.items():
            theirs = {_pack(crc32(input)) for input, is_of_this in several[key].items() if is_of_this}
            if len(inputs | theirs) > 1:
                _raise_conflict(key, several[key])
        if self._alone:
            return
        for name in folder.names():
            if name.startswith(self._prefix) and name != own:
                with suppress(FileNotFoundError):
                    for row in _rows(folder.read(name, 0, folder.size(name))):
                        key, input_sum = row[:KEY_BYTES], row[KEY_BYTES:]
                        if key in mine and input_sum not in mine[key]:
                            _raise_conflict(key, several[key])

    @property
    def _prefix(self) -> str:
        return f"{NOTE_PREFIX}{self._execution.hex()}-"

    def _tell(self, folder: Folder) -> str:
        folder.make()
        for name in folder.names():
            if name.startswith(NOTE_PREFIX) and not name.startswith(self._prefix):
                with suppress(FileNotFoundError):
                    if time.time() - folder.changed(name) > NOTE_MAX_AGE_S:
                        folder.remove(name)
        own = self._prefix + secrets.token_hex(8)
        folder.put(own, bytes(self._found))
        return own

    def _several(self, reader: LedgerReader) -> dict[bytes, dict[bytes, bool]]:
        """The inputs under each own key that has several, and whether this execution has kept an answer."""
        found = {}
        words = memoryview(self._rows).cast("Q")[:: ROW_BYTES // 8]
        for start in range(0, len(words), KEYS_PER_LOOKUP):
            for place in reader.repeated(words[start : start + KEYS_PER_LOOKUP].tolist()):
                at = (start + place) * ROW_BYTES
                key = bytes(self._rows[at : at + KEY_BYTES])
                inputs: dict[bytes, bool] = {}
                for origin in reader.origins(key):
                    is_of_this = origin.execution == self._execution
                    inputs[origin.input] = inputs.get(origin.input, False) or is_of_this
                if len(inputs) > 1:
                    found[key] = inputs
        return found


def _rows(content: bytes | bytearray) -> Iterator[bytes]:
    for start in range(0, len(content), ROW_BYTES):
        yield bytes(content[start : start + ROW_BYTES])


def _raise_conflict(key: bytes, inputs: dict[bytes, bool]) -> NoReturn:
    one, other = list(inputs)[-2:]
    raise LedgerConflictError(key, one, other)
