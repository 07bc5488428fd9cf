"""The lookup service: planes and weather by key, over HTTP, in a process of its own.

Run by `ServerProcess`. `GET /lookup/<tailnum>/<origin>/<hour>` answers with the plane and the weather, each
an object or null: null means that the key is not in the data. Every answer takes a log-normal time (mean
`--latency` milliseconds, sigma 0.5), and a share of the requests (`--busy`), drawn by lot, is refused with
503, as services do.
"""

from __future__ import annotations

import asyncio
import json
import math
import random

import pyarrow as pa
from aiohttp import web

from bench.demo import data
from bench.demo.server_process import HOST, leave_with_parent, server_arguments

PLANE_FIELDS = ("year", "manufacturer", "model", "engines", "seats")
WEATHER_FIELDS = ("temp", "humid", "wind_dir", "wind_speed", "precip", "visib")
LATENCY_SIGMA = 0.5


class LookupService:
    """Answers requests on the event loop's thread. Bodies are made once; a request only joins two of them."""

    def __init__(
        self, planes: pa.Table, weather: pa.Table, *, latency: float = 0.0, busy: float = 0.0
    ) -> None:
        """`latency` is a mean in seconds, `busy` a share between 0 and 1."""
        self._planes = {
            key[0]: body for key, body in bodies(planes, keys=("tailnum",), fields=PLANE_FIELDS).items()
        }
        self._weather = bodies(weather, keys=("origin", "time_hour"), fields=WEATHER_FIELDS)
        self._latency = latency
        self._busy = busy
        self._random = random.Random(13)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The answer to one request, after its latency."""
        parts = request.path.split("/")
        if request.path == "/health":
            return web.Response(text="ok")
        if len(parts) != 5 or parts[1] != "lookup":
            return web.Response(status=404, text="allowed: /lookup/<tailnum>/<origin>/<hour>")
        if self._latency:
            mu = math.log(self._latency) - LATENCY_SIGMA**2 / 2
            await asyncio.sleep(self._random.lognormvariate(mu, LATENCY_SIGMA))
        if self._random.random() < self._busy:
            return web.Response(status=503, text="busy, ask again")
        _, _, tailnum, origin, hour = parts
        plane = self._planes.get(tailnum, b"null")
        weather = self._weather.get((origin, hour), b"null")
        body = b'{"plane":' + plane + b',"weather":' + weather + b"}"
        return web.Response(body=body, content_type="application/json")


def bodies(
    table: pa.Table, *, keys: tuple[str, ...], fields: tuple[str, ...]
) -> dict[tuple[str, ...], bytes]:
    """The JSON of `fields` of every row, by the values of its `keys`."""
    rows = table.select([*keys, *fields]).to_pylist()
    return {
        tuple(row[key] for key in keys): json.dumps({field: row[field] for field in fields}).encode()
        for row in rows
    }


async def serve(service: LookupService, port: int) -> None:
    """Serves on loopback until the task is cancelled."""
    # The server below aiohttp's applications: one route needs no router, and a request costs half.
    runner = web.ServerRunner(web.Server(service.answer, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port, backlog=1024).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """Serves planes and weather until the parent leaves."""
    parser = server_arguments(main.__doc__ or "")
    parser.add_argument("--latency", type=float, default=0.0, help="mean time of an answer, milliseconds")
    parser.add_argument("--busy", type=float, default=0.0, help="share of requests refused with 503, 0 to 1")
    options = parser.parse_args()
    leave_with_parent()
    service = LookupService(data.planes(), data.weather(), latency=options.latency / 1e3, busy=options.busy)
    asyncio.run(serve(service, options.port))


if __name__ == "__main__":
    main()
