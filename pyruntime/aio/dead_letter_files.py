"""Puts failed rows of `async_map` without Spark aside, for the thread that takes the results."""

from __future__ import annotations

import datetime
import functools
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pillarbox.aio.calls import Chunk
from pillarbox.aio.errors import Failed, shorten
from pillarbox.ledger.private_files import FILE_MODE, open_own

ITEM_CHARACTERS = 1_000_000
"""Those of a dead letter at most for an item, or what is in one, that JSON has no form for."""


# JSON lines, since whatever ends the process leaves whole lines behind, and any tool reads them. The file is
# opened and closed for each chunk of results: what follows a result may end the process, and a buffer that is
# not written would then hold the one dead letter that says why.


class DeadLetterFiles:
    """Puts failed items aside, one JSON object a line: `row`, `_error`, `_failed_at`.

    places: the files, by the uid of the function in which an item failed; by None for one given alone.
        Lines are added to a file that is there, which keeps its mode. Otherwise it is made with the first
        failed item, for its owner alone (0600).
    has_source: the calls say which item they come from, as behind the first function of a chain.

    Raises TypeError or ValueError for a path that cannot be one.
    """

    def __init__(self, places: Mapping[str | None, str | os.PathLike[str]], *, has_source: bool) -> None:
        for path in places.values():
            _check_path(path)
        self._places = places
        self._has_source = has_source

    def write(self, chunk: Chunk) -> None:
        """Write the failed items among results, to the ends of their files. Raises OSError."""
        lines: dict[str | None, list[str]] = {}
        for call, result in chunk:
            if type(result) is Failed:
                row = call.source if self._has_source else call.row
                lines.setdefault(result.info.uid, []).append(_line(row, result))
        for uid, some in lines.items():
            if uid in self._places:
                with open(self._places[uid], "a", encoding="utf-8", opener=_opener) as file:
                    file.write("".join(some))


def _check_path(path: Any) -> None:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"dead_letter={path!r}: must be the path of a file, not {type(path).__name__}")
    folder = Path(path).parent
    if not folder.is_dir():
        raise ValueError(f"dead_letter={str(path)!r}: there is no folder {str(folder)!r}")
    if Path(path).is_dir():
        raise ValueError(f"dead_letter={str(path)!r}: is a folder, must be a file of JSON lines")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ValueError(f"dead_letter={str(path)!r}: this user may not write it; check its mode and owner")


def _opener(path: str, flags: int) -> int:
    # A link to a terminal or a pipe is the user's own; what is made here is the owner's alone.
    try:
        return os.open(path, flags & ~os.O_CREAT)
    except FileNotFoundError:
        with suppress(FileExistsError):
            return open_own(path, flags | os.O_EXCL)
        return os.open(path, flags, FILE_MODE)


def _line(row: Any, failed: Failed) -> str:
    picture = functools.partial(shorten, limit=ITEM_CHARACTERS, binaries=True)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    dead_letter = {"row": row, "_error": failed.info.told(), "_failed_at": now}
    try:
        return json.dumps(dead_letter, default=picture, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError):
        # Keys other than text, a collection within itself, NaN, for which JSON has no number.
        return json.dumps({**dead_letter, "row": picture(row)}) + "\n"
