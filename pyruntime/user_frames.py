"""Frames of the user's code in a traceback, without those of Pillarbox, PySpark and Python.

Pure; any thread.
"""

# A traceback of a worker has some twenty frames, of which one or two are lines that the user can change. A
# frame counts as the user's by its file. What lies in an installed package is the user's only where nothing
# else is: a company's own functions are installed on its clusters.

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

FULL_TRACEBACK = "PILLARBOX_FULL_TRACEBACK"
"""The environment variable that has all frames of a worker's error shown, those of Pillarbox too."""
MAX_FRAMES = 4
"""Frames of one error that are shown: the innermost ones."""
MAX_LINKS = 3
"""Errors of a chain that are shown, the one that was raised last first."""

_OWN = str(Path(__file__).resolve().parent) + os.sep
_KERNEL = str(Path(__file__).resolve().parent.parent / "kernel") + os.sep
_COMPILED = "pillarbox."
"""Compiled functions have names that begin so, and files that are relative to where they were compiled."""
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_SPARK = (f"{os.sep}pyspark{os.sep}", f"{os.sep}py4j{os.sep}")


def user_frames(error: BaseException) -> list[str]:
    """Return the lines of the frames of the user's code through which `error` came, the outermost first.

    In the form of Python's tracebacks, at most `MAX_FRAMES` frames. Empty where there are none.
    """
    found: list[traceback.FrameSummary] = []
    installed: list[traceback.FrameSummary] = []
    is_called = False
    for frame in traceback.extract_tb(error.__traceback__):
        kind = "own" if frame.name.startswith(_COMPILED) else _kind(frame.filename)
        if kind == "own":
            # Installed packages below a client of ours are none of the user's.
            is_called = f"{os.sep}clients{os.sep}" in frame.filename
        elif kind == "user":
            found.append(frame)
        elif kind == "installed" and not is_called:
            installed.append(frame)
    shown = found or installed
    lines = "".join(traceback.StackSummary.from_list(shown[-MAX_FRAMES:]).format()).splitlines()
    # The marks below a line point into it by columns, which the text of an error may shift.
    return [line for line in lines if line.strip(" ^~")]


def links(error: BaseException) -> Iterator[BaseException]:
    """Give `error` and those that it was raised from, as Python prints them, `MAX_LINKS` at most."""
    each: BaseException | None = error
    for _ in range(MAX_LINKS):
        if each is None:
            return
        yield each
        # Of a group the first member: the group itself was raised where all of them had ended.
        members = getattr(each, "exceptions", None)
        if isinstance(members, tuple | list) and members and isinstance(members[0], BaseException):
            each = members[0]
        else:
            each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def shows_all_frames() -> bool:
    """Return True if this process is to show all frames of errors."""
    return bool(os.environ.get(FULL_TRACEBACK))


def is_of_spark(filename: str) -> bool:
    """Return True for a file of PySpark or Py4J."""
    return any(part in filename for part in _SPARK)


def _kind(filename: str) -> str:
    if filename.startswith("<frozen ") or is_of_spark(filename):
        return "python"
    path = os.path.realpath(filename) if os.path.isabs(filename) else filename
    if path.startswith((_OWN, _KERNEL)):
        return "own"
    if any(part in path for part in _PACKAGES):
        return "installed"
    return "python" if path.startswith(_STANDARD) or filename.startswith(_STANDARD) else "user"
