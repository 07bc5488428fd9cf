"""Results that come together are counted as those that come one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pillarbox import Batch, Buffer, ErrorInfo, Options
from pillarbox.aio.calls import Call
from pillarbox.aio.errors import Failed
from pillarbox.aio.held_bytes import HeldBytes
from pillarbox.aio.sizes import Weighed

MIB = 1 << 20


class Part(Weighed):
    """A result that knows its bytes."""

    __slots__ = ()

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class Slots:
    """A limit of calls, and what was allowed last."""

    limit = 8
    allowed: int | None = None

    def allow(self, calls: int | None) -> None:
        self.allowed = calls


class Output:
    """An output that holds nothing."""

    held_bytes = 0


def made(most: int) -> tuple[HeldBytes, Slots]:
    options = Options(buffer=Buffer(1024, max_bytes=most), capacity=8, batch=Batch(64))
    weights, slots = HeldBytes(options, most, None), Slots()
    weights.bind(slots, Output())  # type: ignore[arg-type]
    return weights, slots


def of_kinds() -> dict[str, Callable[[int], list[Any]]]:
    failed = Failed(ErrorInfo("ValueError", "no", 1, 0.0, None))
    return {
        "parts of one block": lambda count: [Part(200_000)] * count,
        "texts": lambda count: ["x" * 200_000] * count,
        "numbers": lambda count: [7] * count,
        "texts and failures": lambda count: [failed if each % 3 else "x" * 200_000 for each in range(count)],
    }


@pytest.mark.parametrize("kind", of_kinds())
def test_results_that_come_together_count_as_those_that_come_alone(kind: str) -> None:
    results = of_kinds()[kind](48)
    calls, others = [[Call(row, 10) for row in range(48)] for _ in range(2)]
    (together, slots), (alone, other_slots) = made(16 * MIB), made(16 * MIB)
    together.weigh_all(calls, results)
    for call, result in zip(others, results, strict=True):
        if not isinstance(result, int | Failed):
            alone.weigh(call, result)
    assert together.held == alone.held
    assert [call.held for call in calls] == [call.held for call in others]
    assert (together.is_tight, slots.allowed) == (alone.is_tight, other_slots.allowed)
    assert together.is_tight == (kind in ("parts of one block", "texts"))


def test_light_results_that_come_together_are_passed_over() -> None:
    weights, _ = made(1024 * MIB)
    calls = [Call(row, 10) for row in range(20)]
    weights.weigh_all(calls[:4], [Part(100)] * 4)
    held, light = weights.held, weights.light
    assert held and light > 8
    weights.weigh_all(calls[4:12], [Part(100)] * 8)
    assert (weights.held, weights.light) == (held, light - 8)
    # More than are passed over are counted.
    weights.weigh_all(calls, [Part(100)] * 20)
    assert weights.held > held
