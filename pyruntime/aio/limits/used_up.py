"""Finds out from the refusals of a service that it takes no call for long. Pure; one thread at a time."""

# One bad header must not end a job, nor keep an endpoint from its calls. A code such as `insufficient_quota`
# says what it means, and so does a refusal beside a limit of which nothing is left; of a status 402 or a long
# `Retry-After` alone several in a row are needed, and no answer that comes between them.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pillarbox.aio.limits.headers import LimitReading
from pillarbox.wire import Kind, Reading

IN_A_ROW = 3
"""Refusals that have to agree where one alone may be a mistake."""
REFUSED_STATUS = 429


class UsedUp(NamedTuple):
    """A quota that is gone for so many seconds; without an end for the credit of an account."""

    seconds: float

    @property
    def is_credit(self) -> bool:
        """True for the credit of an account, which does not come back by itself."""
        return self.seconds == math.inf


class RefusalWatch:
    """Counts the refusals of one service, or of one endpoint of it, until it is certain that a quota is gone.

    >>> from pillarbox.aio.limits.used_up import RefusalWatch
    >>> from pillarbox.wire import read_answer
    >>> watch = RefusalWatch()
    >>> refusal = read_answer(429, {"Retry-After": "86400"})
    >>> [watch.look(refusal, [], answered=0, longest=600.0) for _ in range(3)]
    [None, None, UsedUp(seconds=86400.0)]
    """

    __slots__ = ("_answered", "_in_a_row")

    def __init__(self) -> None:
        self._in_a_row = 0
        self._answered = -1

    def look(
        self, reading: Reading, limits: Sequence[LimitReading], answered: int, longest: float
    ) -> UsedUp | None:
        """Look at a refusal; returns what is gone for more than `longest` seconds, None without certainty.

        limits: those that it names. answered: calls that were answered so far.
        """
        if reading.kind is Kind.OUT_OF_QUOTA:
            is_certain = reading.code is not None
            return UsedUp(math.inf) if is_certain or self._count(answered) else None
        asked = reading.retry_after
        # Of a quota whose calls come back one by one a refusal names the time of the next one.
        gone_for = max([limit.reset or 0.0 for limit in limits if limit.remaining < 1.0], default=0.0)
        if asked is not None and asked <= longest:
            self._in_a_row = 0
            return None
        if gone_for <= longest:
            if asked is None or not self._count(answered):
                return None
            gone_for = asked
        elif asked is not None:
            gone_for = asked
        elif not self._count(answered):
            return None
        return UsedUp(gone_for)

    def _count(self, answered: int) -> bool:
        """Count a refusal; True if it is one of several, without an answer between them."""
        self._in_a_row = self._in_a_row + 1 if answered == self._answered else 1
        self._answered = answered
        return self._in_a_row >= IN_A_ROW


def is_refusal(reading: Reading) -> bool:
    """Return True for an answer that refuses a call for a quota."""
    return reading.kind is Kind.OUT_OF_QUOTA or (
        reading.kind is Kind.OVERLOADED and reading.status == REFUSED_STATUS
    )
