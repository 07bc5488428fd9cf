"""The counts of one operator. A value without state: safe in any thread."""

from __future__ import annotations

from typing import NamedTuple

from pillarbox.mailbox.histogram import LatencySnapshot


class OperatorStatistics(NamedTuple):
    """What one operator has done so far; a snapshot that does not change."""

    rows_in: int
    """Rows admitted."""
    results: int
    """Rows whose results were emitted."""
    in_flight: int
    """Calls that hold a slot now."""
    waiting: int
    """Rows that wait for a slot, for the rate or for their retry now."""
    calls: int
    """Attempts begun; with batches, rows in them."""
    retries: int
    """Attempts that failed and after which another was due; a row may time out before that."""
    errors: int
    """Rows that failed for good, time-outs included."""
    timeouts: int
    """Attempts and rows that met a limit of time."""
    late: int
    """Outcomes that came after their call's time-out and were ignored."""
    abandoned: int
    """Calls that did not end when they were cancelled."""
    finished_waiting: int
    """Rows that have finished and are not emitted now: in order, most of them wait for a row before them."""
    held_bytes: int
    """Bytes of the rows admitted and not emitted now, by estimate; 0 where `Buffer.max_bytes` is None."""
    capacity: int
    """Calls that may be in flight now."""
    batches: int
    """Calls of batches begun."""
    shared: int
    """Rows that got the result of another row's call."""
    not_called: int
    """Rows that were not called, since what was allowed is used up."""
    found: int
    """Rows whose results were found in the ledger, so that they were not called."""
    retries_by_reason: dict[str, int]
    """`retries` by the type of the error; "attempt_timeout" and "result" stand for what is none."""
    errors_by_type: dict[str, int]
    """`errors` by the type of the error."""
    latency: LatencySnapshot
    """Seconds of the attempts that ended."""
    call_latency: LatencySnapshot
    """Seconds from the start of a row's first attempt to the end of its last."""
    tokens: float
    """Tokens used, as `usage` says."""
    cost: float
    """Cost, as `usage` says."""
    rate_granted: int
    """Calls that the rate or the budget let through; 0 where there is neither."""
    cool_downs: int
    """Times that all calls were held back since the service asked for it."""
    spent: dict[str, float]
    """Seconds by what the time of the slots went on; see `SPENT`."""
    elapsed: float
    """Seconds since the operator was started."""


SPENT = {
    "calls": "slots that were busy",
    "loop": "the event loop was held up, by code that blocks or computes",
    "input": "no row was there",
    "order": "the window was full of rows that wait for one before them",
    "output": "what takes the results had no room",
    "rate": "the rate or a cool-down held calls back",
    "retry": "rows waited for their retry",
    "ledger": "the ledger's disk, or another attempt of the same task, was waited for",
    "end": "the last calls were waited for",
}
"""What the time of the slots goes on. Half of them busy for a second are half a second of "calls"."""
