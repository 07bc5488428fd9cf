"""Several endpoints of which one is ill: `python -m bench.limits.endpoints`.

Three real HTTP servers on loopback, in a process of their own, of which each answers after 50 ms. One of them
is dead, answers 503, is ten times slower, hangs, or refuses what is beyond its quota of 50 requests a second.
Prints for a client (`HttpLookup`) and for a function with `Options(endpoints=)` the rows a second, their
share of what the two other endpoints give without the ill one, and the rows that were lost. The runs with and
without the ill endpoint take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.table import Column, print_table
from pillarbox import Retry, Timeout, async_map
from pillarbox.clients import Http, HttpLookup

ANSWER_S = 0.05
"""Seconds that an endpoint takes for an answer."""
SLOWER = 10
"""The factor by which a slow endpoint is slower."""
QUOTA_PER_S = 50
"""Requests a second that an endpoint with a quota takes."""
CAPACITY = 16
ROWS = 6_000
ATTEMPT_S = 2.0
CASES = ("dead", "503", "slow", "hangs", "429")
WAYS = ("client", "function")


class Ill:
    """An endpoint that behaves as its case says; "well" for one that answers."""

    def __init__(self, case: str) -> None:
        self.case = case
        self.requests = 0
        self._second, self._taken = 0, 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after the other."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                row = head.split(b" ", 2)[1].rpartition(b"/")[2]
                status, body = await self._answer(row)
                lines = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                writer.write(lines % (status, len(body)) + body)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, row: bytes) -> tuple[bytes, bytes]:
        if self.case == "hangs":
            await asyncio.sleep(3600.0)
        if self.case == "503":
            return b"503 Service Unavailable", b"{}"
        if self.case == "429":
            second = int(time.monotonic())
            if second != self._second:
                self._second, self._taken = second, 0
            self._taken += 1
            if self._taken > QUOTA_PER_S:
                return b"429 Too Many Requests", b"{}"
        await asyncio.sleep(ANSWER_S * (SLOWER if self.case == "slow" else 1))
        return b"200 OK", row


async def _serve(case: str, pipe: Connection) -> None:
    kinds = [Ill("well"), Ill("well"), Ill(case)]
    servers = [await asyncio.start_server(each.handle, "127.0.0.1", 0, backlog=512) for each in kinds]
    ports = [each.sockets[0].getsockname()[1] for each in servers]
    if case == "dead":
        servers[2].close()
    pipe.send(ports)
    await asyncio.to_thread(pipe.recv)
    pipe.send([each.requests for each in kinds])


def _serving(case: str, pipe: Connection) -> None:
    asyncio.run(_serve(case, pipe))


@contextmanager
def serving(case: str) -> Iterator[tuple[list[str], list[int]]]:
    """Serve three endpoints, the last one ill: their addresses, and at the end the requests of each."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serving, args=(case, there))
    process.start()
    requests: list[int] = []
    try:
        yield [f"http://127.0.0.1:{port}" for port in here.recv()], requests
        here.send("end")
        requests += here.recv()
    finally:
        process.kill()
        process.join()


def options(case: str, ordered: bool) -> dict[str, Any]:
    """The options of the job."""
    timeout = Timeout(attempt=ATTEMPT_S) if case == "hangs" else None
    return {
        "capacity": CAPACITY,
        "retry": Retry(3, initial=0.0),
        "timeout": timeout,
        "errors": "column",
        "ordered": ordered,
    }


def by_client(urls: list[str], rows: int, given: dict[str, Any]) -> list[Any]:
    """The results of a client with a list of addresses."""
    client = HttpLookup([url + "/{row}" for url in urls], http=Http(proxy="direct"))
    return [*async_map([{"row": row} for row in range(rows)], client, **given)]


def by_function(urls: list[str], rows: int, given: dict[str, Any]) -> list[Any]:
    """The results of a function that gets the endpoint of each attempt."""
    import aiohttp

    from pillarbox import Endpoints, current_call

    class Asks:
        """A function with a session, which is opened on the loop of its calls."""

        session: aiohttp.ClientSession

        async def __aenter__(self) -> Asks:
            self.session = aiohttp.ClientSession(raise_for_status=True)
            return self

        async def __aexit__(self, *error: object) -> None:
            await self.session.close()

        async def __call__(self, row: int) -> Any:
            call = current_call()
            async with self.session.get(f"{call.endpoint.url}/{row}") as answer:
                return await answer.json()

    return [*async_map(range(rows), Asks(), endpoints=Endpoints(urls), **given)]


def run(way: str, case: str, rows: int, ordered: bool, with_ill: bool) -> dict[str, Any]:
    """Measure one job."""
    with serving(case) as (urls, requests):
        began = time.monotonic()
        results = (by_client if way == "client" else by_function)(
            urls if with_ill else urls[:2], rows, options(case, ordered)
        )
        seconds = time.monotonic() - began
    found = [each.result if hasattr(each, "error") else each for each in results]
    lost = rows - len({row for row in found if isinstance(row, int)})
    return {"rows_per_s": rows / seconds, "lost": lost, "ill": requests[2]}


def measured(ways: list[str], cases: list[str], rows: int, ordered: bool) -> Iterator[dict[str, Any]]:
    """Measure each case, beside the same without the ill endpoint."""
    for way in ways:
        for case in cases:
            others = run(way, case, rows, ordered, with_ill=False)
            found = run(way, case, rows, ordered, with_ill=True)
            yield {
                "way": way,
                "case": case,
                "others": others["rows_per_s"],
                **found,
                "share": found["rows_per_s"] / others["rows_per_s"],
            }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES)
    parser.add_argument("--ways", nargs="*", default=[*WAYS], choices=WAYS)
    parser.add_argument("--ordered", action="store_true", help="a row that hangs holds up those behind it")
    given = parser.parse_args()
    columns = [Column("function", right=False), Column("the third endpoint", right=False)]
    columns += [Column("rows/s of two"), Column("rows/s of three"), Column("share"), Column("rows lost")]
    columns += [Column("requests to the third")]
    rows = [
        [
            found["way"],
            found["case"],
            f"{found['others']:.0f}",
            f"{found['rows_per_s']:.0f}",
            f"{found['share']:.3f}",
            str(found["lost"]),
            str(found["ill"]),
        ]
        for found in measured(given.ways, given.cases, given.rows, given.ordered)
    ]
    print_table(columns, rows)


if __name__ == "__main__":
    main()
