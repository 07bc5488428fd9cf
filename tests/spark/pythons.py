"""A Python that lacks a module, for workers of a test."""

from __future__ import annotations

import sys
from pathlib import Path

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
"""


def python_without(module: str, folder: Path) -> str:
    """Write into `folder` a program that runs this Python without `module`, and return its path."""
    (folder / "sitecustomize.py").write_text(WITHOUT.format(module=module))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)
