"""Checks of arguments, for all packages: each error names the argument, its value and what is allowed.

Pure: any thread. Each returns the value that it accepts; for another it raises TypeError or ValueError.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import weakref
from collections.abc import Callable, MutableMapping
from typing import Annotated, Any, TypeVar, cast

C = TypeVar("C", bound=Callable[..., Any])
K = TypeVar("K", bound=type)

# Types of fields that come from elsewhere, each with the words for its values and the check of one.
Count = Annotated[int, "from 0 on", lambda value: value >= 0]
Amount = Annotated[float, "from 0 on", lambda value: value >= 0.0]
Positive = Annotated[float, "more than 0", lambda value: value > 0.0]

# Alternatives to plain functions: a validation library would cost every worker its import, and its errors
# tell of models and fields rather than of `capacity=0`; descriptors on the dataclasses would hide the order
# of the checks, which decides what a user with two mistakes is told first.


def check_bool(name: str, value: object) -> bool:
    """Accept True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be True or False, not {type(value).__name__}")
    return value


def check_int(name: str, value: object, minimum: int, maximum: int | None = None) -> int:
    """Accept an int from `minimum` on, up to `maximum` if that is given."""
    # True is an int of Python, and never one that a user means.
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: must be an int, not {type(value).__name__}")
    if value < minimum or (maximum is not None and value > maximum):
        allowed = f"at least {minimum:,}" if maximum is None else f"from {minimum:,} to {maximum:,}"
        raise ValueError(f"{name}={value!r}: must be {allowed}")
    return value


def check_positive_int(name: str, value: object) -> int:
    """Accept an int of at least 1."""
    return check_int(name, value, 1)


def check_number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    minimum: float = -math.inf,
    below: float = math.inf,
    what: str = "number",
    otherwise: str = "",
) -> float:
    """Accept a finite number above `above`, at least `minimum` and below `below`.

    what: the word for it in the errors. otherwise: what the caller accepts besides, such as " or None".
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r}: must be a {what}{otherwise}, not {type(value).__name__}")
    if not (math.isfinite(value) and above < value < below and value >= minimum):
        bounds = ((above, " above"), (minimum, ", at least"), (below, " and below"))
        allowed = "".join(f"{relation} {bound:g}" for bound, relation in bounds if math.isfinite(bound))
        raise ValueError(f"{name}={value!r}: must be a finite {what}{allowed}{otherwise}")
    return float(value)


def check_positive_number(name: str, value: object) -> float:
    """Accept a finite number above 0."""
    return check_number(name, value, above=0.0)


def check_moment(name: str, value: object) -> float:
    """Accept a moment: a finite number of seconds."""
    return check_number(name, value, what="number of seconds")


def check_duration(name: str, value: object, *, above_zero: bool = False) -> float:
    """Accept a finite number of seconds, at least 0 or above it."""
    if above_zero:
        return check_number(name, value, above=0.0, what="number of seconds")
    return check_number(name, value, minimum=0.0, what="number of seconds")


def check_limit_of_time(name: str, value: object) -> float | None:
    """Accept a finite number of seconds above 0, or None for no limit."""
    if value is None:
        return None
    return check_number(name, value, above=0.0, what="number of seconds", otherwise=" or None")


def check_choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Accept one of the texts `allowed`."""
    choices = ", ".join(map(repr, allowed))
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: must be one of {choices}, not {type(value).__name__}")
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {choices}")
    return value


def check_text(name: str, value: object) -> str:
    """Accept a str that is not empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: must be a str, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name}={value!r}: must not be empty")
    return value


def check_callable(name: str, value: object) -> None:
    """Accept a callable."""
    if not callable(value):
        raise TypeError(f"{name}={value!r}: must be callable, not {type(value).__name__}")


def check_function_or_none(name: str, value: object, what: str = "") -> None:
    """Accept None or a plain function, `what` it is of; what an async one returns would not be awaited."""
    if value is None:
        return
    if not callable(value):
        of = f" of {what}" if what else ""
        raise TypeError(f"{name}={value!r}: must be a function{of} or None, not {type(value).__name__}")
    # A call looks `__call__` up on the type, not on the object.
    for each in (value, inspect.getattr_static(type(value), "__call__", None)):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise TypeError(f"{name}={value!r}: must be a plain function, its answer cannot be awaited")


_methods_of_class: MutableMapping[type, set[tuple[str, ...]]] = weakref.WeakKeyDictionary()
"""Names of methods that were found in a class, none of them async."""


def check_methods(name: str, value: object, *methods: str) -> None:
    """Accept an object that has all these methods, none of them async: no answer of theirs is awaited."""
    kind = type(value)
    is_of_class = not any(each in methods for each in getattr(value, "__dict__", ()))
    if is_of_class and methods in _methods_of_class.get(kind, ()):
        # To look through the methods of an operator takes longer than a small task.
        return
    missing = [each for each in methods if not callable(getattr(value, each, None))]
    if missing:
        raise TypeError(f"{name}={value!r}: must have {', '.join(methods)}; it has no {', '.join(missing)}")
    for each in methods:
        check_function_or_none(f"{name}.{each}", getattr(value, each))
    if is_of_class and all(hasattr(kind, each) for each in methods):
        _methods_of_class.setdefault(kind, set()).add(methods)


_NAMES_ELSEWHERE = {
    "capacity": (
        *("concurrency", "max_concurrency", "max_concurrent", "max_workers", "workers", "parallelism"),
        *("max_in_flight", "in_flight", "semaphore", "limit", "num_proc", "n_jobs"),
    ),
    "retry": ("retries", "max_retries", "num_retries", "attempts", "max_attempts", "tries"),
    "rate": ("rate_limit", "rps", "qps", "rpm", "requests_per_second", "throttle"),
    "batch": ("batch_size", "batching", "chunk_size", "chunksize"),
    "errors": ("on_error", "error", "return_exceptions", "ignore_errors", "raise_on_error"),
    "timeout": ("deadline", "time_out", "timeout_s", "max_time"),
    "ordered": ("order", "in_order", "preserve_order", "sorted"),
    "ledger": ("checkpoint", "cache", "cache_dir"),
    "budget": ("max_cost", "max_calls"),
    "schema": ("returnType", "return_type", "output_schema", "result_type"),
    "attempts": ("retries", "max_retries", "num_retries", "max_attempts", "tries", "stop"),
    "per_second": ("rate", "rate_limit", "rps", "qps", "requests_per_second"),
    "size": ("rows", "batch_size", "chunk_size", "max_rows", "max_size"),
    "initial": ("backoff", "delay", "base", "wait", "pause"),
    "mode": ("on_error", "how"),
    "key": ("api_key", "apikey", "token", "auth", "bearer"),
    "base_url": ("url", "base", "api_base", "endpoint", "address"),
    "prompt": ("template", "question", "text"),
    "answer": ("response_format", "response_model", "output_type", "schema"),
    "http": ("timeout", "proxy", "verify", "session"),
    "total_timeout": ("timeout",),
    "most": ("maximum", "max", "max_capacity", "upper"),
    "least": ("minimum", "min", "min_capacity", "lower"),
    "uid": ("id", "name"),
}
_MEANT: dict[str, list[str]] = {}
for _ours, _names in _NAMES_ELSEWHERE.items():
    for _theirs in _names:
        _MEANT.setdefault(_theirs, []).append(_ours)


def suggesting_names(fn: C) -> C:
    """Decorate a function: an argument that it lacks is named in a TypeError, with the one that was meant.

    Its value is not: it may be a secret.
    """
    return _refusing_others(fn, {*inspect.signature(fn).parameters})


def suggesting_options(options: type, shown: Any = None) -> Callable[[C], C]:
    """Return a decorator like `suggesting_names` for a function that takes arguments of `options` as well.

    The function has them as keywords of any name. shown: a TypedDict of those that it takes, which its
    signature lists one by one with the defaults of `options`; None for all of them, which it does not list.
    """
    names = None if shown is None else shown.__optional_keys__
    taken = {
        name: each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(options).parameters.items()
        if name != "self" and (names is None or name in names)
    }

    def decorate(fn: C) -> C:
        signature = inspect.signature(fn)
        own = [
            each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        call = _refusing_others(fn, {each.name for each in own} | {*taken})
        if names is not None:
            call.__signature__ = signature.replace(parameters=[*own, *taken.values()])  # type: ignore[attr-defined]
        return call

    return decorate


def _refusing_others(fn: C, known: set[str]) -> C:
    @functools.wraps(fn)
    def call(*arguments: object, **named: object) -> Any:
        if not named.keys() <= known:
            name = next(each for each in named if each not in known)
            raise TypeError(unknown_name(fn.__qualname__.removesuffix(".__init__"), name, known))
        return fn(*arguments, **named)

    return cast("C", call)


def naming_arguments(cls: K) -> K:
    """Decorate a class: an argument that it lacks is named in a TypeError, with the one that was meant."""
    initialize = cls.__init__  # type: ignore[misc]
    cls.__init__ = suggesting_names(initialize)  # type: ignore[misc]
    return cls


def unknown_name(function: str, name: str, known: set[str]) -> str:
    """Return the error of an argument that a function lacks, with the one that was meant, if one is near."""
    # By the name that other libraries have for it first.
    meant = next((each for each in _MEANT.get(name, ()) if each in known), None)
    if meant is None:
        meant = next(iter(difflib.get_close_matches(name, known, n=1)), None)
    if meant is not None:
        return f"{function}: there is no argument {name!r}; did you mean {meant!r}?"
    allowed = ", ".join(sorted(known - {"self"}))
    return f"{function}: there is no argument {name!r}; there are {allowed}"
