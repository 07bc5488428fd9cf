"""Steps that are all done: which error of several is kept, and that none is lost."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.task import Operator
from pillarbox.task.failures import Failures
from pillarbox.task.protocols import TaskState
from tests.task.unit.operators import Rig


def raising(error: BaseException) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step


def shown(error: BaseException) -> str:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    # Python 3.10 shows no notes.
    return "".join([*lines, *getattr(error, "__notes__", ()), *getattr(error.__cause__, "__notes__", ())])


def test_the_first_error_is_kept_and_tells_of_the_others() -> None:
    first = ValueError("first")
    done: list[str] = []
    failures = Failures()
    failures.run("one", raising(first))
    failures.run("two", raising(KeyError("second")))
    failures.run("three", done.append, "done")
    assert failures.first is first
    assert "second" in shown(first)
    assert done == ["done"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_step_is_kept_and_the_first_error_is_its_cause(kind: type[BaseException]) -> None:
    first, interrupt = ValueError("first"), kind()
    done: list[str] = []
    failures = Failures(first)
    failures.run("one", raising(interrupt))
    failures.run("two", raising(KeyError("third")))
    failures.run("three", done.append, "done")
    assert failures.first is interrupt
    assert interrupt.__cause__ is first
    assert "first" in shown(interrupt)
    assert "third" in shown(interrupt)
    assert done == ["done"]


def test_the_first_of_two_interrupts_is_kept() -> None:
    first = KeyboardInterrupt()
    failures = Failures(first)
    failures.run("one", raising(SystemExit()))
    assert failures.first is first


class InterruptedClose(Operator):
    """Fails at a record, and is interrupted while it closes."""

    def process(self, record: Any) -> None:
        raise ValueError("first")

    def close(self) -> None:
        raise KeyboardInterrupt


def test_a_ctrl_c_while_a_failed_task_closes_is_not_swallowed() -> None:
    rig = Rig(InterruptedClose())
    with pytest.raises(KeyboardInterrupt) as caught:
        rig.run(1)
    assert isinstance(caught.value.__cause__, ValueError)
    assert rig.task.state is TaskState.FAILED
