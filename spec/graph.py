"""The state graphs that lead the kernel: TLC finds them, they are checked in, and compared each time.

    python -m spec.graph write | check [NAME...]

A module whose name ends in `Graph` has a variable `op`: name, arguments and result of the last operation.
TLC's graph without it is the graph here: a node is a state of the others, an edge an operation. In a file of
`graphs/` each line is a value of JSON: first the states, `{"number": 0, "is": variables}`, the initial one
being 0, then the edges, `[from, name, arguments, result, to]`. States are numbered as they are reached, so
the file is the same each time. `tests/spec/test_conformance.py` leads the kernel along every edge.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import tlc
from .manifest import as_tla
from .values import parse_state

FOLDER = tlc.SPEC / "graphs"
OP = "op"

NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"(.*)\];?$')
EDGE = re.compile(r"^(-?\d+) -> (-?\d+) ")


@dataclass(frozen=True)
class Source:
    """Where a graph comes from: a module, and its constants as in a manifest."""

    module: str
    constants: dict[str, Any]


QUEUE = {"Elements": 2, "Capacity": 3, "Attempts": 2, "Marks": "= {9}", "Mutant": "none"}
MAILBOX = {
    "Mails": "= {1, 2, 3, 4}",
    "High": "= {2, 3}",
    "Urgent": "= {3, 4}",
    "Deferrable": "= {2}",
    "Burst": 1,
    "Choosy": True,
    "Mutant": "none",
}
SOURCES = {
    "mailbox": Source("MailboxGraph", MAILBOX),
    "queue_ordered": Source("ResultQueueGraph", {**QUEUE, "Ordered": True}),
    "queue_unordered": Source("ResultQueueGraph", {**QUEUE, "Ordered": False}),
    "handover": Source("HandoverGraph", {"Sizes": "= {0, 1, 2, 4}", "MaxItems": 2, "MaxBytes": 3}),
}


class Edge(NamedTuple):
    """An operation that leads from one state to another, or back to the same."""

    source: int
    name: str
    arguments: Any
    result: Any
    target: int


@dataclass(frozen=True)
class Graph:
    """States, by number, as the values of their variables, and the edges. State 0 is the first one."""

    states: list[dict[str, Any]]
    edges: list[Edge]

    def paths(self) -> list[list[Edge]]:
        """For each state a shortest way to it from the first one."""
        leaving = defaultdict(list)
        for edge in self.edges:
            leaving[edge.source].append(edge)
        found: dict[int, list[Edge]] = {0: []}
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for edge in leaving[state]:
                if edge.target not in found:
                    found[edge.target] = [*found[state], edge]
                    queue.append(edge.target)
        return [found[state] for state in range(len(self.states))]


def explore(name: str) -> Graph:
    """Has TLC find the graph. TlcError if the module has a mistake."""
    source = SOURCES[name]
    lines = ["SPECIFICATION Spec", "CHECK_DEADLOCK FALSE"]
    lines += [f"CONSTANT {constant} {as_tla(value)}" for constant, value in source.constants.items()]
    with tempfile.TemporaryDirectory(prefix="pillarbox-graph-") as folder:
        dump = Path(folder, "graph")
        outcome = tlc.run(source.module, "\n".join(lines) + "\n", dump=dump, coverage=False)
        if outcome.code != tlc.PASSED:
            raise tlc.TlcError(f"{source.module}: {outcome.verdict}\n{outcome.output[-2000:]}")
        return projected(dump.with_suffix(".dot").read_text())


def projected(dot: str) -> Graph:
    """TLC's graph without the variable `op`, numbered from the initial state on."""
    nodes: dict[str, tuple[str, Any]] = {}
    states: dict[str, dict[str, Any]] = {}
    steps = []
    initial = ""
    for line in dot.splitlines():
        edge = EDGE.match(line)
        if edge:
            steps.append((edge[1], edge[2]))
            continue
        node = NODE.match(line)
        if node:
            text = node[2].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
            values = parse_state(text)
            operation = plain(values.pop(OP))
            key = json.dumps(plain(values), sort_keys=True)
            states[key] = plain(values)
            nodes[node[1]] = key, operation
            initial = key if "style = filled" in node[3] else initial
    leaving: dict[str, set[str]] = defaultdict(set)
    for before, after in steps:
        target, operation = nodes[after]
        leaving[nodes[before][0]].add(json.dumps([*operation, target]))
    numbers = {initial: 0}
    edges = []
    queue = deque([initial])
    while queue:
        state = queue.popleft()
        for text in sorted(leaving[state]):
            name, arguments, result, target = json.loads(text)
            if target not in numbers:
                numbers[target] = len(numbers)
                queue.append(target)
            edges.append(Edge(numbers[state], name, arguments, result, numbers[target]))
    return Graph([states[key] for key in numbers], edges)


def plain(value: Any) -> Any:
    """A value in what JSON has: sets are sorted, keys of functions become text."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted((plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def as_text(graph: Graph) -> str:
    """What stands in the file."""
    lines = [json.dumps({"number": number, "is": state}) for number, state in enumerate(graph.states)]
    lines += [json.dumps(edge) for edge in graph.edges]
    return "\n".join(lines) + "\n"


def file_of(name: str) -> Path:
    """Where the graph of this name is checked in. ValueError for an unknown one."""
    if name not in SOURCES:
        raise ValueError(f"a graph is one of {', '.join(SOURCES)}, not {name!r}")
    return FOLDER / f"{name}.txt"


def load(name: str) -> Graph:
    """The graph that is checked in under this name."""
    states: list[dict[str, Any]] = []
    edges = []
    for line in file_of(name).read_text().splitlines():
        value = json.loads(line)
        if isinstance(value, dict):
            states.append(value["is"])
        else:
            edges.append(Edge(*value))
    return Graph(states, edges)


def main(words: list[str]) -> int:
    """Writes the files, or says which of them TLC would write otherwise."""
    command, names = words[0] if words else "", words[1:] or list(SOURCES)
    if command not in ("write", "check"):
        print("python -m spec.graph write | check [NAME...]", file=sys.stderr)
        return 2
    stale = 0
    for name in names:
        file = file_of(name)
        graph = explore(name)
        text = as_text(graph)
        if command == "write":
            FOLDER.mkdir(exist_ok=True)
            file.write_text(text)
        same = file.exists() and file.read_text() == text
        stale += not same
        said = (
            "" if same else ": NOT as checked in; run `python -m spec.graph write` and look at the difference"
        )
        print(f"{name}: {len(graph.states)} states, {len(graph.edges)} edges{said}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
