"""The times of an operator and its task that no option sets. A value; any thread.

An operator, a task and a session with a ledger each take `INTERVALS` as it is when they are made.
"""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox.ledger.lease import HUNG_AFTER_S

CLOSE_TIMEOUT_S = 5.0
"""Seconds that ending a run early may take before its threads are left to themselves."""


@dataclass(frozen=True)
class Intervals:
    """Times in seconds, and numbers.

    cancel_timeout: for a call to end after it was revoked; then its slot is given to another.
    abandoned_threads: calls that may go on in their threads after their time-out, at least; more where the
        capacity is larger.
    stall_timeout: by which a deadline may be missed before the event loop counts as blocked.
    close_timeout: that ending a run early may take before its threads are left to themselves.
    hung_after: after which another attempt, or another task, that shows no progress is not waited for.
    lease_check: for which calls begin without a look whether the lease is another's by now.
    """

    cancel_timeout: float = 1.0
    abandoned_threads: int = 64
    stall_timeout: float = 5.0
    close_timeout: float = CLOSE_TIMEOUT_S
    hung_after: float = HUNG_AFTER_S
    lease_check: float = 0.1


INTERVALS = Intervals()
