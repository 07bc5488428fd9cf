"""The classes of events on the wire, and the table of all that is known of them.

Plain values; any thread. `pillarbox.wire` reads answers and errors by it; docs/wire.md is written from it.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Class of an event on the wire, such as a refused connection or an answer with status 429.

        >>> from pillarbox.wire import Kind, read_error
        >>> read_error(ConnectionRefusedError()).kind is Kind.NOT_REACHED
        True

    The page "Events on the wire" has the table of events and classes. Any thread.
    """

    NOT_SENT = "not sent"
    NOT_REACHED = "not reached"
    BROKEN = "broken answer"
    ANSWERED_BADLY = "answered badly"
    REFUSED_ROW = "refused for this row"
    REFUSED_SIZE = "refused for its size"
    REFUSED_ALL = "refused for all rows"
    OVERLOADED = "overloaded"
    OUT_OF_QUOTA = "out of quota"
    CUT = "cut"
    OTHER_KIND = "of another kind"
    FAILED = "failed"
    LATE = "late"
    EXHAUSTED = "worker exhausted"
    UNKNOWN = "unknown"
    ANSWER = "answer"


class Traits(NamedTuple):
    """The consequences of a kind.

    meaning: in words. is_final: the same request would end so again. is_overload: the service gets more
    calls than it takes. is_unreached: a sign of an outage. may_have_poison_row: one row of a batch may be the
    cause, so that dividing the batch may help. of_all_rows: every row would meet it until somebody acts.
    """

    meaning: str
    is_final: bool = False
    is_overload: bool = False
    is_unreached: bool = False
    may_have_poison_row: bool = False
    of_all_rows: bool = False


class Rule(NamedTuple):
    """One line of the table: events that are of one kind.

    by: "status", "code" (of an error object, of AWS or of gRPC), "error" (the name of a class), "errno" or
    "resolver" (of the operating system), "exhausted" (an error's name or number, wherever it is in the chain
    of causes), "finish" (the reason why a model's reply ended). names: of the
    events. only_with: statuses beside which a code counts; empty for all. why: a remark for readers.
    """

    by: str
    kind: Kind
    names: tuple[str, ...]
    why: str
    only_with: tuple[int, ...] = ()


# -- the table -------------------------------------------------------------------------------------

TRAITS: Mapping[Kind, Traits] = {
    Kind.NOT_SENT: Traits(
        "the connection ended before the first byte of an answer: most often one that was kept, and that the "
        "server had closed. Sent once more at once on a fresh connection; a second time in a row it is a "
        "sign of an outage",
        is_unreached=True,
    ),
    Kind.NOT_REACHED: Traits(
        "no connection was made, or a gateway does not reach the service: tried again, and waited for as an "
        "outage where several rows in a row end so",
        is_unreached=True,
    ),
    Kind.BROKEN: Traits(
        "the answer broke off: tried again; no part of it is read, not even one that is whole by luck",
        may_have_poison_row=True,
    ),
    Kind.ANSWERED_BADLY: Traits(
        "an answer that cannot be read as HTTP, or a fault of TLS: a fault of the service, tried again; it "
        "has no status, since nobody sent one",
        may_have_poison_row=True,
    ),
    Kind.REFUSED_ROW: Traits(
        "refused for what this row asks: final for the row", is_final=True, may_have_poison_row=True
    ),
    Kind.REFUSED_SIZE: Traits(
        "too large: final for one row; a batch is divided", is_final=True, may_have_poison_row=True
    ),
    Kind.REFUSED_ALL: Traits(
        "refused for who calls, where or how: final, and every other row would be refused too",
        is_final=True,
        of_all_rows=True,
    ),
    Kind.OVERLOADED: Traits(
        "more calls than the service takes: all calls wait, for as long as it asks; no attempt of the row",
        is_overload=True,
    ),
    Kind.OUT_OF_QUOTA: Traits(
        "the account has no credit left: final for all rows", is_final=True, of_all_rows=True
    ),
    Kind.CUT: Traits("the reply ended at a limit of tokens: final", is_final=True, may_have_poison_row=True),
    Kind.OTHER_KIND: Traits(
        "an answer, but not of the kind that was asked for: final", is_final=True, may_have_poison_row=True
    ),
    Kind.FAILED: Traits("a fault that time may mend: tried again", may_have_poison_row=True),
    Kind.LATE: Traits("no answer in time: tried again", may_have_poison_row=True),
    Kind.EXHAUSTED: Traits(
        "the process of the call lacks descriptors, memory or threads: no fault of a row or of the service, "
        "and no attempt; fewer calls are in flight, and the call is made again"
    ),
    Kind.UNKNOWN: Traits("tells nothing of the wire: tried again", may_have_poison_row=True),
    Kind.ANSWER: Traits("an answer", may_have_poison_row=True),
}
"""The traits of each kind."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _statuses(kind: Kind, names: str, why: str) -> Rule:
    return Rule("status", kind, _words(names), why)


def _codes(kind: Kind, names: str, why: str, only_with: tuple[int, ...] = ()) -> Rule:
    return Rule("code", kind, _words(names), why, only_with)


def _errors(kind: Kind, names: str, why: str) -> Rule:
    return Rule("error", kind, _words(names), why)


def _finishes(kind: Kind, names: str, why: str) -> Rule:
    return Rule("finish", kind, _words(names), why)


TABLE: tuple[Rule, ...] = (
    # Statuses (RFC 9110, 6585, 7725). Others, and those that services made up, are `FAILED` from 400 on.
    _statuses(Kind.REFUSED_ROW, "400 404 410 412 416 422 451", "of what was asked for"),
    _statuses(Kind.REFUSED_SIZE, "413 414", "of a request that is too large"),
    _statuses(Kind.REFUSED_ALL, "401 403 407", "of who calls"),
    _statuses(
        Kind.REFUSED_ALL, "405 406 411 415 417 426 428 431 501 505 511", "of how the service is called"
    ),
    _statuses(Kind.REFUSED_ALL, "300 301 302 303 304 305 307 308", "redirects, which are not followed"),
    _statuses(Kind.OUT_OF_QUOTA, "402", "Payment Required"),
    _statuses(Kind.OVERLOADED, "429 503 529", "with or without `Retry-After`; so is 403 with one"),
    _statuses(Kind.NOT_REACHED, "502 504 521 522 523", "a gateway does not reach the service"),
    _statuses(Kind.FAILED, "408 409 421 423 424 425 500", "and all other statuses from 400 on"),
    # Words of error objects; a service's own beside a success or without a status.
    _codes(
        Kind.OUT_OF_QUOTA,
        "billing_error billing_hard_limit_reached billing_not_active insufficient_balance "
        "insufficient_credits insufficient_quota",
        "an account without credit, whatever the status (most often 429)",
    ),
    _codes(
        Kind.REFUSED_ALL,
        "DeploymentNotFound ModelNotFound OperationNotSupported deployment_not_found model_not_available "
        "model_not_found unknown_model",
        "names the model or the deployment; so does a 404 whose message says that a model does not exist",
        (400, 404),
    ),
    _codes(
        Kind.REFUSED_ALL, "API_KEY_INVALID API_KEY_EXPIRED", "of Google, though the status is 400", (400,)
    ),
    _codes(
        Kind.REFUSED_ALL,
        "no_db_connection",
        "of a LiteLLM proxy without a database, to a key that is not its own",
        (400,),
    ),
    _codes(
        Kind.OVERLOADED,
        "rateLimitExceeded userRateLimitExceeded rate_limit_exceeded",
        "limits of Google's services, which come with 403",
        (403,),
    ),
    _codes(
        Kind.OVERLOADED,
        "engine_overloaded overloaded overloaded_error rate_limit_error rate_limit_exceeded "
        "server_overloaded slow_down too_many_requests",
        "in an error beside a success",
        (200,),
    ),
    _codes(
        Kind.REFUSED_ALL,
        "authentication_error invalid_api_key model_not_found permission_error",
        "in an error beside a success",
        (200,),
    ),
    _codes(
        Kind.REFUSED_ROW,
        "bad_request context_length_exceeded invalid_request_error not_found_error string_above_max_length",
        "in an error beside a success",
        (200,),
    ),
    _codes(Kind.REFUSED_SIZE, "request_too_large", "in an error beside a success", (200,)),
    _codes(
        Kind.OVERLOADED,
        "BandwidthLimitExceeded EC2ThrottledException LimitExceededException "
        "ProvisionedThroughputExceededException RequestLimitExceeded RequestThrottled "
        "RequestThrottledException RESOURCE_EXHAUSTED SlowDown ThrottledException Throttling "
        "ThrottlingException TooManyRequestsException",
        "throttling by AWS, whatever the status, and the code of gRPC",
    ),
    _codes(
        Kind.FAILED,
        "PriorRequestNotComplete RequestTimeout RequestTimeoutException TransactionInProgressException "
        "ABORTED CANCELLED INTERNAL UNKNOWN",
        "of AWS, though their status is 400, and of gRPC",
    ),
    _codes(
        Kind.REFUSED_ALL,
        "AccessDenied AccessDeniedException ExpiredToken ExpiredTokenException InvalidAccessKeyId "
        "InvalidClientTokenId InvalidSignatureException MissingAuthenticationToken "
        "MissingAuthenticationTokenException SignatureDoesNotMatch UnrecognizedClientException "
        "PERMISSION_DENIED UNAUTHENTICATED UNIMPLEMENTED",
        "of AWS about who calls, and of gRPC",
    ),
    _codes(
        Kind.REFUSED_ROW,
        "ALREADY_EXISTS DATA_LOSS FAILED_PRECONDITION INVALID_ARGUMENT NOT_FOUND OUT_OF_RANGE",
        "of gRPC, about what was asked for",
    ),
    _codes(Kind.NOT_REACHED, "UNAVAILABLE", "of gRPC"),
    _codes(Kind.LATE, "DEADLINE_EXCEEDED", "of gRPC"),
    # Errors without an answer, by the names of their classes or of those that they derive from.
    _errors(
        Kind.NOT_SENT,
        "ServerDisconnectedError ClientConnectionResetError RemoteDisconnected ConnectionClosedError",
        "aiohttp, http.client (requests, urllib3), botocore",
    ),
    _errors(
        Kind.NOT_REACHED,
        "ConnectTimeout ConnectTimeoutError ConnectionTimeoutError EndpointConnectionError "
        "NewConnectionError ProxyConnectionError",
        "httpx, requests, urllib3, aiohttp, botocore",
    ),
    _errors(
        Kind.BROKEN,
        "ClientPayloadError ChunkedEncodingError IncompleteRead IncompleteReadError ResponseStreamingError",
        "aiohttp, requests, http.client and urllib3, asyncio, botocore",
    ),
    _errors(
        Kind.ANSWERED_BADLY,
        "HttpProcessingError HTTPException DecodingError ContentDecodingError DecodeError "
        "APIResponseValidationError",
        "aiohttp (whose error has the status 400, which nobody sent), http.client, httpx, requests, urllib3, "
        "openai",
    ),
    _errors(
        Kind.REFUSED_ALL,
        "TooManyRedirects NoCredentialsError PartialCredentialsError",
        "httpx and requests, botocore",
    ),
    _errors(
        Kind.LATE,
        "ReadTimeout WriteTimeout PoolTimeout ReadTimeoutError SocketTimeoutError TimeoutException",
        "httpx, requests, urllib3, botocore, aiohttp; so is every other `TimeoutError`",
    ),
    _errors(Kind.CUT, "LengthFinishReasonError", "openai"),
    _errors(Kind.REFUSED_ROW, "ContentFilterFinishReasonError", "openai"),
    # The reason why a reply of a model ended, without regard to case. Others are `FAILED`.
    _finishes(
        Kind.ANSWER,
        "stop stop_sequence stop_token end_turn end eos eos_token complete completed done",
        "the model has said all; so does null, or none",
    ),
    _finishes(
        Kind.CUT,
        "length max_tokens max_length max_output_tokens max_completion_tokens max_new_tokens model_length "
        "model_context_window_exceeded context_length context_length_exceeded context_window_exceeded "
        "length_limit token_limit error_limit limit truncated",
        "OpenAI and its likes; Anthropic, Google; Mistral; TGI; Cohere; llama.cpp",
    ),
    _finishes(
        Kind.REFUSED_ROW,
        "content_filter content_filtered content_policy content_policy_violation safety image_safety "
        "refusal refused recitation blocklist blocked prohibited_content spii sensitive moderation flagged "
        "guardrail_intervened guardrails error_toxic model_armor language",
        "the model or a filter does not answer: OpenAI, Azure; Google; Anthropic, Bedrock; Cohere",
    ),
    _finishes(
        Kind.OTHER_KIND,
        "tool_calls tool_call tool_use function_call",
        "beside a text it is an answer: services make structured output so",
    ),
    # Of the operating system.
    Rule(
        "errno",
        Kind.NOT_REACHED,
        _words("EADDRNOTAVAIL ECONNREFUSED EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH ETIMEDOUT"),
        "no connection; `EADDRNOTAVAIL` is of a worker that is exhausted where its ports are used up",
    ),
    Rule(
        "exhausted",
        Kind.EXHAUSTED,
        _words("EMFILE ENFILE ENOBUFS ENOMEM MemoryError"),
        "wherever it is in the chain of causes; so is a `RuntimeError` of a thread that cannot start",
    ),
    Rule(
        "errno",
        Kind.NOT_SENT,
        _words("ECONNABORTED ECONNRESET ENETRESET EPIPE"),
        "a connection that broke before an answer; while a large body is sent it is `REFUSED_SIZE` for the "
        "clients of Pillarbox, which know the body",
    ),
    Rule("resolver", Kind.NOT_REACHED, ("EAI_AGAIN",), "the name server gives no answer for now"),
    Rule(
        "resolver",
        Kind.REFUSED_ALL,
        _words("EAI_NONAME EAI_NODATA EAI_ADDRFAMILY"),
        "the name does not exist",
    ),
)
"""All that is known, one rule for each line of docs/wire.md."""

NAMES_MODEL = re.compile(
    r"\b(models?|deployment)\b.{0,200}\b(not (be )?found|does not exist|doesn't exist|is not available)"
    r"|\b(no such|unknown) (model|deployment)\b|^model: \S+$"
    r"|\binvalid model name\b",
    re.IGNORECASE | re.DOTALL,
)
"""Messages of 400 and 404 that name a model which is not there."""
NAMES_CREDIT = re.compile(r"\bcredit balance is too low\b", re.IGNORECASE)
"""Messages of 400 about an account without credit: Anthropic's."""
RETRY_AFTER_MS_HEADERS = ("retry-after-ms", "x-ms-retry-after-ms")
RETRY_AFTER_HEADERS = ("retry-after", "llm_provider-retry-after")
"""A LiteLLM proxy gives under the second name what the provider said, and its own limits too."""

FORM_STATUSES = frozenset({400, 406, 415, 422})
"""Statuses that may refuse the form which a request asks for, such as a kind of structured output."""

NO_FORM_STATUSES = frozenset({401, 404, 407, 408, 410, 411, 421, 423, 425, 426, 428, 431, 451, 511})
"""Statuses that never refuse a form: they are of who calls, where, and when. All others from 400 on may,
where a service has not answered in the form yet, unless their kind says more."""

CONTENT_CODES = frozenset(
    _words(
        "ResponsibleAIPolicyViolation content_filter content_policy_violation context_length_exceeded "
        "string_above_max_length"
    )
)
"""Words of error objects that refuse what a request holds, whatever its form."""

OF_CONNECTIONS = frozenset(
    _words(
        "APIConnectionError ClientConnectionError ConnectionError HTTPClientError NetworkError "
        "RemoteProtocolError"
    )
)
"""Names of errors of connections that say no more: built in, of openai, aiohttp, botocore, httpx."""

HTTPX_WORDS = (
    ("without sending a response", Kind.NOT_SENT),
    ("without sending complete message body", Kind.BROKEN),
    ("", Kind.ANSWERED_BADLY),
)
"""The texts of httpx' `RemoteProtocolError`, one class for three events; the first that is in it counts."""


def _by_name(by: str, only_with: int | None = None) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for rule in TABLE:
        if rule.by == by and (only_with in rule.only_with if only_with is not None else not rule.only_with):
            found |= dict.fromkeys(rule.names, rule.kind)
    return found


STATUSES = {int(name): kind for name, kind in _by_name("status").items()}
CODES = _by_name("code")
CODES_BESIDE = {status: _by_name("code", status) for status in (200, 400, 403, 404)}
ERRORS = _by_name("error")
FINISHES = _by_name("finish")
ERRNOS = {number: kind for name, kind in _by_name("errno").items() if (number := getattr(errno, name, None))}
EXHAUSTED_ERRNOS = frozenset(
    number for name in _by_name("exhausted") if (number := getattr(errno, name, None)) is not None
)
RESOLVER = {
    number: kind
    for name, kind in _by_name("resolver").items()
    if (number := getattr(socket, name, None)) is not None
}


def kind_of_status(status: int) -> Kind:
    """Return the kind of a status by itself; `read_answer` looks at headers and body too."""
    found = STATUSES.get(status)
    if found is not None:
        return found
    return Kind.FAILED if status >= 400 else Kind.REFUSED_ALL if status >= 300 else Kind.ANSWER


def kind_of_finish(reason: object) -> Kind:
    """Return the kind of a model's reply by the reason why it ended (`finish_reason`), parsed from JSON.

    A reason is believed to be good where it is known to be: null, an empty text, or a word of the table.
    Any thread.
    """
    if type(reason) is str and (found := FINISHES.get(reason)) is not None:
        return found
    if reason is None or reason == "":
        return Kind.ANSWER
    if not isinstance(reason, str):
        return Kind.FAILED
    return FINISHES.get(reason.strip().lower().replace("-", "_"), Kind.FAILED)
