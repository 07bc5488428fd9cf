"""When a service asks to be called again: `Retry-After` out of an error. Any thread."""

from __future__ import annotations

import random
import re
import time
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any

from pillarbox.aio.answer import answers

MAX_RETRY_AFTER = 300.0
"""Seconds: a service that asks for more is called again after these, if nobody says otherwise."""
MAX_OUTAGE_S = 600.0
"""Seconds for which an overloaded service is waited for, if nobody says otherwise."""
SPREAD = 0.1
"""The share of a delay that `somewhat_later` adds, at most."""

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{0,15})?")
_IN_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")


def retry_after_of(error: BaseException) -> float | None:
    """Seconds, 0 or more, after which the service asked to be called again; None where `error` says nothing.

    Read are `Retry-After` (RFC 9110, 10.2.3: seconds or an HTTP date) and, before it, `retry-after-ms` and
    `x-ms-retry-after-ms`, which say the same in milliseconds. A date is made a delay at once, against the
    `Date` of the same answer, so that a wrong clock on this machine does not matter; against this machine's
    clock where the answer has none. What cannot be read counts as nothing said. `RateLimit-Reset` and the
    like are not read: they are seconds with some services and a point in time with others.

    The errors are those that `status_of` knows. Any thread; raises nothing.
    """
    for answer in answers(error):
        delay = delay_of(answer.headers)
        if delay is not None:
            return delay
    return None


def bounded_retry_after(error: BaseException) -> float | None:
    """What `retry_after_of` gives, at most `MAX_RETRY_AFTER`: one bad header does not stop a job for days."""
    delay = retry_after_of(error)
    return None if delay is None else min(delay, MAX_RETRY_AFTER)


def somewhat_later(delay: float) -> float:
    """`delay` seconds or up to a tenth more, at random: rows sent away together come back one by one."""
    return delay * random.uniform(1.0, 1.0 + SPREAD)


def delay_of(headers: Any) -> float | None:
    """Seconds that these headers ask to wait for, or None; `headers` is any mapping, or None."""
    if headers is None:
        return None
    for name in _IN_MILLISECONDS:
        milliseconds = _number(_header(headers, name))
        if milliseconds is not None:
            return milliseconds / 1000.0
    text = _header(headers, "retry-after")
    if text is None:
        return None
    seconds = _number(text)
    return _seconds_until(text, headers) if seconds is None else seconds


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def _seconds_until(text: str, headers: Any) -> float | None:
    then = _moment(text)
    if then is None:
        return None
    now = _moment(_header(headers, "date"))
    return max(0.0, then - (time.time() if now is None else now))


def _moment(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
        # The old forms have no zone, or one that says nothing; an HTTP date is always in UTC.
        return (moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _header(headers: Any, name: str) -> str | None:
    # The headers of client libraries know no case, a plain dict does.
    try:
        value = headers.get(name)
        if value is None:
            value = next((each for key, each in headers.items() if str(key).lower() == name), None)
    except BaseException:
        return None
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return None if value is None else str(value).strip()
