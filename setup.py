"""Builds the kernel's Cython modules, and makes description and URLs; all else stands in pyproject.toml.

Two import names live in folders of other names (`kernel/` is `pillarbox.kernel`,
`pyruntime/` is `pillarbox`), so Cython needs a folder in which `cimport
pillarbox.kernel.mail` finds its `.pxd`: one symlink below `build/`, made here.

The extensions go through the `build_ext` of setuptools as it is. `cythonize()` at import
time of this file would run for `sdist` and `egg_info` too, and would write C++ files
beside the sources.

Switches, by environment: PILLARBOX_SANITIZE=address,undefined | thread; PILLARBOX_DEBUG=1;
PILLARBOX_INCLUDE=folder takes the headers from there. `python -m spec.variants` makes such builds, apart from
the usual one.
"""

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import customize_compiler, new_compiler

ROOT = Path(__file__).resolve().parent
CIMPORT = ROOT / "build" / "cimport"
# libcurl's thread waits in an epoll.
LINUX_ONLY = {"libcurl"}


def link_kernel_for_cimport() -> None:
    package = CIMPORT / "pillarbox"
    package.mkdir(parents=True, exist_ok=True)
    link = package / "kernel"
    if not link.is_symlink():
        link.symlink_to(ROOT / "kernel", target_is_directory=True)


def compiler_flags() -> tuple[list[str], list[str]]:
    # Builds with headers for tests are made often and run briefly.
    for_tests = "PILLARBOX_INCLUDE" in os.environ
    compile_args = ["-std=c++17", "-O1" if for_tests else "-O3", "-fvisibility=hidden"]
    link_args: list[str] = []
    if os.environ.get("PILLARBOX_DEBUG"):
        compile_args += ["-O1", "-g", "-UNDEBUG"]
    sanitize = os.environ.get("PILLARBOX_SANITIZE")
    if sanitize:
        compile_args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g", "-O1"]
        link_args += [f"-fsanitize={sanitize}"]
    if sys.platform == "win32":
        compile_args, link_args = ["/std:c++17", "/O2"], []
    return compile_args, link_args


def extensions() -> list[Extension]:
    compile_args, link_args = compiler_flags()
    headers = [str(p.relative_to(ROOT)) for p in (ROOT / "kernel").rglob("*.pxd")]
    headers += [str(p.relative_to(ROOT)) for p in (ROOT / "kernel").rglob("*.h")]
    found = []
    for source in sorted((ROOT / "kernel").glob("*.pyx")):
        if source.stem in LINUX_ONLY and sys.platform != "linux":
            continue
        extension = Extension(
            f"pillarbox.kernel.{source.stem}",
            [f"kernel/{source.name}"],
            language="c++",
            include_dirs=[os.environ.get("PILLARBOX_INCLUDE", "kernel/include")],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            depends=headers,
        )
        extension.cython_include_dirs = [str(CIMPORT)]
        extension.cython_c_in_temp = True
        extension.cython_directives = {
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            # A method of a built-in type costs less to call than one of Cython's own functions.
            "binding": False,
            "embedsignature": True,
            "embedsignature.format": "python",
            "freethreading_compatible": True,
        }
        found.append(extension)
    return found


PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
"""A link of Markdown that is relative, or an image."""


def repository() -> str:
    """The address of the repository, as pyproject.toml has it; it may be empty."""
    found = re.search(r'^repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1].rstrip("/")


def place(address: str, version: str, path: str, kind: str = "blob") -> str:
    return f"{address}/{kind}/v{version}/{path}"


def description(readme: str, address: str, version: str) -> str:
    """README.md as a page of its own: links lead into the repository, or are words if it has no address."""

    def elsewhere(link: "re.Match[str]") -> str:
        image, words, path = link.groups()
        if not address:
            return "" if image else words
        return f"{image}[{words}]({place(address, version, path, 'raw' if image else 'blob')})"

    # Twice, for an image that is a link.
    return LINK.sub(elsewhere, LINK.sub(elsewhere, readme))


def metadata() -> dict[str, object]:
    """The fields that pyproject.toml calls dynamic."""
    address = repository()
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    pages = {name: place(address, found[1], path) for name, path in PAGES.items()}
    return {
        "long_description": description((ROOT / "README.md").read_text(), address, found[1]),
        "long_description_content_type": "text/markdown",
        "project_urls": {"Source": address, "Issues": f"{address}/issues", **pages} if address else {},
    }


NO_COMPILER = """\
Pillarbox is built from its source here, and that needs {lack}. Install it: \
apt-get install g++ python3-dev (Debian, Ubuntu), dnf install gcc-c++ python3-devel (Fedora, RHEL), \
apk add g++ python3-dev linux-headers (Alpine), xcode-select --install (macOS); a wheel needs none: \
`pip install --only-binary pillarbox pillarbox` finds one if there is one."""


def require_compiler() -> None:
    """Raises SystemExit, in the first line that a build prints, where nothing here can compile."""
    compiler = new_compiler()
    if compiler.compiler_type != "unix":
        return
    customize_compiler(compiler)
    command = str(compiler.compiler_cxx[0])
    if shutil.which(command) is None:
        raise SystemExit(NO_COMPILER.format(lack=f"a C++17 compiler, {command!r} is not on the PATH"))
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise SystemExit(NO_COMPILER.format(lack=f"the headers of Python, {header} is not there"))


if {"bdist_wheel", "build_ext", "build", "editable_wheel", "install"} & set(sys.argv):
    require_compiler()
link_kernel_for_cimport()
setup(ext_modules=extensions(), **metadata())
