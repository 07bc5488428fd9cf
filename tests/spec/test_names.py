"""The code names the actions of the specification, and the specification has what the code names."""

import re
from pathlib import Path

import pytest

from pillarbox.kernel import Handover, ResultQueue, TaskMailbox

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "spec"
NAMED = re.compile(r"(?:#|//) spec: (.+)")
SOURCES = [
    path
    for folder in ("kernel", "pyruntime", "spec/include")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".pyx", ".pxd", ".h"}
]


def named() -> list[tuple[str, str, str]]:
    """File, module and action of every comment that names an action."""
    found = []
    for path in SOURCES:
        for line in path.read_text().splitlines():
            match = NAMED.search(line)
            for name in match[1].split(",") if match else []:
                module, _, action = name.strip().partition("!")
                found.append((path.name, module, action))
    return found


def test_every_named_action_is_in_the_specification() -> None:
    names = named()
    assert len(names) > 60
    unknown = [
        f"{file}: {module}!{action}"
        for file, module, action in names
        if not (SPEC / f"{module}.tla").exists()
        or not re.search(rf"^{action}(\(.*?\))? ==", (SPEC / f"{module}.tla").read_text(), re.MULTILINE)
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("header", "module"),
    [
        ("pillarbox_mailbox.h", "Mailbox"),
        ("pillarbox_inbox_mutex.h", "Mailbox"),
        ("pillarbox_inbox_lockfree.h", "MailboxImpl"),
        ("pillarbox_queue.h", "ResultQueue"),
        ("pillarbox_handover.h", "Handover"),
    ],
)
def test_every_core_names_the_actions_of_its_module(header: str, module: str) -> None:
    assert len([1 for file, of, _ in named() if (file, of) == (header, module)]) >= 4


def test_the_specification_names_every_method_back() -> None:
    rows = [
        line.split("|") for line in (SPEC / "README.md").read_text().splitlines() if line.startswith("| `")
    ]
    listed = {
        module: {
            name
            for row in rows
            if row[1].startswith(f" `{module}!")
            for name in re.findall(r"`(\w+)`", row[2])
        }
        for module in ("Mailbox", "ResultQueue", "Handover")
    }
    assert [
        f"{cls.__name__}.{name}"
        for cls, module in ((TaskMailbox, "Mailbox"), (ResultQueue, "ResultQueue"), (Handover, "Handover"))
        for name, member in vars(cls).items()
        # What changes or answers, and is neither watching nor ownership.
        if callable(member) and not name.startswith("_")
        if name not in {"statistics", "check_is_mailbox_thread"}
        if name not in listed[module]
    ] == []
