"""Images and files in questions: what is sent in each language, what is refused, and where none of it stands.

Against the stand-in, which refuses what the services refuse and answers with the digests of what it received,
and against a service that quotes its requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import tracemalloc
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox import Buffer, CallFailed, Dedupe, Options, async_map
from pillarbox.clients import Chat, Http, Images, Language, Price, Secret
from pillarbox.clients.transport import HttpStatusError
from pillarbox.ledger import Ledger
from pillarbox.testing import StandInService, serve
from tests.clients.pictures import AVIF, GIF, HEIC, HEIF, JPEG, PDF, PNG, WEBP, fragments, picture, png, said
from tests.clients.raw_service import RawRequest, RawService, raw_answer
from tests.clients.spoken import SPOKEN
from tests.search import examples

DIRECT = Http(proxy="direct")
BACKENDS = ["aiohttp", *(["libcurl"] if find_spec("pycurl") else [])]
TYPES = (PNG, JPEG, GIF, WEBP, PDF)
each_language = pytest.mark.parametrize("language", SPOKEN)


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandInService]:
    with serve() as service:
        yield service


def chat(url: str, language: Any = "openai", **options: Any) -> Chat:
    base = {"prompt": "What is it? {text}", "http": DIRECT, "language": language, "images": ["photo"]}
    return Chat(url, "small", **{**base, **options})


def asked(client: Chat, *photos: Any, **options: Any) -> list[Any]:
    rows = [{"text": "It is red.", "photo": photo} for photo in photos]
    return list(
        async_map(rows, client, **({"errors": "column"} if "options" not in options else {}), **options)
    )


def error(client: Chat, photo: Any) -> str:
    (found,) = asked(client, photo)
    assert found.error is not None, found
    return f"{found.error.type}: {found.error.message}"


# -- what is sent --------------------------------------------------------------------------------------------


@pytest.mark.contract(
    "In every language the bytes of an image arrive as they are, under the type that they begin with.",
    convicts=["gif_is_a_png"],
)
@each_language
@pytest.mark.parametrize("kind", TYPES)
def test_an_image_arrives_as_it_is_under_its_own_type(
    stand_in: StandInService, language: str, kind: str
) -> None:
    contents = [picture(kind, number) for number in range(3)]
    if kind == GIF and language == "gemini":
        assert "is image/gif, which the service does not take" in error(
            chat(stand_in.url, language), contents[0]
        )
        return
    given = [contents[0], bytearray(contents[1]), memoryview(contents[2])]
    found = asked(chat(stand_in.url, language, system="Be brief."), *given)
    assert [each.result for each in found] == [said(kind, content) for content in contents]


@pytest.mark.contract(
    "HEIC and HEIF are sent where they are taken; elsewhere they, and AVIF, are refused, and others named.",
    convicts=["heic_is_taken_by_all"],
)
@each_language
@pytest.mark.parametrize("kind", [HEIC, HEIF, AVIF])
def test_newer_images_are_sent_where_they_are_taken(
    stand_in: StandInService, language: str, kind: str
) -> None:
    (found,) = asked(chat(stand_in.url, language), picture(kind))
    if language == "gemini" and kind != AVIF:
        assert found.result == said(kind, picture(kind))
        return
    says = f"'photo' is {kind}, which the service does not take, and was not sent; convert it to one of "
    assert says in found.error.message and "image/jpeg, image/png" in found.error.message


FOR_DETAIL = {
    ("openai", "low"): '"detail": "low"',
    ("openai", "auto"): '"detail": "auto"',
    ("responses", "high"): '"detail": "high"',
    ("gemini", "low"): '"generationConfig": {"mediaResolution": "MEDIA_RESOLUTION_LOW", "seed": 1}',
    ("gemini", "high"): '"generationConfig": {"mediaResolution": "MEDIA_RESOLUTION_HIGH", "seed": 1}',
}


@pytest.mark.contract(
    "How closely a model is to look at images is sent in each language that has it, and refused in another.",
    convicts=["detail_is_not_sent"],
)
@pytest.mark.parametrize(("language", "detail"), FOR_DETAIL)
def test_the_detail_of_images_is_sent(stand_in: StandInService, language: str, detail: Any) -> None:
    more = {"generationConfig": {"seed": 1}} if language == "gemini" else {}
    client = chat(stand_in.url, language, images=Images("photo", detail=detail), body=more)
    (found,) = asked(client, png(5))
    assert found.result == said(PNG, png(5))
    assert FOR_DETAIL[language, detail] in json.dumps(stand_in.requests[-1].body)
    asked(chat(stand_in.url, language, body=more), png(5))
    body = json.dumps(stand_in.requests[-1].body)
    assert '"detail"' not in body and "mediaResolution" not in body


def test_a_language_without_details_refuses_one() -> None:
    with pytest.raises(ValueError, match="detail='low': language='anthropic' has no such option; leave det"):
        chat("https://host", "anthropic", images=Images("photo", detail="low"))
    with pytest.raises(ValueError, match="detail='sharp': must be"):
        Images("photo", detail="sharp")  # type: ignore[arg-type]


@pytest.mark.contract(
    "A column may hold several images for a row, and several columns may: in their order.",
    convicts=["image_by_another_mark"],
)
@each_language
def test_images_are_sent_in_their_order_before_the_text(stand_in: StandInService, language: str) -> None:
    first, second, paper = png(1), picture(JPEG), picture(PDF)
    rows = [
        {"text": "x", "photo": [first, None, second], "paper": paper},
        {"text": "x", "photo": [], "paper": paper},
    ]
    client = chat(stand_in.url, language, images=Images(["photo", "paper"]))
    found = list(async_map(rows, client))
    papers = said(PDF, paper)
    assert found == [f"{said(PNG, first)} {said(JPEG, second)} {papers}", papers]
    body = json.dumps(stand_in.requests[-1].body)
    assert body.index("base64" if "base64" in body else "inlineData") < body.index("What is it?")


@pytest.mark.contract(
    "An address goes to the service as it is; a data URL is sent as the image that it holds."
)
@each_language
def test_an_address_is_passed_on_and_a_data_url_is_an_image(stand_in: StandInService, language: str) -> None:
    content = picture(JPEG, 7)
    data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    found = asked(chat(stand_in.url, language), "https://host/photo.png?sig=1", data)
    # What the data URL says of the type is not believed.
    assert [each.result for each in found] == ["url https://host/photo.png?sig=1", said(JPEG, content)]


@pytest.mark.contract("A row without an image is not asked, as with any other null.")
def test_a_null_is_no_question(stand_in: StandInService) -> None:
    before = stand_in.statistics().requests
    (found,) = asked(chat(stand_in.url), None)
    assert found.result is None and found.error is None
    assert stand_in.statistics().requests == before


MOOD = {
    "type": "object",
    "properties": {"mood": {"type": "string", "enum": ["good", "bad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}


@pytest.mark.contract(
    "In every language an answer of a type that does not fit is asked for again, with the image."
)
@each_language
def test_an_answer_is_repaired_with_the_image(language: str) -> None:
    spoken, content = SPOKEN[language], png(3)
    replies = iter(['{"mood": "odd"}', '{"mood": "good"}'])

    def answer(request: RawRequest) -> bytes:
        assert base64.b64encode(content) in request.body
        reply = spoken.reply(next(replies), spoken.good[0], None)
        return raw_answer(json.dumps(reply).encode(), "application/json")

    with RawService(answer) as service:
        client = chat(f"{service.url}/v1", language, answer=MOOD, repairs=1)
        (found,) = asked(client, content)
        assert found.result == {"mood": "good"}, found
        assert b"odd" in service.requests[1].body and len(service.requests) == 2


@pytest.mark.parametrize(
    ("language", "structure"),
    [
        (language, structure)
        for language in SPOKEN
        for structure in ("auto", "prompt", "tool" if language == "anthropic" else "json_object")
    ],
)
def test_a_typed_answer_about_an_image_passes_the_stand_in(
    stand_in: StandInService, language: str, structure: Any
) -> None:
    client = chat(stand_in.url, language, answer=MOOD, structure=structure)
    (found,) = asked(client, png())
    assert found.result is not None and found.result["mood"] in ("good", "bad"), found


@pytest.mark.contract("A signature of a language of the user's is one of the whole body, images included.")
def test_a_signed_request_is_signed_with_its_images(stand_in: StandInService) -> None:
    signed: list[bytes] = []

    class Signed(Language):
        name = "signed"

        def headers_of(self, url: str, body: bytes) -> Any:
            signed.append(body)
            return self.headers

    content = png(5)
    (found,) = asked(chat(stand_in.url, Signed()), content)
    assert found.result == said(PNG, content)
    assert base64.b64encode(content) in signed[0] and b"pillarbox-image" not in signed[0]


@pytest.mark.contract("What costs an image is counted by the service, as the text is.")
def test_the_tokens_of_an_image_are_in_the_usage(stand_in: StandInService) -> None:
    prices = {"small": Price(input=1_000_000.0, output=0.0)}
    costs = []
    for photos in ([], [png(1)]):
        results = async_map([{"text": "x", "photo": photos}], chat(stand_in.url, prices=prices))
        list(results)
        statistics = results.statistics()
        assert statistics is not None
        costs.append(statistics.cost)
    assert costs[1] - costs[0] == 258.0


# -- what is not sent ----------------------------------------------------------------------------------------

BAD: dict[str, tuple[Any, str]] = {
    "unknown": (
        b"\x00\x01secret-pixels" * 9,
        "'photo', of 135 bytes, does not begin like a PNG, JPEG, GIF, WebP or PDF",
    ),
    "an unknown one of several": (
        [png(), b"BM secret-pixels"],
        "'photo[1]', of 16 bytes, does not begin like",
    ),
    "empty": (b"", "'photo' is empty"),
    "large": (png(0, 1_400), "bytes, more than max_bytes=1,000, and was not sent"),
    "a large data URL": (
        "data:image/png;base64," + "secretpixels" * 200,
        "'photo' has 1,800 bytes, more than",
    ),
    "a damaged data URL": (
        "data:image/png;base64,secret=pixels",
        "'photo' is a data URL whose base64 is damaged",
    ),
    "another scheme": (
        "file:///secret-pixels",
        "begins with file:, and was not sent; the service takes https://",
    ),
    "base64 alone": (base64.b64encode(b"secret-pixels" * 40).decode(), "is a text, and no address"),
    "a line break": ("https://host/\r\nX-Secret-pixels: 1", "begins with https:"),
    "a number": (7, "ImageRefused: images: 'photo' is a int; must be binary, an address, or a list"),
}


@pytest.mark.contract(
    "An image that is empty, too large, of no known type or no address fails its row, in words, unsent.",
    convicts=["image_bound_is_of_all", "unknown_image_is_sent"],
)
@each_language
@pytest.mark.parametrize("case", BAD)
def test_what_is_no_image_is_the_error_of_its_row(
    stand_in: StandInService, language: str, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    photo, says = BAD[case]
    client = chat(stand_in.url, language, images=Images("photo", max_bytes=1_000))
    before = stand_in.statistics().requests
    bad, good = asked(client, photo, png(), retry=3)
    assert bad.error is not None and bad.error.attempts == 1
    told = f"{bad.error.type}: {bad.error.message}"
    assert says in told and "secret" not in told and "c2VjcmV0" not in told
    assert good.result == said(PNG, png())
    assert stand_in.statistics().requests == before + 1


@pytest.mark.contract("Addresses that a service does not take are refused before they are sent.")
def test_each_language_has_its_schemes(stand_in: StandInService) -> None:
    plain, bucket = "http://host/a.png", "gs://bucket/a.png"
    taken = {
        (language, url): asked(chat(stand_in.url, language), url)[0].error is None
        for language in SPOKEN
        for url in (plain, bucket)
    }
    assert {each for each, is_taken in taken.items() if is_taken} == {
        ("openai", plain),
        ("responses", plain),
        ("gemini", bucket),
    }


class NoFiles(Language):
    name = "no files"
    media_types = Language.media_types - {PDF}


@pytest.mark.contract("A file is refused in words where the service takes none.")
def test_a_pdf_is_refused_where_a_language_takes_none(stand_in: StandInService) -> None:
    says = error(chat(stand_in.url, NoFiles()), picture(PDF))
    assert "is application/pdf, which the service does not take" in says
    assert "image/gif, image/jpeg, image/png, image/webp" in says


@pytest.mark.parametrize(
    ("images", "kind", "says"),
    [
        (7, TypeError, "images: columns=7: must be the name of a column, or a list of names"),
        ([], TypeError, "images: columns=\\[\\]: must be"),
        (["a", 7], TypeError, "images: columns"),
        (["a", "a"], ValueError, "has a name twice"),
        (["text"], ValueError, "images=\\['text'\\]: text stands in the prompt too"),
    ],
)
def test_wrong_columns_of_images_are_refused_on_the_driver(
    images: Any, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        chat("https://host/v1", images=images)


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"tokens": 0}, {"max_bytes": True}])
def test_wrong_bounds_of_images_are_refused(options: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        Images("photo", **options)


# -- the stand-in refuses what services refuse ---------------------------------------------------------------


def url_part(url: str) -> Any:
    return {"type": "image_url", "image_url": {"url": url}}


ENCODED = base64.b64encode(png()).decode()


def block(kind: str, data: str, part: str = "image") -> Any:
    return {"type": part, "source": {"type": "base64", "media_type": kind, "data": data}}


def inline(kind: str, data: str) -> Any:
    return {"inlineData": {"mimeType": kind, "data": data}}


REFUSED: list[tuple[str, Any, str]] = [
    ("openai", url_part(f"data:image/bmp;base64,{ENCODED}"), "Invalid MIME type"),
    ("openai", url_part("data:image/png;base64,AAA"), "Invalid base64 image_url"),
    ("openai", url_part("data:image/png;base64,AAAAAAAA"), "You uploaded an unsupported image"),
    ("openai", url_part("ftp://host/a"), "Expected a base64-encoded data URL"),
    ("openai", {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}, "filename"),
    (
        "openai",
        {"type": "file", "file": {"filename": "f", "file_data": f"data:image/png;base64,{ENCODED}"}},
        "a PDF",
    ),
    ("openai", {"type": "input_text", "text": "x"}, "Invalid value: 'input_text'"),
    ("responses", url_part("https://host/a"), "Invalid value: 'image_url'"),
    ("responses", {"type": "input_image", "image_url": {"url": "https://host/a"}}, "Invalid type for"),
    (
        "responses",
        {"type": "input_image", "image_url": f"data:text/plain;base64,{ENCODED}"},
        "Invalid MIME type",
    ),
    ("responses", {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}, "filename"),
    ("anthropic", block("image/jpeg", ENCODED), "does not match the provided media type image/jpeg"),
    ("anthropic", block("application/pdf", ENCODED), "media_type: Input should be"),
    ("anthropic", block("image/png", ENCODED, "document"), "media_type: Input should be"),
    ("anthropic", block("image/png", "A*AA"), "invalid base64 data"),
    ("anthropic", block("image/png", "AAAA" * 3_000_000), "image exceeds 10 MB maximum"),
    ("anthropic", {"type": "image", "source": {"type": "url", "url": "http://host/a"}}, "Only HTTPS URLs"),
    ("anthropic", {"type": "image", "source": {"type": "url", "url": "https://h/a", "n": 1}}, "Extra inputs"),
    ("gemini", inline("image/gif", ENCODED), "Unsupported MIME type: image/gif"),
    ("gemini", inline("image/png", "AA-_"), "Base64 decoding failed"),
    ("gemini", inline("image/jpeg", ENCODED), "Unable to process input image"),
    ("gemini", inline("image/png", "AAAA" * 6_000_000), "payload size exceeds the limit"),
    ("gemini", {"fileData": {"fileUri": "http://host/a"}}, "unsupported file uri"),
    ("gemini", {"text": "x", "inlineData": {}}, "oneof field"),
]


def question(language: str, part: Any) -> tuple[str, dict[str, str], Any]:
    message = {"role": "user", "content": [part]}
    if language == "gemini":
        return "/models/small:generateContent", {}, {"contents": [{"role": "user", "parts": [part]}]}
    if language == "anthropic":
        version = {"anthropic-version": "2023-06-01"}
        return "/messages", version, {"model": "small", "max_tokens": 9, "messages": [message]}
    if language == "responses":
        return "/responses", {}, {"model": "small", "input": [message]}
    return "/chat/completions", {}, {"model": "small", "messages": [message]}


@pytest.mark.contract("The stand-in refuses images that the real service of a language refuses.")
@pytest.mark.parametrize(("language", "part", "says"), REFUSED, ids=[f"{n}-{s[:24]}" for n, _, s in REFUSED])
def test_the_stand_in_refuses_what_services_refuse(
    stand_in: StandInService, language: str, part: Any, says: str
) -> None:
    path, headers, body = question(language, part)
    request = Request(stand_in.url + path, json.dumps(body).encode(), headers, method="POST")
    with pytest.raises(HTTPError, match="400") as refused:
        urlopen(request)
    assert says in json.loads(refused.value.read())["error"]["message"]


# -- keys of a ledger ----------------------------------------------------------------------------------------

PICTURES = st.builds(lambda kind, number: picture(kind, number), st.sampled_from(TYPES), st.integers(0, 3))


@pytest.mark.contract(
    "For a ledger equal images are equal, and another image is another key; none of it is stored.",
    convicts=["image_not_in_the_key"],
)
@settings(max_examples=examples(30), deadline=None)
@given(photos=st.lists(PICTURES, min_size=2, max_size=5), again=st.lists(PICTURES, max_size=3))
def test_the_key_of_a_row_is_that_of_its_images(
    stand_in: StandInService,
    tmp_path_factory: pytest.TempPathFactory,
    photos: list[bytes],
    again: list[bytes],
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    ledger = Ledger(str(folder), uid="ask", cache=True)
    client, once = chat(stand_in.url), Dedupe(key=lambda row: row["photo"])
    known: set[bytes] = set()
    for job in (photos, again, [*photos, *again]):
        before = stand_in.statistics().requests
        found = asked(client, *job, options=Options(ledger=ledger, dedupe=once, errors="column"))
        assert [each.result for each in found] == [client_answer(each) for each in job]
        assert stand_in.statistics().requests - before == len({*job} - known)
        known.update(job)
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not any(each in kept for content in known for each in fragments(content))


def client_answer(content: bytes) -> str:
    kind = next(kind for kind in TYPES if content[:5] == picture(kind)[:5])
    return said(kind, content)


@pytest.mark.contract("The columns of images are part of the key of a cache; their bound is not.")
def test_what_of_images_is_part_of_a_configuration() -> None:
    plain = chat("https://host/v1", images=None).configuration
    assert "images" not in plain
    assert chat("https://host/v1").configuration == {**plain, "images": ["photo"]}
    bounded = chat("https://host/v1", images=Images("photo", max_bytes=5, tokens=7))
    assert bounded.configuration == chat("https://host/v1").configuration
    assert bounded.fields == ("text", "photo")
    closer = chat("https://host/v1", images=Images("photo", detail="high")).configuration
    assert closer == {**plain, "images": ["photo"], "detail": "high"}


# -- where no image stands -----------------------------------------------------------------------------------


def quoting(request: RawRequest) -> bytes:
    """A gateway that quotes the request that it refuses, also with escaped slashes."""
    quoted = request.body.decode()
    body = {"error": {"message": f"bad request {quoted}", "type": "invalid_request_error"}}
    return raw_answer(json.dumps(body).replace("/", "\\/").encode(), "application/json", status=400)


@pytest.mark.contract(
    "An answer about an image is what the service wrote, also where its field for an error is null.",
    convicts=["answers_cut_as_errors"],
)
def test_an_answer_with_an_error_that_is_null_is_left_as_it_is() -> None:
    text = "in C:\\/temp, \\d+\\/x: " + "A" * 20
    content = [{"type": "output_text", "text": text}]
    reply = {
        "id": "1",
        "object": "response",
        "status": "completed",
        "error": None,
        "model": "small",
        "output": [{"type": "message", "role": "assistant", "content": content}],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    }
    body = json.dumps(reply).encode()
    with RawService(lambda request: raw_answer(body, "application/json")) as service:
        (found,) = asked(chat(service.url, "responses"), b"\x89PNG\r\n\x1a\n" + bytes(64))
    assert found.result == text


@pytest.mark.contract(
    "An image is in no error and no log line, also where the service quotes its request or the row is shown.",
    convicts=["image_in_error", "image_in_row_of_error"],
)
@each_language
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_image_is_in_no_error(language: str, backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = "a-key-of-no-known-shape-7731"
    content = picture(JPEG, 9) + png(9, 400)
    with RawService(quoting) as service:
        http = Http(proxy="direct", backend=backend)
        client = chat(f"{service.url}/v1", language, key=Secret.literal(key), http=http)
        with pytest.raises(CallFailed) as found:
            list(async_map([{"text": "x", "photo": content}], client))
        with pytest.raises(CallFailed) as unknown:
            list(async_map([{"text": "x", "photo": content[3:]}], client))
        column = asked(client, content)
    cause = found.value.cause
    assert isinstance(cause, HttpStatusError) and b"[image]" in cause.body
    told = (
        f"{found.value!s}{found.value!r}{cause!r}{cause.__dict__!r}{column!r}{caplog.text}".encode()
        + cause.body
    )
    told += f"{unknown.value!s}{unknown.value!r}{client!r}".encode()
    assert b"bytes>" in told
    assert [each for each in fragments(content) if each in told] == []
    assert key.encode() not in told


@pytest.mark.contract(
    "A request with an image is in memory once, while it is sent: a retry holds no second one.",
    convicts=["failed_request_is_kept"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_retry_holds_one_request(backend: Any) -> None:
    content = png(0, 3_000_000)
    encoded = len(content) // 3 * 4
    held: list[int] = []
    spoken = SPOKEN["openai"]

    def answer(request: RawRequest) -> bytes:
        made = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/clients/images.py")])
        held.append(sum(each.size for each in made.statistics("filename")))
        if len(held) < 4:
            body, status = b'{"error": {"message": "busy"}}', 503
        else:
            body, status = json.dumps(spoken.reply("good", "stop", None)).encode(), 200
        # Bytes that are not HTTP are an error from within the transport.
        return raw_answer(body, "application/json", status=status) if len(held) != 2 else b"NONSENSE\r\n\r\n"

    tracemalloc.start()
    try:
        with RawService(answer) as service:
            http = Http(proxy="direct", backend=backend)
            (found,) = asked(chat(f"{service.url}/v1", http=http), content, retry=5)
        assert found.result == "good", found
    finally:
        tracemalloc.stop()
    assert len(held) == 4
    assert all(encoded <= size < 1.5 * encoded for size in held), (held, encoded)


class Large:
    """A function whose calls hold three megabytes each besides their row."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def request_bytes(self, row: object) -> int:
        return 3_000_000

    async def __call__(self, row: int) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1
        return row


@pytest.mark.contract(
    "`Buffer.max_bytes` counts what the requests of images take beside their rows.",
    convicts=["requests_not_weighed"],
)
@pytest.mark.parametrize("rows", [[*range(30)], (n for n in range(30))], ids=["list", "iterable"])
def test_the_bytes_of_requests_bound_the_calls_in_flight(rows: Any) -> None:
    large = Large()
    options = Options(capacity=20, buffer=Buffer(max_bytes=10_000_000))
    assert list(async_map(rows, large, options=options)) == [*range(30)]
    assert 3 <= large.most <= 4


def test_a_chat_says_how_much_a_request_takes() -> None:
    client = chat("https://host/v1")
    assert client.request_bytes is not None and chat("https://host/v1", images=None).request_bytes is None
    row = {"text": "x", "photo": [bytes(3_000), memoryview(bytes(300)), "https://host/a", None]}
    assert client.request_bytes(row) == 4_400
    # As async_udf gives them: what was decoded of Arrow is there besides.
    assert client.request_bytes("x", bytes(3_000)) == 7_000
    assert client.request_bytes({"text": "x", "photo": "data:image/png;base64," + "AAAA" * 100}) == 735
    assert client.request_bytes({"text": "x"}) == 0
    assert client.request_bytes({"text": "x", "photo": 7}) == 0
