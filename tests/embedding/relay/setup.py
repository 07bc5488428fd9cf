"""Builds another project's modules on Pillarbox's kernel, as its own setup.py would.

Cython finds the `.pxd` files where Python finds the package. The compiler needs the headers' folder. A module
that cimports the kernel's classes is C++; one that keeps to the C interface may be C.
"""

from setuptools import Extension, setup

import pillarbox.kernel

modules = [
    Extension("relay", ["relay.pyx"], language="c++", extra_compile_args=["-std=c++17"]),
    Extension("poster", ["poster.pyx"], extra_compile_args=["-std=c99"]),
]
for module in modules:
    module.include_dirs = [pillarbox.kernel.get_include()]
    module.cython_directives = {"language_level": 3, "freethreading_compatible": True}
setup(name="relay", version="1", ext_modules=modules)
