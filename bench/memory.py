"""The memory of results that wait, over the operator's own, as a multiple of `Buffer.max_bytes`.

    python -m bench.memory [--max-mib 64] [KIND ...]

For each kind of result a process of its own has a job whose results cannot leave: the first row of an ordered
one waits (`order`), whoever takes the results of an unordered one comes for no more (`taker`), or the ledger
holds the disk up (`ledger`). Once no further row is called, its resident memory is compared with that before
the job, which an equal job with a sixty-fourth of the bound has warmed. What the operator promises is 1.5.
"""

# Resident memory and not `tracemalloc`: what the C++ objects of Arrow and the arenas of the allocator take
# is part of it. The tests count allocations, which are the same each time.

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pillarbox import Buffer, Ledger, Options, async_map
from pillarbox.aio.sizes import CALL_BYTES, size_of

QUIET_S = 1.0
"""Seconds without another call, after which no more will begin."""
WAYS = ("order", "taker", "ledger")

NOT_KEPT = ("Arrow, 8", "Arrow, 1,536", "decimals, 100")
"""Kinds that a ledger does not keep."""

_dice = Random(1)


def _floats(count: int) -> list[float]:
    return [_dice.random() for _ in range(count)]


KINDS: dict[str, Callable[[int], Any]] = {
    "floats, 8": lambda row: _floats(8),
    "floats, 1,536": lambda row: _floats(1536),
    "lists of 3 floats, 200": lambda row: [_floats(3) for _ in range(200)],
    "lists of 1 text, 50": lambda row: [[f"word {row} {each}"] for each in range(50)],
    "a dict": lambda row: {"text": f"answer {row}" * 4, "score": _dice.random(), "good": True},
    "dicts, 50": lambda row: {"items": [{"id": _dice.random(), "name": f"{row} {n}"} for n in range(50)]},
    "a text, 12": lambda row: f"answer {row:5}",
    "a text, 4,000": lambda row: f"{row:4}" * 1000,
    "texts, 50, not Latin": lambda row: [f"wörd€ {row} {each}" for each in range(50)],
    "bytes, 4,000": lambda row: bytes(3996) + row.to_bytes(4, "big"),
    "decimals, 100": lambda row: [__import__("decimal").Decimal(repr(each)) for each in _floats(100)],
    "numpy, 8": lambda row: np.random.rand(8),
    "numpy, 1,536": lambda row: np.random.rand(1536).astype("f4"),
    "numpy, a row of a matrix": lambda row: np.random.rand(64, 64)[row % 64],
    "Arrow, 8": lambda row: pa.array(np.random.rand(8)),
    "Arrow, 1,536": lambda row: pa.array(np.random.rand(1536)),
}


def resident_bytes() -> int:
    """Bytes of memory that this process has now, without what it could give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def _held(way: str, make: Callable[[int], Any], max_bytes: int, folder: str) -> tuple[int, int]:
    """Resident bytes, and results held, once no more calls begin."""
    calls, last = 0, time.monotonic()
    free = asyncio.Event()

    async def fn(row: int) -> Any:
        nonlocal calls, last
        calls, last = calls + 1, time.monotonic()
        if not calls % 16:
            await asyncio.sleep(0)
        if row == 0 and way == "order":
            await free.wait()
        return make(row)

    ledger = Ledger(folder, uid="held", run="1") if way == "ledger" else None
    # No more than can be held, as the queue has a place for each.
    rows = 64 + int(1.3 * max_bytes / (size_of(make(1)) + CALL_BYTES))
    options = Options(buffer=Buffer(rows=rows, max_bytes=max_bytes), capacity=64, ledger=ledger)
    job = async_map(range(10_000_000), fn, ordered=way == "order", options=options)
    takes = asyncio.ensure_future(anext(job))
    if way != "order":
        await takes
    while time.monotonic() - last < QUIET_S:
        await asyncio.sleep(0.05)
    found = resident_bytes(), calls
    takes.cancel()
    await job.aclose()
    return found


def measure(kind: str, way: str, max_bytes: int) -> dict[str, float]:
    """Measure one kind here: in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        # Of the same kind: a first Arrow array imports what takes 47 MB. The index of a ledger sorts from
        # some 65,000 records on: the first sort starts threads and takes 39 MB, once in a process.
        pc.sort_indices(pa.array(np.random.rand(100_000)))
        asyncio.run(_held(way, KINDS[kind], 1 << 20, folder + "/warm"))
        before = resident_bytes()
        after, rows = asyncio.run(_held(way, KINDS[kind], max_bytes, folder + "/job"))
    return {"rows": rows, "mib": (after - before) / 2**20, "times": (after - before) / max_bytes}


def main(words: list[str]) -> None:
    """Measure the kinds that are named, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[], help="of these alone")
    parser.add_argument("--max-mib", type=int, default=64)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--here", action="store_true", help="one kind and way, in this process; prints JSON")
    chosen = parser.parse_args(words)
    if chosen.here:
        print(json.dumps(measure(chosen.kinds[0], chosen.ways[0], chosen.max_mib << 20)))
        return
    print("| result | " + " | ".join(f"{way}: rows, MiB, times" for way in chosen.ways) + " |")
    print("|---|" + "--:|" * len(chosen.ways))
    for kind in chosen.kinds or KINDS:
        cells = []
        for way in chosen.ways:
            if way == "ledger" and kind in NOT_KEPT:
                cells.append("not kept")
                continue
            command = [sys.executable, "-m", "bench.memory", kind, "--here", "--ways", way]
            done = subprocess.run(
                [*command, "--max-mib", str(chosen.max_mib)], capture_output=True, text=True, check=True
            )
            found = json.loads(done.stdout)
            cells.append(f"{found['rows']:,.0f}, {found['mib']:.0f}, {found['times']:.2f}")
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
