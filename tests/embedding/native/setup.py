"""Builds a C extension on Pillarbox's kernel: all it needs is the folder of the header."""

from setuptools import Extension, setup

import pillarbox.kernel

native = Extension(
    "native",
    ["native.c"],
    include_dirs=[pillarbox.kernel.get_include()],
    extra_compile_args=["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pthread"],
    extra_link_args=["-pthread"],
)
setup(name="native", version="1", ext_modules=[native])
