"""The kernel goes along every edge of TLC's state graphs, and the graphs are those that TLC finds."""

from collections.abc import Callable
from functools import partial

import pytest

from pillarbox.kernel import BACKENDS
from spec import graph
from spec.conformance import Subject, follow, follow_in_wrong_thread
from tests.spec.subjects import HandoverSubject, MailboxSubject, QueueSubject

SUBJECTS: list[tuple[str, Callable[[], Subject]]] = [
    *(("mailbox", partial(MailboxSubject, backend)) for backend in BACKENDS),
    ("queue_ordered", partial(QueueSubject, True)),
    ("queue_unordered", partial(QueueSubject, False)),
    ("handover", HandoverSubject),
]


@pytest.mark.contract("The kernel answers as specified on every edge of the graphs of the specification.")
@pytest.mark.parametrize(("name", "make"), SUBJECTS)
def test_the_kernel_answers_as_specified_on_every_edge(name: str, make: Callable[[], Subject]) -> None:
    loaded = graph.load(name)
    done = follow(loaded, make)
    assert done.total() == len(loaded.edges) > 1000


@pytest.mark.contract
@pytest.mark.parametrize(("name", "make"), [entry for entry in SUBJECTS if entry[0] != "handover"])
def test_a_wrong_thread_is_refused_in_every_state_and_changes_nothing(
    name: str, make: Callable[[], Subject]
) -> None:
    loaded = graph.load(name)
    assert follow_in_wrong_thread(loaded, make) == len(loaded.states) * len(make().confined)


@pytest.mark.slow
@pytest.mark.parametrize("name", graph.SOURCES)
def test_the_graphs_that_are_checked_in_are_those_that_tlc_finds(name: str) -> None:
    assert graph.file_of(name).read_text() == graph.as_text(graph.explore(name))


def test_an_answer_that_differs_is_told_with_the_way_to_it() -> None:
    loaded = graph.load("mailbox")
    edge = loaded.edges[0]
    wrong = graph.Graph(loaded.states, [edge._replace(result="something else"), *loaded.edges[1:]])
    with pytest.raises(AssertionError, match="not 'something else'"):
        follow(wrong, partial(MailboxSubject, "mutex"))
