"""Input formats and iterables as sources: read by hand, or by a legacy source in its thread.

`read_split` and `read_input_format` run in the thread that iterates. The sources are called as every
`SourceFunction` is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from pillarbox.task.failures import suppress
from pillarbox.task.input_format import FormatContext, InputFormat, RichInputFormat
from pillarbox.task.legacy import CheckpointedSource, SourceContext, SourceFunction
from pillarbox.task.moments import check_callable

S = TypeVar("S")
T = TypeVar("T")

ALONE = FormatContext("reader")
"""The context of a reader that was given none: the only one there is."""


def read_split(format: InputFormat[S, T], split: S) -> Generator[T, None, None]:
    """The records of one split. Closes the format at the end, on an error, and when it is closed itself.

    Raises what the format raises; an error of `close` after another one is told by that one.
    """
    with _closed_by(format.close, "closing the split"):
        format.open(split)
        while not format.reached_end():
            record = format.next_record()
            if record is not None:
                yield record


def read_input_format(
    format: InputFormat[S, T],
    next_split: Callable[[], S | None],
    *,
    parameters: Mapping[str, Any] | None = None,
    context: FormatContext = ALONE,
) -> Iterator[T]:
    """The records of all splits that `next_split()` gives, until that gives None: a plain iterator.

    Without a thread and without a task. Raises as `read_split`, and TypeError at once for what is no format
    or not callable.
    """
    _check(format, next_split)
    return _read_input_format(format, next_split, {} if parameters is None else parameters, context)


def _read_input_format(
    format: InputFormat[S, T],
    next_split: Callable[[], S | None],
    parameters: Mapping[str, Any],
    context: FormatContext,
) -> Iterator[T]:
    with _opened(format, parameters, context):
        while (split := next_split()) is not None:
            yield from read_split(format, split)


class SplitPosition(NamedTuple):
    """Where an `InputFormatSource` stands in a checkpoint."""

    split: Any
    """The split that is being read; None between two."""
    records: int
    """Records of that split that were emitted."""
    provider: Any
    """What the provider's `snapshot_state` returned; None if it has none."""


class InputFormatSource(SourceFunction, Generic[S, T]):
    """Emits the records of the splits that `next_split()` gives, one after the other, until it gives None.

    A checkpoint holds the split that is being read and how many of its records are out. After a restore the
    split is opened again and as many records are read and dropped: so a format must give a split's records in
    the same order each time. Which splits follow is the provider's to say: one with `snapshot_state` and
    `restore_state`, such as `SplitList`, is called under the checkpoint lock and is part of the checkpoint;
    any other must know itself which splits are finished after a restore.

    A format that blocks in a call ends only when that returns. Raises TypeError for what is no format or not
    callable.
    """

    def __init__(
        self,
        format: InputFormat[S, T],
        next_split: Callable[[], S | None],
        *,
        parameters: Mapping[str, Any] | None = None,
        context: FormatContext = ALONE,
    ) -> None:
        _check(format, next_split)
        self._format = format
        self._provider = next_split
        self._parameters = {} if parameters is None else parameters
        self._context = context
        self._split: S | None = None
        self._records = 0
        self._cancelled = False

    def run(self, context: SourceContext) -> None:
        """Read. In the source's thread."""
        with _opened(self._format, self._parameters, self._context):
            while not self._cancelled:
                if self._split is None:
                    self._take_split(context)
                if self._split is None:
                    return
                self._read(self._split, context)

    def cancel(self) -> None:
        """End after the record that is being read. Any thread."""
        self._cancelled = True

    def snapshot_state(self) -> SplitPosition:
        """Where it stands. Under the checkpoint lock."""
        provider = self._provider
        state = provider.snapshot_state() if isinstance(provider, CheckpointedSource) else None
        return SplitPosition(self._split, self._records, state)

    def restore_state(self, state: SplitPosition) -> None:
        """Go on where `state` was taken. Before `run`. Raises ValueError for a provider that takes none."""
        split, records, provider_state = state
        if isinstance(self._provider, CheckpointedSource):
            self._provider.restore_state(provider_state)
        elif provider_state is not None:
            raise ValueError(
                f"state.provider={provider_state!r}: the provider {self._provider!r} cannot restore it"
            )
        self._split, self._records = split, records

    def _take_split(self, context: SourceContext) -> None:
        provider = self._provider
        if isinstance(provider, CheckpointedSource):
            with context.checkpoint_lock:
                self._split = provider()
        else:
            # It may ask another process, and no checkpoint should wait for that.
            self._split = provider()

    def _read(self, split: S, context: SourceContext) -> None:
        with closing(read_split(self._format, split)) as records:
            for record in islice(records, self._records, None):
                if self._cancelled:
                    return
                with context.checkpoint_lock:
                    context.collect(record)
                    self._records += 1
        with context.checkpoint_lock:
            self._split = None
            self._records = 0


class IterableSource(SourceFunction):
    """Emits the elements of an iterable. A checkpoint holds how many are out.

    After a restore so many are dropped: for that the iterable must give the same again; if it does not, take
    no checkpoints. One that blocks ends only when it returns. Raises TypeError for what is not iterable.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        if not isinstance(iterable, Iterable):
            raise TypeError(f"iterable={iterable!r}: must be iterable, not {type(iterable).__name__}")
        self._iterable = iterable
        self._records = 0
        self._cancelled = False

    def run(self, context: SourceContext) -> None:
        """Iterate. In the source's thread."""
        for record in islice(self._iterable, self._records, None):
            if self._cancelled:
                return
            with context.checkpoint_lock:
                context.collect(record)
                self._records += 1

    def cancel(self) -> None:
        """End after the element that is being asked for. Any thread."""
        self._cancelled = True

    def snapshot_state(self) -> int:
        """The elements emitted. Under the checkpoint lock."""
        return self._records

    def restore_state(self, state: int) -> None:
        """Begin after `state` elements. Before `run`."""
        self._records = state


def _check(format: object, next_split: object) -> None:
    if not isinstance(format, InputFormat):
        raise TypeError(f"format={format!r}: must be an InputFormat, not {type(format).__name__}")
    check_callable("next_split", next_split)


@contextmanager
def _opened(
    format: InputFormat[Any, Any], parameters: Mapping[str, Any], context: FormatContext
) -> Iterator[None]:
    format.configure(parameters)
    if not isinstance(format, RichInputFormat):
        yield
        return
    format.set_runtime_context(context)
    with _closed_by(format.close_input_format, "closing the format"):
        format.open_input_format()
        yield


@contextmanager
def _closed_by(close: Callable[[], None], step: str) -> Iterator[None]:
    """As `finally`, but the first error is the one that is raised."""
    try:
        yield
    except BaseException as error:
        try:
            close()
        except Exception as later:
            suppress(error, later, step)
        raise
    close()
