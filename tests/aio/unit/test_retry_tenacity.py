"""Objects of tenacity as retry policies: they decide as tenacity itself would, and never wait."""

from __future__ import annotations

import logging
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tenacity")

import tenacity

from pillarbox import Options
from pillarbox.aio.errors import ResultRejected
from pillarbox.aio.retry import MAX_RETRY_AFTER, SPREAD, RetryPolicy, check_retry, retry_policy

STOPS = {
    "attempts": tenacity.stop_after_attempt(3),
    "either": tenacity.stop_after_attempt(4) | tenacity.stop_after_delay(1e6),
    "both": tenacity.stop_all(tenacity.stop_after_attempt(2), tenacity.stop_after_attempt(3)),
    "function": lambda state: state.attempt_number >= 2,
}
WAITS = {
    "none": tenacity.wait_none(),
    "fixed": tenacity.wait_fixed(2),
    "exponential": tenacity.wait_exponential(multiplier=0.5, max=3),
    "jitter": tenacity.wait_exponential_jitter(initial=1, max=20, jitter=2),
    "full jitter": tenacity.wait_random_exponential(max=9),
    "chain": tenacity.wait_chain(tenacity.wait_fixed(1), tenacity.wait_fixed(5)),
    "sum": tenacity.wait_fixed(1) + tenacity.wait_incrementing(1, 2),
    "by error": tenacity.wait_exception(lambda error: float(len(str(error)))),
}
RETRIES = {
    "type": tenacity.retry_if_exception_type((OSError, EOFError)),
    "not type": tenacity.retry_if_not_exception_type(KeyError),
    "unless type": tenacity.retry_unless_exception_type(KeyError),
    "predicate": tenacity.retry_if_exception(lambda error: "x" in str(error)),
    "message": tenacity.retry_if_exception_message(match="x"),
    "result": tenacity.retry_if_result(lambda result: result is None),
    "not result": tenacity.retry_if_not_result(lambda result: result == 1),
    "any": tenacity.retry_any(
        tenacity.retry_if_result(lambda result: result is None), tenacity.retry_if_exception_type(OSError)
    ),
    "all": tenacity.retry_all(
        tenacity.retry_if_exception_type(Exception), tenacity.retry_if_not_exception_type(OSError)
    ),
    "function": lambda state: state.outcome.failed and state.attempt_number < 3,
}
OUTCOMES = st.lists(
    st.one_of(
        st.sampled_from([None, 0, 1]),
        st.sampled_from([OSError, KeyError, EOFError, tenacity.TryAgain]).flatmap(
            lambda kind: st.sampled_from(["", "x", "xyz"]).map(kind)
        ),
    ),
    min_size=6,
    max_size=6,
)


class Refused(Exception):
    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.headers = {"Retry-After": str(seconds)}


def give(outcome: Any) -> Any:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def by_tenacity(retrying: Any, outcomes: list[Any]) -> tuple[list[float], Any]:
    """The pauses and the outcome when tenacity itself makes the attempts, without waiting."""
    pauses: list[float] = []
    script = iter(outcomes)
    own = retrying.copy(sleep=pauses.append)
    try:
        return pauses, own(lambda: give(next(script)))
    except tenacity.RetryError as error:
        last = error.last_attempt
        return pauses, last.exception() if last.failed else ResultRejected(last.result())
    except Exception as error:
        return pauses, error


def by_policy(policy: RetryPolicy, outcomes: list[Any]) -> tuple[list[float], Any]:
    """The same, asked as the operator asks."""
    pauses: list[float] = []
    for attempt, outcome in enumerate(outcomes, 1):
        error = outcome
        try:
            if not isinstance(outcome, Exception):
                if not (policy.checks_results and policy.rejects(outcome, attempt, 0.0)):
                    return pauses, outcome
                error = ResultRejected(outcome)
            pause = policy.pause(attempt, error, 0.0)
        except Exception as raised:
            return pauses, raised
        if pause is None:
            return pauses, error
        pauses.append(pause)
    raise AssertionError("it has not stopped")


@pytest.mark.contract
@given(
    stop=st.sampled_from(sorted(STOPS)),
    wait=st.sampled_from(sorted(WAITS)),
    retry=st.sampled_from(sorted(RETRIES)),
    outcomes=OUTCOMES,
    seed=st.integers(0, 1000),
)
def test_the_decisions_are_those_of_tenacity(
    stop: str, wait: str, retry: str, outcomes: list[Any], seed: int
) -> None:
    retrying = tenacity.Retrying(stop=STOPS[stop], wait=WAITS[wait], retry=RETRIES[retry])
    random.seed(seed)
    pauses, outcome = by_tenacity(retrying, outcomes)
    random.seed(seed)
    own_pauses, own_outcome = by_policy(retry_policy(retrying), outcomes)
    assert own_pauses == pytest.approx(pauses)
    assert type(own_outcome) is type(outcome)
    if isinstance(outcome, ResultRejected):
        assert own_outcome.result == outcome.result
    elif isinstance(outcome, RuntimeError):  # raised by a strategy, which takes errors only
        assert str(own_outcome) == str(outcome)
    else:
        assert own_outcome is outcome


@pytest.mark.parametrize(("retry", "looks"), [("type", False), ("not type", False), ("predicate", False)])
def test_results_are_looked_at_only_by_what_can_reject_them(retry: str, looks: bool) -> None:
    assert retry_policy(tenacity.Retrying(retry=RETRIES[retry])).checks_results is looks
    for name in ("unless type", "result", "not result", "any", "function"):
        assert retry_policy(tenacity.Retrying(retry=RETRIES[name])).checks_results


@pytest.mark.parametrize("seconds", [0.0, 9.0, 10.0, 11.0])
def test_time_since_the_first_attempt_counts(seconds: float) -> None:
    after = retry_policy(tenacity.AsyncRetrying(stop=tenacity.stop_after_delay(9.5)))
    assert (after.pause(1, OSError(), seconds) is None) is (seconds >= 9.5)
    before = retry_policy(
        tenacity.AsyncRetrying(stop=tenacity.stop_before_delay(12), wait=tenacity.wait_fixed(2.5))
    )
    assert (before.pause(1, OSError(), seconds) is None) is (seconds + 2.5 >= 12)


def test_callbacks_see_the_attempt_in_the_order_of_tenacity() -> None:
    seen: list[tuple[Any, ...]] = []

    def note(name: str) -> Callable[[Any], None]:
        def callback(state: Any) -> None:
            action = state.next_action
            seen.append((name, state.attempt_number, action and action.sleep, state.outcome.exception()))

        return callback

    error = OSError()
    policy = retry_policy(
        tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(3),
            wait=tenacity.wait_fixed(1.5),
            after=note("after"),
            before_sleep=note("before_sleep"),
        )
    )
    assert policy.pause(2, error, 0.0) == 1.5
    assert policy.pause(3, error, 0.0) is None
    assert seen == [("after", 2, None, error), ("before_sleep", 2, 1.5, error), ("after", 3, None, error)]


def test_callbacks_see_the_result_that_was_rejected() -> None:
    seen: list[Any] = []
    policy = retry_policy(
        tenacity.Retrying(
            retry=RETRIES["result"], before_sleep=lambda state: seen.append(state.outcome.result())
        )
    )
    assert policy.rejects(None, 1, 0.0)
    assert policy.pause(1, ResultRejected(None), 0.0) == 0
    assert seen == [None]


def test_pauses_can_be_logged_by_tenacity(caplog: pytest.LogCaptureFixture) -> None:
    log = tenacity.before_sleep_log(logging.getLogger("calls"), logging.WARNING)
    policy = retry_policy(tenacity.Retrying(wait=tenacity.wait_fixed(2), before_sleep=log))
    policy.pause(1, OSError("busy"), 0.0)
    assert "in 2 seconds as it raised OSError: busy" in caplog.text


def test_a_service_that_asks_for_more_is_given_more_and_stop_knows_it() -> None:
    retrying = tenacity.Retrying(wait=tenacity.wait_fixed(2), stop=tenacity.stop_before_delay(20))
    policy = retry_policy(retrying)
    assert policy.pause(1, Refused(1), 0.0) == 2
    pause = policy.pause(1, Refused(10), 0.0)
    assert pause is not None and 10 <= pause <= 10 * (1 + SPREAD)
    assert policy.pause(1, Refused(21), 0.0) is None
    assert policy.retry_after(Refused(86_400)) == MAX_RETRY_AFTER


def test_what_a_predicate_of_tenacity_raises_comes_out() -> None:
    def broken(value: Any) -> Any:
        raise KeyError("a fault of the predicate")

    policy = retry_policy(tenacity.Retrying(retry=tenacity.retry_if_result(broken)))
    with pytest.raises(KeyError, match="a fault"):
        policy.rejects(1, 1, 0.0)
    for part in ("retry", "wait", "stop", "after", "before_sleep"):
        with pytest.raises(KeyError, match="a fault"):
            retry_policy(tenacity.Retrying(**{part: broken})).pause(1, OSError(), 0.0)


def test_the_object_of_a_decorated_function_is_a_policy_and_shares_nothing_with_it() -> None:
    @tenacity.retry(stop=tenacity.stop_after_attempt(2), wait=tenacity.wait_none())
    async def fetch(row: int) -> int:
        return row

    policy = retry_policy(fetch.retry)
    assert policy.pause(1, OSError(), 0.0) == 0
    assert policy.pause(2, OSError(), 0.0) is None
    assert fetch.statistics == {}
    with pytest.raises(
        TypeError, match="of a function that tenacity has decorated, give its attribute `retry`"
    ):
        retry_policy(fetch)
    with pytest.raises(TypeError, match=r"give an object such as AsyncRetrying\(...\), no decorator"):
        retry_policy(tenacity.retry(stop=tenacity.stop_after_attempt(2)))
    with pytest.raises(TypeError, match=r"give an object such as AsyncRetrying\(...\), no decorator"):
        retry_policy(tenacity.AsyncRetrying)


def test_a_disabled_object_tries_nothing_again() -> None:
    policy = retry_policy(tenacity.Retrying(retry=RETRIES["any"], enabled=False))
    assert not policy.checks_results
    assert policy.pause(1, OSError(), 0.0) is None


async def awaited(state: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"before": print}, "retry.before=.*: is not called before attempts; use before_sleep or after"),
        ({"retry_error_callback": print}, "retry.retry_error_callback=.*: cannot stand in for a failed row"),
        ({"retry_error_cls": OSError}, "retry.retry_error_cls=.*: is never raised"),
        ({"retry": awaited}, "retry.retry=.*: must be a plain function or object"),
        ({"stop": awaited}, "retry.stop=.*: must be a plain function or object"),
        ({"wait": awaited}, "retry.wait=.*: must be a plain function or object"),
        ({"after": awaited}, "retry.after=.*: must be a plain function or object"),
        ({"before_sleep": awaited}, "retry.before_sleep=.*: must be a plain function or object"),
    ],
)
def test_what_the_operator_cannot_do_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        retry_policy(tenacity.AsyncRetrying(**arguments))


def test_an_awaited_strategy_inside_another_is_refused() -> None:
    from tenacity.asyncio import retry_if_result

    retry = tenacity.retry_if_exception_type(OSError) | retry_if_result(awaited)
    with pytest.raises(ValueError, match="retry.retry=.*: must be a plain function or object"):
        retry_policy(tenacity.AsyncRetrying(retry=retry))


def test_an_object_of_tenacity_travels_to_another_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    retrying = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(3),
        wait=tenacity.wait_fixed(1.5),
        retry=RETRIES["any"],
        sleep=threading.Event().wait,
    )
    policy = retry_policy(pickle.loads(cloudpickle.dumps(check_retry(retrying))))
    assert policy.rejects(None, 1, 0.0)
    assert policy.pause(2, OSError(), 0.0) == 1.5
    assert policy.pause(3, OSError(), 0.0) is None


def test_options_with_an_object_of_tenacity_travel_though_the_object_cannot() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    retrying = tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), sleep=threading.Event().wait)
    with pytest.raises(TypeError, match="cannot pickle"):
        cloudpickle.dumps(retrying)
    options = pickle.loads(cloudpickle.dumps(Options(retry=retrying)))
    assert retry_policy(options.retry).pause(2, OSError(), 0.0) == 0
    assert retry_policy(options.retry).pause(3, OSError(), 0.0) is None


def test_tenacity_is_imported_only_for_its_own_objects() -> None:
    script = (
        "import sys, pillarbox\n"
        "from pillarbox.aio.retry import retry_policy\n"
        "retry_policy(pillarbox.Retry()).pause(1, OSError(), 0.0)\n"
        "try: retry_policy(object())\n"
        "except TypeError: print(sorted({'tenacity', 'aiohttp', 'httpx', 'requests'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
