"""Steps that must all be done, whatever some of them raise: the first error wins, the others go with it.

Confined to the thread that runs the steps.
"""

# Why not `ExceptionGroup`: whoever catches the error of a task catches the class that the user's function
# has raised. A group would have to be taken apart by everybody, and it does not exist in Python 3.10.

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

INTERRUPTS = (KeyboardInterrupt, SystemExit)


class Failures:
    """Collects the errors of steps. The first is kept; each later one becomes a note of it.

    A KeyboardInterrupt or SystemExit is kept instead of an error that came first, which becomes its cause:
    whoever wants the process to end must not be kept from it.

    Python 3.10 has no notes: there the later errors are in the `__context__` of the first, as they are
    when an exception handler raises.
    """

    __slots__ = ("first",)

    def __init__(self, first: BaseException | None = None) -> None:
        self.first = first

    def run(self, step: str, fn: Callable[..., Any], *args: Any) -> None:
        """Call `fn(*args)` and keep what it raises; `step` says in a note what was being done."""
        try:
            fn(*args)
        except BaseException as error:
            self.add(error, step)

    def add(self, error: BaseException, step: str) -> None:
        """Keep `error`, which was raised by `step`."""
        if self.first is None:
            self.first = error
        elif isinstance(error, INTERRUPTS) and not isinstance(self.first, INTERRUPTS):
            suppress(self.first, error, step)
            error.__cause__, self.first = self.first, error
        elif error is not self.first:
            suppress(self.first, error, step)


def suppress(first: BaseException, error: BaseException, step: str) -> None:
    """Have `first` tell of `error` too, which came later, in `step`. On the thread that raises `first`."""
    add_note = getattr(first, "add_note", None)
    if add_note is not None:
        add_note(f"then, {step}: {type(error).__name__}: {error}")
    else:
        add_context(first, error)


def add_context(first: BaseException, error: BaseException) -> None:
    """Hang `error` at the end of what `first` was raised in. On the thread that will raise `first`."""
    known = contexts(first)
    if any(error is one for one in known):
        return
    for each in contexts(error):
        # An error raised while the first was handled refers back to it, which would close a ring.
        if any(each.__context__ is one for one in known):
            each.__context__ = None
            break
    known[-1].__context__ = error


def contexts(error: BaseException) -> list[BaseException]:
    """The error, its cause or else the one that it was raised in, and so on: as it is shown. Any thread."""
    found = [error]
    while True:
        before = found[-1].__context__ if found[-1].__cause__ is None else found[-1].__cause__
        if before is None or any(before is one for one in found):
            return found
        found.append(before)


def raise_of(future: Future[Any]) -> None:
    """Raise the error of a future that is done; a cancelled one has none. Any thread."""
    if not future.cancelled() and (error := future.exception()) is not None:
        raise error
