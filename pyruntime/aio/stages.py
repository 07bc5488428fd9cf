"""The functions of a task, each with its options: one that was given alone, or those of a list.

What goes from one function of a list to the next is in the ring `chains`. `Step` and `resolve_stages` are for
any thread, a `Place` is confined to the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pillarbox.aio.calls import Call
from pillarbox.aio.errors import shorten
from pillarbox.aio.function import ResultConverter, check_function
from pillarbox.aio.hedge import check_hedged
from pillarbox.aio.ledger_session import LedgerSession
from pillarbox.aio.options import (
    Options,
    RowOptionNames,
    resolve_options,
)
from pillarbox.providers import PLACES_OF_CHAIN, RESOLVE_CHAIN, provided
from pillarbox.task.protocols import RowBatch
from pillarbox.validate import suggesting_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    if isinstance(fn, list | tuple):
        stages: list[Stage] = provided(RESOLVE_CHAIN, "fn=[...]")(fn, options, given)
        return stages
    resolved = resolve_options(options, given)
    check_no_state(resolved)
    check_function(fn, in_batches=resolved.batch is not None, gets_endpoints=resolved.endpoints is not None)
    check_hedged(fn, resolved.hedge)
    return [Stage(fn, resolved)]


def check_no_state(options: Options) -> None:
    """Raise ValueError for an option of `async_stream`, which alone keeps its rows in a committed state."""
    if options.errors.bad_state is not None:
        raise ValueError(
            f"bad_state={shorten(options.errors.bad_state)}: is for async_stream, which keeps its rows in "
            "Spark's state store; leave it out"
        )


def form_of_failures(stages: Sequence[Stage]) -> str:
    """The form in which failed rows leave a chain: "column", "null", "drop" or "fail". Any thread."""
    forms = {stage.options.errors.mode for stage in stages}
    return next(form for form in ("column", "null", "drop", "fail") if form in forms)


class Place(Protocol):
    """The place of an operator among the functions of its task."""

    @property
    def uid(self) -> str | None:
        """The name of the function; None for one that was given alone."""

    @property
    def is_first(self) -> bool:
        """True if its rows are those of the task's input."""

    @property
    def is_last(self) -> bool:
        """True if its results are those of the task."""

    def call_of(self, row: Any, held: int) -> Call:
        """The call of a row that the function in front gave."""

    def pass_on(self, results: list[tuple[Call, Any]], held: int) -> RowBatch | None:
        """The batch that goes on of finished rows that hold so many bytes; None if nothing does."""

    def name_error(self, error: BaseException) -> None:
        """Have an error that ends the task say in which function it was raised."""


class OnlyPlace:
    """The place of a function that was given alone: all rows are of the input, and nothing is named."""

    uid: str | None = None
    is_first = True
    is_last = True

    def call_of(self, row: Any, held: int) -> Call:
        """See `Place`."""
        return Call(row, held)

    def pass_on(self, results: list[tuple[Call, Any]], held: int) -> RowBatch | None:
        """See `Place`."""
        return RowBatch(results, held_bytes=held)

    def name_error(self, error: BaseException) -> None:
        """See `Place`."""


ONLY_PLACE = OnlyPlace()

Identify = Callable[[Any], tuple[bytes, bytes]]
"""Gives key and input of a row."""


def places_of(stages: Sequence[Stage], identify: Identify | None) -> Sequence[Place]:
    """The places of the functions of a task. identify: that of its input, for ledgers of later functions."""
    if len(stages) == 1 and stages[0].uid is None:
        return [ONLY_PLACE]
    places: Sequence[Place] = provided(PLACES_OF_CHAIN, "fn=[...]")(stages, identify)
    return places
