"""Builds a C++ extension on Pillarbox's kernel, as its own setup.py would."""

from setuptools import Extension, setup

import pillarbox.kernel

mixed = Extension(
    "mixed",
    ["mixed.cpp"],
    language="c++",
    include_dirs=[pillarbox.kernel.get_include()],
    extra_compile_args=["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread"],
    extra_link_args=["-pthread"],
)
setup(name="mixed", version="1", ext_modules=[mixed])
