"""Writes docs/contracts.md from the tests: each contract, the test that holds it, the defects it convicts.

    python -m spec.contracts            writes the page
    python -m spec.contracts check      exits with 1 if the page is another, a contract has ended silently,
                                        or one below Spark has no test in `make test-fast`
    python -m spec.contracts convict    plants each defect that a Python test convicts: that test must fail
                                        (`make mutation` does so too)

A contract is a test with the marker `contract`. Its sentence is the test's name, or what the marker is given:

    @pytest.mark.contract
    def test_a_row_is_called_once() -> None: ...

    @pytest.mark.contract("A mail that waits cannot be put again.", convicts=["claim_twice"])

`convicts` names planted defects of the kernel (`spec/defects`) or runs of the manifests
that violate a property. `needs` says what of a server the contract is about: `make test-fast` has no test of
it, and one of every other contract below Spark. The tests are read and not imported. Every planted defect
must be convicted by a contract; the mutants of the models stand beside the properties that they violate.

A test may move, be renamed under the same sentence, or be replaced: the sentence is the contract. A sentence
that any commit of the page has had is on the page, or in spec/ended_contracts.md.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import layers, mutation
from .defects import Seeded, seeded
from .manifest import Run, read_all
from .tlc import SPEC

FAST_TIER = f"{layers.FAST} and not thorough"
"""The marks by which `make test-fast` chooses."""
ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/contracts.md"
ENDED = "spec/ended_contracts.md"

SECTIONS = {
    "kernel": "The kernel",
    "native": "The kernel among native threads",
    "spec": "The kernel and its specification",
    "mailbox": "Mailbox processors",
    "task": "Tasks",
    "aio": "Calls",
    "limits": "Shared limits",
    "ledger": "The ledger",
    "sources": "Sources and connectors",
    "job": "Jobs in one process",
    "spark": "Over Spark",
    "observe": "Seen while it runs",
    "rpc": "Between processes",
    "clients": "Clients",
    "models": "Models beside the rows",
    "chaos": "Under faults",
    "cluster": "On a cluster",
    "testing": "Test tools",
    "examples": "Examples",
    "house": "The package",
}

BELOW_SPARK = [
    section for section in SECTIONS if section not in ("spark", "chaos", "cluster", "examples", "house")
]
"""The sections whose contracts have a test that needs neither Spark nor a server, nor much time."""

HEAD = """\
# Contracts

Written by `python -m spec.contracts` from the tests that have the marker `contract`. A redesign may delete
tests of internals. It deletes no line of this page without a line in `spec/ended_contracts.md`.

The third column names the planted defects of the kernel that the test convicts, or mutants of a model. A
contract below Spark is held by a test of `make test-fast`, unless the last column says what it needs: it is
about that server, and `make test` holds it.
"""

MODELS = """\
## The models

Properties that TLC checks in `make spec`, each with the mutants that violate it; `spec/README.md` has more.
"""


class ContractError(Exception):
    """A marker says something that it cannot mean."""


@dataclass(frozen=True)
class Contract:
    """A sentence, the test that holds it (its path and name), its convictions and needs."""

    sentence: str
    test: str
    convicts: tuple[str, ...] = ()
    needs: str = ""

    @property
    def section(self) -> str:
        """The folder of the test."""
        return Path(self.test.split("::")[0]).parts[1]


def spoken(name: str) -> str:
    """A test's name as a sentence."""
    words = name.removeprefix("test_").replace("_", " ").replace("ctrl c ", "Ctrl-C ")
    return f"{words[:1].upper()}{words[1:]}."


def given(mark: ast.expr, where: str) -> tuple[str | None, tuple[str, ...], str] | None:
    """The sentence, convictions and needs of a decorator, None if it is another one. Raises ContractError."""
    call = mark if isinstance(mark, ast.Call) else ast.Call(mark, [], [])
    if ast.unparse(call.func) != "pytest.mark.contract":
        return None
    try:
        words = [ast.literal_eval(word) for word in call.args]
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except ValueError as error:
        raise ContractError(f"{where}: the marker `contract` takes literal values only") from error
    if (
        len(words) > 1
        or set(named) - {"convicts", "needs"}
        or not all(isinstance(word, str) for word in words)
    ):
        raise ContractError(
            f"{where}: the marker is contract(sentence, convicts=[names], needs=words), all optional"
        )
    return (words[0] if words else None), tuple(named.get("convicts", ())), named.get("needs", "")


def of_file(path: Path, root: Path) -> Iterator[Contract]:
    """The contracts of one file of tests, in their order."""
    text = path.read_text()
    if "mark.contract" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        test = f"{path.relative_to(root).as_posix()}::{node.name}"
        for decorator in node.decorator_list:
            if (found := given(decorator, test)) is not None:
                sentence = found[0] or spoken(node.name)
                if not re.fullmatch(r"[A-Z0-9`\"(][^\n|]*[.]", sentence):
                    raise ContractError(f"{test}: {sentence!r} is not one line that ends with a full stop")
                yield Contract(sentence, test, *found[1:])


def read(root: Path = ROOT) -> list[Contract]:
    """The contracts of all tests, by section, file and place. Raises ContractError if two say the same."""
    found: dict[str, Contract] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for contract in of_file(path, root):
            if contract.sentence in found:
                first = found[contract.sentence].test
                raise ContractError(f"{first} and {contract.test} hold the same: {contract.sentence}")
            if contract.section not in SECTIONS:
                raise ContractError(f"{contract.test}: no section for tests/{contract.section}")
            found[contract.sentence] = contract
    order = list(SECTIONS)
    return sorted(found.values(), key=lambda contract: order.index(contract.section))


@cache
def convictions() -> dict[str, list[str]]:
    """By planted defect or mutant: the tests whose contracts convict it."""
    found: dict[str, list[str]] = {}
    for contract in read():
        for name in contract.convicts:
            found.setdefault(name, []).append(contract.test)
    return found


def accused(contracts: Iterable[Contract], defects: Iterable[Seeded], runs: Iterable[Run]) -> None:
    """Raises ContractError if a contract names no defect or mutant, or if no contract names a defect."""
    names = {defect.name for defect in defects}
    known = names | {run.name for run in runs if run.violates}
    convicted: set[str] = set()
    for contract in contracts:
        unknown = sorted(set(contract.convicts) - known)
        if unknown:
            raise ContractError(f"{contract.test} convicts what nobody plants: {', '.join(unknown)}")
        convicted |= set(contract.convicts)
    if names - convicted:
        raise ContractError(f"defects that no contract convicts: {', '.join(sorted(names - convicted))}")


def in_words(module: str, name: str) -> str:
    """The comment above a property's definition, or its name in words."""
    for file in (SPEC / f"{module}.tla", *sorted(SPEC.glob(f"{module.removesuffix('Checks')}*.tla"))):
        pattern = rf"(?m)((?:^(?:\\\*|\(\*).*\n)+){name}(?:\(.*\))? =="
        comment = re.search(pattern, file.read_text())
        if comment:
            lines = [re.sub(r"^(?:\\\*|\(\*)|\*\)\s*$", "", line).strip() for line in comment[1].splitlines()]
            text = re.sub(r"\s+", " ", " ".join(lines)).strip().replace("|", "/")
            return text if text.endswith(".") else f"{text}."
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    return f"{words[:1].upper()}{words[1:]}."


def models(runs: Iterable[Run]) -> list[str]:
    """The lines of the properties that a mutant violates, by module."""
    mutants: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run.violates and run.violates != "TypeOK":
            mutants.setdefault((run.module, run.violates), []).append(run.name)
    return [
        f"| {in_words(module, name)} | `{module}!{name}` | {', '.join(f'`{run}`' for run in by)} |"
        for (module, name), by in sorted(mutants.items())
    ]


def page(contracts: Iterable[Contract], runs: Iterable[Run]) -> str:
    """The whole page."""
    parts = [HEAD]
    by_section: dict[str, list[Contract]] = {}
    for contract in contracts:
        by_section.setdefault(contract.section, []).append(contract)
    for section, held in by_section.items():
        lines = [f"## {SECTIONS[section]}", "", "| contract | test | convicts | needs |", "|---|---|---|---|"]
        for contract in held:
            test = contract.test.removeprefix("tests/")
            convicted = ", ".join(f"`{name}`" for name in contract.convicts)
            lines.append(f"| {contract.sentence} | `{test}` | {convicted} | {contract.needs} |")
        parts.append("\n".join(lines) + "\n")
    parts.append("\n".join([MODELS, "| property | name | mutants |", "|---|---|---|", *models(runs)]) + "\n")
    return "\n".join(parts)


def written(root: Path = ROOT) -> str:
    """The page as the tests have it now. Raises ContractError if a marker is wrong."""
    contracts, runs = read(root), read_all()
    accused(contracts, seeded(), runs)
    return page(contracts, runs)


def sentences(text: str) -> set[str]:
    """The contracts on a page, or in a list of added lines: those of tests, not those of models."""
    found = re.findall(r"(?m)^\+?\| (.+?\.) \| `[a-z]\S*::\S+` \|", text)
    return {" ".join(sentence.split()) for sentence in found}


def ever(root: Path = ROOT) -> set[str]:
    """The sentences that any commit of the page has had; none outside of a git checkout."""
    command = ["git", "log", "-p", "--format=", "--unified=0", "--", PAGE]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return sentences(done.stdout)


def ended(before: set[str], now: set[str], register: str) -> list[str]:
    """The sentences that are gone, and are not in the register of those that have ended."""
    said = " ".join(register.split())
    return sorted(sentence for sentence in before - now if sentence.rstrip(".") not in said)


def check(root: Path = ROOT) -> list[str]:
    """The faults of the page, in words; none if all is well."""
    text = written(root)
    found = []
    if not (root / PAGE).exists() or (root / PAGE).read_text() != text:
        found.append(f"{PAGE} is not what the tests say: run python -m spec.contracts")
    gone = ended(ever(root), sentences(text), (root / ENDED).read_text())
    found += [f"a contract ended without a line in {ENDED} that has it: {sentence}" for sentence in gone]
    return found


def fast_tests(root: Path = ROOT) -> set[str]:
    """The tests below Spark that `make test-fast` has, as pytest collects them. Raises ContractError."""
    folders = [f"tests/{section}" for section in BELOW_SPARK]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", FAST_TIER, *folders]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ContractError(f"the fast tests cannot be collected:\n{done.stdout}{done.stderr}")
    return {line.split("[")[0] for line in done.stdout.splitlines() if "::" in line}


def slow_only(contracts: Iterable[Contract], fast: set[str]) -> list[str]:
    """The contracts below Spark that are without a fast test, or with one that they say they cannot have."""
    found = []
    for contract in contracts:
        if contract.section in BELOW_SPARK and (contract.test in fast) == bool(contract.needs):
            why = "needs nothing, for it is fast" if contract.needs else "has no part in make test-fast"
            found.append(f"{contract.test} {why}: {contract.sentence}")
    return found


def convict() -> list[str]:
    """Plants each defect that a test of Python convicts; returns those that its test does not notice."""
    defects = [defect for defect in seeded() if mutation.accusers(defect)]
    spared = []
    for defect, found in mutation.found_of(defects, mutation.convicted, os.cpu_count() or 1, accused=True):
        spared += [f"{test} does not notice {defect.name}" for test in found.spared]
        print(f"{defect.name}: {', '.join(mutation.accusers(defect))}", flush=True)
    return spared


def main(words: list[str]) -> int:
    """The command; returns its exit status."""
    if words not in ([], ["check"], ["convict"]):
        print("python -m spec.contracts [check | convict]", file=sys.stderr)
        return 2
    try:
        if words == ["convict"]:
            wrong = convict()
        elif words == ["check"]:
            wrong = check() + slow_only(read(), fast_tests())
        else:
            (ROOT / PAGE).write_text(written())
            wrong = []
    except (ContractError, layers.UnplantedError) as error:
        wrong = [str(error)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
