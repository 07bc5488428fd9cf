"""Dead letters of `async_map` without Spark: a file of JSON lines. For the thread that takes the results."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pillarbox.aio.errors import Failed, shorten
from pillarbox.aio.task_io import Chunk
from pillarbox.ledger.private_files import FILE_MODE, open_own


class LetterFile:
    """Puts failed items aside, one JSON object a line: `row`, `_error`, `_failed_at`.

    path: a file; lines are added to one that is there, which keeps its mode. Otherwise it is made with the
        first failed item, for its owner alone (0600).
    Raises TypeError or ValueError for a path that cannot be one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"dead_letter={path!r}: must be the path of a file, not {type(path).__name__}")
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise ValueError(f"dead_letter={str(path)!r}: there is no folder {str(self._path.parent)!r}")
        if self._path.is_dir():
            raise ValueError(f"dead_letter={str(path)!r}: is a folder, must be a file of JSON lines")

    def write(self, chunk: Chunk) -> None:
        """Write the failed items among results, to the end of the file. Raises OSError."""
        self.put([(call.row, result) for call, result in chunk if type(result) is Failed])

    def put(self, failed: Iterable[tuple[Any, Failed]]) -> None:
        """Write items, each with what is said of its failure. Raises OSError."""
        lines = [_line(row, result) for row, result in failed]
        if lines:
            # Closed each time, before later results are seen: what follows them may end the process.
            with open(self._path, "a", encoding="utf-8", opener=_opener) as file:
                file.write("".join(lines))


class ChainLetters:
    """Puts aside items that failed in one of the functions of a chain, each where that function says.

    places: the paths by the names of the functions. has_source: the calls say which item they come from.
    Raises TypeError or ValueError for a path that cannot be one.
    """

    def __init__(self, places: Mapping[str, str | os.PathLike[str]], *, has_source: bool) -> None:
        self._files = {uid: LetterFile(path) for uid, path in places.items()}
        self._has_source = has_source

    def write(self, chunk: Chunk) -> None:
        """Write the failed items among results, to the ends of their files. Raises OSError."""
        failed: dict[str, list[tuple[Any, Failed]]] = {}
        for call, result in chunk:
            if type(result) is Failed:
                row = call.source if self._has_source else call.row
                failed.setdefault(str(result.info.uid), []).append((row, result))
        for uid, some in failed.items():
            if uid in self._files:
                self._files[uid].put(some)


def _opener(path: str, flags: int) -> int:
    # A link to a terminal or a pipe is the user's own; what is made here is the owner's alone.
    try:
        return os.open(path, flags & ~os.O_CREAT)
    except FileNotFoundError:
        with suppress(FileExistsError):
            return open_own(path, flags | os.O_EXCL)
        return os.open(path, flags, FILE_MODE)


def _line(row: Any, failed: Failed) -> str:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    letter = {"row": row, "_error": failed.info.told(), "_failed_at": now}
    try:
        return json.dumps(letter, default=shorten) + "\n"
    except (TypeError, ValueError, RecursionError):
        # Keys that are no text, a collection within itself.
        return json.dumps({**letter, "row": shorten(row, 10_000)}) + "\n"
