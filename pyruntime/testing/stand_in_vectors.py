"""Embeddings and reranking of services that do not speak OpenAI's language, as the stand-in answers them.

Pure; any thread. Each function takes a request and gives the body of its answer, or raises `Refused` for what
the real service refuses. Those that share a path stand below the name of the service.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from pillarbox.testing.stand_in_languages import Answered, Refused, gemini_error
from pillarbox.testing.stand_in_values import count_tokens, embed

DIMENSIONS = 256
MAX_TEXT_TOKENS = 512
"""Tokens of one text: of more it is shortened, or refused."""

Refuse = Callable[..., Refused]


def _by(name: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> Refuse:
    """A function that makes errors whose message stands under `name`."""
    return lambda message: Refused(status, message, body={name: message})


def _check(body: Mapping[str, Any], known: str, needed: str, refuse: Refuse) -> None:
    for name in body:
        if name not in known.split():
            raise refuse(f"invalid request: unknown field {name!r}")
    for name in needed.split():
        if not body.get(name):
            raise refuse(f"invalid request: {name} is required")


def _one_of(body: Mapping[str, Any], name: str, allowed: str, refuse: Refuse) -> None:
    if body.get(name) is not None and body[name] not in allowed.split():
        raise refuse(f"invalid request: {name} must be one of {allowed}, not {body[name]!r}")


def _texts(given: Any, most: int, refuse: Refuse) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) and each.strip() for each in given):
        raise refuse("invalid request: texts must be strings that are not empty")
    if len(given) > most:
        raise refuse(f"invalid request: at most {most} texts, not {len(given)}")
    return given


def _fitting(texts: list[str], truncates: bool, refuse: Refuse) -> list[str]:
    if not truncates and any(count_tokens(each) > MAX_TEXT_TOKENS for each in texts):
        raise refuse("too many tokens: the input length exceeds the context length")
    return [
        " ".join(each.split()[:MAX_TEXT_TOKENS]) if len(each) > MAX_TEXT_TOKENS else each for each in texts
    ]


def _answered(body: Any, texts: list[str]) -> Answered:
    return Answered(body, "\n".join(texts).encode("utf-8", "surrogatepass"), sum(map(count_tokens, texts)))


def _in_openais_form(texts: list[str], dimensions: int, as_base64: bool) -> Answered:
    data = []
    for index, text in enumerate(texts):
        vector: Any = embed(text, dimensions)
        if as_base64:
            vector = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    usage = {"total_tokens": sum(map(count_tokens, texts))}
    return _answered({"object": "list", "data": data, "usage": usage}, texts)


def cohere(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """Cohere's `/embed`, version 2."""
    refuse = _by("message")
    known = (
        "model input_type texts images inputs max_tokens output_dimension embedding_types truncate priority"
    )
    _check(body, known, "model input_type texts", refuse)
    _one_of(body, "input_type", "search_document search_query classification clustering image", refuse)
    _one_of(body, "truncate", "NONE START END", refuse)
    texts = _fitting(_texts(body["texts"], 96, refuse), body.get("truncate", "END") != "NONE", refuse)
    vectors = [embed(text, body.get("output_dimension", DIMENSIONS)) for text in texts]
    meta = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": sum(map(count_tokens, texts))}}
    return _answered({"id": "1", "embeddings": {"float": vectors}, "texts": texts, "meta": meta}, texts)


def voyage(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """Voyage's `/embeddings`."""
    refuse = _by("detail")
    known = "input model input_type truncation output_dimension output_dtype encoding_format"
    _check(body, known, "input model", refuse)
    _one_of(body, "input_type", "query document", refuse)
    _one_of(body, "encoding_format", "base64", refuse)
    texts = _fitting(_texts(body["input"], 1_000, refuse), body.get("truncation", True), refuse)
    dimensions = body.get("output_dimension", DIMENSIONS)
    return _in_openais_form(texts, dimensions, body.get("encoding_format") == "base64")


def jina(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """Jina's `/embeddings`."""
    refuse = _by("detail", HTTPStatus.UNPROCESSABLE_ENTITY)
    known = "model input embedding_type task dimensions truncate late_chunking normalized return_multivector"
    _check(body, known, "input model", refuse)
    _one_of(body, "embedding_type", "float base64 binary ubinary", refuse)
    tasks = (
        "retrieval.query retrieval.passage text-matching classification separation code.query code.passage"
    )
    _one_of(body, "task", tasks, refuse)
    texts = _fitting(_texts(body["input"], 2_048, refuse), body.get("truncate", False), refuse)
    dimensions = body.get("dimensions", DIMENSIONS)
    return _in_openais_form(texts, dimensions, body.get("embedding_type") == "base64")


GEMINI_TASKS = """CLASSIFICATION CLUSTERING CODE_RETRIEVAL_QUERY FACT_VERIFICATION QUESTION_ANSWERING
RETRIEVAL_DOCUMENT RETRIEVAL_QUERY SEMANTIC_SIMILARITY"""


def gemini(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """Gemini's `batchEmbedContents`."""

    def refuse(message: str) -> Refused:
        return gemini_error(HTTPStatus.BAD_REQUEST, "INVALID_ARGUMENT", message)

    _check(body, "requests", "requests", refuse)
    if len(body["requests"]) > 100:
        raise refuse("* BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch")
    texts, vectors = [], []
    for each in body["requests"]:
        _check(each, "model content taskType title outputDimensionality", "model content", refuse)
        _one_of(each, "taskType", GEMINI_TASKS, refuse)
        if each["model"] != f"models/{model}":
            raise refuse("* BatchEmbedContentsRequest.requests: the model must be that of the batch")
        (text,) = _texts([part.get("text") for part in each["content"]["parts"]], 1, refuse)
        texts.append(text)
        vectors.append({"values": embed(text, each.get("outputDimensionality", DIMENSIONS))})
    return _answered({"embeddings": vectors}, texts)


def ollama(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
    """Ollama's `/api/embed`; like the real one it ignores fields that it does not know."""
    refuse = _by("error")
    if not body.get("model"):
        raise refuse("model is required")
    given = body.get("input")
    texts = _texts([given] if isinstance(given, str) else given, 4_096, refuse)
    texts = _fitting(texts, body.get("truncate", True), refuse)
    vectors = [embed(text, body.get("dimensions", DIMENSIONS)) for text in texts]
    count = sum(map(count_tokens, texts))
    return _answered({"model": body["model"], "embeddings": vectors, "prompt_eval_count": count}, texts)


# -- reranking -----------------------------------------------------------------------------------------------


def _ranked(query: str, documents: list[str], score: str) -> list[dict[str, Any]]:
    """The scores of documents, from 0 to 1, the best first, as services give them."""
    asked = embed(query, DIMENSIONS)
    found = []
    for index, document in enumerate(documents):
        cosine = sum(a * b for a, b in zip(asked, embed(document, DIMENSIONS), strict=True))
        found.append({"index": index, score: (1.0 + cosine) / 2})
    return sorted(found, key=lambda each: -float(each[score]))


def _reranks(
    known: str, documents: str, most: int, error: str, answer: Callable[[list[Any], int], Any], score: str
) -> Callable[[dict[str, Any], Mapping[str, str], str], Answered]:
    refuse = _by(error)

    def rerank(body: dict[str, Any], headers: Mapping[str, str], model: str) -> Answered:
        _check(body, f"query {documents} {known}", f"query {documents}", refuse)
        if "model" in known.split() and not body.get("model"):
            raise refuse("invalid request: model is required")
        texts = _texts(body[documents], most, refuse)
        tokens = count_tokens(body["query"]) * len(texts) + sum(map(count_tokens, texts))
        found = answer(_ranked(body["query"], texts, score), tokens)
        return Answered(found, "\n".join((body["query"], *texts)).encode("utf-8", "surrogatepass"), tokens)

    return rerank


def _of_jina(results: list[Any], tokens: int) -> Any:
    return {"model": "stand-in", "results": results, "usage": {"total_tokens": tokens}}


def _of_cohere(results: list[Any], tokens: int) -> Any:
    return {"id": "1", "results": results, "meta": {"billed_units": {"search_units": 1}}}


def _of_voyage(results: list[Any], tokens: int) -> Any:
    return {"object": "list", "data": results, "usage": {"total_tokens": tokens}}


VECTORS: Mapping[str, Callable[[dict[str, Any], Mapping[str, str], str], Answered]] = {
    "/cohere/v2/embed": cohere,
    "/voyage/v1/embeddings": voyage,
    "/jina/v1/embeddings": jina,
    ":batchEmbedContents": gemini,
    "/api/embed": ollama,
    "/cohere/v2/rerank": _reranks(
        "model top_n max_tokens_per_doc priority",
        "documents",
        1_000,
        "message",
        _of_cohere,
        "relevance_score",
    ),
    "/jina/v1/rerank": _reranks(
        "model top_n return_documents", "documents", 2_048, "detail", _of_jina, "relevance_score"
    ),
    "/voyage/v1/rerank": _reranks(
        "model top_k return_documents truncation", "documents", 1_000, "detail", _of_voyage, "relevance_score"
    ),
    "/tei/rerank": _reranks(
        "raw_scores return_text truncate truncation_direction",
        "texts",
        32,
        "error",
        lambda results, tokens: results,
        "score",
    ),
    "/v1/rerank": _reranks(
        "model top_n truncate_prompt_tokens priority mm_processor_kwargs",
        "documents",
        4_096,
        "error",
        _of_jina,
        "relevance_score",
    ),
}
"""By the end of a path."""
