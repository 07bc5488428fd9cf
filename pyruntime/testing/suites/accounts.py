"""The books of the queue suite: what became of every element of the input, over all lives of the queue.

Exactly once means here: what was emitted after a snapshot is undone by a crash that goes back to it, together
with the position of the input; in what remains every element is emitted once, or was given back by clear or
close. Used in the thread of the test.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


class AccountsError(AssertionError):
    """The queue lost, repeated or reordered something, or had it called again."""


@dataclass
class Accounts:
    """Elements are the numbers of the input. So are watermarks, which share the counting."""

    ordered: bool
    position: int = 0
    """The next number of the input."""
    door: list[int] = field(default_factory=list)
    """Elements that were read and refused."""
    output: list[tuple[int, Any]] = field(default_factory=list)
    """What was emitted: the number and the result; the result of a watermark is None."""
    returned: list[int] = field(default_factory=list)
    """What clear and close gave back."""
    marks: set[int] = field(default_factory=set)
    """The numbers of watermarks that were put."""
    marks_dropped: set[int] = field(default_factory=set)
    """Those that clear and close took out."""
    saved_results: dict[int, Any] = field(default_factory=dict)
    """Results of the snapshot that the present life began with, or that it made last."""

    def copy(self, door_is_saved: bool = False) -> Accounts:
        """These books as they are now. door_is_saved: the snapshot holds what waits at the door."""
        return replace(
            self,
            door=[] if door_is_saved else list(self.door),
            output=list(self.output),
            returned=list(self.returned),
            marks=set(self.marks),
            marks_dropped=set(self.marks_dropped),
            saved_results=dict(self.saved_results),
        )

    def read(self) -> int:
        """The element that is to be put next: the one at the door, or the next of the input."""
        if self.door:
            return self.door.pop()
        self.position += 1
        return self.position - 1

    def emitted(self, pair: tuple[Any, Any], watermark: Any) -> None:
        """The queue emitted the pair."""
        element, result = pair
        if element is watermark:
            self.output.append((result, None))
            return
        if element in self.saved_results and self.saved_results[element] != result:
            raise AccountsError(
                f"{element} had the result {self.saved_results[element]!r}, emitted was {result!r}"
            )
        self.output.append((element, result))

    def called_again(self, element: int) -> None:
        """The queue asks for a call of a restored element."""
        if element in self.saved_results:
            raise AccountsError(f"{element} had finished when the snapshot was made, and is called again")

    def check(self) -> None:
        """Everything that was admitted came out once, and in the order of the contract."""
        numbers = [number for number, _ in self.output]
        expected = sorted(set(range(self.position)) - self.marks_dropped - set(self.door))
        found = sorted(numbers + self.returned)
        if found != expected:
            raise AccountsError(f"came out: {found}, of {expected}")
        if self.ordered and numbers != sorted(numbers):
            raise AccountsError(f"emitted in the order {numbers}")
        for place, number in enumerate(numbers):
            if number in self.marks:
                passed = [n for n in numbers[:place] if n > number] + [
                    n for n in numbers[place:] if n < number
                ]
                if passed:
                    raise AccountsError(f"{passed} passed the watermark {number}: {numbers}")
