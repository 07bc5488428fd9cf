"""The interface of policies, which decide about calls: the moments of a call's life, and the stack.

An operator has a stack of policies in a fixed order, compiled once for each moment. Confined to the mailbox
thread, but for `CallPolicy.statistics`.
"""

# The vocabulary is that of Tower's layers, Finagle's filters and Polly's pipelines. Those wrap one another,
# so that each call is a chain of functions, and what holds a call back holds up its caller. Here a policy
# answers questions and returns at once, the scheduler waits: a call that waits holds no slot, a snapshot can
# be taken at any moment, and a moment that no policy of the stack uses costs nothing.

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from pillarbox.aio.calls import Call
from pillarbox.redaction import Redact

log = logging.getLogger("pillarbox")

Charge: TypeAlias = Literal["attempt", "refusal", "repeat"]
"""The account of an attempt that another follows: `Retry.attempts`, an outage, or the function's own."""


class Again(NamedTuple):
    """Decision about an attempt that failed: another follows after `pause` seconds; None: none follows.

    charge: "attempt" counts the failed one among `Retry.attempts`; "refusal" does not, as the service refused
    it whatever its row is; "repeat" does not, as its function asked for the next one.

        >>> from pillarbox.policies import Again
        >>> Again(0.5)
        Again(pause=0.5, charge='attempt')
    """

    pause: float | None
    charge: Charge = "attempt"


FINAL = Again(None)
"""No other attempt follows, whatever the policies behind this one would decide."""


class Found(NamedTuple):
    """Answer to `CallPolicy.admit`: the row has this result, and is not called.

    >>> from pillarbox import Options, async_map
    >>> from pillarbox.policies import CallPolicy, Found
    >>> class Empty(CallPolicy):
    ...     def admit(self, call):
    ...         return None if call.row else Found("nothing to ask")
    >>> async def ask(row):
    ...     return row.upper()
    >>> list(async_map(["a", ""], ask, options=Options(policies=[Empty()])))
    ['A', 'nothing to ask']
    """

    result: Any


class HookFailed(Exception):
    """A function of the options has raised `cause`, of which its row fails without another attempt."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


class CallSuperseded(Exception):
    """End of a call that was cancelled, as its row needs it no longer: another call of the row has answered.

        >>> import asyncio
        >>> from pillarbox import Hedge, Options, async_map
        >>> from pillarbox.policies import CallPolicy
        >>> class Log(CallPolicy):
        ...     def ended(self, calls, error, seconds):
        ...         print("hedge" if calls[0].hedges else "first call", type(error).__name__)
        >>> called = []
        >>> async def ask(row):
        ...     called.append(row)
        ...     await asyncio.sleep(3600 if len(called) == 1 else 0)
        ...     return row
        >>> options = Options(hedge=Hedge(after=0.01, idempotent=True), policies=[Log()])
        >>> list(async_map([1], ask, options=options))
        first call CallSuperseded
        hedge NoneType
        [1]

    The moment `ended` gets it; no row fails with it.
    """


class PolicyServices(NamedTuple):
    """Services of an operator for its policies. The functions are for the operator's thread.

    loop, clock: the event loop, and seconds on the clock of the operator. redact: removes secrets from texts.
    wake: has `may_begin` asked again. stop: ends the job with an error. finished, begun: rows that have
    finished, and attempts begun. in_flight, limit: calls in flight, and how many may be. running_since: how
    many of them began at a moment of `clock`, or before. changed: has the limit looked at anew. gate_appears:
    has `may_begin` of all policies asked from now on.

        >>> from pillarbox import Options, async_map
        >>> from pillarbox.policies import CallPolicy
        >>> class OneASecond(CallPolicy):
        ...     def open(self, services):
        ...         self.clock, self.next = services.clock, 0.0
        ...     def may_begin(self, calls):
        ...         return max(0.0, self.next - self.clock())
        ...     def begin(self, calls):
        ...         self.next = self.clock() + 1.0
        >>> async def ask(row):
        ...     return row
        >>> list(async_map([1, 2], ask, options=Options(policies=[OneASecond()])))
        [1, 2]
    """

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    redact: Redact
    wake: Callable[[], None]
    stop: Callable[[BaseException], None]
    finished: Callable[[], int]
    begun: Callable[[], int]
    in_flight: Callable[[], int]
    running_since: Callable[[float], int]
    limit: Callable[[], int]
    changed: Callable[[], None]
    gate_appears: Callable[[], None]


class CallPolicy:
    """One concern of the calls of an operator: derive from it, and override the moments that it needs.

    A moment that is not overridden costs nothing. `call` has `row`, `attempt` (from 1, 0 before the first),
    `error` (of the attempt before) and `cost`; a policy does not change it. The rows of a batch come
    together as `calls`; without `batch` that is one.

    `Options(policies=[...])` puts policies in front of those that the other options make: each moment asks
    them first, in the order of the list. An operator works with a copy of each, made by `copy.copy`. For a
    DataFrame they are pickled to the workers.

        >>> from pillarbox import Options, async_map
        >>> from pillarbox.policies import CallPolicy
        >>> class Log(CallPolicy):
        ...     def ended(self, calls, error, seconds):
        ...         print(calls[0].row, "failed" if error else "answered")
        >>> async def call(row):
        ...     return row + 1
        >>> list(async_map([1], call, options=Options(policies=[Log()])))
        1 answered
        [2]

    What a moment raises fails the rows of its calls, without another attempt; `open`, `ended` and `finish`
    end the job with it. All moments are called on the operator's thread and return at once.
    """

    skips: frozenset[str] = frozenset()
    """Names of moments that the class overrides and this object does not need."""
    needs_answers: bool = True
    """False if `ended` is for attempts that failed only."""

    def open(self, services: PolicyServices) -> None:
        """Take the services of the operator, before any other moment."""

    def admit(self, call: Call) -> Found | None:
        """Return the result of a row that need not be called; None to call it."""

    def may_begin(self, calls: Sequence[Call]) -> float:
        """Return 0.0 if an attempt of `calls` may begin now, else the seconds after which to ask again.

        `math.inf` waits for `PolicyServices.wake`. Another policy may hold the attempt back all the same:
        what is counted is counted in `begin`.
        """
        return 0.0

    def choose(self, calls: Sequence[Call]) -> Any:
        """Return the endpoint of the attempt that begins; its function finds it as `current_call().endpoint`.

        The first policy that returns one decides; None leaves it to the next. A hedge has the endpoints of
        the calls that run in `avoided`, of its first call.
        """

    def begin(self, calls: Sequence[Call]) -> None:
        """Note that an attempt of `calls` begins."""

    def accept(self, call: Call, result: Any) -> Any:
        """Return the result that goes on, this one or another; raise to have the attempt fail with an error.

        That error is retried as one of the function is.
        """
        return result

    def ended(self, calls: Sequence[Call], error: BaseException | None, seconds: float) -> None:
        """Note that an attempt of `calls` ended after `seconds`, with an error or, with None, a result."""

    def again(self, calls: Sequence[Call], error: BaseException) -> Again | None:
        """Decide whether another attempt follows one that failed; None leaves it to the next policy.

        `calls` are rows of one attempt with as many charged ones before. Without any decision none follows.
        """

    def finish(self, call: Call, result: Any) -> None:
        """Note the result of a called row; one that failed for good has a `Failed`."""

    def snapshot(self) -> Any:
        """Return the state that a restart needs, an unchanging value of plain types; None for none."""

    def restore(self, state: Any) -> None:
        """Go on from a state of `snapshot`. After `open`, before any other moment."""

    def statistics(self) -> Mapping[str, float]:
        """Return counts by name. Any thread."""
        return {}

    def close(self) -> None:
        """Release resources: no moment follows."""


MOMENTS = ("admit", "may_begin", "choose", "begin", "accept", "ended", "again", "finish")
"""Moments of a call's life, in their order."""


class PolicyStack:
    """Policies in their order, compiled for each moment: the methods of those that override it.

    again_last: policies of the stack that decide about another attempt behind all others. `answered` are the
    methods `ended` that are called for attempts without an error, too.
    """

    __slots__ = (*MOMENTS, "answered", "policies")

    admit: tuple[Callable[[Call], Found | None], ...]
    may_begin: tuple[Callable[[Sequence[Call]], float], ...]
    choose: tuple[Callable[[Sequence[Call]], Any], ...]
    begin: tuple[Callable[[Sequence[Call]], None], ...]
    accept: tuple[Callable[[Call, Any], Any], ...]
    ended: tuple[Callable[[Sequence[Call], BaseException | None, float], None], ...]
    again: tuple[Callable[[Sequence[Call], BaseException], Again | None], ...]
    finish: tuple[Callable[[Call, Any], None], ...]
    answered: tuple[Callable[[Sequence[Call], BaseException | None, float], None], ...]

    def __init__(self, policies: Sequence[CallPolicy], again_last: Sequence[CallPolicy] = ()) -> None:
        self.policies = tuple(policies)
        for moment in MOMENTS:
            self.compile(moment)
        last = [policy.again for policy in again_last]
        self.again = (*[again for again in self.again if again not in last], *last)

    def compile(self, moment: str) -> None:
        """Take the methods of a moment anew, where a policy needs it only from now on."""
        base = getattr(CallPolicy, moment)
        methods = [
            getattr(policy, moment)
            for policy in self.policies
            if getattr(type(policy), moment) is not base and moment not in policy.skips
        ]
        setattr(self, moment, tuple(methods))
        if moment == "ended":
            deaf = [policy.ended for policy in self.policies if not policy.needs_answers]
            self.answered = tuple([method for method in methods if method not in deaf])

    def look_up(self, calls: Sequence[Call]) -> list[tuple[Call, tuple[Any] | BaseException]]:
        """Return the rows that a policy answers, each with its result in a tuple, or with its error."""
        done: list[tuple[Call, tuple[Any] | BaseException]] = []
        for call in calls:
            try:
                for admit in self.admit:
                    if (found := admit(call)) is not None:
                        done.append((call, (found.result,)))
                        break
            except BaseException as error:
                done.append((call, error))
        return done

    def open(self, services: PolicyServices) -> None:
        """Open all policies."""
        for policy in self.policies:
            policy.open(services)

    def close(self) -> None:
        """Close all policies; one that raises is logged, and keeps no other open."""
        for policy in self.policies:
            try:
                policy.close()
            except Exception:
                log.exception("%s raised while it was closed", type(policy).__name__)

    def statistics(self) -> dict[str, float]:
        """Counts of all policies, added up by name. Any thread."""
        counts: dict[str, float] = {}
        for policy in self.policies:
            for name, count in policy.statistics().items():
                counts[name] = counts.get(name, 0.0) + count
        return counts


def copies_of(policies: Sequence[CallPolicy]) -> list[CallPolicy]:
    """Copies of the policies of some options, for one operator."""
    return [copy.copy(policy) for policy in policies]


def check_policies(policies: Any) -> tuple[CallPolicy, ...]:
    """Return the policies of some options. Raises TypeError for what is none."""
    if isinstance(policies, CallPolicy) or not isinstance(policies, Sequence):
        raise TypeError(
            f"policies={policies!r}: must be a list of objects derived from pillarbox.policies.CallPolicy"
        )
    for policy in policies:
        if not isinstance(policy, CallPolicy):
            raise TypeError(
                f"policies={policies!r}: {policy!r} is not derived from pillarbox.policies.CallPolicy; "
                "derive a class from it and give an object of that"
            )
    return tuple(policies)
