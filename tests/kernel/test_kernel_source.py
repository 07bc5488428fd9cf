"""The kernel's source: one import name, stubs that tell the truth."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import pillarbox.kernel

KERNEL = Path(pillarbox.kernel.__file__).resolve().parent
MODULES = sorted(path.stem for path in KERNEL.glob("*.pyx"))


def test_a_second_import_name_is_refused() -> None:
    script = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('kernel', {str(KERNEL / '__init__.py')!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "'kernel'" in done.stderr and "pillarbox.kernel" in done.stderr


def test_every_exported_name_is_there() -> None:
    assert sorted(pillarbox.kernel.__all__) == sorted(set(pillarbox.kernel.__all__))
    for name in pillarbox.kernel.__all__:
        assert getattr(pillarbox.kernel, name) is not None


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_layout_stub_and_a_first_line_that_says_its_idea(module: str) -> None:
    assert (KERNEL / f"{module}.pxd").exists()
    assert (KERNEL / f"{module}.pyi").exists()
    assert (KERNEL / f"{module}.pyx").read_text().startswith('"""')
    assert importlib.import_module(f"pillarbox.kernel.{module}").__doc__


@pytest.mark.parametrize(
    "cls",
    [
        pillarbox.kernel.Mail,
        pillarbox.kernel.TaskMailbox,
        pillarbox.kernel.ResultQueue,
        pillarbox.kernel.Handover,
    ],
)
def test_every_public_method_has_a_docstring_and_a_line_in_the_stub(cls: type) -> None:
    stub = (KERNEL / f"{cls.__module__.rpartition('.')[2]}.pyi").read_text()
    public = [name for name in vars(cls) if not name.startswith("_")]
    assert public
    for name in public:
        described = inspect.getdoc(getattr(cls, name))
        member = vars(cls)[name]
        if not inspect.ismemberdescriptor(member) and name not in ("fn", "args"):
            assert described, f"{cls.__name__}.{name} has no docstring"
        assert f"def {name}(" in stub, f"{cls.__name__}.{name} is not in the stub"
