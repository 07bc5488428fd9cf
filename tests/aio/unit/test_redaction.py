"""Keys are taken out of texts wherever they stand, texts without any stay as they are."""

from __future__ import annotations

import random
import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pillarbox.redaction import MASK, redacted, shown_address
from tests.search import examples

_LETTERS = string.ascii_letters + string.digits


def _key(seed: int, length: int, alphabet: str = _LETTERS) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=length))


SHAPES = {
    "OpenAI": lambda n: f"sk-proj-{_key(n, 48)}",
    "Anthropic": lambda n: f"sk-ant-api03-{_key(n, 24)}-{_key(n + 1, 20)}",
    "Stripe": lambda n: f"sk_live_{_key(n, 24)}",
    "AWS": lambda n: f"AKIA{_key(n, 16, string.ascii_uppercase + string.digits)}",
    "GitHub": lambda n: f"ghp_{_key(n, 36)}",
    "GitHub, fine-grained": lambda n: f"github_pat_{_key(n, 22)}_{_key(n + 1, 59)}",
    "GitLab": lambda n: f"glpat-{_key(n, 20)}",
    "Slack": lambda n: f"xoxb-{_key(n, 12, string.digits)}-{_key(n + 1, 24)}",
    "Google": lambda n: f"AIza{_key(n, 35)}",
    "Hugging Face": lambda n: f"hf_{_key(n, 34)}",
    "SendGrid": lambda n: f"SG.{_key(n, 22)}.{_key(n + 1, 43)}",
    "a web token": lambda n: f"eyJ{_key(n, 30)}.{_key(n + 1, 60)}.{_key(n + 2, 43)}",
    "a private key": lambda n: (
        f"-----BEGIN RSA PRIVATE KEY-----\n{_key(n, 64)}\n{_key(n + 1, 64)}\n-----END RSA PRIVATE KEY-----"
    ),
}
"""Keys as their services write them."""

PLACES = {
    "alone": "{}",
    "in words": "the service said: {} is not allowed",
    "in quotes": "401, message='no access for {!r}'",
    "query": "GET https://geo.example/v1?address=12 Main Street, Bath&key={}&n=1 failed",
    "relative": "Max retries exceeded with url: /geocode?key={}&address=1+Main+Street (Caused by x)",
    "user": "cannot connect to postgresql://me:{}@db.example:5432/people",
    "token for a user": "https://{}@git.example/x.git not found",
    "header": "{{'Authorization': 'Bearer {}', 'Accept': '*/*'}}",
    "raw header": "Authorization: Basic {}\r\nAccept: */*",
    "bearer": "sent bearer {} to the wrong place",
    "environment": "OPENAI_API_KEY={} python job.py",
    "json": '{{"password": "{}", "user": "me"}}',
    "json in json": '{{"body": "{{\\"client_secret\\": \\"{}\\"}}"}}',
    "keyword": "Client(api_key='{}', timeout=3)",
    "words": "aws_secret_access_key = {}",
    "dsn": "host=db password={} user=me",
}
"""Texts in which a key of any shape is taken out; the last ones also one of no shape at all."""

NO_SHAPE = [place for place in PLACES if place not in ("alone", "in words", "in quotes")]

WORDS = [
    *("the service said 503", "row 17 of 20", "key='id'", "max_tokens=100", "Row(id=3, text='a')", "what?"),
    *(
        "https://docs.example/errors#rate",
        "http://localhost:8080/v1/models",
        "task-1234567890",
        "disk-failure",
    ),
    *(
        "https://host/@user",
        "a@b.example",
        "is it? yes & no=1",
        "path='/data/x.csv'",
        "KeyError: 'name'",
        "\n",
    ),
    *(
        "no result within timeout=3 s",
        "tokens: 5",
        "eyJ",
        "sk-learn",
        "AKIA",
        "[::1]:80",
        "s3://bucket/x",
        "***",
    ),
]


@pytest.mark.contract
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_known_shape_of_a_key_is_left_in_a_text(shape: str, place: str) -> None:
    for seed in range(10):
        key = SHAPES[shape](seed)
        text = redacted(PLACES[place].format(key))
        assert MASK in text
        assert not [part for part in re.split(r"[-_.\s]", key) if len(part) >= 12 and part in text]


@pytest.mark.parametrize("place", NO_SHAPE)
def test_no_password_is_left_where_its_name_says_so(place: str) -> None:
    text = PLACES[place].format("Tr0ub4dor")
    assert "Tr0ub4dor" not in redacted(text)
    assert redacted(text).split()[0][:3] == text.split()[0][:3]


@pytest.mark.contract
def test_a_query_goes_with_the_values_in_it_that_nobody_has_escaped() -> None:
    text = "GET https://geo.example/v1?address=12 Main Street, Bath&key=k failed"
    assert redacted(text) == "GET https://geo.example/v1?*** failed"
    text = "GET 'https://geo.example/v1?address=3 O'Brien's Row&key=k' failed, 'n' & m=1"
    assert redacted(text) == "GET 'https://geo.example/v1?***' failed, 'n' & m=1"


@pytest.mark.contract
@pytest.mark.parametrize("text", [*WORDS[:-1], "\n".join(WORDS)])
def test_a_text_without_keys_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


PIECES = st.one_of(
    st.sampled_from([*WORDS, *(place.format("Tr0ub4dor") for place in PLACES.values())]),
    st.builds(lambda shape, seed: SHAPES[shape](seed), st.sampled_from([*SHAPES]), st.integers(0, 99)),
    st.sampled_from(
        [*"?&=:@/#.-_'\"\\,; \n", "://", "https://", "token", "secret", "Bearer ", "x", "12", MASK]
    ),
    st.text(max_size=8),
)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join))
@example("postgresql://me:pw@db.example:5432/peoplesk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD")
@example("postgresql://me:Tr0ub4dor@db.example:5432/people?0\r")
@example("\x1f://what?")
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
    st.sampled_from([*SHAPES]),
    st.sampled_from([*PLACES]),
    st.integers(0, 999),
    st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
)
def test_a_key_is_taken_out_whatever_stands_around_it(
    before: str, shape: str, place: str, seed: int, after: str
) -> None:
    key = SHAPES[shape](seed)
    assert key not in redacted(f"{before} {PLACES[place].format(key)} {after}")


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "https://a:b@c?d=e ",
            "?a= ",
            "?a=",
            "?a=b c & ",
            " c&",
            "key= ",
            "bearer ",
            "eyJ-",
            "token ",
            "://",
        ),
        *(
            "a://",
            "Authorization: ",
            "sk-",
            "https://h:x@",
            "-----BEGIN PRIVATE KEY-----",
            'password="',
            "\\",
        ),
    ],
)
def test_the_work_grows_no_faster_than_the_text(piece: str) -> None:
    # Nobody can count the steps of a pattern: what is quadratic takes minutes, and meets the time-out.
    text = piece * (1_000_000 // len(piece))
    assert len(redacted(text)) <= 2 * len(text)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://KEY:SECRET@bucket/path?session_token=TOKEN", "s3://***@bucket/path"),
        ("s3://KEY:SEC/RET@bucket/path", "s3://***@bucket/path"),
        ("s3://KEY:SEC@RET@bucket/path", "s3://***@bucket/path"),
        ("s3://KEY:SEC?RET@bucket/path", "s3://***"),
        ("s3://bucket/path?secret_key=a@b", "s3://***"),
        ("s3://KEY:SECRET", "s3://***"),
        ("s3:/KEY:SECRET@bucket", "s3:/***@bucket"),
        ("/folder/s3:/KEY:SECRET@bucket", "/folder/s3:/***@bucket"),
        ("redis://:pass@host:6379/0", "redis://***@host:6379/0"),
        ("hdfs://name:9000/path", "hdfs://name:9000/path"),
        ("s3://bucket/path", "s3://bucket/path"),
        ("file:///data/a@b/x?y", "file:///data/a@b/x?y"),
        ("/data/me@example/key=1", "/data/me@example/key=1"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(address: str, shown: str) -> None:
    assert shown_address(address) == shown
    assert shown_address(shown) == shown
