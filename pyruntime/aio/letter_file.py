"""Dead letters of `async_map` without Spark: a file of JSON lines. For the thread that takes the results."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from pillarbox.aio.errors import shorten
from pillarbox.aio.failure import Failed
from pillarbox.aio.sinks import Chunk


class LetterFile:
    """Puts failed items aside, one JSON object a line: `row`, `_error`, `_failed_at`.

    path: a file; lines are added to one that is there. It is made with the first failed item.
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
        lines = [_line(call.row, result) for call, result in chunk if type(result) is Failed]
        if lines:
            # Closed each time, before later results are seen: what follows them may end the process.
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(lines))


def _line(row: Any, failed: Failed) -> str:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    letter = {"row": row, "_error": failed.info._asdict(), "_failed_at": now}
    try:
        return json.dumps(letter, default=shorten) + "\n"
    except (TypeError, ValueError, RecursionError):
        # Keys that are no text, a collection within itself.
        return json.dumps({**letter, "row": shorten(row, 10_000)}) + "\n"
