"""Writes constraints.txt: the newest versions that resolve together, for every Python that is given.

Run by `make lock PYTHONS="python3.10 python3.11 ..."`. Where two Pythons need different versions of a
package, its lines carry a marker. Versions only: no addresses, no hashes, no paths.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("dev", "packages", "embedding")
HEADER = """\
# The development environment, locked: written by `make lock`, read by `make env`.
# The package's own requirements are in pyproject.toml and are not pinned.
"""


def resolve(python: str) -> tuple[tuple[int, int], dict[str, str]]:
    """Returns the interpreter's (major, minor) and the versions that pip would install on it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--upgrade", "pip"], check=True)
        report = Path(folder) / "report.json"
        wanted = ["pip", ".[connect,progress,java]"]
        wanted += [word for group in GROUPS for word in ("--group", group)]
        subprocess.run(
            [*pip, "install", "--dry-run", "--ignore-installed", "--report", str(report), *wanted],
            cwd=ROOT,
            check=True,
        )
        content = json.loads(report.read_text())
    major, minor = content["environment"]["python_version"].split(".")
    packages = {item["metadata"]["name"]: item["metadata"]["version"] for item in content["install"]}
    packages.pop("pillarbox")
    return (int(major), int(minor)), {name.lower().replace("_", "-"): v for name, v in packages.items()}


def lines(name: str, versions: list[tuple[tuple[int, int], str]]) -> Iterator[str]:
    """Yields one line for each run of Pythons that take the same version, oldest Python first."""
    runs: list[tuple[tuple[int, int], str]] = []
    for python, version in versions:
        if not runs or runs[-1][1] != version:
            runs.append((python, version))
    for index, (first, version) in enumerate(runs):
        bounds = []
        if index > 0:
            bounds.append(f'python_version >= "{first[0]}.{first[1]}"')
        if index + 1 < len(runs):
            after = runs[index + 1][0]
            bounds.append(f'python_version < "{after[0]}.{after[1]}"')
        yield f"{name}=={version}" + (f"; {' and '.join(bounds)}" if bounds else "")


def main(pythons: list[str]) -> None:
    if not pythons:
        raise SystemExit("lock.py needs at least one interpreter, for example: python3.10 python3.13")
    resolved = sorted(resolve(python) for python in pythons)
    names = sorted({name for _, packages in resolved for name in packages})
    text = HEADER
    for name in names:
        versions = [(python, packages[name]) for python, packages in resolved if name in packages]
        text += "".join(f"{line}\n" for line in lines(name, versions))
    (ROOT / "constraints.txt").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
