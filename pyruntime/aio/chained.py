"""Several functions in one task, one behind the other: their options, and what goes from one to the next.

Each function is an `AsyncWaitOperator` of the task's chain. What one gives goes on as `ChainedRow`s: the
record that the next function gets, and the row of the task's input that it comes from, with the places in
the results before. So whoever takes the results can say of each what it belongs to, and a ledger of a later
operator has a key that is the same when the task runs again, in whatever order calls finish. A row that
failed for good goes the same way, finished, so that it keeps its place.

`Step`, `resolve_stages`, `as_record` and `as_fields` are for any thread; a `ChainPlace` is confined to the
mailbox thread.
"""

# Alternatives, and why they are worse.
#
# One operator that calls the functions one after the other for a row: they share a window, a rate and a
# retry, and a row whose last call fails pays for the first ones again.
#
# To know a row of a later function by its own value: two equal inputs would get one answer, which a function
# need not give. By the source row alone: where the first function answers otherwise this time, the answer for
# another input would be taken. So its key is the source's identity and the places in the lists on the way,
# and the ledger compares the function's own input besides.
#
# To take a row that has failed out of the stream and put it back behind the last function: it would lose its
# place in the order. It takes an entry of each window on its way, finished.
#
# A function that was given alone is a list of one whose operator has no name (`ONLY_PLACE`): it takes the
# same way, and nothing is said of a name.

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed, CallTimeout, Failed, TooManyFailures, shorten
from pillarbox.aio.function import ResultConverter, check_function, gives_one_row
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.options import (
    Options,
    RowOptionNames,
    resolve_options,
)
from pillarbox.ledger import Ledger
from pillarbox.task.protocols import LeftOut, RowBatch
from pillarbox.validate import suggesting_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

C = TypeVar("C", bound=Call)


class Step:
    """Function of a chain with its own options: an element of the list that `async_map` takes.

    fn: as for `async_map` with this function alone; after another function it takes the rows that function
        returns.
    uid: the name of the operator in the chain, in `_error` and in a ledger; by default the function's name.
    options: an `Options` that replaces all options given beside the list. Options by name take precedence.
    The others: as for `async_map`.

        >>> from pillarbox import Step, async_map
        >>> async def fetch(number):
        ...     return number * 10
        >>> async def name(number):
        ...     return f"item {number}"
        >>> list(async_map([1, 2], [fetch, Step(name, capacity=2, retry=3)]))
        ['item 10', 'item 20']

    A value; any thread may use it. `async_map` raises TypeError or ValueError for a bad argument.
    """

    __slots__ = ("fn", "given", "options", "uid")

    @suggesting_options(Options, RowOptionNames)
    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        uid: str | None = None,
        options: Options | None = None,
        # From `Options`:
        **given: Unpack[RowOptionNames],
    ) -> None:
        self.given: dict[str, Any] = {**given}
        self.fn = fn
        self.uid = uid
        self.options = options

    def __repr__(self) -> str:
        return f"Step({shorten(self.fn)}, uid={self.uid!r})"


class Stage(NamedTuple):
    """A function as a task takes it, with its options.

    uid: its name among those of a list; None for a function that was given alone. ledger_session, convert: as
    `AsyncWaitOperator` says.
    """

    fn: Callable[..., Any]
    options: Options
    uid: str | None = None
    ledger_session: LedgerSession | None = None
    convert: ResultConverter | None = None

    @property
    def drops(self) -> bool:
        """True if nothing comes of a row that failed for good in this function."""
        return self.options.errors.mode == "drop"


def resolve_stages(fn: Any, options: Options | None, given: Mapping[str, Any]) -> list[Stage]:
    """The function, or those of a list, that `async_map` was given, each with its options. Any thread.

    options, given: those beside a list hold for each of its functions, but where its `Step` says otherwise.
    Raises TypeError or ValueError.
    """
    if not isinstance(fn, list | tuple):
        resolved = resolve_options(options, given)
        check_no_state(resolved)
        check_function(
            fn, in_batches=resolved.batch is not None, gets_endpoints=resolved.endpoints is not None
        )
        return [Stage(fn, resolved)]
    if not fn:
        raise ValueError("fn=[]: must hold one function at least")
    beside = given.get("ledger") or (options.ledger if isinstance(options, Options) else None)
    if getattr(beside, "uid", None) is not None:
        raise ValueError("uid: each function of a list has its own; give it there: Step(fn, uid='embed-v1')")
    stages = [_resolve_step(one if isinstance(one, Step) else Step(one), options, given) for one in fn]
    for stage in stages:
        check_no_state(stage.options)
    uids = [str(stage.uid) for stage in stages]
    twice = sorted({uid for uid in uids if uids.count(uid) > 1})
    if twice:
        raise ValueError(
            f"uid {', '.join(map(repr, twice))}: stands twice in the list; give each function a name of "
            "its own: Step(fn, uid='first')"
        )
    _check_together(stages)
    for stage in stages[1:]:
        if stage.options.batch is not None and stage.options.batch.arrow:
            raise ValueError(
                "batch: arrow=True is for the first function of a list, whose rows come as Arrow; "
                f"{stage.uid} gets what the function in front of it gives, of any types: leave arrow out, "
                "and it gets lists"
            )
    return stages


def check_no_state(options: Options) -> None:
    """Raise ValueError for an option of `async_stream`, which alone keeps its rows in a committed state."""
    if options.errors.bad_state is not None:
        raise ValueError(
            f"bad_state={shorten(options.errors.bad_state)}: is for async_stream, which keeps its rows in "
            "Spark's state store; leave it out"
        )


def _resolve_step(step: Step, options: Options | None, beside: Mapping[str, Any]) -> Stage:
    base, own = (options, {**beside, **step.given}) if step.options is None else (step.options, step.given)
    ledger = own["ledger"] if "ledger" in own else getattr(base, "ledger", None)
    uid = step.uid
    if isinstance(ledger, Ledger):
        uid = ledger.uid if uid is None else uid
        if uid is None:
            raise ValueError(
                f"uid=None: with a ledger each function of a list needs a name: Step({_name_of(step.fn)}, "
                "uid='embed-v1'); give another when the function changes, and its old results are not found"
            )
    if uid is not None and (not isinstance(uid, str) or not uid):
        raise TypeError(f"uid={uid!r}: must be a text that names the operator")
    if isinstance(ledger, Ledger):
        own = {**own, "ledger": dataclasses.replace(ledger, uid=uid)}
    resolved = resolve_options(base, own)
    if resolved.where is not None:
        raise ValueError("where: is for one function; with a list take the rows with df.where(...)")
    check_function(
        step.fn, in_batches=resolved.batch is not None, gets_endpoints=resolved.endpoints is not None
    )
    return Stage(step.fn, resolved, _name_of(step.fn) if uid is None else uid)


def _check_together(stages: Sequence[Stage]) -> None:
    modes = {stage.options.errors.mode for stage in stages}
    if {"null", "column"} <= modes:
        raise ValueError(
            "errors: one function has 'null', another 'column'; a failed row leaves the chain in one form, "
            "so give both the same"
        )
    found = {stage.options.ledger.key for stage in stages if stage.options.ledger is not None}
    if len(found) > 1:
        keys = ", ".join(sorted(map(repr, found)))
        raise ValueError(
            f"key: the functions have different ones ({keys}); it names columns of the input, by which a row "
            "is known in each of them: give it in the ledger beside the list"
        )


def form_of_failures(stages: Sequence[Stage]) -> str:
    """The form in which failed rows leave a chain: "column", "null", "drop" or "fail". Any thread."""
    forms = {stage.options.errors.mode for stage in stages}
    return next(form for form in ("column", "null", "drop", "fail") if form in forms)


def _name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


# -- what goes from one function to the next --------------------------------------------------------


class ChainedRow(NamedTuple):
    """A row on its way to a function behind another one. Any thread, if the rows allow it.

    row: what the function gets; a `Failed` for a row that has failed for good and is not called. source: the
    row of the task's input. ordinal: the places in the results of the functions in front, the first one's
    first. identity: that of the source, for a ledger; empty where nobody asks for it.
    """

    row: Any
    source: Any
    ordinal: tuple[int, ...]
    identity: bytes = b""


def chained_call(kind: type[C], row: ChainedRow, held: int) -> C:
    """The call, of the class `kind`, of a row that comes from another function."""
    call = kind(row.row, held)
    _, call.source, call.ordinal, call.identity = row
    return call


def chained_row(call: Call) -> ChainedRow:
    """The row of `call` as it came."""
    return ChainedRow(call.row, call.source, call.ordinal, call.identity)


class ChainPlace(NamedTuple):
    """The place of an operator among the functions of a task; by default the only one, without a name.

    drops: a row that failed for good here goes no further, and nobody puts it aside. identity: gives that of
    the source of a call of the first operator; None where no ledger behind asks for it. one_row: a list that
    the function gives is one row.
    """

    uid: str | None = None
    is_first: bool = True
    is_last: bool = True
    drops: bool = False
    identity: Callable[[Call], bytes] | None = None
    one_row: bool = False

    def pass_on(self, results: list[tuple[Call, Any]], held: int) -> RowBatch | None:
        """The batch that goes on of finished rows that hold so many bytes; None if nothing does."""
        failed = self._name_failures(results)
        if failed and self.drops:
            results = [
                pair for pair in results if type(pair[1]) is not Failed or pair[1].info.uid != self.uid
            ]
        if self.is_last:
            return RowBatch(results, held_bytes=held) if results else None
        rows = self._rows_of(results)
        if not rows:
            return None
        return RowBatch(rows, held // len(rows) if held else None, held_bytes=held)

    def _name_failures(self, results: list[tuple[Call, Any]]) -> bool:
        """Say of rows that failed here that they did; True if any of them has failed, here or before."""
        found = False
        for _, result in results:
            if type(result) is Failed:
                found = True
                if result.info.uid is None:
                    result.info = result.info._replace(uid=self.uid)
        return found

    def _rows_of(self, results: list[tuple[Call, Any]]) -> list[ChainedRow]:
        # spec: Chain!Emit
        rows: list[ChainedRow] = []
        append = rows.append
        is_first, identity_of = self.is_first, self.identity
        source: Any
        ordinal: tuple[int, ...]
        for call, result in results:
            if isinstance(result, LeftOut):
                append(ChainedRow(result, result, ()))
                continue
            if is_first:
                source, ordinal = call.row, ()
                identity = b"" if identity_of is None else identity_of(call)
            else:
                source, ordinal, identity = call.source, call.ordinal, call.identity
            kind = type(result)
            if kind is Failed:
                # Nobody calls it, and it keeps its place.
                append(ChainedRow(result, source, ordinal, identity))
            elif kind is list and not self.one_row:
                for place, each in enumerate(result):
                    append(ChainedRow(as_record(each), source, (*ordinal, place), identity))
            else:
                append(ChainedRow(as_record(result), source, (*ordinal, 0), identity))
        return rows

    def name_error(self, error: BaseException) -> None:
        """Have an error that ends the task say in which function it was raised."""
        failed = error.cause if isinstance(error, TooManyFailures) else error
        if self.uid is not None and isinstance(failed, CallFailed | CallTimeout):
            where = f"in {self.uid!r} of the chain"
            failed.detail = where if failed.detail is None else f"{where}; {failed.detail}"


ONLY_PLACE = ChainPlace()

Identify = Callable[[Any], tuple[bytes, bytes]]
"""Gives key and input of a row."""


def places_of(stages: Sequence[Stage], identify: Identify | None) -> list[ChainPlace]:
    """The places of the functions of a task, each behind the one in front.

    identify: that of the task's input. It is asked where the first function has no ledger and one behind it
    has one that knows rows by their places; a cache knows them by what its function gets.
    """
    identity: Callable[[Call], bytes] | None = None
    if any(stage.ledger_session is not None and stage.ledger_session.rows.is_behind for stage in stages[1:]):
        if stages[0].ledger_session is not None:
            identity = attrgetter("key")
        else:
            assert identify is not None
            identity = functools.partial(_identity, identify)
    return [
        # Whoever puts failed rows aside gets them with the results.
        ChainPlace(
            stage.uid,
            not place,
            place == len(stages) - 1,
            stage.drops and stage.options.errors.dead_letter is None,
            identity,
            gives_one_row(stage.fn),
        )
        for place, stage in enumerate(stages)
    ]


def _identity(identify: Identify, call: Call) -> bytes:
    return identify(call.row)[0]


class ResultRecord(tuple[Any, ...]):
    """The record that a function gets of a row with names: `record.text`, `record["text"]`, `record[0]`.

    It is made of a dict, a dataclass, a named tuple, a Row, or an object of attrs, Pydantic or msgspec, and
    reads as the records of a DataFrame do. A tuple of the values, which does not change.
    """

    __slots__ = ()

    _fields: tuple[str, ...] = ()
    _places: Mapping[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._places:
            raise AttributeError(f"no column {name!r}: the columns are {', '.join(self._fields)}")
        return tuple.__getitem__(self, self._places[name])

    def __getitem__(self, key: Any) -> Any:
        if type(key) is str:
            if key not in self._places:
                raise KeyError(f"{key!r}: the columns are {', '.join(self._fields)}")
            key = self._places[key]
        return tuple.__getitem__(self, key)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def asDict(self) -> dict[str, Any]:
        """All columns as a dict."""
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        parts = [f"{name}={shorten(value, 80)}" for name, value in zip(self._fields, self, strict=True)]
        return f"Record({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return record_of, (self._fields, tuple(self))


_OWN_NAMES = frozenset({"_fields", "_places", "asDict"})


@functools.lru_cache(maxsize=256)
def _record_class(names: tuple[str, ...]) -> type[ResultRecord]:
    """The class of the records of these columns, which reads them by properties."""

    def reader(place: int) -> property:
        return property(lambda record: tuple.__getitem__(record, place))

    columns: dict[str, Any] = {
        name: reader(place)
        for place, name in enumerate(names)
        if name not in _OWN_NAMES and not name.startswith("__")
    }
    own = {"_fields": names, "_places": {name: place for place, name in enumerate(names)}}
    return type("Record", (ResultRecord,), {"__slots__": (), "__module__": __name__, **columns, **own})


def record_of(names: tuple[str, ...], values: tuple[Any, ...]) -> ResultRecord:
    """The record of these values, by the names of their columns."""
    return _record_class(names)(values)


_BARE = frozenset({bool, bytes, float, int, str, tuple, type(None), ResultRecord})


def as_record(result: Any) -> Any:
    """A row that a function gave, as the next one gets it: a record where it has names, else unchanged."""
    kind = type(result)
    if kind in _BARE:
        return result
    if kind is dict:
        names = tuple(result)
        return _record_class(names)(result.values()) if all(type(name) is str for name in names) else result
    if isinstance(result, ResultRecord):
        return result
    fields = _fields_of(result)
    return result if fields is None else _record_class(tuple(fields))(fields.values())


def as_fields(result: Any) -> Any:
    """A result in the form in which a ledger keeps it for the next function: rows with names as dicts."""
    if type(result) is list:
        return [as_fields(each) for each in result]
    if type(result) in _BARE or type(result) is dict:
        return result
    fields = _fields_of(result)
    return result if fields is None else fields


def _fields_of(row: Any) -> dict[str, Any] | None:
    """The values of a row by their names; None for one without."""
    if isinstance(row, Mapping):
        return dict(row) if all(type(name) is str for name in row) else None
    if isinstance(row, tuple):
        fields = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
        return None if fields is None else dict(zip(fields, row, strict=True))
    if getattr(type(row), "__is_view__", False):
        return dict(zip(row.__names__, row, strict=True))
    names = field_names(row)
    if names is None:
        return None
    # Pydantic has what was given beyond its fields, where that is allowed, apart.
    extra = getattr(row, "__pydantic_extra__", None) or {}
    return {**{name: getattr(row, name) for name in names}, **extra}


def field_names(row: Any) -> tuple[str, ...] | None:
    """The names of the fields of an object that is a row; None for any other. Any thread.

    Known are objects of dataclasses, attrs, Pydantic and msgspec.
    """
    kind: Any = type(row)
    return _field_names(kind)


@functools.lru_cache(maxsize=256)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return tuple(attribute.name for attribute in attributes)
    # In Pydantic 1 that of the fields has the name that Spark's rows have for it.
    for name in ("__pydantic_fields__", "__fields__"):
        fields = getattr(kind, name, None)
        if isinstance(fields, dict):
            return tuple(fields)
    fields = getattr(kind, "__struct_fields__", None)
    return fields if isinstance(fields, tuple) else None
