"""The simulation of limits: what it measures of a fixed capacity and of one that is found."""

from __future__ import annotations

import pytest

from bench.limits.adaptive import at_knee, sporadic
from bench.limits.crowded import Service


@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize("tasks", [1, 2])
def test_refusals_now_and_then_cost_a_fixed_capacity_next_to_nothing(
    tasks: int, retry_after: float | None
) -> None:
    free = sporadic(0.0, None, False, tasks, 2000)
    refused = sporadic(0.03, retry_after, False, tasks, 2000)
    assert 0.02 <= refused.refused <= 0.04 and free.refused == 0.0
    assert refused.rate >= 0.95 * free.rate and refused.cool_downs == 0


@pytest.mark.parametrize("refuses", [False, True])
def test_a_knee_is_found_by_a_queue_and_by_refusals(refuses: bool) -> None:
    found = at_knee(Service(12, 2.0, refuses=refuses, status=503), 400.0, 200.0)
    assert found.share >= 0.95
    assert found.limits[1] <= 1.5 * 12
