"""A client of embedding services: texts in, one block of vectors out.

`Embeddings` is a picklable value; its calls run on the event loop that it was entered on.
"""

# One call is one request, but for batches that are larger than the service allows and for texts in pieces:
# their requests go one after the other, so that the operator's `capacity` is the number of requests in
# flight. Nothing is tried again here; the operator knows what has been paid for.
#
# Why forms of vectors are found out by asking. Services that speak OpenAI's language differ in what they
# refuse and in what they ignore without a word, and none can be asked beforehand. A table of products would
# be wrong after their next release. So requests try the forms, the best first; `Forms` says when. A refusal
# in all of them is the text's fault, or that of the size. As all forms but float16 give the same vectors, one
# that was refused is looked at after a while only.
#
# Why the client divides what is refused for its size, and the operator what is refused for a bad text. The
# operator looks for the bad row of a batch anyway, and finds a limit of the number of rows so. But it knows
# neither bytes nor what another operator of this client has found, so that each task would find it anew.
# `Sizes` learns from both.
#
# Why a text that is too long, or a vector that is not finite, is the error of its row and not of its batch:
# the others were paid for, and a retry of the batch would pay for them again and fail at the same text. So
# does each request of a batch that needs several: once one was answered, the operator gets the vectors that
# are there, and calls the other rows again. A request that may have been refused for one of its texts is
# halved here then, as the operator would halve the batch.
#
# Why the operator is told what each request used as soon as it is answered, and not with a `Result`: by hand
# `await client(texts)` gives vectors, and a function around the client gets the same in a job. What has been
# answered is billed so whatever becomes of its batch: a request after it may fail, or the answer be no good.

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from time import perf_counter
from typing import Any, ClassVar, Literal, TypeAlias, cast
from urllib.parse import quote

import numpy as np

from pillarbox.aio.batching import Batch
from pillarbox.aio.current_call import CurrentCall, running_call
from pillarbox.aio.errors import ServiceResting
from pillarbox.aio.options import Budget
from pillarbox.aio.service_addresses import Endpoints
from pillarbox.aio.usage import Usage
from pillarbox.clients.addresses import Addresses, addresses_of
from pillarbox.clients.client import Client
from pillarbox.clients.endpoint import Endpoint
from pillarbox.clients.fields import whole_text
from pillarbox.clients.json_text import encode_json
from pillarbox.clients.late_address import LateAddress
from pillarbox.clients.long_texts import (
    LongTexts,
    check_long_texts,
    parts_of_texts,
    tokenizer_of_texts,
    whole_texts,
)
from pillarbox.clients.openai_api import (
    AZURE_PROVIDER,
    OK,
    AnswerError,
    OtherLength,
    azure_path,
    check_base_url,
    checked_body,
    error_of,
    request_urls,
)
from pillarbox.clients.presets import EmbeddingPresets
from pillarbox.clients.prices import Price, StatedCosts, check_max_cost, check_prices, table_of
from pillarbox.clients.secret import Secret, SecretHeaders, check_headers, check_key
from pillarbox.clients.texts import TextTooLong, empty_text, texts_of
from pillarbox.clients.tokenizer_loading import told_tokenizer
from pillarbox.clients.tokens import Piece, Tokenizer
from pillarbox.clients.transport import Http, HttpStatusError, Response, status_error, without_query
from pillarbox.clients.vector_language import Asked, VectorLanguage, vector_language_of
from pillarbox.clients.vectors import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Block,
    Vectors,
    block_of_bytes,
    may_be_float64,
    normalized,
    rows_not_finite,
    weighted_mean,
)
from pillarbox.validate import check_bool, check_choice, check_positive_int, check_text, naming_arguments
from pillarbox.wire import Kind, is_permanent, may_have_poison_row

log = logging.getLogger("pillarbox")

Encoding: TypeAlias = Literal["auto", "base64", "float", "float16", "bytes"]

ENCODINGS = ("auto", "base64", "float", "float16", "bytes")

TOKENS_PER_CHARACTER = 0.5
"""Before a service has counted any. English has about 0.25, Chinese about 1."""
BASE64_ENCODINGS = ("base64", "float16")
"""The forms in which a vector comes as base64, which the transport may read."""
ALONE_IN_VAIN = 3
"""Texts that are refused alone for their size, before any is accepted, after which nothing is divided."""
UNKNOWN_COST = "the service does not say what its answers cost"


@dataclass
class _Learned:
    """Facts about a service that its answers taught; shared by the calls of one client in one process.

    endpoints: what is known of each address. length: of all vectors. agreement, agree: the name
    under which tasks agree on it, and how; None once that is done. tokens, characters: of all texts for
    which it counted. cost: of all requests. is_unknown: an answer had no count, and that was said.
    suggests: the operator was told how many rows to call with. stated: what the service says of costs.
    finite: the last block, if its numbers are known to be finite, until it has been looked at.
    """

    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    length: int | None = None
    agreement: str | None = None
    agree: Callable[[int], Awaitable[int]] | None = None
    tokens: int = 0
    characters: int = 0
    cost: float = 0.0
    is_unknown: bool = False
    suggests: bool = False
    finite: Block | None = None
    stated: StatedCosts = field(default_factory=StatedCosts)


@naming_arguments
@dataclass(frozen=True)
class Embeddings(EmbeddingPresets, Client):
    """Client of an embedding service: vectors of texts, as a function that the operator calls with batches.

    Called with a list of texts, or an Arrow column of them, it returns a numpy block of shape (texts,
    dimensions), float32; called with one text, one vector of shape (dimensions,). If a text is None its
    result is None, and if one text cannot be embedded its result is the error: the result is then a list of
    rows. Use it with `batch=client.batch`, which is the default of `async_udf` and `embed_text`, and with
    `async with client:` outside of the operator.

    base_url: of the service, up to the version, such as "https://api.openai.com/v1"; of several a
        request is sent to the one with the fewest in flight. model: the model's name, for Azure of the
        deployment.
    key: a `Secret`, sent as Azure's `api-key` or as a bearer token.
    api: the form of requests: "openai" (OpenAI, vLLM, TEI, llama.cpp, LiteLLM and others), "azure", "tei" for
        TEI's own `/embed`, "cohere", "voyage", "jina", "gemini", "ollama" for its own `/api/embed`, or a
        `VectorLanguage`. api_version: for Azure.
    dimensions: requested from the service; vectors of another length are an error. None for the model's own.
    normalize: scale each vector to length 1.
    encoding: the form of vectors in answers. "auto" requests base64 and accepts lists of floats from services
        without it; "float16" halves base64 and rounds (vLLM's `embed_dtype`), "bytes" requests bare numbers
        (vLLM). Each falls back if a service lacks it.
    max_texts: texts in a request, at most; None for 64, and 32 with TEI's own form.
    max_tokens: tokens in a request, at most; counted by `tokenizer`, or estimated from the service's counts.
    max_text_tokens, long_texts: tokens of one text, at most, special ones included, and the treatment of a
        longer one: "send" it as it is, "error" for its row, "truncate" it, or "chunk" it: its pieces
        are embedded, and the result is their mean, weighted by tokens. All but "send" need a limit, "error"
        and "truncate" a tokenizer; "truncate" with TEI's own form needs neither, as the service truncates.
    tokenizer: a tiktoken encoding's name or a model's that tiktoken knows, the path of a tokenizer.json or of
        its folder on the driver and the workers, "org/model" of Hugging Face, "estimate", or an object of
        `tokenizers` or `tiktoken`. One that cannot be had is an error on the driver. None to estimate.
    body: more of the request's body, such as {"user": "nightly"}.
    headers: more headers; keys in them are Secrets. http: options of the transport.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import Embeddings
        >>> from pillarbox.testing import serve
        >>> with serve(dimensions=4) as service:
        ...     client = Embeddings(service.url, "any-model")
        ...     first, second = async_map(["a pillar box", "is red"], client, batch=client.batch)
        >>> first.shape, first.dtype.name
        ((4,), 'float32')

    In a call of the operator it reports the usage of each request: without `Budget.usage` that is the cost,
    by the prices of `with_prices`. Outside of the operator read `tokens` and `cost`.

    Raises TypeError and ValueError that name the argument. Calls raise HttpStatusError for other answers
    than 200, AnswerError for one without a vector for each text, errors of connections, and
    RuntimeError if the client is not open. Calls belong on the thread of the loop on which it was entered.
    """

    idempotent: ClassVar[bool] = True
    """A text that is sent twice changes nothing: a slow call may be hedged."""
    # How texts are put into requests is no matter, nor in which of the exact forms vectors come.
    _beside_results = Client._beside_results | {"max_texts", "max_tokens", "encoding"}

    base_url: str | Sequence[str] | Endpoints | LateAddress
    model: str = ""
    _: KW_ONLY
    key: Secret | None = None
    api: str | VectorLanguage = "openai"
    api_version: str | None = None
    dimensions: int | None = None
    normalize: bool = False
    encoding: Encoding = "auto"
    max_texts: int | None = None
    max_tokens: int | None = None
    max_text_tokens: int | None = None
    long_texts: LongTexts = "send"
    tokenizer: Any = None
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    http: Http = field(default_factory=Http)
    prices: Mapping[str, Price] = field(default_factory=dict, init=False)
    input_type: str | None = field(default=None, init=False)
    prefix: str | None = field(default=None, init=False)
    _connections: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _learned: _Learned = field(default_factory=_Learned, init=False, repr=False, compare=False)
    _loaded: Any = field(default=None, init=False, repr=False, compare=False)
    _urls: Any = field(default=None, init=False, repr=False, compare=False)
    _max_texts: int = field(default=0, init=False, repr=False, compare=False)
    _language: VectorLanguage = field(default_factory=VectorLanguage, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        language = vector_language_of(self.api)
        self._set("_language", language)
        self._set("base_url", check_base_url(self.base_url, language.own_ends))
        check_key("key", self.key)
        if language.needs_model or self.model:
            check_text("model", self.model)
        if self.api == "azure":
            check_text("api_version", self.api_version)
        elif self.api_version is not None:
            raise ValueError(f"api_version={self.api_version!r}: is for api='azure'; leave it out")
        for name in ("dimensions", "max_texts", "max_tokens"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        check_bool("normalize", self.normalize)
        check_choice("encoding", self.encoding, ENCODINGS)
        if not language.forms(self.encoding):
            raise ValueError(f"encoding={self.encoding!r}: api={language.name!r} has no such form")
        check_long_texts(
            self.long_texts,
            self.max_text_tokens,
            self.tokenizer,
            service_truncates=language.truncate_field is not None,
        )
        self._set("body", checked_body(self.body, language.own_fields))
        self._set("headers", check_headers("headers", self.headers))
        if not isinstance(self.http, Http):
            raise TypeError(f"http={self.http!r}: must be a pillarbox.clients.Http")
        self._set("_max_texts", self.max_texts or language.max_texts)
        self._set("_urls", self._addresses())

    def __getstate__(self) -> dict[str, Any]:
        # What was learned is of this process; the same client is the same there, whatever it has done here.
        return {**super().__getstate__(), "_learned": _Learned(), "_loaded": None, "_urls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set("_urls", self._addresses())

    def _use_address(self, url: str) -> None:
        self._set("_urls", replace(self, base_url=url)._urls)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def with_prices(self, prices: Mapping[str, Price]) -> Embeddings:
        """Return the same client with prices of its calls, for `Budget(max_cost=...)`.

        prices: a `Price` by the name of each model, as for `Chat`, for the tokens that the service counts; or
        `Price.STATED`. Any thread. Raises TypeError and ValueError.
        """
        check_prices(prices, self.model, needs_output=False)
        return self._with(prices=table_of(prices))

    def with_input(self, input_type: str | None = None, *, prefix: str | None = None) -> Embeddings:
        """Return the same client for texts of one use: queries or documents, which models tell apart.

            >>> from pillarbox.clients import Embeddings
            >>> documents = Embeddings.openai("text-embedding-3-small", base_url="http://e5/v1")
            >>> documents.with_input(prefix="query: ").prefix
            'query: '

        input_type: "query" or "document", or the service's own word, such as Gemini's "CLUSTERING". prefix:
        in front of each text that is sent, as models such as E5 need it. Any thread. Raises TypeError and
        ValueError, also for an `input_type` that the service has no field for.
        """
        if prefix is not None:
            check_text("prefix", prefix)
        if input_type is not None:
            check_text("input_type", input_type)
            if self._language.input_type_field is None:
                api = self._language.name
                raise ValueError(f"input_type={input_type!r}: api={api!r} has no field for it; give prefix")
        return self._with(input_type=input_type, prefix=prefix)

    def _with(self, **fields: Any) -> Embeddings:
        changed = replace(self)
        kept = {"prices": self.prices, "input_type": self.input_type, "prefix": self.prefix}
        for name, value in {**kept, **fields}.items():
            changed._set(name, value)
        return changed

    def check_on_driver(self) -> None:
        """Raise TokenizerUnavailable or MissingExtra where the tokenizer cannot be had here. Blocks."""
        if self.tokenizer is not None and (self.max_tokens or self.max_text_tokens) is not None:
            self._tokenizer()

    def check_budget(self, budget: Budget) -> None:
        """Raise ValueError for a bound on the cost where neither prices nor a hook says it. Any thread."""
        if budget.usage is None:
            how = f"its prices, client.with_prices({{{self.model!r}: Price(input=...)}})"
            check_max_cost(budget.max_cost, self.prices, how)

    # -- for the operator ------------------------------------------------------------------------------------

    @property
    def configuration(self) -> dict[str, Any]:
        """The part that decides about vectors, for a cache: see `Client.configuration`."""
        told = {**super().configuration, "rounds": self.encoding == "float16"}
        if not isinstance(self.api, str):
            told["api"] = self._language.name
        use = {"input_type": self.input_type, "prefix": self.prefix}
        told |= {name: each for name, each in use.items() if each is not None}
        if self.max_text_tokens is None:
            # A tokenizer that only fills requests does not change a text.
            return {**told, "tokenizer": None}
        return {**told, "tokenizer": told_tokenizer(self.tokenizer)}

    @property
    def batch(self) -> Batch:
        """The operator's option that fills requests: up to `max_texts`, and `max_tokens` if that is given."""
        if self.max_tokens is None:
            return Batch(size=self._max_texts)
        return Batch(size=self._max_texts, weight=self.tokens_of, max_weight=self.max_tokens)

    @property
    def result_type(self) -> str:
        """The type of a vector as a column of Spark, which `async_udf` takes for its own."""
        return "array<float>"

    @property
    def tokens(self) -> int:
        """Tokens that the service has counted for this client, in this process."""
        return self._learned.tokens

    @property
    def cost(self) -> float:
        """The cost of these tokens by the prices of `with_prices`; without, as a LiteLLM proxy states it."""
        return self._learned.cost

    def tokens_of(self, text: str | None) -> float:
        """Tokens of a text: counted if there is a tokenizer, otherwise estimated by the service's counts."""
        if text is None:
            return 0.0
        if self.tokenizer is not None:
            return self._tokenizer().count(text)
        text = text if self.prefix is None else self.prefix + text
        learned = self._learned
        # A mean of all texts so far: languages differ by four, so a constant would fill requests by a
        # quarter.
        ratio = learned.tokens / learned.characters if learned.tokens else TOKENS_PER_CHARACTER
        return len(text) * ratio

    @property
    def agrees_on_length(self) -> bool:
        """True if nothing but the first answer says how long the vectors are."""
        return self.dimensions is None

    @property
    def gives_new_memory(self) -> bool:
        """True if each block is in memory of its own, which the client does not keep."""
        # A derived class may have kept what it gives.
        kind = type(self)
        return kind.__call__ is Embeddings.__call__ and kind.__aenter__ is Embeddings.__aenter__

    def agree_on_length(self, name: str, agree: Callable[[int], Awaitable[int]]) -> None:
        """Have the first vectors told to `agree`, which gives the length that holds for all tasks of a job.

        name: of the job. What was learned in another one counts for nothing. Any thread.
        """
        learned = self._learned
        if learned.agreement != name:
            learned.agreement, learned.agree, learned.length = name, agree, None

    def expect_length(self, length: int) -> None:
        """Have vectors of another length be errors: a ledger has some of this one. Any thread."""
        self._learned.length = length

    # -- a call ----------------------------------------------------------------------------------------------

    async def __call__(self, texts: object) -> Any:
        """Return the vectors of `texts`: see the class."""
        if isinstance(texts, str):
            text = whole_text("the text", texts, self.http.surrogates)
            if not text.strip():
                raise empty_text("the text")
            (vector,) = await self._vectors([text], {})
            if isinstance(vector, BaseException):
                raise vector
            return vector
        rows, refused = texts_of(texts, self.http.surrogates)
        if not rows:
            return np.empty((0, self.dimensions or 0), np.float32)
        if len(refused) == len(rows) and running_call() is None:
            raise refused[0]
        return await self._vectors(rows, refused)

    async def _vectors(self, rows: list[str | None], refused: Mapping[int, Exception]) -> Any:
        """A block with a vector for each row, or a list with vectors, None and errors.

        refused: the errors of rows without a text, by their places.
        """
        if self.max_tokens is None and self.max_text_tokens is None and not self.prefix and None not in rows:
            # The usual case: each row is one piece, whose tokens nobody counts.
            block, bad = await self._embed(cast("list[str]", rows))
            if not bad:
                return normalized(block) if self.normalize else block
            parts, errors = [[Piece(text, 0.0)] for text in rows if text is not None], {**refused}
        else:
            parts, too_long = self._parts(rows)
            errors = {**refused, **too_long}
            all_pieces = [piece for part in parts for piece in part]
            texts = [piece.text for piece in all_pieces]
            block, bad = await self._embed(texts, [piece.tokens for piece in all_pieces])
            if len(block) == len(rows) and not errors and not bad:
                return normalized(block) if self.normalize else block
        results: list[Any] = []
        place = 0
        for row, part in enumerate(parts):
            results.append(errors.get(row))
            if not part:
                continue
            mine = block[place : place + len(part)]
            failed = next((bad[each] for each in range(place, place + len(part)) if each in bad), None)
            if failed is not None:
                results[row] = failed
            else:
                mean = mine[0] if len(part) == 1 else weighted_mean(mine, [piece.tokens for piece in part])
                results[row] = normalized(mean[None, :])[0] if self.normalize else mean
            place += len(part)
        return np.stack(results) if all(isinstance(each, np.ndarray) for each in results) else results

    def _parts(self, rows: list[str | None]) -> tuple[list[list[Piece]], dict[int, TextTooLong]]:
        """The pieces of each row's text, none for what is not embedded; errors of texts that are too long."""
        limit, prefix = self.max_text_tokens, self.prefix or ""
        if limit is None:
            # Tokens are needed to fill requests only.
            return whole_texts(rows, prefix, _uncounted if self.max_tokens is None else self.tokens_of), {}
        return parts_of_texts(rows, self.long_texts, limit, prefix, self._tokenizer())

    def _tokenizer(self) -> Tokenizer:
        if self._loaded is None:
            self._set("_loaded", tokenizer_of_texts(self.tokenizer, self.prefix))
        tokenizer: Tokenizer = self._loaded
        return tokenizer

    def _requests(self, all_texts: list[str], counts: Sequence[float]) -> Iterator[list[str]]:
        """The texts, with so many tokens, in order, in requests that the service allows."""
        if self.max_tokens is None:
            size = self._max_texts
            yield from (all_texts[at : at + size] for at in range(0, len(all_texts), size))
            return
        texts: list[str] = []
        tokens = 0.0
        for text, count in zip(all_texts, counts, strict=True):
            if texts and (tokens + count > self.max_tokens or len(texts) == self._max_texts):
                yield texts
                texts, tokens = [], 0.0
            texts.append(text)
            tokens += count
        if texts:
            yield texts

    async def _embed(
        self, all_texts: list[str], counts: Sequence[float] = ()
    ) -> tuple[Block, dict[int, Exception]]:
        """The vectors of the texts, zeros for some, and the errors of these by their places.

        counts: their tokens, where there is a limit of these. Raises the error of the first request.
        """
        # Texts, and the address that has refused them together with others.
        requests: deque[tuple[list[str], str | None]] = deque(
            (texts, None) for texts in self._requests(all_texts, counts)
        )
        blocks: list[Block] = []
        errors: dict[int, Exception] = {}
        place = alone = 0
        while requests:
            texts, divided_at = requests.popleft()
            url, sent, given = await self._embed_first(texts, divided_at)
            if len(sent) < len(texts):
                requests.appendleft((texts[len(sent) :], url))
                texts = sent
            if not isinstance(given, Exception):
                if not blocks and place:
                    blocks.append(np.zeros((place, given.shape[1]), np.float32))
                blocks.append(given)
                place += len(texts)
                continue
            sizes = self._endpoint(url).sizes
            # Fewer than those of the body; nearly all.
            nbytes = sum(map(len, texts))
            divides = sizes.divides(texts, nbytes, given)
            # Refused for good, and perhaps for one of its texts.
            is_for_one = is_permanent(given) and may_have_poison_row(given)
            if divides or (blocks and len(texts) > 1 and is_for_one):
                middle = (len(texts) + 1) // 2
                requests.extendleft(((texts[middle:], url), (texts[:middle], url)))
                continue
            alone += 1
            is_row = divided_at is not None and len(texts) == 1 and is_permanent(given)
            if not blocks and not is_row:
                # Nothing has been paid for: the operator calls the batch again, whole or in parts.
                raise given
            if not blocks and alone == ALONE_IN_VAIN:
                sizes.in_vain()
                raise given
            errors |= dict.fromkeys(range(place, place + len(texts)), given)
            if blocks:
                blocks.append(np.zeros((len(texts), blocks[0].shape[1]), np.float32))
            place += len(texts)
        self._suggest_rows(all_texts)
        if errors and not blocks:
            raise errors[0]
        if not blocks:
            if (call := running_call()) is not None:
                # Nothing was sent.
                call.bill_request(Usage(), 0.0, knows_cost=True)
            return np.empty((0, self.dimensions or 0), np.float32), errors
        whole = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        finite, self._learned.finite = self._learned.finite, None
        for each in () if whole is finite else rows_not_finite(whole):
            errors[each] = AnswerError("the answer's vector has numbers that are not finite")
        return whole, errors

    async def _embed_first(
        self, texts: list[str], wanted: str | None
    ) -> tuple[str, list[str], Block | Exception]:
        """The address that was asked last, the texts that were sent, the first ones, and their vectors.

        Or the error of these. wanted: the address to ask, if it takes requests.
        """
        urls = self._urls
        if urls.only is not None:
            return await self._embed_fitting(texts, urls.only)
        route, url = urls.route(), urls.first
        try:
            while True:
                url = route.next(wanted)
                try:
                    told = await self._embed_fitting(texts, url)
                except BaseException:
                    route.cancelled()
                    raise
                given = told[2]
                if not isinstance(given, Exception):
                    route.answered()
                elif route.failed(given):
                    continue
                return told
        except ServiceResting as resting:
            return url, texts, resting

    async def _embed_fitting(self, texts: list[str], url: str) -> tuple[str, list[str], Block | Exception]:
        """As `_embed_first`, of one address: as many texts as it takes in a request."""
        sizes = self._endpoint(url).sizes
        count, tries = sizes.fitting(texts, self._overhead)
        sent = texts if count == len(texts) else texts[:count]
        try:
            return url, sent, await self._embed_once(sent, url)
        except Exception as error:
            return url, sent, error
        finally:
            if tries:
                sizes.ended()

    def _suggest_rows(self, texts: list[str]) -> None:
        """Have the operator call with as many rows as fill a request, where the service takes few."""
        learned, call = self._learned, running_call()
        known = [endpoint.sizes for endpoint in learned.endpoints.values() if endpoint.sizes.is_known]
        if call is None or not texts or not (known or learned.suggests):
            return
        learned.suggests = bool(known)
        wanted = min([sizes.wanted(texts, self._overhead) for sizes in known], default=math.inf)
        call.suggest_rows(wanted / len(texts))

    def _endpoint(self, url: str) -> Endpoint:
        """The facts about one address."""
        endpoints = self._learned.endpoints
        found = endpoints.get(url)
        if found is None:
            found = endpoints[url] = Endpoint(without_query(url), self._language.forms(self.encoding))
        return found

    def _overhead(self) -> int:
        return len(self._body_of([], self._language.forms(self.encoding)[0]))

    async def _embed_once(self, texts: list[str], url: str) -> Block:
        """The vectors of `texts`, which are one request, in the first form that is not refused."""
        forms = self._endpoint(url).forms
        walk = forms.walk()
        try:
            block = None
            while block is None:
                try:
                    block = await self._block_in(
                        forms.kinds[walk.form], texts, url, forms.has_worked(walk.form)
                    )
                except HttpStatusError as error:
                    failed = await walk.refused(error)
                else:
                    failed = walk.error if block is None and not walk.ignored() else None
                if failed is not None:
                    raise failed from None
            walk.answered()
            await self._check_length(block.shape[1])
        finally:
            walk.end()
        return block

    async def _block_in(self, form: str, texts: list[str], url: str, has_worked: bool) -> Block | None:
        """The vectors of `texts` in one form; None from a service that ignores it."""
        if form == "float16" and not has_worked and not await self._gives_float16(url, texts[0]):
            return None
        block = (await self._ask(url, texts, form)).block
        if form == "base64" and not has_worked:
            block = await self._as_float32(url, texts[0], block)
        return block

    async def _check_length(self, length: int) -> None:
        """Raise OtherLength for vectors of another length than was asked for, or than all before."""
        if self.dimensions not in (None, length):
            raise self._other_length(
                f"dimensions={self.dimensions}: the service gave vectors of {length:,}; leave dimensions "
                "out, or take a model that can shorten its vectors"
            )
        learned = self._learned
        agree, known = learned.agree, learned.length
        if agree is not None:
            try:
                known = await agree(known or length)
            except ConnectionError as error:
                log.warning("the tasks of a job cannot agree on the length of vectors: %s", error)
            if learned.agree is agree:
                learned.agree, learned.length = None, known
        before = learned.length = known or learned.length or length
        if length != before:
            raise self._other_length(
                f"the service gave vectors of {length:,}, and those before have {before:,}: vectors of one "
                "column have one length; does another model answer by this name, at one of the addresses?"
            )

    def _other_length(self, message: str) -> OtherLength:
        # Another address may have the right model: with `retry` the next call goes there.
        return OtherLength(message, Kind.REFUSED_ALL if isinstance(self.base_url, str) else Kind.UNKNOWN)

    async def _as_float32(self, url: str, text: str, block: Block) -> Block:
        """The first vectors in base64, which may be float64 at some services: a list of floats tells it."""
        if not may_be_float64(block):
            return block
        plain = (await self._ask(url, [text], "float")).block
        if 2 * plain.shape[1] != block.shape[1]:
            return block
        self._endpoint(url).has_float64 = True
        return block.view(FLOAT64).astype(np.float32)

    async def _gives_float16(self, url: str, text: str) -> bool:
        """Return True if the service obeys `embed_dtype`: one that does not gives float32 without a word."""
        full = await self._ask(url, [text], "base64")
        return (await self._ask(url, [text], "float16")).block.shape == full.block.shape

    async def _ask(self, url: str, texts: list[str], encoding: str) -> Vectors:
        """Send one request. Raises HttpStatusError and AnswerError."""
        call, began = running_call(), perf_counter()
        endpoint = self._endpoint(url)
        sizes = endpoint.sizes
        body = self._body_of(texts, encoding)
        try:
            response = await self._send(
                "POST",
                url,
                headers=self._language.headers,
                body=body,
                vectors=len(texts) if encoding in BASE64_ENCODINGS and endpoint.counts_plainly else 0,
            )
            if response.status != OK:
                raise status_error("POST", url, response)
        except Exception as error:
            sizes.refused(texts, len(body), error)
            raise
        try:
            dtype = FLOAT64 if encoding == "base64" and endpoint.has_float64 else FLOAT32
            vectors = self._decoded(
                response, len(texts), FLOAT16 if encoding == "float16" else dtype, encoding
            )
        except AnswerError as error:
            if (told := error_of(url, response)) is not None:
                sizes.refused(texts, len(body), told)
                raise told from None
            self._bill(call, url, response, texts, error.tokens, perf_counter() - began)
            raise AnswerError(f"{without_query(url)}: {error}") from None
        sizes.accepted(texts, len(body))
        endpoint.counts_plainly = self._language.has_openai_form and vectors.counts_plainly
        self._learned.finite = vectors.block if vectors.are_finite else None
        self._bill(call, url, response, texts, vectors.tokens, perf_counter() - began)
        return vectors

    def _bill(
        self,
        call: CurrentCall | None,
        url: str,
        response: Response,
        texts: list[str],
        tokens: int | None,
        seconds: float,
    ) -> None:
        """Count what a request used, which took so long, and tell the call of the operator that made it."""
        price, learned = self.prices.get(self.model), self._learned
        cost, unknown = learned.stated.of_texts(price, tokens, url, response.headers, UNKNOWN_COST)
        if tokens is None and not learned.is_unknown:
            learned.is_unknown = True
            log.log(
                logging.INFO if price is None else logging.WARNING,
                "%s: an answer has no count of tokens that can be read: %s",
                self.model or self.base_url,
                UNKNOWN_COST,
            )
        if tokens is not None:
            learned.tokens += tokens
            learned.characters += sum(map(len, texts))
        learned.cost += cost or 0.0
        if call is not None:
            usage = Usage(
                cost or 0.0,
                input_tokens=tokens or 0,
                model=self.model or None,
                operation="embeddings",
                provider=AZURE_PROVIDER if self.api == "azure" else self._language.provider,
                unknown_cost=unknown,
            )
            # Of a service that does not count nobody knows it.
            call.bill_request(usage, seconds, knows_cost=cost is not None)

    def _body_of(self, texts: list[str], encoding: str) -> bytes:
        asked = Asked(encoding, self.dimensions, self.input_type, self.long_texts == "truncate")
        return encode_json({**self._language.body(self.model, texts, asked), **self.body})

    def _decoded(self, response: Response, texts: int, dtype: Any, encoding: str) -> Vectors:
        if response.vectors is not None:
            found = response.vectors
            return block_of_bytes(found.block, texts, dtype, found.tokens, found.are_finite)
        return self._language.decode(response, texts, dtype, encoding)

    # -- addresses and headers -------------------------------------------------------------------------------

    def _headers(self) -> SecretHeaders:
        scheme = "api-key" if self.api == "azure" else self._language.key_header
        return SecretHeaders(self.headers, self.key, scheme)

    def _addresses(self) -> Addresses:
        # An address may refuse a model, or a key, and take another one.
        scope = f"embeddings in {self._language.name}", self.model, repr(self.key)
        return addresses_of(self.base_url, self._request_urls(), scope)

    def _request_urls(self) -> list[str]:
        path = self._language.path.replace("{model}", quote(self.model, safe="/"))
        if self.api == "azure":
            path = azure_path(self.model, "/embeddings", self.api_version)
        return request_urls(self.base_url, path)


def _uncounted(text: str) -> float:
    return 0.0
