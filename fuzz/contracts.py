"""Contracts of pure functions, for CrossHair: what must hold for all arguments.

Each function here calls the one that ships; its docstring is the contract. `fuzz.contracts_run` checks them.
Only Python can be reasoned about: of the kernel every small case is tried, by
`tests/kernel/test_small_cases.py`.
"""

from __future__ import annotations

from pillarbox.aio.retry import Retry


def a_pause_is_never_longer_than_the_maximum(initial: float, maximum: float, attempt: int) -> float:
    """The bound of a pause.

    pre: 0.0 <= initial <= 1000.0 and 0.0 <= maximum <= 1000.0
    pre: 1 <= attempt <= 8
    post: 0.0 <= __return__ <= maximum
    """
    return Retry(initial=initial, maximum=maximum).bound(attempt)


def a_pause_is_never_longer_than_doubling_makes_it(initial: float, maximum: float, attempt: int) -> float:
    """The bound of a pause that doubles.

    pre: 0.0 <= initial <= 1000.0 and 0.0 <= maximum <= 1000.0
    pre: 1 <= attempt <= 8
    post: __return__ <= initial * 2.0 ** (attempt - 1)
    """
    return Retry(initial=initial, maximum=maximum).bound(attempt)


def pauses_do_not_get_shorter(initial: float, maximum: float, attempt: int) -> bool:
    """Return True if the bound of the next pause is at least as long.

    pre: 0.0 <= initial <= 1000.0 and 0.0 <= maximum <= 1000.0
    pre: 1 <= attempt <= 8
    post: __return__
    """
    retry = Retry(initial=initial, maximum=maximum)
    return retry.bound(attempt) <= retry.bound(attempt + 1)


def attempts_are_bounded(attempts: int, attempt: int) -> bool:
    """Return True if another attempt follows.

    pre: 1 <= attempts and 1 <= attempt
    post: __return__ == (attempt < attempts)
    """
    return Retry(attempts).applies(attempt, ValueError())
