"""A client of language models: a prompt with a row's columns in, text or an answer of a given type out.

`Chat` is a picklable value; its calls run on the event loop that it was entered on.
"""

# Why a call gives the raw text of the reply, and `parse` makes the answer of it. What a ledger keeps has been
# paid for, and a schema is what users change most often: another field, another name of a class. Applied to
# what is kept, a changed schema costs no call but for the rows that no longer fit.
#
# Why the form of structured output is found out by asking, as the one of vectors is: services that speak
# OpenAI's language refuse `response_format`, know one of its kinds, or ignore it without a word, and a table
# of products would be wrong after their next release. The first requests try the forms, the strictest first.
# A form counts as known once an answer in it has fitted; until then a reply that is not JSON at all says that
# the service ignores it.
#
# Why an answer that does not fit is a failed attempt, and no loop in here: the operator counts what it cost,
# holds it back with the rate, and keeps to the deadline of the row. It gives the error to the next attempt,
# which asks with the former reply and with what was wrong: models mend what they are told.
#
# Why the columns of a prompt stand in the last message, and nothing of a row in front of it: services keep
# what prompts begin with alike, at a tenth of the price.

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import cycle
from typing import Any, Literal, NamedTuple, TypeAlias

from pillarbox.aio.calls import running_call
from pillarbox.aio.errors import shorten
from pillarbox.aio.usage import AskAgain, Result, Usage
from pillarbox.clients.answers import Answer, AnswerMismatch
from pillarbox.clients.client import Client
from pillarbox.clients.fields import (
    HalfCharacter,
    Prompt,
    values_by_name,
    whole_text,
    without_half_escapes,
)
from pillarbox.clients.openai_api import (
    OK,
    PROVIDERS,
    REFUSES_FORM,
    AnswerError,
    azure_path,
    check_base_url,
    checked_body,
    request_urls,
)
from pillarbox.clients.prices import Price, check_prices
from pillarbox.clients.secret import Secret, SecretHeaders, check_headers, check_key
from pillarbox.clients.transport import Http, HttpStatusError, status_error, without_query
from pillarbox.validate import check_choice, check_int, check_text

Api: TypeAlias = Literal["openai", "azure"]
Structure: TypeAlias = Literal["auto", "json_schema", "json_object", "prompt"]

APIS = ("openai", "azure")
STRUCTURES = ("auto", "json_schema", "json_object", "prompt")
OWN_FIELDS = frozenset({"model", "messages", "response_format", "stream", "n"})
"""Fields of a request's body that have options of their own, or that a call cannot do without."""
REQUEST_HEADERS = {"Content-Type": "application/json"}
REPLY_TIMEOUT_S = 600.0
"""Seconds for a reply, unless `http` says others: it comes as a whole, from some models after minutes."""
MAX_REPLY_CHARACTERS = 20_000
"""Characters of a reply that is shown to the model again with what is wrong with it."""
ASK_FOR_SCHEMA_TEXT = "Answer with one JSON object that fits this JSON schema, and with nothing else:\n"
CORRECTION_TEXT = (
    "This answer does not fit: {error}. Answer again, with the whole JSON object and with nothing else."
)


class ReplyCut(ValueError):
    """Raised for a reply that ended at a limit of tokens. It has been paid for: `usage`."""

    is_permanent = True

    def __init__(self, message: str, usage: Usage) -> None:
        super().__init__(message, usage)
        self.usage = usage

    def __str__(self) -> str:
        return str(self.args[0])


class ReplyRefused(ReplyCut):
    """Raised where the model, or the service's filter, does not answer. It has been paid for: `usage`."""


class AnswerInvalid(AskAgain):
    """Raised for a reply that does not fit `answer`: the operator calls again, and the model is told why.

    reply: its text.
    """

    def __init__(self, reason: str, times: int, usage: Usage, reply: str) -> None:
        super().__init__(reason, times, usage)
        self.reply = reply

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.times, self.usage, self.reply)


class _Reply(NamedTuple):
    """One reply of the service: its text, and what it cost."""

    text: str
    usage: Usage


@dataclass
class _Learned:
    """Facts about a service that its answers taught; shared by the calls of one client in one process.

    form: the place in `FORMS` of the one to ask in. is_settled: an answer in it has fitted.
    """

    form: int = 0
    is_settled: bool = False


@dataclass(frozen=True)
class Chat(Client):
    """A question to a language model for each row, as a function that the operator calls with rows.

    Called with one row, whose fields it takes by name, or with the values of the fields in the order of
    `prompt`, as `async_udf` does. Gives the text of the reply, or with `answer` an object of that type. Where
    a field is None the result is None, and nothing is asked.

    base_url: of the service, up to the version, such as "https://api.openai.com/v1"; several are taken by
        turns. model: the model's name, for Azure the deployment's.
    prompt: what is asked, with names of fields in braces: "Classify: {text}". A brace itself is doubled.
    answer: a Pydantic model, a dataclass, or a JSON schema (dict) of an object: the answer's type. None for
        plain text.
    system: the instructions in front, the same for all rows.
    structure: how the service is asked for an answer of this type: "json_schema" and "json_object" as its
        `response_format`, "prompt" in the prompt alone. "auto" tries them in this order, and keeps to the
        first that works.
    repairs: times that a row is asked again for an answer that does not fit, with the error, at most.
        They are calls like others, but none of `retry`, which decides once they are used up.
    prices: a `Price` by the name of each model: what calls cost, for `Budget(max_cost=...)`.
    key: a `Secret`, sent as Azure's `api-key` or as a bearer token.
    api: "openai" (OpenAI, vLLM, llama.cpp, LiteLLM and others), or "azure". api_version: for Azure.
    body: more of the request's body, such as {"temperature": 0, "max_tokens": 200}.
    headers: more headers; keys in them are Secrets. http: options of the transport; unless given a reply may
        take ten minutes.

    A call by hand, in `async with client:`, gives a `pillarbox.Result` with the reply's text and its usage;
    `parse` makes the answer of the text.

    Raises TypeError and ValueError that name the argument. Calls raise HttpStatusError for other answers
    than 200, AnswerInvalid for a reply that does not fit, ReplyCut and ReplyRefused for one that is none,
    AnswerError for what is not a reply, ValueError for a row that lacks a field, errors of connections, and
    RuntimeError where the client is not open. On the thread of the loop that it was entered on.
    """

    # The text of a reply may be parsed anew, and costs what it has cost.
    _beside_results = Client._beside_results | {"answer", "structure", "repairs", "prices"}

    base_url: str | Sequence[str]
    model: str
    _: KW_ONLY
    prompt: str
    answer: Any = None
    system: str | None = None
    structure: Structure = "auto"
    repairs: int = 2
    prices: Mapping[str, Price] = field(default_factory=dict)
    key: Secret | None = None
    api: Api = "openai"
    api_version: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    http: Http = field(
        default_factory=lambda: Http(read_timeout=REPLY_TIMEOUT_S, total_timeout=REPLY_TIMEOUT_S)
    )
    _connections: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _learned: _Learned = field(default_factory=_Learned, init=False, repr=False, compare=False)
    _made: _Made = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._set("base_url", check_base_url(self.base_url, ("/chat/completions", "/completions")))
        check_text("model", self.model)
        check_key("key", self.key)
        check_choice("api", self.api, APIS)
        if self.api == "azure":
            check_text("api_version", self.api_version)
        elif self.api_version is not None:
            raise ValueError(f"api_version={self.api_version!r}: is for api='azure'; leave it out")
        if self.system is not None:
            check_text("system", self.system)
        check_choice("structure", self.structure, STRUCTURES)
        check_int("repairs", self.repairs, 0)
        check_prices(self.prices, self.model, needs_output=True)
        self._set("body", checked_body(self.body, OWN_FIELDS))
        self._set("headers", check_headers("headers", self.headers))
        if not isinstance(self.http, Http):
            raise TypeError(f"http={self.http!r}: must be a pillarbox.clients.Http")
        self._set("_made", _Made(self))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_made"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set("_made", _Made(self))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that a row needs, in the order of `prompt`."""
        return self._made.prompt.names

    # -- answers ---------------------------------------------------------------------------------------------

    def parse(self, text: str | None) -> Any:
        """The answer in the text of a reply, as the operator gives it. Any thread.

        Raises ValueError for a text that does not fit `answer`.
        """
        answer = self._made.answer
        if text is None or answer is None:
            return text
        return answer.parse(without_half_escapes(text) if self.http.surrogates == "replace" else text)

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema of `plain`; None for plain text."""
        return None if self._made.answer is None else self._made.answer.written

    def plain(self, answer: Any) -> Any:
        """An answer as values of JSON, in the fields of `answer_schema`. Any thread."""
        return answer if self._made.answer is None else self._made.answer.plain(answer)

    # -- a call ----------------------------------------------------------------------------------------------

    async def __call__(self, *row: Any) -> Any:
        """Ask for one row: see the class."""
        values = values_by_name(row, self.fields)
        if any(value is None for value in values.values()):
            return Result(None, usage=0.0)
        messages = [{"role": "user", "content": self._made.prompt.filled(values)}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        answer = self._made.answer
        if answer is None:
            reply = await self._ask(messages, None)
            return Result(reply.text, usage=reply.usage)
        form, reply = await self._answered(messages, _former())
        learned = self._learned
        try:
            self.parse(reply.text)
        except AnswerMismatch as error:
            if not (error.is_json or learned.is_settled):
                # The service took the request for this form, and has ignored it.
                learned.form = max(learned.form, min(form + 1, len(self._made.forms) - 1))
            if not self.repairs:
                error.usage = reply.usage
                raise
            raise AnswerInvalid(str(error), self.repairs, reply.usage, reply.text) from None
        if not learned.is_settled:
            learned.form, learned.is_settled = form, True
        return Result(reply.text, usage=reply.usage)

    async def _answered(
        self, messages: list[dict[str, str]], former: AnswerInvalid | None
    ) -> tuple[int, _Reply]:
        """The reply in the first form that the service does not refuse, and the place of the form.

        A request may be refused for its row. Then it is in each form, and the first error is raised.
        """
        forms, learned = self._made.forms, self._learned
        refused: HttpStatusError | None = None
        for place in range(learned.form, len(forms)):
            form = forms[place]
            try:
                return place, await self._ask([*form.extended(messages), *_corrections(former)], form)
            except HttpStatusError as error:
                if learned.is_settled or not _refuses_form(error):
                    raise
                refused = refused or error
        assert refused is not None
        raise refused

    async def _ask(self, messages: Sequence[Mapping[str, str]], form: _Form | None) -> _Reply:
        """Send one request. Raises HttpStatusError, AnswerError, ReplyCut and ReplyRefused."""
        url = next(self._made.urls)
        body = {"model": self.model, "messages": messages, **self.body}
        if form is not None and form.response_format is not None:
            body["response_format"] = form.response_format
        sent = whole_text(
            "prompt", json.dumps(body, separators=(",", ":"), ensure_ascii=False), self.http.surrogates
        )
        response = await self._send("POST", url, headers=REQUEST_HEADERS, body=sent.encode())
        if response.status != OK:
            raise status_error("POST", url, response)
        try:
            reply = json.loads(response.body)
            choice = reply["choices"][0]
            message, reason = choice["message"], choice.get("finish_reason")
            text, refusal = message.get("content"), message.get("refusal")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise AnswerError(
                f"{without_query(url)}: the answer ({len(response.body):,} bytes) is not a chat completion"
            ) from None
        usage = self._usage(reply)
        if refusal or reason == "content_filter":
            said = f": {shorten(refusal)}" if refusal else ""
            raise ReplyRefused(f"the model does not answer ({reason}){said}", usage)
        if reason == "length":
            raise ReplyCut(
                "the reply was cut at the limit of tokens (finish_reason='length'); give it more, as in "
                "body={'max_tokens': 2_000}, or a shorter prompt",
                usage,
            )
        if not isinstance(text, str):
            error = AnswerError(f"{without_query(url)}: the reply has no text (finish_reason={reason!r})")
            error.usage = usage
            raise error
        try:
            return _Reply(whole_text("the reply", text, self.http.surrogates), usage)
        except HalfCharacter as half:
            # It has been paid for, and another reply may be whole.
            error = AnswerError(str(half))
            error.usage = usage
        raise error

    def _usage(self, reply: Mapping[str, Any]) -> Usage:
        """The usage of a reply, by the service's counts of tokens and the table of prices."""
        counts = reply.get("usage") or {}
        asked, answered = (_count(counts, name) for name in ("prompt_tokens", "completion_tokens"))
        price = self.prices.get(str(reply.get("model"))) or self.prices.get(self.model)
        cost = 0.0
        if price is not None:
            kept = min(asked, _count(counts.get("prompt_tokens_details") or {}, "cached_tokens"))
            cost = price.cost(asked, answered, kept)
        return Usage(
            cost,
            input_tokens=asked,
            output_tokens=answered,
            model=self.model,
            operation="chat",
            provider=PROVIDERS[self.api],
        )

    # -- addresses and headers -------------------------------------------------------------------------------

    def _headers(self) -> SecretHeaders:
        return SecretHeaders(self.headers, self.key, "api-key" if self.api == "azure" else "bearer")


class _Form(NamedTuple):
    """One way to ask for an answer of a type.

    response_format: of the request, or None. instruction: what the prompt says besides, or nothing.
    """

    response_format: dict[str, Any] | None
    instruction: str

    def extended(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """`messages`, of which the last is the question, with the instruction."""
        if not self.instruction:
            return messages
        *before, question = messages
        return [*before, {**question, "content": f"{question['content']}\n\n{self.instruction}"}]


class _Made:
    """The parts that a `Chat` makes of its options, once in each process: they are not pickled."""

    def __init__(self, chat: Chat) -> None:
        self.prompt = Prompt(chat.prompt)
        self.answer = None if chat.answer is None else Answer(chat.answer)
        self.forms = [] if self.answer is None else _forms(self.answer, chat.structure)
        path = "/chat/completions"
        if chat.api == "azure":
            path = azure_path(chat.model, path, chat.api_version)
        self.urls = cycle(request_urls(chat.base_url, path))


def _forms(answer: Answer, structure: str) -> list[_Form]:
    """The forms that `structure` stands for, the strictest first."""
    described = {"name": answer.name, "schema": answer.schema, "strict": answer.is_strict}
    instruction = ASK_FOR_SCHEMA_TEXT + json.dumps(answer.schema, ensure_ascii=False)
    json_object = {"type": "json_object"}
    forms = {
        "json_schema": [_Form({"type": "json_schema", "json_schema": described}, "")],
        # Some services obey a schema here, in particular llama.cpp's.
        "json_object": [
            _Form({**json_object, "schema": answer.schema}, instruction),
            _Form(json_object, instruction),
        ],
        "prompt": [_Form(None, instruction)],
    }
    return [form for each in forms.values() for form in each] if structure == "auto" else forms[structure]


def _refuses_form(error: HttpStatusError) -> bool:
    """Return True if a service may have refused a request for its form."""
    # llama-cpp-python gives 500 for what it does not know, and says where it stands.
    return error.status in REFUSES_FORM or (error.status == 500 and b"response_format" in error.body)


def _former() -> AnswerInvalid | None:
    """The error of the row's last attempt, if that was an answer that did not fit."""
    # None where the client is called by hand.
    call = running_call()
    error = None if call is None else call.error
    return error if isinstance(error, AnswerInvalid) else None


def _corrections(former: AnswerInvalid | None) -> list[dict[str, str]]:
    """The messages that tell the model of its former reply, and of what was wrong with it."""
    if former is None:
        return []
    return [
        {"role": "assistant", "content": former.reply[:MAX_REPLY_CHARACTERS]},
        {"role": "user", "content": CORRECTION_TEXT.format(error=former)},
    ]


def _count(counts: Mapping[str, Any], name: str) -> int:
    value = counts.get(name) if isinstance(counts, Mapping) else None
    return value if isinstance(value, int) and value > 0 else 0
