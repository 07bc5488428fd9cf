"""Vectors for a table without Spark, beside the same client by hand: `python -m bench.frames`.

A frame of short texts gets a column of vectors from the raw server of `bench.clients` on loopback: through
`pillarbox.frames`, of pandas, Polars and Arrow, and by a loop by hand that keeps as many requests of the same
client in flight. With `--service-ms 20` each answer takes as long as that of a model. Wall time and CPU of
this process a text, in interleaved rounds; `times` is the median of the rounds' ratios of wall time to the
loop by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

from bench.clients.server import RawServer
from bench.table import Column, print_table
from pillarbox.clients import Embeddings, Http
from pillarbox.frames import embed_text

TEXTS, ROUNDS = 100_000, 3
BATCH, IN_FLIGHT = 64, 8
BY_HAND = "client by hand"


def client_of(url: str) -> Embeddings:
    """Return the client of all contenders."""
    return Embeddings(f"{url}/v1", "m", max_texts=BATCH, http=Http(proxy="direct"))


async def _vectors(client: Embeddings, texts: list[str]) -> list[Any]:
    found: list[Any] = [None] * len(texts)
    starts = iter(range(0, len(texts), BATCH))

    async def worker() -> None:
        for start in starts:
            block = np.asarray(await client(texts[start : start + BATCH]))
            found[start : start + BATCH] = list(block)

    async with client:
        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return found


def by_hand(frame: pd.DataFrame, client: Embeddings) -> pd.DataFrame:
    """Return the frame with the vectors of a loop by hand."""
    made = frame.copy()
    made["vector"] = asyncio.run(_vectors(client, frame["text"].tolist()))
    return made


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.frames", description=__doc__)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--service-ms", type=float, default=0.0)
    options = parser.parse_args(arguments)
    frame = pd.DataFrame({"text": [f"text number {number}" for number in range(options.texts)]})
    given = {"pandas": frame, "Polars": pl.from_pandas(frame), "Arrow": pa.Table.from_pandas(frame)}
    with RawServer(options.service_ms) as server:
        jobs: dict[str, Callable[[], Any]] = {BY_HAND: lambda: by_hand(frame, client_of(server.url))}
        for kind, table in given.items():

            def embedded(table: Any = table) -> Any:
                client = client_of(server.url)
                return embed_text(table, "text", into="vector", client=client, capacity=IN_FLIGHT)

            jobs[f"pillarbox.frames, {kind}"] = embedded
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for number in range(-1, options.rounds):
            for name, job in jobs.items():
                made = None  # The frame of the job before is not freed on this one's account.
                began, cpu = time.perf_counter(), time.process_time()
                made = job()
                seconds = time.perf_counter() - began
                cpu = time.process_time() - cpu
                if len(made) != options.texts:
                    raise AssertionError(f"{name}: {len(made)} rows of {options.texts}")
                # The first round warms up.
                if number >= 0:
                    found[name].append((seconds, cpu))
    rows = []
    for name, each in found.items():
        ratios = [mine / hand for (mine, _), (hand, _) in zip(each, found[BY_HAND], strict=True)]
        micro = [statistics.median(values) / options.texts * 1e6 for values in zip(*each, strict=True)]
        rows.append([name, f"{micro[0]:.1f}", f"{micro[1]:.1f}", f"{statistics.median(ratios):.2f}"])
    columns = [Column(f"{options.texts:,} texts", right=False), Column("us a text"), Column("CPU us")]
    print_table([*columns, Column("times")], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
