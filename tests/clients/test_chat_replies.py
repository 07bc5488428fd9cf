"""Replies of models that are not answers, and usage: cut, refused, of another kind, failed, uncounted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import pillarbox
from pillarbox import Budget, CallFailed, PillarboxError
from pillarbox.clients import Chat, Http, Price
from pillarbox.clients.chat import NoReply, ReplyCut, ReplyFailed, ReplyOfOtherKind, ReplyRefused
from pillarbox.clients.transport import HttpStatusError
from pillarbox.wire import Kind, is_permanent, read_error
from tests.clients.chat_service import ChatService, serving

ROW = {"text": "all is well"}
ANSWER = '{"words": 3, "first": "all"}'
DIRECT = Http(proxy="direct", read_timeout=600.0)
MILLION = 1_000_000
PRICES = {"small": Price(1.0, 1.0)}
COUNTED = {"prompt_tokens": MILLION, "completion_tokens": MILLION}


def ask(service: ChatService, rows: Any = (ROW,), *, client: Any = None, **options: Any) -> Any:
    """Return what a job over `rows` gave, and what the operator counted. client: options of the client."""

    async def job() -> Any:
        async with serving(service):
            chat = Chat(
                f"{service.url}/v1", "small", **{"prompt": "{text}", "http": DIRECT, **(client or {})}
            )
            results = pillarbox.async_map(rows, chat, **options)
            found = [row async for row in results]
            return found, results.statistics()

    return asyncio.run(job())


def with_choice(*changes: dict[str, Any], **beside: Any) -> Callable[[dict[str, Any]], Any]:
    """A change of replies: of their choice, one after the other, the last one for ever."""
    left = list(changes)

    def change(reply: dict[str, Any]) -> Any:
        choice = left.pop(0) if len(left) > 1 else left[0]
        return {**reply, "choices": [{**reply["choices"][0], **choice}], **beside}

    return change


def failure_of(service: ChatService, **options: Any) -> BaseException:
    with pytest.raises(CallFailed) as found:
        ask(service, **options)
    return found.value.cause


# -- reasons -------------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("reason", ["error", "abort", "network_error", "a word of next year", 7])
def test_a_reply_that_ended_for_a_reason_not_known_to_be_good_is_a_failed_attempt(reason: Any) -> None:
    service = ChatService(change=with_choice({"finish_reason": reason}))
    failed = failure_of(service, retry=2)
    assert isinstance(failed, ReplyFailed)
    assert f"finish_reason={reason!r}" in str(failed)
    assert len(service.requests) == 2
    service = ChatService(change=with_choice({"finish_reason": reason}, {}))
    assert ask(service, retry=2)[0] == [ANSWER]


@pytest.mark.contract
@pytest.mark.parametrize("reason", ["stop", "STOP", None, "eos_token", "end_turn", "stop_sequence"])
def test_a_reply_that_ended_for_a_good_reason_is_an_answer(reason: Any) -> None:
    assert ask(ChatService(change=with_choice({"finish_reason": reason})))[0] == [ANSWER]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("length", ReplyCut),
        ("max_tokens", ReplyCut),
        ("MAX_TOKENS", ReplyCut),
        ("model_length", ReplyCut),
        ("content_filter", ReplyRefused),
        ("SAFETY", ReplyRefused),
        ("refusal", ReplyRefused),
    ],
)
def test_a_cut_or_refused_reply_is_told_as_such_however_a_service_spells_it(
    reason: str, kind: type[NoReply]
) -> None:
    service = ChatService(change=with_choice({"finish_reason": reason}))
    failed = failure_of(service, retry=3)
    assert type(failed) is kind
    assert len(service.requests) == 1


# -- other kinds ---------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"message": {"content": None, "tool_calls": [{"id": "1"}]}, "finish_reason": "tool_calls"}, "tool"),
        ({"message": {"content": "", "function_call": {"name": "f"}}, "finish_reason": "stop"}, "tool"),
        ({"message": {"content": None, "reasoning_content": "Hm."}}, "reasoning alone"),
        ({"message": {"content": "\n", "reasoning": "Hm."}}, "reasoning alone"),
        ({"message": {"content": [{"type": "thinking", "thinking": "Hm."}]}}, "reasoning alone"),
        ({"message": {"content": None, "audio": {"data": "AA=="}}}, "parts of other kinds (audio)"),
        ({"message": {"content": [{"type": "image_url", "image_url": "x"}]}}, "other kinds (image_url)"),
    ],
)
def test_a_reply_of_another_kind_is_final_after_one_call_and_says_what_to_do(
    change: dict[str, Any], says: str
) -> None:
    service = ChatService(change=with_choice(change))
    failed = failure_of(service, retry=3)
    assert isinstance(failed, ReplyOfOtherKind)
    assert read_error(failed).kind is Kind.OTHER_KIND
    assert says in str(failed)
    assert "body={" in str(failed)
    assert len(service.requests) == 1


@pytest.mark.contract
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": [{"type": "text", "text": "It "}, {"type": "text", "text": "is."}]}, "It is."),
        ({"content": ["It ", "is."]}, "It is."),
        ({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "It is."}]}, "It is."),
        ({"content": "It is.", "reasoning_content": "Hm."}, "It is."),
        ({"content": "It is.", "tool_calls": []}, "It is."),
        ({"content": ""}, ""),
    ],
)
def test_the_parts_of_a_text_are_joined_and_what_stands_beside_is_left(message: Any, text: str) -> None:
    assert ask(ChatService(change=with_choice({"message": message})))[0] == [text]


def test_a_text_beside_a_call_of_a_tool_is_an_answer() -> None:
    change = {"finish_reason": "tool_calls", "message": {"content": ANSWER, "tool_calls": [{"id": "1"}]}}
    assert ask(ChatService(change=with_choice(change)))[0] == [ANSWER]


@pytest.mark.parametrize("refusal", [{"refusal": "I cannot."}, {"content": [{"type": "refusal"}]}])
def test_a_refusal_is_one_wherever_it_stands(refusal: dict[str, Any]) -> None:
    part = refusal.get("content")
    if part is not None:
        part[0]["refusal"] = "I cannot."
    failed = failure_of(ChatService(change=with_choice({"message": {"content": None, **refusal}})), retry=3)
    assert isinstance(failed, ReplyRefused)
    assert "I cannot." in str(failed)


# -- errors in a success -------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize("place", ["in the choice", "beside the choices", "alone"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [(502, Kind.NOT_REACHED), (429, Kind.OVERLOADED), (500, Kind.FAILED), (400, Kind.REFUSED_ROW)],
)
def test_an_error_in_a_success_has_the_class_of_its_code_and_its_own_words(
    place: str, code: int, kind: Kind
) -> None:
    error = {"code": code, "message": "the upstream has died"}

    def change(reply: dict[str, Any]) -> Any:
        if place == "alone":
            return {"error": error}
        in_choice = {"error": error, "finish_reason": "stop"} if place == "in the choice" else {}
        beside = {"error": error} if place == "beside the choices" else {}
        return with_choice(in_choice, **beside)(reply)

    service = ChatService(change=change)
    failed = failure_of(service)
    assert isinstance(failed, HttpStatusError)
    reading = read_error(failed)
    assert (reading.kind, reading.status) == (kind, code)
    assert is_permanent(failed) is (kind is Kind.REFUSED_ROW)
    assert "the upstream has died" in str(failed)


@pytest.mark.contract
def test_a_row_that_got_an_error_in_a_success_is_asked_again() -> None:
    service = ChatService(change=with_choice({"error": {"code": 502, "message": "gone"}}, {}))
    assert ask(service, retry=2)[0] == [ANSWER]


@pytest.mark.parametrize("error", [None, {}, "", []])
def test_an_empty_error_is_none(error: Any) -> None:
    assert ask(ChatService(change=with_choice({"error": error}, error=error)))[0] == [ANSWER]


@pytest.mark.parametrize("error", ["gone", {"reason": "gone"}, True])
def test_an_error_of_an_unknown_form_is_one_all_the_same(error: Any) -> None:
    service = ChatService(change=with_choice({"error": error}))
    failed = failure_of(service, retry=2)
    assert read_error(failed).kind is Kind.FAILED
    assert len(service.requests) == 2


# -- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.contract
@pytest.mark.parametrize(
    "change",
    [
        {"finish_reason": "length"},
        {"finish_reason": "error"},
        {"finish_reason": "safety"},
        {"message": {"content": None, "tool_calls": [{}]}},
        {"message": {"content": 5}},
        {"error": {"code": 500, "message": "x"}},
    ],
)
def test_a_reply_that_is_not_an_answer_is_paid_for(change: dict[str, Any]) -> None:
    service = ChatService(change=with_choice(change, usage=COUNTED))
    found, statistics = ask(service, client={"prices": PRICES}, errors="column")
    assert found[0].error is not None
    assert statistics.cost == pytest.approx(2.0)


@pytest.mark.contract
@pytest.mark.parametrize(
    "usage",
    [
        COUNTED,
        {"prompt_tokens": 1e6, "completion_tokens": 1e6},
        {"input_tokens": MILLION, "output_tokens": MILLION},
        {"prompt_tokens": MILLION, "total_tokens": 2 * MILLION},
        {"completion_tokens": MILLION, "total_tokens": 2 * MILLION},
        {"total_tokens": 2 * MILLION},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 2 * MILLION},
    ],
    ids=repr,
)
def test_counts_of_tokens_are_read_under_all_their_names_and_types(usage: Any) -> None:
    service = ChatService(change=lambda reply: {**reply, "usage": usage})
    options = {"budget": Budget(max_cost=20.0), "errors": "null", "capacity": 1}
    _, statistics = ask(service, [ROW] * 99, client={"prices": PRICES}, **options)
    assert len(service.requests) == 10
    assert statistics.cost == pytest.approx(20.0)
    assert statistics.tokens == 20 * MILLION


@pytest.mark.contract
@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "many",
        [5],
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": -1, "completion_tokens": -1},
        {"prompt_tokens": True, "completion_tokens": True},
        {"prompt_tokens": 1.5, "completion_tokens": 0.5},
        {"prompt_tokens": "10", "completion_tokens": "5"},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": 10},
        {"prompt_tokens": 10, "completion_tokens": 0},
        {"completion_tokens": 5},
    ],
    ids=repr,
)
@pytest.mark.parametrize("change", [{}, {"finish_reason": "length"}])
def test_a_bound_on_a_cost_that_nobody_knows_ends_a_job_of_questions(
    usage: Any, change: dict[str, Any]
) -> None:
    service = ChatService(change=with_choice(change, usage=usage))
    options = {"budget": Budget(max_cost=20.0), "errors": "null", "capacity": 4}
    with pytest.raises(
        PillarboxError, match="max_cost=20.0: the bound cannot be held.*'small' does not coun"
    ):
        ask(service, [ROW] * 200, client={"prices": PRICES}, **options)
    assert len(service.requests) <= 8


@pytest.mark.contract
def test_tokens_in_all_have_no_cost_where_the_prices_of_input_and_output_differ() -> None:
    service = ChatService(change=lambda reply: {**reply, "usage": {"total_tokens": 5}})
    with pytest.raises(PillarboxError, match="does not count its tokens"):
        ask(service, client={"prices": {"small": Price(1.0, 2.0)}}, budget=Budget(max_cost=1), errors="null")


@pytest.mark.contract
def test_a_bound_on_the_cost_of_questions_without_a_price_ends_the_job() -> None:
    service = ChatService()
    with pytest.raises(PillarboxError, match="has no price of 'small': give prices"):
        ask(service, [ROW] * 50, budget=Budget(max_cost=1.0), errors="null", capacity=2)
    assert len(service.requests) <= 4


@pytest.mark.contract
def test_a_function_of_usage_decides_where_the_cost_of_a_question_is_not_known() -> None:
    service = ChatService()
    budget = Budget(max_cost=3.0, usage=lambda row, text: 1.0)
    found, statistics = ask(service, [ROW] * 9, budget=budget, errors="column", capacity=1)
    assert [row.error is None for row in found] == [True] * 3 + [False] * 6
    assert statistics.cost == 3.0
    # Telemetry has what the service counted all the same.
    assert sum(statistics.tokens_used.values()) == 3 * (len("all is well") + len(ANSWER))


@pytest.mark.contract
def test_tokens_that_are_not_known_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    service = ChatService(change=lambda reply: {**reply, "usage": {"prompt_tokens": -1}})
    with caplog.at_level(logging.WARNING, "pillarbox"):
        found, statistics = ask(service, [ROW] * 5, client={"prices": PRICES})
    assert (found, statistics.cost, statistics.tokens) == ([ANSWER] * 5, 0.0, 0.0)
    told = [record for record in caplog.records if "does not count its tokens" in record.getMessage()]
    assert len(told) == 1
    assert "{'prompt_tokens': -1}" in told[0].getMessage()


def test_a_reply_of_a_free_model_needs_no_count() -> None:
    service = ChatService(change=lambda reply: {**reply, "usage": None})
    options = {"budget": Budget(max_cost=1.0), "errors": "null"}
    found, statistics = ask(service, [ROW] * 3, client={"prices": {"small": Price(0.0, 0.0)}}, **options)
    assert (found, statistics.cost) == ([ANSWER] * 3, 0.0)


@pytest.mark.parametrize("details", [{"cached_tokens": -1}, {"cached_tokens": "9"}, [], 5, None])
def test_odd_details_of_usage_leave_the_counts(details: Any) -> None:
    usage = {**COUNTED, "prompt_tokens_details": details}
    prices = {"small": Price(1.0, 1.0, cached_input=0.1)}
    _, statistics = ask(
        ChatService(change=lambda reply: {**reply, "usage": usage}), client={"prices": prices}
    )
    assert statistics.cost == pytest.approx(2.0)
