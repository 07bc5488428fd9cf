"""`python -m bench.limits.learned`: 8 tasks learn the limits of a service, with and without coordinator.

The tasks, the coordinator and the service run in virtual time: minutes take seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, TypeVar

from bench.limits.metered import MINUTE_S, Service
from bench.table import Column, print_table
from pillarbox import Options, Rate, async_map
from tests.limits.unit.virtual_coordinator import VirtualCoordinator, VirtualLimits
from tests.rpc.unit.virtual_network import on_net

Answers = TypeVar("Answers", bound=Callable[[int], Any])

TASKS = 8
MINUTES = 6
CAPACITY = 32
CALLS, TOKENS = 1200.0, 900_000.0
"""Of the service in a minute; calls of 50 to 1,500 tokens use up both at nearly the same time."""


async def rows(until: float) -> AsyncIterator[int]:
    """Rows without end, until a time."""
    loop = asyncio.get_running_loop()
    row = 0
    while loop.time() < until:
        yield row
        row += 1


async def task(service: Callable[[int], Any], until: float, options: dict[str, Any]) -> None:
    """One task of a job."""
    given = Options(ordered=False, capacity=CAPACITY, retry=3, errors="column", **options)
    async for _ in async_map(rows(until), service, options=given):
        pass


def measure(
    service: Answers,
    *,
    learns: bool,
    shares: bool,
    tasks: int = TASKS,
    minutes: int = MINUTES,
    options: Mapping[str, Any] | None = None,
) -> Answers:
    """Run a job of so many tasks for so many virtual minutes. options: more of the job's."""
    others = options or {}

    async def script() -> None:
        until = minutes * MINUTE_S
        options: dict[str, Any] = {**others} if learns else {**others, "rate": Rate(learn=False)}
        async with VirtualCoordinator() if shares else contextlib.nullcontext():
            if shares:
                options["limits"] = VirtualLimits()
            running = [asyncio.ensure_future(task(service, until, options)) for _ in range(tasks)]
            await asyncio.sleep(until + 1.0)
            for each in running:
                if each.done():
                    each.result()
                each.cancel()
            await asyncio.wait(running)

    on_net(script)
    return service


def main() -> None:
    parser = argparse.ArgumentParser(description="limits that are learned from what a service says")
    parser.add_argument("--minutes", type=int, default=MINUTES)
    parser.add_argument("--tasks", type=int, default=TASKS)
    given = parser.parse_args()
    logging.disable()
    table = []
    forms: list[Literal["bucket", "window"]] = ["bucket", "window"]
    for form in forms:
        for shares in (False, True):
            for learns in (False, True):
                service = Service(CALLS, TOKENS, form)
                measure(service, learns=learns, shares=shares, tasks=given.tasks, minutes=given.minutes)
                span = MINUTE_S, given.minutes * MINUTE_S
                table.append(
                    [
                        f"{form}, {'a coordinator' if shares else 'tasks alone'}, "
                        f"{'learned' if learns else 'not learned'}",
                        f"{service.used(*span):.3f}",
                        f"{100 * service.refused_share(*span):.2f} %",
                        f"{100 * service.refused_share(0.0, MINUTE_S):.2f} %",
                    ]
                )
                print(table[-1], flush=True)
    columns = [Column(f"{given.tasks} tasks", right=False), Column("used")]
    print_table([*columns, Column("refused"), Column("refused in the first minute")], table)


if __name__ == "__main__":
    main()
