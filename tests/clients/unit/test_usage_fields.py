"""Counts of tokens in answers: the names and types that are read, and what is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox.clients.prices import ReplyTokens, plain_tokens
from pillarbox.clients.usage_fields import INPUT_NAMES, OUTPUT_NAMES, TOTAL_NAMES, count_in, tokens_in

COUNT = st.one_of(
    st.integers(-1, 9), st.sampled_from([None, True, 2.0, 0.5, "3", 2**53, 2**53 + 1, 10**400, float("nan")])
)
DETAILS = st.one_of(
    st.none(), st.dictionaries(st.sampled_from(["cached_tokens", "written_tokens", "audio_tokens"]), COUNT)
)
USAGE = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*INPUT_NAMES, *OUTPUT_NAMES, *TOTAL_NAMES), COUNT),
        **dict.fromkeys(("prompt_tokens_details", "input_tokens_details"), DETAILS),
    },
)


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, (3, 4, 7)),
        ({"input_tokens": 3, "output_tokens": 4}, (3, 4, None)),
        ({"prompt_tokens": 3.0, "completion_tokens": 0.0}, (3, 0, None)),
        ({"total_tokens": 7}, (None, None, 7)),
        ({"prompt_tokens": None, "input_tokens": 3}, (3, None, None)),
        ({"prompt_tokens": 0, "input_tokens": 3, "completion_tokens": 0}, (3, 0, None)),
        ({"prompt_tokens": -1, "completion_tokens": True, "total_tokens": 1.5}, (None, None, None)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, (None, None, None)),
        ({"prompt_tokens": "3", "completion_tokens": [4]}, (None, None, None)),
        ({"prompt_tokens": 10**400, "completion_tokens": 1e300}, (None, None, None)),
        ({}, (None, None, None)),
        (None, (None, None, None)),
        ([3, 4], (None, None, None)),
        (5, (None, None, None)),
    ],
)
def test_counts_are_read_under_each_name_and_what_cannot_be_one_is_unknown(usage: Any, found: Any) -> None:
    assert tokens_in(usage) == found


def test_a_count_by_its_name_follows_the_same_rules() -> None:
    assert count_in({"cached_tokens": 2.0}, "cached_tokens") == 2
    assert count_in({"cached_tokens": -2}, "cached_tokens") is None
    assert count_in(None, "cached_tokens") is None


@given(USAGE, st.booleans())
@example({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}, True)
def test_counts_of_the_usual_form_are_read_as_those_of_any_other(
    usage: dict[str, Any], has_text: bool
) -> None:
    found = plain_tokens(usage)
    assert found is None or found == ReplyTokens.of(usage, has_text)
