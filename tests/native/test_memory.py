"""The kernel's headers when memory runs out: what cannot be done has changed nothing."""

import pytest

from spec.native import compiled, run
from tests.native.sanitizers import ASAN

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("sanitizer", ["-O2", ASAN])
def test_deadlines_stay_whole_when_an_allocation_fails(sanitizer: str) -> None:
    done = run(compiled("deadlines_memory", sanitizer))
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
