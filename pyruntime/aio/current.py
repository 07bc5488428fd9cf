"""The way of a function to the call in which it runs."""

# A module of its own, which is imported by who asks and by nobody else. Where it is not, a worker that
# carries one call after the other names itself in its context, once. A child task of a call has a copy of
# that, and would find the worker's next call in it if it outlives its own. Where somebody may ask, each call
# is named.

from __future__ import annotations

from pillarbox.aio.current_call import CurrentCall, running_call


def current_call() -> CurrentCall:
    """Return the running call: the identity of its row, attempt, last error, time left, and a logger.

        >>> from pillarbox import async_map, current_call
        >>> async def call(row):
        ...     now = current_call()
        ...     return now.attempt, now.seconds_left > 20, len(now.identity)
        >>> list(async_map(["a"], call, timeout=30.0))
        [(1, True, 32)]

    It works in any function that an operator calls, async, blocking or of batches, and in code with a copy of
    its context: child tasks, `asyncio.to_thread`. A batch has one call for all of its rows:
    `CurrentCall.rows`.

    Raises LookupError outside of a call. The idea is that of `asyncio.current_task`.
    """
    found = running_call()
    if found is None:
        raise LookupError(
            "current_call: no call of an operator runs here; ask in the function that async_map was given, "
            "or in a task or thread that has a copy of its context (asyncio.to_thread, not run_in_executor)"
        )
    return found
