"""Writes docs/errors.md: twenty errors, as the code of this version raises them: `python docs/error_page.py`.

Each case is code that a user might write and the error that it gets. `tests/house/test_errors_page.py` runs
the cases and compares the page with what they raise.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parent / "errors.md"
HEAD = """\
# Errors

An error names the thing, its value, what is allowed, and what to do; and it comes early: on the driver, at
the call. Twenty of them, as this version raises them: `python docs/error_page.py` writes this page, and a
test compares it. In all of them `fn` is an async function, `df` a DataFrame with the columns `id` and
`text`.
"""
SETUP = """\
import asyncio
from pillarbox import *
from pillarbox.sources.connectors.redis_streams import RedisStreamSource

async def fn(x):
    return x

async def slow(x):
    await asyncio.sleep(10)

async def refused(x):
    raise ConnectionError("the service hung up")

async def shorter(rows):
    return rows[1:]

def run(fn, rows=(1,), **options):
    with async_map(rows, fn, **options) as results:
        return list(results)
"""


class Case(NamedTuple):
    """A mistake: a title, and the line of code that raises."""

    title: str
    code: str


BEFORE = [
    Case("A number that cannot be", "async_map([1], fn, capacity=0)"),
    Case("A value of the wrong type", 'async_map([1], fn, timeout="30s")'),
    Case("Rows and function in the wrong order", "async_map(fn, [1])"),
    Case("A mode that does not exist", 'async_map([1], fn, errors="skip")'),
    Case("Two options that contradict each other", 'Errors("fail", stop_after=0.01)'),
    Case("A budget, and no mode for the rows beyond it", "async_map([1], fn, budget=Budget(max_calls=10))"),
    Case(
        "A budget of money without prices",
        'list(async_map([1], fn, budget=Budget(max_cost=20.0), errors="null"))',
    ),
    Case("A buffer that is too small", "async_map([1], fn, options=Options(buffer=Buffer(rows=50)))"),
    Case("A ledger without the operator's name", 'async_map([1], fn, ledger=Ledger("calls"))'),
    Case("A rate of nothing", "Rate(per_second=0)"),
    Case("An address that cannot be, and may hold a password", 'RedisStreamSource("user:secret@host:6379")'),
    Case("A schema that Spark cannot read", 'async_map(df, fn, schema="price dooble")'),
    Case("A column that is not there", 'async_map(df, fn, schema="price double", keep=["txt"])'),
    Case("A batch read where a stream is needed", 'async_stream(df, fn, schema="price double")'),
    Case("A mode that a column cannot have", 'async_udf("long", errors="drop")(fn)'),
]
DURING = [
    Case("A call that fails for good", "run(refused, retry=Retry(attempts=2, initial=0.0, max_outage=0))"),
    Case("A call that takes too long", "run(slow, timeout=0.05)"),
    Case("A batch with the wrong number of results", "run(shorter, batch=Batch(size=2))"),
    Case("Too many failed rows", 'run(refused, range(1000), errors=Errors("column", stop_after=3))'),
    Case(
        "A result that is refused", "run(fn, retry=Retry(attempts=2, initial=0.0, result=lambda r: r == 1))"
    ),
]


def text_of(case: Case, df: Any) -> str:
    """The error of a case, with its type, as a traceback ends. Raises AssertionError if it raises none."""
    names: dict[str, Any] = {"df": df}
    exec(SETUP, names)
    try:
        exec(case.code, names)
    except Exception as error:
        return re.sub(r"0x[0-9a-f]+", "0x...", f"{type(error).__name__}: {error}")
    raise AssertionError(f"{case.code!r} raises nothing")


def page(df: Any) -> str:
    """The text of the page. df: a DataFrame of `id long, text string`."""
    parts = [HEAD]
    for title, cases in (("Before anything runs", BEFORE), ("While it runs", DURING)):
        parts.append(f"\n## {title}\n")
        parts += [
            f"\n### {case.title}\n\n    {case.code}\n\n```text\n{text_of(case, df)}\n```\n" for case in cases
        ]
    return "".join(parts)


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").getOrCreate()
    PAGE.write_text(page(spark.createDataFrame([(1, "one")], "id long, text string")))
    spark.stop()
