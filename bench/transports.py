"""Our transport beside grpcio and multiprocessing.connection: `python -m bench.transports`.

Prints for each: bytes of the package, the cost of its import beside `import pillarbox`, and requests that a
thread makes one after the other of a server in a process of its own, each of 200 bytes of JSON; and a
megabyte of rows there and back, which JSON holds as base64 in pieces. The costs are processor time of both
processes. The ways take turns: a busy machine is busy for all.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from bench.table import Column, print_table

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    "pillarbox.rpc": ("pillarbox.rpc.connection", "pillarbox.rpc.server"),
    "grpcio": ("grpc",),
    "multiprocessing.connection": ("multiprocessing.connection",),
}
QUESTION = {"next": 17, "most": 4, "host": "a-machine-of-the-cluster", "note": "x" * 120}
SECRET = b"0123456789abcdef0123456789abcdef"
ROUNDS, REQUESTS, ROWS_REQUESTS = 7, 300, 20
ROWS = os.urandom(1_000_000)
PIECE_NBYTES = 150_000
"""Bytes of rows in one message of JSON, which may be 255 KiB."""
Ask = Callable[[Any], Any]

IMPORT = """
import importlib, json, sys, time
import asyncio, json, logging, threading
import pillarbox
before, at = len(sys.modules), time.perf_counter()
for name in sys.argv[1:]:
    importlib.import_module(name)
took = time.perf_counter() - at
rss = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")][0]
print(json.dumps([took * 1e3, len(sys.modules) - before, rss / 1024]))
"""


class Echo:
    """A service that gives back what it is asked."""

    async def serve(self, connection: Any, hello: list[Any]) -> None:
        """Answer until the client goes."""
        while True:
            connection.send(*await connection.receive())

    async def begin(self, port: int) -> None:
        """Nothing is needed."""

    async def end(self) -> None:
        """Nothing is kept."""


def serve(name: str) -> None:
    """Serve until the input ends; the way here goes to the output first. In a process of its own."""
    if name == "pillarbox.rpc":
        import pickle

        from pillarbox.rpc.server import RpcServer

        with RpcServer("echo", Echo()) as server:
            _until_input_ends(pickle.dumps(server.handle()).hex())
    elif name == "grpcio":
        from concurrent.futures import ThreadPoolExecutor

        import grpc

        server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(lambda body, _: _answer(body))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo", {"Ask": handler})])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        _until_input_ends(str(port))
        server.stop(None)
    else:
        with Listener(("127.0.0.1", 0), authkey=SECRET) as listener:

            def answer(connection: Connection[Any, Any]) -> None:
                try:
                    while True:
                        connection.send_bytes(_answer(connection.recv_bytes()))
                except EOFError:
                    return

            def accept() -> None:
                while True:
                    threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            _until_input_ends(json.dumps(listener.address))


def _answer(body: bytes) -> bytes:
    return body if len(body) == len(ROWS) else json.dumps(json.loads(body)).encode()


def _until_input_ends(way: str) -> None:
    print(way, flush=True)
    sys.stdin.read()


@contextmanager
def asking(name: str, way: str) -> Iterator[Ask]:
    """A client, and one request of it."""
    if name == "pillarbox.rpc":
        import pickle

        from pillarbox.loop_thread import new_event_loop
        from pillarbox.rpc.connection import connect

        handle, loop = pickle.loads(bytes.fromhex(way)), new_event_loop()
        opening = connect(handle)
        connection = loop.run_until_complete(opening.__aenter__())
        connection.send("open", "echo")

        async def echoes(*bodies: Any) -> list[Any]:
            for body in bodies:
                connection.send("ask", body)
            return [(await connection.receive())[1] for _ in bodies]

        def ask(body: Any) -> Any:
            if body is not ROWS:
                return loop.run_until_complete(echoes(body))[0]
            pieces = [ROWS[at : at + PIECE_NBYTES] for at in range(0, len(ROWS), PIECE_NBYTES)]
            answers = loop.run_until_complete(echoes(*(base64.b64encode(piece).decode() for piece in pieces)))
            return b"".join(map(base64.b64decode, answers))

        yield ask
        loop.run_until_complete(opening.__aexit__(None, None, None))
        loop.close()
    elif name == "grpcio":
        import grpc

        with grpc.insecure_channel(f"127.0.0.1:{way}") as channel:
            call = channel.unary_unary("/echo/Ask")
            yield lambda body: call(body) if body is ROWS else json.loads(call(json.dumps(body).encode()))
    else:
        with Client(tuple(json.loads(way)), authkey=SECRET) as connection:

            def request(body: Any) -> Any:
                connection.send_bytes(body if body is ROWS else json.dumps(body).encode())
                answer = connection.recv_bytes()
                return answer if body is ROWS else json.loads(answer)

            yield request


def measured() -> dict[str, list[tuple[float, ...]]]:
    """By way, for each round: the median of a request and its processor time, in us; the same of rows."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in MODULES}
    for _ in range(ROUNDS):
        for name, rounds in found.items():
            command = [sys.executable, "-m", "bench.transports", "--serve", name]
            program = subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, text=True)
            assert program.stdin is not None and program.stdout is not None
            with asking(name, program.stdout.readline().strip()) as ask:
                for _ in range(REQUESTS // 10):
                    assert ask(QUESTION) == QUESTION
                assert ask(ROWS) == ROWS
                small = _round(ask, QUESTION, REQUESTS, program.pid)
                rounds.append((*small, *_round(ask, ROWS, ROWS_REQUESTS, program.pid)))
            program.communicate()
    return found


def _round(ask: Ask, body: Any, requests: int, server: int) -> tuple[float, float]:
    times = []
    before = time.process_time() + _processor_s(server)
    for _ in range(requests):
        at = time.perf_counter()
        ask(body)
        times.append(time.perf_counter() - at)
    used = time.process_time() + _processor_s(server) - before
    return statistics.median(times) * 1e6, used / requests * 1e6


def _processor_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def import_cost(modules: tuple[str, ...]) -> tuple[float, int, float]:
    """Milliseconds, modules and MiB of memory of a process that imports these, the best of five."""
    command = [sys.executable, "-c", IMPORT, *modules]
    runs = [json.loads(subprocess.check_output(command, cwd=ROOT)) for _ in range(5)]
    return tuple(min(runs))


def package_nbytes(modules: tuple[str, ...]) -> int:
    """Bytes of the files that come with it: of a package all, of a module its own."""
    spec = find_spec(modules[0])
    assert spec is not None and spec.origin is not None
    origin = Path(spec.origin)
    if origin.name != "__init__.py" and "rpc" not in origin.parts:
        return origin.stat().st_size
    return sum(f.stat().st_size for f in origin.parent.rglob("*") if f.is_file() and f.suffix != ".pyc")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.transports", description=__doc__)
    parser.add_argument("--serve", choices=list(MODULES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    requests = measured()
    rows = []
    for name, modules in MODULES.items():
        milliseconds, count, memory = import_cost(modules)
        times = [statistics.median(each) for each in zip(*requests[name], strict=True)]
        rows.append([
            name, f"{package_nbytes(modules) / 1e3:,.0f}", f"{milliseconds:.0f}", str(count), f"{memory:.0f}",
            *(f"{each:,.0f}" for each in times),
        ])  # fmt: skip
    headings = [
        "package kB",
        "import ms",
        "modules",
        "process MiB",
        "request us",
        "processor us",
        "MB us",
        "processor us",
    ]
    print_table([Column("", right=False), *map(Column, headings)], rows)


if __name__ == "__main__":
    main()
