"""A slow service over HTTP, on loopback: where an order goes, at which price. It counts calls. A script."""

from __future__ import annotations

import argparse
import asyncio
import json
import urllib.request
from collections import Counter

from aiohttp import web

PLACES = ("Ayr", "Bath", "Cork", "Dover", "Exeter")


class Quotes:
    """Answers after `latency` seconds; every `busy`-th call is refused."""

    def __init__(self, latency: float, busy: int) -> None:
        self._latency = latency
        self._busy = busy
        self._calls = 0
        self._answered: Counter[int] = Counter()

    async def quote(self, request: web.Request) -> web.Response:
        """One order: its place and its price."""
        self._calls += 1
        if self._busy and self._calls % self._busy == 0:
            raise web.HTTPServiceUnavailable
        order, parcels = int(request.match_info["order"]), int(request.query["parcels"])
        await asyncio.sleep(self._latency)
        self._answered[order] += 1
        return web.json_response({"place": PLACES[order % len(PLACES)], "pence": 350 + 95 * parcels})

    async def calls(self, request: web.Request) -> web.Response:
        """The number of calls that were answered, and of orders in them."""
        return web.json_response({"answered": self._answered.total(), "orders": len(self._answered)})


async def serve(port: int, latency: float, busy: int) -> None:
    """Serve until the process ends. Prints the address; port 0 takes a free one."""
    quotes = Quotes(latency, busy)
    app = web.Application()
    app.add_routes([web.get("/quote/{order}", quotes.quote), web.get("/calls", quotes.calls)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serve, or ask one that runs how many calls it has answered."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds for each call")
    parser.add_argument("--busy", type=int, default=200, help="every such call is refused; 0 is none")
    parser.add_argument("--ask", type=int, help="the port of a service that runs")
    given = parser.parse_args()
    if given.ask is not None:
        with urllib.request.urlopen(f"http://127.0.0.1:{given.ask}/calls", timeout=10) as answer:
            print(json.load(answer))
        return
    asyncio.run(serve(given.port, given.latency, given.busy))


if __name__ == "__main__":
    main()
