"""The URL of a Redis: what is refused, and that nothing shows its passwords."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pillarbox.sources.connectors.redis_streams import RedisAddress

SECRET = "correct-horse"


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        (5, TypeError, "url: must be a str, not int"),
        (f"http://:{SECRET}@host", ValueError, "url: must begin with redis://"),
        ("redis://", ValueError, "and name a server"),
        (f"redis://:{SECRET}℀@host", ValueError, "url: cannot be read"),
        (f"redis://:1/{SECRET}@host/0", ValueError, "url: "),
        (f"redis://:x/{SECRET}@host/0", ValueError, "url: "),
        (f"redis://:{SECRET}/x@host/0", ValueError, "url: "),
        (f"redis://user:1/{SECRET}@host/0", ValueError, "url: write / [?] # @"),
        (f"redis://:{SECRET}?x@host/0", ValueError, "url: "),
        (f"redis://user?{SECRET}@host/0", ValueError, "url: write / [?] # @"),
        (f"redis://user#{SECRET}@host/0", ValueError, "url: write / [?] # @"),
        (f"redis://user:{SECRET}", ValueError, "url: the port must be a number"),
        (f"redis://host/{SECRET}", ValueError, "url: what follows the server"),
        (f"unix://:x/{SECRET}@/run/redis", ValueError, "url: write / [?] # @"),
    ],
)
def test_a_bad_url_is_refused_without_showing_the_password(
    url: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        RedisAddress(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://user:{SECRET}@host:1234/5", "Redis at host:1234/5"),
        ("redis://host", "Redis at host:6379"),
        (f"unix://user:{SECRET}@/run/redis.sock?password={SECRET}", "Redis at /run/redis.sock"),
    ],
)
def test_it_pickles_with_the_passwords_and_its_text_does_not_show_them(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_SECRET", SECRET)
    again = pickle.loads(pickle.dumps(RedisAddress(url, "REDIS_SECRET")))
    assert again == RedisAddress(url, "REDIS_SECRET")
    assert repr(again) == str(again) == shown


@pytest.mark.contract
@pytest.mark.parametrize(
    "arguments",
    [
        ("redis://:p%40ss@host",),
        ("redis://host/0?password=p%40ss",),
        ("rediss://host/0?ssl_password=p%40ss",),
        ("redis://host", "REDIS_SECRET"),
        # One is a part of the other.
        ("redis://:p@host?password=p%40ss",),
    ],
)
def test_an_error_does_not_show_a_password_in_any_form(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_SECRET", "p@ss")
    address = RedisAddress(*arguments)
    assert address.hide(ConnectionError("no: p@ss, p%40ss")) == "no: ***, ***"


def test_an_error_without_a_text_is_named() -> None:
    assert RedisAddress("redis://:secret@host").hide(TimeoutError()) == "TimeoutError"


def test_a_password_in_brackets_is_not_shown_whether_python_reads_it_or_not() -> None:
    # Python refuses such a URL since 3.11.4.
    url = f"redis://:[{SECRET}]@host"
    try:
        shown = repr(RedisAddress(url))
    except ValueError as refused:
        shown = str(refused)
        assert "url: cannot be read" in shown
    assert SECRET not in shown
