"""Kinds of functions that a user may give: async, async generator, with a collector, blocking; resources.

For any thread, but for `enter_function` and what converts raw results, which are for that of the event loop.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from inspect import Parameter
from typing import Any, Protocol, get_origin

from pillarbox.aio.errors import OpenFailed, shorten
from pillarbox.kernel import Collector
from pillarbox.providers import COLLECTOR_RUNNER, check_provided
from pillarbox.redaction import DEFAULT


class ResultConverter(Protocol):
    """Makes of results the form in which they leave."""

    def convert(self, result: Any) -> Any:
        """The form in which `result` leaves; what it raises is the error of the attempt that gave it.

        What it gave once, it gives back as it is.
        """

    def convert_all(self, results: list[Any]) -> list[Any]:
        """The forms in which the results of a batch leave; raises what `convert` raises for one of them."""

    def rows_of(self, results: Any) -> list[Any] | None:
        """The converted results of a batch that are kept in one block, such as a matrix; None for others.

        Or what `elements_of` gives.
        """

    def elements_of(self, results: Any) -> list[Any] | None:
        """The results of a batch as they are, where a collection says of some that they are missing.

        With None in their places, where its own elements say otherwise. None for other collections.
        """


def check_function(fn: Any, *, in_batches: bool = False, gets_endpoints: bool = False) -> None:
    """Raise TypeError unless `fn` can be called, with lists of rows where `in_batches`.

    gets_endpoints: each call has an endpoint that `fn` is to use, not addresses of its own.
    """
    if isinstance(fn, list | tuple):
        raise TypeError(
            f"fn={shorten(fn)}: must be one function here; only `async_map` takes a list of several"
        )
    if isinstance(fn, type) or not callable(fn):
        raise TypeError(
            f"fn={shorten(fn)}: must be an async function, a function, or an object with __call__, "
            f"not {'a class' if isinstance(fn, type) else type(fn).__name__}"
        )
    if in_batches and is_async_generator(fn):
        raise TypeError(
            f"fn={shorten(fn)}: an async generator cannot be called with batches; make it an async function "
            "that returns a list with one result for each row"
        )
    if gets_endpoints and getattr(fn, "has_own_endpoints", False) is True:
        raise TypeError(
            f"endpoints: {type(fn).__name__} sends requests to its own addresses; give the Endpoints to it, "
            "in place of the address"
        )
    parse_of(fn)
    parameter = collector_parameter(fn)
    if parameter is None:
        return
    if is_async(fn) or is_async_generator(fn):
        raise TypeError(
            f"fn={shorten(fn)}: is async and takes a Collector ({parameter.name}); return the result and "
            "leave the Collector out, or make it a plain function"
        )
    if in_batches:
        raise TypeError(
            f"fn={shorten(fn)}: takes a Collector ({parameter.name}), which is for one row, and batch "
            "is given; leave batch out, or return the list of results"
        )
    check_provided(COLLECTOR_RUNNER, f"fn={shorten(fn)}: a Collector")


def _call_of(fn: Callable[..., Any]) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    # Looked up on the type, as a call does; without running a descriptor of the user's.
    return inspect.getattr_static(type(fn), "__call__", None)


def is_async(fn: Callable[..., Any]) -> bool:
    """Return True if `fn`, or the `__call__` of its type, is an async function: its calls run on the loop.

    A partial is what it calls.
    """
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(_call_of(fn))


def refuse_awaitable(name: str, result: Any) -> None:
    """Raise TypeError if `result`, which the plain function called `name` gave, would have to be awaited."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{name} is a plain function and returned an awaitable: "
            "make it `async def`, so that it runs on the event loop"
        )


def refuse_coroutine(name: str, result: Any) -> None:
    """Raise TypeError if `result`, which the async function called `name` gave, is a coroutine itself."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{name} returned the coroutine of {result.__qualname__}, which was not awaited: "
            f"write `return await {result.__name__}(...)`"
        )


def never_returns(fn: Any) -> bool:
    """Return True if no path through the function `fn` returns a value: a `return` is missing, or not meant.

    False for a function that only raises, for generators, and for what has no code of Python.
    """
    code = getattr(fn, "__code__", None) or getattr(_call_of(fn), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return False
    returned = []
    before: dis.Instruction | None = None
    for each in dis.get_instructions(code):
        if each.opname == "RETURN_CONST":
            returned.append(each.argval)
        elif each.opname == "RETURN_VALUE":
            is_constant = before is not None and before.opname == "LOAD_CONST"
            returned.append(before.argval if is_constant and before is not None else fn)
        before = each
    return bool(returned) and all(value is None for value in returned)


def is_async_generator(fn: Callable[..., Any]) -> bool:
    """Return True if `fn`, or the `__call__` of its type, is an async generator function."""
    return inspect.isasyncgenfunction(fn) or inspect.isasyncgenfunction(_call_of(fn))


def collector_parameter(fn: Callable[..., Any]) -> Parameter | None:
    """The parameter of `fn` that is annotated with `Collector`: the function brings its result by that.

    None for a function that returns its result. Raises TypeError if there are two of them, or none before it.
    """
    try:
        parameters = [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        # A function of C, for one, that does not say what it takes.
        return None
    found = [each for each in parameters if _is_collector(each.annotation)]
    if not found:
        return None
    if len(found) > 1 or found[0] is parameters[0]:
        raise TypeError(
            f"fn={shorten(fn)}: must take the row first and one Collector behind it, not "
            f"({', '.join(map(str, parameters))})"
        )
    return found[0]


def _is_collector(annotation: Any) -> bool:
    if isinstance(annotation, str):
        # By its name alone: a worker gets a function without the names that only annotations use.
        return annotation.strip("'\"").partition("[")[0].rpartition(".")[2] == Collector.__name__
    return annotation is Collector or get_origin(annotation) is Collector


def parse_of(fn: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """The method `parse` of a function object, which takes a raw result; None for any other function.

    Any thread. Raises TypeError for one that is not a plain method.
    """
    # A field of this name, such as that of `HttpLookup`, says something else.
    if not inspect.isfunction(inspect.getattr_static(type(fn), "parse", None)):
        return None
    parse: Any = fn.parse  # type: ignore[attr-defined]
    if is_async(parse) or is_async_generator(parse):
        raise TypeError(
            f"fn={shorten(fn)}: its method parse is async; it gets a result that is there and may wait for "
            "nothing: make it a plain method, or give it another name if it does not parse results"
        )
    return parse  # type: ignore[no-any-return]


def configuration_of(fn: Callable[..., Any]) -> Mapping[str, Any] | None:
    """The property `configuration` of a client: what decides about its results. None for other functions.

    Any thread.
    """
    if not isinstance(inspect.getattr_static(type(fn), "configuration", None), property):
        return None
    configuration: Mapping[str, Any] = fn.configuration  # type: ignore[attr-defined]
    return configuration


def gives_one_row(fn: Callable[..., Any]) -> bool:
    """Return True if a result of `fn` is one row, also where it is a list, as that of a client is."""
    return getattr(fn, "gives_one_row", False) is True


def request_bytes_of(fn: Callable[..., Any], *, spread: bool = False) -> Callable[[Any], int] | None:
    """Return the function of a row that gives the bytes that a call of `fn` holds besides it; None for few.

    A client says it that makes a large request of each row. spread: rows are tuples of arguments.
    """
    found: Callable[..., int] | None = getattr(fn, "request_bytes", None)
    if found is None or not callable(found):
        return None
    if spread:
        return lambda row: found(*row)
    return found


def is_resource(fn: Callable[..., Any]) -> bool:
    """Return True if `fn` is a context manager, asynchronous or plain."""
    return hasattr(type(fn), "__aenter__") or hasattr(type(fn), "__enter__")


async def enter_function(fn: Callable[..., Any], stack: AsyncExitStack) -> Callable[..., Any]:
    """Enter `fn` into `stack` if it is a context manager; returns what is to be called.

    That is what entering gave, or `fn` itself where that is not callable. On the loop's thread. Raises
    OpenFailed with what entering raised.
    """
    entered: Any
    method = "__aenter__" if hasattr(type(fn), "__aenter__") else "__enter__"
    try:
        if method == "__aenter__":
            entered = await stack.enter_async_context(fn)  # type: ignore[arg-type]
        elif hasattr(type(fn), "__enter__"):
            entered = stack.enter_context(fn)  # type: ignore[arg-type]
        else:
            return fn
    except Exception as error:
        raise OpenFailed(type(fn).__qualname__, method, error) from DEFAULT.sealed(error)
    # A client that gives nothing on entering is called itself.
    return entered if callable(entered) else fn


# -- raw results -----------------------------------------------------------------------------------

# A function object with a method `parse` gives raw results, such as the text of a model's answer. The ledger
# keeps these, and `parse` makes of each, a kept one too, the value that goes on. So a parser that has changed
# parses what is kept anew, without a call.
#
# Why not let the function parse, and the ledger keep values: what was paid for is the raw result, and a
# schema of answers changes more often than the question. Why a method and not an option beside `fn`: what
# parses belongs to what asks, as the same object has told the service which form it wants.


class Parsed:
    """A raw result, which the ledger keeps, and the value that leaves."""

    __slots__ = ("kept", "value")

    def __init__(self, kept: Any, value: Any) -> None:
        self.kept = kept
        self.value = value


def value_of(result: Any) -> Any:
    """The result as it leaves."""
    return result.value if type(result) is Parsed else result


class ParsingConverter:
    """Parses raw results before another converter, if any, brings them into the form in which they leave.

    keeps: give the raw result as well, as a `Parsed`, for a ledger. What `parse` raises is the error of the
    attempt, as what the converter behind it raises.
    """

    def __init__(self, parse: Callable[[Any], Any], behind: ResultConverter | None, *, keeps: bool) -> None:
        self._parse = parse
        self._behind = behind
        self._keeps = keeps

    def convert(self, result: Any) -> Any:
        """Parse a raw result."""
        if type(result) is Parsed:
            return result
        value = self._parse(result)
        if self._behind is not None:
            value = self._behind.convert(value)
        return Parsed(result, value) if self._keeps else value

    def convert_value(self, value: Any) -> Any:
        """The form in which a value leaves that was not parsed, such as one that stands for a time-out."""
        return value if self._behind is None else self._behind.convert(value)

    def convert_all(self, results: list[Any]) -> list[Any]:
        """Parse the raw results of a batch."""
        return [self.convert(result) for result in results]

    def rows_of(self, results: Any) -> list[Any] | None:
        """No block: raw results are parsed one by one."""
        return self.elements_of(results)

    def elements_of(self, results: Any) -> list[Any] | None:
        """The raw results of a batch, as the converter behind this one gives them."""
        return None if self._behind is None else self._behind.elements_of(results)


def with_parse(
    fn: Callable[..., Any], convert: ResultConverter | None, *, keeps: bool
) -> ResultConverter | None:
    """The converter of results of `fn`, with its `parse` before `convert` if it has one. Any thread.

    fn: as it was given, before it was entered. keeps: as `ParsingConverter` says.
    """
    parse = parse_of(fn)
    return convert if parse is None else ParsingConverter(parse, convert, keeps=keeps)
