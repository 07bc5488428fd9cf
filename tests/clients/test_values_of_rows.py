"""Values of rows: all clients take the same, miss the same, and treat half characters alike."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pillarbox
from pillarbox import Outcome
from pillarbox.clients import Chat, Embeddings, Http, HttpLookup

DIRECT = Http(proxy="direct")
REPLACING = Http(proxy="direct", surrogates="replace")
HALF = "cut \ud83d"
WHOLE = "\ud83d\ude00"


class Service(BaseHTTPRequestHandler):
    """Answers with what it was sent: of texts their lengths, of a prompt the prompt, else path and body."""

    asked: list[Any]
    reply: bytes | None

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(sent.decode())
        self.server.asked.append(body)  # type: ignore[attr-defined]
        if self.path == "/embeddings":
            vectors = [[float(len(text)), 1.0] for text in body["input"]]
            data = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
            self.answer({"data": data, "usage": {"prompt_tokens": 1}})
        elif self.path == "/chat/completions":
            message = {"content": body["messages"][-1]["content"]}
            self.answer({"choices": [{"message": message, "finish_reason": "stop"}]})
        else:
            self.answer({"v": body})

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.answer({"v": unquote(self.path[1:])})

    def answer(self, found: Any) -> None:
        given = self.server.reply  # type: ignore[attr-defined]
        content = json.dumps(found).encode() if given is None else given
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *about: Any) -> None:
        pass


@contextmanager
def serving(reply: bytes | None = None) -> Iterator[tuple[str, list[Any]]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        server.asked, server.reply = [], reply  # type: ignore[attr-defined]
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", server.asked  # type: ignore[attr-defined]
        server.shutdown()


def outcomes(rows: Sequence[Any], client: Any, **options: Any) -> list[Outcome]:
    return [*pillarbox.async_map(rows, client, errors="column", **options)]


@pytest.mark.contract
@pytest.mark.parametrize(
    ("value", "text", "in_json"),
    [
        (np.int64(3), "3", 3),
        (np.uint8(3), "3", 3),
        (np.array(3), "3", 3),
        (np.float32(0.1), "0.1", 0.1),
        (np.float64(1.5), "1.5", 1.5),
        (np.float16(1.5), "1.5", 1.5),
        (np.longdouble(1.5), "1.5", 1.5),
        (np.bool_(True), "true", True),
        (np.str_("a b"), "a b", "a b"),
        (np.datetime64("2020-01-02"), "2020-01-02", "2020-01-02"),
        (np.datetime64("2020-01-02T03:04:05", "ns"), "2020-01-02T03:04:05", "2020-01-02T03:04:05"),
        (
            np.datetime64("2020-01-02T03:04:05.000000001"),
            "2020-01-02T03:04:05.000000001",
            "2020-01-02T03:04:05.000000001",
        ),
        (pd.Timestamp("2020-01-02"), "2020-01-02T00:00:00", "2020-01-02T00:00:00"),
        (pa.scalar(3), "3", 3),
        (pa.scalar("a"), "a", "a"),
        (decimal.Decimal("1.50"), "1.50", "1.50"),
        (datetime.date(2020, 1, 2), "2020-01-02", "2020-01-02"),
        (True, "true", True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scalars_of_numpy_pandas_and_arrow_are_sent_as_the_values_that_they_are(
    value: Any, text: str, in_json: Any
) -> None:
    with serving() as (url, _):
        rows = [{"x": value}]
        (by_path,) = outcomes(rows, HttpLookup(url + "/{x}", take="v", http=DIRECT))
        (by_body,) = outcomes(rows, HttpLookup(url, method="POST", body=["x"], take="v", http=DIRECT))
        (asked,) = outcomes(rows, Chat(url, "m", prompt="{x}", http=DIRECT))
        (alone,) = outcomes([value], HttpLookup(url + "/{x}", take="v", http=DIRECT))
    assert by_path == (text, None)
    assert by_body == ({"x": in_json}, None)
    assert asked == (text, None)
    assert alone == (text, None)


MISSING = [
    *(None, float("nan"), np.float32("nan"), np.float64("nan"), pd.NA, pd.NaT, np.datetime64("NaT", "s")),
    *(np.ma.masked, decimal.Decimal("NaN"), pa.scalar(None, pa.int64()), np.array(np.nan)),
]


@pytest.mark.contract
@pytest.mark.parametrize("value", MISSING, ids=lambda value: type(value).__name__)
def test_nothing_is_asked_for_a_missing_value_and_the_result_is_none(value: Any) -> None:
    with serving() as (url, asked):
        rows = [{"x": value}]
        embeddings = Embeddings(url, "m", http=DIRECT)
        for client in (
            HttpLookup(url + "/{x}", take="v", http=DIRECT),
            HttpLookup(url, method="POST", body=["x"], take="v", http=DIRECT),
            Chat(url, "m", prompt="{x}", http=DIRECT),
        ):
            assert outcomes(rows, client) == [(None, None)]
        assert outcomes([value], embeddings, batch=embeddings.batch) == [(None, None)]
        assert asked == []


@pytest.mark.contract
def test_what_is_missing_inside_of_a_value_is_null() -> None:
    value = {"list": [1, np.nan, pd.NA, np.int64(2)], "array": np.array([1.5, np.nan]), "row": {"a": pd.NaT}}
    with serving() as (url, _):
        (found,) = outcomes([{"x": value}], HttpLookup(url, method="POST", body=["x"], take="v", http=DIRECT))
    assert found.result == {"x": {"list": [1, None, None, 2], "array": [1.5, None], "row": {"a": None}}}


@pytest.mark.contract
@pytest.mark.parametrize(
    "row",
    [
        lambda frame: next(frame.itertuples(index=False)),
        lambda frame: frame.iloc[0],
        lambda frame: frame.to_dict("records")[0],
        lambda frame: frame.to_records(index=False)[0],
    ],
    ids=["tuple", "Series", "dict", "record"],
)
def test_rows_of_pandas_are_read_by_the_names_of_their_columns(row: Callable[[pd.DataFrame], Any]) -> None:
    frame = pd.DataFrame({"size": [7], "x": [1.5]})
    with serving() as (url, _):
        (found,) = outcomes([row(frame)], HttpLookup(url + "/{x}", take="v", http=DIRECT))
        (named,) = outcomes([row(frame)], Chat(url, "m", prompt="{size} {x}", http=DIRECT))
    assert found.result == "1.5"
    assert named.result in ("7 1.5", "7.0 1.5")


@pytest.mark.contract
@pytest.mark.parametrize("value", [np.timedelta64(1, "s"), np.complex64(1), b"a", object()])
def test_a_value_without_a_form_is_the_error_of_its_row(value: Any) -> None:
    with serving() as (url, asked):
        for client in (HttpLookup(url + "/{x}", http=DIRECT), Chat(url, "m", prompt="{x}", http=DIRECT)):
            (found,) = outcomes([{"x": value}], client)
            assert found.error is not None
            assert found.error.type == "TypeError"
        assert asked == []


# -- half characters -----------------------------------------------------------------------------------------


def clients(url: str, http: Http = DIRECT) -> list[Any]:
    return [
        HttpLookup(url + "/{x}", take="v", http=http),
        HttpLookup(url + "/", method="POST", body=["x"], take="v", http=http),
        HttpLookup(url + "/", method="POST", body=lambda row: [{row["x"]: row["x"]}], http=http),
        Chat(url, "m", prompt="{x}", http=http),
        Chat(url, "m", prompt="look", system=HALF, http=http),
    ]


@pytest.mark.contract
@pytest.mark.parametrize("number", range(4))
def test_half_a_character_in_a_row_is_its_error_in_all_clients_and_is_never_sent(number: int) -> None:
    with serving() as (url, asked):
        good, bad, last = outcomes(
            [{"x": "a"}, {"x": HALF}, {"x": WHOLE}], clients(url)[number], retry=3, capacity=1
        )
    assert good.error is None
    assert bad.error is not None
    assert (bad.error.type, bad.error.attempts) == ("HalfCharacter", 1)
    assert "half a character" in bad.error.message
    assert "Http(surrogates='replace')" in bad.error.message
    # Two halves beside each other are whole.
    assert last.error is None
    assert "\U0001f600" in str(last.result)
    assert len(asked) == 2


@pytest.mark.contract
@pytest.mark.parametrize("number", range(5))
def test_half_a_character_is_sent_as_the_replacement_character_where_that_is_asked_for(number: int) -> None:
    with serving() as (url, asked):
        (found,) = outcomes([{"x": HALF}], clients(url, REPLACING)[number])
    assert found.error is None
    assert "cut \ufffd" in unquote(json.dumps(asked, ensure_ascii=False))


@pytest.mark.contract
def test_half_a_character_in_a_text_is_the_error_of_its_row_and_not_of_its_batch() -> None:
    texts = ["a", HALF, None, WHOLE, float("nan"), np.str_("bc"), 5, pd.NA]
    with serving() as (url, asked):
        client = Embeddings(url, "m", http=DIRECT)
        found = outcomes(texts, client, batch=client.batch)
        assert [None if each.error is None else each.error.type for each in found] == [
            *(None, "HalfCharacter", None, None, None, None, "TypeError", None)
        ]
        lengths = [None if each.result is None else each.result[0] for each in found]
        assert lengths == [1.0, None, None, 1.0, None, 2.0, None, None]
        assert [body["input"] for body in asked] == [["a", "\U0001f600", "bc"]]
        replacing = Embeddings(url, "m", http=REPLACING)
        (replaced,) = outcomes([HALF], replacing, batch=replacing.batch)
        assert replaced.error is None
        assert asked[-1]["input"] == ["cut \ufffd"]


def by_hand(client: Any, *arguments: Any) -> Any:
    async def run() -> Any:
        async with client:
            found: Awaitable[Any] = client(*arguments)
            return await found

    return asyncio.run(run())


def test_half_a_character_by_hand_is_raised() -> None:
    with serving() as (url, asked):
        for given in (HALF, [HALF], [HALF, HALF]):
            with pytest.raises(ValueError, match="half a character"):
                by_hand(Embeddings(url, "m", http=DIRECT), given)
        assert asked == []


@pytest.mark.contract
@pytest.mark.parametrize("surrogates", ["error", "replace"])
@pytest.mark.parametrize(
    "reply", [rb'{"v": {"a": ["cut \ud83d"]}}', rb'{"v": {"cut \ud83d": 1}}', b'{"v": "cut \xed\xa0\xbd"}']
)
def test_half_a_character_in_an_answer_is_the_error_of_its_row_or_replaced(
    reply: bytes, surrogates: Any
) -> None:
    with serving(reply) as (url, _):
        (found,) = outcomes(
            [{"x": 1}], HttpLookup(url + "/{x}", http=Http(proxy="direct", surrogates=surrogates))
        )
    if surrogates == "replace":
        assert "cut \ufffd" in json.dumps(found.result, ensure_ascii=False)
    else:
        assert found.error is not None
        assert "the answer: has half a character" in found.error.message


@pytest.mark.contract
@pytest.mark.parametrize("surrogates", ["error", "replace"])
def test_half_a_character_in_a_reply_is_the_error_of_its_row_or_replaced(surrogates: Any) -> None:
    reply = rb'{"choices": [{"message": {"content": "cut \ud83d"}, "finish_reason": "stop"}]}'
    with serving(reply) as (url, _):
        (found,) = outcomes(
            [{"x": 1}], Chat(url, "m", prompt="{x}", http=Http(proxy="direct", surrogates=surrogates))
        )
    if surrogates == "replace":
        assert found == ("cut \ufffd", None)
    else:
        assert found.error is not None
        assert "the reply: has half a character" in found.error.message


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.contract
def test_half_a_character_in_an_answer_of_a_schema_does_not_fit_or_is_replaced() -> None:
    answer = json.dumps({"a": HALF + "!", "b": "\\ud83d", "c": WHOLE})
    message = {"message": {"content": answer}, "finish_reason": "stop"}
    with serving(json.dumps({"choices": [message]}).encode()) as (url, asked):
        chat = Chat(url, "m", prompt="{x}", answer=SCHEMA, repairs=1, http=DIRECT)
        (found,) = outcomes([{"x": 1}], chat)
        assert found.error is not None
        assert "the answer: has half a character" in found.error.message
        # The model is asked again for it.
        assert len(asked) == 2
        replacing = Chat(url, "m", prompt="{x}", answer=SCHEMA, http=REPLACING)
        (found,) = outcomes([{"x": 1}], replacing)
        assert found.result == {"a": "cut \ufffd!", "b": "\\ud83d", "c": "\U0001f600"}


def test_another_treatment_of_half_characters_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates='ignore': must be one of 'error', 'replace'"):
        Http(surrogates="ignore")  # type: ignore[arg-type]
