"""The state graphs that lead the kernel: TLC finds them, and they are pinned by digest and counts.

    python -m spec.graph check [NAME...]    has TLC find them anew, and compares with `graphs.json`
    python -m spec.graph pin [NAME...]      writes `graphs.json`, and prints what is new in the graphs

A module whose name ends in `Graph` has a variable `op`: name, arguments and result of the last operation.
TLC's graph without it is the graph here: a node is a state of the others, an edge an operation. In a file
of `build/graphs` each line is a value of JSON: first the states, `{"number": 0, "is": variables}`, the
initial one being 0, then the edges, `[from, name, arguments, result, to]`. States are numbered as they are
reached, so the file is the same each time. A file is built when it is first loaded, and again when its
modules have changed. `tests/spec/test_conformance.py` leads the kernel along every edge.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
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

BUILD = tlc.SPEC.parent / "build" / "graphs"
PINS = tlc.SPEC / "graphs.json"
OP = "op"

NODE = re.compile(r'^(-?\d+) \[label="((?:[^"\\]|\\.)*)"(.*)\];?$')
EDGE = re.compile(r"^(-?\d+) -> (-?\d+)\b")
USED = re.compile(r"^EXTENDS (.+)$|\bINSTANCE (\w+)", re.MULTILINE)


class GraphError(Exception):
    """A graph is not the pinned one."""


@dataclass(frozen=True)
class Source:
    """The origin of a graph: a module, and its constants as in a manifest."""

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
        outcome = tlc.run(source.module, "\n".join(lines) + "\n", dump=dump, coverage=False, brief=True)
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
    """The text of the file."""
    lines = [json.dumps({"number": number, "is": state}) for number, state in enumerate(graph.states)]
    lines += [json.dumps(edge) for edge in graph.edges]
    return "\n".join(lines) + "\n"


def from_text(text: str) -> Graph:
    """The graph of such a text."""
    states: list[dict[str, Any]] = []
    edges = []
    for line in text.splitlines():
        value = json.loads(line)
        if isinstance(value, dict):
            states.append(value["is"])
        else:
            edges.append(Edge(*value))
    return Graph(states, edges)


def pins() -> dict[str, dict[str, Any]]:
    """By name: counts of states and edges, and the SHA-256 of the text."""
    pinned: dict[str, dict[str, Any]] = json.loads(PINS.read_text())
    return pinned


def pin_of(text: str) -> dict[str, Any]:
    """The pin of a graph's text."""
    graph = from_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"states": len(graph.states), "edges": len(graph.edges), "sha256": digest}


def file_of(name: str) -> Path:
    """The place of a built graph, which names what it is made of. ValueError for an unknown one."""
    if name not in SOURCES:
        raise ValueError(f"a graph is one of {', '.join(SOURCES)}, not {name!r}")
    source = SOURCES[name]
    digest = hashlib.sha256(repr(source.constants).encode() + Path(__file__).read_bytes())
    for path in modules(source.module):
        digest.update(path.read_bytes())
    return BUILD / f"{name}-{digest.hexdigest()[:16]}.txt"


def modules(name: str) -> list[Path]:
    """The files of a module and of those that it uses, but for TLC's own."""
    found: dict[Path, None] = {}
    waiting = [name]
    while waiting:
        path = tlc.SPEC / f"{waiting.pop()}.tla"
        if path not in found and path.exists():
            found[path] = None
            used = [extended or instance for extended, instance in USED.findall(path.read_text())]
            waiting += [module.strip() for names in used for module in names.split(",")]
    return sorted(found)


def load(name: str) -> Graph:
    """The pinned graph of this name, built if need be. Any process may call; one builds, others wait.

    GraphError if the modules have another graph than the pinned one. MissingTlcError without Java or TLC.
    """
    file = file_of(name)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pinned = pins().get(name, {})
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != pinned.get("sha256"):
            write(file, as_text(explore(name)))
    text = file.read_text()
    found = pin_of(text)
    if found != pinned:
        raise GraphError(
            f"{name} has {told(found)}, and not {told(pinned)} as pinned: `python -m spec.graph pin`"
        )
    return from_text(text)


def told(pin: dict[str, Any]) -> str:
    """A pin in words."""
    return f"{pin['states']} states, {pin['edges']} edges, {pin['sha256'][:12]}" if pin else "no pin"


def write(file: Path, text: str) -> None:
    """Puts the text in its place in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(file)


def pinned_text(name: str, pin: dict[str, Any]) -> str | None:
    """The text of the graph that is pinned, if it was built here."""
    for path in BUILD.glob(f"{name}-*.txt"):
        if hashlib.sha256(path.read_bytes()).hexdigest() == pin.get("sha256"):
            return path.read_text()
    return None


def main(words: list[str]) -> int:
    """Pins the graphs that TLC finds, or says which of them are not the pinned ones."""
    command, names = words[0] if words else "", words[1:] or list(SOURCES)
    if command not in ("pin", "check"):
        print("python -m spec.graph pin | check [NAME...]", file=sys.stderr)
        return 2
    pinned = pins() if PINS.exists() else {}
    differ = 0
    for name in names:
        text = as_text(explore(name))
        was, found = pinned.get(name, {}), pin_of(text)
        if command == "pin":
            before = pinned_text(name, was)
            if found != was and before is not None:
                sys.stdout.writelines(
                    difflib.unified_diff(before.splitlines(True), text.splitlines(True), "pinned", "now", n=0)
                )
            pinned[name] = found
            write(file_of(name), text)
        differ += command == "check" and found != was
        changed = f"; pinned were {told(was)}" if command == "pin" else f"; NOT as pinned, {told(was)}"
        print(f"{name}: {told(found)}" + (changed if found != was else ""))
    if command == "pin":
        PINS.write_text(json.dumps({name: pinned[name] for name in SOURCES}, indent=1) + "\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
