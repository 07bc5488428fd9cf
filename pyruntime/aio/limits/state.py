"""The file in which a coordinator keeps what it must know when it starts again. One thread at a time.

Written beside and renamed, so that it is whole whenever the process ends; readable by its owner alone, for it
holds the secret. It is not forced to the disk: it is to outlive the process, not the machine.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VERSION = 1


def write_state(path: Path, text: str) -> None:
    """Put `text`, JSON with the `VERSION` in it, where the next coordinator finds it. Raises OSError."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(file, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_state(path: Path) -> dict[str, Any] | None:
    """What was written last; None if nothing was.

    Raises OSError; PermissionError for a file that others may read; ValueError for another kind of file.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise PermissionError(
                f"state={str(path)!r}: others may read it, and it holds a secret: chmod 600"
            )
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise ValueError(f"state={str(path)!r}: not the state of a coordinator") from None
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise ValueError(f"state={str(path)!r}: not the state of a coordinator of this version")
    return value
