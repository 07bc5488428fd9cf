"""The contenders, and the abilities that each peer lacks. Pure data: any thread.

What they cannot do was seen while they ran here, or read in the source of the version that is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

UNORDERED, ORDERED = False, True
BOTH = (UNORDERED, ORDERED)


@dataclass(frozen=True)
class Contender:
    """One way to do the jobs.

    peer: the program `bench.peers.run_PEER` and its environment. key: what that program calls it.
    orders: in which it can be asked. workloads: what it is asked for.
    """

    name: str
    peer: str
    key: str
    orders: tuple[bool, ...] = BOTH
    workloads: tuple[str, ...] = ("service", "instant")
    capacities: tuple[int, ...] = (256, 1_000)
    reorder: int | None = None
    """In capacities."""
    ours: bool = False


PROJECT = ("local", "spark", "spark_ours")
"""Peers that run in the project's own environment."""

OWN_PROCESS = ("pathway", "ray")
"""Peers whose process is ended after each job: a Pathway program runs one, and Ray is never quiet."""

CONTENDERS = [
    Contender("asyncio, fixed workers", "local", "fixed workers", (UNORDERED,)),
    Contender("asyncio, semaphore window", "local", "semaphore window", (UNORDERED,)),
    Contender("asyncio, window = capacity", "local", "ordered window", (ORDERED,)),
    Contender("asyncio, window 8 x", "local", "ordered window", (ORDERED,), reorder=8),
    Contender("pillarbox.async_map", "local", "async_map", ours=True),
    Contender("Spark: gather per batch of 10,000", "spark", "gather 10,000", (ORDERED,)),
    Contender("Spark: gather per batch of 1,000", "spark", "gather 1,000", (ORDERED,)),
    Contender("Spark: thread pool, batch of 10,000", "spark", "threads 10,000", (ORDERED,), ("service",)),
    Contender("Spark: thread pool, batch of 1,000", "spark", "threads 1,000", (ORDERED,), ("service",)),
    Contender("Spark: sliding window by hand", "spark", "window"),
    Contender("Spark: sliding window, asyncio.wait", "spark", "wait", (UNORDERED,)),
    Contender("pillarbox.spark.async_map", "spark_ours", "async_map", ours=True),
    Contender("pillarbox.spark.async_udf", "spark_ours", "async_udf", (ORDERED,), ours=True),
    Contender("aiostream", "aiostream", "map"),
    Contender("Daft, semaphore of one's own", "daft", "semaphore", (ORDERED,)),
    Contender("Daft, max_concurrency", "daft", "max_concurrency", (ORDERED,)),
    Contender("Pathway, async", "pathway", "async", (UNORDERED,)),
    Contender("Pathway, fully async", "pathway", "fully async", (UNORDERED,)),
    Contender("Ray Data map", "ray", "map", (ORDERED,)),
    Contender("PyFlink, defaults", "flink", "default"),
    Contender("PyFlink, large bundles", "flink", "tuned"),
]

CANNOT = {
    "asyncio by hand": (
        "nothing but the calls: time-outs, retries, rates, errors as data, counts are for one to write",
        "in order with a window as large as the capacity, a slow head idles the slots",
    ),
    "Spark by hand": (
        "gather and thread pool: wait for the slowest call of every batch; nothing leaves before",
        "thread pool: a call that is late cannot be cancelled",
        "sliding window: errors fail the task; no time-out, retry, rate, counts, latency mode",
    ),
    "aiostream": (
        "time-out of one call, retry, errors as data: the first error ends the stream",
        "a window of its own for order: finished items count against the limit of tasks",
    ),
    "Daft": (
        "bound the calls in flight: whatever `max_concurrency` says, all rows of a batch begin at once",
        "emit before a whole batch is done; time out one call; limit the rate",
        "tell a failed row from a null one (`on_error` logs it, or not)",
    ),
    "Pathway": (
        "keep the order of the input",
        "have more than 128 calls in flight with `async`, which waits for all of them before it goes on",
        "limit the rate, or adapt the capacity",
    ),
    "Ray Data": (
        "leave in the order of completion: results are always put back in order, in memory without a bound",
        "set the calls in flight by an argument: an environment variable does, for all async row functions",
        "time-out of one call, retry of one row, errors as data: a failure fails a whole block",
    ),
    "PyFlink": (
        "cancel: a time-out leaves the coroutine running, and costs a thread a row",
        "work through the end of a bundle: it waits for all calls there, every 1,000 rows by default",
        "hold finished rows apart from the capacity: in order, a slow head idles the slots",
        "run on the threads of the JVM (`thread` mode is refused); rates; batches; adaptive capacity",
    ),
}
