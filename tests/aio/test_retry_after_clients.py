"""The pauses read from the errors of real clients, called against a real service on loopback."""

from __future__ import annotations

import asyncio
import errno
import importlib
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from pillarbox import Retry, async_map
from pillarbox.wire import is_overload, is_permanent, is_unreached, retry_after_of, status_of
from tests.aio.answering import Reply, answering
from tests.aio.virtual import now, results_of

LATER = 7.0


def error_of(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")


def by_aiohttp(url: str) -> None:
    import aiohttp

    async def call() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url):
            pass

    asyncio.run(call())


def by_httpx(url: str) -> None:
    httpx = pytest.importorskip("httpx")
    httpx.get(url, trust_env=False).raise_for_status()


def by_requests(url: str) -> None:
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=30).raise_for_status()


def by_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(url, timeout=30)
    except urllib.error.HTTPError as error:
        error.close()
        raise


def by_openai(url: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        client.embeddings.create(model="none", input="x")


CLIENTS = (by_aiohttp, by_httpx, by_requests, by_urllib, by_openai)


@pytest.mark.contract("Retry-After is read from the errors of usual clients.")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [429, 503])
def test_seconds_are_read_from_the_error_of_a_client(client: Callable[[str], None], status: int) -> None:
    with answering(lambda path: Reply(status, {"Retry-After": "7"})) as url:
        error = error_of(lambda: client(url))
    assert status_of(error) == status
    assert retry_after_of(error) == LATER
    assert is_overload(error)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_date_is_read_from_the_error_of_a_client_whatever_the_clock_of_the_machine(
    client: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(path: str) -> Reply:
        now = int(time.time())
        dates = {"Date": formatdate(now, usegmt=True), "Retry-After": formatdate(now + LATER, usegmt=True)}
        return Reply(429, dates)

    with answering(reply) as url:
        error = error_of(lambda: client(url))
    monkeypatch.setattr("pillarbox.wire.time.time", lambda: 0.0)
    assert retry_after_of(error) == LATER


@pytest.mark.parametrize("client", CLIENTS)
def test_an_error_without_retry_after_asks_for_nothing(client: Callable[[str], None]) -> None:
    with answering(lambda path: Reply(500)) as url:
        error = error_of(lambda: client(url))
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (500, None, False)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_has_no_status_and_is_no_overload(client: Callable[[str], None]) -> None:
    with answering(lambda path: Reply()) as url:
        pass
    error = error_of(lambda: client(url))
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (None, None, False)


def test_milliseconds_come_before_seconds() -> None:
    with answering(lambda path: Reply(429, {"Retry-After": "7", "retry-after-ms": "6500"})) as url:
        error = error_of(lambda: by_openai(url))
    assert retry_after_of(error) == 6.5


def test_an_answer_that_the_predicate_rejects_is_read_as_an_error_would_be() -> None:
    httpx = pytest.importorskip("httpx")
    with answering(lambda path: Reply(503, {"Retry-After": "7"})) as url:
        response = httpx.get(url, trust_env=False)
    began: list[float] = []

    async def call(row: int) -> Any:
        began.append(now())
        return response

    retry = Retry(2, result=lambda each: each.status_code == 503, max_outage=0, jitter=False)
    (error,) = results_of([1], call, retry=retry, errors="column")
    assert (error.type, error.status, error.attempts) == ("ResultRejected", 503, 2)
    assert began == [0.0, LATER]


def by_botocore(url: str, service: str, operation: str, **arguments: Any) -> Exception:
    session = pytest.importorskip("botocore.session").Session()
    config = importlib.import_module("botocore.config").Config(
        retries={"total_max_attempts": 1}, proxies={"http": ""}
    )
    client = session.create_client(
        service,
        region_name="eu-central-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=config,
    )
    try:
        return error_of(lambda: getattr(client, operation)(**arguments))
    finally:
        client.close()


def test_the_errors_of_aws_are_read() -> None:
    throttled = Reply(
        400,
        {"Retry-After": "7"},
        '{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}',
        "application/x-amz-json-1.0",
    )
    with answering(lambda path: throttled) as url:
        error = by_botocore(url, "dynamodb", "list_tables")
    assert type(error).__name__ == "ProvisionedThroughputExceededException"
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (400, LATER, True)
    slow_down = Reply(503, {}, "<Error><Code>SlowDown</Code></Error>", "application/xml")
    with answering(lambda path: slow_down) as url:
        error = by_botocore(url, "s3", "get_object", Bucket="bucket", Key="key")
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (503, None, True)
    missing = Reply(404, {}, "<Error><Code>NoSuchKey</Code></Error>", "application/xml")
    with answering(lambda path: missing) as url:
        error = by_botocore(url, "s3", "get_object", Bucket="bucket", Key="key")
    assert (status_of(error), retry_after_of(error), is_overload(error)) == (404, None, False)


@pytest.mark.contract
def test_what_the_client_of_aws_takes_for_throttling_is_an_overload() -> None:
    exceptions = pytest.importorskip("botocore.exceptions")
    checker = importlib.import_module("botocore.retries.standard").ThrottledRetryableChecker
    # Of these the client of one resource waits for another one: the service has room.
    codes = {*checker._THROTTLED_ERROR_CODES} - {"TransactionInProgressException", "PriorRequestNotComplete"}
    assert len(codes) > 10
    for code in (*codes, "NoSuchKey", "TransactionInProgressException"):
        error = exceptions.ClientError({"Error": {"Code": code}}, "operation")
        assert is_overload(error) is (code in codes), code


def test_an_exhausted_resource_of_grpc_is_an_overload() -> None:
    grpc = pytest.importorskip("grpc")
    from concurrent.futures import ThreadPoolExecutor

    def refuse(request: bytes, context: Any) -> bytes:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if request == b"many" else grpc.StatusCode.NOT_FOUND
        context.abort(code, "no")
        return b""

    handler = grpc.method_handlers_generic_handler(
        "service", {"call": grpc.unary_unary_rpc_method_handler(refuse)}
    )
    server = grpc.server(ThreadPoolExecutor(1), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call = channel.unary_unary("/service/call")
        exhausted, missing = error_of(lambda: call(b"many")), error_of(lambda: call(b"one"))
    server.stop(None).wait(30)
    assert is_overload(exhausted)
    assert not is_overload(missing)
    assert status_of(exhausted) is None


QUOTA = Reply(
    429,
    body='{"error": {"message": "no credit", "type": "insufficient_quota", "code": "insufficient_quota"}}',
)


def calls_of(client: Callable[[str], None], reply: Reply) -> int:
    """The number of calls of a row by the default `Retry` where the service always answers `reply`."""
    calls = []

    def count(path: str) -> Reply:
        calls.append(path)
        return reply

    with answering(count) as url:
        # Skips where the client is not installed.
        error_of(lambda: client(url))
        calls.clear()
        # A plain function runs in a thread of its own: the client is as a user has it.
        outcome = [*async_map([1], lambda row: client(url), retry=Retry(initial=0.001), errors="column")]
    assert outcome[0].error is not None
    assert len(calls) == outcome[0].error.attempts
    return len(calls)


@pytest.mark.contract("The default Retry calls a row once that gets 400, 401, 403, 404 or 422.")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_permanent_refusal_is_called_once(client: Callable[[str], None], status: int) -> None:
    assert calls_of(client, Reply(status)) == 1


@pytest.mark.contract
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [408, 409, 500])
def test_what_time_may_mend_is_called_again(client: Callable[[str], None], status: int) -> None:
    assert calls_of(client, Reply(status)) == 3


@pytest.mark.contract("An account without credit is called once and is not an overload.")
# aiohttp and urllib raise before they have read the body.
@pytest.mark.parametrize("client", [by_httpx, by_requests, by_openai])
def test_an_account_without_credit_is_called_once_and_is_no_overload(client: Callable[[str], None]) -> None:
    assert calls_of(client, QUOTA) == 1
    with answering(lambda path: QUOTA) as url:
        error = error_of(lambda: client(url))
    assert (status_of(error), is_permanent(error), is_overload(error)) == (429, True, False)


def test_permanent_errors_of_aws_are_known_and_its_transient_ones() -> None:
    exceptions = pytest.importorskip("botocore.exceptions")

    def refused(code: str, status: int) -> Exception:
        answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
        error: Exception = exceptions.ClientError(answer, "operation")
        return error

    assert is_permanent(refused("AccessDeniedException", 400))
    assert is_permanent(refused("NoSuchKey", 404))
    checker = importlib.import_module("botocore.retries.standard").TransientRetryableChecker
    throttled = importlib.import_module("botocore.retries.standard").ThrottledRetryableChecker
    for code in (*checker._TRANSIENT_ERROR_CODES, *throttled._THROTTLED_ERROR_CODES):
        assert not is_permanent(refused(code, 400)), code
    assert not is_permanent(refused("InternalError", 500))


def by_asyncio(url: str) -> None:
    # Of two addresses: asyncio tells of both in words.
    asyncio.run(asyncio.open_connection("localhost", int(url.rpartition(":")[2]))).close()


def by_redis(url: str) -> None:
    redis = pytest.importorskip("redis")
    redis.Redis(port=int(url.rpartition(":")[2]), retry=None).ping()


def by_grpc(url: str) -> None:
    grpc = pytest.importorskip("grpc")
    with grpc.insecure_channel(url.removeprefix("http://")) as channel:
        channel.unary_unary("/no/such")(b"", timeout=30)


@pytest.mark.contract("A closed port is known by the errors of usual clients.")
@pytest.mark.parametrize("client", [*CLIENTS, by_asyncio, by_redis, by_grpc])
def test_a_closed_port_is_known_by_the_error_of_a_client(client: Callable[[str], None]) -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else takes it meanwhile.
        taken.bind(("127.0.0.1", 0))
        error = error_of(lambda: client(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert is_unreached(error), repr(error)
    assert not is_overload(error) and not is_permanent(error)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [400, 404, 429, 500, 501, 503])
def test_an_answer_is_not_taken_for_a_closed_port(client: Callable[[str], None], status: int) -> None:
    with answering(lambda path: Reply(status, {})) as url:
        assert not is_unreached(error_of(lambda: client(url)))


@pytest.mark.parametrize(
    ("error", "unreached"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (ConnectionResetError("Connection lost"), True),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (
            OSError("Multiple exceptions: [Errno 111] Connect failed, [Errno 111] Connect failed"),
            True,
        ),
        (OSError(errno.ENOENT, "No such file"), False),
        (OSError("broken"), False),
        (TimeoutError(), False),
        (asyncio.TimeoutError(), False),
        (ssl.SSLCertVerificationError("self-signed certificate"), False),
        (ValueError("[Errno 111] [Errno 111]"), False),
    ],
)
def test_errors_of_connections_are_told_from_others(error: Exception, unreached: bool) -> None:
    assert is_unreached(error) is unreached
    wrapped = RuntimeError("the client failed")
    wrapped.__cause__ = error
    assert is_unreached(wrapped) is unreached
    circle = RuntimeError("a circle")
    circle.__cause__ = circle
    assert not is_unreached(circle)
