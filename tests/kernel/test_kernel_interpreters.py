"""Sub-interpreters: the kernel works in one, or refuses to be imported there and says so."""

import subprocess
import sys

import pytest

# Writes one line for each import: "works", or the ImportError. Other errors go the usual way.
SCRIPT = """
import os, sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

LOOK = '''
import os
try:
    import pillarbox.kernel as kernel
    handover, queue = kernel.Handover(1), kernel.UnorderedQueue(1)
    handover.put("item")
    assert handover.take() == "item"
    queue.complete(queue.put("element"), "result")
    assert queue.emit() == ("element", "result")
    answer = "works"
except ImportError as error:
    answer = f"refused: {error}"
os.write(1, f"{where}: {answer}\\\\n".encode())
'''

def look(where):
    code = f"where = {where!r}\\n{LOOK}"
    if where == "main":
        exec(code, {})
        return
    interpreter = interpreters.create()
    run = getattr(interpreters, "exec", None) or interpreters.run_string
    failure = run(interpreter, code)
    assert failure is None, failure
    interpreters.destroy(interpreter)

for where in sys.argv[1:]:
    look(where)
"""


def looked(*where: str) -> list[str]:
    """Use the kernel in these interpreters of one process, one after the other; their output."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *where], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == list(where)
    return [line.partition(": ")[2] for line in lines]


def works_or_refuses_clearly(answer: str) -> bool:
    return answer == "works" or ("refused" in answer and "interpreter" in answer)


@pytest.mark.contract
def test_a_second_interpreter_works_or_is_refused_and_the_main_one_goes_on() -> None:
    before, *others, after = looked("main", "first", "second", "main")
    assert (before, after) == ("works", "works")
    assert all(map(works_or_refuses_clearly, others)), others


@pytest.mark.parametrize("order", [("first",), ("first", "main"), ("first", "second")])
def test_whichever_interpreter_comes_first_the_others_work_or_are_refused(order: tuple[str, ...]) -> None:
    answers = looked(*order)
    assert all(map(works_or_refuses_clearly, answers)), answers
