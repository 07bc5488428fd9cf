"""The kernel goes along every edge of TLC's state graphs, and the graphs are those that are pinned."""

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pillarbox.kernel import BACKENDS
from spec import graph, tlc
from spec.conformance import (
    Identities,
    Subject,
    follow,
    follow_by_every_way,
    follow_in_wrong_thread,
    input_of,
)
from tests.search import examples
from tests.spec.subjects import HandoverSubject, MailboxSubject, QueueSubject

SUBJECTS: list[tuple[str, Callable[[], Subject]]] = [
    *(("mailbox", partial(MailboxSubject, backend)) for backend in BACKENDS),
    ("queue_ordered", partial(QueueSubject, True)),
    ("queue_unordered", partial(QueueSubject, False)),
    ("queue_ordered", partial(QueueSubject, True, owner_completes=True)),
    ("queue_unordered", partial(QueueSubject, False, owner_completes=True)),
    ("handover", HandoverSubject),
]


# Queues whose entries any thread completes follow the same graphs as those that tasks have.
MARKS = {0: [pytest.mark.thorough], 1: [pytest.mark.slow], 2: [pytest.mark.slow]}
MARKS |= {3: [pytest.mark.thorough], 4: [pytest.mark.thorough]}
CASES = [pytest.param(*subject, marks=MARKS.get(place, [])) for place, subject in enumerate(SUBJECTS)]


def built(name: str) -> graph.Graph:
    """The pinned graph; without a Java, only where it was built before."""
    try:
        return graph.load(name)
    except tlc.MissingTlcError as error:
        pytest.skip(f"the graph {name} is not built, and cannot be: {error}")


@pytest.mark.contract("The kernel answers as specified on every edge of the graphs of the specification.")
@pytest.mark.parametrize(("name", "make"), CASES)
def test_the_kernel_answers_as_specified_on_every_edge_and_is_then_in_its_state(
    name: str, make: Callable[[], Subject]
) -> None:
    loaded = built(name)
    done = follow(loaded, make)
    words = done.pop("")
    assert words > done.total() == len(loaded.edges) > 1000


@pytest.mark.contract(
    "The kernel answers as specified on every edge after every edge into its state, in long walks.",
    convicts=["direct_take_uncounted"],
)
@pytest.mark.parametrize(("name", "make"), CASES)
def test_the_kernel_answers_as_specified_however_it_came_to_a_state(
    name: str, make: Callable[[], Subject]
) -> None:
    loaded = built(name)
    share = 100 // examples(100)
    pairs = follow_by_every_way(loaded, make, share)
    leaving = Counter(edge.source for edge in loaded.edges)
    every = sum(leaving[edge.target] for edge in loaded.edges)
    assert pairs == every if share == 1 else every / share * 0.9 < pairs < every / share * 1.1


@pytest.mark.contract
@pytest.mark.parametrize(("name", "make"), [entry for entry in SUBJECTS if entry[0] != "handover"])
def test_a_wrong_thread_is_refused_in_every_state_and_changes_nothing(
    name: str, make: Callable[[], Subject]
) -> None:
    loaded = built(name)
    assert follow_in_wrong_thread(loaded, make) == len(loaded.states) * len(make().confined)


@pytest.mark.slow
@pytest.mark.parametrize("name", graph.SOURCES)
def test_the_pinned_graphs_are_those_that_tlc_finds(name: str) -> None:
    assert graph.pins()[name] == graph.pin_of(graph.as_text(graph.explore(name)))


def test_an_answer_that_differs_is_told_with_the_way_to_it() -> None:
    loaded = built("mailbox")
    edge = loaded.edges[0]
    wrong = graph.Graph(loaded.states, [edge._replace(result="something else"), *loaded.edges[1:]])
    with pytest.raises(AssertionError, match="not 'something else'"):
        follow(wrong, partial(MailboxSubject, "lock-free"))


class Turning:
    """Turns through three states, of which only the first shows itself; has a defect or none."""

    confined = ()

    def __init__(self, defect: str) -> None:
        self.defect = defect
        self.at = self.stays = 0

    def do(self, name: str, arguments: Any) -> Any:
        if name == "stay":
            self.stays += 1
            return "none"
        if self.defect == "leaps too far" and name == "leap" and self.at == 0:
            self.at = 1
        if self.defect == "remembers" and self.stays >= 2:
            return "none"
        self.at = (self.at + 1) % 3
        return "whole" if self.at == 0 else "none"

    def shown(self) -> Any:
        return self.at == 0

    def expected(self, state: dict[str, Any]) -> Any:
        return state["at"] == 0


def edges_of(at: int) -> list[graph.Edge]:
    after, answer = (at + 1) % 3, "whole" if at == 2 else "none"
    turns = [graph.Edge(at, name, [], answer, after) for name in ("turn", "leap")]
    return [*turns, graph.Edge(at, "stay", [], "none", at)]


TURNS = graph.Graph([{"at": at} for at in range(3)], [edge for at in range(3) for edge in edges_of(at)])


def test_states_that_look_the_same_are_told_apart_by_their_next_answers() -> None:
    turn = input_of(TURNS.edges[0])
    identities = Identities(TURNS, ["first", "other", "other"])
    assert (identities.of, identities.alike) == ([[], [(turn,)], [(turn,)]], [])
    assert Identities(TURNS, ["same"] * 3).of == [[(turn, turn)]] * 3
    # Without the answer "whole" nothing tells.
    silent = graph.Graph(TURNS.states, [edge._replace(result="none") for edge in TURNS.edges])
    assert Identities(silent, ["same"] * 3).alike == list(itertools.permutations(range(3), 2))
    doubtful = graph.Graph(TURNS.states, [*TURNS.edges, TURNS.edges[0]._replace(target=2)])
    with pytest.raises(ValueError, match="two edges of state 0 are"):
        Identities(doubtful, ["same"] * 3)


def test_a_subject_that_is_as_the_graph_says_passes() -> None:
    make = partial(Turning, "")
    assert follow(TURNS, make) == {"turn": 3, "leap": 3, "stay": 3, "": 9}
    assert [follow_by_every_way(TURNS, make, share) for share in (1, 3)] == [27, 9]


def test_a_subject_that_comes_to_another_state_that_looks_the_same_is_found_out() -> None:
    with pytest.raises(AssertionError, match=r"^leap\[\] turn\[\] gave 'whole', not 'none'$"):
        follow(TURNS, partial(Turning, "leaps too far"))


def test_a_subject_that_remembers_how_it_came_to_a_state_is_found_out() -> None:
    follow(TURNS, partial(Turning, "remembers"))
    with pytest.raises(AssertionError, match=r"stay\[\].* stay\[\].* gave 'none', not 'whole'$"):
        follow_by_every_way(TURNS, partial(Turning, "remembers"))


# ---- building and pinning, with a graph that no TLC has to find

SMALL = graph.Graph(
    [{"x": 0}, {"x": 1}], [graph.Edge(0, "put", [1], "none", 1), graph.Edge(1, "take", [], 1, 0)]
)


@pytest.fixture
def explored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that were asked for of TLC, which gives SMALL."""
    names: list[str] = []

    def explore(name: str) -> graph.Graph:
        names.append(name)
        return SMALL

    monkeypatch.setattr(graph, "BUILD", tmp_path / "graphs")
    monkeypatch.setattr(graph, "PINS", tmp_path / "graphs.json")
    monkeypatch.setattr(graph, "explore", explore)
    assert graph.main(["pin"]) == 0
    names.clear()
    return names


def test_a_graph_is_built_once_and_again_when_its_file_was_changed(explored: list[str]) -> None:
    assert graph.load("mailbox") == SMALL
    assert explored == []
    file = graph.file_of("mailbox")
    for damage in (lambda: file.write_text(file.read_text()[:-10]), file.unlink):
        damage()
        assert graph.load("mailbox") == SMALL
    assert explored == ["mailbox", "mailbox"]


def test_a_graph_that_is_not_the_pinned_one_is_refused_and_shown(
    explored: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = graph.Graph(SMALL.states, [SMALL.edges[0], SMALL.edges[1]._replace(result=2)])
    monkeypatch.setattr(graph, "explore", lambda name: changed)
    file = graph.file_of("mailbox")
    file.rename(file.with_name("mailbox-of-earlier-modules.txt"))
    with pytest.raises(graph.GraphError, match="mailbox has 2 states, 2 edges, .* not 2 states, 2 edges, .*"):
        graph.load("mailbox")
    capsys.readouterr()
    assert graph.main(["check", "mailbox"]) == 1
    assert "NOT as pinned" in capsys.readouterr().out
    assert graph.main(["pin", "mailbox"]) == 0
    assert '-[1, "take", [], 1, 0]\n+[1, "take", [], 2, 0]\n' in capsys.readouterr().out
    assert graph.load("mailbox") == changed


def test_the_file_of_a_graph_names_every_module_that_it_is_made_of() -> None:
    assert [path.name for path in graph.modules("MailboxGraph")] == ["Lanes.tla", "MailboxGraph.tla"]
    assert len({graph.file_of(name) for name in graph.SOURCES}) == len(graph.SOURCES)
