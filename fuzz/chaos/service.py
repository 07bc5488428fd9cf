"""The service that the jobs call: HTTP on loopback, in a process of its own, which writes down every call.

`python -m fuzz.chaos.service --log FILE --seed N` prints its port. Each call is two lines in FILE: one when
it begins, one when it ends, with the time of the monotonic clock, which all processes of a machine share. It
answers late, fails, hangs and resets connections by dice that depend on nothing but the seed, the key and
which call of this key it is; and for a while by command, `POST /mode`. One event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import random
import select
import socket
import struct
import sys
import time
import weakref
from collections import Counter
from collections.abc import Sequence

from aiohttp import web

from fuzz.chaos.calls import CALLER

MODES = ("ok", "fail", "hang", "reset", "late")
LATE = 2.5
"""Seconds that a late answer takes: longer than a job waits for it."""


def answer(key: int) -> int:
    """The answer of the service for `key`: enough to see that each row got its own answer."""
    return 2 * key + 1


class Service:
    """Answers, and writes down. Confined to its event loop's thread.

    seed: of the dice. latency: seconds that a call takes, about. badness: the share of calls that go wrong by
    the dice.
    """

    def __init__(self, log: int, seed: int, latency: float, badness: float) -> None:
        self._log = log
        self._seed = seed
        self._latency = latency
        self._badness = badness
        self._numbers = itertools.count(1)
        self._calls: Counter[int] = Counter()
        self._mode, self._until = "ok", 0.0
        self._open: set[asyncio.Transport] = set()
        self._thrown_out: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()

    def app(self) -> web.Application:
        """The two things that can be asked of it."""
        app = web.Application()
        app.router.add_post("/call/{key}", self._call)
        app.router.add_post("/mode", self._set_mode)
        return app

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._log, json.dumps({**line, "at": time.monotonic()}).encode() + b"\n")

    async def _set_mode(self, request: web.Request) -> web.Response:
        mode = request.query["name"]
        self._mode, self._until = mode, time.monotonic() + float(request.query["seconds"])
        if mode == "reset":
            for transport in list(self._open):
                self._throw_out(transport)
        return web.Response()

    def _throw_out(self, transport: asyncio.Transport) -> None:
        self._thrown_out.add(transport)
        _reset(transport)

    def _throw(self, key: int) -> tuple[str, float]:
        """Draw the fate of the next call of `key`, and the seconds that it takes."""
        self._calls[key] += 1
        dice = random.Random(f"{self._seed} {key} {self._calls[key]}")
        latency = self._latency * dice.uniform(0.4, 1.6)
        mode = dice.choice(MODES[1:]) if dice.random() < self._badness else "ok"
        if time.monotonic() < self._until:
            mode = self._mode
        return mode, LATE if mode == "late" else latency

    async def _call(self, request: web.Request) -> web.StreamResponse:
        key = int(request.match_info["key"])
        number = next(self._numbers)
        mode, latency = self._throw(key)
        transport = request.transport
        self._write({"call": number, "key": key, "caller": request.headers.get(CALLER, "")})
        outcome = "gone"
        try:
            if transport is None:
                raise ConnectionResetError
            self._open.add(transport)
            await asyncio.sleep(3600.0 if mode == "hang" else latency)
            if mode == "reset":
                self._throw_out(transport)
            if transport.is_closing() or _has_left(transport):
                raise ConnectionResetError
            body = {"answer": answer(key), "call": number}
            response = web.Response(status=503) if mode == "fail" else web.json_response(body)
            await response.prepare(request)
            await response.write_eof()
            outcome = "fail" if mode == "fail" else "ok"
            return response
        finally:
            # Where it ends by an error or is cancelled, the client has left, or was thrown out.
            if transport is not None:
                self._open.discard(transport)
                if outcome == "gone" and transport in self._thrown_out:
                    outcome = "reset"
            self._write({"call": number, "end": outcome})


def _has_left(transport: asyncio.Transport) -> bool:
    """True if the client's end of the connection is closed, which a busy event loop may not have seen yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _reset(transport: asyncio.Transport) -> None:
    """End a connection so that the client sees a reset, not an end."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _serve(options: argparse.Namespace) -> None:
    log = os.open(options.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    # A connection that it resets is not a mistake of its own.
    logging.getLogger("aiohttp.server").disabled = True
    service = Service(log, options.seed, options.latency, options.badness)
    # A call whose client has left is cancelled, and written down as such.
    runner = web.AppRunner(service.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    # Until whoever started it lets go of its input.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main(words: Sequence[str]) -> None:
    """Run `python -m fuzz.chaos.service` with its arguments."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.chaos.service", description=__doc__)
    parser.add_argument("--log", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.06, help="seconds")
    parser.add_argument("--badness", type=float, default=0.0, help="share of calls that go wrong")
    asyncio.run(_serve(parser.parse_args(words)))


if __name__ == "__main__":
    main(sys.argv[1:])
