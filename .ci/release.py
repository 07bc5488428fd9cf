"""Check a release, build it, and tag it; called by `make release` and `make sbom`.

    python .ci/release.py release [--tests "lint test-all"] [--pythons 3.10,3.13] [--no-tests] [--no-tag]
    python .ci/release.py sbom

In this order, and ending at the first fault: the tree is clean; pyproject.toml and the package have one
version, for which there is no tag; CHANGELOG.md begins with it and no news fragment is left; the tests
pass; sdist, wheels and bill of materials are built, checked, and the wheels tried without a compiler and
Java. Then comes the tag. Nothing is sent anywhere: the last lines say how.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import wheels

ROOT = Path(__file__).resolve().parent.parent
MAX_CHANGELOG_LINES = 200
EXTRAS_WITHOUT = ("testing",)
"""Extras of which the bill of materials has nothing: no job installs them."""


def git(root: Path, *words: str) -> str:
    """Return the output of a command of git. Raises SystemExit if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def version(root: Path = ROOT) -> str:
    """The version of pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("pyproject.toml has no version")
    return found[1]


def fragments(root: Path = ROOT) -> list[str]:
    """The news fragments that no version has yet."""
    return sorted(path.name for path in (root / "docs" / "news").glob("*.md") if path.name != "README.md")


def faults_of_text(root: Path = ROOT) -> Iterator[str]:
    """The reasons for which a text does not fit a release."""
    now = version(root)
    package = re.search(r'^__version__ = "(.+)"$', (root / "pyruntime/__init__.py").read_text(), re.MULTILINE)
    if package is None or package[1] != now:
        yield f"pyproject.toml has version {now}, pyruntime/__init__.py {package[1] if package else 'none'}"
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", now):
        yield f"version {now}: write MAJOR.MINOR.PATCH, or with a1, b1, rc1 behind it"
    changes = (root / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (\S+)", changes, re.MULTILINE)
    if sections[:1] != [now]:
        yield f"CHANGELOG.md begins with {(sections or ['nothing'])[0]}, not with {now}: run `make news`"
    if left := fragments(root):
        yield f"docs/news has fragments that CHANGELOG.md lacks: {', '.join(left)}: run `make news`"
    if (lines := changes.count("\n")) > MAX_CHANGELOG_LINES:
        yield f"CHANGELOG.md has {lines} lines, at most {MAX_CHANGELOG_LINES}: leave older detail to git"


def faults(root: Path = ROOT) -> Iterator[str]:
    """The reasons for which a checkout cannot be released."""
    if changed := git(root, "status", "--porcelain").splitlines():
        yield f"files differ from the commit: {', '.join(line[3:] for line in changed[:5])}"
    yield from faults_of_text(root)
    if git(root, "tag", "--list", f"v{version(root)}"):
        yield f"there is a tag v{version(root)}: write the next version"


def bill_of_materials() -> Path:
    """Write the bill of materials into dist/: the packages of all extras, and what is linked into wheels."""
    tool = wheels.tools()
    extras = re.search(
        r"^\[project\.optional-dependencies\]\n(.*?)\n\n",
        (ROOT / "pyproject.toml").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert extras is not None
    names = [name for name in re.findall(r"^(\w+) = ", extras[1], re.MULTILINE) if name not in EXTRAS_WITHOUT]
    with tempfile.TemporaryDirectory() as folder:
        report, listed = Path(folder, "report.json"), Path(folder, "requirements.txt")
        wanted = [
            tool,
            "-m",
            "pip",
            "--quiet",
            "install",
            "--dry-run",
            "--ignore-installed",
            "--no-build-isolation",
        ]
        constrained = ["--constraint", "constraints.txt", "--report", report, f".[{','.join(names)}]"]
        wheels.run([*wanted, *constrained])
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
        lines = sorted(f"{each['name']}=={each['version']}" for each in found if each["name"] != "pillarbox")
        listed.write_text("\n".join(lines) + "\n")
        wheels.DIST.mkdir(exist_ok=True)
        bill = wheels.DIST / f"pillarbox-{version()}.cdx.json"
        convert = [tool, "-m", "cyclonedx_py", "requirements", "--pyproject", "pyproject.toml"]
        wheels.run([*convert, "--mc-type", "library", "--output-reproducible", "-o", bill, listed])
    content = json.loads(bill.read_text())
    compiler = next(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ziglang==")
    )
    linked = {
        "type": "library",
        "bom-ref": "libc++",
        "name": "libc++",
        "version": f"of {compiler}",
        "licenses": [{"expression": "Apache-2.0 WITH LLVM-exception"}],
        "description": "The C++ library of LLVM, linked into the extension modules of wheels for Linux.",
        "scope": "required",
    }
    content["components"] = [*content.get("components", []), linked]
    bill.write_text(json.dumps(content, indent=2) + "\n")
    print(f"{len(content['components'])} components in {bill.relative_to(ROOT)}", flush=True)
    return bill


def release(options: argparse.Namespace) -> None:
    """Check, build and tag. Raises SystemExit at the first fault."""
    if found := list(faults()):
        raise SystemExit("\n".join(found))
    if 'repository = ""' in (ROOT / "pyproject.toml").read_text():
        print("pyproject.toml has no address of the repository: the package will have no URLs", flush=True)
    if not options.no_tests:
        wheels.run(["make", *options.tests.split()])
    versions = options.pythons.replace(",", " ").split()
    wheels.build(versions)
    wheels.try_wheels(versions, [])
    bill_of_materials()
    if changed := git(ROOT, "status", "--porcelain"):
        raise SystemExit(f"the build has changed files of the commit:\n{changed}")
    tag = f"v{version()}"
    if options.no_tag:
        print(f"{tag} is built, checked and not tagged")
        return
    git(ROOT, "tag", "--annotate", tag, "--message", f"Pillarbox {version()}")
    print(f"{tag} is built and tagged. To publish it:")
    print(f"    git push origin {tag}")
    print(f"    {wheels.TOOLS.relative_to(ROOT)}/bin/twine upload dist/*.tar.gz dist/*.whl")


def main(words: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python .ci/release.py", description=__doc__)
    parser.add_argument("action", choices=["release", "sbom"])
    parser.add_argument("--tests", default="lint test-all", help="targets of the Makefile that must pass")
    parser.add_argument("--pythons", default=",".join(wheels.PYTHONS), help="versions, such as 3.10,3.13t")
    parser.add_argument("--no-tests", action="store_true", help="the targets have passed for this commit")
    parser.add_argument("--no-tag", action="store_true", help="build and check alone")
    options = parser.parse_args(words)
    if options.action == "sbom":
        bill_of_materials()
    else:
        release(options)


if __name__ == "__main__":
    main(sys.argv[1:])
