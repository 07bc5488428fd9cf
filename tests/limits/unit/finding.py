"""A job over two addresses of a service, in a process of its own. A program.

`python -m tests.limits.unit.finding HANDLE PORT PORT` reads a pickled handle of a coordinator in hexadecimal.
Each line that it reads is a row, whose address it writes; of a line "?" it writes the state of the first one.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from pillarbox import Endpoints, Options, async_map, current_call
from pillarbox.aio.endpoint_pool import pool_of
from pillarbox.aio.limits.coordinator import CoordinatorHandle

ROOT = Path(__file__).resolve().parents[3]


class Refused(Exception):
    """An answer 503 that asks callers to wait."""

    def __init__(self) -> None:
        super().__init__("status 503")
        self.status = 503
        self.headers = {"Retry-After": "0.2"}


class Moody:
    """A service on loopback that refuses calls while `is_ill`, and counts them."""

    def __init__(self) -> None:
        self.is_ill = False
        self.calls = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one call."""
        await reader.readline()
        self.calls += 1
        writer.write(b"503\n" if self.is_ill else b"200\n")
        writer.close()

    async def start(self) -> int:
        """Listen; returns the port."""
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])


class Program:
    """The program, in a process of its own."""

    def __init__(self, shared: CoordinatorHandle, ports: tuple[int, int]) -> None:
        words = [pickle.dumps(shared).hex(), *map(str, ports)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.limits.unit.finding", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def ask(self, line: str) -> str:
        """The answer to a line."""

        def talk() -> str:
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None and stdout is not None
            stdin.write(f"{line}\n")
            stdin.flush()
            return stdout.readline().strip()

        return await asyncio.to_thread(talk)

    def end(self) -> None:
        """End it."""
        self._process.communicate()


async def main() -> None:
    shared = pickle.loads(bytes.fromhex(sys.argv[1]))
    urls = [f"http://127.0.0.1:{port}" for port in sys.argv[2:]]
    endpoints = Endpoints(urls, choose="in-order")
    pool = pool_of(endpoints.spread, asyncio.get_running_loop())

    async def rows() -> AsyncIterator[str]:
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line == "?\n":
                print(pool.all[0].state, flush=True)
            else:
                yield line

    async def call(row: str) -> str:
        url: str = current_call().endpoint.url
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(row.encode())
        status = await reader.readline()
        writer.close()
        if status != b"200\n":
            raise Refused
        return url

    async for url in async_map(rows(), call, options=Options(endpoints=endpoints, limits=shared)):
        print(url, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
