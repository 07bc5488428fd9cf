"""Type checkers take a user's script, know the types of its results, and find its mistakes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "examples" / "typed_script.py"

MISTAKES = [
    'async_map(numbers, lookup, errors="colum")',
    'async_map(numbers, lookup, capacity="many")',
    "async_map(numbers, lookup, timout=5)",
    'Options(errors="raise")',
    'async_udf("int", capacity="many")',
    'Options(latency="fast")',
    'list(async_map(numbers, lookup, errors="null"))[0].upper()',
]

Errors: TypeAlias = list[tuple[str, int, str]]
"""File, line and text of what a type checker found."""


def tree(folder: Path) -> Path:
    """The packages by the names under which they are imported, which an editable installation hides."""
    (folder / "pillarbox").mkdir()
    for path in [*(ROOT / "pyruntime").iterdir(), ROOT / "kernel"]:
        (folder / "pillarbox" / path.name).symlink_to(path)
    return folder


def mypy(folder: Path, *scripts: Path) -> Errors:
    pytest.importorskip("mypy")
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--python-version",
                "3.10",
                "--config-file",
                "/dev/null",
            ),
            *("--follow-imports", "silent", "--cache-dir", str(folder / "cache"), *map(str, scripts)),
        ],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return [(Path(name).name, int(line), text) for name, line, text in found]


def pyright(folder: Path, *scripts: Path) -> Errors:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    settings = {
        "extraPaths": [str(folder)],
        "pythonVersion": "3.10",
        "include": [str(each) for each in scripts],
    }
    configured = folder / "pyrightconfig.json"
    configured.write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", configured, "--outputjson"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        # It fetches itself by Node when it first runs.
        pytest.skip(f"pyright cannot run here: {done.stderr[-500:]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in found
        if each["severity"] == "error"
    ]


@pytest.mark.slow
@pytest.mark.contract("Type checkers take a user's script and know the types of its results.")
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_users_script_is_taken_and_each_mistake_in_it_is_found(
    checker: Callable[..., Errors], tmp_path: Path
) -> None:
    folder = tree(tmp_path)
    text = SCRIPT.read_text()
    mistaken = folder / "mistaken_script.py"
    mistaken.write_text(text + "".join(f"{line}\n" for line in MISTAKES))
    found = checker(folder, SCRIPT, mistaken)
    first = text.count("\n") + 1
    assert {(name, line) for name, line, _ in found} == {
        (mistaken.name, first + place) for place in range(len(MISTAKES))
    }, found
