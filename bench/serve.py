"""The loop of the Python programs that are measured chunk by chunk; `bench.chunks` asks them.

For the main thread of the child.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

ROUND = 1_000
"""Records in flight where work is done in rounds."""

Work = Callable[[int], int]
"""Does so many operations; returns what they took, in nanoseconds or bytes."""


def serve(work: Work) -> None:
    """Answers until the questions end. A second thread sleeps meanwhile: without one, locks cost less."""
    threading.Thread(target=threading.Event().wait, name="second thread", daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        print(work(int(line)), flush=True)


def shuffled(count: int) -> list[int]:
    """The numbers below `count` in the order that the native program has."""
    order = list(range(count))
    state = 1
    for index in range(count - 1, 0, -1):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        other = (state >> 33) % (index + 1)
        order[index], order[other] = order[other], order[index]
    return order
