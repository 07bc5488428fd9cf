"""A job that holds slots of a shared capacity, in a process of its own, to be killed. A program.

`python -m tests.limits.unit.holding_slots HANDLE SLOTS PORT NAME` reads a pickled handle of a coordinator in
hexadecimal and calls the service on PORT of loopback under its NAME without end.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pillarbox import Options, Shared, async_map
from pillarbox.aio.limits.coordinator import CoordinatorHandle

ROOT = Path(__file__).resolve().parents[3]


class Counting:
    """A service on loopback that counts its calls in flight, by the names of its callers.

    A call takes `seconds` whatever becomes of its caller, as a service works on what it was sent.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.in_flight: Counter[str] = Counter()
        self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one call."""
        name = (await reader.readline()).decode().strip()
        self.in_flight[name] += 1
        self.most = max(self.most, self.in_flight.total())
        await asyncio.sleep(self._seconds)
        self.in_flight[name] -= 1
        writer.write(b"done\n")
        writer.close()

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening; calls come to their end."""
        self._server.close()
        while self.in_flight.total():
            await asyncio.sleep(self._seconds)


def start(shared: CoordinatorHandle, slots: int, port: int, name: str) -> subprocess.Popen[bytes]:
    """The program, in a process of its own."""
    words = [pickle.dumps(shared).hex(), str(slots), str(port), name]
    program = [sys.executable, "-m", "tests.limits.unit.holding_slots", *words]
    return subprocess.Popen(program, cwd=ROOT)


async def main() -> None:
    shared = pickle.loads(bytes.fromhex(sys.argv[1]))
    slots, port, name = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

    async def call(row: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{name}\n".encode())
        await reader.readline()
        writer.close()
        return row

    options = Options(capacity=Shared(slots), limits=shared, ordered=False)
    async for _ in async_map(itertools.count(), call, options=options):
        pass


if __name__ == "__main__":
    asyncio.run(main())
