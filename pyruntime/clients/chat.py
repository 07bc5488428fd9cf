"""A client of language models: a prompt with a row's columns in, text or an answer of a given type out.

`Chat` is a picklable value; its calls run on the event loop that it was entered on.
"""

# Why a call gives the raw text of the reply, and `parse` makes the answer of it. What a ledger keeps has been
# paid for, and a schema is what users change most often: another field, another name of a class. Applied to
# what is kept, a changed schema costs no call but for the rows that no longer fit.
#
# Why an answer that does not fit is a failed attempt, and no loop in here: the operator counts what it cost,
# holds it back with the rate, and keeps to the deadline of the row. It gives the error to the next attempt,
# which asks with the former reply and with what was wrong: models mend what they are told.
#
# Why the columns of a prompt stand in the last message, and nothing of a row in front of it: services keep
# what prompts begin with alike, at a tenth of the price.

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias
from urllib.parse import quote

from pillarbox.aio.current_call import last_error
from pillarbox.aio.errors import shorten
from pillarbox.aio.options import Budget
from pillarbox.aio.service_addresses import Endpoints
from pillarbox.aio.usage import AskAgain, Result, Usage
from pillarbox.clients.addresses import addresses_of
from pillarbox.clients.answers import Answer, AnswerMismatch
from pillarbox.clients.client import Client
from pillarbox.clients.fields import (
    HalfCharacter,
    Prompt,
    values_by_name,
    whole_text,
    without_half_escapes,
)
from pillarbox.clients.forms import Forms, Walk
from pillarbox.clients.images import (
    Attached,
    Images,
    attached,
    encoded_bytes,
    images_of,
    release_frames,
    without_quotes,
)
from pillarbox.clients.json_text import decode_json, encode_json, written
from pillarbox.clients.language import Language, language_of, merged
from pillarbox.clients.late_address import LateAddress
from pillarbox.clients.openai_api import (
    AZURE_PROVIDER,
    AnswerError,
    azure_path,
    check_base_url,
    checked_body,
    error_of,
    may_be_error,
    request_urls,
)
from pillarbox.clients.presets import ChatPresets
from pillarbox.clients.prices import (
    Price,
    ReplyTokens,
    StatedCosts,
    check_max_cost,
    check_prices,
    plain_tokens,
)
from pillarbox.clients.replies import (
    ErrorInReply,
    NoReply,
    ReplyCut,
    ReplyFailed,
    ReplyOfOtherKind,
    ReplyRefused,
    text_of,
)
from pillarbox.clients.secret import Secret, SecretHeaders, check_headers, check_key
from pillarbox.clients.structure import STRUCTURES, Form, forms_of
from pillarbox.clients.transport import Http, HttpStatusError, Response, without_query
from pillarbox.validate import check_choice, check_int, check_text, naming_arguments
from pillarbox.wire import Kind, read_answer

__all__ = [
    "AnswerInvalid",
    "Chat",
    "NoReply",
    "ReplyCut",
    "ReplyFailed",
    "ReplyOfOtherKind",
    "ReplyRefused",
]

log = logging.getLogger("pillarbox")

Api: TypeAlias = Literal["openai", "azure"]
Structure: TypeAlias = Literal["auto", "json_schema", "json_object", "tool", "prompt"]

APIS = ("openai", "azure")
REPLY_TIMEOUT_S = 600.0
"""Seconds for a reply, unless `http` says others: it comes as a whole, from some models after minutes."""
FIRST_LOOK = 1
"""Rows after which one looks whether stricter forms are refused indeed: in weaker ones answers are worse."""
NO_FIELDS: Mapping[str, Any] = {}
NO_IMAGES = Attached((), ())
MAX_REPLY_CHARACTERS = 20_000
"""Characters of a reply that is shown to the model again with what is wrong with it."""
CORRECTION_TEXT = (
    "This answer does not fit: {error}. Answer again, with the whole JSON object and with nothing else."
)


class AnswerInvalid(AskAgain):
    """Raised for a reply that does not fit `answer`: the operator calls again, and the model is told why.

    reply: its text.
    """

    form: int | None = None
    """The place of the form of structured output that the row is asked in next, if none is known."""

    def __init__(self, reason: str, times: int, usage: Usage, reply: str) -> None:
        super().__init__(reason, times, usage)
        self.reply = reply

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.times, self.usage, self.reply)


@dataclass
class _Learned:
    """Facts about a service that its answers taught; shared by the calls of one client in one process.

    forms: by address, the form to ask in. has_told: it was said that tokens are not known. checked: the text
    of the last reply that fits, and its answer, which is given out once. stated: what the service says of
    costs.
    """

    forms: dict[str, Forms] = field(default_factory=dict)
    has_told: bool = False
    checked: tuple[str, Any] | None = None
    stated: StatedCosts = field(default_factory=StatedCosts)


@naming_arguments
@dataclass(frozen=True)
class Chat(ChatPresets, Client):
    """Client of a language model: one question for each row, as a function that the operator calls with rows.

    Called with one row, whose fields it takes by name, or with the values of the fields in the order of
    `prompt`, as `async_udf` does. The result is the text of the reply, or with `answer` an object of that
    type. If a field is None the result is None, and no request is sent.

    base_url: of the service, up to the version, such as "https://api.openai.com/v1"; of several a
        request is sent to the one with the fewest in flight. model: the model's name, for Azure of the
        deployment.
    prompt: the question, with names of fields in braces: "Classify: {text}". Double a literal brace.
    answer: a Pydantic model, a dataclass, or a JSON schema (dict) of an object: the answer's type. None for
        plain text.
    system: the instructions before the prompt, the same for all rows.
    structure: the way to request an answer of this type: "json_schema" and "json_object" in the service's
        own fields, "tool" as the arguments of a forced tool (Anthropic), "prompt" in the prompt alone. "auto"
        tries them in this order, a schema without bounds and defaults before the weaker ones, and keeps the
        first that works.
    repairs: repeats of a row, at most, for an answer that does not fit, with the error in the request.
        They are calls like others, but do not count against `retry`, which decides after the last.
    prices: a `Price` by the name of each model: the cost of calls, for `Budget(max_cost=...)`. Without, it is
        what a LiteLLM proxy states in its answers; see `Price.STATED`.
    key: a `Secret`, sent in the header of the language, as Azure's `api-key`, or as a bearer token.
    api: "openai" (OpenAI, vLLM, llama.cpp, LiteLLM and others), or "azure". api_version: for Azure.
    language: of requests and replies: "openai" for chat completions, "responses" for OpenAI's Responses,
        "anthropic" for Messages, "gemini" for generateContent, or a `Language`.
    body: more of the request's body, such as {"temperature": 0, "max_tokens": 200}.
    images: columns of images and PDFs that are part of the question: their names, or `Images` with a bound on
        their size. The type of each is recognised by its content.
    headers: more headers; keys in them are Secrets. http: options of the transport; by default a reply may
        take ten minutes.

        >>> from dataclasses import dataclass
        >>> from pillarbox import async_map
        >>> from pillarbox.clients import Chat
        >>> from pillarbox.testing import serve
        >>> @dataclass
        ... class Review:
        ...     good: bool
        >>> with serve() as service:
        ...     client = Chat(service.url, "any-model", prompt="Review: {text}", answer=Review)
        ...     [answer] = async_map([{"text": "a lovely soup"}], client)
        >>> type(answer).__name__
        'Review'

    A call outside of the operator, in `async with client:`, returns a `pillarbox.Result` with the reply's
    text and its usage; `parse` makes the answer from the text.

    Raises TypeError and ValueError that name the argument. Calls raise HttpStatusError for other answers than
    200 and for an error in one, AnswerInvalid for a reply that does not fit, ReplyCut, ReplyRefused,
    ReplyOfOtherKind and ReplyFailed for replies without an answer, AnswerError for an answer without a reply,
    ImageRefused for an image that is not sent, ValueError for a row that lacks a field, errors of
    connections, and RuntimeError if the client is not open. Calls belong on the thread of the loop on which
    it was entered.
    """

    # Of `answer` and `structure` counts what is sent: see `configuration`.
    _beside_results = Client._beside_results | {
        *("answer", "structure", "repairs", "prices", "language", "images")
    }
    column_adapter: ClassVar[str] = "pillarbox.spark.client_columns:answer_column"
    """The name of what makes a function of `async_udf` of it: see `pillarbox.providers`."""
    idempotent: ClassVar[bool] = True
    """A question that is asked twice changes nothing: a slow call may be hedged."""

    base_url: str | Sequence[str] | Endpoints | LateAddress
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
    language: str | Language = "openai"
    body: Mapping[str, Any] = field(default_factory=dict)
    images: str | Sequence[str] | Images | None = None
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    http: Http = field(
        default_factory=lambda: Http(read_timeout=REPLY_TIMEOUT_S, total_timeout=REPLY_TIMEOUT_S)
    )
    _connections: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _learned: _Learned = field(default_factory=_Learned, init=False, repr=False, compare=False)
    _made: _Made = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        language = language_of(self.language)
        self._set("base_url", check_base_url(self.base_url, language.own_ends))
        check_text("model", self.model)
        check_key("key", self.key)
        check_choice("api", self.api, APIS)
        if self.api == "azure":
            check_text("api_version", self.api_version)
            if language.name != "openai":
                raise ValueError(f"language={language.name!r}: leave out api='azure', which speaks OpenAI's")
        elif self.api_version is not None:
            raise ValueError(f"api_version={self.api_version!r}: is for api='azure'; leave it out")
        if self.system is not None:
            check_text("system", self.system)
        check_choice("structure", self.structure, STRUCTURES)
        check_int("repairs", self.repairs, 0)
        check_prices(self.prices, self.model, needs_output=True)
        self._set("body", checked_body(self.body, language.own_fields))
        self._set("headers", check_headers("headers", self.headers))
        if not isinstance(self.http, Http):
            raise TypeError(f"http={self.http!r}: must be a pillarbox.clients.Http")
        self._set("_made", _Made(self))

    def check_budget(self, budget: Budget) -> None:
        """Raise ValueError for a bound on the cost where the client has no prices. Any thread."""
        # A chat says its usage with each result, so that no hook is asked.
        how = f"prices={{{self.model!r}: Price(input=..., output=...)}}"
        check_max_cost(budget.max_cost, self.prices, how)

    def __getstate__(self) -> dict[str, Any]:
        # What was learned here may be wrong elsewhere, and belongs to the loops of this process.
        left = {name: value for name, value in super().__getstate__().items() if name != "_made"}
        return {**left, "_learned": _Learned()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set("_made", _Made(self))

    def _use_address(self, url: str) -> None:
        self._made.urls = replace(self, base_url=url)._made.urls

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that a row needs, in the order of `prompt`, and then of `images`."""
        return self.prompt_fields + self.image_fields

    @property
    def prompt_fields(self) -> tuple[str, ...]:
        """Those of `fields` whose texts stand in the prompt."""
        return self._made.prompt.names

    @property
    def image_fields(self) -> tuple[str, ...]:
        """Those of `fields` that are images."""
        return () if self._made.images is None else self._made.images.names

    @property
    def request_bytes(self) -> Callable[..., int] | None:
        """The function that gives the bytes that a call for a row holds besides the row; None for few."""
        return None if self._made.images is None else self._request_bytes

    def _request_bytes(self, *row: object) -> int:
        images = self._made.images
        assert images is not None
        try:
            encoded = encoded_bytes(images, values_by_name(row, self.fields))
        except ValueError:
            # The call says what the row lacks.
            return 0
        # What comes from Arrow is there twice: in its batch, by which the row is weighed, and decoded.
        is_decoded = len(row) > 1 or getattr(row[0], "__is_view__", False)
        return encoded + (encoded // 4 * 3 if is_decoded else 0)

    @property
    def configuration(self) -> dict[str, Any]:
        """The part that decides about replies, for a cache: see `Client.configuration`.

        Of `answer` and `structure` that is what a request asks for first, to the letter. The weaker form that
        a service was asked in in the end does not count, nor what is made of the text of its reply. Another
        language is another question.
        """
        told, language = super().configuration, self._made.language
        if self._made.forms:
            first = self._made.forms[0]
            # OpenAI's alone, as it has been told since before there were others.
            fields = first.fields.get("response_format", first.fields or None)
            told["asked"] = [[json.dumps(fields), first.instruction]]
        if self._made.images is not None:
            told["images"] = [*self._made.images.names]
            if self._made.images.detail is not None:
                told["detail"] = self._made.images.detail
        return told if language.name == "openai" else {**told, "language": language.name}

    # -- answers ---------------------------------------------------------------------------------------------

    def parse(self, text: str | None) -> Any:
        """Return the answer in the text of a reply, as the operator returns it. Any thread.

        Raises ValueError for a text that does not fit `answer`.
        """
        # The operator asks for the answer of a reply that has just been checked.
        checked = self._learned.checked
        if checked is not None and checked[0] is text:
            self._learned.checked = None
            return checked[1]
        return self._parsed(text)

    def _parsed(self, text: str | None) -> Any:
        answer = self._made.answer
        if text is None or answer is None:
            return text
        return answer.parse(without_half_escapes(text) if self.http.surrogates == "replace" else text)

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema of `plain`; None for plain text."""
        return None if self._made.answer is None else self._made.answer.written

    def plain(self, answer: object) -> Any:
        """An answer as values of JSON, in the fields of `answer_schema`. Any thread."""
        return answer if self._made.answer is None else self._made.answer.plain(answer)

    # -- a call ----------------------------------------------------------------------------------------------

    async def __call__(self, *row: object) -> Any:
        """Ask for one row: see the class."""
        made = self._made
        values = values_by_name(row, made.fields)
        for value in values.values():
            if value is None:
                return Result(None, usage=0.0)
        messages = [{"role": "user", "content": made.prompt.filled(values)}]
        images = NO_IMAGES
        if made.images is not None:
            language = made.language
            images = attached(made.images, values, language.media_types, language.url_schemes)
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        urls = made.urls
        if urls.only is not None:
            return await self._asked(urls.only, messages, images)
        return await urls.call(self._asked, messages, images)

    async def _asked(self, url: str, messages: list[dict[str, str]], images: Attached) -> Result:
        """The reply of one address, with a fitting answer in it where one is wanted.

        It is in the first form that the service does not refuse. A request may be refused for its row. Then
        it is in each form, and `Walk.error` is raised.
        """
        forms = self._made.forms
        if not forms:
            return await self._ask(url, messages, images, None)
        former = last_error()
        if not isinstance(former, AnswerInvalid):
            former = None
        walk = self._forms(url).walk(None if former is None else former.form)
        try:
            while True:
                form = forms[walk.form]
                asked = form.extended(messages)
                if former is not None:
                    asked = [*asked, *_corrections(former)]
                try:
                    reply = await self._ask(url, asked, images, form)
                    break
                except HttpStatusError as error:
                    failed = await walk.refused(error)
                    if failed is not None:
                        raise failed from None
            self._check(reply, walk)
        finally:
            walk.end()
        return reply

    def _forms(self, url: str) -> Forms:
        forms = self._learned.forms
        found = forms.get(url)
        if found is None:
            kinds = [form.kind for form in self._made.forms]
            found = forms[url] = Forms(kinds, first_look=FIRST_LOOK)
        return found

    def _check(self, reply: Result, walk: Walk) -> None:
        """Raise AnswerInvalid, or AnswerMismatch without repairs, for a reply that does not fit."""
        try:
            fits = self._parsed(reply.value)
        except AnswerMismatch as error:
            if not error.is_json:
                # The service took the request for this form, and may have ignored it.
                walk.ignored()
            if not self.repairs:
                error.usage = reply.usage
                raise
            assert reply.usage is not None
            invalid = AnswerInvalid(str(error), self.repairs, reply.usage, reply.value)
            invalid.form = walk.form
            raise invalid from None
        self._learned.checked = reply.value, fits
        walk.answered()

    async def _ask(
        self, url: str, messages: Sequence[Mapping[str, Any]], images: Attached, form: Form | None
    ) -> Result:
        """Send one request. Raises HttpStatusError, AnswerError and NoReply."""
        made = self._made
        language = made.language
        if images.images:
            messages = _with_images(messages, images, language)
        body = language.body(self.model, messages, NO_FIELDS if form is None else form.fields, made.body)
        try:
            content = encode_json(body)
        except UnicodeEncodeError:
            content = whole_text("prompt", written(body), self.http.surrogates).encode()
        if images.contents:
            response = await self._sent_with_images(url, content, images)
        else:
            # Without the address of a name.
            headers = language.headers_of(url.partition("#")[0], content)
            response = await self._send("POST", url, headers=headers, body=content)
        # Looked at before it is parsed: hardly any reply has the word, and each call would pay.
        if may_be_error(response):
            failed = error_of(url, response)
            if failed is not None:
                raise failed
        try:
            reply = decode_json(response.body)
            choice = language.choice(reply)
            # An error object beside the choices of a reply, or inside of one.
            beside = reply.get("error") or choice.get("error")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._no_completion(url, response, None) from None
        if beside:
            # What failed is not paid for, unless it is counted.
            counted = None if language.usage(reply) is None else self._usage(url, response, reply, choice)
            raise _error_in_reply(url, response, beside, counted)
        usage = self._usage(url, response, reply, choice)
        try:
            text = text_of(choice, usage, language.enough_tokens)
        except (LookupError, TypeError, AttributeError):
            raise self._no_completion(url, response, usage) from None
        if text is None:
            reason = choice.get("finish_reason")
            error = AnswerError(f"{without_query(url)}: the reply has no text (finish_reason={reason!r})")
            error.usage = usage
            raise error
        if text.isascii():
            return Result(text, usage)
        try:
            return Result(whole_text("the reply", text, self.http.surrogates), usage)
        except HalfCharacter as half:
            # It has been paid for, and another reply may be whole.
            error = AnswerError(str(half))
            error.usage = usage
        raise error

    async def _sent_with_images(self, url: str, body: bytes, images: Attached) -> Response:
        """Send a request with the base64 of images in place of their marks.

        The request is gone when this has returned or raised: a retry makes another one of the row.
        """
        content, spans = images.filled(body)
        try:
            headers = self._made.language.headers_of(url.partition("#")[0], content)
            response = await self._send("POST", url, headers=headers, body=content)
            # An answer is left as it is, also one with a word of an error in it.
            if may_be_error(response) and error_of(url, response) is not None:
                # A gateway may quote the request that it refuses.
                response = response._replace(body=without_quotes(response.body, content, spans))
            return response
        except BaseException as error:
            release_frames(error)
            raise
        finally:
            del content

    def _no_completion(self, url: str, response: Response, usage: Usage | None) -> AnswerError:
        error = AnswerError(
            f"{without_query(url)}: the answer ({len(response.body):,} bytes) is not a chat completion"
        )
        error.usage = usage
        return error

    def _usage(
        self, url: str, response: Response, reply: Mapping[str, Any], choice: Mapping[str, Any]
    ) -> Usage:
        """The usage of a reply, by the service's counts of tokens and the table of prices.

        Without a table, the cost is the one that a proxy states.
        """
        made = self._made
        counts = made.language.usage(reply)
        tokens = plain_tokens(counts)
        if tokens is None:
            message = choice.get("message")
            tokens = ReplyTokens.of(counts, isinstance(message, Mapping) and bool(message.get("content")))
        cost, unknown, price = 0.0, None, None
        if self.prices:
            model = reply.get("model") or reply.get("modelVersion")
            price = self.prices.get(str(model)) or self.prices.get(self.model)
        if price is None:
            stated, unknown = self._learned.stated.of(url, response.headers)
            if stated is not None:
                cost = stated
            elif unknown is None:
                unknown = made.has_no_price
        else:
            known = tokens.cost(price)
            cost = known if known is not None else tokens.least_cost(price)
            if known is None:
                unknown = (
                    f"a reply of {self.model!r} does not count its tokens (usage={shorten(counts)}): have "
                    "the service count them, or give Budget(usage=...) or Budget(max_calls=...)"
                )
        if (tokens.in_all is None or (price is not None and unknown)) and not self._learned.has_told:
            self._learned.has_told = True
            log.warning(
                "%s: a reply does not count its tokens (usage=%s): what is not known of them, and of their "
                "cost, counts as 0; said once",
                without_query(url),
                shorten(counts),
            )
        # Counts that were read are checked already.
        asked, answered, in_all, _, _ = tokens
        names = self.model, "chat", made.provider, unknown
        return tuple.__new__(Usage, (cost, in_all or 0, asked or 0, answered or 0, *names))

    # -- addresses and headers -------------------------------------------------------------------------------

    def _headers(self) -> SecretHeaders:
        scheme = "api-key" if self.api == "azure" else self._made.language.key_header
        return SecretHeaders(self.headers, self.key, scheme)


class _Made:
    """The parts that a `Chat` makes of its options, once in each process: they are not pickled."""

    def __init__(self, chat: Chat) -> None:
        self.prompt = Prompt(chat.prompt)
        language = language_of(chat.language)
        self.images = images_of(chat.images, self.prompt.names, language.name, language.details)
        self.body = chat.body
        if self.images is not None:
            self.body = merged(language.detail_fields.get(self.images.detail or "", {}), chat.body)
        self.fields = self.prompt.names + (() if self.images is None else self.images.names)
        self.answer = None if chat.answer is None else Answer(chat.answer)
        self.language = language
        self.provider = AZURE_PROVIDER if chat.api == "azure" else language.provider
        self.has_no_price = f"Chat has no price of {chat.model!r}: give prices, or Budget(usage=...)"
        self.forms: list[Form] = []
        if self.answer is not None:
            self.forms = forms_of(language.forms(self.answer), chat.structure, language.name)
        path = language.path.replace("{model}", quote(chat.model, safe="/"))
        if chat.api == "azure":
            path = azure_path(chat.model, path, chat.api_version)
        # An address may refuse a model, or a key, and take another one.
        scope = "chat", chat.model, repr(chat.key)
        if language.name != "openai":
            scope = f"chat in {language.name}", *scope[1:]
        self.urls = addresses_of(chat.base_url, request_urls(chat.base_url, path), scope)


def _with_images(
    messages: Sequence[Mapping[str, Any]], images: Attached, language: Language
) -> Sequence[Mapping[str, Any]]:
    """The messages with the images in the question, the first of the user's."""
    found = [*messages]
    place = 1 if found[0]["role"] == "system" else 0
    question = found[place]
    found[place] = {**question, "content": language.content(question["content"], images.images)}
    return found


def _corrections(former: AnswerInvalid) -> list[dict[str, str]]:
    """The messages that tell the model of its former reply, and of what was wrong with it."""
    return [
        {"role": "assistant", "content": former.reply[:MAX_REPLY_CHARACTERS]},
        {"role": "user", "content": CORRECTION_TEXT.format(error=former)},
    ]


def _error_in_reply(url: str, response: Response, beside: object, usage: Usage | None) -> HttpStatusError:
    """The error for an error object that came with a reply: what is there of the reply may be a part."""
    reading = read_answer(response.status, response.headers, {"error": beside})
    # An object without any of the words of errors is one all the same.
    if reading.kind is Kind.ANSWER:
        reading = reading._replace(kind=Kind.FAILED)
    body = json.dumps({"error": beside}).encode()
    error = ErrorInReply.of(url, response._replace(body=body), reading)
    error.usage = usage
    return error
