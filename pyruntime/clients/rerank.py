"""A client of rerankers: a query and a list of documents in, a score for each document out.

`Rerank` is a picklable value; its calls run on the event loop that it was entered on.
"""

# Scores come back in the order of the documents, and not best first as services give them: a column of scores
# stands beside the column of documents, and Spark sorts. A reranker reads each document alone with the query,
# so a list that is longer than a request goes in several, one after the other, without another result.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar
from urllib.parse import quote

from pillarbox.aio.current_call import running_call
from pillarbox.aio.options import Budget
from pillarbox.aio.service_addresses import Endpoints
from pillarbox.aio.usage import Usage
from pillarbox.clients.addresses import Addresses, addresses_of
from pillarbox.clients.client import Client
from pillarbox.clients.fields import plain_value, values_by_name, whole_text
from pillarbox.clients.json_text import decode_json, encode_json
from pillarbox.clients.late_address import LateAddress
from pillarbox.clients.openai_api import AnswerError, check_base_url, checked_body, error_of, request_urls
from pillarbox.clients.prices import Price, StatedCosts, check_max_cost, check_prices
from pillarbox.clients.rerank_language import RerankLanguage, rerank_language_of
from pillarbox.clients.secret import Secret, SecretHeaders, check_headers, check_key
from pillarbox.clients.transport import Http, Response, without_query
from pillarbox.validate import check_positive_int, check_text, naming_arguments

UNKNOWN_COST = "the service does not say what its scores cost"


@naming_arguments
@dataclass(frozen=True)
class Rerank(Client):
    """Client of a reranker: a score for each document of a list, as a function that the operator calls.

    Called with one row, whose fields it takes by name, or with the query and the list, as `async_udf` does.
    The result is a list of floats in the order of the documents; higher is better. A document that is None or
    blank is not sent, and its score is None. If the query or the list is None the result is None.

    base_url: of the service, up to the version; of several a request is sent to the one with the fewest in
        flight. model: the model's name; TEI needs none.
    query, documents: the names of the fields of a row.
    api: "vllm", "jina", "cohere", "voyage", "tei", or a `RerankLanguage`.
    max_documents: of one request; None for the service's limit. Longer lists go in several requests.
    key: a `Secret`, sent as a bearer token. prices: a `Price` by the name of the model, for services that
        count tokens, or `Price.STATED`. body: more of the request's body. headers: more headers.
    http: options of the transport.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import Rerank
        >>> from pillarbox.testing import serve
        >>> row = {"query": "warm soup", "documents": ["a red pillar box", "soup that is warm"]}
        >>> with serve() as service:
        ...     [scores] = async_map([row], Rerank(service.url, "any-model"))
        >>> scores[1] > scores[0]
        True

    Raises TypeError and ValueError that name the argument. Calls raise HttpStatusError for other answers than
    200, AnswerError for one without a score for each document, TypeError and ValueError for a row that lacks
    a field or has no list of texts, errors of connections, and RuntimeError if the client is not open. Calls
    belong on the thread of the loop on which it was entered.
    """

    idempotent: ClassVar[bool] = True
    """A question that is asked twice changes nothing: a slow call may be hedged."""
    _beside_results = Client._beside_results | {"prices", "api", "max_documents", "query", "documents"}

    base_url: str | Sequence[str] | Endpoints | LateAddress
    model: str = ""
    _: KW_ONLY
    query: str = "query"
    documents: str = "documents"
    api: str | RerankLanguage = "vllm"
    max_documents: int | None = None
    key: Secret | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    http: Http = field(default_factory=Http)
    _connections: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _language: RerankLanguage = field(init=False, repr=False, compare=False)
    _urls: Any = field(default=None, init=False, repr=False, compare=False)
    _stated: StatedCosts = field(default_factory=StatedCosts, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        language = rerank_language_of(self.api)
        self._set("_language", language)
        self._set("base_url", check_base_url(self.base_url, (language.path,)))
        if language.needs_model or self.model:
            check_text("model", self.model)
        check_text("query", self.query)
        check_text("documents", self.documents)
        if self.query == self.documents:
            raise ValueError(f"documents={self.documents!r}: is the name of the query's field as well")
        if self.max_documents is not None:
            check_positive_int("max_documents", self.max_documents)
        check_key("key", self.key)
        check_prices(self.prices, self.model, needs_output=False)
        self._set("body", checked_body(self.body, language.own_fields))
        self._set("headers", check_headers("headers", self.headers))
        if not isinstance(self.http, Http):
            raise TypeError(f"http={self.http!r}: must be a pillarbox.clients.Http")
        self._set("_urls", self._addresses())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_urls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set("_urls", self._addresses())

    def _use_address(self, url: str) -> None:
        self._set("_urls", replace(self, base_url=url)._urls)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def fields(self) -> tuple[str, str]:
        """The names of the fields that a row needs: the query and the documents."""
        return self.query, self.documents

    @property
    def result_type(self) -> str:
        """The type of the scores as a column of Spark, which `async_udf` takes for its own."""
        return "array<double>"

    @property
    def configuration(self) -> dict[str, Any]:
        """The part that decides about scores, for a cache: see `Client.configuration`."""
        return {**super().configuration, "api": self._language.name}

    def check_budget(self, budget: Budget) -> None:
        """Raise ValueError for a bound on the cost where neither prices nor a hook says it. Any thread."""
        if budget.usage is None:
            check_max_cost(budget.max_cost, self.prices, f"prices={{{self.model!r}: Price(input=...)}}")

    async def __call__(self, *row: object) -> list[float | None] | None:
        """Return the scores of one row: see the class."""
        values = values_by_name(row, self.fields)
        query, documents = values[self.query], values[self.documents]
        if query is None or documents is None:
            return None
        query = self._text(self.query, query)
        texts = [
            None if (value := plain_value(each)) is None else self._text(f"{self.documents}[{place}]", value)
            for place, each in enumerate(self._list(documents))
        ]
        if not query.strip():
            raise ValueError(f"{self.query}: is empty, and was not sent")
        sent = [(place, text) for place, text in enumerate(texts) if text is not None and text.strip()]
        scores: list[float | None] = [None] * len(texts)
        most = self.max_documents or self._language.max_documents
        for at in range(0, len(sent), most):
            places, asked = zip(*sent[at : at + most], strict=True)
            url = self._urls.only
            found = await (self._ask(url, query, asked) if url else self._urls.call(self._ask, query, asked))
            for place, score in zip(places, found, strict=True):
                scores[place] = score
        if not sent and (call := running_call()) is not None:
            # Nothing was sent.
            call.bill_request(Usage(), 0.0, knows_cost=True)
        return scores

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{name}: must be a text, not {type(value).__name__}")
        return whole_text(name, value, self.http.surrogates)

    def _list(self, documents: Any) -> Sequence[Any]:
        if hasattr(documents, "tolist"):
            documents = documents.tolist()
        if not isinstance(documents, list | tuple):
            raise TypeError(f"{self.documents}: must be a list of texts, not {type(documents).__name__}")
        return documents

    async def _ask(self, url: str, query: str, documents: Sequence[str]) -> list[float]:
        """The scores of one request. Raises HttpStatusError and AnswerError."""
        language, began = self._language, perf_counter()
        body = encode_json({**language.body(self.model, query, documents), **self.body})
        response = await self._send("POST", url, headers=language.headers, body=body)
        failed = error_of(url, response)
        if failed is not None:
            raise failed
        try:
            answer = decode_json(response.body)
            found, tokens = language.scores(answer), language.tokens(answer)
            scores = _in_order(found, len(documents))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise AnswerError(f"{without_query(url)}: the answer is not one of scores: {error}") from None
        self._bill(url, response, tokens, perf_counter() - began)
        return scores

    def _bill(self, url: str, response: Response, tokens: int | None, seconds: float) -> None:
        call, price = running_call(), self.prices.get(self.model)
        if call is None:
            return
        cost, unknown = self._stated.of_texts(price, tokens, url, response.headers, UNKNOWN_COST)
        usage = Usage(
            cost or 0.0,
            input_tokens=tokens or 0,
            model=self.model or None,
            operation="rerank",
            provider=self._language.provider,
            unknown_cost=unknown,
        )
        call.bill_request(usage, seconds, knows_cost=cost is not None)

    def _headers(self) -> SecretHeaders:
        return SecretHeaders(self.headers, self.key, self._language.key_header)

    def _addresses(self) -> Addresses:
        path = self._language.path.replace("{model}", quote(self.model, safe="/"))
        scope = f"rerank in {self._language.name}", self.model, repr(self.key)
        return addresses_of(self.base_url, request_urls(self.base_url, path), scope)


def _in_order(found: Sequence[tuple[Any, Any]], documents: int) -> list[float]:
    """The scores in the order of the documents. Raises ValueError and TypeError."""
    by_place = dict(found)
    if len(found) != documents or by_place.keys() != set(range(documents)):
        raise ValueError(f"the places of {len(found):,} scores are not those of {documents:,} documents")
    scores = [by_place[place] for place in range(documents)]
    for score in scores:
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise ValueError(f"a score is {score!r}, and not a finite number")
    return [float(score) for score in scores]
