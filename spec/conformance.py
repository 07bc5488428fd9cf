"""Leads a subject through a state graph, and compares what it answers and what it then is.

Used by the tests, with every backend. A graph tells of a state only what can be seen, and what looks as it
should may still be in another state: so each edge is followed by the words that tell its target from all
states that look the same (the W-method, Chow 1978). And an object may remember how it came to a state, which
the graph does not: so each edge is gone after each edge into its state, in long walks, not only after a
shortest way. In each state, operations from a wrong thread must raise and change nothing. One thread.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from pillarbox.kernel import WrongThreadError

from .graph import Edge, Graph

MAX_WALK = 60
"""Steps of a walk with one subject: what went wrong is told with all of them."""

Word = tuple[str, ...]
"""Operations with their arguments, one after the other, as `input_of` writes them."""


class Subject(Protocol):
    """One object of the kernel in the words of a graph."""

    confined: tuple[Callable[[], Any], ...]
    """Calls that the owner alone may make."""

    def do(self, name: str, arguments: Any) -> Any:
        """Does an operation; its answer as in the graph, values of JSON."""

    def shown(self) -> Any:
        """The parts of the state that can be read without changing it."""

    def expected(self, state: dict[str, Any]) -> Any:
        """The same parts as this state of the graph has them."""


def input_of(edge: Edge) -> str:
    """An operation and its arguments, without what they give."""
    return json.dumps([edge.name, edge.arguments])


class Identities:
    """For each state of a graph, the words whose answers tell it from all others that look the same.

    `looks` says for each state what can be seen of it. A word need not be possible in every state: two
    states are told apart by an answer, or a look, that differs where both have taken the step.
    """

    def __init__(self, graph: Graph, looks: Sequence[Any]) -> None:
        self._next: list[dict[str, Edge]] = [{} for _ in graph.states]
        for edge in graph.edges:
            if self._next[edge.source].setdefault(input_of(edge), edge) is not edge:
                raise ValueError(
                    f"two edges of state {edge.source} are {input_of(edge)}: it is not one answer"
                )
        self._looks = looks
        self._words: list[Word] = []
        self.alike: list[tuple[int, int]] = []
        """Pairs of states that no word tells apart."""
        look_alikes = defaultdict(list)
        for state, look in enumerate(looks):
            look_alikes[repr(look)].append(state)
        self.of = [self._identify(state, look_alikes[repr(looks[state])]) for state in range(len(looks))]
        """By state, its words."""

    def steps(self, state: int, word: Word) -> Iterator[Edge]:
        """The edges of a word from a state, as far as they go."""
        for each in word:
            edge = self._next[state].get(each)
            if edge is None:
                return
            yield edge
            state = edge.target

    def _identify(self, state: int, look_alikes: list[int]) -> list[Word]:
        chosen: list[Word] = []
        for other in look_alikes:
            if other == state or any(self._tells(word, state, other) for word in chosen):
                continue
            word = next((word for word in self._words if self._tells(word, state, other)), None)
            if word is None:
                word = self._shortest(state, other)
                if word is None:
                    self.alike.append((state, other))
                    continue
                self._words.append(word)
            chosen.append(word)
        return chosen

    def _differ(self, one: Edge, other: Edge) -> bool:
        return bool(one.result != other.result or self._looks[one.target] != self._looks[other.target])

    def _tells(self, word: Word, one: int, other: int) -> bool:
        return any(map(self._differ, self.steps(one, word), self.steps(other, word)))

    def _shortest(self, one: int, other: int) -> Word | None:
        found: dict[tuple[int, int], Word] = {(one, other): ()}
        queue = deque(found)
        while queue:
            pair = queue.popleft()
            for each, edge in self._next[pair[0]].items():
                beside = self._next[pair[1]].get(each)
                if beside is None:
                    continue
                word = (*found[pair], each)
                if self._differ(edge, beside):
                    return word
                after = edge.target, beside.target
                if after[0] != after[1] and after not in found:
                    found[after] = word
                    queue.append(after)
        return None


class Walk:
    """A new subject on its way through a graph."""

    def __init__(self, graph: Graph, make: Callable[[], Subject]) -> None:
        self._graph = graph
        self.subject = make()
        self.way: list[Edge] = []

    def go(self, edge: Edge) -> None:
        """Does the operation of an edge. AssertionError unless it answers as it must."""
        self.way.append(edge)
        answer = self.subject.do(edge.name, edge.arguments)
        if answer != edge.result:
            raise AssertionError(f"{self.told()} gave {answer!r}, not {edge.result!r}")

    def look(self) -> None:
        """AssertionError unless the subject looks as it must in the state that was reached."""
        shown, expected = self.subject.shown(), self.subject.expected(self._graph.states[self.way[-1].target])
        if shown != expected:
            raise AssertionError(f"after {self.told()} it is {shown!r}, not {expected!r}")

    def told(self) -> str:
        """The way, in words."""
        return " ".join(f"{step.name}{step.arguments}" for step in self.way)


def follow(graph: Graph, make: Callable[[], Subject]) -> Counter[str]:
    """Goes along every edge by a shortest way to it, and identifies the state behind.

    How often each operation was that edge, and under "" how many words were tried. AssertionError where
    subject and graph differ.
    """
    shower = make()
    identities = Identities(graph, [shower.expected(state) for state in graph.states])
    paths = graph.paths()
    done: Counter[str] = Counter()
    for edge in graph.edges:
        for word in identities.of[edge.target] or [()]:
            walk = Walk(graph, make)
            for step in paths[edge.source]:
                walk.go(step)
            walk.go(edge)
            walk.look()
            for step in identities.steps(edge.target, word):
                walk.go(step)
                walk.look()
            done[""] += 1
        done[edge.name] += 1
    return done


def follow_by_every_way(graph: Graph, make: Callable[[], Subject], share: int = 1) -> int:
    """Goes along every edge after every edge into its state, and looks after each step; how often that is.

    share: of the edges that follow an edge, every so many only, others for each edge. AssertionError where
    subject and graph differ.
    """
    leaving: list[list[int]] = [[] for _ in graph.states]
    for number, edge in enumerate(graph.edges):
        leaving[edge.source].append(number)
    paths = graph.paths()
    # By edge, those that are still to follow it.
    left = [leaving[edge.target][number % share :: share] for number, edge in enumerate(graph.edges)]
    pairs = 0
    for first, edge in enumerate(graph.edges):
        while left[first]:
            walk = Walk(graph, make)
            for step in [*paths[edge.source], edge]:
                walk.go(step)
                walk.look()
            at: int | None = first
            while at is not None and len(walk.way) < MAX_WALK:
                if left[at]:
                    pairs += 1
                    at = left[at].pop()
                else:
                    # On to where something is left to do.
                    at = next((each for each in leaving[graph.edges[at].target] if left[each]), None)
                if at is not None:
                    walk.go(graph.edges[at])
                    walk.look()
    return pairs


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
