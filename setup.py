"""Builds the kernel's Cython modules; everything else stands in pyproject.toml.

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
import sys
from pathlib import Path

from setuptools import Extension, setup

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


link_kernel_for_cimport()
setup(ext_modules=extensions())
