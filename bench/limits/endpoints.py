"""Several endpoints of which one is ill: `python -m bench.limits.endpoints`.

Three real HTTP servers on loopback, in a process of their own, of which each answers after 50 ms. One of them
is dead, answers 503, is ten times slower, hangs, or refuses what is beyond its quota of 50 requests a second,
without a word of it (429) or with the quota in the headers of each answer (quota). Prints for a client
(`HttpLookup`) and for a function with `Options(endpoints=)` the rows a second, their share of what the two
other endpoints give without the ill one, and the rows that were lost. The runs with and without the ill
endpoint take turns.

Then three endpoints in virtual time, of which each takes calls and tokens a minute of its own and names them
in its answers. Prints the part of these limits that a job without any number uses, and the part of its calls
that were refused.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Literal

from bench.limits.asking import Asks
from bench.limits.learned import CALLS, TASKS, TOKENS, measure
from bench.limits.metered import MINUTE_S, Service
from bench.table import Column, print_table
from pillarbox import Endpoints, Result, Retry, Timeout, async_map, current_call
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
CASES = ("dead", "503", "slow", "hangs", "429", "quota")
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
                lines = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                writer.write(lines % (status, len(body)) + self._named() + b"\r\n" + body)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, row: bytes) -> tuple[bytes, bytes]:
        if self.case == "hangs":
            await asyncio.sleep(3600.0)
        if self.case == "503":
            return b"503 Service Unavailable", b"{}"
        if self.case in ("429", "quota"):
            second = int(time.monotonic())
            if second != self._second:
                self._second, self._taken = second, 0
            self._taken += 1
            if self._taken > QUOTA_PER_S:
                return b"429 Too Many Requests", b"{}"
        await asyncio.sleep(ANSWER_S * (SLOWER if self.case == "slow" else 1))
        return b"200 OK", row

    def _named(self) -> bytes:
        """The lines of headers that name the quota."""
        if self.case != "quota":
            return b""
        left, reset = max(0, QUOTA_PER_S - self._taken), 1000 * (self._second + 1 - time.monotonic())
        lines = (
            b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\n"
            b"x-ratelimit-reset-requests: %dms\r\n"
        )
        return lines % (QUOTA_PER_S, left, max(1, round(reset)))


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


class Regions:
    """An async function of a row: the service at the endpoint of its attempt answers."""

    def __init__(
        self,
        form: Literal["bucket", "window"],
        *,
        count: int = 3,
        calls: float = CALLS,
        tokens: float = TOKENS,
    ) -> None:
        self.services = {
            f"http://region-{number}": Service(calls, tokens, form, seed=number) for number in range(count)
        }

    async def __call__(self, row: int) -> Result:
        """Answer one call, or refuse it."""
        return await self.services[current_call().endpoint.url](row)

    def used(self, since: float, until: float) -> float:
        """The part used of the limits of all of them, between two times."""
        return sum(each.used(since, until) for each in self.services.values()) / len(self.services)

    def refused_share(self, since: float, until: float) -> float:
        """The part of all calls between two times that was refused."""
        refused = sum(since <= at < until for each in self.services.values() for at in each.refused)
        taken = sum(since <= at < until for each in self.services.values() for at, _ in each.taken)
        return refused / max(1, refused + taken)


def with_quotas(form: Literal["bucket", "window"], tasks: int = TASKS, minutes: int = 6) -> Regions:
    """Run a job at three endpoints for so many virtual minutes."""
    regions = Regions(form)
    given = {"endpoints": Endpoints([*regions.services])}
    measure(regions, learns=True, shares=False, tasks=tasks, minutes=minutes, options=given)
    return regions


def print_quotas(minutes: int = 6) -> None:
    """Print the table of endpoints with quotas."""
    columns = [Column(f"{TASKS} tasks, three endpoints with quotas", right=False), Column("used")]
    columns += [Column("refused"), Column("refused in the first minute")]
    rows = []
    forms: list[Literal["bucket", "window"]] = ["bucket", "window"]
    for form in forms:
        regions = with_quotas(form, minutes=minutes)
        span = MINUTE_S, minutes * MINUTE_S
        shares = [regions.refused_share(*span), regions.refused_share(0.0, MINUTE_S)]
        rows.append([form, f"{regions.used(*span):.3f}", *(f"{100 * share:.2f} %" for share in shares)])
    print_table(columns, rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES)
    parser.add_argument("--ways", nargs="*", default=[*WAYS], choices=WAYS)
    parser.add_argument("--ordered", action="store_true", help="a row that hangs holds up those behind it")
    given = parser.parse_args()
    logging.disable()
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
    print_quotas()


if __name__ == "__main__":
    main()
