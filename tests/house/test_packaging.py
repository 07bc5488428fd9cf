"""The sdist, the wheel made from it, and another project that builds on the installed wheel.

One build for all of them, from a copy of the sources, so that nothing here meets a build in the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("kernel", "pyruntime", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILT = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(
        find_spec("build") is None or find_spec("Cython") is None, reason="the build tools are not installed"
    ),
]


def run(command: list[str], folder: Path, path: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else {**os.environ}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from the sdist."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=BUILT)
        else:
            shutil.copy2(ROOT / name, copy / name)
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy)], copy)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, to be put in front of the path."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder


def expected_in_wheel() -> set[str]:
    found = {"pillarbox/py.typed"}
    for folder, name in (("kernel", "pillarbox/kernel"), ("pyruntime", "pillarbox")):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".pyx", ".pxd", ".pyi", ".h"}:
                found.add(f"{name}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


def test_the_wheel_holds_every_module_layout_stub_and_header_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    compiled = {re.sub(r"\..*", "", name) for name in names if name.endswith((".so", ".pyd"))}
    assert compiled == {f"pillarbox/kernel/{path.stem}" for path in (ROOT / "kernel").glob("*.pyx")}
    assert {name for name in names if not name.endswith((".so", ".pyd"))} == expected_in_wheel()


def test_the_sdist_holds_what_a_build_needs_and_no_build(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kernel").rglob("*.h")}
    assert needed | {"setup.py", "pyproject.toml", "LICENSE", "README.md"} <= names
    assert [name for name in names if name.endswith((".so", ".cpp", ".pyc"))] == []


def test_the_metadata_names_the_licence_and_no_required_package(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA"))).decode()
        assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.10" in metadata
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert required == []


def test_the_wheel_runs_where_the_checkout_is_not(installed: Path, tmp_path: Path) -> None:
    script = "import pillarbox\nprint(pillarbox.__file__)\nprint(list(pillarbox.async_map(abs, [-1, 2])))"
    lines = run([sys.executable, "-c", script], tmp_path, installed).splitlines()
    assert lines == [str(installed / "pillarbox" / "__init__.py"), "[1, 2]"]


def test_another_project_cimports_the_kernel(installed: Path, tmp_path: Path) -> None:
    project = tmp_path / "relay"
    shutil.copytree(ROOT / "tests" / "embedding", project, ignore=BUILT)
    run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], project, installed)
    script = (
        "from pillarbox.kernel import Mail, TaskMailbox\n"
        "from relay import relay\n"
        "said = []\n"
        "source, target = TaskMailbox(), TaskMailbox()\n"
        "source.put_all([Mail(said.append, n, urgent=n == 2) for n in range(3)])\n"
        "print(relay(source, target), len(source), len(target))\n"
        "while (mail := target.try_take()) is not None:\n"
        "    mail.run()\n"
        "print(said)\n"
    )
    assert run([sys.executable, "-c", script], project, installed).splitlines() == ["(3, 1) 0 3", "[2, 0, 1]"]
