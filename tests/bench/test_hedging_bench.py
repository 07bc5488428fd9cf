"""The benchmark of hedges, with few rows: what it measures, and that its targets are met."""

from __future__ import annotations

from bench.limits.hedging import jobs, main, measure_virtual

ROWS, CAPACITY, SEED = 5_000, 10, 3


def test_hedges_give_nine_tenths_of_the_best_rate_for_five_calls_more_of_a_hundred() -> None:
    without, _, in_order, as_finished, *_ = [measure_virtual(job, ROWS, CAPACITY, SEED) for job in jobs()[:4]]
    assert without.share < 0.3
    assert without.more_calls == 0.0
    for found in (in_order, as_finished):
        assert 0.9 < found.share <= 1.1
        assert 0.0 < found.more_calls <= 0.05


def test_the_command_prints_a_line_for_each_job() -> None:
    lines: list[str] = []
    main(["--rows", "1000", "--capacity", "4"], say=lines.append)
    assert len(lines) == 2 + len(jobs())
