"""Errors of a worker in a script and in a notebook: the sentence, the user's frames, the line that began it.

On the driver, for the thread that shows an error that nothing has caught.
"""

# An action that fails is PySpark's call, so that its traceback has the frames of PySpark and Py4J, and where
# it writes a table a hundred lines of Java. Nothing of that is the user's. Only what is shown of an error
# that nothing catches changes: in a script by `sys.excepthook`, in IPython by its handler for classes of
# errors, each of them only where it is Python's or IPython's own. The error itself stays as it is.

from __future__ import annotations

import linecache
import re
import sys
import threading
from types import TracebackType
from typing import Any

from pyspark.errors import PySparkException

from pillarbox.aio.errors import shown_in
from pillarbox.user_frames import FULL_TRACEBACK, shows_all_frames, user_frames

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ImportError:
    # PySpark's client for Connect comes without it.
    Py4JError = PySparkException

MAX_LINES = 12
MAX_CHARACTERS = 600
"""Characters of the sentence."""
OF_SPARK = (PySparkException, Py4JError)

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in ')
_lock = threading.Lock()
_is_installed = False


def lines_of(error: BaseException) -> list[str] | None:
    """Return at most `MAX_LINES` lines for an error of Spark's that holds one of a worker; None for another.

    error: with its traceback, of which the user's frames are shown.
    """
    if not isinstance(error, OF_SPARK) or shows_all_frames():
        return None
    try:
        found = shown_in(str(error))
    except Exception:
        # Spark's errors ask the JVM for their text, which may have ended.
        return None
    if found is None:
        return None
    sentence, frames = found
    if len(sentence) > MAX_CHARACTERS:
        sentence = f"{sentence[: MAX_CHARACTERS - 1]}…"
    action = user_frames(error)
    action = action[max((n for n, line in enumerate(action) if _FRAME.match(line)), default=0) :]
    hint = f"(all frames: set {FULL_TRACEBACK}=1 for the driver and its workers)"
    room = MAX_LINES - 2 - (1 + len(action) if action else 0)
    within = _with_sources(frames)
    if len(within) > room:
        within = within[-room:]
        while within and not _FRAME.match(within[0]):
            del within[0]
    started = ["The job was started by:", *action] if action else []
    return [sentence, *within, *started, hint]


def _with_sources(frames: list[str]) -> list[str]:
    """The frames, with lines of code that only the driver has: of a notebook's cells, of a script."""
    found: list[str] = []
    for place, line in enumerate(frames):
        found.append(line)
        frame = _FRAME.match(line)
        following = frames[place + 1] if place + 1 < len(frames) else ""
        if frame is not None and not following.startswith("    "):
            source = linecache.getline(frame["file"], int(frame["line"])).strip()
            if source:
                found.append(f"    {source}")
    return found


def show_errors_in_words() -> None:
    """Have errors of workers that nothing catches be shown by `lines_of` in this process. Any thread."""
    global _is_installed
    with _lock:
        if _is_installed:
            return
        _is_installed = True
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        if not shell.custom_exceptions:
            shell.set_custom_exc(OF_SPARK, _show_in_notebook)
    elif sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_in_script


def _show_in_script(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
    lines = lines_of(error)
    if lines is None:
        sys.__excepthook__(kind, error, tb)
    else:
        print("\n".join(lines), file=sys.stderr)


def _show_in_notebook(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    tb: TracebackType,
    tb_offset: int | None = None,
) -> None:
    lines = lines_of(error)
    if lines is not None:
        # By this IPython asks an error for the form in which it is shown.
        error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
    shell.showtraceback((kind, error, tb), tb_offset=tb_offset)
