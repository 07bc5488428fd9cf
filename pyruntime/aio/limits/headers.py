"""Reads what a service says of its limits in the headers of an answer. Pure; any thread.

`read_limits` knows the forms of OpenAI, of Anthropic, and those of the IETF's drafts.
"""

# Headers come from outside, and perhaps from a proxy in between. So only known names are read, of the first
# headers alone and of texts of bounded length; a number must be a plain one within bounds. What contradicts
# itself (more left than the limit), says "unlimited" by a negative number or 0, or lacks a part, is unknown:
# a limit that is not known is better than a wrong one, since refusals teach, too.
#
# A limit without a time is of no use: how much may be called in which time is not known then. The unit of
# a time differs: seconds, "6m0s", RFC 3339, or seconds since 1970, which are told apart by their form and
# size. Those that name a moment are compared with the `Date` of the same answer, so that a wrong clock on
# this machine does not matter.

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Annotated, Any, NamedTuple

from pillarbox.validate import Amount, Positive
from pillarbox.wire import causes_of

KINDS = ("requests", "tokens", "input-tokens", "output-tokens")
"""The things that limits count. "tokens" are those of input and output together."""

LimitKind = Annotated[str, KINDS, lambda value: value in KINDS]

MAX_HEADERS = 200
"""Headers that are looked at: an answer has a few dozens."""
MAX_VALUE_CHARACTERS = 1_000
"""Characters of a header's value; a longer one is not read."""
MAX_ITEMS = 16
"""Items of a structured header; of one with more nothing is read."""
MAX_AMOUNT = 1e12
"""Calls or tokens of a limit, at most: a larger one limits nothing."""
MAX_RESET_S = 32 * 86_400.0
"""Seconds until a quota is there again, at most: what takes longer than a month does not limit a rate."""
EPOCH_FROM_S = 1e9
"""From here on a number of seconds is a time since 1970."""
WHOLE_SECOND_S = 1.0
"""The resolution of times in whole seconds."""
FINE_S = 0.05
"""The resolution of finer ones, with what they take on their way."""


class LimitReading(NamedTuple):
    """One limit, as one answer says it.

    limit: in the whole window. remaining: left of it, from 0 to `limit`. reset: seconds until it is whole
    again; None where that is not said, and `window` is. resolution: seconds by which `reset` may be too
    short. window: seconds over which the limit holds; None where it is not said. partition: the name of the
    limit, where a service has several of a kind.

        >>> from pillarbox.aio.limits.headers import read_limits
        >>> said = {"ratelimit-limit": "60", "ratelimit-remaining": "0", "ratelimit-reset": "7"}
        >>> [limit] = read_limits(said)
        >>> limit.kind, limit.limit, limit.remaining, limit.reset
        ('requests', 60.0, 0.0, 7.0)
    """

    kind: LimitKind
    limit: Positive
    remaining: Amount
    reset: Amount | None
    resolution: Amount = WHOLE_SECOND_S
    window: Positive | None = None
    partition: str = ""


_AMOUNT = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
# Go's form of durations, of which OpenAI's headers have some.
_DURATION = re.compile(
    r"((?P<h>\d{1,6})h)?((?P<m>\d{1,6})m(?!s))?((?P<s>\d{1,9}(\.\d{1,9})?)s)?((?P<ms>\d{1,9}(\.\d{1,9})?)ms)?"
)
_NANOSECONDS = re.compile(r"(\.\d{6})\d+")
_DAYS = re.compile(r"(?P<d>\d{1,4})d(?P<rest>.*)")
# The item of a structured header (RFC 9651): a token or string, and parameters.
_ITEM = re.compile(r'\s*("[^"\\]{0,100}"|[A-Za-z*][^;,"\s]{0,100})\s*((;[^,"]*("[^"]*")?)*)\s*')
_PARAMETER = re.compile(r';\s*([a-z*][a-z0-9_.*-]*)\s*=\s*("[^"]*"|[^;"\s]+)')

_TRIPLES: tuple[tuple[LimitKind, str, str, str], ...] = (
    *(
        (kind, f"x-ratelimit-limit-{kind}", f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}")
        for kind in KINDS
    ),
    *(
        (
            kind,
            f"anthropic-ratelimit-{kind}-limit",
            f"anthropic-ratelimit-{kind}-remaining",
            f"anthropic-ratelimit-{kind}-reset",
        )
        for kind in KINDS
    ),
    ("requests", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
    ("requests", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
)
_WORD = "ratelimit"
LIMITS_WORD = _WORD.encode()
"""Part of the name of each header that names a limit, in lower case."""
_FIELD, _POLICY, _DATE = _WORD, "ratelimit-policy", "date"
_NAMES = frozenset({name for _, *names in _TRIPLES for name in names} | {_FIELD, _POLICY, _DATE})
_UNITS: dict[str, LimitKind] = {"requests": "requests", "tokens": "tokens"}


def read_limits(headers: object, now: float | None = None) -> tuple[LimitReading, ...]:
    """Return the limits that the headers of an answer name; an empty tuple where none is known for certain.

    headers: any mapping with `items()`, or None. now: seconds since 1970, by which moments become seconds
    where the answer has no `Date`; None to leave these unknown. Any thread; raises nothing.

        >>> from pillarbox.aio.limits.headers import read_limits
        >>> [limit] = read_limits(
        ...     {
        ...         "x-ratelimit-limit-tokens": "150000",
        ...         "x-ratelimit-remaining-tokens": "149984",
        ...         "x-ratelimit-reset-tokens": "6m0s",
        ...     }
        ... )
        >>> limit.kind, limit.remaining, limit.reset
        ('tokens', 149984.0, 360.0)
    """
    found = _known(headers)
    if not found:
        return ()
    date = _moment(found.get(_DATE, ""))
    now = now if date is None else date
    readings: dict[tuple[LimitKind, str], LimitReading] = {}
    for kind, limit, remaining, reset in _TRIPLES:
        if (kind, "") not in readings and remaining in found:
            said = found.get(limit), found[remaining], found.get(reset)
            reading = _of_three(kind, *said, now)
            if reading is not None:
                readings[kind, ""] = reading
    if _FIELD in found:
        for reading in _of_fields(found[_FIELD], found.get(_POLICY, "")):
            readings.setdefault((reading.kind, reading.partition), reading)
    return tuple(readings.values())


def headers_of(error: BaseException) -> Any:
    """Return the headers of the answer that `error` was raised for; None without any. Raises nothing."""
    for each, _ in causes_of(error):
        for path in (("headers",), ("response", "headers")):
            found: Any = each
            try:
                for name in path:
                    found = getattr(found, name, None)
            except Exception:
                # A property of a client's error may raise anything.
                continue
            if found is not None:
                return found
    return None


def _known(headers: Any) -> dict[str, str]:
    """The headers of known names, in lower case. One that comes twice, with two values, is none."""
    found: dict[str, str] = {}
    twice = set()
    try:
        if _WORD not in "\n".join(map(str, islice(headers, MAX_HEADERS))).lower():
            # As those of most answers.
            return {}
        for place, (name, value) in enumerate(headers.items()):
            if place >= MAX_HEADERS:
                break
            key = str(name).lower()
            if key not in _NAMES:
                continue
            text = (value.decode("latin-1") if isinstance(value, bytes) else str(value)).strip()
            if len(text) > MAX_VALUE_CHARACTERS or found.get(key, text) != text:
                twice.add(key)
            found[key] = text
    except Exception:
        # Whatever it is, it is not a mapping.
        return {}
    return {key: text for key, text in found.items() if key not in twice}


def _of_three(
    kind: LimitKind, limit: str | None, remaining: str | None, reset: str | None, now: float | None
) -> LimitReading | None:
    window = None
    if limit is not None and "," in limit:
        # An earlier draft: "100, 100;w=60".
        limit, _, policies = limit.partition(",")
        windows = {_amount(each) for each in re.findall(r"\bw=(\d+)", policies)}
        window = windows.pop() if len(windows) == 1 else None
    most, left = _amount(limit), _amount(remaining)
    seconds = None if reset is None else _seconds(reset, now)
    if most is None or left is None or not 0.0 < most <= MAX_AMOUNT or left > most:
        return None
    if seconds is None and not window:
        return None
    resolution = WHOLE_SECOND_S if reset is None or not _is_fine(reset) else FINE_S
    return LimitReading(kind, most, left, seconds, resolution, window or None)


def _of_fields(field: str, policy: str) -> list[LimitReading]:
    """The limits of `RateLimit`, whose quotas and windows `RateLimit-Policy` has."""
    policies = dict(_items(policy))
    readings = []
    for name, parameters in _items(field):
        quota = policies.get(name, {})
        unit = quota.get("qu", "requests")
        most, left = _amount(quota.get("q")), _amount(parameters.get("r"))
        window, reset = _amount(quota.get("w")), _amount(parameters.get("t"))
        if unit not in _UNITS or most is None or left is None or not 0.0 < most <= MAX_AMOUNT or left > most:
            continue
        if (reset is not None and reset > MAX_RESET_S) or (
            window is not None and not 0 < window <= MAX_RESET_S
        ):
            continue
        if reset is None and window is None:
            continue
        readings.append(LimitReading(_UNITS[unit], most, left, reset, WHOLE_SECOND_S, window, name))
    return readings


def _items(text: str) -> list[tuple[str, dict[str, str]]]:
    """The names and parameters of a list of structured items; nothing of one that is none."""
    items: list[tuple[str, dict[str, str]]] = []
    place = 0
    while place < len(text):
        match = _ITEM.match(text, place)
        if match is None or len(items) == MAX_ITEMS:
            return []
        parameters = {name: value.strip('"') for name, value in _PARAMETER.findall(match[2])}
        items.append((match[1].strip('"'), parameters))
        place = match.end()
        if place < len(text):
            if text[place] != ",":
                return []
            place += 1
    names = [name for name, _ in items]
    return items if len({*names}) == len(names) else []


def _amount(text: str | None) -> float | None:
    return float(text) if text is not None and _AMOUNT.fullmatch(text.strip()) else None


def _seconds(text: str, now: float | None) -> float | None:
    """Seconds from now until the time that a header says in any of its forms; None if it is none."""
    number = _amount(text)
    if number is not None and number >= EPOCH_FROM_S:
        seconds = None if now is None else number - now
    elif number is not None:
        seconds = number
    elif (duration := _duration(text)) is not None:
        seconds = duration
    else:
        moment = _moment(text)
        seconds = None if moment is None or now is None else moment - now
    # What is over by a little is over: the answer took its time.
    if seconds is None or not -WHOLE_SECOND_S <= seconds <= MAX_RESET_S:
        return None
    return max(0.0, seconds)


def _duration(text: str) -> float | None:
    days, rest = 0.0, text
    if (match := _DAYS.fullmatch(text)) is not None:
        days, rest = float(match["d"]), match["rest"]
    found = _DURATION.fullmatch(rest)
    if found is None or not text or not (rest or days):
        return None
    parts = (
        (86_400.0, days),
        (3600.0, found["h"]),
        (60.0, found["m"]),
        (1.0, found["s"]),
        (1e-3, found["ms"]),
    )
    return math.fsum(unit * float(part or 0.0) for unit, part in parts)


def _is_fine(text: str) -> bool:
    """True for a time that has more than whole seconds; those of a duration are rounded up as it seems."""
    return "." in text or "ms" in text


def _moment(text: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 time or an HTTP date; None if it is none."""
    if not text or len(text) > 64:
        return None
    try:
        if text[:1].isdigit():
            # Python 3.10 knows neither the letter for UTC nor nanoseconds.
            text = _NANOSECONDS.sub(r"\1", text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
            then = datetime.fromisoformat(text)
        else:
            then = parsedate_to_datetime(text)
        return (then if then.tzinfo is not None else then.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
