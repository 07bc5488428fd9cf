"""The functions of `pillarbox.h` among native threads, also under the sanitizers."""

import pytest

from spec.native import BACKENDS, compiled, plant, run
from tests.native.sanitizers import ASAN, TSAN, needs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sanitizer", ["-O2", TSAN, ASAN])
def test_native_mail_is_run_or_dropped_once_and_in_order(backend: str, sanitizer: str) -> None:
    needs(sanitizer)
    done = run(compiled("capi_stress", sanitizer), backend)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("defect", ["fetch_in_reverse", "put_all_in_reverse", "quiesce_drops_mail"])
def test_native_threads_find_a_planted_defect(defect: str) -> None:
    done = run(compiled("capi_stress", "-O2", planted=True), "lock-free", environment=plant(defect))
    assert done.returncode == 1 and done.stdout not in ("", "ok\n"), done.stdout + done.stderr
