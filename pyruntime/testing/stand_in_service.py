"""A service that speaks OpenAI's language, on loopback, for examples and tests: embeddings, chat, look-ups.

`serve` starts one in this process; `python -m pillarbox.testing.openai` is one in a process of its own. A
real HTTP server, a thread for each connection. Any thread.
"""

from __future__ import annotations

import array
import base64
import json
import math
import re
import socket
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pillarbox.testing.stand_in_images import IMAGE_TOKENS, openai_content
from pillarbox.testing.stand_in_languages import (
    KEY_HEADERS,
    LANGUAGES,
    Refused,
    answer_of,
    images_in,
    key_refused,
    message_of,
)
from pillarbox.testing.stand_in_values import SchemaRefused, count_tokens, embed
from pillarbox.testing.stand_in_vectors import VECTORS
from pillarbox.validate import (
    check_int,
    check_number,
    check_positive_int,
    check_positive_number,
    check_text,
    suggesting_names,
)

HOST = "127.0.0.1"
DIMENSIONS = 256
MAX_TEXTS = 2048
"""Texts of one request for embeddings; OpenAI's own limit."""
KEPT_REQUESTS = 1_000
CLOSE_TIMEOUT_S = 10.0
PLANES_SEED = 12320
"""With which N14228 is the plane that it is."""
MAKERS = (("BOEING", "737-824", 149), ("AIRBUS", "A320-214", 182), ("EMBRAER", "EMB-145LR", 55))

OTHERS = {**LANGUAGES, **VECTORS}
"""Functions that answer in another form than OpenAI's, by the end of a path."""

_PLANE = re.compile(r"N[0-9][0-9A-Z]{0,4}")


class ServedRequest(NamedTuple):
    """A request that a service has taken: its method, its path, its headers in lower case, its JSON body."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class ServiceStatistics:
    """Counts of a stand-in service since its start, also `GET /v1/statistics` as JSON.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import HttpLookup
        >>> from pillarbox.testing import serve
        >>> with serve() as service:
        ...     plane = HttpLookup(f"{service.url}/planes/{{tailnum}}", take="tailnum")
        ...     planes = list(async_map([{"tailnum": "N14228"}, {"tailnum": "N14228"}], plane))
        ...     counts = service.statistics()
        >>> counts.answered, counts.repeated_inputs
        (2, 1)

    requests: received. answered: with success. refused: by a fault, 429 and 500. inputs: answered texts and
    questions, repetitions included. repeated_inputs: those that had been answered before, and so were paid
    for twice. tokens: of the answers, as in their `usage`. A value; any thread may use it.
    """

    requests: int
    answered: int
    refused: int
    inputs: int
    repeated_inputs: int
    tokens: int


class _Faults:
    """Decides what happens to each request. Thread-safe. By the request's bytes and how often they came.

    So a fault does not depend on the order in which requests come, and a request that is sent again may pass.
    """

    NAMES = ("status_500", "hang", "cut")

    def __init__(self, rate_429: float | None, seed: int, **shares: float) -> None:
        self._shares = shares
        self._seed = seed
        self._rate = rate_429
        self._lock = threading.Lock()
        self._times: Counter[int] = Counter()
        self._calls_left = max(1.0, rate_429 or 0.0)
        self._last = time.monotonic()

    def seconds_to_wait(self) -> float:
        """Return 0.0 for a request within the rate, else the seconds until one is."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            most = max(1.0, self._rate)
            self._calls_left = min(most, self._calls_left + (now - self._last) * self._rate)
            self._last = now
            if self._calls_left >= 1.0:
                self._calls_left -= 1.0
                return 0.0
            return (1.0 - self._calls_left) / self._rate

    def draw(self, request: bytes) -> str | None:
        """Return the fault of a request, or None."""
        if not any(self._shares.values()):
            return None
        known = zlib.crc32(request)
        with self._lock:
            self._times[known] += 1
            times = self._times[known]
        drawn = zlib.crc32(f"{self._seed} {known} {times}".encode()) / 2**32
        for name in self.NAMES:
            drawn -= self._shares[name]
            if drawn < 0:
                return name
        return None


class StandInService:
    """Service of embeddings, chat and look-ups on loopback. Any thread; a context manager.

        >>> from pillarbox.testing import serve
        >>> with serve() as service:
        ...     service.url.startswith("http://127.0.0.1:"), service.statistics().requests
        (True, 0)

    Made by `serve`. It begins at once, and ends by `close`, at the end of the `with` block, or with the
    process. `url` is its base URL, up to the version, as `Embeddings`, `Chat` and other clients of OpenAI's
    protocol take it. requests: the last 1,000 that it received, in order.
    """

    def __init__(self, faults: _Faults, port: int, dimensions: int, key: str | None, seconds: float) -> None:
        self.faults, self.dimensions, self.key, self.seconds = faults, dimensions, key, seconds
        self.requests: deque[ServedRequest] = deque(maxlen=KEPT_REQUESTS)
        self.ending = threading.Event()
        self.books = _Books()
        self._server = _Server(self, port)
        self.url = f"http://{HOST}:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, name="stand-in", daemon=True)
        self._thread.start()

    def statistics(self) -> ServiceStatistics:
        """Return the counts so far."""
        return self.books.statistics()

    def close(self) -> None:
        """End the service: its port is closed, and so are its connections."""
        if self.ending.is_set():
            return
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()
        self._thread.join(CLOSE_TIMEOUT_S)

    def wait(self) -> None:
        """Wait until the service is closed."""
        self.ending.wait()

    def __enter__(self) -> StandInService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}{' closed' if self.ending.is_set() else ''}>"


@suggesting_names
def serve(
    *,
    port: int = 0,
    dimensions: int = DIMENSIONS,
    key: str | None = None,
    rate_429: float | None = None,
    status_500: float = 0.0,
    hang: float = 0.0,
    slow: float = 0.0,
    cut: float = 0.0,
    seed: int = 0,
) -> StandInService:
    """Start a stand-in service of embeddings, chat and look-ups on loopback, and return it.

    For examples and tests, without a model: vectors and answers are made from the text by rules, the same
    each time. It runs in threads of this process until `close()`, the end of its `with` block, or the end of
    the process; Spark's workers on this machine reach it too.

        >>> from pillarbox import async_map
        >>> from pillarbox.clients import Embeddings
        >>> from pillarbox.testing import serve
        >>> with serve(dimensions=8) as service:
        ...     client = Embeddings(service.url, "any-model")
        ...     vectors = list(async_map(["a pillar box", "is red"], client, batch=client.batch))
        >>> [vector.shape for vector in vectors]
        [(8,), (8,)]

    port: 0 for a free one. dimensions: of vectors, unless a request has them. key: requests must have it as a
    bearer token. rate_429: requests per second; others are refused with 429 and `Retry-After`.
    status_500, hang, cut: shares of the requests, from 0 to 1, that fail with status 500, get no answer, or
    get half of one. slow: seconds that each answer takes. seed: selects other requests to fail.
    Raises TypeError and ValueError for arguments, OSError if the port is in use.

    The address `url` ends in `/v1`. Below it are `/embeddings`, `/chat/completions`, `/responses` and
    `/models` as in OpenAI's protocol, `/messages` as in Anthropic's and `/models/{model}:generateContent` as
    in Gemini's, and `/rerank` as in vLLM's, which refuse what these refuse (a question about images is
    answered with their types and SHA-256), `/planes/{tailnum}` (GET, JSON;
    404 unless it is a tail number such as N14228), `/planes/{tailnum}/owner` (text in ISO-8859-1), `/planes`
    (POST of one or more tail numbers), and `/statistics`. Beside it are `/cohere/v2`, `/voyage/v1` and
    `/jina/v1` with their embeddings and `/rerank`, `/tei/rerank`, and `/api/embed` of Ollama's.
    """
    check_int("port", port, 0, 65_535)
    check_positive_int("dimensions", dimensions)
    if key is not None:
        check_text("key", key)
    if rate_429 is not None:
        check_positive_number("rate_429", rate_429)
    shares = {"status_500": status_500, "hang": hang, "cut": cut}
    for name, share in shares.items():
        check_number(name, share, minimum=0.0, what="share from 0 to 1")
    if sum(shares.values()) > 1.0:
        raise ValueError(f"{shares}: shares of all requests, together at most 1")
    seconds = check_number("slow", slow, minimum=0.0, what="number of seconds")
    faults = _Faults(rate_429, check_int("seed", seed, 0), **shares)
    return StandInService(faults, port, dimensions, key, seconds)


class _Books:
    """Counts what a service has done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._known: set[bytes] = set()

    def add(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def answered(self, inputs: list[bytes], tokens: int) -> None:
        with self._lock:
            new = {*inputs} - self._known
            self._known |= new
            repeated = len(inputs) - len(new)
            self._counts.update(answered=1, inputs=len(inputs), repeated_inputs=repeated, tokens=tokens)

    def statistics(self) -> ServiceStatistics:
        with self._lock:
            return ServiceStatistics(
                **{name: self._counts[name] for name in ServiceStatistics.__dataclass_fields__}
            )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    # A job opens as many connections as it has calls in flight, at once.
    request_queue_size = 1024

    def __init__(self, service: StandInService, port: int) -> None:
        self.service = service
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        # Without the look-up of the host's name, which may take seconds where there is no name server.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        arguments = (request, client_address)
        thread = threading.Thread(target=self.process_request_thread, args=arguments, daemon=True)
        with self._lock:
            self._connections[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self._connections.pop(request, None)

    def close_connections(self) -> None:
        with self._lock:
            still_open = [*self._connections.items()]
        for each, _ in still_open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for _, thread in still_open:
            thread.join(CLOSE_TIMEOUT_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients close connections whenever they like; any other error is a defect, and is shown.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection, on a thread of its own."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        self._respond(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _respond(self, content: bytes) -> None:
        service = self.server.service
        path = urlsplit(self.path).path
        if not path.endswith("/statistics"):
            service.books.add(requests=1)
            if not self._passes_faults(service, content):
                return
        try:
            self._check_key(service, path)
            body = _json_of(content) if self.command == "POST" else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            if not path.endswith("/statistics"):
                service.requests.append(ServedRequest(self.command, self.path, headers, body))
            kind, found = _answer(service, self.command, path, body, headers)
        except Refused as refused:
            self._send(refused.status, _json(refused.body))
            return
        self._send(HTTPStatus.OK, found, kind)

    def _check_key(self, service: StandInService, path: str) -> None:
        header = next((name for end, name in KEY_HEADERS.items() if path.endswith(end)), None)
        if header is None:
            bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
            given = [bearer, self.headers.get("api-key")]
        else:
            given = [self.headers.get(header)]
        if service.key is not None and service.key not in given:
            raise key_refused(path)

    def _passes_faults(self, service: StandInService, content: bytes) -> bool:
        """Wait as long as the service is slow, and have the request's fault happen. False if it has one."""
        seconds = service.faults.seconds_to_wait()
        if seconds:
            service.books.add(refused=1)
            error = {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}
            after = {"Retry-After": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1e3))}
            self._send(HTTPStatus.TOO_MANY_REQUESTS, _json({"error": error}), headers=after)
            return False
        if service.seconds:
            service.ending.wait(service.seconds)
        fault = service.faults.draw(self.path.encode() + content)
        if fault is None:
            return True
        service.books.add(refused=1)
        if fault == "status_500":
            error = {"message": "The server had an error", "type": "server_error", "code": "server_error"}
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _json({"error": error}))
            return False
        self.close_connection = True
        if fault == "hang":
            # Until the client gives up, or the service ends.
            with suppress(OSError):
                while self.connection.recv(65_536):
                    pass
            return False
        self._send(HTTPStatus.OK, b'{"object": "list", "da', length=4_096)
        return False

    def _send(
        self,
        status: HTTPStatus,
        content: bytes,
        kind: str = "application/json",
        length: int | None = None,
        headers: Mapping[str, str] = {},
    ) -> None:
        # One write an answer: http.server would send the headers in one packet and the content in another.
        lines = [
            f"{self.protocol_version} {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(content) if length is None else length}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self.wfile.write("\r\n".join((*lines, "", "")).encode("latin-1") + content)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _json_of(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None


# -- answers -------------------------------------------------------------------------------------------------


def _answer(
    service: StandInService, method: str, path: str, body: object, headers: Mapping[str, str]
) -> tuple[str, bytes]:
    """The content type and the content of the answer to a request. Raises Refused."""
    at = unquote(path).removeprefix("/v1")
    if method == "POST":
        if not isinstance(body, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
        spoken = next((answer for end, answer in OTHERS.items() if unquote(path).endswith(end)), None)
        if spoken is not None:
            model = at.removeprefix("/models/").partition(":")[0]
            answered = spoken(body, headers, model)
            service.books.answered([answered.asked], answered.tokens)
            return "application/json", _json(answered.body)
        if at.endswith("/embeddings"):
            return "application/json", _embeddings(service, body)
        if at.endswith("/chat/completions"):
            return "application/json", _chat(service, body)
        if at == "/planes":
            asked = body.get("tailnum")
            names = asked if isinstance(asked, list) else [asked]
            planes = [_plane(each) for each in names]
            service.books.answered([str(each).encode() for each in names], 0)
            return "application/json", _json(planes if isinstance(asked, list) else planes[0])
    elif at == "/statistics":
        return "application/json", _json(service.statistics().__dict__)
    elif at in ("/models", "/health"):
        models = [{"id": "stand-in", "object": "model", "owned_by": "pillarbox"}]
        return "application/json", _json({"object": "list", "data": models})
    elif at.startswith("/planes/"):
        name, _, part = at.removeprefix("/planes/").partition("/")
        plane = _plane(name)
        if plane is not None and part in ("", "owner"):
            service.books.answered([at.encode()], 0)
            if part:
                return "text/plain; charset=ISO-8859-1", "Zoë, Øre".encode("latin-1")
            return "application/json", _json(plane)
        raise Refused(HTTPStatus.NOT_FOUND, f"no plane {name!r}: a tail number is such as N14228")
    known = (
        "POST /v1/embeddings, /v1/chat/completions, /v1/responses, /v1/messages, "
        "/v1/models/NAME:generateContent, /v1/planes; "
        "GET /v1/planes/N14228, /v1/models, /v1/statistics"
    )
    raise Refused(HTTPStatus.NOT_FOUND, f"no {method} {path} here; there are {known}")


def _plane(name: object) -> dict[str, Any] | None:
    """A plane by its tail number; None for what is none."""
    if not isinstance(name, str) or not _PLANE.fullmatch(name):
        return None
    drawn = zlib.crc32(name.encode(), PLANES_SEED)
    maker, model, seats = MAKERS[drawn % len(MAKERS)]
    return {
        "tailnum": name,
        "year": 1985 + drawn // 7 % 30,
        "manufacturer": maker,
        "model": model,
        "seats": seats,
    }


@lru_cache(maxsize=4_096)
def _vector(text: str, dimensions: int) -> array.array[float]:
    """A vector as float32."""
    return array.array("f", embed(text, dimensions))


def _base64(vector: array.array[float]) -> str:
    """The numbers with the little end first, as the protocol has them."""
    if sys.byteorder != "little":
        # The one that is given is kept for other requests.
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()


def _embeddings(service: StandInService, body: dict[str, Any]) -> bytes:
    given = body.get("input")
    texts: Any = [given] if isinstance(given, str) or _are_tokens(given) else given
    if not isinstance(texts, list) or not texts:
        raise Refused(HTTPStatus.BAD_REQUEST, "input: must be a text or a list of texts")
    if len(texts) > MAX_TEXTS:
        raise Refused(HTTPStatus.BAD_REQUEST, f"input: {len(texts)} texts, at most {MAX_TEXTS} are allowed")
    texts = [" ".join(map(str, each)) if _are_tokens(each) else each for each in texts]
    if not all(isinstance(each, str) and each for each in texts):
        raise Refused(HTTPStatus.BAD_REQUEST, "input: each text must be a string that is not empty")
    dimensions = body.get("dimensions", service.dimensions)
    if not isinstance(dimensions, int) or not 1 <= dimensions <= 65_536:
        raise Refused(HTTPStatus.BAD_REQUEST, f"dimensions={dimensions!r}: must be from 1 to 65,536")
    encoding = body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise Refused(HTTPStatus.BAD_REQUEST, f"encoding_format={encoding!r}: must be 'float' or 'base64'")
    data = []
    for at, text in enumerate(texts):
        vector = _vector(text, dimensions)
        value = _base64(vector) if encoding == "base64" else vector.tolist()
        data.append({"object": "embedding", "index": at, "embedding": value})
    tokens = sum(map(count_tokens, texts))
    service.books.answered([each.encode("utf-8", "surrogatepass") for each in texts], tokens)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _json({"object": "list", "data": data, "model": body.get("model"), "usage": usage})


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, int) for each in value)


def _chat(service: StandInService, body: dict[str, Any]) -> bytes:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages) or not messages:
        raise Refused(HTTPStatus.BAD_REQUEST, "messages: must be a list of objects with role and content")
    if body.get("stream"):
        raise Refused(HTTPStatus.BAD_REQUEST, "stream: the stand-in answers as a whole")
    messages = [_read(each) for each in messages]
    images = images_in(messages)
    form = body.get("response_format") or {"type": "text"}
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise Refused(HTTPStatus.BAD_REQUEST, f"response_format: {kind!r} is not supported")
    schema = form.get("json_schema", {}).get("schema") if kind == "json_schema" else form.get("schema")
    try:
        text = answer_of(messages, schema, kind != "text")
    except SchemaRefused as refused:
        raise Refused(HTTPStatus.BAD_REQUEST, f"response_format: {refused}") from None
    most = body.get("max_completion_tokens") or body.get("max_tokens") or math.inf
    asked, said = sum(count_tokens(str(each.get("content"))) for each in messages), count_tokens(text)
    asked += IMAGE_TOKENS * len(images)
    if said > most:
        text, said = " ".join(text.split()[: int(most)]), int(most)
        reason = "length"
    else:
        reason = "stop"
    inputs = [json.dumps(messages, sort_keys=True).encode()]
    service.books.answered(inputs, asked + said)
    message = {"role": "assistant", "content": text, "refusal": None}
    completion = {
        "id": f"chatcmpl-{zlib.crc32(inputs[0]):08x}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
    }
    return _json(completion)


def _read(message: dict[str, Any]) -> dict[str, Any]:
    """The message with descriptions in place of images. Raises Refused."""
    if not isinstance(message.get("content"), list):
        return message

    def refuse(said: str, code: str | None = None) -> Refused:
        return Refused(HTTPStatus.BAD_REQUEST, said, code)

    return message_of(str(message.get("role")), openai_content(message["content"], refuse))
