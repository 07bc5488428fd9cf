"""The headers by which services name their limits, as one module reads them."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.aio.limits.headers import (
    FINE_S,
    KINDS,
    MAX_AMOUNT,
    MAX_HEADERS,
    MAX_RESET_S,
    LimitReading,
    headers_of,
    read_limits,
)
from tests.search import examples

NOW = 1_800_000_000.0


def rfc3339(then: float) -> str:
    return datetime.fromtimestamp(then, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def openai(limit: str, remaining: str, reset: str, kind: str = "tokens") -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{kind}": limit,
        f"x-ratelimit-remaining-{kind}": remaining,
        f"x-ratelimit-reset-{kind}": reset,
    }


@pytest.mark.contract
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360.0),
        ("1s", 1.0),
        ("20ms", 0.02),
        ("2m59.56s", 179.56),
        ("1h2m3s", 3723.0),
        ("1d", 86_400.0),
        ("12", 12.0),
        ("0s", 0.0),
    ],
)
def test_times_of_openais_form_are_read(text: str, seconds: float) -> None:
    [limit] = read_limits(openai("100", "40", text))
    assert (limit.kind, limit.limit, limit.remaining) == ("tokens", 100.0, 40.0)
    assert limit.reset == pytest.approx(seconds)


@pytest.mark.contract
def test_calls_and_tokens_of_openais_form_are_two_limits() -> None:
    found = read_limits({**openai("60", "59", "1s", "requests"), **openai("9000", "8000", "7s")})
    assert {limit.kind: limit.remaining for limit in found} == {"requests": 59.0, "tokens": 8000.0}


@pytest.mark.contract
@pytest.mark.parametrize("kind", KINDS)
def test_limits_of_anthropics_form_have_moments(kind: str) -> None:
    headers = {
        f"anthropic-ratelimit-{kind}-limit": "4000",
        f"anthropic-ratelimit-{kind}-remaining": "3999",
        f"anthropic-ratelimit-{kind}-reset": rfc3339(NOW + 45),
    }
    [limit] = read_limits(headers, NOW)
    assert (limit.kind, limit.limit, limit.remaining, limit.reset) == (kind, 4000.0, 3999.0, 45.0)


@pytest.mark.contract
def test_moments_are_compared_with_the_date_of_the_answer() -> None:
    headers = {
        "Date": formatdate(NOW, usegmt=True),
        "X-RateLimit-Limit": "5000",
        "X-RateLimit-Remaining": "10",
        "X-RateLimit-Reset": f"{NOW + 60:.0f}",
    }
    [limit] = read_limits(headers, NOW + 9_999.0)
    assert limit.reset == 60.0
    del headers["Date"]
    assert read_limits(headers) == ()


@pytest.mark.contract(
    "A moment that is over by less than a second is now; one that is long over is unknown.",
    convicts=["moment_just_over_is_unknown"],
)
@pytest.mark.parametrize(("over", "resets"), [(0, [0.0]), (1, [0.0]), (2, [])])
def test_a_moment_that_has_just_passed_is_now(over: int, resets: list[float]) -> None:
    headers = {
        "Date": formatdate(NOW, usegmt=True),
        "X-RateLimit-Limit": "5000",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": f"{NOW - over:.0f}",
    }
    assert [limit.reset for limit in read_limits(headers, NOW)] == resets


@pytest.mark.contract(convicts=["whole_seconds_are_exact"])
@pytest.mark.parametrize(
    ("text", "resolution"), [("6s", 1.0), ("6m0s", 1.0), ("12", 1.0), ("20ms", FINE_S), ("59.56s", FINE_S)]
)
def test_a_time_is_as_exact_as_it_is_written(text: str, resolution: float) -> None:
    [limit] = read_limits(openai("100", "40", text))
    assert limit.resolution == resolution


@pytest.mark.contract
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            {"ratelimit-limit": "100", "ratelimit-remaining": "50", "ratelimit-reset": "50"},
            (100.0, 50.0, 50.0, None),
        ),
        (
            {"RateLimit-Limit": "10, 10;w=1", "RateLimit-Remaining": "1", "RateLimit-Reset": "1"},
            (10.0, 1.0, 1.0, 1.0),
        ),
        (
            {"RateLimit-Policy": '"burst";q=100;w=60', "RateLimit": '"burst";r=50;t=30'},
            (100.0, 50.0, 30.0, 60.0),
        ),
        ({"RateLimit-Policy": "default;q=100;w=60", "RateLimit": "default;r=50"}, (100.0, 50.0, None, 60.0)),
    ],
)
def test_the_forms_of_the_ietfs_drafts_are_read(
    headers: dict[str, str], expected: tuple[float, float, float | None, float | None]
) -> None:
    [limit] = read_limits(headers)
    assert (limit.limit, limit.remaining, limit.reset, limit.window) == expected


def test_several_policies_of_a_structured_header_are_several_limits() -> None:
    headers = {
        "RateLimit-Policy": '"hour";q=1000;w=3600, "day";q=5000;w=86400, "cost";q=9;w=60;qu="content-bytes"',
        "RateLimit": '"hour";r=998;t=200, "day";r=100;t=36000, "cost";r=3;t=4, "unknown";r=1;t=1',
    }
    found = {limit.partition: (limit.limit, limit.remaining) for limit in read_limits(headers)}
    assert found == {"hour": (1000.0, 998.0), "day": (5000.0, 100.0)}


@pytest.mark.contract("A limit that is absurd, negative or contradicts itself is unknown.")
@pytest.mark.parametrize(
    "headers",
    [
        openai("100", "101", "1s"),
        openai("-1", "-1", "1s"),
        openai("0", "0", "1s"),
        openai("100", "nan", "1s"),
        openai("1e9", "1", "1s"),
        openai("inf", "1", "1s"),
        openai("100", "1", "-5"),
        openai("100", "1", "soon"),
        openai("100", "1", ""),
        openai("9" * 14, "1", "1s"),
        openai("100", "1", f"{MAX_RESET_S + 60:.0f}s"),
        openai("100", "1", "1s" * 600),
        {"x-ratelimit-limit-tokens": "100", "x-ratelimit-remaining-tokens": "1"},
        {"x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "1s"},
        {"RateLimit": '"a";r=5;t=1'},
        {"RateLimit-Policy": '"a";q=5;w=1, "a";q=6;w=1', "RateLimit": '"a";r=5;t=1'},
        {"RateLimit-Policy": '"a";q=5;w=1', "RateLimit": ",".join(['"a";r=5;t=1'] * 50)},
        None,
        7,
        {},
    ],
)
def test_what_is_not_a_limit_is_unknown(headers: object) -> None:
    assert read_limits(headers, NOW) == ()


def test_a_header_that_comes_with_two_values_is_unknown() -> None:
    class Several(dict[str, str]):
        def items(self) -> Any:
            return [*super().items(), ("x-ratelimit-remaining-tokens", "7")]

    assert read_limits(Several(openai("100", "40", "1s"))) == ()
    assert read_limits(Several(openai("100", "7", "1s"))) != ()


def test_headers_beyond_a_number_are_not_looked_at() -> None:
    many = {f"x-{number}": "1" for number in range(MAX_HEADERS)}
    assert read_limits({**many, **openai("100", "40", "1s")}) == ()


def test_the_headers_of_an_error_are_found_along_its_causes() -> None:
    class Answer:
        headers = openai("100", "0", "5s")

    class SdkError(Exception):
        response = Answer()

        @property
        def headers(self) -> object:
            raise RuntimeError("a property of a client")

    outer = RuntimeError("wrapped")
    outer.__cause__ = SdkError()
    assert headers_of(outer) is Answer.headers
    assert headers_of(ValueError()) is None


texts = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,9})?(ms|s|m|h|d)?", fullmatch=True),
    st.sampled_from(["6m0s", "1h", '"a";q=5;w=1', '"a";r=1;t=1', rfc3339(NOW), "nan", "١٢"]),
)
names = st.sampled_from(
    [
        *openai("", "", ""),
        *("ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
        *("x-ratelimit-limit", "x-ratelimit-remaining", "X-RateLimit-Reset", "date"),
        *(f"anthropic-ratelimit-tokens-{part}" for part in ("limit", "remaining", "reset")),
    ]
)


@pytest.mark.contract("Whatever a service's headers hold, a limit that is read of them has bounds.")
@given(st.dictionaries(names, texts))
@settings(max_examples=examples(500))
def test_whatever_headers_hold_a_limit_has_bounds(headers: dict[str, str]) -> None:
    for limit in read_limits(headers, NOW):
        assert isinstance(limit, LimitReading)
        assert limit.kind in KINDS
        assert 0.0 < limit.limit <= MAX_AMOUNT
        assert 0.0 <= limit.remaining <= limit.limit
        assert limit.reset is None or 0.0 <= limit.reset <= MAX_RESET_S
        assert limit.reset is not None or limit.window is not None
        assert limit.window is None or 0.0 < limit.window < math.inf
