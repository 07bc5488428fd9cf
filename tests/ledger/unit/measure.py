"""Figures for ledger-format.md: `python -m tests.ledger.unit.measure start|formats|values|run`."""

from __future__ import annotations

import json
import os
import pickle
import resource  # noqa: F401 used by the process that starts
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pillarbox.ledger import KeyMaker, Ledger, Scope
from pillarbox.ledger.format import (
    VALUE,
    encode_frame,
    header,
    message_of,
    owner_of,
    schema,
    size_of,
    to_batch,
)
from pillarbox.ledger.values import decode, encode
from tests.ledger.unit.segments import Entry

SCOPE = Scope("measure", "uid")
ROWS = 100


def filled(batch_rows: int, seed: bytes) -> Any:
    """Records with random keys and results of 100 characters."""
    keys = pa.Array.from_buffers(pa.binary(16), batch_rows, [None, pa.py_buffer(seed)])
    columns = {
        "key": keys,
        "kind": pa.array(["value"] * batch_rows),
        "value": pa.array(['"' + "x" * 98 + '"'] * batch_rows),
        "floats": pa.array([[]] * batch_rows, schema().field("floats").type),
        "blobs": pa.array([[]] * batch_rows, schema().field("blobs").type),
        "attempts": pa.array([1] * batch_rows, pa.int32()),
        "latency": pa.array([0.1] * batch_rows),
        "cost": pa.array([0.0] * batch_rows),
        "at": pa.array([0] * batch_rows, schema().field("at").type),
        "input": pa.array([b"x" * 24] * batch_rows, schema().field("input").type),
        "version": pa.array([""] * batch_rows),
        "execution": pa.array([bytes(8)] * batch_rows, schema().field("execution").type),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema())


def start(records: int = 10_000_000, frame_rows: int = 100, segments: int = 40) -> None:
    """Start-up and memory of a reader, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder)
        place = ledger.folder(SCOPE)
        place.make()
        for number in range(segments):
            name = f"{number:016x}"
            with open(f"{place.path}/{name}.arrow", "wb") as file:
                file.write(header(name, SCOPE.about))
                frame_batch = filled(frame_rows, os.urandom(16 * frame_rows))
                for _ in range(records // segments // frame_rows):
                    keys = pa.Array.from_buffers(
                        pa.binary(16), frame_rows, [None, pa.py_buffer(os.urandom(16 * frame_rows))]
                    )
                    batch = pa.RecordBatch.from_arrays([keys, *frame_batch.columns[1:]], schema=schema())
                    owner = owner_of(SCOPE.about)
                    file.writelines(encode_frame(message_of(batch), name, file.tell(), owner)[1])
                last = keys[0].as_py()
        bytes_ = sum(each.size for each in place.segments())
        print(
            f"{records:,} records, {bytes_:,} bytes, {segments} segments, frames of {frame_rows}", flush=True
        )
        script = (
            "import sys, time\n"
            "from tests.ledger.unit.measure import *\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            f"begin = time.perf_counter(); reader = Ledger({folder!r}).reader(SCOPE)\n"
            f"found = reader.get(bytes.fromhex({last.hex()!r})); taken = time.perf_counter() - begin\n"
            "used = time.process_time()\n"
            "assert found is not None and len(found.value) == 98\n"
            "most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "import os; keys = [os.urandom(16) for _ in range(100000)]\n"
            "begin = time.perf_counter(); hits = sum(key in reader for key in keys)\n"
            "each = (time.perf_counter() - begin) / 1e5\n"
            "print(f'{len(reader):,} records found in {taken:.1f} s, {used:.1f} s of CPU; "
            "{most / 1024:.0f} MiB at most, {before / 1024:.0f} before; "
            "{each * 1e6:.1f} us for a key not there, {hits} there')\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)


def timed(fn: Callable[[], Any], times: int) -> float:
    """Seconds of this process a call, without waits for the disk; the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        for _ in range(times):
            fn()
        best = min(best, (time.process_time() - begin) / times)
    return best


def folder_bytes(folder: str) -> int:
    """The bytes of its files."""
    return sum(path.stat().st_size for path in Path(folder).iterdir())


class Ways:
    """One group commit of `value`, in three formats."""

    def __init__(self, folder: str, value: Any) -> None:
        self.value = value
        self.keys = [os.urandom(16) for _ in range(ROWS)]
        self.file = open(Path(folder, "segment"), "wb")  # noqa: SIM115
        self.database = sqlite3.connect(Path(folder, "database"))
        self.database.executescript(
            "pragma journal_mode=wal; pragma synchronous=full;"
            "create table calls (key blob primary key, value text, attempts int, latency real) without rowid;"
        )

    def sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def arrow(self) -> None:
        entries = [Entry(key, VALUE, *encode(self.value), 1, 0.1, 0.0, 0) for key in self.keys]
        self.file.writelines(encode_frame(message_of(to_batch(entries)), "0" * 16, 0)[1])
        self.sync()

    def lines(self) -> None:
        for key in self.keys:
            record = {"key": key.hex(), "value": self.value, "attempts": 1, "latency": 0.1}
            line = json.dumps(record).encode()
            self.file.write(b"%08x " % zlib.crc32(line) + line + b"\n")
        self.sync()

    def sqlite(self) -> None:
        rows = [(os.urandom(16), json.dumps(self.value)) for _ in range(ROWS)]
        with self.database:
            self.database.executemany("insert into calls values (?, ?, 1, 0.1)", rows)


def formats() -> None:
    """A group commit of 100 results, by format."""
    for name, value in {"text of 100": "x" * 100, "384 floats": [n / 7 for n in range(384)]}.items():
        with tempfile.TemporaryDirectory() as folder:
            ways = Ways(folder, value)
            for way in (ways.arrow, ways.lines, ways.sqlite):
                before = folder_bytes(folder)
                seconds = timed(way, 20)
                grown = (folder_bytes(folder) - before) / 100 / ROWS
                print(
                    f"{name}: {way.__name__}: {seconds / ROWS * 1e6:.1f} us and {grown:,.0f} bytes a result"
                )
            ways.database.close()
            ways.file.close()


def values() -> None:
    """Writing and reading one value, by form."""
    vector = [n / 7 for n in range(384)]
    for name, value in {"a small dict": {"label": "positive", "score": 0.75}, "384 floats": vector}.items():
        encoded = encode(value)
        entry = Entry(b"", VALUE, *encoded, 1, 0.1, 0.0, 0)
        text, pickled = json.dumps(value), pickle.dumps(value, 5)
        for way, write, read, size in (
            (
                "kept",
                lambda v=value: encode(v),
                lambda e=encoded: decode(*e),
                size_of(entry),
            ),
            ("JSON", lambda v=value: json.dumps(v), lambda t=text: json.loads(t), len(text)),
            ("pickle", lambda v=value: pickle.dumps(v, 5), lambda p=pickled: pickle.loads(p), len(pickled)),
        ):
            print(
                f"{name}: {way}: {timed(write, 500) * 1e6:.1f} us to write, "
                f"{timed(read, 500) * 1e6:.1f} us to read, {size:,} bytes"
            )


def run(rows: int = 20_000, segments: int = 2_000) -> None:
    """Print the cost of a writer, a key and a lookup: CPU of the process, the best of five rounds."""
    keys = [os.urandom(16) for _ in range(rows)]
    vector = [n / 7 for n in range(384)]
    for name, value in {"text of 100": "x" * 100, "384 floats": vector}.items():
        with tempfile.TemporaryDirectory() as folder:
            places = (f"{folder}/{number}" for number in range(5))
            seconds = timed(lambda v=value, p=places: keep(Ledger(next(p)), keys, v), 1)  # type: ignore[misc]
            print(f"{name}: {seconds / rows * 1e6:.1f} us to keep, commit included")
            reader = Ledger(f"{folder}/0").reader(SCOPE)
            for what, asked in {"there": keys, "not there": [os.urandom(16) for _ in keys]}.items():
                seconds = timed(lambda a=asked, r=reader: [r.get(key) for key in a], 1)  # type: ignore[misc]
                print(f"{name}: {seconds / rows * 1e6:.1f} us to look for one that is {what}")
    for name, columns, row in (("one column", ["id"], {"id": 7}), ("a small row", None, (7, "hello", 0.5))):
        make, some = KeyMaker(columns), [row] * 1000
        seconds = timed(lambda m=make, s=some: [m(each) for each in s], 1)  # type: ignore[misc]
        print(f"a key of {name}: {seconds * 1e3:.1f} us")
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(folder)
        for number in range(segments):
            keep(ledger, [os.urandom(16)], number)
        with ledger.writer(SCOPE) as writer:

            def commit() -> None:
                writer.append(os.urandom(16), "x")
                writer.flush()

            commit()
            seconds = timed(commit, 20)
        print(f"a commit of one result beside {segments:,} segments: {seconds * 1e3:.2f} ms")


def keep(ledger: Ledger, keys: list[bytes], value: Any) -> None:
    """One writer's results, in commits of a thousand."""
    with ledger.writer(SCOPE) as writer:
        for number, key in enumerate(keys, 1):
            writer.append(key, value)
            if number % 1000 == 0:
                writer.flush()


if __name__ == "__main__":
    ways = {"start": start, "formats": formats, "values": values, "run": run}
    ways[sys.argv[1]](*map(int, sys.argv[2:]))
