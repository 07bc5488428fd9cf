"""A key under which several executions have kept answers: whose inputs count against this one's."""

from __future__ import annotations

from typing import Any

import pytest

from pillarbox.ledger.conflicts import ConflictFinder
from pillarbox.ledger.errors import LedgerConflictError

KEY = b"k" * 16
THIS, EARLIER = b"this", b"earlier"


class Origin:
    """The execution that kept an answer, and for which input."""

    def __init__(self, execution: bytes, input: bytes) -> None:
        self.execution, self.input = execution, input


class Kept:
    """A reader of a ledger with these origins under the one key that there is."""

    def __init__(self, *origins: tuple[bytes, bytes]) -> None:
        self._origins = [Origin(*each) for each in origins]

    def refresh(self) -> None:
        """Sees nothing new."""

    def repeated(self, words: list[int]) -> list[int]:
        return list(range(len(words)))

    def origins(self, key: bytes) -> list[Origin]:
        return self._origins


class NoNotes:
    """A folder in which no other task has noted anything."""

    def names(self) -> list[str]:
        return []


@pytest.mark.contract(
    "Two rows of an execution with one key and two inputs are refused, whoever else has kept an answer.",
    convicts=["input_of_this_forgotten"],
)
@pytest.mark.parametrize(
    "origins",
    [
        [(THIS, b"a"), (EARLIER, b"a"), (EARLIER, b"b")],
        [(EARLIER, b"a"), (THIS, b"a"), (EARLIER, b"b")],
        [(EARLIER, b"b"), (THIS, b"a"), (EARLIER, b"a")],
    ],
)
def test_an_input_that_this_execution_has_kept_counts_though_an_earlier_one_has_kept_it_too(
    origins: list[tuple[bytes, bytes]],
) -> None:
    def check(row: bytes) -> None:
        finder = ConflictFinder(THIS)
        finder.add(KEY, row)
        reader: Any = Kept(*origins)
        folder: Any = NoNotes()
        finder.check(reader, folder)

    check(b"a")
    with pytest.raises(LedgerConflictError):
        check(b"b")
