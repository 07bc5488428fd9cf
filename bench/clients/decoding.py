"""CPU of decoding answers of embeddings, by their form: `python -m bench.clients.decoding`.

From the body of an answer to one numpy block, with msgspec and without, and from the block to an Arrow
column. Rounds are interleaved; the best of each is printed.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from bench.table import Column, print_table
from pillarbox.clients import vectors

TEXTS, DIMENSIONS = 64, 1024
ROUNDS = 60


def without_msgspec() -> ModuleType:
    """The module as it is where msgspec is not installed."""
    spec = vectors.__spec__
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"msgspec": None}):
        spec.loader.exec_module(plain)
    return plain


def body(embeddings: list[Any]) -> bytes:
    """An answer in OpenAI's form."""
    data = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(embeddings)]
    usage = {"prompt_tokens": 640, "total_tokens": 640}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode()


def jobs() -> dict[str, Callable[[], Any]]:
    """The measured calls by their names."""
    block = np.random.default_rng(0).standard_normal((TEXTS, DIMENSIONS)).astype(np.float32)
    in_base64 = body([base64.b64encode(row.tobytes()).decode() for row in block])
    in_float16 = body([base64.b64encode(row.astype("<f2").tobytes()).decode() for row in block])
    in_lists = body(block.tolist())
    in_bytes = block.tobytes()
    plain = without_msgspec()
    offsets = pa.array(np.arange(0, block.size + 1, DIMENSIONS, np.int32))
    return {
        "bare bytes": lambda: vectors.decode_bytes(in_bytes, TEXTS),
        "float16 in base64": lambda: vectors.decode_openai(in_float16, TEXTS, vectors.FLOAT16),
        "base64": lambda: vectors.decode_openai(in_base64, TEXTS),
        "base64, without msgspec": lambda: plain.decode_openai(in_base64, TEXTS),
        "lists of floats": lambda: vectors.decode_openai(in_lists, TEXTS),
        "lists of floats, without msgspec": lambda: plain.decode_openai(in_lists, TEXTS),
        "the block to an Arrow column": lambda: pa.ListArray.from_arrays(offsets, pa.array(block.ravel())),
        "a look for numbers that are not finite": lambda: vectors.rows_not_finite(block),
        "normalized": lambda: vectors.normalized(block),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    measured = jobs()
    best = dict.fromkeys(measured, float("inf"))
    for _ in range(rounds):
        for name, job in measured.items():
            began = time.process_time_ns()
            job()
            best[name] = min(best[name], (time.process_time_ns() - began) / 1000 / TEXTS)
    print(f"CPU, microseconds a vector of {DIMENSIONS:,} floats, {TEXTS} in an answer, best of {rounds}")
    columns = [Column("form", right=False), Column("us a vector")]
    print_table(columns, [(name, f"{value:.1f}") for name, value in best.items()])


if __name__ == "__main__":
    main()
