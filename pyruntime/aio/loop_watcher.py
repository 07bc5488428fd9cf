"""Notices code that blocks the event loop of an operator, and says where it is.

`LoopWatcher.beat` is for the loop's thread, `start`, `close` and `join` for any thread; the rest is the
watcher's own thread.
"""

# An async function that blocks (`time.sleep`, `requests`, a long computation) stops every other call, every
# timer and every time-out of its loop, and nothing fails: the job is only slow. The loop cannot report that
# itself, for it has no turn meanwhile. Three ways were weighed:
#
# - asyncio's debug mode names a slow callback after it has ended, and its task, but not its line; it costs
#   each callback, and uvloop has less of it.
# - The thread that takes the results wakes up anyway, but not while results come: a function that blocks for
#   20 ms a row gives results all the time, and is fifty times too slow.
# - A thread that looks ten times a second costs next to nothing, and sees the stack while it blocks. That one
#   was taken.

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

from pillarbox.thread_start import start_thread

log = logging.getLogger("pillarbox")

LOOK_INTERVAL_S = 0.1
"""Seconds between two looks at the loop."""

LATE_AFTER_S = 0.1
"""Seconds since the last beat after which the loop is blocked; beats come every 0.05 s."""

WARN_AFTER_S = 1.0
"""Seconds that code of one place has blocked the loop when a warning is given."""

HALF_LIFE_S = 5.0
"""Seconds after which what was blocked counts half, so that a tenth of the time is what is warned of."""

MAX_FRAMES = 12
"""Frames of a stack in a warning, the innermost ones."""

CAN_READ_FRAMES: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""A thread's frames can be read from another thread: there is a GIL."""

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_ASYNCIO = str(Path(asyncio.__file__).parent) + os.sep
_IMPORT = ("<frozen importlib", str(Path(importlib.__file__).parent) + os.sep)
"""Files of the frames that stand between the code that imports and the module."""

_LOOP_TURN = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]

_numbers = itertools.count(1)
_warned: set[tuple[str, int, int]] = set()
"""Places that were warned of: file, line of the function, line in it; 0 for the function as a whole."""

Clock = Callable[[], float]


class LoopWatcher:
    """Warns, once for each place, of code that blocks the loop of the thread that makes this object.

    A place is a line of the function that is called. The first warning of a function is by the time of all
    its lines together, since a computation goes through many.

    name: the function of the calls, for the warning. clock: seconds, monotonic.
    """

    def __init__(self, name: str, clock: Clock = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._loop_thread = threading.get_ident()
        self._beat = self._looked = self._halved = clock()
        self._blocked: dict[tuple[str, int, int], float] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, in a thread; no effect on a CPython without a GIL. Any thread, once."""
        # There the frames of a thread that runs are replaced and freed while another one reads them.
        if CAN_READ_FRAMES:
            name = f"pillarbox-watch-{next(_numbers)}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            # Without it all goes on, but for its warnings.
            with suppress(RuntimeError, MemoryError):
                start_thread(self._thread)

    def beat(self) -> None:
        """Note that the loop has its turn."""
        self._beat = self._clock()

    def close(self) -> None:
        """Look no more. Any thread; does not wait. Idempotent."""
        self._closed.set()

    def join(self, timeout: float) -> None:
        """Wait for the end of the thread, for `timeout` seconds at most. Not on the loop's thread."""
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(timeout)

    def look(self) -> None:
        """Count the time since the last look, if the loop is blocked, to the code that blocks it."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        if now - self._halved > HALF_LIFE_S:
            self._halved = now
            self._blocked = {place: seconds / 2 for place, seconds in self._blocked.items()}
        late = now - self._beat
        if late <= LATE_AFTER_S:
            return
        frame = sys._current_frames().get(self._loop_thread)
        frames = [] if frame is None else user_frames(frame)
        if not frames:
            return
        code = frames[0].f_code
        function = code.co_filename, code.co_firstlineno, 0
        line = (*function[:2], frames[0].f_lineno)
        for place in (function, line):
            self._blocked[place] = self._blocked.get(place, 0.0) + min(passed, late)
        # Of a function that was warned of, another line is another fault.
        place = line if function in _warned else function
        if self._blocked[place] >= WARN_AFTER_S and place not in _warned and line not in _warned:
            _warned.update((function, line))
            log.warning("%s", _warning(self._name, self._blocked[place], frames))

    def _run(self) -> None:
        while not self._closed.wait(LOOK_INTERVAL_S):
            self.look()


def user_frames(frame: FrameType) -> list[FrameType]:
    """The frames of a loop's thread that are the user's, the outermost first; `frame` is the innermost one.

    They begin where Pillarbox or the event loop calls them. None when the loop waits or runs its own code.
    """
    frames: list[FrameType] = []
    some: FrameType | None = frame
    while some is not None and not _is_call_site(some.f_code):
        if some.f_code is _LOOP_TURN:
            # Above it stands the selector.
            return []
        frames.append(some)
        some = some.f_back
    if some is None:
        return []
    frames.reverse()
    names = [each.f_code.co_filename for each in frames]
    if any(
        name.startswith(_PACKAGE) and inner.startswith(_IMPORT) for name, inner in itertools.pairwise(names)
    ):
        # An import of Pillarbox's own, or of a library that it uses.
        return []
    # A record that is decoded, or a helper of asyncio, is the business of the code that uses it.
    while frames and frames[0].f_code.co_filename.startswith((_PACKAGE, _ASYNCIO)):
        del frames[0]
    return [each for each in frames if not each.f_code.co_filename.startswith(_IMPORT)]


def _is_call_site(code: CodeType) -> bool:
    if code.co_filename.startswith(_PACKAGE):
        return code.co_name in ("_carry", "_call", "_run", "_read_ahead", "enter_function")
    return code.co_filename.startswith(_ASYNCIO) and code.co_name == "_run"


def _warning(name: str, seconds: float, frames: list[FrameType]) -> str:
    inner = frames[-MAX_FRAMES:]
    found = traceback.StackSummary.extract(((each, each.f_lineno) for each in inner), lookup_lines=True)
    return (
        f"code on the event loop of {name} blocks it, for {seconds:.1f} s so far: no other call goes on "
        "meanwhile. Make it a plain `def`, which runs in threads, or use `await asyncio.to_thread(...)` or "
        f"an asynchronous client there:\n{''.join(found.format()).rstrip()}"
    )
