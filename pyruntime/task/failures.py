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

    Python 3.10 shows no notes: there they are in `__notes__` alone.
    """

    __slots__ = ("first",)

    def __init__(self, first: BaseException | None = None) -> None:
        self.first = first

    def run(self, step: str, fn: Callable[..., Any], *args: object) -> None:
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
            add_note(self.first, error, step)
            error.__cause__, self.first = self.first, error
        elif error is not self.first:
            add_note(self.first, error, step)


def add_note(first: BaseException, error: BaseException, step: str) -> None:
    """Have `first` tell of `error` too, which came later, in `step`. On the thread that raises `first`."""
    note = f"then, {step}: {type(error).__name__}: {error}"
    # As `add_note` of Python 3.11 does; Python 3.10 keeps it, and shows it nowhere by itself.
    told: Any = first
    told.__notes__ = [*getattr(first, "__notes__", ()), note]


def raise_of(future: Future[Any]) -> None:
    """Raise the error of a future that is done; a cancelled one has none. Any thread."""
    if not future.cancelled() and (error := future.exception()) is not None:
        raise error
