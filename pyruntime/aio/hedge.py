"""The option `Hedge`, and which functions may be hedged. Values without state: safe in any thread."""

# Why three calls. Of calls of which one in a hundred is slow, the second is so for one row in 10,000. In
# order that row holds up the others like any slow one, and with 100 calls in flight one begins in every
# hundred times the median: as long as it takes. `python -m bench.limits.hedging` has the figures.
#
# Why a function has to say that it is idempotent. A retry follows a call that has failed; a hedge is made
# while the first call still runs, and most often both do what they do. Where that is an order or a message,
# the row has two of them, and no error says so. Nothing of a function shows which kind it is.
#
# Why no threads. What makes a hedge cheap is that the slower call ends when the other one has answered. A
# thread cannot be ended: it would hold its slot for as long as the slow call takes, and with one call in a
# hundred a hundred times slower that is most of what a hedge is to save.

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from pillarbox.aio.errors import shorten
from pillarbox.aio.function import is_async, is_async_generator, is_resource
from pillarbox.validate import check_bool, check_int, check_number, naming_arguments

MOST_CALLS = 5
"""Calls of one attempt, at most: further ones find a service that is slow for all."""

_QUANTILE = re.compile(r"p([5-9]\d)")


@naming_arguments
@dataclass(frozen=True)
class Hedge:
    """Call a row a second time while its first call is slow; the first good answer counts.

    When one call in a hundred takes a hundred times as long as the others, it holds a slot for that time,
    and in order the rows behind it wait. A second call most often answers at once, or a third where that is
    slow too. All calls are one attempt: an error of one lets the others go on, and what is slower is
    cancelled.

    after: the time that a call may take before another of its row begins: a quantile of the times of the
        last calls, "p50" to "p99", or seconds. With a quantile there is no hedge before enough calls have
        ended: 20, and 100 for "p99".
    budget: hedges, at most, as a fraction of the calls (above 0, at most 1). Two may begin before any calls
        have paid for them.
    calls: calls of one attempt, at most, the first included (2 to 5). Each begins when the one before it
        has become slow.
    idempotent: True for a function that may be called twice with one row without harm. A function or an
        object with the attribute `idempotent`, which is True, need not be declared here, as `Chat`,
        `Embeddings` and `HttpLookup` with GET.

        >>> import asyncio
        >>> from pillarbox import Hedge, Options, async_map
        >>> called = []
        >>> async def call(row):
        ...     called.append(row)
        ...     # The first call of "b" hangs.
        ...     await asyncio.sleep(3600 if called.count(row) == 1 and row == "b" else 0)
        ...     return row.upper()
        >>> hedge = Hedge(after=0.01, idempotent=True)
        >>> list(async_map(["a", "b", "c"], call, options=Options(hedge=hedge)))
        ['A', 'B', 'C']
        >>> called.count("b")
        2

    A hedge takes a slot of `capacity`, and counts as a call for `rate` and `budget`. None begins while the
    rate, a budget or an overloaded service holds calls back. With batches a call is hedged with all rows that
    wait for it. For async functions: a thread cannot be cancelled.

    The idea is that of hedged requests: J. Dean, L. A. Barroso, "The Tail at Scale" (CACM, 2013).
    A value; any thread may use it. Raises TypeError or ValueError that names the argument, its value and the
    allowed values.
    """

    after: float | str = "p95"
    budget: float = 0.05
    _: KW_ONLY
    calls: int = 3
    idempotent: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.after, str):
            if _QUANTILE.fullmatch(self.after) is None:
                raise ValueError(
                    f"after={self.after!r}: must be a quantile of the times of calls, 'p50' to 'p99', or "
                    "a number of seconds"
                )
        else:
            check_number("after", self.after, above=0.0, otherwise=" of seconds, or 'p50' to 'p99'")
        check_number("budget", self.budget, above=0.0)
        if self.budget > 1.0:
            raise ValueError(f"budget={self.budget!r}: must be a fraction of the calls, at most 1")
        check_int("calls", self.calls, 2, MOST_CALLS)
        check_bool("idempotent", self.idempotent)

    @property
    def seconds(self) -> float | None:
        """The seconds of `after`; None where it is a quantile."""
        return None if isinstance(self.after, str) else float(self.after)

    @property
    def quantile(self) -> float | None:
        """The quantile of `after`, such as 0.95; None where it is a number of seconds."""
        return int(self.after[1:]) / 100 if isinstance(self.after, str) else None


def check_hedge(hedge: Any) -> Hedge | None:
    """Return the `Hedge` of some options. Raises TypeError for what is none."""
    if hedge is None or isinstance(hedge, Hedge):
        return hedge
    raise TypeError(f"hedge={hedge!r}: must be a pillarbox.Hedge, such as Hedge(after='p95'), or None")


def is_idempotent(fn: Callable[..., Any]) -> bool:
    """Return True if `fn` says of itself that it may be called twice with one row."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "idempotent", False) is True


def check_hedged(fn: Callable[..., Any], hedge: Hedge | None) -> None:
    """Raise TypeError or ValueError if `fn`, as it was given, cannot be hedged. Any thread."""
    if hedge is None:
        return
    if not is_resource(fn):
        check_cancellable(fn)
    if not (hedge.idempotent or is_idempotent(fn)):
        raise ValueError(
            f"hedge={hedge!r}: calls a slow row twice, and fn={shorten(fn)} does not say that this does no "
            "harm; if it may be called twice with one row, say Hedge(..., idempotent=True) or give it the "
            "attribute idempotent = True, otherwise leave hedge out"
        )


def check_cancellable(fn: Callable[..., Any]) -> None:
    """Raise TypeError if a call of `fn` cannot be cancelled, so that there is no hedge of it."""
    if not (is_async(fn) or is_async_generator(fn)):
        raise TypeError(
            f"hedge: fn={shorten(fn)} is a plain function, whose calls cannot be cancelled, so that the "
            "slower of two would hold its slot; make it `async def`, or leave hedge out"
        )
