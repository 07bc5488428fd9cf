"""Refused arguments of a Redis Streams source: each error names the argument, and none shows a password."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow as pa

from pillarbox.sources.connectors.redis_streams import DEFAULT, RedisAddress, RedisStreamSource, to_batch

SECRET = "correct-horse"
URL = f"redis://:{SECRET}@127.0.0.1:6379/0"


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"url": f"redis://host/{SECRET}"}, ValueError, "url: what follows the server"),
        (
            {"password_env": "NO_SUCH_VARIABLE"},
            ValueError,
            "password_env='NO_SUCH_VARIABLE': there is no such",
        ),
        ({"streams": None}, ValueError, "streams=None, pattern=None: give one of them"),
        ({"streams": None, "pattern": 5}, TypeError, "pattern=5: must be a str"),
        ({"pattern": "*"}, ValueError, r"pattern='\*': give one of them"),
        ({"streams": ["a", "a"]}, ValueError, "each must be named once"),
        ({"streams": [5]}, TypeError, "must be names"),
        ({"start": "noon"}, ValueError, "start='noon': must be 'earliest', 'latest' or an entry's id"),
        ({"on_data_loss": "warn"}, ValueError, "on_data_loss='warn': must be one of 'fail', 'ignore'"),
        ({"trim": 1}, TypeError, "trim=1: must be True or False"),
        (
            {"discovery_interval": 0},
            ValueError,
            "discovery_interval=0: must be a finite number",
        ),
        ({"bounded": True, "trim": True}, ValueError, "bounded=True: trim and start"),
        ({"schema": pa.schema([("_key", pa.string())])}, ValueError, "column '_key': must be _stream"),
        (
            {"schema": pa.schema([("_time", pa.int64())])},
            ValueError,
            "column '_time' is int64: must be a time",
        ),
        ({"schema": pa.schema([("a", pa.list_(pa.int8()))])}, ValueError, "column 'a' is list"),
    ],
)
def test_a_bad_argument_is_refused(given: dict[str, Any], error: type[Exception], says: str) -> None:
    arguments = {"url": URL, "streams": "a", **given}
    with pytest.raises(error, match=says) as raised:
        RedisStreamSource(**arguments)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"streams": "a"}, "option 'url' is missing"),
        (
            {"url": URL, "streams": "a", "start_at": "x"},
            "option 'start_at' is unknown; there are url, streams",
        ),
        ({"url": URL, "streams": "a", "bounded": "yes"}, "option 'bounded' is 'yes': must be true or false"),
        (
            {"url": URL, "streams": "a", "discovery_interval": "x"},
            "option 'discovery_interval' is 'x': must be a number",
        ),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        RedisStreamSource.from_options(options, None)
    assert SECRET not in str(raised.value)


def test_an_option_of_the_url_that_the_client_does_not_know_is_refused_before_it_connects() -> None:
    pytest.importorskip("redis", reason="the package redis is not installed")
    with pytest.raises(ValueError, match="url: .*'colour'"):
        RedisAddress(f"redis://:{SECRET}@127.0.0.1:1/0?colour={SECRET}").connect()


@pytest.mark.parametrize("entry_id", [b"9223372036854775808-0", b"9300000000000000-7"])
def test_an_id_that_is_no_time_is_named(entry_id: bytes) -> None:
    entries = [(b"1700000000000-0", [b"a", b"1"]), (entry_id, [b"a", b"1"])]
    schema = DEFAULT
    with pytest.raises(ValueError, match=f"stream 's', entry {entry_id.decode()}: .*_time"):
        to_batch("s", entries, schema)
    assert to_batch("s", entries, schema.remove(schema.get_field_index("_time"))).num_rows == 2
