"""The sdist, the wheel made from it, and another project that builds on the installed wheel.

One build for all of them, from a copy of the sources, so that nothing here meets a build in the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "bench", "docs", "examples", "fuzz", "kernel", "pyruntime", "spec", "tests")
FILES = (
    *(
        ".gitattributes",
        ".gitignore",
        ".pre-commit-config.yaml",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
    ),
    *(
        "MANIFEST.in",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "constraints.txt",
        "mkdocs.yml",
        "pyproject.toml",
    ),
    "setup.py",
)
BUILT = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")

COMMAND_TIMEOUT_S = 500
"""On a busy machine."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.packaging,
    pytest.mark.timeout(COMMAND_TIMEOUT_S + 100),
    pytest.mark.skipif(
        find_spec("build") is None or find_spec("Cython") is None, reason="the build tools are not installed"
    ),
]


def run(command: list[str], folder: Path, path: Path | None = None, **extra: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else {**os.environ}
    environment |= extra
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from the sdist."""
    copy = tmp_path_factory.mktemp("sources")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=BUILT)
    for name in FILES:
        shutil.copy2(ROOT / name, copy / name)
    folder = tmp_path_factory.mktemp("dist")
    parallel = tmp_path_factory.mktemp("config") / "parallel.cfg"
    parallel.write_text(f"[build_ext]\nparallel = {os.cpu_count() or 1}\n")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy)]
    run(build, copy, DIST_EXTRA_CONFIG=str(parallel), CFLAGS="-g0")
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
            if path.suffix in {".py", ".pyx", ".pxd", ".pyi", ".h", ".jinja"}:
                found.add(f"{name}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


def test_the_wheel_holds_every_module_layout_stub_and_header_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    compiled = {re.sub(r"\..*", "", name) for name in names if name.endswith((".so", ".pyd"))}
    assert compiled == {f"pillarbox/kernel/{path.stem}" for path in (ROOT / "kernel").glob("*.pyx")}
    assert {name for name in names if not name.endswith((".so", ".pyd"))} == expected_in_wheel()


def test_the_sdist_holds_every_file_of_the_project_and_no_build(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    kept = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    assert kept <= names
    assert [name for name in names - kept if name.endswith((".so", ".cpp", ".pyc"))] == []


@pytest.mark.contract
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


def test_the_description_is_whole_where_the_repository_is_not(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("/METADATA"))).decode()
    fields, _, description = metadata.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in fields
    assert re.search(r"^Author: .+$", fields, re.MULTILINE)
    assert fields.count("\nClassifier: ") > 10
    assert description.startswith("# Pillarbox\n")
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", description) == []


@pytest.mark.contract
def test_the_sdist_has_the_tests_that_try_what_was_built_from_it(
    dist: Path, installed: Path, tmp_path: Path
) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    some = ["tests/kernel/test_deadlines.py", "tests/aio/test_exhausted_process.py"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick"]
    shown = run([*tests, *[name for name in some if (tree / name).exists()]], tree, installed)
    assert re.search(r"\d+ passed", shown)
    assert "failed" not in shown


@pytest.mark.contract(
    "The pip install of README.md and of the page about installation works with the built wheel."
)
def test_what_the_readme_installs_runs(dist: Path, tmp_path: Path) -> None:
    pages = [ROOT / "README.md", ROOT / "docs" / "install.md"]
    wanted = {
        name
        for page in pages
        for name in re.findall(r"pip install '(pillarbox\[[\w,]+\])'", page.read_text())
    }
    assert wanted
    run([sys.executable, "-m", "venv", "venv"], tmp_path)
    inside = str(tmp_path / "venv" / "bin" / "python")
    pip = [
        inside,
        "-m",
        "pip",
        "install",
        "-q",
        "--find-links",
        str(dist),
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    run([*pip, *sorted(wanted)], tmp_path)
    imports = "from pillarbox.spark import async_udf\nfrom pillarbox import async_map"
    script = f"{imports}\nprint(list(async_map([-1, 2], abs)))"
    assert run([inside, "-c", script], tmp_path).splitlines()[-1] == "[1, 2]"
    assert "java-home" in run([inside, "-m", "pillarbox", "--help"], tmp_path)


@pytest.mark.contract
def test_the_wheel_runs_where_the_checkout_is_not(installed: Path, tmp_path: Path) -> None:
    script = "import pillarbox\nprint(pillarbox.__file__)\nprint(list(pillarbox.async_map([-1, 2], abs)))"
    lines = run([sys.executable, "-c", script], tmp_path, installed).splitlines()
    assert lines == [str(installed / "pillarbox" / "__init__.py"), "[1, 2]"]


def project(name: str, installed: Path, folder: Path) -> Path:
    """A copy of another project, built against the installed wheel."""
    copy = folder / name
    shutil.copytree(ROOT / "tests" / "embedding" / name, copy, ignore=BUILT)
    run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], copy, installed)
    return copy


@pytest.mark.contract
@pytest.mark.parametrize("name", ["relay", "native", "mixed"])
def test_another_project_builds_on_the_kernel(name: str, installed: Path, tmp_path: Path) -> None:
    copy = project(name, installed, tmp_path)
    use = [sys.executable, "-W", "error", f"use_{name}.py"]
    assert run(use, copy, installed).splitlines() == [f"{name}: done"]


def test_cython_finds_the_whole_kernel_by_one_name(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "whole.pyx").write_text(
        "cimport pillarbox.kernel\n"
        "cimport pillarbox.kernel as kernel\n"
        "cdef pillarbox.kernel.TaskMailbox mailbox = kernel.TaskMailbox()\n"
        "mailbox.offer(kernel.Mail(print))\n"
        "waiting = mailbox.core.waiting()\n"
    )
    run([sys.executable, "-m", "cython", "--cplus", "-3", "whole.pyx"], tmp_path, installed)
    assert "whole.cpp" in {path.name for path in tmp_path.iterdir()}


@pytest.fixture(scope="module")
def headers(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `get_include` names."""
    script = "import pillarbox.kernel; print(pillarbox.kernel.get_include())"
    found = Path(run([sys.executable, "-c", script], tmp_path_factory.mktemp("empty"), installed).strip())
    assert found == installed / "pillarbox" / "kernel" / "include"
    return found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "MAJOR 1",
            "MAJOR 9",
            "version 9.2 .*.*has version 1.2 .*: build it with the pillarbox that it runs with",
        ),
        ("MINOR 2", "MINOR 7", "version 1.7 .* has version 1.2 "),
        (
            "} pillarbox_functions;",
            "void (*more)(void);\n} pillarbox_functions;",
            r"version 1.2 .*\(\d+ bytes\).* has version 1.2 \(\d+ bytes\)",
        ),
        (
            "unsigned char queued;",
            "unsigned char queued, more[16];",
            "mails of 48 bytes, .* has mails of 32 bytes",
        ),
    ],
    ids=["major", "minor", "size", "mail"],
)
def test_a_module_for_another_version_is_refused(
    old: str, new: str, said: str, headers: Path, installed: Path, tmp_path: Path
) -> None:
    header = (headers / "pillarbox.h").read_text()
    assert header.count(old) == 1
    (tmp_path / "pillarbox.h").write_text(header.replace(old, new))
    (tmp_path / "other.c").write_text(
        "#include <Python.h>\n"
        '#include "pillarbox.h"\n'
        'static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "other"};\n'
        "PyMODINIT_FUNC PyInit_other(void) {\n"
        "    return pillarbox_import() < 0 ? NULL : PyModule_Create(&definition);\n"
        "}\n"
    )
    build = "from setuptools import Extension, setup; setup(ext_modules=[Extension('other', ['other.c'])])"
    run([sys.executable, "-c", build, "-q", "build_ext", "--inplace"], tmp_path, installed)
    script = "try:\n    import other\nexcept ImportError as error:\n    print(error)"
    assert re.search(said, run([sys.executable, "-c", script], tmp_path, installed))


COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on the path")
@pytest.mark.parametrize(("language", "standard"), [("c", "c99"), ("c", "c11"), ("c++", "c++17")])
@pytest.mark.parametrize("before", ["", "#include <Python.h>\n"], ids=["without Python", "with Python"])
def test_the_header_is_accepted_by_strict_compilers(
    language: str, standard: str, before: str, headers: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_text(f"{before}#include <pillarbox.h>\nint main(void) {{ return PILLARBOX_OPEN; }}\n")
    python = ["-isystem", sysconfig.get_paths()["include"]]
    run(
        [str(COMPILER), "-x", language, f"-std={standard}", *STRICT, f"-I{headers}", *python, str(source)],
        tmp_path,
    )


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on the path")
def test_every_header_is_whole_by_itself(headers: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in headers.glob("*.h"))
    assert "pillarbox.h" in names
    for name in names:
        (tmp_path / "source.cpp").write_text(f"#include <{name}>\nint main() {{}}\n")
        run([str(COMPILER), "-x", "c++", "-std=c++17", *STRICT, f"-I{headers}", "source.cpp"], tmp_path)
