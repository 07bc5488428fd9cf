"""The option `Adaptive`: calls in flight whose number is found. A value without state: safe in any thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pillarbox.providers import ADAPTIVE_CONTROLLER, check_provided, provided
from pillarbox.validate import check_positive_int, naming_arguments


@naming_arguments
@dataclass(frozen=True)
class Adaptive:
    """Adapt the number of calls in flight to the number that the service works on at once.

    The limit begins at `start` and doubles in each window until the service shows that it is full: its
    latency grows, or it refuses calls with 503 or 529. A window has at least 8 calls, and as many as may be
    in flight. From then on the limit is kept at 1.1 times the calls that do not wait, or just below the limit
    that was refused. Where the latency is 1.3 times as long as without a queue, fewer calls are in flight
    for a window: if they take as long, the service has become slower, and the limit is put back; one that
    doubled until then goes on doubling. The latency without a queue is also measured so every 250 round
    trips. More than 10 % refusals, beyond chance, cut the limit to 0.95 of it, at most once in a window of
    calls that began after the last cut; more than 10 % errors beyond the usual share to 0.7. Fewer change
    nothing.

    A call that has run for 16 round trips, and for a second at least, has a slot beside the limit, so that
    calls that hang do not use it up: as many as the limit at most, and four at least. With `Shared` those of
    all tasks count together.

    A rate limit (429) is not a full server: with a `Retry` such refusals give calls a pace, and leave the
    limit as it is.

    start, least, most: calls in flight, 1 or more.

        >>> from pillarbox import Adaptive, async_map
        >>> async def call(row):
        ...     return row + 1
        >>> list(async_map([1, 2, 3], call, capacity=Adaptive(start=2, most=16)))
        [2, 3, 4]

    The latency as a sign is from TCP Vegas (Brakmo, 1994), its use for calls from Netflix's
    concurrency-limits, the measurement with fewer calls in flight from TCP BBR (Cardwell, 2016), the way back
    to a limit that was refused from BIC (Xu, 2004).

    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    start: int = 16
    least: int = 1
    most: int = 1024

    def __post_init__(self) -> None:
        check_provided(ADAPTIVE_CONTROLLER, "capacity")
        for name in ("start", "least", "most"):
            check_positive_int(name, getattr(self, name))
        if not self.least <= self.start <= self.most:
            raise ValueError(
                f"start={self.start!r}: must be between least={self.least!r} and most={self.most!r}"
            )

    def open(self, clock: Callable[[], float] = time.monotonic) -> Any:
        """Return a controller of the limit of one operator. `clock` returns seconds and is monotonic."""
        return provided(ADAPTIVE_CONTROLLER, "capacity")(self, clock)


class CapacityFinder(Protocol):
    """Takes the outcomes of attempts, by which the calls in flight are found. On the mailbox thread."""

    @property
    def limit(self) -> int:
        """Calls that may be in flight now."""

    @property
    def round_trip(self) -> float:
        """Seconds of a call, as far as known; infinite where it is not."""

    def succeeded(self, seconds: float) -> None:
        """Note that an attempt succeeded after so many seconds."""

    def failed(self, overloaded: bool, seconds: float | None = None) -> None:
        """Note that an attempt failed: see the controller of an `Adaptive`."""
