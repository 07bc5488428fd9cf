"""Check the language of code and pages: docstrings, names of constants, phrases; run by `make lint`.

A docstring begins with an imperative or a noun phrase, a constant's name says which bound it is and in
which unit, and a sentence says "is not a column" rather than "is no column". The pages of `PAGES`, and the
first lines of public docstrings, have no pronoun for a thing or a person that a noun would name. Prints each
line that breaks a rule, and ends with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUESTION = re.compile(r"\s*(What|Who|How|Where|Which|When|Whose|Why|Whether)\b")
CYTHON_DOCSTRING = re.compile(r'^ *r?"""(.*)', re.MULTILINE)
CYTHON_DEFINITION = re.compile(
    r'^(?P<indent> *)(?:cdef class|class|def) (?P<name>\w+).*:\n(?: *r?"""(?P<docstring>.*))?', re.MULTILINE
)
IN_REFERENCE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BARE_CONSTANTS = {
    *("PATIENCE", "GRACE", "AGAIN", "BEAT", "SILENCE", "LOOK", "KEEP", "FOREVER"),
    *("MOST", "LEAST", "LONGEST", "SHORTEST"),
}
"""Names that say neither what is bounded nor in which unit."""
PHRASE = re.compile(
    r"(?<!there )(?<!There )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|matter\b|one\b)\w+"
)

PAGES = {
    "README.md",
    "docs/embeddings.md",
    "docs/exactly-once.md",
    "docs/glossary.md",
    "docs/index.md",
    "docs/install.md",
    "docs/limits.md",
    "docs/options.md",
    "docs/questions.md",
    "docs/stream.md",
    "docs/tutorial.md",
}
"""The pages that `pronouns` reads: those for users, written in the English of technical writing."""
PRONOUN = re.compile(
    r"\b(what|who|whom|whoever|whomever|nobody|somebody|anybody|everybody)\b(?:['\u2019]s\b)?", re.IGNORECASE
)
PERSON = re.compile(
    r"\b(?!(?:answer|consider|discover|either|enter|ever|for|however|matter|neither|never|offer|or|other|over|"
    r"prefer|refer|register|remember|render|trigger|under|whether|wonder)s?,?$)"
    r"(?:\w+(?:er|or|ist|ian|ee)s?|clients?|consultants?|people|persons?|those|one|anyone|everyone|someone|teams?),?$",
    re.IGNORECASE,
)
"""The word in front of a relative "who", "the user who", "those who", if it is for a person."""
ASKED = re.compile(r"\s*(?:what|who)\s+(?:do|does|did)\b", re.IGNORECASE)
"""The begin of a question without its mark, as in a title: "What does it cost"."""
FENCE = re.compile(r"^ *(```|~~~)")
CONTAINER = re.compile(r" *(?:[-*+] |\d+\. |!!! |\?\?\?\+? |=== )")
NOT_PROSE = re.compile(r"`+[^`]*`+|\]\([^)]*\)|https?://\S+|<!--.*?-->", re.DOTALL)
SENTENCE_END = re.compile(r"[.?!:;|](?=[\s|*_)\"”]|$)|\n\s*\n|\n(?= *(?:[-*+#|>]|\d+\.) )")


def prose(text: str) -> str:
    """The sentences of a Markdown page, on their lines: blanks in place of code, addresses and comments."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    lines: list[str] = []
    fence, containers, in_code = "", [0], False
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        mark = FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
            lines.append("")
            continue
        if not line.strip() or fence:
            lines.append("")
            continue
        after_blank = not lines or not lines[-1]
        if after_blank or in_code:
            while len(containers) > 1 and indent < containers[-1]:
                containers.pop()
            in_code = indent >= containers[-1] + 4
        lines.append("" if in_code else line)
        if not in_code and (item := CONTAINER.match(line)):
            inside = indent + 4 if line.lstrip()[0] in "!?=" else item.end()
            containers = [each for each in containers if each <= indent] + [inside]
    return NOT_PROSE.sub(blank, "\n".join(lines))


def pronouns(text: str) -> Iterator[tuple[int, str]]:
    """The places of "what", "nobody" and the like for a subject or an object that a noun would name.

    Questions ("What does it cost?") and relative clauses ("the user who runs it") are not found.
    """
    for match in PRONOUN.finditer(text):
        word = match[1].lower()
        ends = [each.end() for each in SENTENCE_END.finditer(text, 0, match.start())]
        before = text[ends[-1] if ends else 0 : match.start()].lstrip("#>|*_- \n")
        end = SENTENCE_END.search(text, match.end())
        is_question = end is not None and end[0] == "?"
        if word in ("what", "who", "whom") and (
            is_question
            or (not before.strip() and ASKED.match(text[match.start() :]))
            or (word != "what" and PERSON.search(before.rstrip()))
        ):
            continue
        yield match.start(), match[0]


def constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names assigned at the top level and in classes, each with its line."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield node.lineno, target.id


def docstrings(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """The strings that stand alone, in Cython those that begin a line, each with its line."""
    if suffix == ".pyx":
        for match in CYTHON_DOCSTRING.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[1]
        return
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value


def public_names() -> set[str]:
    """The last parts of the public names: those of the reference, and those that the kernel exports."""
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
    found = {name.rpartition(".")[2] for name in IN_REFERENCE.findall(pages)}
    for node in ast.parse((ROOT / "kernel" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found.update(ast.literal_eval(node.value))
    return found


def public_docstrings(text: str, suffix: str, names: set[str]) -> Iterator[tuple[int, str]]:
    """The docstrings of public functions, classes and their public members, each with its line."""
    if suffix == ".pyx":
        in_public = False
        for match in CYTHON_DEFINITION.finditer(text):
            if not match["indent"]:
                in_public = match["name"] in names
            if in_public and match["name"][0] != "_" and match["docstring"] is not None:
                yield text.count("\n", 0, match.start("docstring")) + 1, match["docstring"]
        return
    for node in ast.parse(text).body:
        if isinstance(node, DEFINITIONS) and node.name in names:
            members = node.body if isinstance(node, ast.ClassDef) else []
            described = [each for each in members if isinstance(each, DEFINITIONS) and each.name[0] != "_"]
            for each in [node, *described]:
                if docstring := ast.get_docstring(each):
                    yield each.body[0].lineno, docstring


def complaints_of_public(text: str, suffix: str, names: set[str]) -> Iterator[tuple[int, str]]:
    """The first lines of public docstrings that have a pronoun in place of a noun, each with the rule."""
    for line, docstring in public_docstrings(text, suffix, names):
        for _, word in pronouns(NOT_PROSE.sub("", docstring.strip().split("\n")[0])):
            yield line, f"{word!r} in a first line: name the thing or the person by a noun"


def complaints_of_page(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that have a pronoun in place of a noun, each with the rule."""
    sentences = prose(text)
    for place, word in pronouns(sentences):
        yield sentences.count("\n", 0, place) + 1, f"{word!r}: name the thing or the person by a noun"


def complaints(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """The lines of one file that break a rule, each with the rule."""
    if suffix in (".py", ".pyx"):
        for line, docstring in docstrings(text, suffix):
            if question := QUESTION.match(docstring):
                yield line, f"a docstring begins with {question[1]!r}: use an imperative or a noun phrase"
    if suffix == ".py":
        for line, name in constants(ast.parse(text)):
            if name.lstrip("_") in BARE_CONSTANTS:
                yield line, f"{name}: say what it bounds and in which unit, as in HEARTBEAT_INTERVAL_S"
    for match in PHRASE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, f"{match[0]!r}: write 'is not a ...'"


def files() -> list[Path]:
    """The files that are checked: all that git knows of, but for contracts, whose wording is kept."""
    names = subprocess.run(
        [
            "git",
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.py",
            "*.pyx",
            "*.h",
            "*.md",
            "*.tla",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    skipped = {
        "docs/contracts.md",
        "spec/ended_contracts.md",
        ".ci/language.py",
        "tests/house/test_language.py",
    }
    return [ROOT / name for name in names if name not in skipped and (ROOT / name).is_file()]


def main() -> int:
    """Print the complaints; 1 if there are any."""
    names = public_names()
    found = []
    for path in files():
        name, text = path.relative_to(ROOT), path.read_text()
        said = [*complaints(text, path.suffix)]
        if path.suffix in (".py", ".pyx") and name.parts[0] in ("kernel", "pyruntime"):
            said += complaints_of_public(text, path.suffix, names)
        if name.as_posix() in PAGES:
            said += complaints_of_page(text)
        found += [f"{name}:{line}: {complaint}" for line, complaint in said]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
