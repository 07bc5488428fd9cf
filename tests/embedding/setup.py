"""Builds another project's module on Pillarbox's kernel, as its own setup.py would.

Cython finds the `.pxd` files where Python finds the package. The C++ compiler needs the headers' folder.
"""

from pathlib import Path

from setuptools import Extension, setup

import pillarbox.kernel

relay = Extension(
    "relay",
    ["relay.pyx"],
    language="c++",
    include_dirs=[str(Path(pillarbox.kernel.__file__).parent / "include")],
    extra_compile_args=["-std=c++17"],
)
relay.cython_directives = {"language_level": 3, "freethreading_compatible": True}
setup(name="relay", version="1", ext_modules=[relay])
