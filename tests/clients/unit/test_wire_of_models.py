"""Models' replies by the table of the wire: the reasons why they end, and refusals of forms."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox.wire import Kind, kind_of_finish, may_refuse_form, read_answer


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (None, Kind.ANSWER),
        ("stop", Kind.ANSWER),
        ("STOP", Kind.ANSWER),
        ("eos_token", Kind.ANSWER),
        ("end_turn", Kind.ANSWER),
        ("length", Kind.CUT),
        ("MAX_TOKENS", Kind.CUT),
        ("model_length", Kind.CUT),
        ("content-filter", Kind.REFUSED_ROW),
        ("SAFETY", Kind.REFUSED_ROW),
        ("tool_calls", Kind.OTHER_KIND),
        ("error", Kind.FAILED),
        ("abort", Kind.FAILED),
        ("a word of next year", Kind.FAILED),
        ("", Kind.ANSWER),
        (0, Kind.FAILED),
        ({"type": "stop"}, Kind.FAILED),
    ],
)
def test_a_reason_is_good_where_it_is_known_to_be(reason: Any, kind: Kind) -> None:
    assert kind_of_finish(reason) is kind


NO_MODEL = {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}
TOO_LONG = {"error": {"message": "too many tokens", "code": "context_length_exceeded"}}


@pytest.mark.parametrize(
    ("status", "headers", "body", "always", "when_fresh"),
    [
        (400, {}, b"", True, True),
        (422, {}, b"", True, True),
        (415, {}, b"", True, True),
        (200, {}, {"error": {"code": 400, "message": "no such response_format"}}, True, True),
        (200, {}, {"error": {"type": "invalid_request_error", "message": "no"}}, True, True),
        (500, {}, b"", False, True),
        (501, {}, b"", False, True),
        (403, {}, b"", False, True),
        (405, {}, b"", False, True),
        (418, {}, b"", False, True),
        (302, {}, b"", False, False),
        (408, {}, b"", False, False),
        (502, {}, b"", False, False),
        (403, {"retry-after": "3"}, b"", False, False),
        (400, {}, NO_MODEL, False, False),
        (400, {}, TOO_LONG, False, False),
        (401, {}, b"", False, False),
        (404, {}, b"", False, False),
        (413, {}, b"", False, False),
        (429, {}, b"", False, False),
        (503, {}, b"", False, False),
        (200, {}, {"error": {"message": "upstream died"}}, False, False),
    ],
)
def test_a_refusal_may_be_of_the_form_by_its_status_but_not_where_a_word_says_more(
    status: int, headers: Any, body: Any, always: bool, when_fresh: bool
) -> None:
    reading = read_answer(status, headers, body)
    assert may_refuse_form(reading, is_fresh=False) is always
    assert may_refuse_form(reading, is_fresh=True) is when_fresh
