"""Ports of servers that demos, benchmarks and tests start. Any thread.

Between the moment that a port is found to be free and that in which a server listens there, seconds pass,
and the next one who asks for any port may be given it. Who looks for the server then talks to a stranger:
once that was Spark's state server, which takes one connection, so that the task whose place it took hung for
ever.
"""

from __future__ import annotations

import socket
import sys
import weakref


class Ports:
    """So many ports of loopback, given to nobody who asks for any port as long as this object is there.

    A server that names one of them gets it, again and again, if it sets SO_REUSEADDR, as servers do.
    """

    def __init__(self, count: int) -> None:
        held = [socket.socket() for _ in range(count)]
        self.give_up = weakref.finalize(self, _close, held)
        """Gives them up before."""
        for each in held:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        self.numbers: list[int] = [each.getsockname()[1] for each in held]
        if sys.platform != "linux":
            # Elsewhere the server would not get what somebody else has bound.
            self.give_up()


def _close(held: list[socket.socket]) -> None:
    for each in held:
        each.close()
