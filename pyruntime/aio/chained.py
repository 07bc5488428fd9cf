"""Several functions in one task, one behind the other: their options, and the rows between them.

Each function is an `AsyncWaitOperator` of the task's chain. What one gives goes on as `ChainedRow`s: the
record that the next function gets, and the row of the task's input that it comes from, with the places in
the results before. So whoever takes the results can say of each what it belongs to, and a ledger of a later
operator has a key that is the same when the task runs again, in whatever order calls finish. A row that
failed for good goes the same way, finished, so that it keeps its place.

`resolve_chain` and `as_record` are for any thread; a `ChainPlace` is confined to the mailbox thread.
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
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import CallFailed, CallTimeout, Failed, TooManyFailures, shorten
from pillarbox.aio.function import check_function, gives_one_row
from pillarbox.aio.hedge import check_hedged
from pillarbox.aio.options import Options, resolve_options
from pillarbox.aio.row_fields import PLAIN_ROWS, fields_of_row
from pillarbox.aio.stages import Identify, Stage, Step, check_no_state
from pillarbox.ledger import Ledger
from pillarbox.task.protocols import LeftOut, RowBatch

C = TypeVar("C", bound=Call)


def resolve_chain(fns: Sequence[Any], options: Options | None, given: Mapping[str, Any]) -> list[Stage]:
    """The functions of a list, each with its options, as `resolve_stages` gives them."""
    if not fns:
        raise ValueError("fn=[]: must hold one function at least")
    beside = given.get("ledger") or (options.ledger if isinstance(options, Options) else None)
    if getattr(beside, "uid", None) is not None:
        raise ValueError("uid: each function of a list has its own; give it there: Step(fn, uid='embed-v1')")
    stages = [_resolve_step(one if isinstance(one, Step) else Step(one), options, given) for one in fns]
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
    check_hedged(step.fn, resolved.hedge)
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
    """The place of an operator among the functions of a task. A `Place`.

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

    def call_of(self, row: ChainedRow, held: int) -> Call:
        """The call of a row that the function in front gave."""
        return chained_call(Call, row, held)

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


_BARE = PLAIN_ROWS | {ResultRecord}


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
    fields = fields_of_row(result)
    return result if fields is None else _record_class(tuple(fields))(fields.values())
