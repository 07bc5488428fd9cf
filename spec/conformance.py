"""Leads a subject along every edge of a state graph, and compares what it answers and what it then is.

Used by the tests, with every backend. For each edge a new subject walks a shortest way to the edge's state,
does the operation, and must answer and be as the specification says. In each state, operations from a wrong
thread must raise and change nothing. One thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from pillarbox.kernel import WrongThreadError

from .graph import Graph


class Subject(Protocol):
    """One object of the kernel in the words of a graph."""

    confined: tuple[Callable[[], Any], ...]
    """Calls that the owner alone may make."""

    def do(self, name: str, arguments: Any) -> Any:
        """Does an operation; its answer as in the graph, values of JSON."""

    def shown(self) -> Any:
        """What can be seen without changing anything."""

    def expected(self, state: dict[str, Any]) -> Any:
        """What must be seen in this state of the graph."""


def follow(graph: Graph, make: Callable[[], Subject]) -> Counter[str]:
    """Goes along every edge; how often each operation was the last one. AssertionError where they differ."""
    paths = graph.paths()
    done: Counter[str] = Counter()
    for edge in graph.edges:
        subject = make()
        for step in paths[edge.source]:
            subject.do(step.name, step.arguments)
        way = [f"{step.name}{step.arguments}" for step in [*paths[edge.source], edge]]
        answer = subject.do(edge.name, edge.arguments)
        assert answer == edge.result, f"{' '.join(way)} gave {answer!r}, not {edge.result!r}"
        shown, expected = subject.shown(), subject.expected(graph.states[edge.target])
        assert shown == expected, f"after {' '.join(way)} it is {shown!r}, not {expected!r}"
        done[edge.name] += 1
    return done


def follow_in_wrong_thread(graph: Graph, make: Callable[[], Subject]) -> int:
    """Tries in every state what is confined, in another thread; how often. AssertionError if a try works."""
    tries = 0
    with ThreadPoolExecutor(1) as elsewhere:
        for state, path in zip(graph.states, graph.paths(), strict=True):
            subject = make()
            for step in path:
                subject.do(step.name, step.arguments)
            for call in subject.confined:
                error = elsewhere.submit(call).exception()
                assert isinstance(error, WrongThreadError), f"in {state} a wrong thread got {error!r}"
                tries += 1
            assert subject.shown() == subject.expected(state), f"a refused call has changed {state}"
    return tries
