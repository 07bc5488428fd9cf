"""A worker process of a stream without Spark, for tests: says on lines what it does, as it is told on lines.

    call IDS                 new rows; says "tickets", their process and numbers
    open PROCESS IDS NUMBERS rows of a committed state with these tickets
    wait SECONDS             says "finished" and the results that there are
    leave                    the finished ones are emitted, by a micro-batch that may fail
    task                     another task begins; says "task" and what it raises
    calls                    says "calls" and the rows whose calls have begun

The row 666 fails. A row below 0 is answered once the file that is named as the argument is there.
With a second argument rows are called in batches of so many, one at a time; one that has 668 among others
fails.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from pillarbox.aio.batch import Batch
from pillarbox.aio.options import Options
from pillarbox.spark.record import Record, records
from pillarbox.spark.stream.calls import Engine, acquire_engine
from pillarbox.spark.stream.entry import Entry
from pillarbox.spark.stream.share import fetch, serve
from pillarbox.spark.stream.state import Held, Ticket
from pillarbox.spark.work import Work

gate = Path(sys.argv[1])
begun: list[int] = []


async def double(record: Any) -> int:
    begun.append(record.id)
    if record.id == 666:
        raise ConnectionError("the row of the beast")
    while record.id < 0 and not gate.exists():
        await asyncio.sleep(0.01)
    return int(record.id) * 2


async def double_all(records: list[Any]) -> list[int]:
    begun.extend(record.id for record in records)
    if len(records) > 1 and any(record.id == 668 for record in records):
        raise ValueError("668 among others")
    while any(record.id < 0 for record in records) and not gate.exists():
        await asyncio.sleep(0.01)
    return [int(record.id) * 2 for record in records]


def made(text: str) -> list[Record]:
    ids = pa.array(list(map(int, text.split(","))), pa.int64())
    return [record for batch in records([pa.RecordBatch.from_arrays([ids], ["id"])]) for record in batch.rows]


def main() -> None:
    if len(sys.argv) > 2:
        batch = Batch(int(sys.argv[2]))
        work = Work(double_all, "token", Options(ordered=False, capacity=1, reorder=batch.size, batch=batch))
    else:
        work = Work(double, "token", Options(ordered=False, capacity=2, reorder=2))
    engine = acquire_engine("a stream", lambda: Engine("a stream", work, None, fetch))
    serve(engine.loop_thread)
    entries: list[Entry] = []
    for line in sys.stdin:
        command, *words = line.split()
        if command == "call":
            entries = [Entry(record, 0, 0) for record in made(words[0])]
            engine.call(0, entries)
            numbers = [str(entry.ticket.number) for entry in entries if entry.ticket is not None]
            print("tickets", engine.process.hex(), ",".join(numbers), flush=True)
        elif command == "open":
            owner, numbers = bytes.fromhex(words[0]), words[2].split(",")
            held = [
                Held(record, 0, 0, None, 0, Ticket(owner, int(number)), None)
                for record, number in zip(made(words[1]), numbers, strict=True)
            ]
            entries = engine.open(0, held)
        elif command == "wait":
            engine.wait(entries, time.monotonic() + float(words[0]))
            done = engine.finished(entries)
            print("finished", *[each.result for each, is_done in zip(entries, done, strict=True) if is_done])
            sys.stdout.flush()
        elif command == "leave":
            done = engine.finished(entries)
            engine.leave(0, [each for each, is_done in zip(entries, done, strict=True) if is_done])
        elif command == "task":
            try:
                acquire_engine("a stream", lambda: Engine("a stream", work, None, fetch))
                print("task", flush=True)
            except Exception as error:
                print("task", type(error).__name__, flush=True)
        else:
            print("calls", *begun, flush=True)


if __name__ == "__main__":
    main()
